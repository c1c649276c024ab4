"""Nothing that comes in brings the service down: it is told what was wrong, in a sentence, and the next is answered."""

import json
import socket
import struct
import time
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from autojacobin.service import Client, ServiceError
from tests.service.conftest import WIDTH

JSON = {"Content-Type": "application/json"}
RAW = {"Content-Type": "application/octet-stream"}
SHAPE = "Autojacobin-Shape"
GOOD = {"index": "points", "vectors": [[0.5] * WIDTH], "k": 2}


def refused(answer, status, words):
    got, headers, body = answer
    problem = json.loads(body)
    assert (got, headers["Content-Type"]) == (status, "application/problem+json"), problem
    assert problem["status"] == status
    assert problem["type"].startswith("urn:autojacobin:problem:")
    assert words in problem["detail"]
    assert "Traceback" not in problem["detail"]


@pytest.mark.parametrize(
    ("change", "status", "words"),
    [
        ({"k": 0}, 400, "k must be an integer >= 1"),
        ({"k": 51}, 400, "k must be an integer <= 50"),
        ({"k": True}, 400, "k must be an integer, got a boolean"),
        ({"k": "3"}, 400, "k must be an integer, got text"),
        ({"k": 2.5}, 400, "k must be an integer, got a number"),
        ({"k": 10**400}, 400, "k must be an integer <= 50"),
        ({"candidates": 1}, 400, "candidates must be at least k = 2, got 1"),
        ({"candidates": 501}, 400, "candidates must be an integer <= 500"),
        ({"candidates": 5, "rerank": False}, 400, "candidates are for re-ranking"),
        ({"rerank": "no"}, 400, "rerank must be a boolean, got text"),
        ({"distance": "cosine"}, 400, "distance must be 'asymmetric' or 'hamming', got 'cosine'"),
        ({"distance": ["hamming"]}, 400, "distance must be text, got a list"),
        ({"index": "../../etc"}, 404, "there is no index '../../etc', expected one of points, bare"),
        ({"index": 3}, 400, "index must be text, got an integer"),
        ({"index": None}, 400, "index must be named where several are served"),
        ({"vectors": []}, 400, "vectors must be a list of length >= 1"),
        ({"vectors": [[1.0]]}, 400, "vectors[0] must be a list of 8 numbers, got a list of 1"),
        ({"vectors": [[0.0] * 7 + ["x"]]}, 400, "vectors[0][7] must be a number, got text"),
        ({"vectors": [[0.0] * 7 + [True]]}, 400, "vectors[0][7] must be a number, got a boolean"),
        ({"vectors": [[0.0] * 7 + [None]]}, 400, "vectors[0][7] must be a number, got null"),
        ({"vectors": [[0.0] * 7 + [1e300]]}, 400, "vectors contains inf in row 0, column 7"),
        ({"vectors": [[0.0] * 7 + [10**400]]}, 400, "vectors[0][7] is not accepted: number out of range"),
        (
            {"vectors": [[0.0] * 7 + [3e38]]},
            400,
            "queries has 3e+38 in row 0, column 7, expected numbers of up to 1e+15",
        ),
        ({"vectors": 5}, 400, "vectors must be a list, got an integer"),
        ({"vectors": [[0.0] * 8] * 65}, 400, "vectors must be a list of length <= 64"),
        ({"vectors": [[0.0] * 8] * 60, "candidates": 500}, 400, "may be 20000, got 30000"),
        ({"recall": 1.5}, 400, "recall must be a number <= 1"),
        ({"recall": 0.9995}, 400, "recall must be a number above 0 and at most 0.999"),
        ({"recall": 0.9, "candidates": 20}, 400, "recall chooses how many candidates to re-rank"),
        ({"recall": 0.9, "index": "bare", "vectors": [[0.0] * 5]}, 400, "keeps no vectors"),
        ({"id": 3}, 400, "must have one of vectors, codes, id, ids, got vectors and id"),
        ({"K": 3}, 400, "there is no field 'K'"),
    ],
)
def test_wrong_fields_are_named(service, change, status, words):
    body = json.dumps(GOOD | change).encode()
    refused(service.ask("POST", "/v1/search", body, JSON), status, words)


