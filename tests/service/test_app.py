"""What the service answers is what the library finds, to the last bit, in JSON and raw, alone and in company."""

import base64
import json
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autojacobin import LSH, Index, PartitionedAutoencoder, PartitionedHasher
from autojacobin.search.distances import distances_of
from autojacobin.service import Client, Limits, ServiceError, serving
from tests.service.conftest import WIDTH, N

RAW = "application/octet-stream"
KEYS = ("vectors", "hasher", "bits", "features", "vectors_kept", "metric", "ids", "columns", "lists", "generation")
METRICS = {
    "autojacobin_requests_total": "counter",
    "autojacobin_request_seconds": "histogram",
    "autojacobin_batch_vectors": "histogram",
    "autojacobin_batch_seconds": "histogram",
    "autojacobin_writes_total": "counter",
    "autojacobin_written_vectors_total": "counter",
    "autojacobin_waiting_vectors": "gauge",
    "autojacobin_requests_inside": "gauge",
    "autojacobin_index_vectors": "gauge",
    "autojacobin_index_generation": "gauge",
    "autojacobin_index_refreshes_total": "counter",
    "autojacobin_index_failed_refreshes_total": "counter",
}


@pytest.fixture(scope="module")
def client(service):
    with Client(service.address) as connected:
        yield connected


def test_all_candidates_give_the_euclidean_neighbours(service, points):
    queries = np.random.default_rng(4).normal(size=(5, WIDTH)).astype(np.float32)
    status, found = service.post(
        "/v1/search", {"index": "points", "vectors": queries.tolist(), "k": 7, "candidates": N}
    )
    gaps = queries[:, None, :].astype(np.float64) - points[None].astype(np.float64)
    exact = np.sqrt((gaps**2).sum(axis=2))
    order = np.argsort(exact, axis=1, kind="stable")[:, :7]
    assert status == 200
    assert found["ids"] == (3 * order).tolist()
    np.testing.assert_allclose(found["distances"], np.take_along_axis(exact, order, axis=1), rtol=1e-12)


@pytest.mark.parametrize("restriction", [{}, {"among": list(range(0, 500, 2))}])
def test_a_search_that_asks_for_nothing_has_the_default_of_the_library(service, index, points, restriction):
    status, found = service.post("/v1/search", {"index": "points", "vectors": points[:3].tolist(), **restriction})
    expected = index.search(points[:3], 10, **restriction)
    assert status == 200
    assert found["ids"] == expected[1].tolist()
    assert np.allclose(found["distances"], expected[0])


def test_without_vectors_the_codes_are_searched(service, bare, points):
    query = points[17, :5]
    status, found = service.post(
        "/v1/search", {"index": "bare", "vectors": [query.tolist()], "k": 9, "distance": "hamming"}
    )
    own, others = bare.hasher.encode(query[None]).to_bits(), bare.hasher.encode(points[:, :5]).to_bits()
    hamming = (own != others).sum(axis=1)
    order = np.argsort(hamming, kind="stable")[:9]
    assert status == 200
    assert found["ids"] == [order.tolist()]
    assert found["distances"] == [hamming[order].tolist()]


@settings(max_examples=15)
@given(
    n=st.integers(1, 4),
    k=st.integers(1, 50),
    extra=st.none() | st.integers(0, 100),
    distance=st.sampled_from(["hamming", "asymmetric"]),
    rerank=st.booleans(),
    seed=st.integers(0, 99),
)
def test_any_options_give_what_the_library_gives(index, client, service, n, k, extra, distance, rerank, seed):
    queries = np.random.default_rng(seed).normal(size=(n, WIDTH)).astype(np.float32)
    candidates = None if extra is None or not rerank else k + extra
    options = {"k": k, "candidates": candidates, "distance": distance, "rerank": rerank}
    expected = index.search(queries, **options)
    for found in (client.search(queries, index="points", **options), _by_json(service, queries, options)):
        np.testing.assert_array_equal(found[0], expected[0])  # exact: every number came through unchanged
        np.testing.assert_array_equal(found[1], expected[1])


