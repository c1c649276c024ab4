"""Writing over HTTP: guarded by a token of its own, on the disk before the answer, and searched at once."""

import json
import subprocess
import sys
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from typer.testing import CliRunner

from autojacobin import LSH, Index
from autojacobin.cli import app
from autojacobin.errors import DataError
from autojacobin.service import Access, Client, Limits, ServiceError, serving
from autojacobin.service.calls import Call
from tests.service.conftest import WIDTH
from tests.service.service_process import asked, eventually
from tests.service.test_openapi import CHECKS
from tests.waiting import SECONDS, line_from, process


def _nested(depth):
    return {"a": _nested(depth - 1)} if depth else 1


TOKEN, WRITE_TOKEN = "a-token-for-reading", "a-token-for-writing"
PATIENT = Limits(vectors=64, body_bytes=2**16, request_seconds=600)  # the first search may wait for the compiler


@pytest.fixture
def path(points, tmp_path):
    with Index.create(tmp_path / "points", LSH(20, random_state=0).fit(points)) as index:
        index.add(points[:100])
    return tmp_path / "points"


@pytest.fixture
def address(path):
    with serving({"points": path}, access=Access(TOKEN, write_token=WRITE_TOKEN), limits=PATIENT) as found:
        yield found


@pytest.fixture
def client(address):
    with Client(address, token=WRITE_TOKEN, timeout=600) as connected:
        yield connected


@pytest.fixture
def empty(points, tmp_path):
    """Address of a service of an empty index."""
    Index.create(tmp_path / "empty", LSH(20, random_state=0).fit(points)).close()
    with serving({"empty": tmp_path / "empty"}, access=Access(write_token=WRITE_TOKEN), limits=PATIENT) as found:
        yield found


def test_what_is_added_is_found_at_once_and_on_the_disk(client, path, points):
    assert client.add(points[100:103], index="points")["added"] == 3
    assert client.search(points[102:103], 1, index="points")[1].tolist() == [[102]]
    outcome = client.upsert(points[200:201], ids=[7], index="points")
    assert (outcome["vectors"], outcome["upserted"]) == (103, 1)
    assert client.search(points[200:201], 1)[1].tolist() == [[7]]
    removed = client.remove([3, 3, 102], index="points")
    assert (removed["removed"], removed["vectors"]) == (2, 101)
    assert 102 not in client.search(points[102:103], 50)[1]
    with Index.open(path) as index:
        assert index.info()["generation"] == removed["generation"] == client.indexes()[0]["generation"]
        np.testing.assert_array_equal(index.vectors([7]), points[200:201])
        index.verify()


def test_names_and_payload_are_written_to_an_empty_index(empty, points):
    with Client(empty, token=WRITE_TOKEN, timeout=600) as client:
        client.add(points[:2], ["a", "b"], [{"price": 1}, {"price": 2, "lang": "de"}], index="empty")
        client.add(points[2:3], ["c"], {"price": [3]}, index="empty")
        client.upsert(points[1:2], ["b"], {"price": [2]}, index="empty")  # keeps its lang
        _, ids, payload = client.search(points[:3], 1, columns=["price", "lang"])
        assert ids.ravel().tolist() == ["a", "b", "c"]
        rows = [{"price": 1, "lang": None}, {"price": 2, "lang": "de"}, {"price": 3, "lang": None}]
        assert payload == [[row] for row in rows]
        client.remove("b", index="empty")
        assert client.search(points[:3], 1, where="price >= 2")[1].ravel().tolist() == ["c"] * 3
        assert client.indexes()[0]["ids"] == "string"


def test_an_id_that_exists_is_replaced_only_by_put(empty, points):
    with Client(empty, token=WRITE_TOKEN, timeout=600) as client:
        client.add(points[:2], ["a", "b"], index="empty")
        with pytest.raises(ServiceError, match="got 'b', which is in the index already") as caught:
            client.add(points[2:4], ["c", "b"], index="empty")
        assert (caught.value.status, caught.value.kind) == (409, "id-exists")
        assert client.search(points[2:3], 2, recall=1)[1].tolist() in ([["a", "b"]], [["b", "a"]])
        assert client.upsert(points[2:4], ["c", "b"], index="empty")["vectors"] == 3
        assert client.search(points[2:4], 1)[1].ravel().tolist() == ["c", "b"]
        with pytest.raises(ServiceError, match="the field 'ids' is required, got none"):
            client.upsert(points[:1], index="empty")


