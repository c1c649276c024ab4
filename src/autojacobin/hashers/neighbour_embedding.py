"""Stochastic neighbour embedding with bits in place of coordinates: the objective, its gradient, and how it is lowered.

Written once for NumPy and CuPy. On a CPU each step works on slices of its points, on all cores. The slices do not
depend on the number of cores, so neither does the result.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from autojacobin.core.arrays import namespace
from autojacobin.core.linear_algebra import corners, squared_distances
from autojacobin.core.parallel import run_tasks

__all__ = ["Affine", "Batch", "Weights", "draw_batches", "gradient_of_codes", "neighbour_loss", "train"]

_SLICE = 128  # points of a batch that one task works on
_EXPONENT = 3.0  # of the probability at the distance of the last of the neighbours that set the scale
_TIMES_AS_MANY = 3  # neighbours have a probability as set the scale; those beyond would get almost none
_RATE, _DECAY, _MOMENTA, _TINY = 0.01, 1.0, (0.9, 0.999), 1e-8  # of AdamW
_WARM_UP, _START_OF_RATE = 0.3, 0.04  # one cycle: share of the steps in which the rate rises, and where it begins
_GAMMA, _LARGEST_GAMMA = 10.0, 40.0  # exp(-2 gamma) has to be a float32
_LAST_SLOPE = 4.0  # of the tanh whose derivative stands in for that of the sign; it grows from 1


class Weights(NamedTuple):
    """Weights of the two penalties: δ of correlations between bits, and ρ of the distance from the start."""

    decorrelation: float
    pull: float


@dataclass(frozen=True)
class Affine:
    """The map y = W x + b, whose signs are the bits."""

    W: Any
    b: Any

    def bits(self, X: Any) -> Any:
        """Whether the bits of the rows of ``X`` are ones."""
        return X @ self.W.T + self.b >= 0


@dataclass(frozen=True)
class Batch:
    """Points, and the probabilities P of their neighbours among them.

    ``entries`` are the places in the symmetric matrix (P + P')/n that are not zero, ascending, row by row, and
    ``values`` what is there. ``starts`` says where the entries of each slice of rows begin.
    """

    rows: Any
    entries: Any
    values: Any
    starts: tuple[int, ...]


def draw_batches(
    X: Any, rows: Any, size: int, n_batches: int, n_neighbors: int, rng: np.random.RandomState
) -> list[Batch]:
    """Draw batches of ``size`` of the given rows of ``X``; every row is drawn once before any is drawn again."""
    per_epoch = len(rows) // size
    epochs = [
        rng.permutation(rows)[: per_epoch * size].reshape(per_epoch, size) for _ in range(0, n_batches, per_epoch)
    ]
    tasks = [(chosen,) for chosen in np.concatenate(epochs)[:n_batches]]
    return _each(lambda chosen: _batch(X, chosen, n_neighbors), tasks, X)


def _batch(X: Any, rows: Any, n_neighbors: int) -> Batch:
    """Find neighbours among some rows: Pᵢⱼ = softmax(−3 (dᵢⱼ² − dᵢ₁²) / (dᵢₖ² − dᵢ₁²)), with k = ``n_neighbors``."""
    xp, n = namespace(X), len(rows)
    rows = xp.asarray(rows)
    points = X[rows]
    points = points - points.mean(axis=0)
    squares = squared_distances(points, points)
    xp.fill_diagonal(squares, xp.inf)
    kept = min(_TIMES_AS_MANY * n_neighbors, n - 1)
    nearest = xp.argpartition(squares, kept - 1, axis=1)[:, :kept]
    squares = xp.take_along_axis(squares, nearest, axis=1)
    order = xp.argsort(squares, axis=1)
    nearest, squares = xp.take_along_axis(nearest, order, axis=1), xp.take_along_axis(squares, order, axis=1)
    squares -= squares[:, :1].copy()
    least = float(squares.max()) * float(xp.finfo(squares.dtype).eps) or 1.0  # where many neighbours are as near
    scale = xp.maximum(squares[:, min(n_neighbors, kept) - 1 :][:, :1], least)
    P = xp.exp(-_EXPONENT * squares / scale)
    P /= n * P.sum(axis=1, keepdims=True)
    whole = xp.zeros((n, n), dtype=X.dtype)
    whole[xp.arange(n)[:, None], nearest] = P
    whole = (whole + whole.T).ravel()
    entries = xp.flatnonzero(whole)
    starts = [0] if xp is not np else np.searchsorted(entries, [part.start * n for part in _slices(n, xp)])
    return Batch(rows, entries, whole[entries], (*map(int, starts), len(entries)))


def neighbour_loss(H: Any, batch: Batch, gamma: float, decorrelation: float) -> float:
    """−Σᵢⱼ Pᵢⱼ log softmaxⱼ(γ ⟨hᵢ, hⱼ⟩ / L) / n + δ ‖offdiag(H'H / n)‖² / L + δ ‖mean h‖².

    Training needs only its gradient. This is what the gradient is tested against.
    """
    xp, (n, L) = namespace(H), H.shape
    S = (H @ H.T) * (gamma / L)
    attraction = (S.ravel()[batch.entries] * batch.values).sum() / 2
    xp.fill_diagonal(S, -xp.inf)
    repulsion = xp.log(xp.exp(S).sum(axis=1)).mean()
    C = H.T @ H / n
    xp.fill_diagonal(C, 0)
    return float(repulsion - attraction + decorrelation * ((C**2).sum() / L + (H.mean(axis=0) ** 2).sum()))


def gradient_of_codes(
    H: Any,
    batch: Batch,
    gamma: float,
    decorrelation: float,
    finish: Callable[[slice, Any], None] | None = None,
    *,
    signs: bool = False,
) -> tuple[Any, float]:
    """Gradient of :func:`neighbour_loss` by H, and by γ.

    With Q the softmax, the first term has the gradient γ/L (M H) by H, where M = (Q + Q')/n − (P + P')/n, and
    Σ H ∘ (M H) / 2L by γ. exp(γ (⟨hᵢ, hⱼ⟩ / L − 1)) does not overflow, because no entry of H is beyond ±1.
    ``finish(rows, gradient)`` is called for each slice, by the task that has computed it. ``signs`` says that H holds
    nothing but −1 and 1. Then the products are whole numbers, and a table has their exponentials.
    """
    xp, (n, L) = namespace(H), H.shape
    E, inverse, gradient = (xp.empty(shape, dtype=H.dtype) for shape in ((n, n), n, (n, L)))
    mean, C = H.mean(axis=0), H.T @ H
    xp.fill_diagonal(C, 0)
    C *= 4 * decorrelation / (L * n * n)
    mean *= 2 * decorrelation / n
    slices = _slices(n, xp)
    table = np.exp((np.arange(-L, L + 1) / L - 1) * gamma).astype(H.dtype) if signs and xp is np else None

    def exponentials(part: slice) -> None:
        block = E[part]
        xp.matmul(H[part], H.T, out=block)
        if table is None:
            block *= gamma / L
            block -= gamma
            xp.exp(block, out=block)
        else:
            block += L
            np.take(table, block.astype(np.intp), out=block, mode="clip")
        xp.fill_diagonal(block[:, part], 0)
        inverse[part] = 1 / (n * block.sum(axis=1))

    def products(number: int) -> Any:
        part = slices[number]
        block = E[part]
        block *= inverse[part, None] + inverse
        mine = slice(batch.starts[number], batch.starts[number + 1])
        block.reshape(-1)[batch.entries[mine] - part.start * n] -= batch.values[mine]
        found = block @ H
        by_gamma = (found * H[part]).sum() / (2 * L)
        found *= gamma / L
        found += H[part] @ C
        found += mean
        gradient[part] = found
        if finish is not None:
            finish(part, gradient[part])
        return by_gamma

    _each(exponentials, [(part,) for part in slices], H)
    by_gamma = _each(products, [(number,) for number in range(len(slices))], H)
    return gradient, float(sum(by_gamma))


def train(
    Z: Any, start: Affine, batches: list[Batch], weights: Weights, n_steps: int, report: Callable[[int], None]
) -> Affine:
    """Lower the objective from ``start``, with the rows of ``Z`` as points, by AdamW with a one-cycle rate.

    The codes are h = sign(y). The derivative of the sign is taken to be that of tanh(βy), with β from 1 to 4 over the
    training (a straight-through gradient). The pull is ρ times the mean of (y − y₀)², where y₀ is what ``start`` gives.
    ``report`` is told how many steps have been taken.
    """
    xp, L = namespace(Z), len(start.b)
    scatter = Z.T @ Z * (2 * weights.pull / (L * len(Z)))
    parameters = [start.W.copy(), start.b.copy(), math.log(_GAMMA)]
    moments: list[Any] = [[0 * each, 0 * each] for each in parameters]
    for step in range(n_steps):
        W, b, log_gamma = parameters
        batch, slope = batches[step % len(batches)], 1 + (_LAST_SLOPE - 1) * step / n_steps
        X = Z[batch.rows]
        Y, H = (xp.empty((len(X), L), dtype=X.dtype) for _ in range(2))

        def forward(part: slice, W: Any = W, b: Any = b, X: Any = X, Y: Any = Y, H: Any = H) -> None:
            Y[part] = X[part] @ W.T + b
            H[part] = corners(Y[part])

        def backward(part: slice, by_codes: Any, Y: Any = Y, slope: float = slope) -> None:
            tangent = xp.tanh(slope * Y[part])
            by_codes *= slope * (1 - tangent * tangent)

        _each(forward, [(part,) for part in _slices(len(X), xp)], Z)
        gamma = math.exp(log_gamma)
        by_projections, by_gamma = gradient_of_codes(H, batch, gamma, weights.decorrelation, backward, signs=True)
        gradients = [
            by_projections.T @ X + (W - start.W) @ scatter,
            by_projections.sum(axis=0) + b * (2 * weights.pull / L),
            by_gamma * gamma,
        ]
        rate = _one_cycle(step / n_steps)
        parameters[0] = W * (1 - rate * _DECAY)
        for place, gradient in enumerate(gradients):
            parameters[place] = parameters[place] - rate * _adam(moments[place], gradient, step)
        parameters[2] = min(parameters[2], math.log(_LARGEST_GAMMA))
        report(step + 1)
    return Affine(parameters[0], parameters[1])


def _one_cycle(share: float) -> float:
    """Rate after a share of the steps: up along a cosine, then down to zero along another."""
    if share < _WARM_UP:
        return _RATE * (_START_OF_RATE + (1 - _START_OF_RATE) * (1 - math.cos(math.pi * share / _WARM_UP)) / 2)
    return _RATE * (1 + math.cos(math.pi * (share - _WARM_UP) / (1 - _WARM_UP))) / 2


def _adam(moments: list[Any], gradient: Any, step: int) -> Any:
    """Update the means of a gradient and of its square, and return the direction of the step."""
    first, second = _MOMENTA
    moments[0] = first * moments[0] + (1 - first) * gradient
    moments[1] = second * moments[1] + (1 - second) * gradient**2
    mean, square = moments[0] / (1 - first ** (step + 1)), moments[1] / (1 - second ** (step + 1))
    return mean / (square**0.5 + _TINY)


def _slices(n: int, xp: Any) -> list[slice]:
    size = _SLICE if xp is np else n
    return [slice(start, min(start + size, n)) for start in range(0, n, size)]


def _each(work: Callable[..., Any], tasks: list[tuple[Any, ...]], array: Any) -> list[Any]:
    """Run tasks on all cores; on a GPU one after another, because there the device itself works in parallel."""
    return run_tasks(work, tasks) if namespace(array) is np else [work(*task) for task in tasks]
