"""SQLite with sqlite-vec, in a file."""

import sys
import threading
from functools import partial

import apsw
import numpy as np
import pytest
import sqlite_vec

from autojacobin import Codes, DataError, MissingExtraError, Sign
from autojacobin.engines.sqlite import SQLite
from autojacobin.errors import StorageError
from tests.engines.conformance import (
    ConformanceWithVectors,
    assert_same,
    check_names,
    clustered,
    nearest,
    scattered_ids,
    whole_vectors,
)
from tests.waiting import joined


def open_engine(location, n_bits, n_features=None):
    return SQLite(location, "codes", n_bits, n_features)


class TestSQLite(ConformanceWithVectors):
    pass


def plain(path):
    """A connection as another program would have it."""
    connection = apsw.Connection(str(path))
    connection.enable_load_extension(True)
    connection.load_extension(sqlite_vec.loadable_path())
    return connection


def test_other_programs_read_the_bits_as_documented(tmp_path):
    codes, vectors = clustered(5, 20, 0), whole_vectors(5, 1)
    with SQLite(tmp_path / "my.db", "codes", 20, 5) as engine:
        engine.write(codes, range(5), vectors)
    rows = plain(tmp_path / "my.db").execute("SELECT code, vector FROM codes ORDER BY id").fetchall()
    bits = np.unpackbits(np.array([list(code) for code, _ in rows], dtype=np.uint8), axis=1, bitorder="little")
    np.testing.assert_array_equal(bits[:, :20], codes.to_bits())
    assert not bits[:, 20:].any()
    np.testing.assert_array_equal([np.frombuffer(vector, "<f4") for _, vector in rows], vectors)


def test_codes_that_sqlite_vec_made_are_those_of_sign(tmp_path):
    X = np.random.default_rng(0).normal(size=(40, 32)).astype(np.float32)
    X[:, ::9] = 0
    other = plain(tmp_path / "my.db")
    other.execute("CREATE VIRTUAL TABLE texts USING vec0(id integer primary key, code bit[32])")
    for id, vector in enumerate(X):
        other.execute("INSERT INTO texts(id, code) VALUES (?, vec_quantize_binary(?))", (id, vector.tobytes()))
    other.close()
    codes = Sign().fit(X).encode(X)
    with SQLite(tmp_path / "my.db", "texts", 32) as engine:
        assert engine.read(range(40)) == codes
        assert_same(engine.search(codes[:5], 7), nearest(codes[:5], codes, np.arange(40), 7))


@pytest.mark.parametrize("n_bits", [20, 64])
def test_bytes_of_the_other_bit_order(tmp_path, n_bits):
    codes, ids = clustered(30, n_bits, 0), scattered_ids(30, 1)
    with SQLite(tmp_path / "my.db", "codes", n_bits, bitorder="big") as engine:
        engine.write(codes, ids)
        assert engine.read(ids) == codes
        assert_same(engine.search(codes[:5], 9), nearest(codes[:5], codes, ids, 9))
    found = dict(plain(tmp_path / "my.db").execute("SELECT id, code FROM codes").fetchall())
    packed = np.packbits(codes.to_bits(), axis=1)
    assert [found[id] for id in ids.tolist()] == [code.tobytes() for code in packed]
    with pytest.raises(DataError, match=r"another layout, .* in the order 'big', expected .* 'little'"):
        SQLite(tmp_path / "my.db", "codes", n_bits)


def test_many_equal_distances_and_deep_searches(tmp_path):
    codes, ids = clustered(700, 8, 0), scattered_ids(700, 1)
    with SQLite(tmp_path / "my.db", "codes", 8) as engine:
        engine.write(codes, ids)
        for k in (1, 100, 255, 300, 700):
            assert_same(engine.search(codes[:6], k), nearest(codes[:6], codes, ids, k))


