"""Search on a GPU: the same steps with the kernels in NumPy, with their source compiled for the CPU, and on a GPU."""

import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autojacobin import Codes, DataError
from autojacobin.core.arrays import to_host
from autojacobin.search import gpu
from autojacobin.search.asymmetric import asymmetric_queries
from autojacobin.search.decoded import decoded_queries, largest_weight
from autojacobin.search.queries import DistanceTerms, Projection
from autojacobin.search.tiles import Tiles
from tests.search.gpu_kernels import RUNNERS, FakeCuPy, use, with_numpy

pytestmark = pytest.mark.parametrize("runner", RUNNERS)


@pytest.fixture
def xp(runner, monkeypatch):
    return use(runner, monkeypatch)


def clustered_codes(n, n_bits, seed, dims=6):
    rng = np.random.default_rng(seed)
    planes = np.random.default_rng(99).normal(size=(dims, n_bits))
    return Codes.from_bits(rng.normal(size=(n, dims)) @ planes >= 0)


def on(xp, codes):
    return Codes(xp.asarray(codes.packed), codes.n_bits)


def brute_force(distances, k):
    ids = np.argsort(distances, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(distances, ids, axis=1), ids


def check(found, distances, k):
    expected, ids = brute_force(distances, k)
    assert np.array_equal(to_host(found[0]), expected)
    assert np.array_equal(to_host(found[1]), ids)


def hamming(queries, base):
    return np.bitwise_count(queries.packed[:, None] ^ base.packed[None]).sum(axis=2, dtype=np.int64)


@pytest.mark.parametrize("n_bits", [24, 64, 100, 128, 256, 1024])
def test_hamming_search_is_exact_with_ties_by_position(xp, n_bits):
    base, queries = clustered_codes(17_000, n_bits, 0), clustered_codes(3, n_bits, 1)
    store = gpu.DeviceCodes(on(xp, base))
    assert gpu.Sampling.of(17_000, 10) is not None
    for k in (1, 10, 700):
        found = store.nearest(gpu.DeviceQueries.of_codes(on(xp, queries)), k)
        check(found, hamming(queries, base), k)


@pytest.mark.parametrize(("n_bits", "n_level_bits"), [(20, 0), (64, 3), (128, 5), (250, 4), (1024, 0)])
def test_weighted_search_is_exact_with_ties_by_position(xp, n_bits, n_level_bits):
    rng = np.random.default_rng(2)
    base = clustered_codes(17_000, n_bits, 0)
    weights = rng.integers(0, 16, (19, n_bits)).astype(np.uint8)
    weights[:, n_bits - n_level_bits :] = rng.integers(0, 256, (19, n_level_bits))
    bits = clustered_codes(19, n_bits, 3).to_bits().astype(bool)
    if n_bits > 256:  # a second tile of queries is tested with shorter codes
        weights, bits = weights[:2], bits[:2]
    queries = gpu.DeviceQueries.weighted(xp.asarray(bits), xp.asarray(weights), xp.ones(len(bits)))
    differing = bits[:, None] != base.to_bits().astype(bool)[None]
    found = gpu.DeviceCodes(on(xp, base)).nearest(queries, 25)
    check(found, np.einsum("qnb,qb->qn", differing, weights.astype(np.int64), optimize=True), 25)


def test_many_equal_codes_get_a_second_turn(xp):
    base = Codes(np.repeat(clustered_codes(3, 128, 0).packed, 7_000, axis=0), 128)
    queries = clustered_codes(2, 128, 1)
    found = gpu.DeviceCodes(on(xp, base)).nearest(gpu.DeviceQueries.of_codes(on(xp, queries)), 9)
    check(found, hamming(queries, base), 9)


def test_a_sample_without_near_codes_or_full_of_them_changes_nothing(xp, monkeypatch):
    base, queries = clustered_codes(17_000, 64, 0), clustered_codes(2, 64, 1)
    distances = hamming(queries, base)
    orders = np.argsort(distances[0], kind="stable")
    for sample in (orders[-4250:], orders[:4250]):  # far codes alone, and near ones alone
        monkeypatch.setattr(gpu, "_sample", lambda xp, n, size, sample=sample: xp.asarray(np.sort(sample[:size])))
        found = gpu.DeviceCodes(on(xp, base)).nearest(gpu.DeviceQueries.of_codes(on(xp, queries)), 20)
        check(found, distances, 20)


@pytest.mark.parametrize("dtype", ["uint8", "float16", "float32", "float64"])
def test_vectors_are_compared_exactly(xp, dtype):
    rng = np.random.default_rng(0)
    vectors = rng.integers(0, 200, (17_000, 12)) if dtype == "uint8" else 100 + rng.normal(size=(17_000, 12))
    vectors = vectors.astype(dtype)
    vectors[9_000] = vectors[4_000]
    queries = vectors[[4_000, 1]].astype(np.float64) + np.array([[0.0], [0.25]])
    store = gpu.DeviceVectors(xp.asarray(vectors))
    squared = np.square(queries[:, None] - vectors[None].astype(np.float64)).sum(axis=2)
    for k in (1, 30):
        distances, ids = store.nearest(queries, k)
        expected, expected_ids = brute_force(squared, k)
        assert np.allclose(to_host(distances), np.sqrt(expected), rtol=1e-12)
        assert np.array_equal(to_host(ids), expected_ids)
    assert to_host(store.nearest(queries, 2)[1])[0].tolist() == [4_000, 9_000]
    positions = np.arange(1, 17_000, 17)
    some = to_host(store.nearest(queries, 10, xp.asarray(positions))[1])
    assert np.array_equal(some, positions[brute_force(squared[:, positions], 10)[1]])


def test_vectors_that_float32_cannot_tell_apart_get_a_second_turn(xp):
    rng = np.random.default_rng(0)
    vectors = np.where(rng.random((17_000, 1)) < 0.5, 1e6, -1e6) + rng.normal(scale=1e-5, size=(17_000, 4))
    queries = vectors[:2] + 1e-6
    ids = to_host(gpu.DeviceVectors(xp.asarray(vectors)).nearest(queries, 5)[1])
    squared = np.square(queries[:, None] - vectors[None]).sum(axis=2)
    assert np.array_equal(ids, brute_force(squared, 5)[1])


@pytest.mark.parametrize("number", [3, 200, 16_500])
def test_candidates_are_ordered_by_their_distance(xp, number):
    rng = np.random.default_rng(0)
    vectors, queries = rng.normal(size=(20_000, 8)).astype(np.float32), rng.normal(size=(2, 8))
    candidates = np.stack([rng.permutation(20_000)[:number] for _ in queries])
    distances, ids = gpu.DeviceVectors(xp.asarray(vectors)).among(queries, xp.asarray(candidates), 3)
    for row, query in enumerate(queries):
        chosen = np.sort(candidates[row])
        expected = np.sqrt(np.square(vectors[chosen].astype(np.float64) - query).sum(axis=1))
        assert np.array_equal(to_host(ids)[row], chosen[np.argsort(expected, kind="stable")[:3]])
        assert np.allclose(to_host(distances)[row], np.sort(expected)[:3], rtol=1e-12)


def test_codes_that_are_too_long_are_refused(xp):
    with pytest.raises(DataError, match=r"at most 1,024 bits, got 1,032; move them"):
        gpu.DeviceCodes(Codes(xp.zeros((2, 129), dtype=xp.uint8), 1032))


@given(
    n=st.integers(1, 40_000),
    k=st.integers(1, 10_000),
    n_bits=st.sampled_from([8, 33, 64]),
    dims=st.integers(1, 6),
    seed=st.integers(0, 2**16),
)
def test_any_number_of_neighbours_is_found(runner, n, k, n_bits, dims, seed):
    if runner != "numpy":
        pytest.skip("a property of the steps, which NumPy runs fastest")
    base, queries = clustered_codes(n, n_bits, seed, dims), clustered_codes(2, n_bits, seed + 1, dims)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpu, "launch", with_numpy)
        found = gpu.DeviceCodes(base).nearest(gpu.DeviceQueries.of_codes(queries), k)
    check(found, hamming(queries, base), min(k, n))


