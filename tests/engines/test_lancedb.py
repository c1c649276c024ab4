"""LanceDB in a folder."""

import sys
from functools import partial

import numpy as np
import pyarrow as pa
import pytest

from autojacobin import Codes, DataError, MissingExtraError
from autojacobin.engines.lancedb import LanceDB
from autojacobin.errors import DataTypeError, StorageError
from tests.engines.conformance import (
    ConformanceWithVectors,
    assert_same,
    check_names,
    clustered,
    nearest,
    scattered_ids,
    whole_vectors,
)
from tests.engines.printed import printed


def open_engine(location, n_bits, n_features=None):
    return LanceDB(location, "codes", n_bits, n_features)


def database(folder):
    import lancedb  # which takes seconds, in the process only that runs these tests

    return lancedb.connect(folder)


class TestLanceDB(ConformanceWithVectors):
    pass


# The index


@pytest.fixture
def indexed(tmp_path):
    codes, ids = clustered(600, 128, 0), scattered_ids(600, 1)
    with LanceDB(tmp_path, "codes", 128) as engine:
        engine.write(codes[:500], ids[:500])
        engine.create_index(partitions=8)
        engine.write(codes[500:], ids[500:])
        yield engine, codes, ids


def test_an_exact_search_does_not_use_the_index(indexed):
    engine, codes, ids = indexed
    for k in (1, 20, 600):
        assert_same(engine.search(codes[490:510], k), nearest(codes[490:510], codes, ids, k))


def test_an_approximate_search_of_all_partitions_misses_nothing(indexed):
    engine, codes, ids = indexed
    distances, found = engine.search(codes[490:510], 20, approximate=True, probes=8)
    np.testing.assert_array_equal(distances, nearest(codes[490:510], codes, ids, 20)[0])
    assert distances.dtype == np.int32
    rows = {id: row for row, id in enumerate(ids.tolist())}
    chosen = codes.to_bits()[[[rows[id] for id in line] for line in found.tolist()]]
    np.testing.assert_array_equal((chosen != codes[490:510].to_bits()[:, None, :]).sum(axis=2), distances)


def test_an_approximate_search_gives_k_even_where_its_partitions_hold_fewer(indexed):
    engine, codes, ids = indexed
    assert_same(engine.search(codes[:3], 600, approximate=True, probes=1), nearest(codes[:3], codes, ids, 600))
    assert engine.search(codes[:0], 5, approximate=True)[0].shape == (0, 5)
    with pytest.raises(DataError, match="probes must be an integer of at least 1, got 0"):
        engine.search(codes, 3, approximate=True, probes=0)


def test_an_index_is_made_again_and_needs_codes(tmp_path):
    codes, ids = clustered(50, 64, 0), np.arange(50, dtype=np.int64)
    with LanceDB(tmp_path, "codes", 64) as engine:
        with pytest.raises(DataError, match="needs a code for each partition, got 0 codes for 1 partitions"):
            engine.create_index()
        engine.write(codes, ids)
        with pytest.raises(DataError, match="got 50 codes for 51 partitions"):
            engine.create_index(51)
        engine.create_index()
        engine.create_index(2)
        assert_same(engine.search(codes[:4], 50, approximate=True, probes=2), nearest(codes[:4], codes, ids, 50))
    with pytest.raises(DataError, match="is closed"):
        engine.create_index()


# What others see in the table


def test_other_programs_read_the_bits_as_documented(tmp_path):
    codes, vectors = clustered(5, 20, 0), whole_vectors(5, 1)
    with LanceDB(tmp_path, "codes", 20, 5) as engine:
        engine.write(codes, range(5), vectors)
    table = database(tmp_path).open_table("codes").to_arrow().sort_by("id")
    bits = np.unpackbits(np.array(table["code"].to_pylist(), dtype=np.uint8), axis=1, bitorder="little")
    np.testing.assert_array_equal(bits[:, :20], codes.to_bits())
    assert not bits[:, 20:].any()
    np.testing.assert_array_equal(np.array(table["vector"].to_pylist()), vectors)
    assert table.schema.metadata[b"n_bits"] == b"20"


def test_what_another_wrote_is_found_at_once(tmp_path):
    codes, ids = clustered(30, 64, 0), np.arange(30, dtype=np.int64)
    with LanceDB(tmp_path, "codes", 64) as reader, LanceDB(tmp_path, "codes", 64) as writer:
        writer.write(codes, ids)
        assert_same(reader.search(codes[:3], 30), nearest(codes[:3], codes, ids, 30))
        writer.delete(ids[:10])
        reader.write(codes[:1], [3])
        assert writer.count() == reader.count() == 21


def test_a_table_stays_the_same_when_lancedb_tidies_it_up(tmp_path):
    codes, ids = clustered(60, 61, 0), scattered_ids(60, 1)
    with LanceDB(tmp_path, "codes", 61) as engine:
        for start in range(0, 60, 10):
            engine.write(codes[start : start + 10], ids[start : start + 10])
        engine.delete(ids[:7])
        database(tmp_path).open_table("codes").optimize()
        assert_same(engine.search(codes[:4], 53), nearest(codes[:4], codes[7:], ids[7:], 53))
    with pytest.raises(DataError, match="for codes of 61 bits in .*, expected .* for codes of 64 bits in .*; open it"):
        LanceDB(tmp_path, "codes", 64)


