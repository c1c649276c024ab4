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


def sample_of_blocks(blocks: Iterable[Any], size: int | None, rng: np.random.RandomState) -> Any:
    """Draw ``size`` rows of matrices without replacement, in the order of the stream; None takes all of them.

    Every row gets a random key in the order of the rows, and the rows with the smallest keys are kept. So the sample
    depends on the random generator alone, not on the size of the blocks. A stream of at most ``size`` rows is kept
    whole, and then nothing is drawn. Memory holds at most two samples and one block. The result has the widest type of
    the blocks, and is None if there is no block.
    """
    if size is None:
        matrices = list(blocks)
        return np.concatenate(matrices) if matrices else None
    parts: list[Any] = []
    keys, largest, n = np.empty(0), np.inf, 0
    for block in blocks:
        n_before, n = n, n + len(block)
        if n <= size:
            parts.append(block.copy())  # the caller may fill it anew
            continue
        if not len(keys):
            keys = rng.random_sample(n_before)
        fresh = rng.random_sample(len(block))
        near = fresh < largest
        parts, keys = [*parts, block[near]], np.append(keys, fresh[near])
        if len(keys) > 2 * size:
            parts, keys = _smallest(parts, keys, size)
            largest = keys.max()
    if n > size:
        parts, _ = _smallest(parts, keys, size)
    return np.concatenate(parts) if parts else None


def _smallest(parts: list[Any], keys: npt.NDArray[np.float64], size: int) -> tuple[list[Any], npt.NDArray[np.float64]]:
    """The rows with the smallest keys, in order."""
    kept = np.sort(np.argsort(keys, kind="stable")[:size])
    return [np.concatenate(parts)[kept]], keys[kept]


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
    starts = range(0, n, _ROWS_AT_ONCE)
    rows: npt.NDArray[np.int64] = sample_of_blocks((np.arange(s, min(n, s + _ROWS_AT_ONCE)) for s in starts), size, rng)
    return rows
