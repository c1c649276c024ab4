"""Indexes of codes that were made elsewhere: searched for codes, and written to, over HTTP."""

import base64
import http.client
import json
import uuid

import numpy as np
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode

from autojacobin import Codes, Index
from autojacobin.errors import DataError
from autojacobin.service import Access, AsyncClient, Client, Limits, ServiceError, serving
from tests.service.service_process import asked
from tests.service.test_openapi import CHECKS
from tests.waiting import run_async

N_BITS, TOKEN = 21, "a-token-for-writing"
PATIENT = Limits(vectors=64, body_bytes=2**20, request_seconds=600)  # waits for the compiler; a long condition fits


def bits(n, seed=0):
    return np.random.default_rng(seed).integers(0, 2, (n, N_BITS))


def nearest(base, queries, k):
    distances = (queries[:, None, :] != base).sum(axis=2)
    order = np.argsort(distances, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(distances, order, axis=1), order


def same(found, expected):
    return all(np.array_equal(got, wanted) for got, wanted in zip(found, expected, strict=True))


def post(address, document):
    """Status and document of the answer to a search."""
    connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=600)
    connection.request("POST", "/v1/search", json.dumps(document), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    found = answer.status, json.loads(answer.read())
    connection.close()
    return found


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """Address of a service with an index of each bit order, in folders named after them."""
    home = tmp_path_factory.mktemp("own-codes")
    for order in ("little", "big"):
        with Index.create(home / order, n_bits=N_BITS, bitorder=order) as index:
            index.add(Codes.from_bits(bits(300)), payload={"even": [i % 2 == 0 for i in range(300)]})
    paths = {order: home / order for order in ("little", "big")}
    with serving(paths, access=Access(write_token=TOKEN), limits=PATIENT) as found:
        yield found


@pytest.fixture
def client(address):
    with Client(address, token=TOKEN, timeout=600) as connected:
        yield connected


@pytest.mark.parametrize("order", ["little", "big"])
def test_codes_are_searched_for_in_every_form(client, address, order):
    queries = bits(9, 1)
    expected = nearest(bits(300), queries, 5)
    packed = np.packbits(queries, axis=1, bitorder=order)
    other = "big" if order == "little" else "little"
    swapped = np.packbits(queries, axis=1, bitorder=other)
    assert same(client.search(codes=packed, k=5, index=order), expected)
    assert same(client.search(codes=swapped, k=5, index=order, bitorder=other), expected)
    assert same(client.search(codes=Codes.from_bits(queries), k=5, index=order), expected)
    filtered = client.search(codes=Codes.from_bits(queries), k=5, index=order, where="even", columns=["even"])
    distances, places = nearest(bits(300)[::2], queries, 5)
    assert same(filtered[:2], (distances, 2 * places))
    assert all(row["even"] for rows in filtered[2] for row in rows)
    status, answer = post(
        address, {"index": order, "codes": [base64.b64encode(row).decode() for row in packed], "k": 5}
    )
    assert status == 200
    assert same((answer["distances"], answer["ids"]), [part.tolist() for part in expected])


def test_neighbours_of_codes_in_the_index_and_of_real_values(client):
    base = bits(300)
    assert same(client.search(ids=[3, 8], k=4, index="big"), nearest(base, base[[3, 8]], 4))
    values = np.random.default_rng(2).normal(size=(6, N_BITS)).astype(np.float32)
    index = Index.from_codes(Codes.from_bits(base))
    expected = index.search(values, 5, distance="asymmetric")
    assert same(client.search(values, 5, index="big", distance="asymmetric"), expected)
    filtered = client.search(values, 5, index="big", distance="asymmetric", among=list(range(300)))
    assert same(filtered, expected)
    assert client.search(ids=[3], k=1, index="big", distance="asymmetric")[1].tolist() == [[3]]


def test_an_async_client_searches_for_codes(address):
    async def search():
        async with AsyncClient(address, token=TOKEN, timeout=600) as client:
            return await client.search(codes=Codes.from_bits(bits(2, 1)), k=3, index="little")

    assert same(run_async(search()), nearest(bits(300), bits(2, 1), 3))


def test_what_is_served_shows_the_bit_order(client):
    assert [(one["name"], one["hasher"], one["bitorder"]) for one in client.indexes()] == [
        ("little", "OwnCodes", "little"),
        ("big", "OwnCodes", "big"),
    ]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"codes": ["AAAA"] * 65}, "codes must be a list of length <= 64"),
        ({"codes": "AAAA"}, "codes must be a list, got text"),
        ({"codes": ["AA=A"]}, "codes[0] is not accepted: invalid base64 encoded string"),
        ({"codes": ["AAAA", 7]}, "codes[1] must be text in base64, got an integer"),
        ({"codes": ["AA=="]}, "codes[0] must have 3 bytes, got 1"),
        ({"codes": ["////"]}, "the 3 padding bits of each code must be zero"),
        ({"codes": ["AAAA"], "bitorder": "middle"}, "bitorder is not accepted: invalid enum value 'middle'"),
        ({"codes": ["AAAA"], "rerank": True}, "keeps no vectors to re-rank by"),
        ({"codes": ["AAAA"], "recall": 0.9}, "keeps no vectors to re-rank by"),
        ({"codes": ["AAAA"], "distance": "asymmetric"}, "is for real values, got codes"),
        ({"vectors": [[0.0] * N_BITS]}, "holds codes that were made elsewhere, got vectors; send codes"),
        ({"vectors": [[0.0]], "distance": "asymmetric"}, "must be a list of 21 numbers"),
    ],
)
def test_what_is_no_code_of_the_index_is_refused(address, change, words):
    status, problem = post(address, {"index": "little", "k": 1, **change})
    assert status == 400
    assert words in problem["detail"]


