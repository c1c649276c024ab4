"""Exact Hamming search, for the nearest and within a radius, against all distances."""

import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autojacobin import Codes, DataError
from autojacobin.search import hamming_radius, hamming_topk

# The fixture only chooses a kernel, so examples may share it.


def by_sorting(queries, base, k):
    """All distances, a stable sort: equal distances stay in the order of their ids."""
    distances = (queries.to_bits()[:, None, :] != base.to_bits()[None, :, :]).sum(axis=2)
    ids = np.argsort(distances, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(distances, ids, axis=1), ids


@given(st.integers(1, 300), st.integers(1, 60), st.integers(0, 5), st.floats(0, 1), st.data())
@pytest.mark.usefixtures("scanned_as")
def test_equals_brute_force(n_bits, n_base, n_queries, share_of_ones, data):
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    base = Codes.from_bits(rng.random((n_base, n_bits)) < share_of_ones)  # near 0 or 1: heavy ties
    queries = Codes.from_bits((rng.random((n_queries, n_bits)) < share_of_ones).reshape(n_queries, n_bits))
    k = data.draw(st.integers(1, n_base))
    distances, ids = hamming_topk(queries, base, k)
    expected_distances, expected_ids = by_sorting(queries, base, k)
    assert distances.shape == ids.shape == (n_queries, k)
    assert np.array_equal(distances, expected_distances)
    assert np.array_equal(ids, expected_ids)


def test_all_codes_equal_come_in_the_order_of_their_ids():
    base = Codes.from_bits(np.ones((50, 70)))
    distances, ids = hamming_topk(Codes.from_bits(np.zeros((2, 70))), base, 50)
    assert np.all(distances == 70)
    assert np.array_equal(ids, np.tile(np.arange(50), (2, 1)))


@pytest.mark.parametrize(
    ("k", "message"),
    [
        (0, "from 1 to 3, the size of the base, got 0"),
        (-1, "got -1"),
        (4, "got 4"),
        (1.5, "k must be an integer from 1 to 3, the size of the base, got 1.5"),
        ("2", "got '2'"),
    ],
)
def test_k_outside_the_base_is_named(k, message):
    codes = Codes.from_bits([[0, 1], [1, 1], [0, 0]])
    with pytest.raises(DataError, match=message):
        hamming_topk(codes, codes, k)


def test_codes_that_do_not_fit_are_named():
    codes = Codes.from_bits([[0, 1]])
    with pytest.raises(DataError, match="codes of one length, got 3 and 2 bits"):
        hamming_topk(Codes.from_bits([[0, 1, 1]]), codes, 1)
    with pytest.raises(DataError, match="queries must be Codes, got list"):
        hamming_topk([[0, 1]], codes, 1)


def correlated(n, n_bits, seed):
    """Codes as hashers make them: bits that depend on each other, distances spread wide, many ties."""
    rng = np.random.default_rng(seed)
    planes = np.random.default_rng(7).normal(size=(6, n_bits))
    return Codes.from_bits(rng.normal(size=(n, 6)) @ planes >= 0)


@pytest.mark.usefixtures("scanned_as")
@pytest.mark.parametrize("n_bits", [1, 31, 64, 65, 96, 127, 128, 129, 192, 256, 300, 512, 1024])
@pytest.mark.parametrize("k", [1, 10, 700, 20_000])
def test_equals_brute_force_over_many_tiles(n_bits, k):
    base, queries = correlated(20_000, n_bits, 0), correlated(5, n_bits, 1)
    distances, ids = hamming_topk(queries, base, k)
    words = [np.ascontiguousarray(np.pad(c.packed, ((0, 0), (0, -c.packed.shape[1] % 8)))) for c in (queries, base)]
    all_distances = np.bitwise_count(words[0][:, None, :] ^ words[1][None]).sum(axis=2, dtype=np.int64)
    order = np.argsort(all_distances, axis=1, kind="stable")[:, :k]
    assert np.array_equal(ids, order)
    assert np.array_equal(distances, np.take_along_axis(all_distances, order, axis=1))


def use_cores(cores, monkeypatch):
    for module in ("core.parallel", "search.scan"):
        monkeypatch.setattr(f"autojacobin.{module}.usable_cores", lambda: cores)


@pytest.mark.usefixtures("scanned_as")
@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("order", ["nearest last", "nearest first", "in clumps"])
def test_a_base_in_an_order_that_misleads_the_sample(order, cores, monkeypatch):
    """The radius is guessed from a sample of the tiles; where the guess is wrong the answer must not be."""
    use_cores(cores, monkeypatch)
    base, queries = correlated(140_000, 64, 0), correlated(3, 64, 1)
    distance = (base.to_bits() != queries.to_bits()[0]).sum(axis=1)
    if order == "in clumps":  # the near ones in a few tiles that the sample does not look at
        arranged = np.argsort(distance, kind="stable")
        arranged = np.roll(arranged, 3 * 2048)
    else:
        arranged = np.argsort(distance if order == "nearest first" else -distance, kind="stable")
    base = base[arranged]
    for k in (1, 100, 5000):
        distances, ids = hamming_topk(queries, base, k)
        all_distances = (queries.to_bits()[:, None] != base.to_bits()[None]).sum(axis=2)
        expected = np.argsort(all_distances, axis=1, kind="stable")[:, :k]
        assert np.array_equal(ids, expected)
        assert np.array_equal(distances, np.take_along_axis(all_distances, expected, axis=1))


@pytest.mark.parametrize("cores", [1, 2, 3, 7])
def test_the_number_of_threads_and_of_queries_does_not_matter(cores, monkeypatch):
    base, queries = correlated(50_000, 96, 0), correlated(70, 96, 1)
    expected = hamming_topk(queries, base, 30)
    use_cores(cores, monkeypatch)
    for start, stop in ((0, 70), (0, 1), (3, 5)):
        found = hamming_topk(queries[start:stop], base, 30)
        assert np.array_equal(found[0], expected[0][start:stop])
        assert np.array_equal(found[1], expected[1][start:stop])


def test_a_subset_is_searched_as_if_there_were_nothing_else():
    base, queries = correlated(500, 40, 0), correlated(3, 40, 1)
    rows = np.random.default_rng(0).choice(500, 80, replace=False)
    mask = np.zeros(500, dtype=bool)
    mask[rows] = True
    expected, places = hamming_topk(queries, base[np.sort(rows)], 20)
    for subset in (rows, np.concatenate([rows, rows]), mask, rows.tolist()):
        distances, ids = hamming_topk(queries, base, 20, subset=subset)
        assert np.array_equal(ids, np.sort(rows)[places])
        assert np.array_equal(distances, expected)


@pytest.mark.parametrize(
    ("subset", "message"),
    [
        ([], "the subset is empty"),
        ([0, 9], "rows from 0 to 2, got 9"),
        ([-1], "got -1"),
        ([0.5], "list of row numbers or a mask"),
        ([True, False], r"mask must have shape \(3,\)"),
        ([[0]], "list of row numbers or a mask"),
        ([1], "from 1 to 1, the size of the subset, got 2"),
    ],
)
def test_a_wrong_subset_is_named(subset, message):
    codes = Codes.from_bits([[0, 1], [1, 1], [0, 0]])
    with pytest.raises(DataError, match=message):
        hamming_topk(codes, codes, 2, subset=subset)


def test_an_empty_base_is_named():
    with pytest.raises(DataError, match="the base is empty"):
        hamming_topk(Codes.from_bits([[0, 1]]), Codes.from_bits(np.empty((0, 2))), 1)


@pytest.mark.rare
def test_where_no_cache_can_be_written_the_kernels_still_work(tmp_path):
    """A read-only installation and a user without a home: each process then compiles for itself."""
    code = (
        "import numba.core.caching as caching\n"
        "caching.CacheImpl._locator_classes = []\n"
        "from autojacobin import Codes\n"
        "from autojacobin.search import hamming_topk\n"
        "print(hamming_topk(Codes.from_bits([[1, 0]]), Codes.from_bits([[0, 0], [1, 0]]), 1)[1])\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=1200)
    assert result.returncode == 0, result.stderr
    assert result.stdout == "[[1]]\n"


@pytest.mark.usefixtures("scanned_as")
@pytest.mark.parametrize("k", [1, 3000, 40_000, 150_000])
def test_more_wanted_than_a_tile_holds(k):
    """The sample's own first guess comes from one tile, which may hold fewer codes than are wanted."""
    base, queries = correlated(200_000, 16, 0), correlated(2, 16, 1)
    distances, ids = hamming_topk(queries, base, k)
    all_distances = np.bitwise_count(queries.packed[:, None] ^ base.packed[None]).sum(axis=2, dtype=np.int64)
    order = np.argsort(all_distances, axis=1, kind="stable")[:, :k]
    assert np.array_equal(ids, order)
    assert np.array_equal(distances, np.take_along_axis(all_distances, order, axis=1))


@pytest.mark.rare
def test_a_machine_without_wide_registers_finds_the_same(tmp_path):
    """The adders are written for AVX-512, and come out in narrower registers where there is none."""
    program = (
        "import numpy as np\n"
        "from autojacobin import Codes\n"
        "from autojacobin.search import asymmetric_topk, hamming_topk, rerank\n"
        "rng = np.random.default_rng(0)\n"
        "base, queries = (Codes.from_bits(rng.integers(0, 2, (n, 64))) for n in (3000, 40))\n"
        "gaps = (queries.to_bits()[:, None] != base.to_bits()[None]).sum(axis=2)\n"
        "nearest = np.argsort(gaps, axis=1, kind='stable')[:, :20]\n"
        "assert np.array_equal(hamming_topk(queries, base, 20)[1], nearest)\n"
        "assert np.array_equal(hamming_topk(queries[:1], base, 20)[1], nearest[:1])\n"
        "assert np.array_equal(asymmetric_topk(queries.to_signs() * 2.0, base, 20)[1], nearest)\n"
        "vectors, ids = rng.integers(0, 256, (50, 70)).astype(np.uint8), np.tile(np.arange(50), (3, 1))\n"
        "squares = ((vectors[:3, None].astype(int) - vectors) ** 2).sum(axis=2)\n"
        "assert np.array_equal(rerank(vectors[:3], ids, vectors, 50)[0], np.sqrt(np.sort(squares, axis=1)))\n"
    )
    environment = {
        **os.environ,
        "NUMBA_CPU_NAME": "generic",
        "NUMBA_CPU_FEATURES": "",
        "NUMBA_CACHE_DIR": str(tmp_path),
    }
    result = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False, timeout=1200
    )
    assert result.returncode == 0, result.stderr


def test_codes_that_are_too_long_are_named():
    longest, longer = (Codes.from_bits(np.eye(2, n_bits, dtype=np.uint8)) for n_bits in (32_767, 32_768))
    assert hamming_topk(longest, longest, 2)[0].tolist() == [[0, 2], [0, 2]]
    with pytest.raises(DataError, match="at most 32,767 bits, got 32,768; use shorter codes"):
        hamming_topk(longer, longer, 2)


@given(st.integers(0, 2**32), st.integers(1, 200), st.integers(0, 60), st.integers(0, 5), st.integers(0, 220))
def test_a_radius_equals_brute_force(seed, n_bits, n_base, n_queries, radius):
    rng = np.random.default_rng(seed)
    base = Codes.from_bits(rng.integers(0, 2, (n_base, n_bits)))
    queries = Codes.from_bits(rng.integers(0, 2, (n_queries, n_bits)))
    subset = np.flatnonzero(rng.integers(0, 2, n_base)) if seed % 2 else None
    limits, distances, ids = hamming_radius(queries, base, radius, subset=subset)
    assert len(limits) == n_queries + 1
    for q in range(n_queries):
        all_distances = (queries.to_bits()[q] != base.to_bits()).sum(axis=1)
        kept = [i for i in (range(n_base) if subset is None else subset) if all_distances[i] <= radius]
        kept.sort(key=lambda i: (all_distances[i], i))
        found = slice(limits[q], limits[q + 1])
        assert ids[found].tolist() == kept
        assert distances[found].tolist() == [all_distances[i] for i in kept]


@pytest.mark.parametrize("radius", [-1, 1.5, "2"])
def test_a_wrong_radius_is_named(radius):
    codes = Codes.from_bits([[0, 1]])
    with pytest.raises(DataError, match="radius must be an integer of at least 0, got"):
        hamming_radius(codes, codes, radius)