def test_more_ids_than_one_request_names(tmp_path):
    n = 20_500
    codes = Codes(np.random.default_rng(0).integers(0, 256, (n, 8), dtype=np.uint8), 64)
    ids = np.random.default_rng(1).permutation(n).astype(np.int64)
    with LanceDB(tmp_path, "codes", 64) as engine:
        engine.write(codes, ids)
        assert engine.read(ids) == codes
        engine.delete(ids[: n - 5])
        assert engine.count() == 5
        assert engine.read(ids[n - 5 :]) == codes[n - 5 :]


@pytest.mark.parametrize(
    "columns",
    [
        {"id": pa.int64(), "words": pa.list_(pa.uint8(), 8)},
        {"id": pa.string(), "code": pa.list_(pa.uint8(), 8)},
        {"id": pa.int64(), "code": pa.list_(pa.int8(), 8)},
        {"id": pa.int64(), "code": pa.list_(pa.uint8())},
        {"id": pa.int64(), "code": pa.list_(pa.uint8(), 8), "vector": pa.list_(pa.float32(), 4)},
        {"id": pa.int64(), "code": pa.list_(pa.uint8(), 8), "title": pa.string()},
    ],
    ids=["name", "ids", "signed", "ragged", "width", "more"],
)
def test_a_foreign_table_is_refused_and_left_alone(tmp_path, columns):
    schema = pa.schema(list(columns.items()))
    database(tmp_path).create_table("codes", schema=schema)
    for n_features in (None, 5):
        with pytest.raises(DataError, match="the table 'codes' of LanceDB at .* has another layout, got "):
            LanceDB(tmp_path, "codes", 64, n_features)
    assert database(tmp_path).open_table("codes").schema == schema


def test_a_table_with_these_columns_made_by_others_is_taken(tmp_path):
    schema = pa.schema({"id": pa.int64(), "code": pa.list_(pa.uint8(), 8)})
    codes = clustered(3, 64, 0)
    rows = [{"id": row, "code": code.tolist()} for row, code in enumerate(codes.packed)]
    database(tmp_path).create_table("codes", data=rows, schema=schema)
    with LanceDB(tmp_path, "codes", 64) as engine:
        assert engine.read([0, 1, 2]) == codes
        engine.write(codes[:1], [7])
        assert engine.count() == 4


# Bad arguments and bad luck


@pytest.mark.parametrize(
    ("uri", "table", "error", "message"),
    [
        (5, "codes", DataTypeError, "uri must be a path or text, got int"),
        (b"s3://me:sesame@x", "codes", DataTypeError, "uri must be a path or text, got bytes"),
        ("", "codes", DataTypeError, "uri must be a path or text, got nothing"),
        ("folder", "two words", DataError, "table must be a name of letters.*, got 'two words'"),
        ("folder", "../codes", DataError, "got '../codes'"),
        ("folder", "..", DataError, "got '..'"),
        (
            "no://me:sesame@host/x",
            "codes",
            StorageError,
            r"cannot open the table 'codes' of LanceDB at no://host: ",
        ),
        ("s3://me:open/sesame@host/x", "codes", DataError, r"uri is not an address, got 's3://host'"),
        ("s3://me:open sesame@host/x", "codes", DataError, r"uri is not an address, got 's3://host'"),
        ("s3://me:open#sesame@host/x", "codes", DataError, r"uri is not an address, got 's3://\*\*\*'"),
        ("no://host/x?sig=sesame", "codes", StorageError, r"LanceDB at no://host: "),
        ("folder", None, DataError, "got None"),
        ("file", "codes", StorageError, "cannot open the table 'codes' of LanceDB at file: .*File exists"),
        ("file/folder", "codes", StorageError, "cannot open the table 'codes' .*check the address"),
    ],
)
def test_places_that_cannot_be_used_are_named(tmp_path, monkeypatch, uri, table, error, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("something else")
    with pytest.raises(error, match=message) as caught:
        LanceDB(uri, table, 64)
    assert "sesame" not in printed(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_more_partitions_than_there_can_be_are_all(indexed):
    engine, codes, ids = indexed
    distances, _ = engine.search(codes[:3], 20, approximate=True, probes=2**70)
    np.testing.assert_array_equal(distances, nearest(codes[:3], codes, ids, 20)[0])


def test_a_damaged_table_is_named(tmp_path):
    with LanceDB(tmp_path, "codes", 64) as engine:
        engine.write(clustered(30, 64, 0), range(30))
        for file in (tmp_path / "codes.lance" / "data").iterdir():
            file.write_bytes(b"something else")
    with LanceDB(tmp_path, "codes", 64) as engine:
        with pytest.raises(StorageError, match="cannot (read|search) the table 'codes' of LanceDB"):
            engine.search(clustered(2, 64, 0), 3)
        with pytest.raises(StorageError, match="the table is intact"):
            engine.read([1])


def test_a_missing_package_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "lancedb", None)
    with pytest.raises(MissingExtraError, match="pip install 'autojacobin\\[lancedb\\]'"):
        LanceDB(tmp_path, "codes", 64)


def test_names_are_keys(tmp_path):
    make = partial(LanceDB, tmp_path, "codes")
    check_names(make)
