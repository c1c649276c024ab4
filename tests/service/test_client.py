"""The client where the service is not there, is not one, or is busy."""

import socket
import threading

import numpy as np
import pytest

from autojacobin.errors import DataError, StorageError
from autojacobin.service import Client, ServiceError
from tests.waiting import SECONDS, joined

BUSY = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 0\r\nContent-Length: 0\r\n\r\n"
LISTED = b'HTTP/1.1 200 OK\r\nContent-Length: 15\r\n\r\n{"indexes": []}'
SHAPELESS = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"
SHORT = b"HTTP/1.1 200 OK\r\nAutojacobin-Shape: 1,1\r\nContent-Length: 8\r\n\r\n12345678"
LATER = BUSY.replace(b"Retry-After: 0", b"Retry-After: Wed, 21 Oct 2026 07:28:00 GMT")
CODES = b"HTTP/1.1 200 OK\r\nAutojacobin-Shape: 2,12\r\nContent-Length: 3\r\n\r\nabc"
CLOSE = b""


class Scripted:
    """A server that gives one answer after the other, or closes the connection in between."""

    def __init__(self, *script):
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(SECONDS)
        self.address = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.asked = 0
        self._script = list(script)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self):
        while self._script:
            connection, _ = self._listener.accept()
            connection.settimeout(SECONDS)
            with connection:
                while self._script and self._script[0] != CLOSE:
                    request = b""
                    while b"\r\n\r\n" not in request:
                        request += connection.recv(2**16)
                    self.asked += 1
                    connection.sendall(self._script.pop(0))
            if self._script:
                assert self._script.pop(0) == CLOSE

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._thread.join(20)
        self._listener.close()
        assert not self._thread.is_alive()


def test_no_service_at_the_address():
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    with (
        Client(f"http://127.0.0.1:{port}", timeout=5) as client,
        pytest.raises(StorageError, match="cannot be reached: Connection refused; start it with: autojacobin serve"),
    ):
        client.indexes()


def test_a_busy_service_is_asked_again_as_long_as_patience_lasts():
    with Scripted(BUSY, BUSY, LISTED) as server, Client(server.address, patience=20) as client:
        assert client.indexes() == []
        assert server.asked == 3
    with Scripted(BUSY) as server, Client(server.address) as client:
        with pytest.raises(ServiceError, match="503, is not one of an autojacobin service") as caught:
            client.indexes()
        assert caught.value.status == 503


def test_a_date_to_come_back_at_is_no_number_but_no_mistake():
    with Scripted(LATER) as server, Client(server.address) as client, pytest.raises(ServiceError) as caught:
        client.indexes()
    assert caught.value.status == 503


def test_unreadable_responses_are_reported():
    for answer, ask in ((CODES, lambda client: client.encode([[1.0]])), (SHAPELESS, lambda client: client.indexes())):
        with (
            Scripted(answer) as server,
            Client(server.address) as client,
            pytest.raises(ServiceError, match="200, is not one of an autojacobin service"),
        ):
            ask(client)


def test_a_connection_that_was_closed_meanwhile_is_opened_again():
    with Scripted(LISTED, CLOSE, LISTED) as server, Client(server.address) as client:
        assert client.indexes() == []
        assert client.indexes() == []
        assert server.asked == 2


def test_a_write_that_was_lost_is_not_repeated():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(SECONDS)
        connections = []

        def hang_up():
            for number in range(2):
                connection, _ = listener.accept()
                connection.settimeout(SECONDS)
                connections.append(connection)
                with connection:
                    connection.recv(2**16)
                    if number == 0:
                        connection.sendall(LISTED)
                        connection.recv(2**16)  # until the client closes

        thread = threading.Thread(target=hang_up)
        thread.start()
        with Client(f"http://127.0.0.1:{listener.getsockname()[1]}") as client:
            assert client.indexes() == []
            with pytest.raises(StorageError, match="cannot be reached"):
                client.remove([1], index="points")
        joined(thread)
    assert len(connections) == 2  # one for each call


@pytest.mark.parametrize("answer", [SHAPELESS, SHORT], ids=["no shape", "too short"])
def test_another_server_is_reported_as_no_service(answer):
    with (
        Scripted(answer) as server,
        Client(server.address) as client,
        pytest.raises(ServiceError, match="is not one of an autojacobin service"),
    ):
        client.search(np.zeros((1, 4)), 1)


def test_wrong_use_is_reported_before_anything_is_sent():
    for address in ("ftp://example.org", "http://", "http://127.0.0.1:99999", "http://127.0.0.1:port", "http://[::1"):
        with pytest.raises(DataError, match="an address must look like"):
            Client(address)
    with pytest.raises(DataError, match="a token must be 16 or more"):
        Client("http://127.0.0.1:1", token="two\nlines of a token")
    client = Client("http://127.0.0.1:1")
    with pytest.raises(DataError, match="got several or none"):
        client.search()
    with pytest.raises(DataError, match="got several or none"):
        client.search([[1.0]], ids=[1])
    with pytest.raises(DataError, match="got 1D array.*vectors.reshape"):
        client.search([1.0])
    with pytest.raises(DataError, match="the argument vectors holds text where numbers are expected"):
        client.encode([["a"]])


def test_a_refusal_is_the_sentence_of_the_service(service, points):
    with Client(service.address) as client:
        with pytest.raises(ServiceError, match="k must be an integer <= 50") as caught:
            client.search(points[:1], 51, index="points")
        assert (caught.value.status, caught.value.kind) == (400, "invalid-request")
        with pytest.raises(ServiceError, match="got 1, which is not") as caught:
            client.search(ids=[1], index="points")
        assert (caught.value.status, caught.value.kind) == (404, "unknown-id")
        assert client.search(points[:1], 1, index="points")[1].tolist() == [[0]]  # on the same connection