def test_hits_are_about_as_many_as_expected(xp):
    for n in (20_000, 10**6, 10**8):
        for k in (1, 10, 100, 1_000):
            sampling = gpu.Sampling.of(n, k)
            if sampling is not None:
                hits = sampling.rank * n / sampling.size
                assert k < hits <= sampling.capacity
                assert hits < 8 * k + 5_000


@pytest.mark.parametrize(("n_bits", "n_level_bits", "distance"), [(40, 3, "decoded"), (128, 0, "asymmetric")])
def test_a_projection_makes_the_queries_of_the_distance(xp, monkeypatch, n_bits, n_level_bits, distance):
    monkeypatch.setattr(gpu, "on_device", lambda array, _: xp.asarray(array))
    rng = np.random.default_rng(5)
    matrix, start, shift = rng.normal(size=(n_bits - n_level_bits, 9)), rng.normal(size=9), rng.normal(size=n_bits)
    vectors = rng.normal(size=(18, 9))
    vectors[3] = start  # whose products are zero
    weights = np.tile(shift, (18, 1))
    weights[:, : n_bits - n_level_bits] += 2 * (vectors - start) @ matrix.T
    squares = np.square(vectors - start).sum(axis=1) + 0.5
    terms = DistanceTerms(weights, squares, n_level_bits)
    expected = decoded_queries(terms) if distance == "decoded" else asymmetric_queries(weights)
    projection = Projection(matrix, start, shift, n_level_bits, 0.5)
    largest = largest_weight(n_bits - n_level_bits, distance)
    made = gpu.DeviceProjection(projection, largest, distance == "decoded").queries(xp.asarray(vectors))
    base = clustered_codes(300, n_bits, 0)
    wanted = Tiles.from_codes(base).nearest(expected, 300)
    found = gpu.DeviceCodes(on(xp, base)).nearest(made, 300)
    assert np.array_equal(to_host(found[0]), wanted[0])
    assert np.array_equal(to_host(found[1]), wanted[1])
    assert np.allclose(to_host(made.real(found[0])), expected.real(wanted[0]), rtol=1e-5, atol=1e-4)
    rows = xp.asarray(np.array([17, 2]))
    assert np.array_equal(to_host(gpu.DeviceCodes(on(xp, base)).nearest(made[rows], 5)[1]), wanted[1][[17, 2], :5])


