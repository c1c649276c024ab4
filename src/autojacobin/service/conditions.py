"""Check conditions on the payload: DuckDB parses them, and a service accepts only those that are cheap to compute.

The library computes any condition that DuckDB can. In a service, one request could then run for hours, with a subquery
or a function that makes long lists. So a service allows comparisons and a list of functions whose time grows
with the number of vectors alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from autojacobin.errors import DataError, MissingExtraError

__all__ = ["LONGEST_CONDITION", "check_condition"]

LONGEST_CONDITION = 2_000  # characters

_EXPRESSIONS = frozenset(
    {"BETWEEN", "CASE", "CAST", "COLUMN_REF", "COMPARISON", "CONJUNCTION", "CONSTANT", "FUNCTION", "OPERATOR", "TYPE"}
)
_FUNCTIONS = frozenset(
    {
        "+", "-", "*", "/", "//", "%", "~~", "!~~", "~~*", "!~~*", "abs", "ceil", "coalesce", "contains", "date_part",
        "date_trunc", "day", "ends_with", "floor", "hour", "isfinite", "isnan", "len", "length", "like_escape",
        "list_contains", "list_has", "list_value", "lower", "ltrim", "month", "prefix", "round", "rtrim", "starts_with",
        "struct_extract", "suffix", "trim", "upper", "year",
    }
)  # fmt: skip


@lru_cache(maxsize=256)
def check_condition(where: str) -> None:
    """Raise a DataError unless a condition consists of cheap comparisons of columns."""
    parsed = _parse(where)
    statements = parsed.get("statements", [])
    if parsed["error"] or len(statements) != 1 or statements[0]["node"]["type"] != "SELECT_NODE":
        reason = parsed.get("error_message", "it is not a condition")
        raise DataError(
            f"where={where!r:.80} cannot be read: {reason}; give for example \"price < 10 and lang = 'de'\""
        )
    for expression in _expressions(statements[0]["node"]["where_clause"]):
        kind, name = expression["class"], str(expression.get("function_name", "")).lower()
        if kind not in _EXPRESSIONS or (kind == "FUNCTION" and name not in _FUNCTIONS):
            shown = f"the function {name!r}" if kind == "FUNCTION" else f"a {kind.lower()}"
            raise DataError(
                f"where={where!r:.80} has {shown}, which a service does not compute, expected comparisons of columns "
                "with and, or, not, in, like and simple functions; leave it out"
            )


def _parse(where: str) -> Any:
    try:
        import duckdb
    except ImportError as error:
        raise MissingExtraError("duckdb", "payload", "a condition in words") from error
    with duckdb.connect(config={"enable_external_access": "false", "lock_configuration": "true"}) as connection:
        # on a line of its own, so that a comment ends before the bracket does
        condition = f"SELECT 1 FROM t WHERE ({where}\n)"
        try:
            found = connection.execute("SELECT json_serialize_sql(?)", [condition]).fetchone()
        except (duckdb.Error, UnicodeError) as error:
            raise DataError(f"where={where!r:.80} cannot be read: {type(error).__name__}; give plain text") from error
    assert found is not None
    return json.loads(found[0])


def _expressions(tree: Any) -> Iterator[dict[str, Any]]:
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            if "class" in node:
                yield node
            waiting.extend(node.values())
        elif isinstance(node, list):
            waiting.extend(node)
