"""PostgreSQL keeps the contract, with pgvector and without it, and holds what others can read."""

import json
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Thread

import numpy as np
import psycopg
import pytest

from autojacobin import Codes, DataError
from autojacobin.engines import PgVector, pgvector
from tests.engines.conformance import (
    ConformanceWithVectors,
    Suite,
    VectorConformance,
    assert_same,
    check_names,
    clustered,
    nearest,
    scattered_ids,
)
from tests.waiting import joined, until


def open_engine(location, n_bits, n_features=None):
    return PgVector(n_bits=n_bits, n_features=n_features, **json.loads(location))


class InPostgres(Suite):
    options = {}  # noqa: RUF012

    @pytest.fixture
    def new_location(self, dsn, request):
        numbers = iter(range(10**6))
        name = f"{type(self).__name__}-{request.node.name}"
        return lambda: json.dumps({"dsn": dsn, "table": f"{next(numbers)}-{name}"[:63], **self.options})


class TestPgVector(InPostgres, ConformanceWithVectors):
    pass


class TestPlain(InPostgres, ConformanceWithVectors):
    options = {"plain": True}  # noqa: RUF012
    test_a_new_process_finds_and_changes_what_was_written = None  # opens a table as the one above does


class TestHalfVec(InPostgres, VectorConformance):
    options = {"vector_type": "halfvec"}  # noqa: RUF012
    largest = 6e4


# What PostgreSQL holds is what others read there


def test_bits_stand_in_the_order_of_a_code(dsn):
    codes = clustered(20, 77, 0)
    with PgVector(dsn, "order of bits", 77) as engine:
        engine.write(codes, range(20))
    with psycopg.connect(dsn) as connection:
        rows = connection.execute('SELECT code::text FROM "order of bits" ORDER BY id').fetchall()
    assert rows == [("".join(map(str, bits)),) for bits in codes.to_bits()]


def test_vectors_are_stored_as_they_are(dsn):
    vectors = np.random.default_rng(0).normal(size=(10, 7)) * 10.0 ** np.arange(-3, 4)
    vectors = vectors.astype(np.float32)
    expected = {"vector": vectors, "halfvec": vectors.astype(np.float16)}
    for kind in ("vector", "halfvec", "plain"):
        options = {"plain": True} if kind == "plain" else {"vector_type": kind}
        with PgVector(dsn, f"stored as {kind}", 64, 7, **options) as engine:
            engine.write(clustered(10, 64, 0), range(10), vectors)
        with psycopg.connect(dsn) as connection:
            rows = connection.execute(f'SELECT vector::real[] FROM "stored as {kind}" ORDER BY id').fetchall()
        np.testing.assert_array_equal(np.array(rows, dtype=np.float32)[:, 0], expected.get(kind, vectors))


def test_distances_of_any_vectors_are_euclidean(dsn):
    rng = np.random.default_rng(0)
    vectors, asked = rng.normal(size=(50, 24)), rng.normal(size=(3, 24))
    codes = clustered(50, 64, 0)
    expected = np.sort(np.linalg.norm(asked[:, None] - vectors[None], axis=2), axis=1)[:, :6]
    for number, (options, tolerance) in enumerate(
        [({}, 1e-6), ({"vector_type": "halfvec"}, 1e-3), ({"plain": True}, 1e-6)]
    ):
        with PgVector(dsn, f"any vectors {number}", 64, 24, **options) as engine:
            engine.write(codes, range(50), vectors)
            distances, _ = engine.search_vectors(codes[:3], asked, 6)
        np.testing.assert_allclose(distances, expected, rtol=tolerance)


@pytest.mark.parametrize("overlap", ["none", "some", "all"])
def test_rows_are_added_and_replaced(dsn, overlap):
    first, second = clustered(100, 64, 0), clustered(100, 64, 1)
    ids = np.random.default_rng(0).permutation(100)
    later = ids + {"none": 100, "some": 50, "all": 0}[overlap]
    with PgVector(dsn, f"rows at once, {overlap}", 64) as engine:
        engine.write(first, ids)
        engine.write(second, later)
        kept = ~np.isin(ids, later)
        codes, names = Codes.concatenate([first[kept], second]), np.concatenate([ids[kept], later])
        assert engine.count() == len(names)
        assert_same(engine.search(first[:20], 30), nearest(first[:20], codes, names, 30))


def test_threads_that_share_an_engine_do_not_share_a_transaction(dsn):
    codes = clustered(200, 64, 0)
    with PgVector(dsn, "threads", 64) as engine:
        engine.write(codes, range(200))
        engine.create_index()

        def work(number):
            if number % 2:
                return (engine.search(codes[:3], 5, approximate=True)[0][:, 0] == 0).all()
            engine.write(codes[:3], range(1000 * number, 1000 * number + 3))
            return engine.read(range(1000 * number, 1000 * number + 3)) == codes[:3]

        with ThreadPoolExecutor(6) as pool:
            assert all(pool.map(work, range(1, 31)))
        assert engine.count() == 200 + 15 * 3


def test_two_that_write_the_same_id_at_once(dsn):
    codes = clustered(3, 64, 0)
    with PgVector(dsn, "at once", 64) as engine, psycopg.connect(dsn) as other:
        other.execute('INSERT INTO "at once" VALUES (1, %s::bit(64))', ("1" * 64,))
        writer = Thread(target=engine.write, args=(codes, [0, 1, 2]))
        writer.start()
        until(
            lambda: _waits(dsn, engine._connection.info.backend_pid) or not writer.is_alive(),
            "the writer waits",
            pause=0,
        )
        assert writer.is_alive()
        other.commit()
        joined(writer)
        assert engine.read([0, 1, 2]) == codes


