"""Random numbers, and one pass over rows that come in blocks: a sample of them, their mean and covariance."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from autojacobin.errors import DataError

_ROWS_AT_ONCE = 2**16
_ROWS_PER_STEP = 2**11  # of the covariance


def as_random_state(seed: Any) -> np.random.RandomState:
    """Give the random numbers that a ``random_state`` stands for; None is NumPy's global ones, as in scikit-learn."""
    if isinstance(seed, np.random.RandomState):
        return seed
    try:
        return np.random.mtrand._rand if seed is None else np.random.RandomState(seed)
    except (TypeError, ValueError):
        raise DataError(
            "random_state must be None, an integer from 0 to 2**32 - 1 or a numpy.random.RandomState, got "
            f"{seed!r}; give for example 0"
        ) from None


class Reservoir:
    """``size`` places for rows of a stream of unknown length, each row as likely as any other to be kept.

    Every row gets a random key in the order of the rows, and the rows with the smallest keys are kept. So the sample
    depends on the random generator alone, not on the size of the blocks. A stream of at most ``size`` rows is kept
    whole, and then nothing is drawn.

    Attributes
    ----------
    rows : array of int64
        Row numbers in the places that are taken.
    """

    def __init__(self, size: int, rng: np.random.RandomState) -> None:
        self.size = size
        self.rows: npt.NDArray[np.int64] = np.empty(0, dtype=np.int64)
        self._keys: npt.NDArray[np.float64] | None = None
        self._seen = 0
        self._rng = rng

    def offer(self, n: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Decide on the next ``n`` rows of the stream.

        Returns
        -------
        places, chosen : arrays of int64
            Which of the ``n`` rows are kept, and the place of each. A place that was taken gets the new row.
        """
        first, self._seen = self._seen, self._seen + n
        if self._seen <= self.size:
            places = np.arange(first, self._seen)
            self.rows = np.concatenate([self.rows, places])
            return places, places - first
        if self._keys is None:
            self._keys = self._rng.random_sample(first)
        taken, fresh = len(self._keys), self._rng.random_sample(n)
        candidates = np.arange(n) if taken < self.size else np.flatnonzero(fresh < self._keys.max())
        keys = np.concatenate([self._keys, fresh[candidates]])
        kept = np.zeros(len(keys), dtype=bool)
        kept[np.argsort(keys, kind="stable")[: self.size]] = True
        chosen = candidates[kept[taken:]]
        places = np.concatenate([np.flatnonzero(~kept[:taken]), np.arange(taken, self.size)])
        self.rows = np.concatenate([self.rows, np.empty(self.size - taken, dtype=np.int64)])
        self._keys = np.concatenate([self._keys, np.empty(self.size - taken)])
        self.rows[places], self._keys[places] = first + chosen, fresh[chosen]
        return places, chosen


def sample_of_blocks(blocks: Iterable[Any], size: int | None, rng: np.random.RandomState) -> Any:
    """Draw ``size`` rows of float matrices without replacement, in the order of the stream; None takes all of them.

    Memory holds the sample and one block. The result is float64 if a block is, and None if there is no block.
    """
    if size is None:
        matrices = list(blocks)
        return np.concatenate(matrices) if matrices else None
    reservoir = Reservoir(size, rng)
    sample: Any = None
    for block in blocks:
        places, chosen = reservoir.offer(len(block))
        if sample is None:
            sample = np.empty((0, block.shape[1]), dtype=block.dtype)
        if len(places):
            sample = _with_room(sample, int(places.max()) + 1, size, np.result_type(sample, block))
            sample[places] = block[chosen]
    return None if sample is None else sample[np.argsort(reservoir.rows)]


class Moments:
    """Mean and covariance of rows that come in blocks, in double precision.

    Rows are gathered into steps of one size, whose moments are joined by the pairwise update of Chan, Golub and LeVeque
    (1979): each step is centred on its own mean, so that a large offset costs no precision. The result does not depend
    on the size of the blocks.

    Attributes
    ----------
    n : int
        Number of rows so far.

    Examples
    --------
    >>> import numpy as np
    >>> from autojacobin.core.sampling import Moments
    >>> X, moments = np.random.default_rng(0).normal(size=(100, 3)), Moments()
    >>> for block in moments.watch(iter([X[:7], X[7:]])):
    ...     pass
    >>> np.allclose(moments.mean, X.mean(axis=0)), np.allclose(moments.covariance, np.cov(X.T, bias=True))
    (True, True)
    """

    def __init__(self) -> None:
        self.n = 0
        self._joined = 0
        self._mean: npt.NDArray[np.float64] = np.zeros(0)
        self._scatter: npt.NDArray[np.float64] = np.zeros((0, 0))
        self._step: npt.NDArray[np.float64] = np.zeros((0, 0))

    def watch(self, blocks: Iterator[Any]) -> Iterator[Any]:
        """Pass blocks of finite rows on, and add each to the moments."""
        for block in blocks:
            if not self.n:
                D = block.shape[1]
                self._mean, self._scatter, self._step = np.zeros(D), np.zeros((D, D)), np.empty((_ROWS_PER_STEP, D))
            start = 0
            while start < len(block):
                place = self.n - self._joined
                taken = min(len(block) - start, _ROWS_PER_STEP - place)
                self._step[place : place + taken] = block[start : start + taken]
                start, self.n = start + taken, self.n + taken
                if self.n - self._joined == _ROWS_PER_STEP:
                    self._join()
            yield block

    @property
    def mean(self) -> npt.NDArray[np.float64]:
        """Mean of the rows."""
        self._join()
        return self._mean

    @property
    def covariance(self) -> npt.NDArray[np.float64]:
        """Covariance of the rows, divided by their number."""
        self._join()
        covariance: npt.NDArray[np.float64] = self._scatter / self.n
        return covariance

    def _join(self) -> None:
        """Join the rows of the last step to those before."""
        n = self.n - self._joined
        if not n:
            return
        rows = self._step[:n]
        mean = rows.mean(axis=0)
        rows -= mean
        apart = mean - self._mean
        self._scatter += rows.T @ rows + np.outer(apart, apart) * (n * self._joined / self.n)
        self._mean += apart * (n / self.n)
        self._joined = self.n


def sampled_rows(n: int, size: int, rng: np.random.RandomState) -> npt.NDArray[np.int64]:
    """Numbers of the rows that :func:`sample_of_blocks` would keep of ``n`` rows, ascending."""
    reservoir = Reservoir(size, rng)
    for start in range(0, n, _ROWS_AT_ONCE):
        reservoir.offer(min(_ROWS_AT_ONCE, n - start))
    return np.sort(reservoir.rows)


def _with_room(sample: Any, places: int, size: int, dtype: Any) -> Any:
    """Give the sample with room for ``places`` rows or more; the room doubles, up to ``size``."""
    if places <= len(sample) and sample.dtype == dtype:
        return sample
    grown = np.empty((max(len(sample), min(size, max(places, 2 * len(sample)))), sample.shape[1]), dtype=dtype)
    with np.errstate(invalid="ignore"):  # rows that are not filled yet may hold anything
        grown[: len(sample)] = sample
    return grown
