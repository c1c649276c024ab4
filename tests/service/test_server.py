"""Connections that take no answer, ask nothing, send half or are too many cost nobody else anything.

A stop is always heard.
"""

import os
import select
import signal
import socket
import threading
import time
from contextlib import ExitStack

import numpy as np
import pytest

from autojacobin import LSH
from autojacobin.index.index import Index
from autojacobin.service import Client, Limits, ServiceError, serve, server, serving
from tests.service.conftest import WIDTH
from tests.service.service_process import asked, eventually
from tests.waiting import happens

HEALTH = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
_ROWS, _K = 1000, 1000  # of the large answer: 16 MB, more than the buffers of a connection take


@pytest.fixture(scope="module")
def many():
    rows = np.random.default_rng(0).normal(size=(_K, WIDTH)).astype(np.float32)
    made = Index(LSH(16, random_state=0).fit(rows), keep_vectors=False)
    made.add(rows)
    return made


@pytest.fixture(scope="module")
def impatient(many):
    with serving({"many": many}, limits=Limits(body_seconds=1, request_seconds=60)) as address:
        with Client(address) as client:
            assert eventually(lambda: _is_ready(client))  # so that no request waits for that
        yield int(address.rpartition(":")[2])


def connected(port, buffer=None):
    connection = socket.socket()
    if buffer is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    connection.settimeout(60)
    connection.connect(("127.0.0.1", port))
    return connection


def large_question():
    body = np.zeros((_ROWS, WIDTH), dtype="<f4").tobytes()
    kind = "application/octet-stream"
    head = f"POST /v1/search?k={_K}&rerank=false HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\n"
    head += f"Autojacobin-Shape: {_ROWS},{WIDTH}\r\n"
    return f"{head}Accept: {kind}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def is_healthy(connection):
    connection.sendall(HEALTH)
    answer = b""
    while not answer.endswith(b"}"):
        part = connection.recv(2000)
        assert part, "cut off"
        answer += part
    return answer.startswith(b"HTTP/1.1 200 ")


def is_cut(connection):
    """Whether the other side has given the connection up, seen without taking anything of what it sent."""
    poll = select.poll()
    poll.register(connection, 0)
    return any(event & (select.POLLHUP | select.POLLERR) for _, event in poll.poll(0))


@pytest.mark.skipif(not hasattr(select, "poll"), reason="needs poll")
def test_a_response_that_is_not_read_is_dropped(impatient):
    with connected(impatient, buffer=4096) as stubborn:
        stubborn.sendall(large_question())
        assert eventually(lambda: is_cut(stubborn))
    with connected(impatient) as other:
        assert is_healthy(other)


@pytest.mark.skipif(not hasattr(select, "poll"), reason="needs poll")
def test_the_response_that_has_waited_longest_for_its_reader_makes_room(many, monkeypatch):
    monkeypatch.setattr(server, "_MOST_UNREAD", 2**24)  # bytes, of which a response has 16 million
    with serving({"many": many}, limits=Limits(body_seconds=600, request_seconds=600)) as address, ExitStack() as crowd:
        with Client(address) as client:
            assert eventually(lambda: _is_ready(client))
        port = int(address.rpartition(":")[2])
        first, second = (crowd.enter_context(connected(port, buffer=4096)) for _ in range(2))
        first.sendall(large_question())
        assert first.recv(4) == b"HTTP"  # it is being sent
        second.sendall(large_question())
        assert second.recv(4) == b"HTTP"
        assert eventually(lambda: is_cut(first))
        assert not is_cut(second)


def test_a_reader_that_is_slow_but_steady_gets_all(impatient):
    taken, begun = bytearray(), time.monotonic()
    with connected(impatient, buffer=2**16) as steady:
        steady.sendall(large_question())
        while b"\r\n\r\n" not in taken or len(taken) < taken.index(b"\r\n\r\n") + 4 + 16 * _ROWS * _K:
            part = steady.recv(2**18)
            assert part, "cut off"
            taken += part
            if time.monotonic() - begun < 2:  # twice the patience of the service
                time.sleep(0.01)
    assert taken.startswith(b"HTTP/1.1 200 ")
    ids = np.frombuffer(taken[-8 * _ROWS * _K :], dtype="<i8").reshape(_ROWS, _K)
    assert np.array_equal(np.sort(ids[-1]), np.arange(_K))


def test_who_has_waited_longest_makes_room(many):
    with serving({"many": many}, limits=Limits(connections=3)) as address:
        port = int(address.rpartition(":")[2])
        with connected(port) as used, connected(port) as idle, ExitStack() as crowd:
            for connection in (used, idle, used):  # so that the idle one has waited longest
                assert is_healthy(connection)
            for _ in range(2):
                crowd.enter_context(connected(port))
            assert idle.recv(10) == b""
            assert is_healthy(used)
            for _ in range(20):
                crowd.enter_context(connected(port))
            with Client(address) as client:
                assert client.indexes()[0]["name"] == "many"  # whoever asks finds room


