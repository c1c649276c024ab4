"""Parameters of methods: each is declared once, with its limit and its meaning. Fits check it, docstrings list it."""

from __future__ import annotations

import inspect
import numbers
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from autojacobin.errors import DataError


@dataclass(frozen=True)
class Limit:
    """Which values a parameter may have; ``description`` completes the sentence "n_bits must be …".

    ``kind`` is its type, as docstrings give it.
    """

    allows: Callable[[Any], bool]
    description: str
    kind: str = ""

    def __str__(self) -> str:
        return self.description


def parameter(default: Any, limit: Limit, meaning: str) -> Any:
    """Declare a parameter of a method, which is a dataclass."""
    return field(default=default, metadata={"limit": limit, "meaning": meaning})


def with_sections(text: str, sections: Mapping[str, Sequence[tuple[str, str, str]]]) -> str:
    """Add sections to a docstring, before its notes, references and examples: a name, a type and a meaning each."""
    text = inspect.cleandoc(text) + "\n\n"
    before, *after = re.split(r"(?m)^(?=(?:Notes|References|Examples)\n---)", text, maxsplit=1)
    for title, entries in sections.items():
        before += f"{title}\n{'-' * len(title)}\n" if entries else ""
        for name, kind, meaning in entries:
            before += f"{name} : {kind}\n{textwrap.indent(textwrap.fill(meaning, 108), '    ')}\n"
        before += "\n"
    return "".join([before, *after]).rstrip()


def check_parameters(estimator: Any, limits: Mapping[str, Limit]) -> None:
    """Raise a DataError for the first parameter of ``estimator`` that its limit does not allow."""
    for name, limit in limits.items():
        value = getattr(estimator, name)
        if not limit.allows(value):
            raise DataError(
                f"{name} of {type(estimator).__name__} must be {limit}, got {value!r}; "
                f"change it with set_params({name}=...)"
            )


def Whole(low: int, high: int = 2**31 - 1) -> Limit:
    """An integer from ``low`` to ``high``."""
    return Limit(
        lambda value: _is_whole(value) and low <= int(value) <= high, f"an integer from {low} to {high:,}", "int"
    )


def Bits(low: int = 1) -> Limit:
    """The length of codes."""
    return Whole(low, 2**16)


def Number(low: float, high: float = 1e15, *, above_low: bool = False, below_high: bool = False) -> Limit:
    """A number from ``low`` to ``high``; ``above_low`` and ``below_high`` exclude the ends."""

    def allows(value: Any) -> bool:
        if not isinstance(value, numbers.Real) or isinstance(value, bool):
            return False
        number: Any = value  # not a float: that cannot hold every integer
        above = number > low if above_low else number >= low
        return bool(above and (number < high if below_high else number <= high))

    ends = f"{'above' if above_low else 'of at least'} {low:g} and {'below' if below_high else 'at most'} {high:g}"
    return Limit(allows, f"a number {ends}", "float")


def Choice(*values: Any) -> Limit:
    """One of a few fixed values."""

    def allows(value: Any) -> bool:
        plain = value.item() if isinstance(value, np.generic) else value  # grids made with NumPy hold its scalars
        return any(type(plain) is type(allowed) and plain == allowed for allowed in values)

    return Limit(allows, " or ".join(map(repr, values)), f"{{{', '.join(map(repr, values))}}}")


def OrNone(limit: Limit) -> Limit:
    """None, or what another limit allows."""
    return Limit(lambda value: value is None or limit.allows(value), f"None or {limit}", f"{limit.kind} or None")


def OrAuto(limit: Limit) -> Limit:
    """``"auto"``, or what another limit allows."""
    allowed = Choice("auto")
    return Limit(
        lambda value: allowed.allows(value) or limit.allows(value),
        f"{allowed} or {limit}",
        f"{limit.kind} or {allowed}",
    )


def Seed() -> Limit:
    """A ``random_state`` as in scikit-learn."""

    def allows(value: Any) -> bool:
        if value is None or isinstance(value, np.random.RandomState):
            return True
        return _is_whole(value) and 0 <= int(value) < 2**32

    return Limit(
        allows, "None, an integer from 0 to 2**32 - 1 or a numpy.random.RandomState", "int, RandomState or None"
    )


def Callback() -> Limit:
    """A function or another callable."""
    return Limit(callable, "a callable", "callable")


def _is_whole(value: Any) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)
