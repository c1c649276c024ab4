"""Columns beside the vectors: what goes in comes back, through every change; and what does not fit is refused."""

import copy
import datetime
import json
import pickle
import shutil
import uuid
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from autojacobin import LSH
from autojacobin.errors import DataError, DataTypeError, FormatError
from autojacobin.index.array_files import READ_AT_ONCE
from autojacobin.index.index import Index
from autojacobin.index.payload import as_payload
from autojacobin.index.repair import repair
from tests.index.index_model import small_hasher, vectors
from tests.index.test_damage import _seal

ROWS = [{"n": 1, "t": "a"}, {"n": 2, "t": None}, {"n": None, "t": "c"}]
COLUMNS = {"n": [1, 2, None], "t": ["a", None, "c"]}


def indexed(payload=None, n=3, **options):
    index = Index(small_hasher(), **options)
    index.add(vectors(n), payload=payload)
    return index


@pytest.mark.parametrize(
    "payload",
    [
        COLUMNS,
        ROWS,
        tuple(ROWS),
        pa.table(COLUMNS),
        pa.RecordBatch.from_pydict(COLUMNS),
        SimpleNamespace(to_arrow=lambda: pa.table(COLUMNS)),  # as polars has it
        pd.DataFrame({"n": pd.array([1, 2, None], dtype="Int64"), "t": ["a", None, "c"]}, index=[7, 8, 9]),
        {"n": pa.array([1, 2, None]), "t": np.array(["a", None, "c"], dtype=object)},
    ],
    ids=["dict", "list of dicts", "tuple of dicts", "table", "record batch", "polars", "data frame", "arrays"],
)
def test_every_kind_of_payload_is_the_same_table(payload):
    index = indexed(payload)
    assert index.get([0, 1, 2]).to_pylist() == ROWS
    assert index.get([2, 0, 2], columns=["t"]).to_pylist() == [{"t": "c"}, {"t": "a"}, {"t": "c"}]
    assert index.info()["columns"] == ["n", "t"]


def test_a_column_that_the_first_row_does_not_have_is_kept():
    table = as_payload([{"a": 1}, {"a": 2, "b": "x"}, {"b": "y"}], 3)
    assert table.to_pydict() == {"a": [1, 2, None], "b": [None, "x", "y"]}


TYPES = [
    pa.array([[1.0, 2.0], None, [3.0, 4.0]], pa.list_(pa.float32(), 2)),
    pa.array([{"x": 1}, {"x": 2}, None]),
    pa.array([datetime.date(2020, 1, 1), None, datetime.date(1, 1, 1)]),
    pa.array([b"\0", b"", None]),
    pa.array([True, False, None]),
    pa.array([1, 2, 3], pa.timestamp("us", tz="UTC")),
    pa.array([[("k", 1)], [], None], pa.map_(pa.string(), pa.int64())),
    pa.array(["long" * 9, None, ""], pa.large_string()),
    pa.array([uuid.UUID(int=1).bytes, uuid.UUID(int=2).bytes, None], pa.uuid()),
]


@pytest.mark.parametrize("column", TYPES, ids=[str(column.type)[:20] for column in TYPES])
def test_arrow_types_survive_every_change(tmp_path, column):
    index = indexed({"x": column})
    index.add(vectors(3, 1), payload={"x": column})
    index.add(vectors(2, 2))  # without
    index.remove([1])
    expected = index.get(index.ids)
    assert expected.schema.field("x").type == column.type
    assert expected["x"].to_pylist() == [*[column.to_pylist()[place] for place in (0, 2, 0, 1, 2)], None, None]
    index.compact()
    assert index.get(index.ids).equals(expected)
    index.save(tmp_path / "index")
    for other in (Index.open(tmp_path / "index"), copy.deepcopy(index), pickle.loads(pickle.dumps(index))):
        assert other.get(other.ids).equals(expected)
        other.close()


CATEGORIES = {
    "many": lambda start: pa.array([f"{start + row}" for row in range(200)]).dictionary_encode(),
    "of pandas": lambda start: pa.array(pd.Categorical([f"{start + row % 150}" for row in range(200)])),
    "with null": lambda start: pa.DictionaryArray.from_arrays(
        pa.array([0, 1, 2, None] * 50, pa.int8()), pa.array([f"{start}", None, "a"])
    ),
    "that are lists": lambda start: pa.DictionaryArray.from_arrays(
        pa.array([0, 1] * 100, pa.int8()), pa.array([[start], [start, None]])
    ),
    "in lists": lambda start: pa.ListArray.from_arrays(
        pa.array(range(201), pa.int32()), pa.array([f"{start + row}" for row in range(200)]).dictionary_encode()
    ),
    "that are lists, in lists": lambda start: pa.FixedSizeListArray.from_arrays(
        pa.DictionaryArray.from_arrays(pa.array([0, 1] * 100, pa.int8()), pa.array([[start], None])), 1
    ),
    "in structs": lambda start: pa.StructArray.from_arrays(
        [pa.array([f"{start + row}" for row in range(200)]).dictionary_encode()], ["c"]
    ),
    "runs": lambda start: pa.RunEndEncodedArray.from_arrays(pa.array([100, 200]), pa.array([f"{start}", None])),
}


