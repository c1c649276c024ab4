"""Algorithm 1: gradient descent over mini-batches with a strong Wolfe line search, whatever the terms of the cost."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt

from autojacobin.autoencoder.jacobian import LineBuffer
from autojacobin.autoencoder.line_search import LinePoint, strong_wolfe
from autojacobin.autoencoder.network import Network
from autojacobin.autoencoder.objective import Batch, Descent, Objective
from autojacobin.core.arrays import namespace
from autojacobin.core.parallel import Progress, one_blas_thread

Step = dict[str, float]
"""What a step did: one entry of each column of the history."""

History = dict[str, npt.NDArray[Any]]
"""Columns with one entry per step; ``step`` is its length, 0 if no lower point was found."""


class OutOfTimeError(Exception):
    """Raised by a progress callback to end the work with the best result so far."""


class TimeLimit:
    """A progress callback that passes reports on, and raises OutOfTimeError when ``seconds`` have passed, if given."""

    def __init__(self, seconds: float | None, progress: Progress | None) -> None:
        self._end = math.inf if seconds is None else time.monotonic() + seconds
        self._progress = progress

    @property
    def expired(self) -> bool:
        """Whether the time is over."""
        return time.monotonic() >= self._end

    def __call__(self, stage: str, done: int, total: int) -> None:
        """Pass the report on, and end the work if the time is over."""
        if self._progress is not None:
            self._progress(stage, done, total)
        if self.expired:
            raise OutOfTimeError


@one_blas_thread()
def train(
    network: Network,
    X: Any,
    objective: Objective,
    *,
    batch_size: int | None = 1000,
    n_epochs: int = 5,
    n_steps: int | None = None,
    progress: Progress | None = None,
    on_step: Callable[[Network, Step], object] | None = None,
    **options: Any,
) -> tuple[Network, History]:
    """Train ``network`` on the rows of ``X`` for all epochs or for ``n_steps`` steps; ``options`` are those of `steps`.

    ``on_step(network, row)`` is called after each step with the network that it made and its row of the history, and
    then ``progress("training", done, total)``. If one of them, or the progress of the tangent spaces, raises
    OutOfTimeError, training ends with the network so far.

    Examples
    --------
    Follow how many bits are 1 while a network is trained without the Jacobian term:

    >>> import numpy as np
    >>> from autojacobin.autoencoder import Objective, train
    >>> from autojacobin.hashers.autoencoders.autobin import initial_network
    >>> rng = np.random.RandomState(0)
    >>> X = rng.normal(size=(400, 8)) / 10
    >>> def follow(network, row):
    ...     ones = (X @ network.W1.T + network.b1 >= 0).mean()
    ...     print(f"epoch {row['epoch']}: cost {row['cost']:.1f}, {ones:.0%} ones")
    >>> start = initial_network(X, 4, "random", rng)
    >>> network, history = train(start, X, Objective(alpha=0.1), rng=rng, n_epochs=2, on_step=follow)
    epoch 0: ...
    epoch 1: ...
    >>> bool(history["cost"][-1] < history["cost_before"][0])
    True
    """
    total = n_epochs * batches_per_epoch(len(X), batch_size)
    total = total if n_steps is None else min(total, n_steps)
    rows: list[Step] = []
    taken = steps(network, X, objective, batch_size=batch_size, n_epochs=n_epochs, **options)
    with suppress(OutOfTimeError):
        for trained, row in itertools.islice(taken, total):
            network = trained
            rows.append(row)
            if on_step is not None:
                on_step(network, row)
            if progress is not None:
                progress("training", len(rows), total)
        if progress is not None:
            progress("training", total, total)  # also if it has stopped early
    return network, history(rows)


def steps(
    network: Network,
    X: Any,
    objective: Objective,
    *,
    rng: np.random.RandomState,
    tangents: Any = None,
    batch_size: int | None = 1000,
    n_epochs: int = 5,
    tol: float = 0.0,
    stop_below: float | None = None,
    corrupt: Callable[[Any], Any] | None = None,
    buffer: LineBuffer | None = None,
) -> Iterator[tuple[Network, Step]]:
    """Algorithm 1: give the network after each step of its training, and what the step did.

    ``X`` are the training points, scaled for tanh, and ``rng`` draws their order in each epoch. An epoch is divided
    into equal batches of about ``batch_size`` points; None takes all points every step. ``tangents`` are the spaces of
    all rows, for the Jacobian term. ``tol`` ends after an epoch that reduces the cost of its batches by less than this
    share, and ``stop_below`` after a step that brings the cost of its batch below this number. ``corrupt`` makes the
    inputs of a batch from its clean points, which stay the targets. Several trainings may share a ``buffer``.
    """
    n_batches = batches_per_epoch(len(X), batch_size)
    xp = namespace(X)
    buffer = buffer or LineBuffer()
    theta = network.to_vector()
    last: float | None = None
    epoch_cost: float | None = None
    for epoch in range(n_epochs):
        before, epoch_cost = epoch_cost, 0.0
        for chosen in np.array_split(rng.permutation(len(X)), n_batches):
            points = xp.asarray(np.sort(chosen))  # in memory order, because that is faster to gather
            clean = X[points]
            batch = Batch(
                inputs=clean if corrupt is None else corrupt(clean),
                targets=clean,
                tangents=None if tangents is None else tangents[points],
            )
            descent = objective.descent(network, batch, buffer)
            step, row = wolfe_step(descent, last)  # λ, by the Wolfe conditions
            theta = theta - step * descent.gradient if step else theta  # θ ← θ − λ G
            network, last = network.with_vector(theta), step or last
            epoch_cost += row["cost"]
            yield network, {"epoch": epoch, "n_points": len(chosen), **row}
            if stop_below is not None and row["cost"] < stop_below:
                return
        if tol > 0 and before is not None and before - epoch_cost < tol * abs(before):
            return


def batches_per_epoch(n: int, batch_size: int | None) -> int:
    """Number of batches into which ``n`` points are divided."""
    return 1 if batch_size is None else max(1, round(n / batch_size))


def history(rows: Sequence[Step]) -> History:
    """Columns of the steps."""
    whole = ("epoch", "n_points", "evaluations")
    return {
        name: np.array([row[name] for row in rows], dtype=np.int64 if name in whole else np.float64)
        for name in (rows[0] if rows else ())
    }


def wolfe_step(descent: Descent, last: float | None) -> tuple[float, Step]:
    """Search the step length at which the strong Wolfe conditions hold, from the ``last`` one; say what it does.

    The length is 0 if no lower point was found.
    """
    cost = sum(descent.values.values())

    def line(t: float) -> LinePoint:
        values, slope = descent(t)
        return LinePoint(t, sum(values.values()), slope, payload=values)

    start = LinePoint(0.0, cost, descent.slope, payload=descent.values)
    # c2 = 0.9 accepts almost any slope, so first trials longer than the last step would make steps grow until one goes
    # too far. The first search starts as in minFunc.
    first = last or min(1.0, 1.0 / max(float(abs(descent.gradient).sum()), 1e-300))
    found, evaluations = strong_wolfe(line, start, first)
    return found.t, {
        "cost_before": cost,
        "cost": found.value,
        **found.payload,
        "step": found.t,
        "evaluations": evaluations + 1,
    }
