"""Gradients as Appendix II of the paper prints them, with the corrections that it needs.

Points are columns here, as in the paper. ``o(n)`` is its O^n, a column of n ones; ``add`` is its sum(·), which
adds up the rows; ``outer3`` its ⊗ and ``times3`` its ⊖. The corrections:

- a batch needs the sum over its points for b1 and b2;
- the binary term is to be read element by element;
- tr(JA') lacks a transpose on (1−y²)(O^D)' and on O^D(1−z²)' for W1 and b1, and has one misplaced for b2.
"""

import numpy as np


def o(n):
    return np.ones((n, 1))


def add(Q):
    return Q.sum(axis=0, keepdims=True) if Q.ndim == 2 else Q.sum(axis=0)


def outer3(W1, W2):
    return np.einsum("ki,jk->ijk", W1, W2)


def times3(U, V):
    return U[:, :, None] * V


def _state(network, x):
    x = x[:, None]
    y = np.tanh(network.W1 @ x + network.b1[:, None])
    return x, y, np.tanh(network.W2 @ y + network.b2[:, None])


def auto_encoder(network, inputs, targets):
    gradient = None
    for x, target in zip(inputs, targets, strict=True):
        x, y, z = _state(network, x)
        out = (z - target[:, None]) * (1 - z**2)
        hidden = (network.W2.T @ out) * (1 - y**2)
        gradient = _sum(gradient, (2 * hidden @ x.T, 2 * hidden, 2 * out @ y.T, 2 * out))
    return gradient


def binary(network, inputs, epsilon):
    X = inputs.T
    N = X.shape[1]
    Y = np.tanh(network.W1 @ X + network.b1[:, None])
    M = Y @ Y.T - N * np.eye(len(Y))
    S = M / np.sqrt(M**2 + epsilon)
    hidden = 2 * (S @ Y) * (1 - Y**2)
    return hidden @ X.T, hidden @ o(N), np.zeros_like(network.W2), np.zeros((X.shape[0], 1))


def squared_norm(network, inputs):
    W1, W2 = network.W1, network.W2
    d, D = W1.shape
    gradient = None
    for x in inputs:
        x, y, z = _state(network, x)
        g, gD = 1 - y**2, (1 - y**2) @ o(D).T
        K = W1.T @ (W2.T * gD)
        first = -4 * (W2.T * (o(d) @ ((1 - z**2) ** 2 * z).T) * gD * (o(d) @ add(K**2))) @ o(D)
        second = 2 * (W2.T @ (W1.T @ (W2.T * (o(d) @ ((1 - z**2) ** 2).T) * gD)).T) * gD
        weighted = (o(D) @ ((1 - z**2) ** 2).T) * K
        third = -4 * add(add(times3(weighted, outer3(W1, W2)))).T * (y - y**3)
        last = -4 * ((1 - z**2) ** 2 * z) * add(K**2).T
        gradient = _sum(
            gradient,
            (
                first @ x.T + second + third @ x.T,
                first + third,
                last @ y.T + 2 * ((1 - z**2) ** 2 @ o(d).T) * (K.T @ (W1 * (g @ o(D).T)).T),
                last,
            ),
        )
    return gradient


def trace(network, inputs, bases):
    W1, W2 = network.W1, network.W2
    d, D = W1.shape
    gradient = None
    for x, T in zip(inputs, bases, strict=True):
        A = T.T @ T
        x, y, z = _state(network, x)
        g, gD = 1 - y**2, (1 - y**2) @ o(D).T
        K = W1.T @ (W2.T * gD)
        first = -2 * (W2.T * (o(d) @ (z - z**3).T) * gD * (o(d) @ add(K * A))) @ o(D)
        second = ((o(d) @ (1 - z**2).T) * (W2.T * gD)) @ A.T
        third = -2 * add(add(times3((o(D) @ (1 - z**2).T) * A, outer3(W1, W2)))).T * (y - y**3)
        last = -2 * (z - z**3) * add(K * A).T
        gradient = _sum(
            gradient,
            (
                first @ x.T + second + third @ x.T,
                first + third,
                last @ y.T + ((1 - z**2) @ o(d).T) * ((W1 * (g @ o(D).T)) @ A).T,
                last,
            ),
        )
    return gradient


def jacobian(network, inputs, bases):
    norm, product = squared_norm(network, inputs), trace(network, inputs, bases)
    return tuple(n - 2 * t for n, t in zip(norm, product, strict=True))


def _sum(total, parts):
    return parts if total is None else tuple(t + p for t, p in zip(total, parts, strict=True))