@pytest.mark.parametrize("name", CATEGORIES)
def test_categories_that_differ_between_additions_work_in_every_operation(tmp_path, name):
    make, path = CATEGORIES[name], tmp_path / "index"
    values = make(0).to_pylist() + make(1000).to_pylist()
    with Index.create(path, small_hasher()) as index:
        index.add(vectors(200), payload={"c": make(0)})
        index.add(vectors(200, 1), payload={"c": make(1000)})
        assert index.get(index.ids)["c"].to_pylist() == values
        _, ids, table = index.search(vectors(3), 5, columns=["c"])
        assert table["c"].to_pylist() == [values[id] for id in ids.ravel()]
        index.upsert(vectors(200, 2), np.arange(100, 300), {"c": make(2000)})
        values[100:300] = make(2000).to_pylist()
        index.update(np.arange(200), payload={"c": make(3000)})
        values[:200] = make(3000).to_pylist()
        assert index.get(index.ids)["c"].to_pylist() == values
        index.compact()
        assert index.get(index.ids)["c"].to_pylist() == values
        index.add(vectors(200, 3), payload={"c": make(4000)})
        values += make(4000).to_pylist()
    assert repair(path, tmp_path / "repaired").problems == []
    with Index.open(tmp_path / "repaired") as index:
        assert index.get(index.ids)["c"].to_pylist() == values
        known = index.search(vectors(1), 600, where="c is not null")[1]
        assert sorted(known[known >= 0]) == [id for id, value in enumerate(values) if value is not None]


def test_categories_that_an_earlier_version_wrote_are_read_as_their_values(tmp_path):
    path = tmp_path / "index"
    with Index.create(path, small_hasher()) as index:
        index.add(vectors(3), payload={"c": ["x", "y", "x"]})
        (file,) = path.glob("payload-*.arrow")
    forged(path, file, arrow_file(pa.table({"c": pa.array(["x", "y", "x"]).dictionary_encode()})))
    with Index.open(path) as index:
        index.add(vectors(3, 1), payload={"c": pd.Categorical(["z", "x", "w"])})
        index.compact()
        assert index.get(index.ids)["c"].to_pylist() == ["x", "y", "x", "z", "x", "w"]


def lying_column():
    """A column of text whose offsets lead out of its buffer."""
    offsets = pa.py_buffer(np.array([0, 1, 2**30, 3], dtype=np.int32))
    return pa.Array.from_buffers(pa.string(), 3, [None, offsets, pa.py_buffer(b"abc")])


@pytest.mark.parametrize(
    "column",
    [
        lying_column(),
        pa.DictionaryArray.from_arrays(pa.array([0, 7, 1], pa.int8()), pa.array(["a", "b"]), safe=False),
        pa.Array.from_buffers(
            pa.string(), 3, [None, pa.array([0, 1, 2, 3], pa.int32()).buffers()[1], pa.py_buffer(b"a\xffc")]
        ),
    ],
    ids=["offsets", "indices", "text"],
)
def test_a_forged_column_is_refused_on_the_way_in(column):
    index = indexed(COLUMNS)
    for change in (
        lambda: index.add(vectors(3), payload=pa.table({"t": column})),
        lambda: index.upsert(vectors(3), [0, 1, 2], {"t": column}),
        lambda: index.update([0, 1, 2], payload={"t": column}),
        lambda: index.add(pa.table({"t": column, "vector": vectors(3).tolist()}), ids="t"),
    ):
        with pytest.raises(DataError, match="the column 't' .* cannot be read"):
            change()
    assert index.get([0, 1, 2]).to_pylist() == ROWS


