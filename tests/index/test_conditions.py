"""Reading conditions: the grammar, its limits, and a sentence for everything outside it."""

import sys
from datetime import date, datetime

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autojacobin import DataError
from autojacobin.index.conditions import LONGEST_CONDITION, Column, Condition, Step, as_literal, read_condition

A, B = Column("a"), Column("b")
ONES = [Step("equal", A, 1), Step("equal", B, 2)]


def steps(where):
    return list(read_condition(where).steps)


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("a < 3", [Step("less", A, 3)]),
        ("a == 'it''s'", [Step("equal", A, "it's")]),
        ("-1.5 <> a", [Step("not_equal", -1.5, A)]),
        ("a >= +.5e1", [Step("greater_equal", A, 5)]),
        ('"a b" = "c""d"', [Step("equal", Column("a b"), Column('c"d'))]),
        ("größe = 1.", [Step("equal", Column("größe"), 1)]),
        ("date > date '2020-01-31'", [Step("greater", Column("date"), datetime(2020, 1, 31))]),
        ("A Is Not NULL", [Step("is null", Column("A")), Step("not")]),
        ("a in (1, 'x', null)", [Step("in", A, (1, "x", None))]),
        ("a not in (true)", [Step("in", A, (True,)), Step("not")]),
        ("a between 1 and b", [Step("greater_equal", A, 1), Step("less_equal", A, B), Step("and")]),
        ("a not like '%x_'", [Step("like", A, "%x_"), Step("not")]),
        ("a ilike null", [Step("ilike", A, None)]),
        ("((a)) = ((3))", [Step("equal", A, 3)]),
        ("a", [Step("is", A)]),
        ("not not not a", [Step("is", A), Step("not")]),
        ("not a = 1 and b = 2", [Step("equal", A, 1), Step("not"), Step("equal", B, 2), Step("and")]),
        ("a = 1 or b = 2 and a = 3", [*ONES, Step("equal", A, 3), Step("and"), Step("or")]),
        ("(a = 1 or b = 2) and a = 3", [*ONES, Step("or"), Step("equal", A, 3), Step("and")]),
        ("not (a or b)", [Step("is", B), Step("is", A), Step("or"), Step("not")]),
        ("\n a\t=\r\n1 ", [Step("equal", A, 1)]),
    ],
)  # fmt: skip
def test_a_condition_becomes_steps(where, expected):
    assert steps(where) == expected


OUTSIDE = [
    "price <", "a; drop table b", "exists (select 1)", "price in (select 1 from read_csv('/etc/passwd'))", "a % 2 = 0",
    "a + 1 > 2", "lower(a) = 'x'", "a->>'b' = 'c'", "a.b = 1", "case when a then b else c end", "a = 1 -- x", "a b",
    "a = 1 /* x */", "a is true", "a in ()", "a in (b)", "a in (1", "a in 1", "a like b", "a like 3", "a between 1",
    "and", "a and", "or a", "a not 3", "a not", "a is", "= 1", "a = = 1", "a = 1 = 1", "a < b < 3", "(a = 1) = true",
    "a = 'x", 'a = "x', "a = 1e5000", "a = 1x", "a = 0x10", "a = - -1", "a = -b", "a = ?", "a = $1", "a = @x", "()",
    "a = ()", "a like 'x' escape '!'", "date 3", "a = -'x'", " ", "\x00", "a\x00 = 1", "a = 1,", "9" * 101 + " = a",
]  # fmt: skip


