"""Names, columns and filters over HTTP: what the library finds, written as JSON."""

import datetime
import decimal
import json
import math
import uuid

import numpy as np
import pandas
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autojacobin import LSH, Index
from autojacobin.service import Client, Limits, ServiceError, serving
from autojacobin.service.responses import as_json_value
from tests.service.conftest import WIDTH, N

NAMES = [f"größe {number}" for number in range(N)]
UUIDS = [uuid.UUID(int=number) for number in range(50)]


@pytest.fixture(scope="module")
def named(points):
    index = Index(LSH(20, random_state=0).fit(points))
    index.add(points, ids=NAMES, payload={"price": np.arange(N), "lang": ["de", "en"] * (N // 2)})
    return index


@pytest.fixture(scope="module")
def numbered(points):
    index = Index(LSH(20, random_state=0).fit(points))
    index.add(points, ids=np.arange(N) * 3, payload={"price": np.arange(N)})
    return index


@pytest.fixture(scope="module")
def plain(points):
    index = Index(LSH(20, random_state=0).fit(points))
    index.add(points)
    return index


@pytest.fixture(scope="module")
def by_uuid(points):
    index = Index(LSH(20, random_state=0).fit(points))
    index.add(points[:50], ids=UUIDS)
    return index


@pytest.fixture(scope="module")
def client(named, numbered, plain, by_uuid):
    indexes = {"named": named, "numbered": numbered, "plain": plain, "by_uuid": by_uuid}
    patient = Limits(request_seconds=600)  # the first search may wait for the compiler
    with serving(indexes, limits=patient) as address, Client(address, timeout=600) as connected:
        yield connected


def test_what_is_served_names_ids_columns_and_lists(client):
    listed = {entry["name"]: entry for entry in client.indexes()}
    assert (listed["named"]["ids"], listed["named"]["columns"]) == ("string", ["price", "lang"])
    assert (listed["numbered"]["ids"], listed["numbered"]["columns"]) == ("integer", ["price"])
    assert (listed["by_uuid"]["ids"], listed["by_uuid"]["columns"]) == ("uuid", [])
    assert listed["plain"]["lists"] is None


def test_names_come_back_as_strings(client, named, points):
    expected = named.search(points[:3], 4)
    for found in (client.search(points[:3], 4, index="named"), client.search(ids=NAMES[:3], k=4, index="named")):
        np.testing.assert_array_equal(found[0], expected[0])
        np.testing.assert_array_equal(found[1], expected[1])


def test_uuids_go_and_come_as_text(client, by_uuid, points):
    _, expected = by_uuid.search(points[:2], 3)
    _, found = client.search(points[:2], 3, index="by_uuid")
    assert found.tolist() == [[str(id) for id in row] for row in expected]
    assert client.search(ids=UUIDS[:1], k=1, index="by_uuid")[1].tolist() == [[str(UUIDS[0])]]
    assert client.search(points[:1], 1, index="by_uuid", among=[UUIDS[7]])[1].tolist() == [[str(UUIDS[7])]]
    with pytest.raises(ServiceError, match="id must be UUIDs|ids must be UUIDs"):
        client.search(ids=["no uuid"], index="by_uuid")


@pytest.mark.parametrize("name", ["named", "numbered"])
def test_columns_come_with_each_neighbour(client, named, numbered, points, name):
    index = {"named": named, "numbered": numbered}[name]
    distances, ids, table = index.search(points[:3], 4, columns=["price"])
    found = client.search(points[:3], 4, index=name, columns=["price"])
    np.testing.assert_array_equal(found[0], distances)
    np.testing.assert_array_equal(found[1], ids)
    assert [row for rows in found[2] for row in rows] == table.to_pylist()


def test_a_condition_and_a_list_of_ids_filter_exactly(client, points):
    where = "price < 10 and lang = 'de'"
    found = client.search(points[:4], 3, index="named", where=where, candidates=N)
    allowed = np.arange(0, 10, 2)
    exact = np.linalg.norm(points[:4, None].astype(float) - points[allowed][None], axis=2)
    nearest = allowed[np.argsort(exact, axis=1)[:, :3]]
    assert found[1].tolist() == [[NAMES[number] for number in row] for row in nearest]
    among = client.search(points[:4], 3, index="named", among=[NAMES[number] for number in allowed], candidates=N)
    np.testing.assert_array_equal(among[1], found[1])
    both = client.search(points[:1], 3, index="numbered", where="price >= 6", among=[18, 15, 21, 9999])
    assert sorted(both[1][0].tolist()) == [-1, 18, 21]


@settings(max_examples=15)
@given(
    allowed=st.lists(st.integers(0, 2 * N), max_size=30),
    k=st.integers(1, 10),
    limit=st.none() | st.integers(0, N),
    columns=st.none() | st.just(["price"]),
    rerank=st.booleans(),
)
def test_any_filter_gives_what_the_library_gives(client, numbered, points, allowed, k, limit, columns, rerank):
    filters = {"among": allowed, "where": None if limit is None else f"price < {limit}", "columns": columns}
    expected = numbered.search(points[:2], k, rerank=rerank, **filters)
    found = client.search(points[:2], k, index="numbered", rerank=rerank, **filters)
    np.testing.assert_array_equal(found[0], expected[0])
    np.testing.assert_array_equal(np.where(found[1] == None, -1, found[1]), expected[1])  # noqa: E711
    if columns is not None:
        there = (expected[1] >= 0).ravel()
        rows = [row if is_there else None for row, is_there in zip(expected[2].to_pylist(), there, strict=True)]
        assert [row for rows in found[2] for row in rows] == rows


def test_each_query_may_have_its_own_filter(client, points):
    _, found = client.search(points[:2], 2, index="plain", among=[[5, 6], [7]])
    assert sorted(found[0].tolist()) == [5, 6]
    assert found[1].tolist() == [7, -1]
    with pytest.raises(ServiceError, match="one filter for each of the 2 queries, got 1"):
        client.search(points[:2], 2, index="plain", among=[[5]])


def test_missing_neighbours_are_null_in_json_and_padding_in_raw(client, points):
    body = {"index": "numbered", "vectors": points[:1].tolist(), "k": 3, "where": "price = 4", "columns": ["price"]}
    answer = _json(client, body)
    assert answer["ids"] == [[12, None, None]]
    assert answer["distances"][0][1:] == [None, None]
    assert answer["payload"] == [[{"price": 4}, None, None]]
    distances, ids = client.search(points[:1], 3, index="plain", among=[4])  # raw
    assert ids.tolist() == [[4, -1, -1]]
    assert np.isnan(distances).tolist() == [[False, True, True]]
    nothing = client.search(points[:1], 2, index="named", among=[], columns=["price"])
    assert (nothing[1].tolist(), nothing[2]) == ([[None, None]], [[None, None]])


def test_a_recall_with_a_filter_is_what_the_library_finds(client, named, points):
    where = "lang = 'en'"
    expected = named.search(points[:5], 3, recall=0.9, where=where)
    found = client.search(points[:5], 3, index="named", recall=0.9, where=where)
    np.testing.assert_array_equal(found[1], expected[1])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"where": "size < 3"}, "names the column 'size', but the columns are price (int64), lang (string)"),
        ({"where": "price < 'x'"}, "compares the column 'price' (int64) with the text 'x', expected a number"),
        ({"where": "lang = '\ud800'"}, "the body must be a JSON object"),
        ({"where": "price <"}, "cannot be read at its end: a condition compares columns with"),
        ({"where": "(select count(*) from range(9)) > 0"}, "cannot be read at 'count', character 9"),
        ({"where": "(with a as " * 30}, "cannot be read at 'a', character 7"),
        ({"where": "(" * 1999}, "has more than 50 parentheses around each other"),
        ({"where": 3}, "where must be text, got an integer"),
        ({"where": ""}, "where must be text of length >= 1"),
        ({"where": "a" * 10_001}, "where must be text of length <= 10000"),
        ({"columns": ["size"]}, "there is no column 'size' in this index, expected some of price, lang"),
        ({"columns": []}, "columns must be a list of length >= 1"),
        ({"columns": ["price"] * 1000}, "columns must be different, got 1000 with repetitions"),
        ({"columns": "price"}, "columns must be a list, got text"),
        ({"among": "a"}, "among must be a list, got text"),
        ({"among": [3]}, "among must be of the kind string, got '3'"),
        ({"among": [["a"], "b"]}, "among must be a list of ids, or one such list for each query, got both"),
        ({"among": [""]}, "among[0] must be text of length >= 1"),
        ({"index": "plain", "where": "a < 3"}, "this index has no payload for where='a < 3'"),
        ({"index": "plain", "columns": ["a"]}, "this index has no payload"),
        ({"index": "plain", "among": ["a"]}, "among must be of the kind integer, got 'a'"),
        ({"index": "plain", "among": [True]}, "among[0] must be an integer or text or a list, got a boolean"),
    ],
)
def test_wrong_filters_are_refused_in_a_sentence(client, points, change, words):
    with pytest.raises(ServiceError) as caught:
        _json(client, {"index": "named", "vectors": points[:1].tolist(), "k": 1, **change})
    assert words in str(caught.value)
    assert caught.value.status == 400