def test_there_is_nothing_to_encode_with(address, client):
    with pytest.raises(ServiceError, match="so it cannot encode vectors"):
        client.encode(np.zeros((1, N_BITS)), index="big")
    with pytest.raises(ServiceError, match=r"Autojacobin-Shape: ROWS,3 with 1 to 64 rows, got '1,4'"):
        client.search(codes=np.zeros((1, 4), dtype=np.uint8), index="big")


def test_codes_are_added_and_removed(tmp_path):
    Index.create(tmp_path / "own", n_bits=N_BITS, bitorder="big").close()
    base, names = bits(30, 4), [uuid.UUID(int=number) for number in range(30)]
    with (
        serving({"own": tmp_path / "own"}, access=Access(write_token=TOKEN), limits=PATIENT) as address,
        Client(address, token=TOKEN, timeout=600) as client,
    ):
        client.add(codes=np.packbits(base[:10], axis=1), ids=names[:10], index="own")
        client.add(codes=Codes.from_bits(base[10:]), ids=names[10:], index="own")
        client.remove([names[29]], index="own")
        found = client.search(codes=Codes.from_bits(base[:29]), k=1)[1]
        assert found.ravel().tolist() == [str(name) for name in names[:29]]
        with pytest.raises(ServiceError, match="got vectors; send codes"):
            client.add(np.zeros((1, N_BITS)), ids=[names[29]], index="own")
        with pytest.raises(DataError, match="either vectors or codes are added, got both or neither"):
            client.add(index="own")
    with Index.open(tmp_path / "own") as index:
        assert index.info()["ids"] == "uuid"
        assert index.codes(names[:29]) == Codes.from_bits(base[:29])
        index.verify()


def test_an_index_with_a_hasher_takes_no_codes(service):
    status, problem = service.post("/v1/search", {"index": "points", "codes": ["AAAA"]})
    assert (status, problem["detail"]) == (400, "points encodes vectors itself, got codes; send vectors")


@pytest.fixture(scope="module")
def document(address):
    return schemathesis.openapi.from_url(f"{address}/openapi.json")


@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
@settings(max_examples=20, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_answers_are_as_the_document_says(document, mode, data):
    case = data.draw(document["/v1/search"]["POST"].as_strategy(generation_mode=mode))
    case.call_and_validate(checks=CHECKS)


def test_the_document_describes_codes(client):
    document = json.loads(asked(client, "/openapi.json"))
    properties = document["components"]["schemas"]["SearchRequest"]["properties"]
    assert properties["codes"]["anyOf"][0]["maxItems"] == 64
    row = properties["vectors"]["anyOf"][0]["items"]
    assert (row["minItems"], row["maxItems"]) == (N_BITS, N_BITS)
