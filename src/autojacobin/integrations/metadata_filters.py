"""Filters that are dicts of metadata, with the operators that stores of LangChain share, such as ``$gt``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from reprlib import repr  # of nested dicts, only the outer ones
from typing import Any

from autojacobin.errors import DataError
from autojacobin.index.conditions import Column, Condition, Step, as_literal

_DEEPEST = 50  # dicts of a filter in each other
_OPERATORS = {
    "$eq": "equal", "$ne": "equal", "$gt": "greater", "$gte": "greater_equal", "$lt": "less", "$lte": "less_equal",
    "$in": "in", "$nin": "in",
}  # fmt: skip


def as_condition(filter: Mapping[str, Any]) -> Condition:
    """Give the condition that a dict is. A text without a field is different from every value of it."""
    shown = f"filter={repr(filter):.80}"
    return Condition(shown, tuple(_steps(filter, shown)))


def _steps(filter: Any, shown: str, depth: int = 0) -> list[Step]:
    if depth > _DEEPEST or not isinstance(filter, Mapping) or not filter:
        problem = f"more than {_DEEPEST} dicts in each other" if depth > _DEEPEST else f"{repr(filter):.60}"
        raise DataError(f"{shown} has {problem}, expected a dict with fields or operators")
    whole: list[Step] = []
    for n, (name, wanted) in enumerate(filter.items()):
        if name == "$not":
            steps = [*_steps(wanted, shown, depth + 1), Step("not")]
        elif name in ("$and", "$or"):
            if not isinstance(wanted, list | tuple) or not wanted:
                raise DataError(f"{shown} has {name} with {repr(wanted):.60}, expected a list of dicts")
            parts = [_steps(one, shown, depth + 1) for one in wanted]
            steps = [*(step for part in parts for step in part), *[Step(name[1:])] * (len(parts) - 1)]
        else:
            steps = _field_steps(str(name), wanted, shown)
        whole += [*steps, Step("and")] if n else steps
    return whole


def _field_steps(name: str, wanted: Any, shown: str) -> list[Step]:
    """Steps of what a dict says about one field."""
    if name.startswith("$") or wanted == {}:
        raise DataError(f"{shown} has {name!r:.40} where the name of a field with a value is expected")
    column, whole = Column(name), []
    given = wanted if isinstance(wanted, Mapping) else {"$exists": False} if wanted is None else {"$eq": wanted}
    for n, (word, value) in enumerate(given.items()):
        negated = word in ("$ne", "$nin") or (word == "$exists" and value)
        if word == "$exists" and isinstance(value, bool):
            steps = [Step("is null", column)]
        elif word in ("$in", "$nin") and isinstance(value, list | tuple | set):
            steps = [Step("in", column, tuple(as_literal(one, shown) for one in value)), Step("known")]
        elif word in _OPERATORS and _OPERATORS[word] != "in":
            steps = [Step(_OPERATORS[word], column, as_literal(value, shown)), Step("known")]
        else:
            raise DataError(
                f"{shown} asks for {word!r:.40} {repr(value):.40}, expected {', '.join(_OPERATORS)} or $exists of a "
                "field, or $and, $or and $not of dicts; pass a function for anything else"
            )
        whole += [*steps, *[Step("not")] * negated, *[Step("and")] * (n > 0)]
    return whole


def field_column(name: str, metadatas: Sequence[Mapping[str, Any]], shown: str) -> Any:
    """Give a field of the metadata of all texts as an Arrow array; one that no text has is an error."""
    if not any(name in metadata for metadata in metadatas):
        known = sorted({str(field)[:40] for metadata in metadatas for field in metadata})
        fields = f"the fields are {', '.join(known[:20])}" if known else "there are no metadata"
        raise DataError(f"{shown} names the field {name!r:.60}, which no text has; {fields}")
    import pyarrow as arrow

    try:
        return arrow.array([metadata.get(name) for metadata in metadatas])
    except (arrow.ArrowInvalid, arrow.ArrowTypeError, OverflowError) as error:
        raise DataError(f"{shown} compares {name!r:.60}, which has several types; pass a function instead") from error