@pytest.mark.parametrize(
    ("document", "status", "words"),
    [
        ({"id": 1}, 404, "got 1, which is not"),
        ({"ids": [0, 3, 4]}, 404, "got 4, which is not"),
        ({"id": -1}, 400, "id must be an integer >= 0"),
        ({"id": 2**63}, 400, "id must be an integer <= 9223372036854775807"),
        ({"ids": []}, 400, "ids must be a list of length >= 1"),
        ({"ids": ["a"]}, 400, "ids must be of the kind integer, got 'a'"),
        ({"ids": "all"}, 400, "ids must be a list, got text"),
        ({"index": "bare", "id": 1, "rerank": False}, 400, "keeps no vectors"),
        ({"index": "bare", "vectors": [[0.0] * 5], "rerank": True}, 400, "pass rerank=False"),
        ({"k": 3}, 400, "got none"),
        ({"vector": [0.0] * 8}, 400, "there is no field 'vector'"),
    ],
)
def test_wrong_ids_are_named(service, document, status, words):
    body = json.dumps({"index": "points"} | document).encode()
    refused(service.ask("POST", "/v1/search", body, JSON), status, words)


@pytest.mark.parametrize(
    ("body", "headers", "status", "words"),
    [
        (b"", JSON, 400, "must be a JSON object"),
        (b"[]", JSON, 400, "the body must be an object, got a list"),
        (b'{"k": 3', JSON, 400, "must be a JSON object"),
        (b'{"vectors": [[NaN]]}', JSON, 400, "must be a JSON object"),
        (b'{"vectors": [[-Infinity]]}', JSON, 400, "must be a JSON object"),
        (b"[" * 60_000, JSON, 400, "the body must be an object, got a list"),
        (b'{"k":' + b"9" * 50_000 + b"}", JSON, 400, "k is not accepted: integer value out of range"),
        (b'{"ids": ["\xed\xa0\x80"]}', JSON, 400, "must be a JSON object"),
        (b"\xff\xfe\x00", JSON, 400, "must be a JSON object"),
        (b"{}", {"Content-Type": "text/plain"}, 415, "got 'text/plain'"),
        (b"{}", {}, 415, "got 'none'"),
        (b"{}", JSON | {"Content-Encoding": "gzip"}, 415, "a body must not be compressed"),
        (b" " * (2**16 + 1), JSON, 413, "a body may have 65536 bytes"),
        (b" " * (2**20), JSON, 413, "a body may have 65536 bytes"),
    ],
)
def test_bodies_that_are_none(service, body, headers, status, words):
    refused(service.ask("POST", "/v1/search", body, headers), status, words)


@pytest.mark.parametrize(
    ("query", "body", "words"),
    [
        ("k=2", b"", "index must be named"),
        ("index=points", b"", "1 vectors of 8 little-endian float32 numbers must have 32 bytes, got 0; send all of"),
        ("index=points", bytes(33), "must have 32 bytes, got 33"),
        ("index=points", bytes(64), "must have 32 bytes, got 64"),
        (
            "index=points",
            struct.pack("<8f", *[0.0] * 7, float("nan")),
            "vectors contains NaN in row 0, column 7",
        ),
        (
            "index=points",
            struct.pack("<8f", float("-inf"), *[0.0] * 7),
            "vectors contains inf in row 0, column 0",
        ),
        ("index=points&k=ten", bytes(32), "k must be an integer, got text"),
        ("index=points&k=2&k=3", bytes(32), "'k' must be given once"),
        ("index=points&vectors=1", bytes(32), "there is no field 'vectors'"),
        ("index=points&rerank=0", bytes(32), "rerank must be a boolean, got an integer"),
        ("index=points&k=%FF", bytes(32), "query string cannot be read"),
    ],
)
def test_raw_bodies_that_are_none(service, query, body, words):
    refused(service.ask("POST", f"/v1/search?{query}", body, RAW | {SHAPE: f"1,{WIDTH}"}), 400, words)


