"""Random numbers, and a sample of rows that come in blocks."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from autojacobin.errors import DataError

_ROWS_AT_ONCE = 2**16


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
    does not depend on the size of the blocks. A stream of at most ``size`` rows is kept whole, and then nothing is
    drawn. Memory holds at most two samples and one block. The result is None if there is no block.
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


def sampled_rows(n: int, size: int, rng: np.random.RandomState) -> npt.NDArray[np.int64]:
    """Numbers of the rows that :func:`sample_of_blocks` would keep of ``n`` rows, ascending."""
    starts = range(0, n, _ROWS_AT_ONCE)
    return sample_of_blocks((np.arange(s, min(n, s + _ROWS_AT_ONCE)) for s in starts), size, rng)
