"""The three-layer tanh network: its forward pass, its Jacobian, the chain rule, and training in fewer dimensions."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from autojacobin.core.arrays import namespace, to_host
from autojacobin.core.linear_algebra import coordinates, mean_row, principal_frame


@dataclass(frozen=True)
class Network:
    """``z = tanh(W2 tanh(W1 x + b1) + b2)`` with D inputs and outputs and d hidden units.

    W1 has the shape (d, D) and b1 (d,), from the input to the hidden layer; W2 has (D, d) and b2 (D,).
    """

    W1: Any
    b1: Any
    W2: Any
    b2: Any

    def to_vector(self) -> Any:
        """All weights as the one vector θ that Algorithm 1 moves, in the order W1, b1, W2, b2."""
        xp = namespace(self.W1)
        return xp.concatenate([part.ravel() for part in (self.W1, self.b1, self.W2, self.b2)])

    def with_vector(self, theta: Any) -> Network:
        """Network of this shape whose weights are views into the vector ``theta``."""
        d, D = self.W1.shape
        end_W1, end_b1, end_W2 = d * D, d * D + d, 2 * d * D + d
        return Network(
            W1=theta[:end_W1].reshape(d, D),
            b1=theta[end_W1:end_b1],
            W2=theta[end_b1:end_W2].reshape(D, d),
            b2=theta[end_W2:],
        )

    def forward(self, X: Any) -> Activations:
        """Send the rows of ``X`` through the network."""
        xp = namespace(X)
        Y = xp.tanh(X @ self.W1.T + self.b1)
        Z = xp.tanh(Y @ self.W2.T + self.b2)
        return Activations(X, Y, Z)

    def backward(self, state: Activations, partials: Partials) -> Network:
        """Gradient with respect to the weights, from the partial derivatives of all terms of a cost."""
        dW1, dW2, dY, dZ = partials.W1, partials.W2, partials.Y, partials.Z
        delta_out = dZ * state.a
        delta_hidden = (dY + delta_out @ self.W2) * state.g
        return Network(
            W1=dW1 + delta_hidden.T @ state.X,
            b1=delta_hidden.sum(axis=0),
            W2=dW2 + delta_out.T @ state.Y,
            b2=delta_out.sum(axis=0),
        )


@dataclass(frozen=True)
class Activations:
    """Activations of a batch: inputs X (n, D), hidden features Y (n, d), outputs Z (n, D)."""

    X: Any
    Y: Any
    Z: Any

    @cached_property
    def g(self) -> Any:
        """Slope of tanh at the hidden units, 1 − Y²."""
        return 1 - self.Y * self.Y

    @cached_property
    def a(self) -> Any:
        """Slope of tanh at the outputs, 1 − Z²."""
        return 1 - self.Z * self.Z


@dataclass
class Partials:
    """Partial derivatives of a cost with respect to Y, Z, W1 and W2, as if these four were independent.

    Along a line of weights, the trace part of the Jacobian term adds one derivative in the direction of the line to
    ``slope`` instead.
    """

    Y: Any
    Z: Any
    W1: Any
    W2: Any
    slope: float = 0.0

    @classmethod
    def zeros(cls, network: Network, state: Activations) -> Partials:
        """Zeros, to which the terms of a cost add their derivatives."""
        xp = namespace(state.Y)
        return cls(*(xp.zeros_like(part) for part in (state.Y, state.Z, network.W1, network.W2)))


@dataclass(frozen=True)
class PrincipalCoordinates:
    """Coordinates u = F (x − μ) in the leading principal ``directions`` F (m, D) of points with the ``mean`` μ.

    A network that was trained on u can be expanded to one that takes x.
    """

    mean: Any
    directions: Any

    @classmethod
    def of(cls, X: Any, energy: float, fewest: int) -> PrincipalCoordinates:
        """Keep a share ``energy`` of the variance of the rows of ``X``, and at least ``fewest`` directions."""
        xp = namespace(X)
        mean = mean_row(X)
        directions = principal_frame(X, mean, X.shape[1])
        kept = xp.cumsum(coordinates(X, mean, directions).var(axis=0, dtype="float64"))
        n_directions = 1 + int((kept < energy * kept[-1]).sum())
        return cls(mean, directions[: min(max(n_directions, fewest), len(directions))].copy())

    def reduce(self, X: Any) -> Any:
        """Coordinates of the rows of ``X``, shape (n, m)."""
        return coordinates(X, self.mean, self.directions)

    def expand(self, network: Network) -> Network:
        """Give the network on x that corresponds to a network on u, on the host.

        The hidden layer is the same: W1 F x + b1 − W1 F μ. The output should be μ + F' tanh(v) where the given network
        has tanh(v). A tanh layer has that to first order around the mean: tanh(artanh μ + (F' v) / (1 − μ²)).
        """
        mean, directions = to_host(self.mean), to_host(self.directions)
        W1 = network.W1 @ directions
        slopes = 1 / (1 - mean * mean)
        return Network(
            W1=W1,
            b1=network.b1 - W1 @ mean,
            W2=slopes[:, None] * (directions.T @ network.W2),
            b2=np.arctanh(mean) + slopes * (directions.T @ network.b2),
        )