def test_repair_keeps_each_column_that_can_be_read(tmp_path):
    path = tmp_path / "index"
    with Index.create(path, small_hasher()) as index:
        index.add(vectors(3), payload={"n": [1, 2, 3], "t": ["a", "b", "c"]})
        (file,) = path.glob("payload-*.arrow")
        index.add(vectors(3, 1), payload={"n": [4, 5, 6], "t": ["d", "e", "f"]})
    forged(path, file, arrow_file(pa.table({"n": pa.array([1, 2, 3]), "t": lying_column()})))
    with Index.open(path) as index, pytest.raises(FormatError, match=f"{file.name}.*the column 't'"):
        index.get([0])
    report = repair(path, tmp_path / "repaired")
    assert [file.name in problem and "'t'" in problem for problem in report.problems] == [True]
    with Index.open(tmp_path / "repaired") as index:
        assert index.get(index.ids).to_pydict() == {"n": [1, 2, 3, 4, 5, 6], "t": [None] * 3 + ["d", "e", "f"]}


def test_repair_drops_a_column_that_has_another_type_in_another_segment(tmp_path):
    path = tmp_path / "index"
    with Index.create(path, small_hasher()) as index:
        index.add(vectors(3), payload=COLUMNS)
        index.add(vectors(3, 1), payload=COLUMNS)
        file = path / index._state.segments[1].files["payload"].name
    forged(path, file, arrow_file(pa.table({"n": ["no", "number", None], "t": COLUMNS["t"]})), segment=1)
    report = repair(path, tmp_path / "repaired")
    assert [file.name in problem and "'n'" in problem for problem in report.problems] == [True]
    with Index.open(tmp_path / "repaired") as index:
        assert index.get(index.ids).to_pydict() == {"n": [1, 2, None] + [None] * 3, "t": COLUMNS["t"] * 2}


def test_rows_without_columns_are_no_payload():
    index = indexed([{}, {}, {}])
    index.add(vectors(2), payload=[{}, {}])
    index.add(vectors(2), payload=[{"n": 1}, {"n": 2}])
    index.add(vectors(1), payload=[{}])
    index.update([5], payload=[{}])
    assert index.get(index.ids)["n"].to_pylist() == [None] * 5 + [1, 2, None]
    with pytest.raises(DataError, match="a row for each of the 3 vectors, got 2 rows"):
        index.add(vectors(3), payload=[{}, {}])


def nested(depth):
    value = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize("depth", [33, 300, 20_000])
def test_deeply_nested_values_are_refused(depth):
    payloads = [[{"a": nested(depth)}], {"a": [nested(depth)]}, pd.DataFrame({"a": [nested(depth)]})]
    if depth < 1000:
        payloads.append(pa.table({"a": [nested(depth)]}))
    for payload in payloads:
        with pytest.raises(DataError, match="32 lists and objects inside each other"):
            indexed(payload, n=1)
    indexed([{"a": nested(32)}], n=1)


def test_a_struct_with_a_new_field_is_refused_and_not_cut():
    index = indexed({"s": [{"x": 1}] * 3})
    with pytest.raises(DataError, match="'y' has no place there"):
        index.add(vectors(1), payload={"s": [{"x": 1, "y": 2}]})
    index.add(vectors(1), payload={"s": [{"x": 4}]})
    assert index.get([3]).to_pylist() == [{"s": {"x": 4}}]


@given(st.data())
def test_rows_follow_their_vectors_through_random_changes(data):
    index, model, free = Index(small_hasher()), {}, 0
    for step in range(data.draw(st.integers(1, 6))):
        change = data.draw(st.sampled_from(["add", "replace", "remove", "compact", "update", "stream"]))
        known = sorted(model)
        some = data.draw(st.lists(st.sampled_from(known), unique=True, min_size=1)) if known else []
        values = [None if value == 3 else value + 10 * step for value in range(5)]
        if change in ("add", "stream") or (change == "replace" and not some):
            ids = data.draw(st.permutations(range(free, free + 5)))
            new = vectors(5, step)
            given_vectors = iter([new[:2], new[2:]]) if change == "stream" else new
            index.add(given_vectors, ids=ids, payload={"a": values, "b": [f"{v}" for v in values]})
            model |= {id: {"a": v, "b": f"{v}"} for id, v in zip(ids, values, strict=True)}
            free += 5
        elif change == "replace":
            some.append(free)  # which is new
            index.upsert(vectors(len(some), step), ids=some, payload={"a": [step] * len(some)})
            model |= {id: model.get(id, {"b": None}) | {"a": step} for id in some}
            free += 1
        elif change == "update" and some:
            index.update(some, payload={"b": [f"new {step}"] * len(some)})
            for id in some:
                model[id] = model[id] | {"b": f"new {step}"}
        elif change == "remove" and some:
            index.remove(some)
            for id in some:
                del model[id]
        elif change == "compact":
            index.compact()
        ids = sorted(model)
        assert index.ids.tolist() == ids
        if ids:
            assert index.get(ids).to_pylist() == [model[id] for id in ids]


