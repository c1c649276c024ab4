"""Conditions on the payload, such as ``price < 10 and lang = 'de'``: a small part of SQL, computed by Arrow.

A condition is read in one pass from left to right, into steps in the order in which a stack computes them
(``comparisons.py``). There is no recursion, and length, nesting and patterns are limited. So the time to read a
condition grows with its length, and the time to compute it with the number of rows, whoever wrote it.
"""

from __future__ import annotations

import math
import re
import reprlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from autojacobin.errors import DataError

LONGEST_CONDITION = 10_000  # characters
_DEEPEST = 50  # parentheses around each other
_MOST_COMPARISONS = 100  # each takes time for every row
_LONGEST_PATTERN, _MOST_GAPS = 200, 8  # with many _ after a %, the automaton of RE2 would grow exponentially
_LONGEST_NUMBER = 100  # characters

_ALLOWED = (
    "a condition compares columns with numbers, 'text', true, false or null by = != < <= > >=, in (…), "
    "between … and …, is null, like or ilike, and joins such comparisons by and, or, not and parentheses"
)
_TOKEN = re.compile(
    r"""\s*(?:(?P<number>(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?(?![\w.]))
    |(?P<text>(?:'[^']*')+)|(?P<quoted>(?:"[^"]*")+)|(?P<word>[^\W\d]\w*)|(?P<sign><=|>=|<>|!=|==|[-+=<>(),]))""",
    re.VERBOSE,
)
_CONSTANTS = {"true": True, "false": False, "null": None}
_KEYWORDS = frozenset(("and", "between", "ilike", "in", "is", "like", "not", "or"))
_SIGNS = {"=": "equal", "==": "equal", "!=": "not_equal", "<>": "not_equal", "<": "less", "<=": "less_equal",
          ">": "greater", ">=": "greater_equal"}  # fmt: skip
_PRECEDENCE = {"(": 0, "or": 1, "and": 2, "not": 3}


class Column(NamedTuple):
    """A column, by its name."""

    name: str


Literal: TypeAlias = bool | Fraction | str | datetime | None
Operand: TypeAlias = Column | Literal


class Step(NamedTuple):
    """A step of a condition: it compares ``left`` with ``right``, or looks at ``left`` alone, or combines results.

    ``and``, ``or``, ``not`` and ``known``, which makes null false, take their operands from the stack.
    """

    what: str  # one of these, a function of Arrow, "in", "like", "ilike", "is null", or "is" for true and false
    left: Operand = None
    right: Any = None


@dataclass(frozen=True)
class Condition:
    """A condition: what an error calls it, and its steps in the order in which a stack computes them."""

    shown: str
    steps: tuple[Step, ...]

    @property
    def columns(self) -> list[str]:
        """Names of the columns that are compared, each once."""
        operands = [part for step in self.steps for part in (step.left, step.right) if isinstance(part, Column)]
        return list(dict.fromkeys(column.name for column in operands))


# Reading


class _Token(NamedTuple):
    kind: str  # number, text, quoted, word, sign or end
    text: str  # of a word in small letters, of a quoted one without the quotes
    place: int
    written: str = ""


@lru_cache(64)
def read_condition(where: str) -> Condition:
    """Read a condition; one that is outside the grammar is a DataError."""
    if not 1 <= len(where) <= LONGEST_CONDITION:
        raise DataError(f"where must be a condition of 1 to {LONGEST_CONDITION:,} characters, got {len(where):,}")
    condition = Condition(f"where={where!r:.80}", tuple(_Reader(where).steps()))
    if sum(step.what not in _PRECEDENCE for step in condition.steps) > _MOST_COMPARISONS:
        raise DataError(f"{condition.shown} has more than {_MOST_COMPARISONS} comparisons; use in (…), or fewer")
    return condition