@pytest.mark.parametrize("path", ["/v1/search", "/v1/encode"])
@pytest.mark.parametrize(
    ("shape", "words"),
    [
        (f"4,{WIDTH // 2}", "for points must have the header Autojacobin-Shape: ROWS,8 with 1 to 64 rows, got '4,4'"),
        (f"1,{2 * WIDTH}", "with 1 to 64 rows, got '1,16'"),
        (f"3,{WIDTH}", "3 vectors of 8 little-endian float32 numbers must have 96 bytes, got 64"),
        (f"0,{WIDTH}", "with 1 to 64 rows, got '0,8'"),
        (f"65,{WIDTH}", "with 1 to 64 rows, got '65,8'"),
        (None, "must have the header Autojacobin-Shape: ROWS,8 with 1 to 64 rows, got 'none'"),
        ("", "got 'none'"),
        ("2", "got '2'"),
        ("2,8,1", "got '2,8,1'"),
        ("-2,8", "got '-2,8'"),
        ("²,8", "ROWS,8 with"),
        ("9" * 10 + ",8", "ROWS,8 with"),
    ],
)
def test_a_raw_body_of_another_shape_than_in_its_header_is_refused(service, path, shape, words):
    body = bytes(4 * 2 * WIDTH)  # two vectors, four of half the width, or one of twice the width
    told = RAW if shape is None else RAW | {SHAPE: shape}
    refused(service.ask("POST", f"{path}?index=points", body, told), 400, words)
    assert service.ask("POST", f"{path}?index=points", body, RAW | {SHAPE: f"2,{WIDTH}"})[0] == 200


