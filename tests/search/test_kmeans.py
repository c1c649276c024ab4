"""k-means and the nearest of its centres, against brute force."""

import os
import subprocess
import sys

import numba
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autojacobin.core import simd
from autojacobin.errors import DataError
from autojacobin.search import centres as centres_module
from autojacobin.search.centres import Centres
from autojacobin.search.kernels import byte_products
from autojacobin.search.kernels.coarse_quantiser import cells_to_look_at
from autojacobin.search.kmeans import kmeans
from tests.hashers.methods import digits


def squared_distances(X, points):
    return ((X[:, None].astype(float) - points[None].astype(float)) ** 2).sum(axis=2)


def whole_vectors(seed, n, width=5):
    return np.random.default_rng(seed).integers(0, 6, (n, width)).astype(np.float32)


@given(st.integers(0, 2**32), st.integers(1, 200), st.integers(1, 200))
def test_vectors_are_assigned_to_the_nearest_centre(seed, n, n_centres):
    X, points = whole_vectors(seed, n), whole_vectors(seed + 1, n_centres)
    labels = Centres(points).assign(X)
    expected = squared_distances(X, points)
    assert np.allclose(expected[np.arange(n), labels], expected.min(axis=1), atol=1e-4)


@given(st.integers(0, 2**32), st.integers(1, 100), st.integers(2, 200))
def test_the_second_centre_is_near_and_what_is_left_points_elsewhere(seed, n, n_centres):
    rng = np.random.default_rng(seed)
    X, points = rng.normal(size=(n, 6)).astype(np.float32), rng.normal(size=(n_centres, 6)).astype(np.float32)
    squared = squared_distances(X, points)
    order = np.argsort(squared, axis=1)[:, :24]
    for x, numbers, first, second in zip(X, order, *Centres(points).first_and_second(X), strict=True):
        gaps = x - points[numbers[1:]]
        left = x - points[numbers[0]]
        costs = (gaps**2).sum(axis=1) + (gaps @ left) ** 2 / (left**2).sum()
        assert first == numbers[0]
        assert second in numbers[1:]
        assert costs[numbers[1:] == second] == pytest.approx(costs.min(), rel=1e-3)


@given(st.integers(0, 2**32), st.integers(1, 50), st.integers(1, 200), st.data())
def test_the_nearest_centres_are_found_in_order(seed, n, n_centres, data):
    X, points = whole_vectors(seed, n), whole_vectors(seed + 1, n_centres)
    wanted = data.draw(st.integers(1, n_centres))
    usable = np.random.default_rng(seed).random(n_centres) < data.draw(st.sampled_from([0.0, 0.3, 1.0]))
    for mask in (None, usable):
        numbers, squared = Centres(points).nearest(X, wanted, mask)
        expected = squared_distances(X, points)
        if mask is not None:
            expected[:, ~mask] = np.inf
        assert np.allclose(squared, np.sort(expected, axis=1)[:, :wanted], atol=1e-4)
        assert np.array_equal(numbers == -1, np.isinf(squared))
        found = np.take_along_axis(expected, np.maximum(numbers, 0), axis=1)
        assert np.allclose(np.where(numbers < 0, np.inf, found), squared, atol=1e-4)
        for row in numbers:
            assert len(set(row[row >= 0])) == (row >= 0).sum()


@given(st.integers(0, 2**32), st.integers(1, 9), st.integers(1, 300), st.integers(1, 70), st.data())
def test_the_nearest_centres_of_real_vectors_are_found_whoever_asks_with_them(seed, n, n_centres, width, data):
    rng = np.random.default_rng(seed)
    scales = 10 ** rng.uniform(-3, 3, width)  # features of very different sizes, which bytes hold badly
    X, points = ((rng.normal(size=(rows, width)) * scales).astype(np.float32) for rows in (n, n_centres))
    wanted = data.draw(st.integers(1, n_centres))
    numbers, squared = Centres(points).nearest(X, wanted)
    expected = np.sort(squared_distances(X, points), axis=1)[:, :wanted]
    assert np.allclose(squared, expected, rtol=1e-4)
    for row in range(n):
        alone = Centres(points).nearest(X[row : row + 1], wanted)
        assert np.array_equal(alone[0][0], numbers[row])
        assert np.array_equal(alone[1][0], squared[row])