@pytest.mark.parametrize("where", OUTSIDE)
def test_a_condition_outside_the_grammar_is_one_sentence_that_says_what_is_allowed(where):
    with pytest.raises(DataError, match=r"cannot be read at .*: a condition compares columns with numbers") as caught:
        read_condition(where)
    assert "\n" not in str(caught.value)
    assert f"where={where!r:.80} " in str(caught.value)


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("(with a as " * 30, r"cannot be read at 'a', character 7: a condition compares"),
        ("(" * 1999, "has more than 50 parentheses around each other"),
        ("(" * 51 + "a" + ")" * 51, "has more than 50 parentheses around each other"),
        ("(a = 1", r"has a \( without a \); close it"),
        ("a = 1) --", r"has a \) without a \(; leave it out"),
        ("true) union select (true", r"has a \) without a \(; leave it out"),
        ("a = 1)", r"has a \) without a \(; leave it out"),
        (" or ".join(["a = 1"] * 101), "has more than 100 comparisons"),
        ("a = '" + "x" * LONGEST_CONDITION, "where must be a condition of 1 to 10,000 characters, got 10,005"),
        ("", "where must be a condition of 1 to 10,000 characters, got 0"),
        ("'aaaa' ilike '%a%a%b'", "has the text 'aaaa' before ilike, expected a column"),
        ("3 in (3)", "has a number before in, expected a column"),
        (f"a like '{'x' * 201}'", "has a pattern of 201 characters"),
        (f"a ilike '%{'_' * 9}'", "and 9 times _ after a %"),
        ("'a' and b", "has the text 'a' where a condition is expected"),
        ("not 3", "has a number where a condition is expected"),
        ("a > date '2020-02-30'", "with the text '2020-02-30', expected one such as '2020-01-31'"),
    ],
)
def test_what_is_wrong_with_a_condition_is_one_sentence(where, message):
    with pytest.raises(DataError, match=message) as caught:
        read_condition(where)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


def test_many_nots_parentheses_and_operators_need_no_recursion():
    assert steps("not " * 480 + "(a < 5)") == [Step("less", A, 5)]
    assert steps("not " * 481 + "(a < 5)") == [Step("less", A, 5), Step("not")]
    assert steps("(" * 50 + "a" + ")" * 50) == [Step("is", A)]
    deep = "".join(f"a = {n} or not (" for n in range(49)) + "b" + ")" * 49
    limit = sys.getrecursionlimit()
    frames, frame = 0, sys._getframe()
    while frame is not None:
        frames, frame = frames + 1, frame.f_back
    sys.setrecursionlimit(frames + 20)
    try:
        assert len(steps(deep)) == 3 * 49 + 1
        assert len(steps(" and ".join(["a"] * 100))) == 199
    finally:
        sys.setrecursionlimit(limit)


PIECES = [
    "a", '"b"', "'x'", "'%_'", "1", "-2.5", "null", "true", "and", "or", "not", "in", "between", "is", "like", "ilike",
    "(", ")", ",", "=", "<", ">=", "<>", "date", "'2020-01-01'", "%", ";", '"', "'",
]  # fmt: skip


@given(st.lists(st.sampled_from(PIECES), min_size=1, max_size=30).map(" ".join) | st.text(min_size=1, max_size=60))
def test_any_text_is_read_or_refused_in_one_sentence(where):
    try:
        condition = read_condition(where)
    except DataError as error:
        assert "\n" not in str(error)
    else:
        depth = 0
        for step in condition.steps:  # a stack that never runs empty
            depth += {"and": -1, "or": -1, "not": 0}.get(step.what, 1)
            assert depth >= 1
        assert depth == 1


def test_a_condition_names_its_columns():
    condition = read_condition("a < b and (\"c d\" is null or a in (1, 2)) and 'x' = e")
    assert condition.columns == ["a", "b", "c d", "e"]
    assert condition == Condition(condition.shown, condition.steps)


def test_values_of_python_become_literals():
    assert as_literal(np.float64(0.1), "x") == as_literal(0.1, "x")
    assert as_literal(np.int8(3), "x") == 3
    assert as_literal(np.bool_(True), "x") is True
    assert as_literal(date(2020, 1, 31), "x") == datetime(2020, 1, 31)
    for wrong in (float("inf"), float("nan"), [1], {"a": 1}, b"x", object):
        with pytest.raises(DataError, match="filter compares with .*, expected text, a finite number"):
            as_literal(wrong, "filter")
