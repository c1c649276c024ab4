"""Computing conditions, compared with DuckDB, which computes them from the same text."""

from datetime import date, datetime, timedelta, timezone
from decimal import Decimal

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autojacobin import DataError
from autojacobin.index.comparisons import allowed_rows

# Random tables and conditions

SMALL = st.integers(-3, 3)
FIRST = datetime(2020, 1, 1)
TEXTS = st.text("aAbé%_\\'\n", max_size=4)
HALVES = SMALL.map(lambda n: n / 2)
EDGES = st.sampled_from([-(2**63), 2**63 - 1, 2**53 + 1, -(2**53) - 1])
TYPES = {
    "i8": (pa.int8(), SMALL | st.sampled_from([-128, 127])),
    "i64": (pa.int64(), SMALL | EDGES),
    "u64": (pa.uint64(), st.integers(0, 3) | st.sampled_from([2**64 - 1, 2**63])),
    "f32": (pa.float32(), SMALL.map(lambda n: float(np.float32(n / 10)))),
    "f64": (pa.float64(), SMALL.map(lambda n: n / 10) | st.sampled_from([-0.0, np.inf, -np.inf])),
    "cents": (pa.decimal128(12, 2), SMALL.map(lambda n: Decimal(n) / 4)),
    "s": (pa.string(), TEXTS),
    "B": (pa.bool_(), st.booleans()),
    "day": (pa.date32(), SMALL.map(lambda n: FIRST.date() + timedelta(n))),
    "moment": (pa.timestamp("us"), HALVES.map(lambda n: FIRST + timedelta(n))),
    "a b": (pa.timestamp("s"), SMALL.map(lambda n: FIRST + timedelta(n))),
}
ROWS = st.lists(st.fixed_dictionaries({name: st.none() | values for name, (_, values) in TYPES.items()}), max_size=8)
SCHEMA = pa.schema([(name, type_) for name, (type_, _) in TYPES.items()])


def quoted(text):
    return "'" + str(text).replace("'", "''") + "'"


INTEGERS = (SMALL | st.sampled_from([200, -200, 2**31])).map(str)
LARGE = (
    INTEGERS | EDGES.map(str) | st.sampled_from(["9223372036854775808", "-9223372036854775809", "18446744073709551615"])
)
TENTHS = st.integers(-30, 30).map(lambda n: f"{n / 10:.1f}")
DAYS = st.integers(-2, 2).map(lambda n: FIRST + timedelta(n / 2))
MOMENTS = (
    DAYS.map(quoted) | DAYS.map(lambda at: quoted(at.date())) | DAYS.map(lambda at: f"timestamp {quoted(at)}")
    | DAYS.map(lambda at: f"DATE {quoted(at.date())}")
)  # fmt: skip
LITERALS = {
    "i8": INTEGERS | TENTHS, "i64": LARGE, "u64": LARGE, "f32": TENTHS | INTEGERS, "f64": TENTHS | INTEGERS,
    "cents": TENTHS | INTEGERS, "s": TEXTS.map(quoted), "B": st.sampled_from(["true", "FALSE"]),
    "day": DAYS.map(lambda at: quoted(at.date())) | MOMENTS.filter(lambda text: not text.startswith("'")),
    "moment": MOMENTS, "a b": MOMENTS,
}  # fmt: skip
PAIRS = [
    ("i8", "i64"), ("i64", "u64"), ("i8", "f64"), ("f32", "f64"), ("cents", "i8"), ("cents", "f64"), ("day", "moment"),
    ("moment", "a b"), ("s", "s"), ("B", "B"), ("day", "a b"), ("i64", "cents"),
]  # fmt: skip
SIGNS = st.sampled_from(["=", "==", "!=", "<>", "<", "<=", ">", ">="])


@st.composite
def comparisons(draw):
    name = draw(st.sampled_from(list(TYPES)))
    literal = LITERALS[name] | st.sampled_from(["null"])
    column = f'"{name}"' if " " in name else draw(st.sampled_from([name, name.lower(), f'"{name}"', f"({name})"]))
    kind = draw(st.sampled_from(["sign", "swapped", "in", "between", "null", "like", "pair", "alone"]))
    negated = draw(st.sampled_from(["", "not "]))
    if kind == "like" and name == "s":
        return f"{column} {negated}{draw(st.sampled_from(['like', 'ILIKE']))} {draw(literal)}"
    if kind == "alone" and name == "B":
        return column
    if kind == "in":
        return f"{column} {negated}in ({', '.join(draw(st.lists(literal, min_size=1, max_size=4)))})"
    if kind == "between":
        return f"{column} {negated}between {draw(literal)} and {draw(literal)}"
    if kind == "null":
        return f"{column} is {negated}null"
    if kind == "pair":
        one, other = draw(st.sampled_from(PAIRS))
        return f'"{one}" {draw(SIGNS)} "{other}"'
    if kind == "swapped":
        return f"{draw(literal)} {draw(SIGNS)} {column}"
    return f"{column} {draw(SIGNS)} {draw(literal)}"