@given(st.integers(0, 2**32), st.integers(65, 400))
def test_cells_are_ranked_by_the_distances_of_their_means(seed, n_centres):
    rng = np.random.default_rng(seed)
    points, X = (rng.normal(size=(rows, 4)).astype(np.float32) for rows in (n_centres, 5))
    centres, numbers = Centres(points), np.tile(np.arange(n_centres, dtype=np.int32), (5, 1))
    cells = np.array_split(centres.order, range(64, n_centres, 64))
    squared = squared_distances(X, np.array([points[cell].mean(axis=0) for cell in cells]))
    ranks = centres.ranks_of_cells(X, numbers)
    for number, cell in enumerate(cells):
        nearer = (squared < squared[:, number : number + 1] - 1e-4).sum(axis=1)
        as_near = (squared < squared[:, number : number + 1] + 1e-4).sum(axis=1)
        assert ((nearer[:, np.newaxis] <= ranks[:, cell]) & (ranks[:, cell] < as_near[:, np.newaxis])).all()


@given(st.integers(0, 2**32), st.integers(1, 9), st.integers(130, 400), st.data())
def test_all_cells_hold_all_centres_and_the_nearest_cells_most_of_the_nearest(seed, n, n_centres, data):
    rng = np.random.default_rng(seed)
    points = rng.normal(size=(n_centres, 4)).astype(np.float32)
    X, wanted = rng.normal(size=(n, 4)).astype(np.float32), data.draw(st.integers(1, 20))
    expected = Centres(points).nearest(X, wanted)
    n_cells = -(-n_centres // byte_products.CENTRES_PER_GROUP)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(centres_module, "FEWEST_IN_CELLS", 65)
        centres = Centres(points)
        assert np.array_equal(np.sort(centres.order), np.arange(n_centres))
        assert all(map(np.array_equal, centres.nearest(X, wanted), expected))
        for looked_at in (n_cells, (n_cells + 1) // 2):
            patch.setattr(centres_module, "cells_to_look_at", lambda _, __, looked_at=looked_at: looked_at)
            numbers, squared = centres.nearest(X, wanted, exact=False)
            assert np.allclose(squared, np.take_along_axis(squared_distances(X, points), numbers, axis=1), rtol=1e-4)
            assert (np.diff(squared, axis=1) >= 0).all()
            if looked_at == n_cells:
                assert np.array_equal(numbers, expected[0])


def test_few_of_many_nearest_centres_are_missed_all_in_cells_that_are_far():
    rng = np.random.default_rng(0)
    points = (rng.normal(size=(8192, 6)) @ rng.normal(size=(6, 16))).astype(np.float32)
    X = points[:200] + rng.normal(size=(200, 16)).astype(np.float32) / 10
    centres = Centres(points)
    for wanted in (1, 16, 64):
        looked_at = cells_to_look_at(len(points), wanted)
        assert 0 < looked_at < 64
        found, expected = (centres.nearest(X, wanted, exact=exact)[0] for exact in (False, True))
        missed = [len(set(right) - set(row)) for row, right in zip(found, expected, strict=True)]
        assert np.sum(missed) < 0.03 * expected.size
        ranks = centres.ranks_of_cells(X, expected)
        was_found = (expected[:, :, np.newaxis] == found[:, np.newaxis]).any(axis=2)
        assert (was_found == (ranks < looked_at)).mean() > 0.98  # a few more cells may be looked at
    assert cells_to_look_at(len(points), 4096) == 0


def test_sums_of_very_long_vectors_fit_their_type():
    rng = np.random.default_rng(0)
    points = rng.choice([-1.0, 1.0], size=(70, 150_000)).astype(np.float32)
    numbers, squared = Centres(points).nearest(-points[:3], 70)
    assert numbers[:, -1].tolist() == [0, 1, 2]
    assert np.allclose(squared, np.sort(2 * (150_000 + points[:3] @ points.T), axis=1))


def test_equal_centres_and_queries_at_their_mean_are_found():
    numbers, squared = Centres(np.full((5, 3), 7, dtype=np.float32)).nearest(np.full((2, 3), 7), 4)
    assert numbers.tolist() == [[0, 1, 2, 3]] * 2
    assert not squared.any()


@pytest.mark.parametrize("feature", ["avx512vnni", "avx512bw", "avx2", "dotprod", "none"])
@pytest.mark.parametrize("multiply", ["multiply_one", "multiply_some"])
def test_products_of_bytes_equal_those_of_numbers(feature, multiply, monkeypatch):
    if feature != "none" and not byte_products.machine_has(feature):
        pytest.skip(f"this machine has no {feature}")
    for module in (byte_products, simd):
        monkeypatch.setattr(module, "machine_has", lambda name: name == feature)
    monkeypatch.setattr(byte_products, "_SHIFTED", feature != "dotprod")
    function = getattr(byte_products, multiply)

    @numba.njit
    def call(asked, groups, products):
        for group in range(groups.shape[0]):
            function(asked, groups, group, products, group * 64)

    rng = np.random.default_rng(0)
    whole = rng.integers(-127, 128, (130, 33))
    whole[0], whole[1] = 127, -127
    groups = np.zeros((3, 10, 4, 16, 4), dtype=np.uint8)
    byte_products.write_groups.py_func(
        whole * 0.5, 0.5, 127, groups.view(np.int8 if feature == "dotprod" else np.uint8)
    )
    asked = np.zeros((4, 40), dtype=np.int8)
    asked[:, :33] = rng.integers(-127, 128, (4, 33))
    asked[0, :33] = 127
    products = np.zeros((4, 192), dtype=np.int32)
    call(asked, groups, products)
    shift = 0 if feature == "dotprod" else 127
    queries = slice(0, 1) if multiply == "multiply_one" else slice(0, 4)
    assert np.array_equal(products[queries, :130], asked[queries, :33].astype(int) @ (whole + shift).T)


@pytest.mark.rare
def test_a_machine_without_products_of_bytes_finds_the_same(tmp_path):
    program = (
        "import numpy as np\n"
        "from autojacobin.search.centres import Centres\n"
        "from tests.search.test_kmeans import squared_distances\n"
        "points, X = np.random.default_rng(0).normal(size=(2, 300, 30)).astype(np.float32)\n"
        "expected = np.sort(squared_distances(X, points), axis=1)[:, :20]\n"
        "assert np.allclose(Centres(points).nearest(X, 20)[1], expected, rtol=1e-4)\n"
    )
    environment = {
        **os.environ,
        "NUMBA_CPU_NAME": "generic",
        "NUMBA_CPU_FEATURES": "",
        "NUMBA_CACHE_DIR": str(tmp_path),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    result = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False, timeout=1200
    )
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("wrong", [1e25, 3e38, np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("n_centres", [5, 64, 70, pytest.param(2**13 + 5, marks=pytest.mark.rare)])
@pytest.mark.parametrize("n_queries", [1, 6])
def test_kernels_survive_numbers_that_float32_cannot_square(wrong, n_centres, n_queries):
    """What is found matters less than that no number is taken for a place in memory."""
    rng = np.random.default_rng(0)
    usual, asked = (rng.normal(size=(n, 7)).astype(np.float32) for n in (n_centres, n_queries))
    for points, queries in ((usual.copy(), asked), (usual, asked.copy()), (usual.copy(), asked.copy())):
        if points is not usual:
            points[3, 2] = wrong
        if queries is not asked:
            queries[-1, 4] = wrong
        for exact in (True, False):
            with np.errstate(all="ignore"):
                numbers, _ = Centres(points).nearest(queries, 5, exact=exact)
            assert numbers.min() >= -1
            assert numbers.max() < n_centres
            for row in numbers:
                assert len(set(row[row >= 0])) == (row >= 0).sum()
            if points is usual and n_queries > 1:  # the other queries
                expected = np.argsort(squared_distances(asked[:-1], usual), axis=1, kind="stable")[:, :5]
                assert np.isin(numbers[:-1, 0], expected).all() or not exact


def test_far_from_the_origin_distances_stay_precise():
    points = np.random.default_rng(0).normal(size=(40, 8)).astype(np.float32) + np.float32(10_000)
    X = points[:20] + np.float32(0.5)
    _, squared = Centres(points).nearest(X, 3)
    assert np.allclose(squared, np.sort(squared_distances(X, points), axis=1)[:, :3], rtol=1e-3)


def test_more_iterations_bring_the_centres_nearer():
    X = digits()
    errors = [
        squared_distances(X, kmeans(X, 20, n_iterations=n, random_state=1).points).min(axis=1).mean()
        for n in (1, 3, 30)
    ]
    assert errors[0] > errors[1] > errors[2]


def test_the_centres_are_the_means_of_their_lists():
    X = digits()
    centres = kmeans(X, 8, sample=len(X), n_iterations=200, random_state=0)
    labels = centres.assign(X)
    means = np.stack([X[labels == number].mean(axis=0) for number in range(8)])
    assert np.allclose(centres.points, means, atol=1e-4)


@pytest.mark.parametrize("dtype", [np.uint8, np.float16, np.float32, np.float64])
def test_all_types_of_vectors_are_taken(dtype):
    X = digits()[:500]
    expected = kmeans(X.astype(np.float32), 10, random_state=3)
    found = kmeans(X.astype(dtype), 10, random_state=3)
    assert np.allclose(found.points, expected.points, atol=1e-4)
    assert np.array_equal(found.assign(X.astype(dtype)), expected.assign(X))


def test_the_result_depends_on_the_seed_and_not_on_the_cores(monkeypatch):
    X = digits()
    results = []
    for cores in ("1", "2"):
        monkeypatch.setenv("OMP_NUM_THREADS", cores)
        results.append(kmeans(X, 30, sample=1000, random_state=5).points)
    assert np.array_equal(*results)
    assert not np.array_equal(results[0], kmeans(X, 30, sample=1000, random_state=6).points)


def test_no_list_stays_empty_while_another_can_be_split():
    X = np.repeat(whole_vectors(0, 30), 40, axis=0)  # most first centres are equal
    centres = kmeans(X, 25, n_iterations=60, random_state=0)
    distinct = len(np.unique(X, axis=0))
    used = len(np.unique(centres.assign(X)))
    assert used == min(25, distinct)


def test_prepareder_distinct_vectors_than_lists_leave_lists_empty():
    X = np.repeat(np.eye(3, dtype=np.float32), 10, axis=0)
    labels = kmeans(X, 7, random_state=0).assign(X)
    assert len(np.unique(labels)) == 3


def test_progress_is_reported():
    calls = []
    kmeans(digits(), 5, n_iterations=2, random_state=0, progress=lambda *call: calls.append(call))
    assert calls == [("partitioning", 1, 2), ("partitioning", 2, 2)]


def test_wrong_arguments_are_explained():
    X = digits()[:10]
    with pytest.raises(DataError, match="n_lists must be an integer from 1 to 10, the number of vectors, got 11"):
        kmeans(X, 11)
    with pytest.raises(DataError, match="vectors must have the 64 features of the centres, got 63"):
        kmeans(X, 2, random_state=0).assign(X[:, 1:])
    with pytest.raises(DataError, match="contains NaN in row 1"):
        kmeans(X, 2, random_state=0).assign(np.where(np.arange(10)[:, None] == 1, np.nan, X))