def _by_json(service, queries, options):
    chosen = {name: value for name, value in options.items() if value is not None}
    status, found = service.post("/v1/search", {"index": "points", "vectors": queries.tolist(), **chosen})
    assert status == 200
    assert set(found) == {"index", "generation", "distances", "ids"}
    return found["distances"], found["ids"]


def test_ids_stand_for_their_vectors(service, client, index, points):
    status, found = service.post("/v1/search", {"index": "points", "id": 30, "k": 4})
    distances, ids = index.search(points[10][None], 4)
    assert status == 200
    assert (found["distances"], found["ids"]) == (distances.tolist(), ids.tolist())
    assert found["ids"][0][0] == 30
    several = client.search(ids=[30, 0], index="points", k=4)
    np.testing.assert_array_equal(several[1], index.search(points[[10, 0]], 4)[1])


def test_raw_in_and_json_out_and_the_other_way_round(service, index, points):
    expected = index.search(points[:3], 2, rerank=False)
    path = "/v1/search?index=points&k=2&rerank=false"
    told = {"Content-Type": RAW, "Autojacobin-Shape": f"3,{WIDTH}"}
    status, headers, body = service.ask("POST", path, points[:3].tobytes(), told)
    assert (status, headers["Content-Type"]) == (200, "application/json")
    assert json.loads(body)["ids"] == expected[1].tolist()
    asked = json.dumps({"index": "points", "vectors": points[:3].tolist(), "k": 2, "rerank": False})
    both = {"Content-Type": "application/json", "Accept": RAW}
    status, headers, body = service.ask("POST", "/v1/search", asked, both)
    assert (status, headers["Content-Type"], headers["Autojacobin-Shape"]) == (200, RAW, "3,2")
    assert body == expected[0].astype("<f8").tobytes() + expected[1].astype("<i8").tobytes()


def test_codes_come_in_base64_and_raw(service, client, index, points):
    expected = index.hasher.encode(points[:4])
    status, found = service.post("/v1/encode", {"index": "points", "vectors": points[:4].tolist()})
    assert (status, found["bits"]) == (200, 20)
    assert b"".join(map(base64.b64decode, found["codes"])) == expected.packed.tobytes()
    assert client.encode(points[:4], index="points") == expected


def test_what_is_served(client, service, index):
    listed = {entry["name"]: entry for entry in client.indexes()}
    assert set(listed) == {"points", "bare"}
    figures = index.info()
    assert listed["points"] == {
        "name": "points",
        **{key: figures[key] for key in KEYS},
        "trained_as": index.hasher.trained_as,
        "bitorder": None,
        "distances": {name: distance.summary for name, distance in distances_of(index.hasher).items()},
    }
    assert not listed["bare"]["vectors_kept"]
    assert json.loads(service.ask("GET", "/v1/indexes")[2])["limits"]["k"] == 50


def test_many_at_once_are_answered_together_and_each_gets_its_own(service, index):
    queries = np.random.default_rng(8).normal(size=(96, WIDTH)).astype(np.float32)
    ks = [1 + number % 3 for number in range(96)]
    batches = service.metric("autojacobin_batch_vectors_count")
    with ThreadPoolExecutor(12) as pool:
        found = list(pool.map(lambda number: _alone(service, queries[number], ks[number]), range(96)))
    for number, (distances, ids) in enumerate(found):
        expected = index.search(queries[number][None], ks[number])
        np.testing.assert_array_equal(distances, expected[0])
        np.testing.assert_array_equal(ids, expected[1])
    assert 0 < service.metric("autojacobin_batch_vectors_count") - batches <= 96


def _alone(service, query, k):
    with Client(service.address) as own:
        return own.search(query[None], k, index="points")


