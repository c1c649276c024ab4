"""Check integers that come from the caller, and write numbers of things."""

import operator
import re
from typing import SupportsIndex

import numpy as np

from autojacobin.errors import DataError, DataTypeError


def as_count(name: str, value: SupportsIndex, most: int | None = None, what: str = "", *, least: int = 1) -> int:
    """Convert ``value`` to an int from ``least`` to ``most``, which ``what`` explains; booleans are refused."""
    limits = f"of at least {least}" if most is None else f"from {least} to {most}" + (f", {what}" if what else "")
    try:
        number = operator.index(value)
    except TypeError:
        raise DataTypeError(f"{name} must be an integer {limits}, got {value!r}") from None
    if isinstance(value, bool | np.bool_) or number < least or (most is not None and number > most):
        raise DataError(f"{name} must be an integer {limits}, got {value!r}")
    return number


def typed_number(text: str) -> int | None:
    """Read a whole number in ASCII digits; None for all else, even if ``int`` takes it, such as 1_000, ９ and ٣."""
    return int(text) if re.fullmatch("[0-9]{1,4000}", text) else None


def count_of(n: int, one: str, many: str = "") -> str:
    """Give "1 vector", "1,000 vectors", "1 query", "2 queries"."""
    return f"{n:,} {one if n == 1 else many or one + 's'}"