# Update


@pytest.mark.parametrize("kept", [True, False])
def test_update_replaces_vectors_payload_or_both(kept):
    index = Index(small_hasher(), keep_vectors=kept)
    names = ["a", "b", "c"]
    index.add(vectors(3), ids=names, payload=COLUMNS)
    codes = index.codes(names)
    index.update(["c", "a"], payload={"n": [30, 10]})
    assert index.codes(names) == codes
    assert index.get(names).to_pydict() == {"n": [10, 2, 30], "t": ["a", None, "c"]}
    index.update("b", vectors=vectors(5, 9)[4:])
    assert index.codes(["b"]) == index.hasher.encode(vectors(5, 9)[4:])
    assert index.get("b").to_pylist() == [{"n": 2, "t": None}]
    index.update(["b"], vectors(3)[2:], [{"t": "both"}])
    assert index.codes(["b"]) == codes[2:]
    assert index.get("b").to_pylist() == [{"n": 2, "t": "both"}]
    if kept:
        assert np.array_equal(index.vectors(names), vectors(3)[[0, 2, 2]])


def test_update_keeps_the_type_of_vectors_it_does_not_replace():
    index = Index(small_hasher())
    index.add(np.abs(vectors(3)).astype(np.uint8))
    index.add(vectors(3, 1))
    index.update([1, 4], payload={"n": [1, 4]})
    assert {segment.vectors.dtype for segment in index._state.segments} == {np.dtype("u1"), np.dtype("f4")}
    assert np.array_equal(index.vectors([1, 4]), [np.abs(vectors(3))[1], vectors(3, 1)[1]])
    assert index.get([0, 1, 4])["n"].to_pylist() == [None, 1, 4]


def test_update_works_on_the_newest_state_of_the_folder(tmp_path):
    """An object that has only read may hold an old state: what others wrote since must not be undone."""
    with Index.create(tmp_path / "index", small_hasher()) as index:
        index.add(vectors(3), payload=COLUMNS)
    late = Index.open(tmp_path / "index")
    with Index.open(tmp_path / "index") as other:
        other.update([0], vectors=vectors(5, 9)[:1], payload={"t": ["newer"]})
    late.update([0], payload={"n": [100]})
    assert late.get([0]).to_pylist() == [{"n": 100, "t": "newer"}]
    assert np.array_equal(late.vectors([0]), vectors(5, 9)[:1])
    late.close()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda index: index.update([0]), "nothing to update"),
        (lambda index: index.update([9], payload={"n": [1]}), "got 9, which is not"),
        (lambda index: index.update([0, 0], payload={"n": [1, 2]}), "got 0 more than once"),
        (lambda index: index.update([0, 1], payload={"n": [1]}), "a row for each of the 2 vectors, got 1 rows"),
        (lambda index: index.update([0, 1], vectors(1)), "got 2 ids for 1 vectors"),
        (lambda index: index.update([0], payload={"zz": [None]}), "the column 'zz' of the payload has no value yet"),
        (lambda index: index.get([0], columns=["zz"]), "there is no column 'zz' in this index, expected some of n, t"),
        (lambda index: index.get([9]), "got 9, which is not"),
        (lambda index: index.search(vectors(1), 1, columns=["zz"]), "there is no column 'zz'"),
    ],
)
def test_wrong_calls_are_one_sentence_and_change_nothing(call, message):
    index = indexed(COLUMNS)
    with pytest.raises(DataError, match=message):
        call(index)
    assert index.get([0, 1, 2]).to_pylist() == ROWS