@pytest.mark.parametrize("n_queries", [2, 9])
def test_candidates_of_codes_are_ordered_by_their_distance(xp, monkeypatch, n_queries):
    monkeypatch.setattr(gpu, "on_device", lambda array, _: xp.asarray(array))
    if xp is np:
        monkeypatch.setitem(sys.modules, "cupy", FakeCuPy())
    rng = np.random.default_rng(6)
    vectors, planes = rng.normal(size=(17_000, 8)), rng.normal(size=(64, 8))
    base, queries = Codes.from_bits(vectors @ planes.T >= 0), vectors[:n_queries] + 0.1
    codes, store = gpu.DeviceCodes(on(xp, base)), gpu.DeviceVectors(xp.asarray(vectors.astype(np.float32)))
    projection = gpu.DeviceProjection(Projection(planes, np.zeros(8), np.zeros(64)), 15, decoded=False)
    search = gpu.RerankedSearch(codes, store, projection)
    for turn in range(4):
        asked = queries if turn != 1 else queries + 1.0
        candidates = codes.nearest(projection.queries(xp.asarray(asked)), 40)[1]
        expected = store.among(xp.asarray(asked), candidates, 7)
        found = search.nearest(asked, 40, 7)
        assert np.array_equal(found[1], to_host(expected[1]))
        assert np.allclose(found[0], to_host(expected[0]), rtol=1e-12)
        if turn == 2:  # a recording of a first turn that found nothing, so that all get a second turn
            monkeypatch.setattr(search, "_first_turn", lambda *_: np.full((2, n_queries, 7), -1).view(np.float64))


@pytest.mark.parametrize("n_centres", [8, 152, 304])
def test_the_lists_of_vectors_have_the_smallest_costs(xp, n_centres):
    n, width, rng = 37, 45, np.random.default_rng(7)
    rows, directions = rng.integers(-2, 3, (2, n, width)).astype(np.float32)
    points = rng.integers(-1, 2, (n_centres, width)).astype(np.float32)  # with equal costs
    points[-2] = points[0]
    norms, shifts = (rng.integers(0, 9, size).astype(np.float32) for size in (n_centres, n))
    norms[-2], norms[-1] = norms[0], np.inf
    sizes, largest = rng.uniform(60, 120, n).astype(np.float32), np.float32(128)

    def in_halves(products, sizes):  # as wrong as they may be
        return (products / sizes + rng.uniform(-1, 1, products.shape) * (2.0**-9 - 2.0**-11)).astype(np.float16)

    found = xp.empty((2, n), dtype=np.int32)
    halves = in_halves(rows @ points.T, sizes[:, np.newaxis]), in_halves(directions @ points.T, largest)
    rows_here, points_here, norms_here, products, sizes_here, directions_here, along, shifts_here = map(
        xp.asarray, (rows, points, norms, halves[0], sizes, directions, halves[1], shifts)
    )
    counts = np.uint32(n), np.uint32(n_centres)
    given = rows_here, points_here, np.int32(width), norms_here, *counts, products, sizes_here
    gpu.launch("first_centres", (), (5,), 256, (*given, found[0]))
    second = directions_here, along, largest, shifts_here, found[0], found[1]
    gpu.launch("second_centres", (), (5,), 256, (*given, *second))
    for row, (first, second) in enumerate(to_host(found).T):
        costs = [norms[i] - 2 * rows[row] @ points[i] for i in range(n_centres)]
        assert first == costs.index(min(costs))
        costs = [costs[i] + (shifts[row] - directions[row] @ points[i]) ** 2 for i in range(n_centres)]
        costs[first] = np.inf
        assert second == costs.index(min(costs))