def test_metrics_are_what_prometheus_reads(service):
    service.post("/v1/search", {"index": "points", "id": 0, "k": 1})
    status, headers, body = service.ask("GET", "/metrics")
    assert (status, headers["Content-Type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    typed = set()
    for line in body.decode().splitlines():
        if line.startswith("# TYPE "):
            typed.add(line.split()[2])
        elif not line.startswith("#"):
            name, value = line.rpartition(" ")[0].partition("{")[0], float(line.rpartition(" ")[2])
            assert value >= 0
            assert name in typed or name.rpartition("_")[0] in typed
    assert dict(line.split()[2:] for line in body.decode().splitlines() if line.startswith("# TYPE ")) == METRICS
    assert service.metric('autojacobin_index_vectors{index="points"}') == N
    before = service.metric('autojacobin_requests_total{endpoint="/v1/search",status="200"}')
    service.post("/v1/search", {"index": "points", "id": 0, "k": 1})
    assert service.metric('autojacobin_requests_total{endpoint="/v1/search",status="200"}') == before + 1


def test_health(service):
    assert json.loads(service.ask("GET", "/healthz")[2]) == {"status": "ok"}
    assert json.loads(service.ask("GET", "/readyz")[2]) == {"status": "ready"}


@pytest.mark.parametrize("distance", ["hamming", "asymmetric"])
def test_a_recall_takes_the_candidates_that_the_library_chooses(service, client, index, points, distance):
    queries = points[5:9] + np.float32(0.01)
    expected = index.search(queries, 3, recall=0.9, distance=distance)
    for _ in range(2):  # learned, and known
        found = client.search(queries, 3, index="points", recall=0.9, distance=distance)
        np.testing.assert_array_equal(found[0], expected[0])
        np.testing.assert_array_equal(found[1], expected[1])


def test_an_index_with_lists_takes_probes_and_a_recall(points):
    indexes = {
        "residuals": Index(PartitionedAutoencoder(24, n_lists=8, random_state=0).fit(points)),
        "signs": Index(PartitionedHasher(LSH(24, random_state=0), n_lists=8, random_state=0).fit(points)),
    }
    for index in indexes.values():
        index.add(points)
    queries = points[5:9] + np.float32(0.01)
    patient = Limits(request_seconds=600)  # the first search may wait for the compiler
    with serving(indexes, limits=patient) as address, Client(address, timeout=600) as client:
        for name, index in indexes.items():
            for asked, options in (
                ({"probes": 2}, {"probes": 2}),
                ({"probes": 8, "rerank": False}, {"probes": "all", "rerank": False}),
                ({"recall": 0.9}, {"recall": 0.9}),
            ):
                found, expected = client.search(queries, 3, index=name, **asked), index.search(queries, 3, **options)
                np.testing.assert_array_equal(found[1], expected[1])
                np.testing.assert_allclose(found[0], expected[0], rtol=1e-6)
            with pytest.raises(ServiceError, match="probes must be an integer from 1 to 8, the number of lists, got 9"):
                client.search(queries, 3, index=name, probes=9)
            with pytest.raises(ServiceError, match="recall chooses how many lists to scan"):
                client.search(queries, 3, index=name, probes=2, recall=0.9)


def test_codes_come_in_either_bit_order(service, index, points):
    expected = index.hasher.encode(points[:3])
    for order in ("little", "big"):
        document = {"index": "points", "vectors": points[:3].tolist(), "bitorder": order}
        status, found = service.post("/v1/encode", document)
        assert status == 200
        assert found["codes"] == [base64.b64encode(row).decode() for row in expected.to_packed(order)]


def test_a_small_index_gives_what_it_has_and_a_recall_of_1_is_exact(points):
    few = Index(LSH(20, random_state=0).fit(points))
    few.add(points[:3])
    many = Index(few.hasher)
    many.add(points)
    limits = Limits(candidates=5, work=40)
    with serving({"few": few, "many": many}, limits=limits) as address:
        body = json.dumps({"index": "few", "vectors": points[:1].tolist()}).encode()
        request = urllib.request.Request(f"{address}/v1/search", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as response:
            assert len(json.load(response)["ids"][0]) == 3
        with Client(address) as client:
            exact = np.argsort(((points[:1] - points[:3]) ** 2).sum(axis=1), kind="stable")
            assert client.search(points[:1], 3, index="few", recall=1)[1].tolist() == [exact.tolist()]
            assert client.search(points[:3], 8, index="many")[1].shape == (3, 8)  # more than the limit of candidates