def test_update_of_nothing_changes_nothing():
    index = indexed(COLUMNS)
    index.update([], payload={"n": []})
    assert index.get([0, 1, 2]).to_pylist() == ROWS


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        ({"n": [1, 2]}, "a row for each of the 3 vectors, got 2 rows"),
        ({"n": [1, 2, 3], "t": ["a"]}, "cannot be made a table"),
        ({"n": [1, "x", 3]}, "cannot be made a table"),
        ({"n": [1, 2, 3], "zz": [1, 2, 3]}, "has a column 'zz' that the index does not have"),
        ({"n": ["one", "two", "three"]}, "the column 'n' of the payload must be int64, as in the index, got string"),
        ({"n": [1.5, 2.0, 3.0]}, "must be int64, as in the index, got double"),
        ({"t": "xyz"}, "must have a value for each vector, got 'xyz'"),
        (pa.table([[1, 2, 3], [1, 2, 3]], names=["n", "n"]), "different names, got n, n"),
        ([1, 2, 3], "cannot be made a table"),
        ("text", "a table, data frame, dict of columns or list of dicts, got str"),
        (7, "list of dicts, got int"),
        ({}, "a row for each of the 3 vectors, got 0 rows"),
    ],
)
def test_a_payload_that_does_not_fit_is_refused(payload, message):
    index = indexed(COLUMNS)
    with pytest.raises(DataError, match=message):
        index.add(vectors(3, 1), payload=payload)
    assert len(index) == 3


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        ({"x": [None, None, None]}, "the column 'x' of the payload has no value yet"),
        ({"x": [[], None, [None]]}, "the column 'x' of the payload has no value yet"),
        (
            {"x": pa.UnionArray.from_sparse(pa.array([0, 1, 0], pa.int8()), [pa.array([1, 2, 3]), pa.array([*"abc"])])},
            "the column 'x' .* cannot be kept: its values have several types",
        ),
        (
            {"x": pa.DictionaryArray.from_arrays(pa.array([0, 1, 0]), pa.array(["a", "b"]).dictionary_encode())},
            "the column 'x' .* cannot be kept: its values are encoded twice",
        ),
    ],
)
def test_columns_that_an_index_could_not_use_are_refused_at_the_first_add(payload, message):
    with pytest.raises(DataError, match=message):
        indexed(payload)


def test_types_are_converted_where_nothing_is_lost():
    index = indexed(COLUMNS)
    index.add(vectors(3, 1), payload={"n": np.array([1, 2, 3], dtype=np.int16), "t": [None, None, None]})
    assert index.get([3, 4, 5]).to_pydict() == {"n": [1, 2, 3], "t": [None] * 3}


def test_a_stream_has_as_many_rows_as_its_payload():
    index = indexed(COLUMNS)
    with pytest.raises(DataError, match="a row of the payload for every vector, got 3 rows for 4"):
        index.add(iter([vectors(2), vectors(2)]), payload=COLUMNS)
    index.add(iter([vectors(2), vectors(1)]), payload=COLUMNS)
    assert index.get([3, 4, 5]).to_pylist() == ROWS


def test_an_index_without_a_payload_says_so():
    with pytest.raises(DataError, match="this index has no payload; give one with index.add"):
        indexed().get([0])
    with pytest.raises(DataError, match="this index has no payload for where='n < 1'"):
        indexed().search(vectors(1), 1, where="n < 1")


# Data frames


def test_a_data_frame_of_polars_with_a_column_of_lists():
    polars = pytest.importorskip("polars")
    lists = polars.DataFrame({"name": ["x", "y", "z"], "vector": vectors(3).tolist(), "price": [1, 2, 3]})
    wide = lists.with_columns(polars.col("vector").cast(polars.Array(polars.Float32, 4)))
    for frame in (lists, wide):
        index = Index(small_hasher())
        index.add(frame, ids="name")
        assert index.get("y").to_pylist() == [{"price": 2}]
        assert np.array_equal(index.vectors(["z", "x"]), vectors(3)[[2, 0]])


class PolarsLike:
    """A frame as polars has it: other methods than pandas, and a conversion to Arrow."""

    def __init__(self, columns):
        self._table, self.columns = pa.table(columns), list(columns)

    def __len__(self):
        return self._table.num_rows

    def __getitem__(self, name):
        raise AssertionError("its series are not those of pandas")

    def to_arrow(self):
        return self._table


def test_a_data_frame_that_gives_arrow_is_read_by_it():
    index = Index(small_hasher())
    index.add(PolarsLike({"name": ["x", "y"], "vector": vectors(2).tolist(), "price": [1, 2]}), ids="name")
    assert index.get("y").to_pylist() == [{"price": 2}]


def test_a_data_frame_with_a_column_of_names_and_one_of_vectors():
    frame = pd.DataFrame({"name": ["x", "y", "z"], "vector": list(vectors(3)), "price": [1, 2, 3]})
    for given_frame in (frame, pa.Table.from_pandas(frame)):
        index = Index(small_hasher())
        index.add(given_frame, ids="name")
        assert index.ids.tolist() == ["x", "y", "z"]
        assert np.array_equal(index.vectors(["z", "x"]), vectors(3)[[2, 0]])
        assert index.get("y").to_pylist() == [{"price": 2}]


