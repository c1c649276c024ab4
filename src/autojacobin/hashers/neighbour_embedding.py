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
from autojacobin.core.parallel import run_tasks, slices

_SLICE = 128  # points of a batch that one task works on
_EXPONENT = 3.0  # of the probability at the distance of the last of the neighbours that set the scale
_TIMES_AS_MANY = 3  # neighbours have a probability as set the scale; those beyond would get almost none
_RATE, _DECAY, _MOMENTA, _TINY = 0.01, 2.0, (0.9, 0.999), 1e-8  # of AdamW
_WARM_UP, _START_OF_RATE = 0.3, 0.04  # one cycle: share of the steps in which the rate rises, and where it begins
_GAMMA, _LARGEST_GAMMA = 10.0, 40.0  # exp(-2 gamma) has to be a float32
_LAST_SLOPE = 4.0  # of the tanh whose derivative stands in for that of the sign; it grows from 1


class Weights(NamedTuple):
    """Weights of the two penalties: δ of correlations between bits, and ρ of the distance from the start."""

    decorrelation: float
    pull: float


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
    epochs = [rng.permutation(rows)[: per_epoch * size] for _ in range(0, n_batches, per_epoch)]
    drawn = np.concatenate(epochs).reshape(-1, size)[:n_batches]
    if namespace(X) is not np:
        return [_batch(X, chosen, n_neighbors) for chosen in drawn]
    return run_tasks(_batch, [(X, chosen, n_neighbors) for chosen in drawn])


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
    starts = [0] if xp is not np else np.searchsorted(entries, [part.start * n for part in slices(n, _SLICE)])
    return Batch(rows, entries, whole[entries], (*map(int, starts), len(entries)))


def gradient_of_codes(
    H: Any,
    batch: Batch,
    gamma: Any,
    decorrelation: Any,
    finish: Callable[[slice, slice, Any], None] | None = None,
    *,
    signs: bool = False,
) -> tuple[Any, Any]:
    """Gradient of the loss by H and by γ, for m of them at once: H has shape (m, n, L), γ and δ (m,).

    The loss is −Σᵢⱼ Pᵢⱼ log softmaxⱼ(γ ⟨hᵢ, hⱼ⟩ / L) / n + δ ‖offdiag(H'H / n)‖² / L + δ ‖mean h‖².

    With Q the softmax, the first term has the gradient γ/L (M H) by H, where M = (Q + Q')/n − (P + P')/n, and
    Σ H ∘ (M H) / 2L by γ. exp(γ (⟨hᵢ, hⱼ⟩ / L − 1)) does not overflow, because no entry of H is beyond ±1.
    ``finish(which, rows, gradient)`` is called for each part of the gradient, by the task that has computed it.
    ``signs`` says that H holds nothing but −1 and 1. Then the products are whole numbers, and a table has their
    exponentials.
    """
    xp, (m, n, L) = namespace(H), H.shape
    E, inverse, gradient = (xp.empty((m, n, *last), dtype=H.dtype) for last in ((n,), (), (L,)))
    by_gamma = xp.zeros((m, len(batch.starts) - 1), dtype=H.dtype)
    gamma, decorrelation = gamma[:, None, None], decorrelation[:, None, None]
    table = np.exp((np.arange(-L, L + 1) / L - 1) * gamma[:, 0]).astype(H.dtype) if signs and xp is np else None
    C = xp.swapaxes(H, 1, 2) @ H
    C[:, xp.arange(L), xp.arange(L)] = 0
    C *= 4 * decorrelation / (L * n * n)
    mean = H.mean(axis=1, keepdims=True) * (2 * decorrelation / n)

    def exponentials(which: slice, _: int, rows: slice) -> None:
        block = E[which, rows]
        xp.matmul(H[which, rows], xp.swapaxes(H[which], 1, 2), out=block)
        if table is None:
            block *= gamma[which] / L
            block -= gamma[which]
            xp.exp(block, out=block)
        else:
            block += L
            np.take(table[which.start], block.astype(np.intp), out=block, mode="clip")
        here = xp.arange(rows.start, rows.stop)
        block[:, here - rows.start, here] = 0
        inverse[which, rows] = 1 / (n * block.sum(axis=2))

    def products(which: slice, number: int, rows: slice) -> None:
        block = E[which, rows]
        block *= inverse[which, rows, None] + inverse[which, None]
        mine = slice(batch.starts[number], batch.starts[number + 1])
        block.reshape(len(block), -1)[:, batch.entries[mine] - rows.start * n] -= batch.values[mine]
        found = block @ H[which]
        by_gamma[which, number] = (found * H[which, rows]).sum(axis=(1, 2)) / (2 * L)
        found *= gamma[which] / L
        found += H[which, rows] @ C[which]
        found += mean[which]
        if finish is not None:
            finish(which, rows, found)
        gradient[which, rows] = found

    _each(exponentials, m, n, xp)
    _each(products, m, n, xp)
    return gradient, by_gamma.sum(axis=1)