def test_vectors_of_another_width_are_refused_with_a_sentence(service, points):
    with Client(service.address) as client:
        for ask in (client.search, client.encode):
            with pytest.raises(ServiceError, match="Autojacobin-Shape: ROWS,8 with 1 to 64 rows, got '4,4'") as caught:
                ask(points.reshape(-1, WIDTH // 2)[:4], index="points")
            assert (caught.value.status, caught.value.kind) == (400, "invalid-request")


def test_a_json_request_with_a_shape_is_refused(service):
    told = JSON | {SHAPE: f"1,{WIDTH}"}
    refused(service.ask("POST", "/v1/search", json.dumps(GOOD), told), 400, "got Autojacobin-Shape as well")


def test_a_json_request_has_no_query_string(service):
    refused(service.ask("POST", "/v1/search?k=3", json.dumps(GOOD), JSON), 400, "got a query string as well")


def test_wrong_paths_and_methods(service):
    refused(service.ask("GET", "/v1/search"), 405, "does not accept GET, expected POST")
    assert service.ask("GET", "/v1/search")[1]["Allow"] == "POST"
    climbing = ("/../etc/passwd", "/explorer/../../etc/passwd", "/explorer/%2e%2e%2fpage.py")
    for path in ("/v1/nothing", "/v1/indexes/", *climbing):  # and no redirect, whose address a proxy may not have
        assert service.ask("GET", path)[0] == 404


_json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)
_names = st.sampled_from(
    ["index", "vectors", "id", "ids", "k", "candidates", "distance", "rerank", "recall", "bitorder"]
)


@given(
    document=_json_values | st.dictionaries(_names, _json_values, max_size=4).map(lambda fields: GOOD | fields),
    cut=st.none() | st.integers(0, 60),
    path=st.sampled_from(["/v1/search", "/v1/encode"]),
)
@example(document=GOOD, cut=None, path="/v1/search")
def test_any_document_is_answered_or_refused(service, document, cut, path):
    status, headers, body = service.ask("POST", path, json.dumps(document).encode()[:cut], JSON)
    found = json.loads(body, parse_constant=lambda name: pytest.fail(f"{name} in an answer"))
    assert status in (200, 400, 404)
    assert (status == 200) == ("index" in found)
    assert (status == 200) == (headers["Content-Type"] == "application/json")


@given(body=st.binary(max_size=200), query=st.text("kindex=points&%0123#?", max_size=20), rows=st.integers(0, 7))
def test_any_bytes_are_answered_or_refused(service, body, query, rows):
    path = "/v1/search?index=points&" + query.replace("#", "%23")
    status, _, answer = service.ask("POST", path, body, RAW | {SHAPE: f"{rows},{WIDTH}"})
    assert status in (200, 400)
    assert status == 400 or len(body) == 4 * WIDTH * rows
    assert isinstance(json.loads(answer), dict)


def test_slow_and_broken_senders_do_not_delay_others(service, index):
    head = b"POST /v1/search HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\n"
    with (
        socket.create_connection(("127.0.0.1", service.port), timeout=15) as slow_body,
        socket.create_connection(("127.0.0.1", service.port), timeout=15) as slow_head,
        socket.create_connection(("127.0.0.1", service.port), timeout=15) as silent,
        socket.create_connection(("127.0.0.1", service.port), timeout=15) as broken,
    ):
        slow_body.sendall(head + b'\r\n{"k":')
        slow_head.sendall(head)
        broken.sendall(head + b'\r\n{"k":')
        broken.close()
        status, found = service.post("/v1/search", GOOD)
        assert status == 200
        assert found["ids"] == index.search(np.full((1, WIDTH), 0.5, dtype=np.float32), 2)[1].tolist()
        answer = b"".join(iter(lambda: slow_body.recv(4096), b""))
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert b"a body must arrive within 1 s" in answer
        assert slow_head.recv(100) == b""  # closed without a word: there is no request to answer
        assert silent.recv(100) == b""


def test_a_body_without_a_length_is_bounded_too(service):
    chunk = b"8000\r\n" + b" " * 2**15 + b"\r\n"
    with socket.create_connection(("127.0.0.1", service.port), timeout=15) as connection:
        head = b"POST /v1/search HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        connection.sendall(head + b"Transfer-Encoding: chunked\r\n\r\n" + 4 * chunk + b"0\r\n\r\n")
        assert connection.recv(4096).startswith(b"HTTP/1.1 413 ")


def test_a_client_that_expects_continue_is_refused_before_it_sends(service):
    head = b"POST /v1/search HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with socket.create_connection(("127.0.0.1", service.port), timeout=15) as connection:
        connection.sendall(head + b"Expect: 100-continue\r\nContent-Length: 100000\r\n\r\n")
        assert connection.recv(4096).startswith(b"HTTP/1.1 413 ")


LENGTH = b"Content-Length: 2\r\n"
AMBIGUOUS = {
    "two lengths": LENGTH + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "two lengths, the other way round": b"Transfer-Encoding: chunked\r\n" + LENGTH + b"\r\n0\r\n\r\n",
    "different lengths": LENGTH + b"Content-Length: 3\r\n\r\n{}",
    "two codings": b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "a bare line feed": b"X-One: 1\nX-Two: 2\r\n" + LENGTH + b"\r\n{}",
    "a bare line feed at the end": LENGTH + b"\n{}",
    "bare line feeds everywhere": LENGTH.replace(b"\r", b"") + b"\n{}",
    "a folded line": b"X-One: 1\r\n two\r\n" + LENGTH + b"\r\n{}",
    "two kinds of access": b"Authorization: Bearer one\r\nAuthorization: Bearer two\r\n" + LENGTH + b"\r\n{}",
    "two kinds of body": b"Content-Type: application/octet-stream\r\n" + LENGTH + b"\r\n{}",
    "two shapes": b"Autojacobin-Shape: 1,8\r\nAutojacobin-Shape: 2,4\r\n" + LENGTH + b"\r\n{}",
}


@pytest.mark.parametrize("pieces", [1, 7])
@pytest.mark.parametrize("rest", AMBIGUOUS.values(), ids=AMBIGUOUS.keys())
def test_a_head_that_can_be_read_in_two_ways_is_refused_and_the_connection_closed(service, rest, pieces):
    head = b"POST /v1/search HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    smuggled = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with socket.create_connection(("127.0.0.1", service.port), timeout=60) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sent = head + rest + smuggled
        for start in range(0, len(sent), -(-len(sent) // pieces)):
            with suppress(ConnectionError):  # it is closed before all is sent
                connection.sendall(sent[start : start + -(-len(sent) // pieces)])
                time.sleep(0.01 if pieces > 1 else 0)
        answer = b""
        with suppress(ConnectionError):
            while part := connection.recv(4096):
                answer += part
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.count(b"HTTP/1.1") == 1


def test_bodies_may_hold_line_feeds_and_requests_may_follow_each_other(service):
    body = json.dumps(GOOD, indent=1).encode()
    head = b"POST /v1/search HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    one = head + b"Content-Length: %d\r\n\r\n" % len(body) + body
    with socket.create_connection(("127.0.0.1", service.port), timeout=60) as connection:
        connection.sendall(one + one.replace(b"HTTP/1.1\r\n", b"HTTP/1.1\r\nConnection: close\r\n"))
        answer = b"".join(iter(lambda: connection.recv(4096), b""))
    assert answer.count(b"HTTP/1.1 200 ") == 2