def test_a_data_frame_with_a_column_of_names_among_the_numbers():
    frame = pd.DataFrame(vectors(3), columns=list("abcd"))
    hasher = LSH(6, random_state=0).fit(frame)  # knows the names of the features
    frame.insert(1, "name", ["x", "y", "z"])
    for given_frame in (frame, pa.Table.from_pandas(frame)):
        index = Index(hasher)
        index.add(given_frame, ids="name", payload={"price": [1, 2, 3]})
        assert np.array_equal(index.vectors(["z", "x"]), vectors(3)[[2, 0]])
        assert index.get("y").to_pylist() == [{"price": 2}]


@pytest.mark.parametrize(
    ("columns", "payload", "message"),
    [
        ({"name": ["x"]}, None, "there is no column 'id' for the ids, expected one of name"),
        ({"id": ["x"], "vector": [[1.0] * 4]}, {"n": [1]}, "the payload is in the data frame beside 'vector'"),
        ({"id": ["x", "y"], "vector": [[1.0] * 4, [1.0] * 3]}, None, "must hold vectors of one length"),
        ({"id": ["x", "y"], "vector": [[1.0] * 4, None]}, None, "must hold vectors of one length"),
        ({"id": ["x", None], "vector": [[1.0] * 4] * 2}, None, "ids of this index are strings"),
    ],
)
def test_a_data_frame_that_does_not_fit_is_refused(columns, payload, message):
    index = Index(small_hasher())
    with pytest.raises(DataError, match=message):
        index.add(pd.DataFrame(columns), ids="id", payload=payload)
    assert len(index) == 0


def test_neighbours_as_a_table():
    index = Index(small_hasher())
    index.add(vectors(3), ids=["a", "b", "c"], payload={"n": [1, 2, 3], "id": [7, 8, 9]})
    frame = index.search(vectors(2), 3, among=["c", "a"], columns=["n", "id"], as_table=True)
    assert list(frame.columns) == ["query", "rank", "id", "distance", "n", "id_payload"]
    assert frame["query"].tolist() == [0, 0, 1, 1]
    assert frame["rank"].tolist() == [1, 2, 1, 2]
    assert frame["n"].dtype == np.int64  # no row is missing
    assert dict(zip(frame["id"], frame["id_payload"], strict=True)) == {"a": 7, "c": 9}


def test_columns_of_neighbours_are_those_of_their_ids():
    index = Index(small_hasher())
    index.add(vectors(20), payload={"n": np.arange(20)})
    index.add(vectors(20, 1), payload={"n": np.arange(20, 40)})
    _, ids, table = index.search(vectors(4, 3), 5, columns=["n"])
    assert table["n"].to_pylist() == ids.ravel().tolist()
    _, ids, table = index.search(vectors(4, 3), 5, columns=["n"], among=[3, 21])
    assert table["n"].to_pylist() == [None if id < 0 else id for id in ids.ravel().tolist()]


# Files


LARGE = 3_000  # rows of which the file is mapped


@pytest.fixture
def stored(tmp_path):
    with Index.create(tmp_path / "index", small_hasher()) as index:
        index.add(vectors(LARGE), payload={"n": np.arange(LARGE), "t": [f"text {n}" for n in range(LARGE)]})
    (file,) = (tmp_path / "index").glob("payload-*.arrow")
    assert file.stat().st_size > READ_AT_ONCE
    return tmp_path / "index", file


def test_a_reader_keeps_its_columns_when_a_writer_deletes_the_file(stored):
    path, file = stored
    with Index.open(path) as reader, Index.open(path) as writer:
        writer.remove([0])
        writer.compact()
        assert not file.exists()
        assert reader.get([5, 0])["n"].to_pylist() == [5, 0]
        reader.refresh()
        assert reader.get([5])["n"].to_pylist() == [5]


@pytest.mark.parametrize("place", [0, 8, 300, 5_000, -300, -3])
def test_a_flipped_bit_is_an_error_that_names_the_file(stored, tmp_path, place):
    path, file = stored
    content = bytearray(file.read_bytes())
    content[place] ^= 4
    file.write_bytes(content)
    uses = [
        lambda index: index.get([1]),
        lambda index: index.search(vectors(1), 1, where="n < 10"),
        lambda index: index.search(vectors(1), 1, columns=["n"]),
        lambda index: index.add(vectors(1), payload={"n": [1]}),
        lambda index: index.update([1], payload={"n": [1]}),
        lambda index: index.verify(),
        lambda index: index.save(tmp_path / "copy"),
        lambda index: (index.remove(index.ids[:1]), index.compact()),
    ]
    for use in uses:
        for check in (True, False):
            with Index.open(path, check=check) as index, pytest.raises(FormatError, match=file.name):
                use(index)
    with Index.open(path) as index:
        assert index.search(vectors(2), 3)[1].shape == (2, 3)  # what is whole can be searched