def test_vectors_without_ids_are_told_which_they_got(empty, points):
    with Client(empty, token=WRITE_TOKEN, timeout=600) as client:
        assert client.add(points[:3], index="empty")["ids"] == [0, 1, 2]
        assert "ids" not in client.add(points[3:4], ids=[40], index="empty")
        assert client.add(points[4:6], index="empty")["ids"] == [41, 42]
        assert client.search(points[4:6], 1)[1].tolist() == [[41], [42]]


def test_an_index_of_uuids_is_begun_and_extended(empty, points):
    ids = [uuid.UUID(int=number) for number in range(6)]
    with Client(empty, token=WRITE_TOKEN, timeout=600) as client:
        client.add(points[:2], ids[:2], index="empty")
        client.add(points[2:4], [str(id) for id in ids[2:4]], index="empty")  # the index knows that these are UUIDs
        assert client.indexes()[0]["ids"] == "uuid"
        assert client.search(points[:4], 1)[1].ravel().tolist() == [str(id) for id in ids[:4]]
        with pytest.raises(ServiceError, match="ids must be UUIDs"):
            client.add(points[4:5], ["a name"], index="empty")
        with pytest.raises(ServiceError, match="all ids of an index are of one kind"):
            client.add(points[4:5], index="empty")
        client.remove(ids[:1], index="empty")
        assert client.indexes()[0]["vectors"] == 3


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"id_kind": "uuid"}, "id_kind is the kind of the ids, got no ids"),
        ({"ids": ["x"], "id_kind": "name"}, "id_kind is not accepted: invalid enum value 'name'"),
        ({"ids": ["x"], "id_kind": "uuid"}, "ids must be UUIDs"),
        ({"ids": ["x"], "id_kind": "integer"}, "ids must be of the kind integer, got 'x'"),
        ({"ids": [3], "id_kind": "string"}, "ids must be of the kind string, got '3'"),
    ],
)
def test_a_kind_of_ids_must_be_that_of_the_ids(empty, points, fields, words):
    body = json.dumps({"vectors": points[:1].tolist(), **fields}).encode()
    headers = {"Content-Type": "application/json"}
    call = Call("POST", "/v1/empty/vectors", lambda content, _: content, body, headers)
    with Client(empty, token=WRITE_TOKEN, timeout=600) as client:
        with pytest.raises(ServiceError, match=words):
            client._send(call)
        assert client.indexes()[0]["vectors"] == 0


def test_another_kind_of_ids_is_refused(client, points):
    body = json.dumps({"vectors": points[:1].tolist(), "ids": ["x"], "id_kind": "string"}).encode()
    headers = {"Content-Type": "application/json"}
    with pytest.raises(
        ServiceError, match="all ids of an index are of one kind.*here integer, got ids of the kind string"
    ):
        client._send(Call("POST", "/v1/points/vectors", lambda content, _: content, body, headers))


def test_a_search_after_a_write_sees_it_while_others_search(client, address, points):
    stop = threading.Event()

    def keep_searching():
        with Client(address, token=TOKEN, timeout=600) as other:
            while not stop.is_set():
                assert other.search(points[:4], 1)[1].shape == (4, 1)

    with ThreadPoolExecutor(1) as pool:
        searching = pool.submit(keep_searching)
        try:
            for number in range(100, 120):
                client.add(points[number : number + 1], index="points")
                assert client.search(points[number : number + 1], 1)[1].tolist() == [[number]]
        finally:
            stop.set()
        searching.result(SECONDS)


def test_writing_needs_its_own_token(address, points):
    for token in (None, TOKEN, "a-token-of-somebody-else"):
        with Client(address, token=token) as client:
            with pytest.raises(ServiceError) as caught:
                client.add(points[:1], index="points")
            assert (caught.value.status, caught.value.kind) == (401, "unauthorized")
            with pytest.raises(ServiceError) as caught:
                client.remove([0], index="points")
            assert caught.value.status == 401
    with Client(address, token=WRITE_TOKEN) as client:
        assert client.indexes()[0]["vectors"] == 100  # which also reads
    assert TOKEN not in repr(Access(TOKEN, write_token=WRITE_TOKEN))
    assert WRITE_TOKEN not in repr(Access(TOKEN, write_token=WRITE_TOKEN))


