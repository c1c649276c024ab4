"""Milvus: in a file, by milvus-lite, or with AUTOJACOBIN_TEST_MILVUS=http://host:port on that server."""

import logging
import os
import platform
import subprocess
import sys
import uuid

import numpy as np
import pymilvus
import pytest
from milvus_lite.server_manager import server_manager_instance as servers

from autojacobin import Codes, DataError, MissingExtraError
from autojacobin.engines import milvus
from autojacobin.engines.milvus import Milvus
from autojacobin.errors import DataTypeError, StorageError
from tests.engines import conformance
from tests.engines.conformance import (
    Conformance,
    ConformanceWithVectors,
    assert_same,
    clustered,
    nearest,
    whole_vectors,
)
from tests.engines.printed import printed
from tests.waiting import line_from, process

milvus._SECONDS_TO_CONNECT = 24 * 3600.0  # a server takes its time to start on a busy machine
SERVER = os.environ.get("AUTOJACOBIN_TEST_MILVUS")
# Milvus 2.3, which the package ``milvus`` brings, keeps one vector a row and loses the id 2^63 - 1 in every filter
OLD_SERVER = bool(SERVER) and pymilvus.MilvusClient(SERVER).get_server_version().startswith("v2.3")

only_in_a_file = pytest.mark.skipif(bool(SERVER), reason="is about a Milvus in a file")
only_on_a_server = pytest.mark.skipif(not SERVER, reason="needs a server: set AUTOJACOBIN_TEST_MILVUS to its address")