def forged(path, file, content, segment=0):
    """Put other bytes into the file, with a checksum in the manifest that is theirs."""
    manifest = path / "MANIFEST.json"
    fields = json.loads(manifest.read_bytes()) | {"checksum": "0" * 16}
    record = fields["segments"][segment]["files"]["payload"]
    record["size"], record["checksum"] = len(content), xxhash.xxh64_hexdigest(content)
    file.write_bytes(content)
    _seal(manifest, fields)


def arrow_file(table):
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def test_forged_files_with_right_checksums_end_in_a_format_error(stored):
    path, file = stored
    content = file.read_bytes()
    forgeries = [b"", b"x" * 100, content[:-10], arrow_file(pa.table({"n": [1]}))]
    rng = np.random.default_rng(0)
    for _ in range(60):
        changed = bytearray(content)
        for place in rng.integers(0, len(content), 8):
            changed[place] = rng.integers(256)
        for place in (*rng.integers(0, 900, 3), *(-rng.integers(1, 900, 3))):
            changed[place] = rng.integers(256)
        forgeries.append(bytes(changed))
    refused = 0
    for forgery in forgeries:
        forged(path, file, forgery)
        with Index.open(path) as index:
            try:
                assert index.get([LARGE - 1, 0]).num_rows == 2
                index.search(vectors(1), 1, columns=["n"])
            except FormatError as error:
                assert file.name in str(error)
                refused += 1
            except DataError as error:  # another name of a column
                assert "there is no column" in str(error)
    assert refused > 20


def test_segments_with_other_columns_are_damage(tmp_path):
    path = tmp_path / "index"
    with Index.create(path, small_hasher()) as index:
        index.add(vectors(3), payload=COLUMNS)
        index.add(vectors(3), payload=COLUMNS)
        file = path / index._state.segments[0].files["payload"].name
    forged(path, file, arrow_file(pa.table({"other": [1, 2, 3]})))
    with Index.open(path) as index, pytest.raises(FormatError, match="different columns"):
        index.get([0, 5])


def test_a_wrong_condition_is_no_type_error():
    with pytest.raises(DataTypeError, match='where must be a condition such as "price < 10"'):
        indexed(COLUMNS).search(vectors(1), 1, where=3)


def test_the_folder_holds_one_payload_for_each_segment(stored):
    path, _ = stored
    copied = Path(shutil.copytree(path, path.parent / "copied"))
    with Index.open(copied) as index:
        index.add(vectors(2), payload={"n": [1, 2]})
        index.remove(np.arange(LARGE))
    assert len(list(copied.glob("payload-*.arrow"))) == 1


def test_upsert_replaces_vectors_and_keeps_columns_that_it_is_not_given(tmp_path):
    with Index.create(tmp_path / "index", small_hasher()) as index:
        index.add(vectors(3), ids=["a", "b", "c"], payload={"n": [1, 2, 3], "t": ["x", "y", "z"]})
        with pytest.raises(
            DataError, match="must be new, got 'b', which is in the index already; replace it by upsert"
        ):
            index.add(vectors(2, 1), ids=["d", "b"], payload={"n": [4, 5]})
        with pytest.raises(DataError, match="must be new, got 'b'"):
            index.add(iter([vectors(1, 1), vectors(1, 2)]), ids=["d", "b"])
        assert index.ids.tolist() == ["a", "b", "c"]
        index.upsert(vectors(2, 1), ids=["d", "b"])
        index.upsert(iter([vectors(1, 2), vectors(1, 3)]), ids=["c", "e"], payload={"n": [30, 50]})
        found = dict(zip(index.ids, index.get(index.ids).to_pylist(), strict=True))
        assert found == {
            "a": {"n": 1, "t": "x"},
            "b": {"n": 2, "t": "y"},
            "c": {"n": 30, "t": "z"},
            "d": {"n": None, "t": None},
            "e": {"n": 50, "t": None},
        }
        expected = [vectors(2, 1)[1], vectors(1, 2)[0], vectors(1, 3)[0]]
        assert np.array_equal(index.vectors(["b", "c", "e"]), expected)
        with pytest.raises(DataError, match="upsert replaces vectors by their ids, got no ids"):
            index.upsert(vectors(1), None)
        index.remove(["a"])
        index.add(vectors(1), ids=["a"])  # which is new again
        assert len(index) == 5


