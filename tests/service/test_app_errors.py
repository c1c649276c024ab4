"""Mistakes of the service itself, and searches that take too long: told without the insides, and survived."""

import json
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from autojacobin import LSH
from autojacobin.errors import DataError, StorageError
from autojacobin.explorer import explorer_routes
from autojacobin.index.index import Index
from autojacobin.service import Client, Limits, ServiceError, serve, serving
from tests.service.service_process import asked, eventually
from tests.waiting import SECONDS


@pytest.fixture
def troubled(points):
    """An index whose search can be made to fail or to hang."""

    class Troubled(Index):
        error = None
        hold = None

        def search(self, *arguments, **options):
            if self.error is not None:
                raise self.error
            if self.hold is not None:
                assert self.hold.wait(60)
            return super().search(*arguments, **options)

    index = Troubled(LSH(16, random_state=0).fit(points))
    index.add(points)
    return index


def test_an_internal_error_is_reported_without_details(troubled, points):
    with serving({"points": troubled}) as address, Client(address) as client:
        client.search(points[:1], 1)
        troubled.error = RuntimeError("a secret path: /srv/indexes")
        with pytest.raises(ServiceError, match="the service failed, and its log says why") as caught:
            client.search(points[:1], 1)
        assert (caught.value.status, caught.value.kind) == (500, "internal")
        assert "secret" not in str(caught.value)
        troubled.error = None
        assert client.search(points[:1], 1)[1].tolist() == [[0]]


def test_a_request_that_waits_too_long_gets_503(troubled, points):
    with serving({"points": troubled}, limits=Limits(request_seconds=0.5)) as address, Client(address) as client:
        client.search(points[:1], 1)
        troubled.hold = threading.Event()
        try:
            with pytest.raises(ServiceError, match="there was no answer within 0.5 s") as caught:
                client.search(points[:1], 1)
            assert caught.value.status == 503
            assert json.loads(asked(client, "/healthz")) == {"status": "ok"}  # searches hang, the rest goes on
        finally:
            troubled.hold.set()
        assert client.search(points[:1], 1)[1].tolist() == [[0]]


def test_who_hangs_up_while_waiting_is_not_searched_for(troubled, points):
    with (
        serving({"points": troubled}) as address,
        Client(address) as client,
        Client(address) as other,
        ThreadPoolExecutor(1) as pool,
    ):
        assert eventually(lambda: _ready(client))  # so that warming holds nothing up
        searched = _metric(client, "autojacobin_batch_vectors_sum")
        troubled.hold = threading.Event()
        try:
            first = pool.submit(other.search, points[:2], 1)
            assert eventually(lambda: _metric(client, "autojacobin_requests_inside") == 1)
            with socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2])), timeout=120) as second:
                head = b"POST /v1/search?k=1 HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/octet-stream\r\n"
                second.sendall(head + b"Autojacobin-Shape: 3,8\r\nContent-Length: 96\r\n\r\n" + points[:3].tobytes())
                assert eventually(lambda: _metric(client, "autojacobin_requests_inside") == 2)
            hung_up = 'autojacobin_requests_total{endpoint="/v1/search",status="499"}'
            assert eventually(lambda: _metric(client, hung_up) == 1)
            assert _metric(client, "autojacobin_waiting_vectors") == 0
        finally:
            troubled.hold.set()
        assert first.result(SECONDS)[1].tolist() == [[0], [1]]
        assert eventually(lambda: _metric(client, "autojacobin_batch_vectors_sum") == searched + 2)


def test_requests_of_the_page_count_in_the_queue_too(troubled, points):
    with (
        serving({"points": troubled}, limits=Limits(requests=1), pages=explorer_routes) as address,
        Client(address) as client,
        Client(address) as other,
        ThreadPoolExecutor(1) as pool,
    ):
        assert eventually(lambda: _ready(client))
        troubled.hold = threading.Event()
        try:
            first = pool.submit(other.search, points[:1], 1)
            assert eventually(lambda: _metric(client, "autojacobin_requests_inside") == 1)
            for path in ("/explorer/ids?index=points", "/explorer/codes?index=points&id=1"):
                with pytest.raises(ServiceError, match="the service is busy") as caught:
                    asked(client, path)
                assert caught.value.status == 503
        finally:
            troubled.hold.set()
        assert first.result(SECONDS)[1].tolist() == [[0]]
        assert json.loads(asked(client, "/explorer/codes?index=points&id=1"))["bits"] == 16


def _ready(client):
    try:
        return asked(client, "/readyz")
    except ServiceError:
        return False


def _metric(client, line):
    text = asked(client, "/metrics").decode()
    return sum(float(found.rpartition(" ")[2]) for found in text.splitlines() if found.startswith(line + " "))


def test_an_address_that_cannot_be_bound_is_reported(index):
    with serving({"points": index}) as address:
        port = int(address.rpartition(":")[2])
        with pytest.raises(StorageError, match=f"cannot listen on 127.0.0.1 port {port}: .*; give another"):
            serve({"points": index}, port=port)
    with pytest.raises(StorageError, match="cannot listen on 127.0.0.1 port 70000"):
        serve({"points": index}, port=70000)
    with pytest.raises(DataError, match="a token is required"):
        serve({"points": index}, host="::")