CONDITIONS = st.recursive(
    comparisons() | st.sampled_from(["true", "false", "null", "1 = 1", "'a' < 'b'", "null <> 3"]),
    lambda inner: (
        inner.map(lambda one: f"not {one}")
        | inner.map(lambda one: f"({one})")
        | st.lists(st.tuples(inner, st.sampled_from([" and ", " OR "])), min_size=2, max_size=4).map(
            lambda parts: "".join(one + joint for one, joint in parts)[: -len(parts[-1][1])]
        )
    ),
    max_leaves=8,
)


@pytest.fixture(scope="module")
def database():
    with duckdb.connect() as connection:
        connection.execute("set threads = 1")
        yield connection


def by_duckdb(database, table, where):
    numbered = table.append_column("__row", pa.array(np.arange(table.num_rows)))
    found = database.from_arrow(numbered).filter(where).project("__row").fetchall()
    mask = np.zeros(table.num_rows, dtype=bool)
    mask[[row for (row,) in found]] = True
    return mask


@settings(max_examples=4 * settings.default.max_examples)
@given(rows=ROWS, where=CONDITIONS)
def test_any_condition_holds_for_the_rows_that_duckdb_finds(database, rows, where):
    table = pa.Table.from_pylist(rows, SCHEMA)
    np.testing.assert_array_equal(allowed_rows([table], where), by_duckdb(database, table, where), err_msg=where)


@settings(max_examples=4 * settings.default.max_examples)
@given(
    texts=st.lists(st.none() | st.text("ab%_\\\né😀", max_size=6), min_size=1),
    pattern=st.text("ab%_\\\né😀", max_size=6),
)
def test_any_pattern_matches_what_duckdb_matches(database, texts, pattern):
    table = pa.table({"s": pa.array(texts, pa.string())})
    for word in ("like", "not ilike"):
        where = f"s {word} {quoted(pattern)}"
        np.testing.assert_array_equal(allowed_rows([table], where), by_duckdb(database, table, where), err_msg=where)


# Types


@pytest.mark.parametrize(
    "type_",
    [pa.int16(), pa.uint32(), pa.float16(), pa.float32(), pa.float64(), pa.decimal128(9, 3), pa.decimal256(60, 1)],
)
def test_numbers_of_every_type_are_compared_exactly(type_):
    values = [0, 1, 2, 3, None]
    column = pa.array([None if one is None else one / 2 for one in values]).cast(type_, safe=False)
    numbers = [None if one is None else float(one) for one in column.to_pylist()]
    table = pa.table({"x": column})
    texts = ["0.5", "1", "-7", "1e300", "-1e300", "123456789012345678901234567890"]
    if type_ not in (pa.float16(), pa.float32()):  # to which numbers are rounded
        texts += ["1e-1", "0.50001", "0.0000000001"]
    for text in texts:
        expected = {
            "<": lambda one, text=text: one < float(text),
            ">=": lambda one, text=text: one >= float(text),
            "=": lambda one, text=text: one == float(text),
            "!=": lambda one, text=text: one != float(text),
        }
        for sign, holds in expected.items():
            wanted = [one is not None and holds(one) for one in numbers]
            assert allowed_rows([table], f"x {sign} {text}").tolist() == wanted
        assert allowed_rows([table], f"x in ({text}, 1)").tolist() == [one in (float(text), 1) for one in numbers]


def test_a_number_is_rounded_to_the_type_of_a_column_of_floats():
    for type_ in (pa.float16(), pa.float32(), pa.float64()):
        table = pa.table({"x": pa.array(np.array([0.1, 0.2, np.inf], type_.to_pandas_dtype()), type_)})
        assert allowed_rows([table], "x = 0.1").tolist() == [True, False, False]
        assert allowed_rows([table], "x in (0.2, 1e300)").tolist() == [False, True, False]
        assert allowed_rows([table], "x < 1e305").tolist() == [True, True, False]
        assert allowed_rows([table], "x > 1e305").tolist() == [False, False, True]


@pytest.mark.parametrize("type_", [pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())])
def test_texts_of_every_type_are_compared(type_):
    table = pa.table({"x": pa.array(["a", None, "b"], pa.string()).cast(type_)})
    for where, expected in (
        ("x > 'a'", [False, False, True]),
        ("x in ('a')", [True, False, False]),
        ("x like '_'", [True, False, True]),
        ("x is null", [False, True, False]),
        ("x = x", [True, False, True]),
    ):
        assert allowed_rows([table], where).tolist() == expected