def test_an_unknown_name_is_not_found(client):
    with pytest.raises(ServiceError, match="got 'nobody', which is not") as caught:
        client.search(ids=["nobody"], index="named")
    assert caught.value.status == 404


def test_filters_are_for_json_requests(client, points):
    from autojacobin.service.calls import Call

    headers = {"Content-Type": "application/octet-stream", "Autojacobin-Shape": f"1,{WIDTH}"}
    call = Call("POST", "/v1/search?index=named&where=price", json.loads, points[:1].tobytes(), headers)
    with pytest.raises(ServiceError, match="there is no field 'where', expected index, k"):
        client._send(call)


def test_many_nots_are_a_condition_like_any_other(client, points):
    found = client.search(points[:1], 3, index="numbered", where="not " * 480 + "(price<5)")
    np.testing.assert_array_equal(found[1], client.search(points[:1], 3, index="numbered", where="price < 5")[1])


def test_values_of_a_payload_become_json():
    table = pa.table(
        {
            "time": [datetime.datetime(2026, 1, 2, 3, 4, 5)],
            "day": [datetime.date(2026, 1, 2)],
            "amount": [decimal.Decimal("1.50")],
            "raw": [b"\x00\xff"],
            "nested": [{"tags": ["a", None], "size": math.nan}],
            "large": [2**62],
            "none": [None],
        }
    )
    assert json.loads(json.dumps(as_json_value(table.to_pylist()[0]), allow_nan=False)) == {
        "time": "2026-01-02T03:04:05",
        "day": "2026-01-02",
        "amount": "1.50",
        "raw": "AP8=",
        "nested": {"tags": ["a", None], "size": None},
        "large": 2**62,
        "none": None,
    }
    assert as_json_value([pandas.NaT, pandas.Timestamp("2026-01-02")]) == [None, "2026-01-02T00:00:00"]
    assert as_json_value({"a": np.float32(0.5), "b": np.arange(2)}) == {"a": 0.5, "b": [0, 1]}