class _Reader:
    """Reads tokens. Operators whose right side is not complete wait on a stack (Dijkstra's shunting yard)."""

    def __init__(self, where: str) -> None:
        self.shown = f"where={where!r:.80}"
        self.tokens = self._tokens(where)
        self.next = next(self.tokens)
        self.done: list[Step] = []
        self.operators: list[str] = []
        self.operands: list[Operand | type[Step]] = []  # Step stands for what steps have computed

    def _tokens(self, where: str) -> Iterator[_Token]:
        place, end = 0, len(where.rstrip())
        while place < end:
            found = _TOKEN.match(where, place)
            if found is None:
                rest = where[place:].lstrip()
                raise self._error(_Token("sign", "", len(where) - len(rest), rest))
            kind = str(found.lastgroup)
            written = found[kind]
            quoted = kind in ("text", "quoted")
            text = written[1:-1].replace(written[0] * 2, written[0]) if quoted else written.lower()
            yield _Token(kind, text, found.start(kind), written)
            place = found.end()
        while True:
            yield _Token("end", "", end)

    def _error(self, token: _Token) -> DataError:
        place = f"{token.written[:20]!r}, character {token.place + 1}" if token.written else "its end"
        return DataError(f"{self.shown} cannot be read at {place}: {_ALLOWED}")

    def _taken(self) -> _Token:
        token, self.next = self.next, next(self.tokens)
        return token

    def _take(self, *texts: str) -> str | None:
        """Go on if the next token is one of these signs or words, and give it."""
        return self._taken().text if self.next.kind in ("sign", "word") and self.next.text in texts else None

    def _expect(self, text: str) -> None:
        if self._take(text) is None:
            raise self._error(self.next)

    def steps(self) -> list[Step]:
        """Read everything."""
        while True:
            while word := self._take("not", "("):
                if word == "not" and self.operators[-1:] == ["not"]:
                    self.operators.pop()  # twice is not at all
                else:
                    self.operators.append(word)
                if self.operators.count("(") > _DEEPEST:
                    raise DataError(f"{self.shown} has more than {_DEEPEST} parentheses around each other; use fewer")
            self.operands.append(self._operand())
            self._read_comparison()
            while self._take(")"):
                self._compute(above=0)
                if not self.operators:
                    raise DataError(f"{self.shown} has a ) without a (; leave it out")
                self.operators.pop()
                self._read_comparison()
            joint = self._take("and", "or")
            self._compute(above=_PRECEDENCE[joint] - 1 if joint else 0)
            if joint is None:
                break
            self.operators.append(joint)
        if self.next.kind != "end":
            raise self._error(self.next)
        if self.operators:
            raise DataError(f"{self.shown} has a ( without a ); close it")
        self._load()
        return self.done

    def _operand(self) -> Operand:
        """Read a column or a literal."""
        sign = self._take("+", "-")
        token = self._taken()
        if token.kind == "number" and len(token.text) <= _LONGEST_NUMBER:
            return Fraction(token.text) * (-1 if sign == "-" else 1)
        if sign is None and token.kind == "text":
            return token.text
        if sign is None and token.kind == "quoted":
            return Column(token.text)
        if sign is not None or token.kind != "word" or token.text in _KEYWORDS:
            raise self._error(token)
        if token.text in ("date", "timestamp") and self.next.kind == "text":
            return as_moment(self._taken().text, self.shown)
        return _CONSTANTS[token.text] if token.text in _CONSTANTS else Column(token.written)

    def _value(self) -> Operand:
        """Read a column or a literal, which may have parentheses around it."""
        depth = 0
        while self._take("("):
            depth += 1
        value = self._operand()
        for _ in range(depth):
            self._expect(")")
        return value

    def _literal(self) -> Literal:
        token, value = self.next, self._operand()
        if isinstance(value, Column):
            raise self._error(token)
        return value

    def _read_comparison(self) -> None:
        """Read what follows an operand, if it is a comparison. The result of one is not compared again."""
        left, token = self.operands[-1], self.next
        if isinstance(left, type):
            return
        if sign := self._take(*_SIGNS):
            self._add(Step(_SIGNS[sign], left, self._value()))
            return
        if self._take("is"):
            negated = self._take("not")
            self._expect("null")
            self._add(Step("is null", left), negated=negated)
            return
        negated = self._take("not")
        word = self._take("in", "between", "like", "ilike")
        if word is None:
            if negated:
                raise self._error(token)
        elif word == "between":
            low = self._value()
            self._expect("and")
            bounds = Step("greater_equal", left, low), Step("less_equal", left, self._value())
            self._add(*bounds, Step("and"), negated=negated)
        elif not isinstance(left, Column):
            raise DataError(f"{self.shown} has {shown_literal(left)} before {word}, expected a column")
        elif word == "in":
            self._expect("(")
            values = [self._literal()]
            while self._take(","):
                values.append(self._literal())
            self._expect(")")
            self._add(Step(word, left, tuple(values)), negated=negated)
        else:
            self._add(Step(word, left, self._pattern()), negated=negated)

    def _pattern(self) -> str | None:
        token, pattern = self.next, self._literal()
        if not isinstance(pattern, str | None):
            raise self._error(token)
        gaps = (pattern or "").partition("%")[2].count("_")
        if len(pattern or "") > _LONGEST_PATTERN or gaps > _MOST_GAPS:
            raise DataError(
                f"{self.shown} has a pattern of {len(pattern or '')} characters and {gaps} times _ after a %, "
                f"expected at most {_LONGEST_PATTERN} and {_MOST_GAPS}"
            )
        return pattern

    def _add(self, *steps: Step, negated: str | None = None) -> None:
        """Add steps, whose result takes the place of the last operand."""
        self.done += [*steps, Step("not")] if negated else steps
        self.operands[-1] = Step

    def _load(self) -> None:
        """Make the last operand a condition, which a column or a constant can be itself."""
        value = self.operands[-1]
        if isinstance(value, Column | bool | None):
            self._add(Step("is", value))
        elif not isinstance(value, type):
            raise DataError(f"{self.shown} has {shown_literal(value)} where a condition is expected; compare a column")

    def _compute(self, above: int) -> None:
        """Compute the operators on the stack that bind more strongly than ``above``."""
        while self.operators and _PRECEDENCE[self.operators[-1]] > above:
            word = self.operators.pop()
            self._load()  # perhaps before the other operand of "and" or "or", whose order does not matter
            if word != "not":
                self.operands.pop()
                self._load()
            self._add(Step(word))


def as_moment(text: str, shown: str) -> datetime:
    """Read a date or a time by ISO 8601."""
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        expected = "expected one such as '2020-01-31' or '2020-01-31 18:30:00'"
        raise DataError(f"{shown} compares a date or time with the text {text!r:.40}, {expected}") from None


def as_literal(value: Any, shown: str) -> Literal:
    """Give a value of Python or NumPy as a literal of a condition."""
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, bool | str | datetime | None):
        return value
    if isinstance(value, int | float | Decimal) and math.isfinite(value):
        return Fraction(str(value))
    if isinstance(value, date):
        return datetime(value.year, value.month, value.day)
    given = reprlib.repr(value)
    raise DataError(f"{shown} compares with {given:.60}, expected text, a finite number, true, false, null or a date")


def shown_literal(value: Any) -> str:
    """Say what a literal is."""
    if isinstance(value, str):
        return f"the text {value!r:.40}"
    names = {Fraction: "a number", datetime: "a date or time", tuple: "several values", bool: str(value).lower()}
    return names.get(type(value), "null")