def test_a_request_under_way_does_not_make_room(many, monkeypatch):
    begun, hold, search = threading.Event(), threading.Event(), Index.search

    def held(*arguments, **options):
        begun.set()
        assert hold.wait(60)
        return search(*arguments, **options)

    with serving({"many": many}, limits=Limits(connections=1)) as address:
        port = int(address.rpartition(":")[2])
        with Client(address) as client:
            assert eventually(lambda: _is_ready(client))
        monkeypatch.setattr(Index, "search", held)
        with connected(port) as first:
            first.sendall(large_question())
            assert begun.wait(60)
            with connected(port) as second:
                assert second.recv(10) == b""
            hold.set()
            assert first.recv(100).startswith(b"HTTP/1.1 200 ")


class HalfSent:
    """A request whose body has begun and not ended; the service has seen it, since it said that it may go on."""

    def __init__(self, port):
        self._rest = b'"vectors": [' + b"[0" + b", 0" * (WIDTH - 1) + b"]" + b'], "k": 1, "rerank": false}'
        self.connection = connected(port)
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # a byte is sent when it is
        head = b"POST /v1/search HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        head += b"Connection: close\r\nExpect: 100-continue\r\n"
        self.connection.sendall(head + b"Content-Length: %d\r\n\r\n" % (len(self._rest) + 1))
        self.answer = self.connection.recv(1000)
        if self.answer.startswith(b"HTTP/1.1 100 "):
            self.connection.sendall(b"{")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.connection.close()

    def send_a_byte(self):
        self.connection.sendall(self._rest[:1])
        self._rest = self._rest[1:]

    def status_when_whole(self):
        """Send the rest, and give the status of the answer; none if the connection was given up."""
        try:
            self.connection.sendall(self._rest)
            answer = self.connection.recv(1000)
        except ConnectionError:
            return None
        return int(answer.split()[1]) if answer else None


def test_bodies_that_are_half_sent_take_no_place_in_the_queue(many):
    limits = Limits(body_seconds=10**6)  # so that time alone drops nobody
    with serving({"many": many}, limits=limits) as address, ExitStack() as crowd:
        port = int(address.rpartition(":")[2])
        half_sent = [crowd.enter_context(HalfSent(port)) for _ in range(140)]
        assert all(one.answer.startswith(b"HTTP/1.1 100 ") for one in half_sent)
        with Client(address) as client:
            assert client.search(np.zeros((1, WIDTH)), 1, rerank=False)[1].shape == (1, 1)
        statuses = [one.status_when_whole() for one in half_sent]
        # the oldest are dropped; one more may be, because the client's search arrives in parts as well
        dropped = statuses.count(None)
        assert statuses == [None] * dropped + [200] * (140 - dropped)
        assert dropped - (140 - limits.requests) in (0, 1)


def test_the_half_sent_body_that_has_been_silent_longest_makes_room(many):
    with serving({"many": many}, limits=Limits(requests=3, body_seconds=10**6)) as address, ExitStack() as crowd:
        port = int(address.rpartition(":")[2])
        steady, silent, third = (crowd.enter_context(HalfSent(port)) for _ in range(3))
        with connected(port) as other:
            assert is_healthy(other)  # so that what was sent before has been seen
            steady.send_a_byte()
            assert is_healthy(other)
            fourth = crowd.enter_context(HalfSent(port))
            assert is_healthy(other)
        assert silent.status_when_whole() is None
        assert [one.status_when_whole() for one in (steady, third, fourth)] == [200, 200, 200]


def test_half_sent_bodies_leave_room_for_connections(many):
    with serving({"many": many}, limits=Limits(connections=4, body_seconds=10**6)) as address, ExitStack() as crowd:
        port = int(address.rpartition(":")[2])
        for _ in range(20):
            crowd.enter_context(HalfSent(port))
        with connected(port) as first, connected(port) as second:
            assert is_healthy(first)
            assert is_healthy(second)


def test_a_place_in_the_queue_is_taken_when_the_body_is_whole(many, monkeypatch):
    begun, hold, search = threading.Event(), threading.Event(), Index.search

    def held(*arguments, **options):
        begun.set()
        happens(hold)
        return search(*arguments, **options)

    with serving({"many": many}, limits=Limits(requests=1, body_seconds=10**6)) as address:
        port = int(address.rpartition(":")[2])
        with Client(address) as client:
            assert eventually(lambda: _is_ready(client))
        monkeypatch.setattr(Index, "search", held)
        with HalfSent(port) as late, connected(port) as first:
            first.sendall(large_question())
            happens(begun)
            assert late.status_when_whole() == 503  # its head came first, and its end after the queue was full
            with HalfSent(port) as refused:
                assert refused.answer.startswith(b"HTTP/1.1 503 ")  # before its body is sent
            hold.set()
            assert first.recv(100).startswith(b"HTTP/1.1 200 ")


def _is_ready(client):
    try:
        return asked(client, "/readyz")
    except ServiceError:
        return False


@pytest.mark.skipif(os.name != "posix", reason="signals")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_that_comes_with_the_start_is_heard(many, number):
    told = []

    def announce(address):
        told.append(address)
        signal.raise_signal(number)  # before anything of the server runs

    before = signal.getsignal(number)
    serve({"many": many}, port=0, announce=announce)
    assert len(told) == 1
    assert signal.getsignal(number) == before
