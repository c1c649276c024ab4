"""Limits of constructor parameters: declared by each hasher, checked when it is fitted, told in one grammar."""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from autojacobin.errors import DataError

__all__ = ["Callback", "Choice", "Limit", "Number", "OrAuto", "OrNone", "Seed", "Whole", "check_parameters"]


class Limit(Protocol):
    """What a parameter may be; ``str(limit)`` completes the sentence "… must be"."""

    def allows(self, value: Any) -> bool:
        """Whether ``value`` is within the limit."""
        ...


@dataclass(frozen=True)
class Whole:
    """A whole number from ``low`` up."""

    low: int

    def allows(self, value: Any) -> bool:
        return isinstance(value, numbers.Integral) and not isinstance(value, bool) and int(value) >= self.low

    def __str__(self) -> str:
        return f"an integer of at least {self.low}"


@dataclass(frozen=True)
class Number:
    """A real number between ``low`` and ``high``, either of which may be left out of the range."""

    low: float
    high: float = math.inf
    above_low: bool = False
    below_high: bool = False

    def allows(self, value: Any) -> bool:
        if not isinstance(value, numbers.Real) or isinstance(value, bool):
            return False
        try:
            number = float(value)
        except OverflowError:  # a whole number beyond all floats
            return False
        if not math.isfinite(number):
            return False
        above = number > self.low if self.above_low else number >= self.low
        below = number < self.high if self.below_high else number <= self.high
        return above and below

    def __str__(self) -> str:
        low = f"{'above' if self.above_low else 'of at least'} {self.low:g}"
        if math.isinf(self.high):
            return f"a finite number {low}"
        return f"a number {low} and {'below' if self.below_high else 'at most'} {self.high:g}"


class Choice:
    """One of a few fixed values."""

    def __init__(self, *values: Any) -> None:
        self.values = values

    def allows(self, value: Any) -> bool:
        plain = value.item() if isinstance(value, np.generic) else value  # a grid made with NumPy has its scalars
        return any(type(plain) is type(allowed) and plain == allowed for allowed in self.values)

    def __str__(self) -> str:
        return " or ".join(repr(value) for value in self.values)


@dataclass(frozen=True)
class OrNone:
    """None, or what another limit allows."""

    limit: Limit

    def allows(self, value: Any) -> bool:
        return value is None or self.limit.allows(value)

    def __str__(self) -> str:
        return f"None or {self.limit}"


@dataclass(frozen=True)
class OrAuto:
    """``"auto"``, or what another limit allows."""

    limit: Limit

    def allows(self, value: Any) -> bool:
        return (isinstance(value, str) and value == "auto") or self.limit.allows(value)

    def __str__(self) -> str:
        return f"'auto' or {self.limit}"


class Seed:
    """What scikit-learn takes as a ``random_state``."""

    def allows(self, value: Any) -> bool:
        if value is None or isinstance(value, np.random.RandomState):
            return True
        return Whole(0).allows(value) and value < 2**32

    def __str__(self) -> str:
        return "None, an integer from 0 to 2**32 - 1 or a numpy.random.RandomState"


class Callback:
    """Something that can be called."""

    def allows(self, value: Any) -> bool:
        return callable(value)

    def __str__(self) -> str:
        return "a callable"


def check_parameters(estimator: Any, limits: dict[str, Limit]) -> None:
    """Raise a DataError for the first parameter of ``estimator`` that is outside its limit."""
    for name, limit in limits.items():
        value = getattr(estimator, name)
        if not limit.allows(value):
            raise DataError(
                f"{name} of {type(estimator).__name__} must be {limit}, got {value!r}; "
                f"mend it with set_params({name}=...)"
            )
