"""The nearest codes of tiles against sorting all distances, ties included, whatever the estimates were."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autojacobin import Codes
from autojacobin.search.asymmetric import asymmetric_queries
from autojacobin.search.hamming import hamming_queries
from autojacobin.search.kernels import scan
from autojacobin.search.kernels.bitslice import slice_queries
from autojacobin.search.tiles import Tiles

N = 2048 * 20 + 77  # enough tiles for a sample, and a last one that is not full
LARGE = 2 * N  # enough for a larger sample


def projections(n, n_bits, seed):
    """Real values near a surface of few dimensions, so that bits depend on each other."""
    rng = np.random.default_rng(seed)
    mixing = np.random.default_rng(99).normal(size=(6, n_bits))
    return (rng.normal(size=(n, 6)) @ mixing + rng.normal(size=(n, n_bits)) / 2).astype(np.float32)


def prepared(values, weighted):
    return asymmetric_queries(values) if weighted else hamming_queries(Codes.from_bits(values >= 0))


def distances(base, values, weighted):
    """Whole distances by definition, from products of small whole numbers, which floats hold exactly."""
    signs = 2.0 * base.take(np.arange(base.n)).to_bits() - 1
    weights = np.rint(np.abs(values) / (np.abs(values).max(axis=1) / 15)[:, None]) if weighted else np.ones_like(values)
    return (weights.sum(axis=1, keepdims=True) - (np.where(values >= 0, weights, -weights) @ signs.T)) / 2


def by_sorting(base, values, weighted, k, allowed=None):
    keys = distances(base, values, weighted).astype(np.int64) * 2**20 + np.arange(base.n)
    if allowed is not None:
        keys[:, np.unpackbits(allowed, count=base.n, bitorder="little") == 0] += 2**50
    nearest = np.sort(np.partition(keys, k - 1, axis=1)[:, :k], axis=1)
    return nearest >> 20, nearest & (2**20 - 1)


@pytest.fixture(scope="module")
def bases():
    return {n_bits: base_of(N, n_bits) for n_bits in (40, 130)}


def base_of(n, n_bits, seed=0):
    return Tiles.from_codes(Codes.from_bits(projections(n, n_bits, seed) >= 0))


def check(base, values, weighted, k, allowed=None):
    expected, queries = by_sorting(base, values, weighted, k, allowed), prepared(values, weighted)
    found = base.nearest(queries, k, allowed)
    assert np.array_equal(found[0], expected[0])
    assert np.array_equal(found[1], expected[1])
    unordered = base.nearest(queries, k, allowed, in_order=False)[1]
    assert np.array_equal(np.sort(unordered, axis=1), np.sort(expected[1], axis=1))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("n_bits", [40, 130])
@pytest.mark.parametrize("k", [1, 300, 3000])
def test_the_nearest_are_found_in_order_and_in_any_order(bases, n_bits, weighted, k):
    for n_queries in (3, 20, 40, 140):  # words and slices, in parts of the tiles and in blocks of queries
        check(bases[n_bits], projections(n_queries, n_bits, 1), weighted, k)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("n", [100, 2048 * 5 + 1, 2048 * 17])
def test_small_bases(weighted, n):
    base = base_of(n, 40, 4)
    for k in (1, 90, min(n, 1500)):
        check(base, projections(140, 40, 5), weighted, k)


@given(st.integers(0, 2**32), st.booleans(), st.integers(1, 500))
@settings(max_examples=8)
def test_only_allowed_positions_count_and_ties_go_to_the_first(bases, seed, weighted, k):
    rng = np.random.default_rng(seed)
    allowed = np.packbits(rng.random(N) >= rng.random() * 0.9, bitorder="little")
    values = projections(130, 40, seed)
    values[::3] = values[0]  # and equal queries
    check(bases[40], values, weighted, k, allowed)


@pytest.mark.parametrize("radius", [1, 3, 39, None])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("k", [50, 1500])
def test_bad_estimates_cost_time_only(bases, radius, weighted, k, monkeypatch):
    estimated = []

    def estimate(words, n, sliced, allowed, n_levels, k):
        estimated.append(len(sliced.rows))
        radii = np.full(len(sliced.rows), n_levels if radius is None else radius)
        radii[::2] = 8 if not weighted else 60  # some are good
        return radii

    monkeypatch.setattr(scan, "usable_cores", lambda: 1)
    monkeypatch.setattr(scan, "_radius_estimates", estimate)
    values = projections(150, 40, 2)
    found = bases[40].nearest(prepared(values, weighted), k)[1]
    assert sum(estimated) == 150
    assert np.array_equal(found, by_sorting(bases[40], values, weighted, k)[1])


def test_nothing_depends_on_the_number_of_threads_or_queries(bases, monkeypatch):
    queries = prepared(projections(600, 40, 3), True)
    whole = bases[40].nearest(queries, 100)[1]
    assert np.array_equal(bases[40].nearest(queries[:5], 100)[1], whole[:5])
    for cores in (1, 3):
        monkeypatch.setattr(scan, "usable_cores", lambda cores=cores: cores)
        monkeypatch.setattr(scan, "_QUERIES_PER_TASK", 100 * cores)
        assert np.array_equal(bases[40].nearest(queries, 100)[1], whole)


def radius_estimates(base, queries, allowed, k):
    sliced = slice_queries(queries.words, queries.planes, queries.n_levels, base.codes_per_tile)
    bitmap = scan._allowed_words(base.words, base.n, allowed)
    return scan._radius_estimates(base.words, base.n, sliced, bitmap, queries.n_levels, k)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("n_bits", [40, 130])
@pytest.mark.parametrize(("k", "wanted", "chunks"), [(300, 10**6, 16), (300, 1, 32), (3000, 10**6, 16)])
def test_the_estimate_is_the_distance_of_a_rank_in_a_sample(n_bits, weighted, k, wanted, chunks, monkeypatch):
    base = base_of(LARGE, n_bits)
    values = projections(33, n_bits, 7)
    dead = np.packbits(np.random.default_rng(0).random(LARGE) < 0.3, bitorder="little")
    monkeypatch.setattr(scan, "_capacity", lambda k: 2 * wanted)
    radii = radius_estimates(base, prepared(values, weighted), ~dead, k)
    whole = LARGE // 512
    sample = (512 * (np.arange(chunks) * whole // chunks)[:, None] + np.arange(512)).ravel()
    sample = sample[np.unpackbits(dead, count=LARGE, bitorder="little")[sample] == 0]
    bits = base.take(sample).to_bits().astype(bool)
    weights = np.rint(np.abs(values) / (np.abs(values).max(axis=1) / 15)[:, None]) if weighted else np.ones_like(values)
    gaps = ((values >= 0)[:, None] != bits[None]) * weights[:, None]
    share = k * 512 * chunks / LARGE
    rank = int(share + 3 * share**0.5 + 4)
    assert np.array_equal(radii, np.sort(gaps.sum(axis=2), axis=1)[:, rank - 1] + 1)


@pytest.mark.parametrize("n", [1, 511, 512 * 3, 512 * 15 + 511])
def test_in_a_small_base_all_codes_are_within_the_radius(n):
    base = base_of(n, 40, 4)
    assert np.all(radius_estimates(base, prepared(projections(33, 40, 5), False), scan.ALL_ALLOWED, 1) == 41)
    bitmap = scan._allowed_words(base.words, n, scan.ALL_ALLOWED)
    assert np.bitwise_count(bitmap).sum() == n


@pytest.mark.parametrize("n_bits", [600, 2100])
@pytest.mark.parametrize("weighted", [False, True])
def test_codes_that_are_too_long_to_be_sliced(n_bits, weighted):
    base = Tiles.from_codes(Codes.from_bits(projections(700, n_bits, 8) >= 0))
    values = projections(12, n_bits, 9)
    found, expected = base.nearest(prepared(values, weighted), 40), by_sorting(base, values, weighted, 40)
    assert np.array_equal(found[0], expected[0])
    assert np.array_equal(found[1], expected[1])