def test_times_with_and_without_a_zone():
    noon = datetime(2020, 1, 1, 12, tzinfo=timezone.utc)
    table = pa.table({
        "zoned": pa.array([noon, None], pa.timestamp("ms", "Europe/Berlin")),
        "plain": pa.array([noon.replace(tzinfo=None), None], pa.timestamp("ns")),
        "old": pa.array([date(2020, 1, 1), None], pa.date64()),
    })  # fmt: skip
    for where in (
        "zoned = '2020-01-01 12:00:00'", "zoned = timestamp '2020-01-01 13:00:00+01:00'", "plain <= '2020-01-01 12:00'",
        "plain > '2020-01-01 11:59:59.999999'", "old = '2020-01-01'", "old < plain", "old in ('2020-01-01', null)",
        "old < timestamp '2020-01-01 00:00:00.000001'", "plain > '0001-01-01' and plain < date '9999-12-31'",
    ):  # fmt: skip
        assert allowed_rows([table], where).tolist() == [True, False], where
    with pytest.raises(DataError, match=r"has a time with a zone, but the column 'plain' .timestamp.ns.. has none"):
        allowed_rows([table], "plain = '2020-01-01 13:00:00+01:00'")
    with pytest.raises(
        DataError, match=r"compares 'plain' .timestamp.ns.. with 'zoned' .*, expected two columns of the"
    ):
        allowed_rows([table], "plain = zoned")


def test_columns_of_other_types_can_be_null():
    columns = {
        "list": pa.array([[1], None]), "struct": pa.array([{"a": 1}, None]), "bytes": pa.array([b"x", None]),
        "time": pa.array([1, None], pa.time32("s")), "nothing": pa.nulls(2),
    }  # fmt: skip
    table = pa.table(columns)
    for name in columns:
        assert allowed_rows([table], f"{name} is null").tolist() == [name == "nothing", True]
        if name == "nothing":
            assert not allowed_rows([table], "nothing = 3 or not nothing like 'x'").any()
            continue
        with pytest.raises(DataError, match=f"the column '{name}' .*, expected only is null for this type"):
            allowed_rows([table], f"{name} = 'x'")
        with pytest.raises(DataError, match="expected two columns of the same kind"):
            allowed_rows([table], f"{name} = {name}")


def test_several_tables_are_one_and_may_be_empty():
    tables = [pa.table({"a": pa.array(part, pa.int64())}) for part in ([1, 2], [], [3, None])]
    assert allowed_rows(tables, "a >= 2 and not a = 3 or a is null").tolist() == [False, True, False, True]
    assert allowed_rows(tables, pc.field("a") >= 2).tolist() == [False, True, True, False]
    assert allowed_rows(tables[1:2], "a in (1, 2) or a < 3.5").tolist() == []
    assert allowed_rows([pa.schema([("a", pa.string())]).empty_table()], "a ilike 'x%' or a is null").tolist() == []


# Messages


MIXED = pa.table({"n": [1], "s": ["a"], "b": [True], "Größe": [0.5], "x": [1], "X": [2], "day": [date(2020, 1, 1)]})


@pytest.mark.parametrize(
    ("where", "message"),
    [
        (
            "s < 3",
            r"compares the column 's' .string. with a number, expected text; the columns are n .int64., s .string.",
        ),
        ("n < 'a'", r"compares the column 'n' .int64. with the text 'a', expected a number; the columns are"),
        ("n = true", "compares the column 'n' .int64. with true, expected a number"),
        ("n in (1, 'a')", "with the text 'a', expected a number"),
        ("b = 1", "compares the column 'b' .bool. with a number, expected true or false"),
        ("day < 3", "with a number, expected a date or time"),
        ("day < 'soon'", "with the text 'soon', expected one such as '2020-01-31'"),
        ("s = date '2020-01-01'", "with a date or time, expected text"),
        ("nothing < 3", "names the column 'nothing', but the columns are n .int64., s .string."),
        ("n = s", "compares 'n' .int64. with 's' .string., expected two columns of the same kind"),
        ("n", "has the column 'n' .int64. as a condition; compare it, as in 'a < 9'"),
        ("n like '1%'", "looks for a pattern in the column 'n' .int64., expected a column of text"),
        ('s = "a"', "names the column 'a', but .*; put text into single quotes"),
        ("1 = 'a'", "compares a number with the text 'a'; name a column"),
        ("s = '\ud800'", "cannot be computed; the columns are"),
    ],
)
def test_a_wrong_comparison_is_one_sentence(where, message):
    with pytest.raises(DataError, match=message) as caught:
        allowed_rows([MIXED], where)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(f"where={where!r}")


def test_names_of_columns_need_no_capital_letters_unless_they_differ_in_them_alone():
    assert allowed_rows([MIXED], "größe = 0.5").all()
    assert allowed_rows([MIXED], "N = 1 and x = 1 and X = 2").all()
    table = pa.table({"ab": [1], "AB": [2]})
    with pytest.raises(DataError, match="names the column 'Ab', but the columns are ab .int64., AB .int64."):
        allowed_rows([table], "Ab = 1")


def test_of_many_columns_some_are_shown():
    table = pa.table({f"column {number}": [number] for number in range(1_000)})
    with pytest.raises(DataError, match="column 19 .int64., 980 more") as caught:
        allowed_rows([table], "nothing = 1")
    assert len(str(caught.value)) < 1_000