def _waits(dsn, number):
    with psycopg.connect(dsn) as connection:
        query = "SELECT wait_event_type FROM pg_stat_activity WHERE pid = %s"
        return connection.execute(query, (number,)).fetchone() == ("Lock",)


def test_columns_of_ones_own_are_left_alone(dsn):
    codes = clustered(4, 64, 0)
    with PgVector(dsn, "priced", 64) as engine:
        engine.write(codes, range(4))
        with psycopg.connect(dsn) as connection:
            connection.execute("ALTER TABLE priced ADD COLUMN price integer NOT NULL DEFAULT 7")
            connection.execute("UPDATE priced SET price = 9 WHERE id = 1")
        engine.write(codes[::-1], range(4))
        engine.write(codes[:1], [50])
    with PgVector(dsn, "priced", 64) as engine, psycopg.connect(dsn) as connection:
        assert engine.read(range(4)) == codes[::-1]
        prices = connection.execute("SELECT price FROM priced ORDER BY id").fetchall()
    assert prices == [(7,), (9,), (7,), (7,), (7,)]


@pytest.mark.parametrize("table", ['two words; "DROP TABLE"', "Größe", "public.with dot", "{}", "'"])
def test_names_are_quoted(dsn, table):
    codes = clustered(3, 64, 0)
    with PgVector(dsn, table, 64) as engine:
        engine.write(codes, [1, 2, 3])
        engine.write(codes, [3, 2, 1])
        assert engine.read([1]) == codes[2]
        engine.create_index()
        assert engine.search(codes[:1], 1, approximate=True)[1] == [[3]]
        engine.delete([3])
        assert engine.count() == 2


# The approximate index


def test_an_index_is_used_when_asked_for_and_never_otherwise(dsn):
    codes = Codes.from_bits(np.random.default_rng(0).integers(0, 2, (3000, 64)))
    queries, ids = codes[:20], scattered_ids(3000, 1)
    with PgVector(dsn, "with an index", 64) as engine:
        engine.write(codes, ids)
        with pytest.raises(DataError, match="no index for approximate search; call create_index first"):
            engine.search(queries, 5, approximate=True)
        engine.create_index(m=16, ef_construction=100)
        engine.create_index()
        with psycopg.connect(dsn, autocommit=True) as connection:
            made = connection.execute("SELECT count(*) FROM pg_indexes WHERE tablename = 'with an index'").fetchone()
            connection.execute('ANALYZE "with an index"')
        assert made == (2,)
        exact = nearest(queries, codes, ids, 10)
        assert_same(engine.search(queries, 10), exact)
        assert "Index Scan" not in _plan(engine, pgvector._NEAREST, queries)
        assert "Index Scan" in _plan(engine, pgvector._NEAREST_BY_INDEX, queries)
        distances, found = engine.search(queries, 10, approximate=True, ef_search=1000)
        assert distances.dtype == np.int32
        rows = {id: row for row, id in enumerate(ids.tolist())}
        chosen = codes.to_bits()[[[rows[id] for id in line] for line in found.tolist()]]
        np.testing.assert_array_equal(distances, (chosen != queries.to_bits()[:, None]).sum(axis=2))
        assert np.mean(distances <= exact[0][:, -1:]) > 0.9
        assert all(len(set(line)) == 10 for line in found.tolist())
        assert_same(engine.search(queries[:2], 3000, approximate=True), nearest(queries[:2], codes, ids, 3000))
        assert engine.search(queries[:0], 3, approximate=True)[0].shape == (0, 3)


def _plan(engine, statement, queries):
    asked = {"code": pgvector._as_bits(queries)[0], "k": 10}
    return str(engine._execute(f"EXPLAIN {statement}", asked).fetchall())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda engine, codes: engine.search(codes, 1, ef_search=50), "ef_search is for approximate searches, got 50"),
        (lambda engine, codes: engine.search(codes, 1, approximate=True, ef_search=0), "integer from 1 to 1000"),
        (
            lambda engine, codes: [engine.create_index(), engine.search(codes, 9, approximate=True)],
            "k must be an integer from 1 to 2",
        ),
        (lambda engine, codes: engine.create_index(m=1), "m must be an integer from 2 to 100"),
        (
            lambda engine, codes: engine.create_index(m=30, ef_construction=50),
            "ef_construction must be an integer from 60",
        ),
        (lambda engine, codes: engine.create_index(m="many"), "m must be an integer from 2 to 100"),
    ],
)
def test_what_an_index_cannot_do(dsn, call, message):
    with PgVector(dsn, "two codes", 64) as engine:
        engine.write(clustered(2, 64, 0), [1, 2])
        with pytest.raises(DataError) as error:
            call(engine, clustered(2, 64, 0))
    assert message in str(error.value)


def test_without_pgvector_there_is_no_index(dsn):
    with PgVector(dsn, "plain codes", 64, plain=True) as engine, pytest.raises(DataError, match="needs pgvector"):
        engine.create_index()


def test_half_precision_has_its_limits(dsn):
    with PgVector(dsn, "small numbers", 64, 2, vector_type="halfvec") as engine:
        with pytest.raises(DataError, match="up to 65504, got 70000 in row 1"):
            engine.write(clustered(2, 64, 0), [1, 2], [[1.0, 2.0], [3.0, 70000.0]])
        assert engine.count() == 0
        engine.write(clustered(1, 64, 0), [1], [[-65504.0, 0.0]])
        assert engine.search_vectors(clustered(1, 64, 0), [[-65504.0, 1e5]], 1)[0] == 1e5


@pytest.mark.parametrize("plain", [False, True])
def test_names_are_keys(dsn, plain):
    make = partial(PgVector, dsn, f"names {plain}", plain=plain)
    check_names(make)
