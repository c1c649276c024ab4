"""What can go wrong with a PostgreSQL server, a table or an argument is reported in a sentence."""

import sys
import time

import numpy as np
import psycopg
import pytest

from autojacobin import DataError, MissingExtraError, StorageError
from autojacobin.engines import PgVector
from tests.engines.conformance import clustered
from tests.engines.printed import printed


@pytest.fixture
def fresh(dsn):
    """A database of its own, without the extension, and a user with a password and no rights."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE DATABASE fresh")
        connection.execute("CREATE ROLE guest LOGIN PASSWORD 'sesame'")
    yield psycopg.conninfo.make_conninfo(dsn, dbname="fresh")
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("DROP DATABASE fresh WITH (FORCE)")
        connection.execute("DROP ROLE guest")


def test_a_database_without_pgvector(fresh):
    guest = psycopg.conninfo.make_conninfo(fresh, user="guest")
    with pytest.raises(StorageError, match="no pgvector, and it could not be added.*or pass plain=True"):
        PgVector(guest, "codes", 64)
    with pytest.raises(StorageError, match="permission denied for schema public"):
        PgVector(guest, "codes", 64, plain=True)
    with PgVector(fresh, "codes", 64, 3, plain=True) as engine:
        engine.write(clustered(4, 64, 0), range(4), np.eye(4, 3))
        assert engine.search_vectors(clustered(1, 64, 0), np.zeros((1, 3)), 1)[1] == [[3]]
    with psycopg.connect(fresh) as connection:
        assert connection.execute("SELECT 1 FROM pg_extension WHERE extname = 'vector'").fetchone() is None


def test_a_reader_may_only_read(fresh):
    with PgVector(fresh, "codes", 64, plain=True) as engine:
        engine.write(clustered(4, 64, 0), range(4))
    with psycopg.connect(fresh) as connection:
        connection.execute("GRANT SELECT ON codes TO guest")
    with PgVector(psycopg.conninfo.make_conninfo(fresh, user="guest"), "codes", 64, plain=True) as engine:
        assert engine.search(clustered(1, 64, 0), 1)[1] == [[0]]
        for change in (lambda: engine.write(clustered(1, 64, 0), [9]), lambda: engine.delete([1])):
            with pytest.raises(StorageError, match="permission denied for table codes"):
                change()
        assert engine.count() == 4


@pytest.mark.parametrize(
    "dsn",
    [
        "postgresql://me:sesame@127.0.0.1:1/shop",
        "host=/nowhere user=me password=sesame",
        "postgresql://me:sesame@no.such.host.invalid/shop",
        "postgresql://me:open%2Fsesame@127.0.0.1:1/shop",
        "postgresql://me:open?sesame@127.0.0.1:1/shop",
        "postgresql://127.0.0.1:1/shop?user=me&password=sesame",
        "user=me host=127.0.0.1 port=1 password='open sesame'",
        "user=me host=127.0.0.1 port=1 dbname=postgresql://me:sesame@host/x",
    ],
)
def test_no_server_there(dsn):
    with pytest.raises(
        StorageError, match="cannot open the table codes of PostgreSQL at .*check that the server"
    ) as error:
        PgVector(dsn, "codes", 64)
    assert "sesame" not in printed(error.value)


@pytest.mark.parametrize(
    "dsn",
    [
        "postgresql://me:ses@same@host/x",
        "postgresql://me:ses/same@host/x",
        "postgresql://me:12/same@host/x",
        "postgres://me:12/34?same@host/x",
        "postgresql://me:ses/same",
        "password=open sesame host=x",
        "postgresql://me:sesame@[host/x",
        "password='sesame",
        "sesame",
        "password=sesame\0",
        5,
        None,
    ],
)
def test_no_such_address(dsn):
    with pytest.raises(DataError, match="dsn") as error:
        PgVector(dsn, "codes", 64)
    assert "same" not in printed(error.value)


def test_a_wrong_password(dsn, fresh):
    with psycopg.connect(dsn, autocommit=True) as connection:
        rules = connection.execute("SELECT pg_read_file(current_setting('hba_file'))").fetchone()[0]
        path = connection.execute("SELECT current_setting('hba_file')").fetchone()[0]
    try:
        with open(path, "w") as file:
            file.write("local all guest scram-sha-256\n" + rules)
        _reload(dsn)
        wrong = psycopg.conninfo.make_conninfo(fresh, user="guest", password="aladdin")
        with pytest.raises(StorageError, match='password authentication failed for user "guest"') as error:
            PgVector(wrong, "codes", 64)
        assert "aladdin" not in str(error.value)
        right = psycopg.conninfo.make_conninfo(fresh, user="guest", password="sesame")
        with pytest.raises(StorageError, match="permission denied for schema public"):
            PgVector(right, "codes", 64, plain=True)
    finally:
        with open(path, "w") as file:
            file.write(rules)
        _reload(dsn)


def _reload(dsn):
    def loaded():
        with psycopg.connect(dsn) as connection:
            return connection.execute("SELECT pg_conf_load_time()").fetchone()[0]

    before = loaded()
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("SELECT pg_reload_conf()")
    while loaded() == before:  # a new connection shows the settings that the server uses
        time.sleep(0.01)


def test_a_lost_connection(dsn):
    with PgVector(dsn, "lost", 64) as engine:
        engine.write(clustered(4, 64, 0), range(4))
        with psycopg.connect(dsn, autocommit=True) as connection:
            number = engine._connection.info.backend_pid
            connection.execute("SELECT pg_terminate_backend(%s)", (number,))
            while connection.execute("SELECT 1 FROM pg_stat_activity WHERE pid = %s", (number,)).fetchone():
                time.sleep(0.01)
        for _ in range(2):
            with pytest.raises(StorageError, match="the connection is lost: .*open it again"):
                engine.search(clustered(1, 64, 0), 1)
    with PgVector(dsn, "lost", 64) as engine:
        assert engine.count() == 4


def test_a_table_that_is_gone(dsn):
    with PgVector(dsn, "gone", 64) as engine:
        with psycopg.connect(dsn) as connection:
            connection.execute("DROP TABLE gone")
        with pytest.raises(StorageError, match="cannot use the table gone of PostgreSQL at .*: relation "):
            engine.count()


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (
            "id bigint PRIMARY KEY, code bit(32) NOT NULL",
            "got id bigint, code bit(32), expected id bigint, code bit(64)",
        ),
        ("id integer PRIMARY KEY, code bit(64) NOT NULL", "got id integer, code bit(64)"),
        ("name text", "got none of the columns"),
        (
            "id bigint PRIMARY KEY, code bit(64) NOT NULL, vector vector(3) NOT NULL",
            "vector vector(3), expected id big",
        ),
    ],
)
def test_a_table_of_another_layout(dsn, columns, message):
    with psycopg.connect(dsn) as connection:
        connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
        connection.execute("DROP TABLE IF EXISTS foreign_layout")
        connection.execute(f"CREATE TABLE foreign_layout ({columns})")
    with pytest.raises(DataError) as error:
        PgVector(dsn, "foreign_layout", 64)
    assert message in str(error.value)


def test_a_column_that_has_to_be_filled_is_named_and_no_row_is_shown(dsn):
    with PgVector(dsn, "demanding", 64) as engine:
        with psycopg.connect(dsn) as connection:
            connection.execute("ALTER TABLE demanding ADD COLUMN price integer NOT NULL")
        with pytest.raises(StorageError, match='column "price"') as error:
            engine.write(clustered(2, 64, 0), [4711, 4712])
        assert "4711" not in str(error.value)
        assert engine.count() == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"table": "a\ud800"}, "table must be a name"),
        ({"table": ""}, "table must be a name"),
        ({"table": "a.b.c"}, "table must be a name"),
        ({"table": "x" * 64}, "at most 63 bytes"),
        ({"table": "100%"}, "without %"),
        ({"table": "a\0b"}, "table must be a name"),
        ({"table": 5}, "between them, got 5"),
        ({"vector_type": "sparsevec"}, "'vector' or 'halfvec', got 'sparsevec'"),
        ({"n_features": 0}, "n_features must be an integer of at least 1"),
    ],
)
def test_arguments_that_make_no_sense(dsn, arguments, message):
    with pytest.raises(DataError) as error:
        PgVector(dsn, **{"table": "codes", "n_bits": 64, **arguments})
    assert message in str(error.value)


def test_vectors_longer_than_pgvector_has_them(dsn):
    with pytest.raises(StorageError, match="cannot use the table wide of PostgreSQL at .*16000"):
        PgVector(dsn, "wide", 64, 16_001)


def test_a_missing_package_names_its_pip_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'autojacobin\[pgvector\]'"):
        PgVector("", "codes", 64)