def train(
    Z: Any, start: Any, batches: list[Batch], weights: list[Weights], n_steps: int, report: Callable[..., None] | None
) -> Any:
    """Lower the objective from ``start``, for each of some pairs of weights, by AdamW with a one-cycle rate.

    Points are rows of ``Z``, which end with a one: y = A z, where the last column of A holds the offsets. ``start`` is
    the first A, shape (L, d), and the result holds an A for each pair, shape (m, L, d).

    The codes are h = sign(y). The derivative of the sign is taken to be that of tanh(βy), with β from 1 to 4 over the
    training (a straight-through gradient). The pull is ρ times the mean of (y − y₀)², where y₀ is what ``start`` gives.
    ``report(done, total)`` is called after each step.
    """
    xp, (L, d), m = namespace(Z), start.shape, len(weights)
    decorrelation, pull = (xp.asarray(column, dtype=Z.dtype) for column in zip(*weights, strict=True))
    scatter = Z.T @ Z * (2 / (L * len(Z))) * pull[:, None, None]
    decay = xp.asarray(np.append(np.full(d - 1, _DECAY), 0), dtype=Z.dtype)  # of all but the offsets
    A, log_gamma = xp.repeat(start[None], m, axis=0), xp.full(m, math.log(_GAMMA), dtype=Z.dtype)
    moments: list[Any] = [[0 * A, 0 * A], [0 * log_gamma, 0 * log_gamma]]
    for step in range(n_steps):
        batch, share = batches[step % len(batches)], step / n_steps
        slope, rate = 1 + (_LAST_SLOPE - 1) * share, _one_cycle(share)
        X, gamma = Z[batch.rows], xp.exp(log_gamma)
        Y, H = (xp.empty((m, len(X), L), dtype=Z.dtype) for _ in range(2))

        def forward(which: slice, _: int, rows: slice, A: Any = A, X: Any = X, Y: Any = Y, H: Any = H) -> None:
            xp.matmul(X[rows], xp.swapaxes(A[which], 1, 2), out=Y[which, rows])
            H[which, rows] = corners(Y[which, rows])

        def backward(which: slice, rows: slice, by_codes: Any, Y: Any = Y, slope: float = slope) -> None:
            tangent = xp.tanh(slope * Y[which, rows])
            by_codes *= slope * (1 - tangent * tangent)

        _each(forward, m, len(X), xp)
        by_projections, by_gamma = gradient_of_codes(H, batch, gamma, decorrelation, backward, signs=True)
        by_map = xp.swapaxes(by_projections, 1, 2) @ X + (A - start) @ scatter
        A = A * (1 - rate * decay) - rate * _adam(moments[0], by_map, step)
        log_gamma = log_gamma - rate * _adam(moments[1], by_gamma * gamma, step)
        log_gamma = xp.minimum(log_gamma, math.log(_LARGEST_GAMMA))
        if report is not None:
            report(step + 1, n_steps)
    return A


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


def _each(work: Callable[[slice, int, slice], None], m: int, n: int, xp: Any) -> None:
    """Call ``work(which, number, rows)`` for each of m matrices and each slice of their n rows, on all cores."""
    if xp is not np:  # a GPU works in parallel by itself
        work(slice(0, m), 0, slice(0, n))
        return
    parts = list(enumerate(slices(n, _SLICE)))
    run_tasks(work, [(slice(one, one + 1), number, rows) for one in range(m) for number, rows in parts])
