"""Compute conditions for the rows of Arrow tables.

A comparison with null is null, neither true nor false, as in SQL. A condition holds for the rows where it is true.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from autojacobin.errors import DataError, DataTypeError, reason_of
from autojacobin.index.conditions import Column, Condition, Literal, as_moment, read_condition, shown_literal
from autojacobin.index.payload import arrow_package

if TYPE_CHECKING:
    import pyarrow

_SHOWN_COLUMNS = 20
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_ON_LITERALS = {"equal": operator.eq, "not_equal": operator.ne, "less": operator.lt, "less_equal": operator.le,
                "greater": operator.gt, "greater_equal": operator.ge}  # fmt: skip
_SWAPPED = {"less": "greater", "less_equal": "greater_equal", "greater": "less", "greater_equal": "less_equal"}


def allowed_rows(tables: Sequence[pyarrow.Table], where: Any) -> npt.NDArray[np.bool_]:
    """Give for each row of all tables whether a condition holds: a text, a :class:`Condition` or Arrow's expression."""
    arrow = arrow_package()
    table = arrow.concat_tables(tables)
    if isinstance(where, arrow.compute.Expression):
        return _rows_of_expression(table, where)
    if not isinstance(where, str | Condition):
        raise DataTypeError(f'where must be a condition such as "price < 10", got {type(where).__name__}')
    condition = read_condition(where) if isinstance(where, str) else where
    try:
        found = _Rows(table, condition).computed()
        if isinstance(found, arrow.Scalar):
            return np.full(table.num_rows, found.as_py() is True)
        return np.concatenate([np.empty(0, dtype=bool), *map(_as_mask, found.chunks)])
    except (arrow.ArrowInvalid, arrow.ArrowNotImplementedError, arrow.ArrowTypeError, UnicodeError) as error:
        raise DataError(f"{condition.shown} cannot be computed; {shown_columns(table.schema)}") from error


def _as_mask(found: Any) -> npt.NDArray[np.bool_]:
    """Where an array of booleans is true; faster than its ``to_numpy``, which goes through bytes one by one."""
    if found.null_count:
        found = found.fill_null(False)
    bits = np.frombuffer(found.buffers()[1], dtype=np.uint8)
    return np.unpackbits(bits, count=found.offset + len(found), bitorder="little")[found.offset :].view(np.bool_)


def _rows_of_expression(table: pyarrow.Table, where: Any) -> npt.NDArray[np.bool_]:
    arrow = arrow_package()
    row = "__row"
    while row in table.column_names:
        row += "_"
    try:
        found = table.append_column(row, arrow.array(np.arange(table.num_rows))).filter(where).column(row)
    except (arrow.ArrowException, KeyError) as error:
        wrong = f"where cannot be computed: {reason_of(error, 200)}"
        raise DataError(f"{wrong}; {shown_columns(table.schema)}") from error
    allowed = np.zeros(table.num_rows, dtype=bool)
    allowed[found.to_numpy()] = True
    return allowed


def find_column(names: Sequence[str], name: str) -> str | None:
    """Give the column that a condition means: by its exact name, or the only one that differs in capital letters."""
    if name in names:
        return name
    similar = [one for one in names if one.lower() == name.lower()]
    return similar[0] if len(similar) == 1 else None


def shown_columns(schema: Iterable[Any]) -> str:
    """Say which columns there are."""
    fields = [f"{field.name:.40} ({field.type!s:.40})" for field in schema]
    more = [f"{len(fields) - _SHOWN_COLUMNS} more"] if len(fields) > _SHOWN_COLUMNS else []
    return f"the columns are {', '.join(fields[:_SHOWN_COLUMNS] + more)}"


_COMPARED_WITH: dict[str, Any] = {
    "true or false": bool, "text": str, "a number": Fraction, "a float": Fraction, "a date or time": datetime | str
}  # fmt: skip


class _Values(NamedTuple):
    """A column as it is compared; integers, decimals, dates and times (in seconds) are multiples of a unit."""

    shown: str  # name and type
    type: Any
    kind: str  # what it is compared with: true or false, text, a float, a number, a date or time, nothing
    values: Any
    unit: Fraction = Fraction(1)
    limits: tuple[int, int] = (0, 0)


