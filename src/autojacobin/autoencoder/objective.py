"""The cost that Algorithm 1 lowers: its terms, their values and their gradients, over a whole batch.

    C = Σᵢ ‖zᵢ − xᵢ‖²  +  w Σᵢ ‖Jᵢ − TᵢTᵢ'‖²  +  α ‖YY' − nI‖₁ᵋ  +  λ Σᵢ ‖∂yᵢ/∂xᵢ‖²
        reconstruction       jacobian             binary              contraction

Each term is a function of Y, Z, W1 and W2; it adds its partial derivatives with respect to those four,
taken as independent, and :meth:`Network.backward` carries them on to the weights. The Jacobian term, nearly
all of the work, has a file of its own (``jacobian.py``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from autojacobin._arrays import namespace
from autojacobin.autoencoder._trace_line import LineRoom, TraceLine
from autojacobin.autoencoder.jacobian import jacobian
from autojacobin.autoencoder.network import Activations, Network, Partials
from autojacobin.autoencoder.tangent import TangentSpaces

__all__ = ["Batch", "Objective", "binary", "contraction", "jacobian", "reconstruction"]


@dataclass(frozen=True)
class Batch:
    """Points that one step looks at: what goes in, what should come out, and the tangent spaces there."""

    inputs: Any
    targets: Any
    tangents: TangentSpaces | None = None


@dataclass(frozen=True)
class Objective:
    """Weighted sum of terms; a term of weight zero is left out.

    Attributes
    ----------
    alpha : float
        Weight α of the binary term.
    epsilon : float
        Smoothing ε of its 1-norm.
    jacobian_weight : float
        Weight w of the Jacobian term, for batches that carry tangent spaces.
    contraction_weight : float
        Weight λ of the contraction term.
    """

    alpha: float = 0.1
    epsilon: float = 1e-4
    jacobian_weight: float = 0.0
    contraction_weight: float = 0.0

    def __call__(self, network: Network, batch: Batch) -> tuple[dict[str, float], Network]:
        """Weighted value of every term, and the gradient of their sum with respect to the weights."""
        values, gradient, _ = self._evaluate(network, batch)
        return values, gradient

    def descent(self, network: Network, batch: Batch, room: LineRoom | None = None) -> Descent:
        """Evaluate the cost at ``network``, ready to be followed along the line against its gradient.

        Descents that are given the same ``room`` use the same memory, so only the last of them may be followed.
        """
        return Descent(self, network, batch, room or LineRoom())

    def _evaluate(
        self, network: Network, batch: Batch, line: TraceLine | None = None, t: float = 0.0
    ) -> tuple[dict[str, float], Network, float]:
        """Values, the gradient, and what along ``line`` has to be added to its product with the direction."""
        state = network.forward(batch.inputs)
        partials = Partials.zeros(network, state)
        values = {"reconstruction": reconstruction(state, batch.targets, 1.0, partials)}
        if self.jacobian_weight:
            if batch.tangents is None:
                raise ValueError("the Jacobian term needs tangent spaces, got a batch without them")
            values["jacobian"] = jacobian(network, state, batch.tangents, self.jacobian_weight, partials, line, t)
        if self.alpha:
            values["binary"] = binary(state, self.epsilon, self.alpha, partials)
        if self.contraction_weight:
            values["contraction"] = contraction(network, state, self.contraction_weight, partials)
        return values, network.backward(state, partials), partials.slope


class Descent:
    """The cost of a batch along W(t) = W − t ∇C, the line that a step of Algorithm 1 searches.

    What the trace part of the Jacobian term needs of the tangent spaces is found once for all t (``_trace_line.py``).

    Attributes
    ----------
    values : dict
        Weighted value of every term at t = 0.
    slope : float
        Derivative of their sum by t at t = 0, −‖∇C‖².
    direction : array
        −∇C as a vector.
    """

    def __init__(self, objective: Objective, network: Network, batch: Batch, room: LineRoom) -> None:
        self._objective, self._network, self._batch = objective, network, batch
        traced = batch.tangents if objective.jacobian_weight else None
        self._line = None if traced is None else TraceLine(network, traced, room)
        self.values, gradient, _ = objective._evaluate(network, batch, self._line)
        self.direction = -gradient.to_vector()
        self.slope = -float(self.direction @ self.direction)
        if self._line is not None:
            self._line.turn(network.with_vector(self.direction))

    def __call__(self, t: float) -> tuple[Network, dict[str, float], float]:
        """Network at ``t``, weighted value of every term, and the derivative of their sum by t."""
        theta = self._network.to_vector()
        moved = self._network.with_vector(theta + theta.dtype.type(t) * self.direction)
        values, gradient, slope = self._objective._evaluate(moved, self._batch, self._line, t)
        return moved, values, slope + float(gradient.to_vector() @ self.direction)


def reconstruction(state: Activations, targets: Any, weight: float, partials: Partials) -> float:
    """Σᵢ ‖zᵢ − xᵢ‖²: what comes out should be what went in, or its clean original."""
    gap = state.Z - targets
    partials.Z += (2 * weight) * gap
    return weight * _total(gap * gap)


def binary(state: Activations, epsilon: float, weight: float, partials: Partials) -> float:
    """‖YY' − nI‖₁ᵋ = Σ √((Y'Y − nI)² + ε), element-wise: features near ±1 and uncorrelated over the n points."""
    xp = namespace(state.Y)
    n, d = state.Y.shape
    M = state.Y.T @ state.Y - n * xp.eye(d, dtype=state.Y.dtype)
    smooth = xp.sqrt(M * M + epsilon)
    partials.Y += (2 * weight) * (state.Y @ (M / smooth))
    return weight * _total(smooth)


def contraction(network: Network, state: Activations, weight: float, partials: Partials) -> float:
    """Σᵢ ‖∂yᵢ/∂xᵢ‖² = Σᵢ Σₙ gᵢₙ² ‖w1ₙ‖²: the Jacobian norm of the contractive auto-encoder."""
    row_norms = (network.W1 * network.W1).sum(axis=1)
    squared = state.g * state.g
    partials.Y += (-4 * weight) * (state.g * state.Y * row_norms)
    partials.W1 += (2 * weight) * (squared.sum(axis=0)[:, None] * network.W1)
    return weight * _total(squared * row_norms)


def _total(values: Any) -> float:
    # summed in double precision: the line search compares costs that differ in the last digits of a float32
    return float(values.sum(dtype="float64"))
