"""The cost that Algorithm 1 lowers: its terms, their values and their gradients, over a whole batch.

    C = Σᵢ ‖zᵢ − xᵢ‖²  +  w Σᵢ ‖Jᵢ − TᵢTᵢ'‖²  +  α ‖YY' − nI‖₁ᵋ  +  λ Σᵢ ‖∂yᵢ/∂xᵢ‖²
        reconstruction       jacobian             binary              contraction

Each term is a function of Y, Z, W1 and W2; it adds its partial derivatives with respect to those four,
taken as independent, and :meth:`Network.backward` carries them on to the weights. The Jacobian term is
written without a D×D matrix for any point (derivation in ``docs/method.md``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from autojacobin._arrays import namespace
from autojacobin._parallel import map_points
from autojacobin.autoencoder.network import Activations, Network, Partials
from autojacobin.autoencoder.tangent import TangentSpaces

__all__ = ["Batch", "Objective", "binary", "contraction", "jacobian", "reconstruction"]

# The Jacobian term works through a batch in groups of points whose temporaries hold about this many numbers.
_NUMBERS_PER_TASK = 2**19


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
        state = network.forward(batch.inputs)
        partials = Partials.zeros(network, state)
        values = {"reconstruction": reconstruction(state, batch.targets, 1.0, partials)}
        if self.jacobian_weight:
            if batch.tangents is None:
                raise ValueError("the Jacobian term needs tangent spaces, got a batch without them")
            values["jacobian"] = jacobian(network, state, batch.tangents, self.jacobian_weight, partials)
        if self.alpha:
            values["binary"] = binary(state, self.epsilon, self.alpha, partials)
        if self.contraction_weight:
            values["contraction"] = contraction(network, state, self.contraction_weight, partials)
        return values, network.backward(state, partials)


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


def jacobian(network: Network, state: Activations, tangents: TangentSpaces, weight: float, partials: Partials) -> float:
    """Σᵢ ‖Jᵢ − TᵢTᵢ'‖² = Σᵢ ‖Jᵢ‖² − 2 tr(Jᵢ TᵢTᵢ') + rᵢ: the network should do to first order what f does."""
    d, D = network.n_hidden, network.n_inputs
    g, a = state.g, state.a

    def work(points: slice) -> tuple[_JacobianPart, _JacobianPart]:
        norm = _squared_norm(network, g[points], a[points])
        trace = _trace(network, g[points], a[points], tangents.bases[points])
        # g = 1 − Y² and a = 1 − Z², so a derivative with respect to g costs a factor −2Y, to a one of −2Z.
        partials.Y[points] -= (2 * weight) * state.Y[points] * (norm.g - 2 * trace.g)
        partials.Z[points] -= (2 * weight) * state.Z[points] * (norm.a - 2 * trace.a)
        return norm, trace

    value = float(tangents.ranks.sum())
    per_task = max(1, _NUMBERS_PER_TASK // (d * max(d, D)))
    for norm, trace in map_points(work, state.Y, per_task):
        value += norm.value - 2 * trace.value
        partials.W1 += weight * (norm.W1 - 2 * trace.W1)
        partials.W2 += weight * (norm.W2 - 2 * trace.W2)
    return weight * value


@dataclass(frozen=True)
class _JacobianPart:
    """Value of a part of the Jacobian term over a group of points, and its derivatives."""

    value: float
    g: Any
    a: Any
    W1: Any
    W2: Any


def _squared_norm(network: Network, g: Any, a: Any) -> _JacobianPart:
    """Σᵢ ‖Jᵢ‖² = Σᵢ gᵢ' [(W1 W1') ∘ (W2' diag(aᵢ²) W2)] gᵢ.

    With the pairs of hidden units (n, m) laid out as columns, W2' diag(aᵢ²) W2 for all points is one
    product of a² with the D × d² table of W2ⱼₙ W2ⱼₘ.
    """
    W1, W2 = network.W1, network.W2
    (s, D), d = a.shape, W1.shape[0]
    gram = W1 @ W1.T
    squares = a * a
    table = (W2[:, :, None] * W2[:, None, :]).reshape(D, d * d)
    inner = (squares @ table).reshape(s, d, d)
    pairs = g[:, :, None] * g[:, None, :]

    per_g = _matvec(inner * gram, g)
    weighted = (pairs * gram).reshape(s, d * d)
    per_table = (squares.T @ weighted).reshape(D, d, d)
    return _JacobianPart(
        value=_total(per_g * g),
        g=2 * per_g,
        a=2 * a * (weighted @ table.T),
        W1=2 * ((pairs * inner).sum(axis=0) @ W1),
        W2=2 * _matvec(per_table, W2),
    )


def _trace(network: Network, g: Any, a: Any, T: Any) -> _JacobianPart:
    """Σᵢ tr(Jᵢ TᵢTᵢ') = Σᵢ Σₙ gᵢₙ Σⱼ aᵢⱼ W2ⱼₙ Kᵢⱼₙ with Kᵢ = TᵢTᵢ' W1', of shape D × d.

    K is all that the derivatives with respect to g, a and W2 need; the one with respect to W1 takes the
    same road from the other side, through T' diag(a) W2.
    """
    xp = namespace(T)
    W1, W2 = network.W1, network.W2
    (s, r, D), d = T.shape, W1.shape[0]
    rows = T.reshape(s * r, D)
    K = xp.matmul(T.transpose(0, 2, 1), (rows @ W1.T).reshape(s, r, d))
    scaled = a[:, :, None] * W2
    per_g = (scaled * K).sum(axis=1)
    through = (xp.matmul(T, scaled) * g[:, None, :]).reshape(s * r, d)
    K *= g[:, None, :]
    return _JacobianPart(
        value=_total(per_g * g),
        g=per_g,
        a=(K * W2).sum(axis=2),
        W1=through.T @ rows,
        W2=(K * a[:, :, None]).sum(axis=0),
    )


def _matvec(matrices: Any, vectors: Any) -> Any:
    """Product of every matrix of a stack with its own vector."""
    xp = namespace(matrices)
    return xp.matmul(matrices, vectors[:, :, None])[:, :, 0]


def _total(values: Any) -> float:
    # summed in double precision: the line search compares costs that differ in the last digits of a float32
    return float(values.sum(dtype="float64"))
