"""Scalable graph hashing: its similarity against the explicit matrix, its bits against the problem written out."""

import numpy as np
import scipy.linalg

from autojacobin import SGH
from autojacobin.hashers.graph_hashing import similarity_factors
from tests.hashers.methods import digits


def unit_ball(n):
    X = digits()[:n].astype(np.float64)
    X = X - X.mean(axis=0)
    return X / np.linalg.norm(X, axis=1).max()


def test_the_factors_give_the_similarity_with_a_line_for_the_exponential():
    X = unit_ball(60)
    P, Q = similarity_factors(X)
    e = np.e
    squares = np.sum(X**2, axis=1)
    line = (e - 1 / e) / 2 * (X @ X.T) + (e + 1 / e) / 2
    assert np.allclose(P @ Q.T, 2 * np.exp(-squares / 2)[:, None] * np.exp(-squares / 2) * line - 1)


def test_the_factors_approximate_the_similarity_of_the_paper():
    X = unit_ball(60)
    P, Q = similarity_factors(X)
    exact = 2 * np.exp(-np.sum((X[:, None] - X) ** 2, axis=2) / 2) - 1
    # the line is exact at ±1, and at 0 it is cosh(1) = 1.54 in place of 1
    assert np.abs(P @ Q.T - exact).max() <= 2 * (np.cosh(1) - 1) + 1e-9
    away = ~np.eye(60, dtype=bool)
    assert np.corrcoef((P @ Q.T)[away], exact[away])[0, 1] > 0.8


def written_out(X, n_bits, n_anchors, seed):
    """The bits of the training points, with the whole matrix of similarities and a generalised eigenproblem per bit."""
    rng = np.random.RandomState(seed)
    X = X - X.mean(axis=0)
    X = X / np.linalg.norm(X, axis=1).max()
    anchors = X[rng.permutation(len(X))[:n_anchors]]
    squares = np.sum((X[:, None] - anchors) ** 2, axis=2)
    K = np.exp(-squares / (2 * squares.mean()))
    K = K - K.mean(axis=0)
    P, Q = similarity_factors(X)
    Z = K.T @ K
    Z = Z + 1e-6 * np.trace(Z) / len(Z) * np.eye(len(Z))
    B = np.zeros((len(X), n_bits))
    for bit in (*range(n_bits), *rng.permutation(n_bits)):
        B[:, bit] = 0
        R = n_bits * (P @ Q.T) - B @ B.T
        _, vectors = scipy.linalg.eigh(K.T @ R @ K, Z)
        B[:, bit] = np.where(K @ vectors[:, -1] >= 0, 1, -1)
    return B


def test_bits_solve_the_problem_of_each_step():
    X = digits()[:150].astype(np.float64)
    hasher = SGH(8, n_anchors=25, random_state=3).fit(X)
    signs = hasher.encode(X).to_signs()
    expected = written_out(X, 8, 25, seed=3)
    agreement = np.abs((signs * expected).mean(axis=0))  # the sign of an eigenvector is free
    assert np.all(agreement == 1)


def test_the_kernel_is_centred_on_the_training_points():
    X = digits()[:400].astype(np.float64)
    hasher = SGH(16, n_anchors=50, random_state=0).fit(X)
    assert hasher.anchors_.shape == (50, 64)
    assert np.abs(hasher.project(X).mean(axis=0)).max() < 1e-9
    assert np.abs(hasher.transform(X).mean(axis=0) - 0.5).max() < 0.45


def test_there_are_no_more_anchors_than_training_points():
    assert len(SGH(8).fit(digits()[:40]).anchors_) == 40