@pytest.mark.parametrize("kind", ["memory", "folder"])
def test_columns_that_come_later_are_null_for_all_other_vectors(kind, tmp_path):
    """Over several segments, one of them without a payload, and removed vectors."""
    index = Index(small_hasher()) if kind == "memory" else Index.create(tmp_path / "index", small_hasher())
    index.add(vectors(3), payload=COLUMNS)
    index.add(vectors(2))
    index.add(vectors(2), payload={"n": [6, 7]})
    index.remove([1])
    index.update([2, 5], payload={"new": ["x", "y"], "n": [30, 60]})
    expected = {0: (1, "a", None), 2: (30, "c", "x"), 3: (None,) * 3, 4: (None,) * 3, 5: (60, None, "y")}
    expected[6] = (7, None, None)
    rows = [dict(zip(("n", "t", "new"), values, strict=True)) for values in expected.values()]
    for step in ("now", "opened", "compacted"):
        if step == "opened" and kind == "folder":
            index.verify()
            index.close()
            index = Index.open(tmp_path / "index")
        if step == "compacted":
            index.compact()
        assert index.get(list(expected)).to_pylist() == rows
        assert index.search(vectors(1), 6, where="new is not null")[1][0].tolist()[2:] == [-1] * 4
        assert sorted(index.search(vectors(1), 2, where="new in ('x', 'y')")[1][0].tolist()) == [2, 5]
    index.add(vectors(1), payload={"new": ["z"]})
    assert index.get([7]).to_pylist() == [{"n": None, "t": None, "new": "z"}]
    with pytest.raises(DataError, match="make the column with index.update"):
        index.add(vectors(1), payload={"newer": ["z"]})
    if kind == "folder":
        names = {path.name for path in (tmp_path / "index").iterdir() if path.name.startswith("payload-")}
        assert len(names) == 2  # those of the columns before are gone
    index.close()


def test_a_crash_while_columns_are_made_leaves_those_before(tmp_path, monkeypatch):
    with Index.create(tmp_path / "index", small_hasher()) as index:
        index.add(vectors(3), payload=COLUMNS)
        index.add(vectors(2), payload={"n": [6, 7]})

        def fail(*_):
            raise OSError("no space")

        monkeypatch.setattr(index._folder, "commit", fail)
        with pytest.raises(Exception, match="no space"):
            index.update([0], payload={"new": ["x"]})
    (tmp_path / "index" / "MANIFEST.json").rename(tmp_path / "kept")
    report = repair(tmp_path / "index", tmp_path / "repaired")  # with what the crash left, in the order of time
    assert report.saved == 5
    (tmp_path / "kept").rename(tmp_path / "index" / "MANIFEST.json")
    with Index.open(tmp_path / "index") as index:
        assert index.get([0, 1, 2]).to_pylist() == ROWS


def test_an_index_that_was_emptied_keeps_its_columns(tmp_path):
    with Index.create(tmp_path / "index", small_hasher()) as index:
        index.add(vectors(3), payload=COLUMNS)
        index.remove([0, 1, 2])
        index.save(tmp_path / "copy")
    memory = indexed(COLUMNS)
    memory.remove([0, 1, 2])
    for emptied in (memory, copy.deepcopy(memory), Index.open(tmp_path / "index"), Index.open(tmp_path / "copy")):
        with emptied:
            emptied.compact()
            assert emptied.info()["columns"] == ["n", "t"]
            assert emptied.get([]).schema == pa.schema([("n", pa.int64()), ("t", pa.string())])
            with pytest.raises(DataError, match="a column 'other' that the index does not have"):
                emptied.add(vectors(1), payload=[{"other": 1}])
            emptied.add(vectors(2), payload=[{"t": "x"}, {"n": 7}])
            emptied.add(vectors(1))
            assert emptied.get([3, 4, 5]).to_pydict() == {"n": [None, 7, None], "t": ["x", None, None]}


@pytest.mark.parametrize("forged", ["", "no base64!", "AAAA", "/////wAAAAA="])
def test_columns_of_a_manifest_that_cannot_be_read_are_reported(forged):
    emptied = indexed(COLUMNS)
    emptied.remove([0, 1, 2])
    emptied._state = replace(emptied._state, columns=forged)
    with pytest.raises(FormatError, match="the manifest of the index has columns that cannot be read"):
        emptied.add(vectors(1), payload=[{"n": 1}])


def test_ids_that_are_missing_may_be_removed_if_wanted():
    index = indexed(COLUMNS)
    index.remove([1, 77, 1], missing_ok=True)
    assert index.ids.tolist() == [0, 2]
    with pytest.raises(DataError, match="only ids in the index can be removed, got 1"):
        index.remove([1])
    Index(small_hasher()).remove([5], missing_ok=True)
