"""The cost that Algorithm 1 minimises: its terms, their values and their gradients, over a whole batch.

    C = Σᵢ ‖zᵢ − xᵢ‖²  +  w Σᵢ ‖Jᵢ − TᵢTᵢ'‖²  +  α ‖YY' − nI‖₁ᵋ  +  λ Σᵢ ‖∂yᵢ/∂xᵢ‖²
        reconstruction       jacobian             binary              contraction

Each term is a function of Y, Z, W1 and W2. It adds its partial derivatives with respect to these four, as if they were
independent, to a :class:`Partials`. :meth:`Network.backward` then computes the gradient with respect to the weights.
The Jacobian term takes nearly all of the time; it is in ``jacobian.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from autojacobin.autoencoder.jacobian import LineBuffer, TraceAlongLine, jacobian, sum_in_double
from autojacobin.autoencoder.network import Activations, Network, Partials
from autojacobin.autoencoder.tangent import TangentSpaces
from autojacobin.core.arrays import namespace


@dataclass(frozen=True)
class Batch:
    """The points of one step: inputs of the network, the outputs it should have, and the tangent spaces there."""

    inputs: Any
    targets: Any
    tangents: TangentSpaces | None = None


@dataclass(frozen=True)
class Objective:
    """Weighted sum of the terms. A term of weight zero is not computed.

    ``alpha`` is the weight α of the binary term and ``epsilon`` the smoothing ε of its 1-norm, ``jacobian_weight`` the
    weight w of the Jacobian term, for batches that carry tangent spaces, and ``contraction_weight`` the weight λ.
    """

    alpha: float = 0.1
    epsilon: float = 1e-4
    jacobian_weight: float = 0.0
    contraction_weight: float = 0.0

    def __call__(self, network: Network, batch: Batch) -> tuple[dict[str, float], Network]:
        """Compute the weighted value of every term, and the gradient of their sum with respect to the weights."""
        values, gradient, _ = self._evaluate(network, batch)
        return values, gradient

    def descent(self, network: Network, batch: Batch, buffer: LineBuffer | None = None) -> Descent:
        """Evaluate the cost and its gradient at ``network``, and return the cost as a function of the step length.

        Descents that are given the same ``buffer`` share its memory, so only the last of them may be called.
        """
        return Descent(self, network, batch, buffer or LineBuffer())

    def _evaluate(
        self, network: Network, batch: Batch, line: TraceAlongLine | None = None, t: float = 0.0
    ) -> tuple[dict[str, float], Network, float]:
        """Values of the terms, their gradient, and the slope along ``line`` that the gradient does not include."""
        state = network.forward(batch.inputs)
        partials = Partials.zeros(network, state)
        values = {"reconstruction": reconstruction(state, batch.targets, 1.0, partials)}
        if self.jacobian_weight:
            if batch.tangents is None:
                raise ValueError(
                    "the Jacobian term needs tangent spaces, got a batch without them; pass Batch(tangents=...)"
                )
            values["jacobian"] = jacobian(network, state, batch.tangents, self.jacobian_weight, partials, line, t)
        if self.alpha:
            values["binary"] = binary(state, self.epsilon, self.alpha, partials)
        if self.contraction_weight:
            values["contraction"] = contraction(network, state, self.contraction_weight, partials)
        return values, network.backward(state, partials), partials.slope


class Descent:
    """The cost of a batch along θ − t G, the line on which Algorithm 1 searches for a step length λ.

    The products with the tangent spaces are computed once for all t (:class:`TraceAlongLine`). ``gradient`` is G, the
    gradient of the cost at θ, as a vector. ``values`` are the weighted terms there, and ``slope`` is the derivative of
    their sum with respect to t, −‖G‖².
    """

    def __init__(self, objective: Objective, network: Network, batch: Batch, buffer: LineBuffer) -> None:
        self._objective, self._network, self._batch = objective, network, batch
        tangents = batch.tangents if objective.jacobian_weight else None
        self._line = None if tangents is None else TraceAlongLine(network, tangents, buffer)
        self.values, gradient, _ = objective._evaluate(network, batch, self._line)
        self.gradient = gradient.to_vector()
        self.slope = -float(self.gradient @ self.gradient)
        if self._line is not None:
            self._line.set_direction(network.with_vector(-self.gradient))

    def __call__(self, t: float) -> tuple[dict[str, float], float]:
        """Weighted value of every term at θ − t G, and the derivative of their sum with respect to t."""
        moved = self._network.with_vector(self._network.to_vector() - t * self.gradient)
        values, gradient, slope = self._objective._evaluate(moved, self._batch, self._line, t)
        return values, slope - float(gradient.to_vector() @ self.gradient)


def reconstruction(state: Activations, targets: Any, weight: float, partials: Partials) -> float:
    """Σᵢ ‖zᵢ − xᵢ‖²: the output should be the input, or the clean original of a corrupted input."""
    gap = state.Z - targets
    partials.Z += (2 * weight) * gap
    return weight * sum_in_double(gap * gap)


def binary(state: Activations, epsilon: float, weight: float, partials: Partials) -> float:
    """‖YY' − nI‖₁ᵋ = Σ √((Y'Y − nI)² + ε), element-wise: features near ±1 that are uncorrelated over the points."""
    xp = namespace(state.Y)
    n, d = state.Y.shape
    M = state.Y.T @ state.Y - n * xp.eye(d, dtype=state.Y.dtype)
    smooth = xp.sqrt(M * M + epsilon)
    partials.Y += (2 * weight) * (state.Y @ (M / smooth))
    return weight * sum_in_double(smooth)


def contraction(network: Network, state: Activations, weight: float, partials: Partials) -> float:
    """Σᵢ ‖∂yᵢ/∂xᵢ‖² = Σᵢ Σₙ gᵢₙ² ‖w1ₙ‖²: the penalty of the contractive auto-encoder."""
    row_norms = (network.W1 * network.W1).sum(axis=1)
    squared = state.g * state.g
    partials.Y += (-4 * weight) * (state.g * state.Y * row_norms)
    partials.W1 += (2 * weight) * (squared.sum(axis=0)[:, None] * network.W1)
    return weight * sum_in_double(squared * row_norms)