class _Rows:
    """Computes a condition for the rows of a table."""

    def __init__(self, table: pyarrow.Table, condition: Condition) -> None:
        self.table, self.shown, self.steps = table, condition.shown, condition.steps
        self.arrow = arrow_package()
        self.compute = self.arrow.compute
        self.null = self.arrow.scalar(None, self.arrow.bool_())
        self.columns: dict[Column, _Values] = {}

    def computed(self) -> Any:
        """Give an array, or a scalar for all rows, of true, false and null."""
        stack: list[Any] = []
        for what, left, right in self.steps:
            if what in ("and", "or"):
                other = stack.pop()
                stack[-1] = (self.compute.and_kleene if what == "and" else self.compute.or_kleene)(stack[-1], other)
            elif what == "not":
                stack[-1] = self.compute.invert(stack[-1])
            elif what == "known":
                stack[-1] = self.compute.fill_null(stack[-1], False)
            elif isinstance(left, Column):
                stack.append(self._of_column(what, self._column(left), right))
            elif isinstance(right, Column):
                stack.append(self._of_column(_SWAPPED.get(what, what), self._column(right), left))
            else:
                stack.append(self.arrow.scalar(self._of_literals(what, left, right), self.arrow.bool_()))
        return stack[-1]

    def _of_literals(self, what: str, left: Literal, right: Literal) -> Any:
        if what in ("is", "is null"):
            return left if what == "is" else left is None
        if left is None or right is None:
            return None
        if type(left) is not type(right) or isinstance(left, datetime):
            raise DataError(f"{self.shown} compares {shown_literal(left)} with {shown_literal(right)}; name a column")
        return _ON_LITERALS[what](left, right)

    def _column(self, column: Column) -> _Values:
        if column not in self.columns:
            name = find_column(self.table.column_names, column.name)
            if name is None:
                hint = "; put text into single quotes" if '"' in self.shown else ""
                known = shown_columns(self.table.schema)
                raise DataError(f"{self.shown} names the column {column.name!r:.60}, but {known}{hint}")
            self.columns[column] = _as_values(name, self.table.column(name))
        return self.columns[column]

    def _of_column(self, what: str, column: _Values, right: Any) -> Any:
        if what == "is null":
            return self.compute.is_null(column.values)
        if self.arrow.types.is_null(column.type):
            return self.null
        if what == "is":
            if column.kind != "true or false":
                raise DataError(f"{self.shown} has the column {column.shown} as a condition; compare it, as in 'a < 9'")
            return column.values
        if isinstance(right, Column):
            return self._of_columns(what, column, self._column(right))
        if what == "in":
            return self._is_in(column, right)
        if what in ("like", "ilike"):
            return self._like(column, right, ignore_case=what == "ilike")
        self._check(column, right)
        return self.null if right is None else self._compared(what, column, right)

    def _check(self, column: _Values, value: Literal) -> None:
        """Raise a DataError if a column cannot be compared with a literal."""
        if value is not None and not isinstance(value, _COMPARED_WITH.get(column.kind, ())):
            expected = {"nothing": "only is null for this type", "a float": "a number"}.get(column.kind, column.kind)
            wrong = f"compares the column {column.shown} with {shown_literal(value)}"
            raise DataError(f"{self.shown} {wrong}, expected {expected}; {shown_columns(self.table.schema)}")

    def _multiple(self, column: _Values, value: Any) -> Fraction:
        """How many units a literal is."""
        if isinstance(value, str):
            value = as_moment(value, self.shown)
        if isinstance(value, datetime):
            if value.tzinfo is not None and getattr(column.type, "tz", None) is None:
                raise DataError(f"{self.shown} has a time with a zone, but the column {column.shown} has none; omit it")
            since = (value if value.tzinfo else value.replace(tzinfo=timezone.utc)) - _EPOCH
            value = Fraction(since // timedelta(microseconds=1), 10**6)
        return Fraction(value) / column.unit

    def _compared(self, what: str, column: _Values, value: Any) -> Any:
        function, values = getattr(self.compute, what), column.values
        if column.kind == "a float":
            rounded = _as_float(value, column.type)
            if math.isinf(rounded):  # beyond what the type can hold
                values, rounded = values.cast(self.arrow.float64()), _as_float(value, self.arrow.float64())
            return function(values, self.arrow.scalar(rounded, values.type))
        if column.kind in ("text", "true or false"):
            return function(values, self.arrow.scalar(value, values.type))
        # nothing equals a number between two multiples, and what is below it is at most the lower one
        multiple = self._multiple(column, value)
        bound = math.ceil(multiple) if what in ("less", "greater_equal") else math.floor(multiple)
        low, high = column.limits
        inside = low <= bound <= high
        if inside and (bound == multiple or what not in ("equal", "not_equal")):
            return function(values, self.arrow.scalar(_of_type(values.type, bound), values.type))
        always = what == "not_equal" if what in ("equal", "not_equal") else what.startswith("less") == (bound > high)
        return self.compute.if_else(self.compute.is_valid(values), always, self.null)

    def _is_in(self, column: _Values, literals: Sequence[Literal]) -> Any:
        for literal in literals:
            self._check(column, literal)
        given: list[Any] = [literal for literal in literals if literal is not None]
        if column.kind == "a float":
            given = [value for value in (_as_float(one, column.type) for one in given) if math.isfinite(value)]
            given += [-value for value in given if not value]  # which has another hash than zero
        elif column.kind in ("a number", "a date or time"):
            low, high = column.limits
            multiples = [self._multiple(column, value) for value in given]
            whole = [int(value) for value in multiples if value.denominator == 1 and low <= value <= high]
            given = [_of_type(column.values.type, value) for value in whole]
        found = self.compute.is_in(column.values, value_set=self.arrow.array(given, column.values.type))
        found = self.compute.if_else(self.compute.is_valid(column.values), found, self.null)
        return self.compute.or_kleene(found, self.null) if None in literals else found

    def _like(self, column: _Values, pattern: str | None, ignore_case: bool) -> Any:
        if column.kind != "text":
            raise DataError(f"{self.shown} looks for a pattern in the column {column.shown}, expected a column of text")
        if pattern is None:
            return self.null
        middle = "".join(
            {"%": ".*", "_": "."}.get(one) or re.escape(one) for one in re.sub("%+", "%", pattern.strip("%"))
        )
        start, end = "" if pattern[:1] == "%" else r"\A", "" if pattern[-1:] == "%" else r"\z"
        return self.compute.match_substring_regex(column.values, f"(?s){start}{middle}{end}", ignore_case=ignore_case)

    def _of_columns(self, what: str, left: _Values, right: _Values) -> Any:
        one, other = left.values, right.values
        kinds = {left.kind, right.kind}
        zones = {getattr(column.type, "tz", None) is None for column in (left, right)}
        if "nothing" in kinds or len(zones) > 1 or (len(kinds) > 1 and kinds != {"a number", "a float"}):
            pair = f"{left.shown} with {right.shown}"
            raise DataError(f"{self.shown} compares {pair}, expected two columns of the same kind")
        common = None
        if "a float" in kinds:
            common = self.arrow.float64()
        elif kinds == {"a number"} and one.type != other.type:
            common = self.arrow.decimal256(76, max(getattr(values.type, "scale", 0) for values in (one, other)))
        elif kinds == {"a date or time"}:
            unit = min(left.unit, right.unit)
            one, other = (
                self.compute.multiply_checked(column.values.cast(self.arrow.int64()), int(column.unit / unit))
                for column in (left, right)
            )
        if common is not None:
            one, other = (self.compute.cast(values, common, safe=False) for values in (one, other))
        return getattr(self.compute, what)(one, other)


def _as_values(name: str, values: Any) -> _Values:
    """Give a column in a type that Arrow compares: dictionaries decoded, dates and times as integers."""
    arrow = arrow_package()
    types = arrow.types
    if types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    kind = values.type
    made = partial(_Values, f"{name!r:.60} ({kind})", kind)
    if types.is_boolean(kind):
        return made("true or false", values)
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return made("text", values.cast(arrow.large_string()))
    if types.is_floating(kind):
        return made("a float", values.cast(arrow.float32()) if types.is_float16(kind) else values)
    if types.is_integer(kind):
        bounds = np.iinfo(kind.to_pandas_dtype())
        return made("a number", values, limits=(int(bounds.min), int(bounds.max)))
    if types.is_decimal(kind):
        wide, high = values.cast(arrow.decimal256(76, kind.scale)), 10**76 - 1
        return made("a number", wide, Fraction(10) ** -kind.scale, (-high, high))
    if types.is_date32(kind):
        return made("a date or time", values.cast(arrow.int32()), Fraction(86400), (-(2**31), 2**31 - 1))
    if types.is_date64(kind) or types.is_timestamp(kind):
        unit = Fraction(1, {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[getattr(kind, "unit", "ms")])
        return made("a date or time", values.cast(arrow.int64()), unit, (-(2**63), 2**63 - 1))
    return made("nothing", values)


def _of_type(type_: Any, multiple: int) -> int | Decimal:
    """A value of a type of integers or decimals, given in units."""
    if not hasattr(type_, "scale"):
        return multiple
    return Decimal((int(multiple < 0), tuple(map(int, str(abs(multiple)))), -type_.scale))  # not rounded


def _as_float(value: Fraction, type_: Any) -> float:
    """Round a number to a type of floats, to infinity if it is too large."""
    try:
        with np.errstate(over="ignore"):
            return float(type_.to_pandas_dtype()(float(value)))
    except OverflowError:
        return math.inf if value > 0 else -math.inf
