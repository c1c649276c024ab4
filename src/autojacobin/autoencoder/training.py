"""Algorithm 1: gradient descent over mini-batches with a strong Wolfe line search.

The cost is in ``objective.py``. Nothing here depends on its terms.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from autojacobin.autoencoder.jacobian import LineBuffer
from autojacobin.autoencoder.line_search import LinePoint, strong_wolfe
from autojacobin.autoencoder.network import Network
from autojacobin.autoencoder.objective import Batch, Objective
from autojacobin.autoencoder.tangent import TangentsOnDemand, TangentSpaces
from autojacobin.core.arrays import namespace
from autojacobin.core.parallel import Progress, one_blas_thread

__all__ = ["History", "train"]

History = dict[str, npt.NDArray[Any]]
"""Columns with one entry per step: ``epoch``, ``n_points`` (in the batch), ``cost_before`` and ``cost`` (of the
batch, before and after the step), the weighted terms that add up to ``cost``, ``step`` (its length, 0 if no lower point
was found) and ``evaluations`` (of the objective)."""


@one_blas_thread()
def train(
    network: Network,
    X: Any,
    objective: Objective,
    *,
    rng: np.random.RandomState,
    tangents: TangentSpaces | TangentsOnDemand | None = None,
    batch_size: int | None = 1000,
    n_epochs: int = 5,
    tol: float = 0.0,
    corrupt: Callable[[Any], Any] | None = None,
    progress: Progress | None = None,
) -> tuple[Network, History]:
    """Train ``network`` on the rows of ``X``.

    Parameters
    ----------
    network : Network
        The initial network.
    X : array of shape (n, D)
        Training points, scaled for tanh.
    objective : Objective
        The cost to minimise.
    rng : RandomState
        Draws the order of the points in each epoch.
    tangents : TangentSpaces or TangentsOnDemand, optional
        One for each row of ``X``, for the Jacobian term.
    batch_size : int or None
        Points per step. An epoch is divided into equal batches of about this size. None takes all points every step.
    n_epochs : int
        Passes over the data.
    tol : float
        Stop after an epoch that reduces the cost of its batches by less than this share; 0 runs all epochs.
    corrupt : callable, optional
        Makes the inputs of a batch from its clean points. The clean points stay the targets.
    progress : callable, optional
        Called as ``progress("training", done, total)`` after each step.
    """
    n = len(X)
    n_batches = 1 if batch_size is None else max(1, round(n / batch_size))
    xp = namespace(X)
    rows: list[dict[str, float]] = []
    n_steps = n_epochs * n_batches
    buffer = LineBuffer()
    step: float | None = None
    epoch_cost: float | None = None
    for epoch in range(n_epochs):
        order = rng.permutation(n)
        for chosen in np.array_split(order, n_batches):
            points = xp.asarray(np.sort(chosen))  # in memory order, because that is faster to gather
            clean = X[points]
            batch = Batch(
                inputs=clean if corrupt is None else corrupt(clean),
                targets=clean,
                tangents=None if tangents is None else tangents[points],
            )
            network, row = _descend(network, objective, batch, step, buffer)
            step = row["step"] or step
            rows.append({"epoch": epoch, "n_points": len(chosen), **row})
            if progress is not None:
                progress("training", len(rows), n_steps)
        before, epoch_cost = epoch_cost, sum(row["cost"] for row in rows[-n_batches:])
        if tol > 0 and before is not None and before - epoch_cost < tol * abs(before):
            break
    if progress is not None:
        progress("training", n_steps, n_steps)  # also if tol has stopped it early
    return network, _columns(rows)


def _descend(
    network: Network, objective: Objective, batch: Batch, last_step: float | None, buffer: LineBuffer
) -> tuple[Network, dict[str, float]]:
    """Take one step against the gradient of one batch."""
    descent = objective.descent(network, batch, buffer)

    def line(t: float) -> LinePoint:
        moved, values, slope = descent(t)
        return LinePoint(t, sum(values.values()), slope, payload=(moved, values))

    cost = sum(descent.values.values())
    start = LinePoint(0.0, cost, descent.slope, payload=(network, descent.values))
    found = strong_wolfe(line, start, _first_step(descent.direction, last_step))
    moved, values = found.point.payload
    return moved, {
        "cost_before": cost,
        "cost": found.point.value,
        **values,
        "step": found.point.t,
        "evaluations": found.evaluations + 1,
    }


def _first_step(direction: Any, last_step: float | None) -> float:
    """The last step, or for the first search the step of minFunc.

    A longer first trial would be accepted as well, because c2 = 0.9 accepts almost any slope. Steps would then grow
    until one goes too far, and if that one is the last, nothing corrects it.
    """
    if last_step is not None:
        return last_step
    return min(1.0, 1.0 / max(float(abs(direction).sum()), 1e-300))


def _columns(rows: list[dict[str, float]]) -> History:
    whole = ("epoch", "n_points", "evaluations")
    return {
        name: np.array([row[name] for row in rows], dtype=np.int64 if name in whole else np.float64)
        for name in (rows[0] if rows else ())
    }