def test_a_password_of_a_browser_does_not_write(address):
    import base64
    import http.client

    password = base64.b64encode(f"anybody:{WRITE_TOKEN}".encode()).decode()
    connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=120)
    headers = {"Authorization": f"Basic {password}", "Content-Type": "application/json"}
    connection.request("DELETE", "/v1/points/vectors", b'{"ids": [0]}', headers)
    assert connection.getresponse().status == 401
    connection.close()


def test_a_service_only_reads_by_default(index, service, points):
    with serving({"points": index}, access=Access(TOKEN)) as address, Client(address, token=TOKEN) as client:
        with pytest.raises(ServiceError, match="this service is read-only.*--writable") as caught:
            client.add(points[:1], index="points")
        assert (caught.value.status, caught.value.kind) == (403, "read-only")
    assert "/v1/{index}/vectors" not in json.loads(service.ask("GET", "/openapi.json")[2])["paths"]


def test_tokens_must_differ():
    with pytest.raises(DataError, match="the token for writing must differ"):
        Access(TOKEN, write_token=TOKEN)
    with pytest.raises(DataError, match="a token must be 16 or more"):
        Access(write_token="short")


def test_an_index_that_another_process_writes_to_is_locked(client, path, points):
    program = (
        "import sys; from autojacobin import Index; index = Index.open(sys.argv[1]); index.remove([0]); "
        "print('locked', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", program, str(path)]
    with process(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert line_from(other.stdout, "the index is locked") == "locked\n"
        with pytest.raises(ServiceError, match="another process is writing to points") as caught:
            client.add(points[:1], index="points")
        assert (caught.value.status, caught.value.kind) == (423, "locked")
        assert str(path) not in str(caught.value)
        assert eventually(lambda: client.indexes()[0]["vectors"] == 99)  # a refused write hides no version
        other.stdin.close()
    assert client.add(points[:1], index="points")["vectors"] == 100  # with what the other one did


def test_others_write_between_the_writes_of_the_service(client, path, points):
    client.add(points[100:101], index="points")
    with Index.open(path) as other:
        other.add(points[101:102])
    assert client.add(points[102:103], index="points")["vectors"] == 103
    with Index.open(path) as other:
        other.compact()
    assert client.remove([102], index="points")["vectors"] == 102
    assert client.search(points[101:102], 1)[1].tolist() == [[101]]


def test_an_index_in_memory_is_written_to_as_well(points):
    index = Index(LSH(20, random_state=0).fit(points))
    with (
        serving({"points": index}, access=Access(write_token=WRITE_TOKEN), limits=PATIENT) as address,
        Client(address, token=WRITE_TOKEN) as client,
    ):
        assert client.add(points[:5], index="points")["generation"] is None
    assert len(index) == 5


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({}, 400, "a request must have one of vectors, codes, got none"),
        (
            {"vector": [0.0] * WIDTH},
            400,
            "there is no field 'vector', expected vectors, codes, bitorder, ids",
        ),
        ({"vectors": [[0.0]]}, 400, "vectors[0] must be a list of 8 numbers"),
        ({"vectors": [[0.0] * WIDTH] * 65}, 400, "vectors must be a list of length <= 64"),
        ({"vectors": [[0.0] * WIDTH], "ids": [1001, 1002]}, 400, "got 2 ids for 1 vectors"),
        ({"vectors": [[0.0] * WIDTH] * 2, "ids": [1, 1]}, 400, "ids must be unique, got 1 more than once"),
        ({"vectors": [[0.0] * WIDTH], "ids": ["a"]}, 400, "ids must be of the kind integer, got 'a'"),
        ({"vectors": [[0.0] * WIDTH], "payload": [1]}, 400, "payload[0] must be an object, got an integer"),
        ({"vectors": [[0.0] * WIDTH], "payload": {"a": 3}}, 400, "must be a list, got an integer"),
        ({"vectors": [[0.0] * WIDTH], "payload": [{}, {}]}, 400, "got 2 rows"),
        ({"vectors": [[0.0] * WIDTH] * 2, "payload": {"a": [1, "b"]}}, 400, "the payload cannot be made a table"),
        ({"vectors": [[0.0] * WIDTH], "payload": {"a": [2**70]}}, 400, "too large"),
        ({"vectors": [[0.0] * WIDTH], "payload": {"a": [_nested(40)]}}, 400, "payload may have 32 lists and objects"),
        ({"vectors": [[0.0] * WIDTH, [1e17] * WIDTH]}, 400, "has 1e+17 in row 1, column 0, expected numbers of up to"),
    ],
)
def test_wrong_writes_are_refused_and_change_nothing(client, body, status, words):
    with pytest.raises(ServiceError) as caught:
        _post(client, "/v1/points/vectors", body)
    assert words in str(caught.value)
    assert caught.value.status == status
    assert client.indexes()[0]["vectors"] == 100


