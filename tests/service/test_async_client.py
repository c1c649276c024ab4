"""The async client asks and reads as the plain one does."""

import asyncio
import sys

import numpy as np
import pytest

from autojacobin import LSH, Index
from autojacobin.errors import DataError, MissingExtraError, StorageError
from autojacobin.service import Access, AsyncClient, Client, Limits, ServiceError, serving
from tests.service.test_client import BUSY, CLOSE, LISTED, SHAPELESS, Scripted
from tests.waiting import run_async

WRITE_TOKEN = "a-token-for-writing"


def test_many_searches_at_once_find_what_the_plain_client_finds(service, points):
    async def ask():
        async with AsyncClient(service.address, timeout=600) as client:
            searches = (client.search(points[row : row + 1], 3, index="points") for row in range(20))
            return await asyncio.gather(*searches), await client.encode(points[:3], index="points")

    found, codes = run_async(ask())
    with Client(service.address, timeout=600) as client:
        distances, ids = client.search(points[:20], 3, index="points")
        np.testing.assert_array_equal(np.concatenate([part[0] for part in found]), distances)
        np.testing.assert_array_equal(np.concatenate([part[1] for part in found]), ids)
        assert codes == client.encode(points[:3], index="points")


def test_it_writes_and_filters(points):
    index = Index(LSH(20, random_state=0).fit(points))

    async def write(address):
        async with AsyncClient(address, token=WRITE_TOKEN, timeout=600) as client:
            await client.add(points[:3], ["a", "b", "c"], {"size": [1, 2, 3]}, index="points")
            await client.remove(["b"], index="points")
            return await client.search(points[:1], 2, where="size > 1", columns=["size"]), await client.indexes()

    limits = Limits(request_seconds=600)
    with serving({"points": index}, access=Access(write_token=WRITE_TOKEN), limits=limits) as address:
        (distances, ids, payload), listed = run_async(write(address))
    assert ids.tolist() == [["c", None]]
    assert np.isnan(distances).tolist() == [[False, True]]
    assert payload == [[{"size": 3}, None]]
    assert listed[0]["vectors"] == 2


def listed(address, **options):
    async def ask():
        async with AsyncClient(address, **options) as client:
            return await client.indexes()

    return run_async(ask())


def test_a_busy_service_is_asked_again_as_long_as_patience_lasts():
    with Scripted(BUSY, BUSY, LISTED) as server:
        assert listed(server.address, patience=20) == []
        assert server.asked == 3
    with Scripted(BUSY) as server, pytest.raises(ServiceError) as caught:
        listed(server.address)
    assert caught.value.status == 503


def test_a_connection_that_was_lost_is_opened_again():
    async def ask(address):
        async with AsyncClient(address) as client:
            return [await client.indexes() for _ in range(2)]

    with Scripted(LISTED, CLOSE, LISTED) as server:
        assert run_async(ask(server.address)) == [[], []]


def test_what_goes_wrong_is_reported_as_by_the_plain_client():
    with Scripted(SHAPELESS) as server, pytest.raises(ServiceError, match="is not one of an autojacobin service"):
        listed(server.address)
    with pytest.raises(StorageError, match="cannot be reached.*start it with: autojacobin serve"):
        listed("http://127.0.0.1:1")
    with pytest.raises(DataError, match="an address must look like"):
        AsyncClient("ftp://example.org")
    with pytest.raises(DataError, match="a token must be 16 or more"):
        AsyncClient(token="short")


def test_without_httpx_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "httpx", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'autojacobin\[client\]'"):
        AsyncClient()