def open_engine(location, n_bits, n_features=None, **options):
    uri, _, collection = location.rpartition("#")
    return Milvus(uri, collection, n_bits, n_features, **options)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A server that stays for all tests: to start one for each would take most of the time."""
    uri = SERVER or str(tmp_path_factory.mktemp("milvus") / "codes.db")
    keeper = Milvus(uri, f"keeper_{uuid.uuid4().hex}", 8)
    names = [keeper.collection]
    yield uri, names
    if SERVER:
        client = pymilvus.MilvusClient(SERVER)
        for name in names:
            client.drop_collection(name)
    keeper.close()


@pytest.fixture
def new_location(home, request, tmp_path):
    uri, names = home
    if not SERVER and "new_process" in request.node.name:
        uri = str(tmp_path / "own.db")  # a file belongs to one process at a time

    def give():
        names.append(f"c_{uuid.uuid4().hex}")
        return f"{uri}#{names[-1]}"

    return give


class TestMilvus(Conformance if OLD_SERVER else ConformanceWithVectors):
    counts_opposites = platform.machine() not in ("aarch64", "arm64")

    @pytest.fixture
    def new_location(self, new_location, monkeypatch):
        if OLD_SERVER:
            monkeypatch.setattr(conformance, "LARGEST_ID", 2**63 - 2)
        return new_location


# More than one answer or request holds


def test_more_neighbours_than_milvus_gives_are_refused(new_location, monkeypatch):
    monkeypatch.setattr(Milvus, "_most_hits", 5)
    codes = clustered(60, 16, 0)
    with open_engine(new_location(), 16) as engine:
        engine.write(codes, range(60))
        assert_same(engine.search(codes[:3], 5), nearest(codes[:3], codes, np.arange(60), 5))
        with pytest.raises(DataError, match="Milvus finds at most 5 neighbours, got k or candidates of 6"):
            engine.search(codes[:3], 6)


def test_small_requests_add_up_to_the_same(new_location, monkeypatch):
    for name, most in (("_BYTES_PER_REQUEST", 100), ("_IDS_PER_REQUEST", 7), ("_HITS_PER_REQUEST", 50)):
        monkeypatch.setattr(milvus, name, most)
    codes, ids = clustered(40, 64, 0), np.arange(40, dtype=np.int64)[::-1].copy()
    with open_engine(new_location(), 64) as engine:
        engine.write(codes, ids)
        assert engine.count() == 40
        assert engine.read(ids) == codes
        assert_same(engine.search(codes[:9], 10), nearest(codes[:9], codes, ids, 10))
        engine.delete(ids[:30])
        assert_same(engine.search(codes[:9], 10), nearest(codes[:9], codes[30:], ids[30:], 10))


# What others see in the collection


def test_other_clients_read_the_bits_as_documented(new_location):
    codes = clustered(5, 20, 0)
    location = new_location()
    uri, _, name = location.rpartition("#")
    with open_engine(location, 20) as engine:
        engine.write(codes, range(5))
        client = pymilvus.MilvusClient(uri)
        rows = client.query(name, filter="id >= 0", output_fields=["id", "code"], consistency_level="Strong")
        client.close()
    rows = sorted(rows, key=lambda row: row["id"])
    bits = [np.unpackbits(np.frombuffer(row["code"][0], np.uint8), bitorder="little") for row in rows]
    np.testing.assert_array_equal(np.array(bits)[:, :20], codes.to_bits())
    assert not np.array(bits)[:, 20:].any()


@pytest.mark.parametrize(
    ("field", "index"), [("words", ("BIN_FLAT", "HAMMING")), ("code", ("BIN_FLAT", "JACCARD"))], ids=["field", "metric"]
)
def test_a_foreign_collection_is_refused_and_left_alone(new_location, field, index):
    location = new_location()
    uri, _, name = location.rpartition("#")
    client = pymilvus.MilvusClient(uri)
    schema = client.create_schema(auto_id=False)
    schema.add_field("id", pymilvus.DataType.INT64, is_primary=True)
    schema.add_field(field, pymilvus.DataType.BINARY_VECTOR, dim=64)
    indexes = client.prepare_index_params()
    indexes.add_index(field, index_type=index[0], metric_type=index[1])
    client.create_collection(name, schema=schema, index_params=indexes)
    with pytest.raises(DataError, match="has another (layout|index on its codes), got"):
        open_engine(location, 64)
    assert [entry["name"] for entry in client.describe_collection(name)["fields"]] == ["id", field]
    client.close()


def test_a_length_that_shares_its_bytes_with_another_is_distinguished(new_location):
    location = new_location()
    open_engine(location, 61).close()
    with pytest.raises(DataError, match="for codes of 61 bits in .*, expected .* for codes of 64 bits"):
        open_engine(location, 64)
    with open_engine(location, 61) as engine:
        assert engine.n_bits == 61


@pytest.mark.skipif(OLD_SERVER, reason="keeps one vector a row")
def test_vectors_of_another_width_are_distinguished(new_location):
    location = new_location()
    with open_engine(location, 64, 5) as engine:
        engine.write(clustered(2, 64, 0), [1, 2], whole_vectors(2, 0))
    for width in (None, 4):
        with pytest.raises(DataError, match="vector FLOAT_VECTOR\\(5\\)"):
            open_engine(location, 64, width)


def test_a_collection_that_vanishes_is_reported_without_a_traceback_beside_it(new_location):
    location = new_location()
    uri, _, name = location.rpartition("#")
    seen = []
    handler = logging.Handler()
    handler.emit = seen.append
    with open_engine(location, 64) as engine:
        engine.write(clustered(2, 64, 0), [1, 2])
        client = pymilvus.MilvusClient(uri)
        client.drop_collection(name)
        client.close()
        logging.getLogger("pymilvus").addHandler(handler)
        try:
            with pytest.raises(StorageError, match="cannot query the collection .* of Milvus at .*: "):
                engine.count()
        finally:
            logging.getLogger("pymilvus").removeHandler(handler)
    assert seen == []


# The server of a file


@only_in_a_file
def test_a_server_lives_as_long_as_its_holders(tmp_path):
    path = str(tmp_path / "codes.db")
    first, second = Milvus(path, "a", 64), Milvus(tmp_path / "codes.db", "b", 64)
    process = servers._servers[path]._p
    first.write(clustered(3, 64, 0), [1, 2, 3])
    first.close()
    assert second.count() == 0
    second.close()
    assert process.returncode is not None
    assert path not in servers._servers
    with Milvus(path, "a", 64) as again:
        assert again.read([1, 2, 3]) == clustered(3, 64, 0)


@only_in_a_file
def test_a_server_that_another_client_started_is_left_running(tmp_path):
    path = str(tmp_path / "codes.db")
    client = pymilvus.MilvusClient(path)
    Milvus(path, "codes", 64).close()
    assert client.list_collections() == ["codes"]
    client.close()
    servers.release_server(path)


@only_in_a_file
def test_a_file_that_another_process_holds_is_refused(tmp_path):
    program = (
        "import fcntl, sys\n"
        "lock = open(sys.argv[1], 'a')\n"
        "fcntl.lockf(lock, fcntl.LOCK_EX)\n"
        "print('locked', flush=True)\n"
        "sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path / ".codes.db.lock")]
    with process(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert line_from(other.stdout, "the file is locked").strip() == b"locked"
        with pytest.raises(StorageError, match="another process has the file open, or it is damaged"):
            Milvus(tmp_path / "codes.db", "codes", 64)
        other.stdin.close()
    with Milvus(tmp_path / "codes.db", "codes", 64) as engine:
        assert engine.count() == 0


@only_in_a_file
def test_a_file_that_is_none_of_milvus_is_refused_and_left_alone(tmp_path, capfd):
    path = tmp_path / "codes.db"
    path.write_bytes(b"something else" * 1000)
    with pytest.raises(StorageError, match="or it is damaged or not one of Milvus"):
        Milvus(path, "codes", 64)
    assert path.read_bytes() == b"something else" * 1000
    assert "file is not a database" in capfd.readouterr().err  # said by the server itself, which we cannot keep quiet


@only_in_a_file
def test_a_server_that_dies_is_reported(tmp_path):
    engine = Milvus(tmp_path / "codes.db", "codes", 64)
    engine.write(clustered(3, 64, 0), [1, 2, 3])
    servers._servers[str(tmp_path / "codes.db")]._p.kill()
    with pytest.raises(StorageError, match="check that the server runs"):
        engine.count()
    engine.close()
    with Milvus(tmp_path / "codes.db", "codes", 64) as again:
        assert again.count() == 3


# Bad arguments


@pytest.mark.parametrize(
    ("uri", "error", "message"),
    [
        (5, DataTypeError, "uri must be a path or text, got int"),
        (b"codes.db", DataTypeError, "got bytes"),
        ("codes", DataError, "that ends in .db, got 'codes'"),
        ("co des.db", DataError, "that ends in .db, got 'co des.db'"),
        ("no/such/folder/codes.db", StorageError, "the folder .* does not exist; make it first"),
        ("http://[::1", DataError, "uri is not an address"),
        ("http://localhost:seven", DataError, "uri is not an address"),
        ("http://me:sec/secret@host:seven", DataError, r"uri is not an address, got 'http://\*\*\*'"),
        ("http://me:secret/x@host:19530", DataError, r"uri is not an address, got 'http://host:19530'"),
        ("me:secret@host:19530", DataError, r"that ends in .db, got '\*\*\*'"),
        ("http://me:secret@127.0.0.1:9", StorageError, r"Milvus at http://127.0.0.1:9: .*server runs"),
        ("http://127.0.0.1:9?token=secret", StorageError, r"of Milvus at http://127.0.0.1:9: "),
    ],
)
def test_addresses_that_lead_nowhere_are_named_without_their_password(uri, error, message, monkeypatch):
    monkeypatch.setattr(milvus, "_SECONDS_TO_CONNECT", 1.0)
    with pytest.raises(error, match=message) as caught:
        Milvus(uri, "codes", 64, token="a:secret")
    assert "secret" not in printed(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"collection": "two words"}, "collection must be a name of .* got 'two words'"),
        ({"collection": "1st"}, "the first not a digit, got '1st'"),
        ({"collection": None}, "got None"),
        ({"index": "HNSW"}, "index must be 'BIN_FLAT' or 'BIN_IVF_FLAT', got 'HNSW'"),
        ({"token": b"me:sesame"}, "token must be text such as user:password, got bytes"),
    ],
)
def test_arguments_that_make_no_sense(home, options, message):
    with pytest.raises(DataError, match=message) as caught:
        Milvus(**{"uri": home[0], "collection": "codes", "n_bits": 64, **options})
    assert "sesame" not in str(caught.value)


@only_in_a_file
def test_a_file_has_one_kind_of_index(home):
    with pytest.raises(DataError, match="has the index BIN_FLAT alone"):
        Milvus(home[0], "codes", 64, index="BIN_IVF_FLAT")


def test_codes_too_long_for_milvus_leave_no_collection_behind(new_location):
    location = new_location()
    with pytest.raises(StorageError, match="dimension"):
        open_engine(location, 10_000_000)
    with open_engine(location, 64) as engine:
        assert engine.count() == 0


@pytest.mark.parametrize(("missing", "extra"), [("pymilvus", "milvus"), ("milvus_lite.server_manager", "milvus-lite")])
def test_a_missing_package_is_named(tmp_path, monkeypatch, missing, extra):
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(MissingExtraError, match=f"autojacobin\\[{extra}\\]"):
        Milvus(tmp_path / "codes.db", "codes", 64)


# The inverted file


def test_an_approximate_search_of_a_flat_index_is_exact_but_for_ties(new_location):
    codes, ids = clustered(200, 64, 0), np.arange(200, dtype=np.int64)
    with open_engine(new_location(), 64) as engine:
        engine.write(codes, ids)
        distances, found = engine.search(codes[:6], 9, approximate=True)
        np.testing.assert_array_equal(distances, nearest(codes[:6], codes, ids, 9)[0])
        apart = (codes[:6].to_bits()[:, None, :] != codes.to_bits()[found]).sum(axis=2)
        np.testing.assert_array_equal(apart, distances)
        assert engine.search(codes[:0], 9, approximate=True)[1].shape == (0, 9)
        with pytest.raises(DataError, match="probes must be an integer of at least 1, got 0"):
            engine.search(codes, 3, approximate=True, probes=0)


@only_on_a_server
def test_an_inverted_file_is_exact_when_all_its_lists_are_looked_into(new_location):
    location = new_location()
    rng = np.random.default_rng(0)
    codes, ids = Codes(rng.integers(0, 256, (5000, 16), dtype=np.uint8), 128), rng.permutation(5000).astype(np.int64)
    with open_engine(location, 128, index="BIN_IVF_FLAT") as engine:
        assert engine.index == "BIN_IVF_FLAT"
        engine.write(codes, ids)
        engine._call("flush")  # growing data are searched one by one; sealed ones by the index
        assert_same(engine.search(codes[:20], 10), nearest(codes[:20], codes, ids, 10))
        distances, found = engine.search(codes[:20], 10, approximate=True, probes=1)
        assert (np.diff(distances, axis=1) >= 0).all()
        np.testing.assert_array_equal(found[:, 0], ids[:20])
    with pytest.raises(DataError, match="got BIN_IVF_FLAT with HAMMING, expected BIN_FLAT with HAMMING"):
        open_engine(location, 128, index="BIN_FLAT")
    with open_engine(location, 128) as engine:
        assert engine.index == "BIN_IVF_FLAT"
