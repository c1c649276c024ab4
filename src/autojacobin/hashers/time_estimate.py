"""How long a fit of Auto-JacoBin will take: the work that follows from the shapes, and the speed of this machine.

Nearly all of the time goes into tangent spaces and into steps with the Jacobian term. The work of both is proportional
to the number of points, so a few points are timed. The estimate is for a machine that does nothing else.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from autojacobin.autoencoder import Batch, Network, Objective, TangentSpaces
from autojacobin.autoencoder.tangent import Candidates, local_pca
from autojacobin.core.parallel import one_blas_thread, usable_cores

__all__ = ["Speed", "Work", "estimated_seconds", "measured_speed", "rounded_time"]

_POINTS_SEARCHED, _POINTS_DECOMPOSED, _POINTS_EVALUATED = 32, 2, 64
# Of that of its first two evaluations. A step takes 2.5 of them on average, and the later ones are cheap.
_TIME_OF_A_STEP = 1.25
_SHARE_OF_A_PRODUCT = 0.2  # speed of the starts, most of which is NOKMeans, as a share of that of a matrix product
_ITERATIONS_OF_NOKMEANS = 50


class Speed(NamedTuple):
    """Seconds on one core: for a tangent space, for a point in a step with the Jacobian term, for an operation."""

    tangent: float
    step: float
    operation: float


@dataclass(frozen=True)
class Work:
    """What a fit computes.

    Attributes
    ----------
    tangents : float
        Number of tangent spaces.
    steps : float
        Points in all steps with the Jacobian term together.
    operations : float
        Operations of the starts, which one core computes.
    """

    tangents: float
    steps: float
    operations: float = 0.0

    @classmethod
    def of_training(cls, n_points: int, n_epochs: int) -> Work:
        """Training with given settings."""
        return cls(tangents=n_points, steps=n_points * n_epochs)

    @classmethod
    def of_choice(
        cls, n_points: int, n_features: int, n_bits: int, n_candidates: int, n_first: int, n_repeated: int
    ) -> Work:
        """A choice of settings on ``n_points`` points, with ``n_first`` points in the first stage of each candidate.

        How long candidates stay in the race depends on the data. The middle of what is possible is assumed: all
        candidates with the Jacobian term take the first stage, which needs some of the tangent spaces or all, and then
        one of them takes an epoch. Training is repeated on ``n_repeated`` points, or it is not.
        """
        operations = _ITERATIONS_OF_NOKMEANS * n_points * n_bits * (4.0 * n_features + 10.0 * n_bits)
        if not n_candidates:
            return cls(0, 0, operations)
        tangents = (min(n_first, n_points) + n_points + n_repeated) / 2
        return cls(tangents, n_candidates * n_first + n_points + n_repeated / 2, operations)


def estimated_seconds(work: Work, speed: Speed, cores: int | None = None) -> float:
    """Time of the work on all cores."""
    shared = work.tangents * speed.tangent + work.steps * speed.step
    return shared / (cores or usable_cores()) + work.operations * speed.operation


@one_blas_thread()
def measured_speed(X: Any, n_bits: int, n_neighbors: int, sample: int | None) -> Speed:
    """Time a few of the rows of ``X``.

    Time of this thread is measured, so that other work on the machine does not count.
    """
    D = X.shape[1]
    rng = np.random.RandomState(0)
    W1 = rng.standard_normal((n_bits, D)).astype(X.dtype) / X.dtype.type(D**0.5)
    operation = _seconds(lambda: X[:1000] @ W1.T) / (2 * len(X[:1000]) * D * n_bits) / _SHARE_OF_A_PRODUCT
    candidates = Candidates(X if sample is None else X[:sample])
    rows = np.arange(min(len(candidates), _POINTS_SEARCHED))
    few = rows[:_POINTS_DECOMPOSED]
    neighbors = candidates.nearest(X[rows], n_neighbors, rows)
    searching = _seconds(lambda: candidates.nearest(X[rows], n_neighbors, rows)) / len(rows)
    decomposing = _seconds(lambda: local_pca(candidates, neighbors[few], min(n_bits, D), 0.98)) / len(few)
    bases, ranks, _ = local_pca(candidates, neighbors[few], min(n_bits, D), 0.98)
    points = X[:_POINTS_EVALUATED]
    network = Network(W1, np.zeros(n_bits, X.dtype), W1.T.copy(), np.zeros(D, X.dtype))
    batch = Batch(points, points, TangentSpaces(bases, ranks)[np.arange(len(points)) % len(few)])

    def step() -> None:
        Objective(jacobian_weight=1.0).descent(network, batch)(1e-6)

    return Speed(searching + decomposing, _TIME_OF_A_STEP * _seconds(step) / len(points), operation)


def _seconds(work: Callable[[], Any]) -> float:
    """Time of a second call. The first one may have to compile or to allocate."""
    work()
    start = time.thread_time()
    work()
    return time.thread_time() - start


def rounded_time(seconds: float) -> str:
    """Write a time in few digits.

    >>> [rounded_time(seconds) for seconds in (0.2, 13.4, 47, 130, 8000)]
    ['1 s', '13 s', '50 s', '2 min', '2.2 h']
    """
    if seconds < 20:
        return f"{max(1, round(seconds))} s"
    if seconds < 90:
        return f"{10 * math.ceil(seconds / 10)} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