def test_removals_that_cannot_be_are_refused(client):
    with pytest.raises(ServiceError, match="got 500, which is not; leave it out") as caught:
        client.remove([0, 500], index="points")
    assert (caught.value.status, caught.value.kind) == (404, "unknown-id")
    with pytest.raises(ServiceError, match="there is no index 'others'") as caught:
        client.remove([0], index="others")
    assert caught.value.status == 404
    assert client.indexes()[0]["vectors"] == 100


def test_limits_hold_for_writes(client):
    with pytest.raises(ServiceError) as caught:
        _post(client, "/v1/points/vectors", {"vectors": [[0.123456789] * WIDTH] * 1000})
    assert caught.value.status == 413
    with pytest.raises(ServiceError) as caught:
        _post(client, "/v1/points/vectors", b"", "application/octet-stream")
    assert caught.value.status == 415


def test_writes_are_counted(client, points):
    client.add(points[:4], ids=[1000, 1001, 1002, 1003], index="points")
    client.add(points[:2], index="points")
    client.upsert(points[:3], ids=[1, 2, 3], index="points")
    client.remove([0], index="points")
    text = asked(client, "/metrics").decode()
    assert 'autojacobin_writes_total{change="add",index="points"} 2.0' in text
    assert 'autojacobin_written_vectors_total{change="add",index="points"} 6.0' in text
    assert 'autojacobin_writes_total{change="remove",index="points"} 1.0' in text
    assert 'autojacobin_requests_total{endpoint="/v1/{index}/vectors",status="200"} 4.0' in text
    assert 'autojacobin_written_vectors_total{change="upsert",index="points"} 3.0' in text


def test_the_command_writes_with_a_token_from_a_file(start, path, tmp_path, points):
    (tmp_path / "token").write_text(WRITE_TOKEN)
    running = start(path, "--port", 0, "--writable", "--write-token-file", tmp_path / "token")
    with Client(running.address, token=WRITE_TOKEN, timeout=600) as client:
        assert client.add(points[:1], index="points")["vectors"] == 101
    code, log = running.stop()
    assert code == 0
    assert WRITE_TOKEN not in log
    with Index.open(path) as index:
        assert len(index) == 101


def test_the_command_refuses_half_of_the_options(path, tmp_path, monkeypatch):
    monkeypatch.delenv("AUTOJACOBIN_WRITE_TOKEN", raising=False)
    result = CliRunner().invoke(app, ["serve", str(path), "--writable"])
    assert "a writable service needs a token for writing" in str(result.exception)
    (tmp_path / "token").write_text(WRITE_TOKEN)
    result = CliRunner().invoke(app, ["serve", str(path), "--write-token-file", str(tmp_path / "token")])
    assert result.exit_code == 2
    assert "add --writable" in " ".join(result.output.replace("│", " ").split())


@pytest.fixture(scope="module")
def documented(points, tmp_path_factory):
    """The document of a writable service, whose index anything may be written to."""
    home = tmp_path_factory.mktemp("writable")
    with Index.create(home / "points", LSH(20, random_state=0).fit(points)) as index:
        index.add(points[:100])
    with serving({"points": home / "points"}, access=Access(write_token=WRITE_TOKEN), limits=PATIENT) as address:
        with Client(address) as client:
            assert eventually(lambda: client.indexes())
        yield schemathesis.openapi.from_url(f"{address}/openapi.json")


@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
@settings(max_examples=20, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_answers_to_writes_are_as_the_document_says(documented, method, mode, data):
    case = data.draw(documented["/v1/{index}/vectors"][method].as_strategy(generation_mode=mode))
    case.call_and_validate(checks=CHECKS, headers={"Authorization": f"Bearer {WRITE_TOKEN}"})


def _post(client, path, body, media="application/json"):
    from autojacobin.service.calls import Call

    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return client._send(Call("POST", path, lambda answer, _: json.loads(answer), content, {"Content-Type": media}))
