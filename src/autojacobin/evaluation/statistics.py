"""Means and their errors over queries, spreads over seeds, and tests whether two methods differ on the same queries."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy  # which loads its parts when they are used

from autojacobin.core.sampling import as_random_state
from autojacobin.errors import DataError, DataTypeError
from autojacobin.search.arguments import as_count

_MOST_ENUMERATED = 16
_BYTES_PER_BLOCK = 2**19


@dataclass(frozen=True, eq=False)
class Measured:
    """One value per query, with the mean and its standard error."""

    values: npt.NDArray[np.float64]

    @property
    def mean(self) -> float:
        """Mean over the queries."""
        return mean_and_error(self.values)[0]

    @property
    def standard_error(self) -> float | None:
        """Standard error of the mean, from the deviation over the queries; None for a single query."""
        return mean_and_error(self.values)[1]

    def __len__(self) -> int:
        return len(self.values)

    def __str__(self) -> str:
        return f"{self.mean:.4f}" + ("" if self.standard_error is None else f" ± {self.standard_error:.4f}")


@dataclass(frozen=True)
class OverSeeds:
    """Mean over ``n`` seeds and their standard deviation, the ``spread``, or None for a single seed."""

    mean: float
    spread: float | None
    n: int

    def __str__(self) -> str:
        return f"{self.mean:.3f}" + ("" if self.spread is None else f" ± {self.spread:.3f}")


@dataclass(frozen=True)
class PairedTest:
    """Difference between two methods on the same ``n`` queries: the mean of a − b over them, and its standard error.

    The p-value is the probability of a difference at least as large, either way, if a and b were interchangeable on
    every query.
    """

    difference: float
    standard_error: float
    p_value: float
    n: int

    def interval(self, level: float = 0.05) -> tuple[float, float]:
        """Limits that contain the true mean difference with probability 1 − ``level``, by Student's t with n − 1."""
        _check_level(level)
        reach = float(scipy.special.stdtrit(self.n - 1, 1 - level / 2)) * self.standard_error
        return self.difference - reach, self.difference + reach

    def verdict(self, level: float = 0.05) -> str:
        """``"a better"`` or ``"b better"`` if the p-value is at most ``level``, else ``"no difference"``."""
        _check_level(level)
        if self.p_value > level or self.difference == 0:
            return "no difference"
        return "a better" if self.difference > 0 else "b better"


def mean_and_error(values: Any) -> tuple[float, float | None]:
    """Mean of values and its standard error, s/√n with s² = Σ(v − mean)²/(n − 1); None for one value.

    Examples
    --------
    >>> from autojacobin.evaluation import mean_and_error
    >>> mean_and_error([0.0, 1.0, 0.0, 1.0])
    (0.5, 0.28867513459481287)
    """
    numbers = _as_values(values, "values")
    mean = float(numbers.mean())
    return mean, float(numbers.std(ddof=1)) / math.sqrt(len(numbers)) if len(numbers) > 1 else None


def over_seeds(values: Iterable[float]) -> OverSeeds:
    """Mean and standard deviation (with n − 1) of one number per seed.

    Examples
    --------
    >>> from autojacobin.evaluation import over_seeds
    >>> print(over_seeds([0.81, 0.83, 0.85]))
    0.830 ± 0.020
    """
    listed = list(values) if isinstance(values, Iterable) else values
    numbers = _as_values(listed, "the values of the seeds")
    spread = float(numbers.std(ddof=1)) if len(numbers) > 1 else None
    return OverSeeds(float(numbers.mean()), spread, len(numbers))


def paired_test(a: Any, b: Any, *, n_resamples: int = 9999, random_state: Any = 0) -> PairedTest:
    """Test whether two methods differ on the same queries, by flipping signs.

    If the methods were interchangeable, each a − b could as well be b − a. The p-value is the share of sign patterns
    whose mean is at least as far from 0 as the observed mean. If up to 16 queries differ, all 2ⁿ patterns are counted;
    otherwise ``n_resamples`` random ones, drawn by ``random_state``, and the observed one. Nothing is assumed about the
    distribution. ``a`` and ``b`` are numbers or :class:`Measured`, one per query, the same queries in the same order.

    Examples
    --------
    >>> from autojacobin.evaluation import paired_test
    >>> test = paired_test([0.9, 0.8, 0.7, 0.9, 0.8, 0.9], [0.5, 0.6, 0.4, 0.6, 0.5, 0.7])
    >>> test.p_value, test.verdict()
    (0.03125, 'a better')
    """
    first, second = (_as_values(getattr(values, "values", values), name) for values, name in ((a, "a"), (b, "b")))
    if len(first) != len(second) or len(first) < 2:
        raise DataError(
            f"a paired test needs two values for each of at least 2 queries, got {len(first)} and {len(second)}; "
            "measure both methods on the same queries"
        )
    n_resamples = as_count("n_resamples", n_resamples)
    random = as_random_state(random_state)
    differences = first - second
    mean, error = mean_and_error(differences)
    nonzero = differences[differences != 0]
    return PairedTest(mean, error or 0.0, _sign_flip_p_value(nonzero, n_resamples, random), len(differences))


def _sign_flip_p_value(differences: npt.NDArray[np.float64], n_resamples: int, random: np.random.RandomState) -> float:
    if not len(differences):
        return 1.0
    differences = differences / np.abs(differences).max()
    # Sums that differ only by rounding count as equal, so that a p-value may be too large but never too small.
    observed = abs(float(differences.sum())) - 1e-12 * float(np.abs(differences).sum())
    if len(differences) <= _MOST_ENUMERATED:
        numbers = np.arange(2 ** len(differences))[:, None] >> np.arange(len(differences))
        return float(np.mean(np.abs((1.0 - 2.0 * (numbers & 1)) @ differences) >= observed))
    # A byte flips eight signs. Its sum is looked up, which takes an eighth of the time of adding the eight differences.
    eights = np.append(differences, np.zeros(-len(differences) % 8)).reshape(-1, 8)
    sums = (eights @ np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).T).ravel()
    first = 256 * np.arange(len(eights))
    reached = 0
    per_block = max(1, _BYTES_PER_BLOCK // len(eights))
    for start in range(0, n_resamples, per_block):
        rows = min(per_block, n_resamples - start)
        drawn = np.frombuffer(random.bytes(rows * len(eights)), dtype=np.uint8).reshape(rows, -1)
        flipped = sums[first + drawn].sum(axis=1)
        reached += int(np.count_nonzero(np.abs(differences.sum() - 2.0 * flipped) >= observed))
    return (1 + reached) / (1 + n_resamples)


def _as_values(values: Any, name: str) -> npt.NDArray[np.float64]:
    try:
        numbers = np.asarray(values, dtype=np.float64)
    except (ValueError, TypeError) as error:
        raise DataTypeError(
            f"{name} must be a list of numbers: {error}; pass one number per query or per seed"
        ) from error
    if numbers.ndim != 1 or not len(numbers):
        raise DataError(f"{name} must be a list of at least one number, got an array of shape {numbers.shape}")
    if not np.isfinite(numbers).all():
        place = int(np.argmin(np.isfinite(numbers)))
        raise DataError(
            f"{name} must be finite numbers, got {numbers[place]} at position {place}; leave such values out"
        )
    return numbers


def _check_level(level: float) -> None:
    if not (isinstance(level, float) and 0 < level < 1):
        raise DataError(f"level must be a number between 0 and 1, such as 0.05, got {level!r}")