def _json(client, body):
    from autojacobin.service.calls import Call

    headers = {"Content-Type": "application/json"}
    return client._send(
        Call("POST", "/v1/search", lambda content, _: json.loads(content), json.dumps(body).encode(), headers)
    )


def test_the_limit_on_work_counts_what_a_filter_leaves(named, points):
    limits = Limits(work=20 * N - 1, request_seconds=600)
    with serving({"named": named}, limits=limits) as address, Client(address, timeout=600) as client:
        for filters in ({"where": "price >= 0"}, {"among": NAMES}, {"among": [NAMES] * 20}):
            with pytest.raises(ServiceError, match=f"may be {limits.work}, got {20 * N}; send fewer vectors"):
                client.search(points[:20], 3, recall=1, **filters)
            assert client.search(points[:20], 3, **filters)[1].shape == (20, 3)  # fewer candidates by default
        for filters in ({"where": f"price >= {N - 5}"}, {"among": NAMES[-5:]}, {"among": [NAMES[-5:]] * 19 + [NAMES]}):
            found = client.search(points[:20], 3, recall=1, **filters)
            expected = named.search(points[:20], 3, recall=1, **filters)
            np.testing.assert_array_equal(found[1], expected[1])


def test_the_candidates_of_probes_are_counted(points):
    index = Index(LSH(20, random_state=0).fit(points), partitions=4)
    index.add(points)
    with (
        serving({"lists": index}, limits=Limits(work=1_000)) as address,
        Client(address, timeout=600) as client,
        pytest.raises(ServiceError, match="may be 1000, got 2000"),
    ):
        client.search(points[:20], 3, probes=2)