def test_a_write_that_fails_keeps_nothing(tmp_path):
    codes = clustered(6, 64, 0)
    with SQLite(tmp_path / "my.db", "codes", 64) as engine:
        engine.write(codes[:3], [1, 2, 3])
        ids = np.array([2, 9, 9])  # the contract refuses this; sqlite-vec does so after the first rows
        with pytest.raises(StorageError, match="cannot write the table 'codes' of SQLite in .*UNIQUE constraint"):
            engine._write(codes[3:], ids, None)
        assert engine.count() == 3
        assert engine.read([1, 2, 3]) == codes[:3]


def test_two_writers_take_turns(tmp_path):
    codes = clustered(200, 64, 0)
    errors = []

    def write(first):
        try:
            with SQLite(tmp_path / "my.db", "codes", 64) as engine:
                for id in range(first, first + 50, 10):
                    engine.write(codes[id : id + 10], range(id, id + 10))
        except Exception as error:
            errors.append(error)

    with SQLite(tmp_path / "my.db", "codes", 64) as engine:
        threads = [threading.Thread(target=write, args=(first,)) for first in (0, 50, 100, 150)]
        for thread in threads:
            thread.start()
        joined(*threads)
        assert errors == []
        assert engine.count() == 200
        assert engine.read(range(200)) == codes


def test_tables_of_one_file_are_apart(tmp_path):
    codes = clustered(4, 64, 0)
    with SQLite(tmp_path / "my.db", "one", 64) as one, SQLite(tmp_path / "my.db", "two", 16) as two:
        one.write(codes, range(4))
        two.write(clustered(2, 16, 0), range(2))
        assert (one.count(), two.count()) == (4, 2)


@pytest.mark.parametrize("table", ["", "1st", "a b", "a;b", 'x"y', None])
def test_names_that_are_not_plain_words(tmp_path, table):
    with pytest.raises(DataError, match="table must be a name of letters, digits and underscores"):
        SQLite(tmp_path / "my.db", table, 64)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("n_bits", "n_features", "name"), [(8200, None, "n_bits"), (64, 8193, "n_features")])
def test_columns_longer_than_sqlite_vec_has_them(tmp_path, n_bits, n_features, name):
    with pytest.raises(StorageError, match="[Dd]imension.*8192"):
        SQLite(tmp_path / "my.db", "codes", n_bits, n_features)


def test_files_that_are_no_database(tmp_path):
    (tmp_path / "text.db").write_text("no database, but a text of some length " * 50)
    with pytest.raises(StorageError, match=r"cannot open .*not a database; give the path of an intact SQLite"):
        SQLite(tmp_path / "text.db", "codes", 64)
    with pytest.raises(StorageError, match="cannot open .*check that the folder exists"):
        SQLite(tmp_path / "nowhere" / "my.db", "codes", 64)


def test_a_table_of_another_kind_is_left_alone(tmp_path):
    other = plain(tmp_path / "my.db")
    other.execute("CREATE TABLE codes(name TEXT)")
    other.close()
    with pytest.raises(DataError, match="'codes' of SQLite in .* has another layout, got no vectors"):
        SQLite(tmp_path / "my.db", "codes", 64)
    names = {row[0] for row in plain(tmp_path / "my.db").execute("SELECT name FROM sqlite_master").fetchall()}
    assert names == {"codes"}  # the refusal left nothing behind


@pytest.mark.parametrize("package", ["apsw", "sqlite_vec"])
def test_a_missing_package_is_named(tmp_path, monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=rf"{package}.*autojacobin\[sqlite\]"):
        SQLite(tmp_path / "my.db", "codes", 64)


def test_the_repr_shows_what_it_holds(tmp_path):
    with SQLite(tmp_path / "my.db", "codes", 64, 5) as engine:
        assert repr(engine) == "SQLite(codes of 64 bits with vectors of 5)"
        assert engine.read([]) == Codes(np.empty((0, 8), dtype=np.uint8), 64)


def test_names_are_keys(tmp_path):
    make = partial(SQLite, tmp_path / "my.db", "codes")
    check_names(make)
