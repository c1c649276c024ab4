"""Candidates in any order against the search in order: the same set, ties included, whatever the estimates were."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autojacobin import Codes
from autojacobin.search.asymmetric import asymmetric_queries
from autojacobin.search.hamming import hamming_queries
from autojacobin.search.kernels import candidates
from autojacobin.search.kernels.bitslice import slice_queries
from autojacobin.search.tiles import Tiles

N = 2048 * 40 + 77  # enough tiles for a sample, and a last one that is not full


def projections(n, n_bits, seed):
    """Real values near a surface of few dimensions, so that bits depend on each other."""
    rng = np.random.default_rng(seed)
    mixing = np.random.default_rng(99).normal(size=(6, n_bits))
    return (rng.normal(size=(n, 6)) @ mixing + rng.normal(size=(n, n_bits)) / 2).astype(np.float32)


def prepared(values, weighted):
    return asymmetric_queries(values) if weighted else hamming_queries(Codes.from_bits(values >= 0))


@pytest.fixture(scope="module")
def bases():
    return {n_bits: Tiles.from_codes(Codes.from_bits(projections(N, n_bits, 0) >= 0)) for n_bits in (40, 130)}


def collected(base, queries, k, allowed=None):
    """Positions of the candidates of each query, sorted, in whatever blocks they are found."""
    assert base.collects(10**6, k)
    positions = np.full((len(queries), k), -1)

    def keep(block, found):
        assert np.all(positions[block] == -1)
        positions[block] = found

    base.collect(queries, k, keep, allowed)
    return np.sort(positions, axis=1)


def check(base, queries, k, allowed=None):
    expected = base.nearest(queries, k, allowed)[1]
    assert np.array_equal(collected(base, queries, k, allowed), np.sort(expected, axis=1))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("n_bits", [40, 130])
@pytest.mark.parametrize("k", [1, 300, 3000])
def test_the_same_set_as_in_order(bases, n_bits, weighted, k):
    check(bases[n_bits], prepared(projections(140, n_bits, 1), weighted), k)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("n", [100, 2048 * 5 + 1, 2048 * 17])
def test_small_bases(weighted, n):
    base = Tiles.from_codes(Codes.from_bits(projections(n, 40, 4) >= 0))
    for k in (1, 90, min(n, 1500)):
        check(base, prepared(projections(140, 40, 5), weighted), k)


@given(st.integers(0, 2**32), st.booleans(), st.integers(1, 500))
@settings(max_examples=15)
def test_only_allowed_positions_count_and_ties_go_to_the_first(bases, seed, weighted, k):
    rng = np.random.default_rng(seed)
    allowed = np.packbits(rng.random(N) >= rng.random() * 0.9, bitorder="little")
    values = projections(130, 40, seed)
    values[::3] = values[0]  # and equal queries
    check(bases[40], prepared(values, weighted), k, allowed)


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

    queries = prepared(projections(150, 40, 2), weighted)
    expected = bases[40].nearest(queries, k)[1]
    monkeypatch.setattr(candidates, "_radius_estimates", estimate)
    found = collected(bases[40], queries, k)
    assert sum(estimated) == 150
    assert np.array_equal(found, np.sort(expected, axis=1))


@pytest.mark.parametrize("weighted", [False, True])
def test_too_large_a_radius_shrinks_and_no_query_is_searched_twice(bases, weighted, monkeypatch):
    queries = prepared(projections(150, 40, 2), weighted)
    expected = bases[40].nearest(queries, 60)[1]
    monkeypatch.setattr(candidates, "_radius_estimates", lambda *given: np.full(len(given[2].rows), queries.n_levels))
    monkeypatch.setattr(candidates, "topk", None)
    assert np.array_equal(collected(bases[40], queries, 60), np.sort(expected, axis=1))


def test_nothing_depends_on_the_number_of_threads_or_queries(bases, monkeypatch):
    queries = prepared(projections(600, 40, 3), True)
    whole = collected(bases[40], queries, 100)
    assert np.array_equal(collected(bases[40], queries[:5], 100), whole[:5])
    for cores in (1, 3):
        monkeypatch.setattr(candidates, "usable_cores", lambda cores=cores: cores)
        monkeypatch.setattr(candidates, "_QUERIES_PER_TASK", 100 * cores)
        assert np.array_equal(collected(bases[40], queries, 100), whole)


def radius_estimates(base, queries, allowed, k):
    sliced = slice_queries(queries.words, queries.planes, queries.n_levels, base.codes_per_tile)
    bitmap = candidates._allowed_words(base.words, base.n, allowed)
    return candidates._radius_estimates(base.words, base.n, sliced, bitmap, queries.n_levels, k)


@pytest.mark.parametrize(
    ("n_queries", "n_bits", "k", "expected"),
    [(63, 64, 10, False), (64, 64, 10, True), (64, 512, 10, True), (64, 513, 10, False), (64, 64, 10**5, False)],
)
def test_prepared_queries_long_codes_and_very_many_candidates_are_searched_in_order(
    n_queries, n_bits, k, expected, monkeypatch
):
    monkeypatch.setattr(candidates, "usable_cores", lambda: 1)
    assert Tiles.empty(1000, n_bits).collects(n_queries, k) == expected


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("n_bits", [40, 130])
@pytest.mark.parametrize(("k", "wanted", "chunks"), [(300, 10**6, 16), (300, 1, 32), (3000, 10**6, 16)])
def test_the_estimate_is_the_distance_of_a_rank_in_a_sample(bases, n_bits, weighted, k, wanted, chunks, monkeypatch):
    base = bases[n_bits]
    values = projections(33, n_bits, 7)
    dead = np.packbits(np.random.default_rng(0).random(N) < 0.3, bitorder="little")
    monkeypatch.setattr(candidates, "_capacity", lambda k: 2 * wanted)
    radii = radius_estimates(base, prepared(values, weighted), ~dead, k)
    whole = N // 512
    sample = (512 * (np.arange(chunks) * whole // chunks)[:, None] + np.arange(512)).ravel()
    sample = sample[np.unpackbits(dead, count=N, bitorder="little")[sample] == 0]
    bits = base.take(sample).to_bits().astype(bool)
    weights = np.rint(np.abs(values) / (np.abs(values).max(axis=1) / 15)[:, None]) if weighted else np.ones_like(values)
    gaps = ((values >= 0)[:, None] != bits[None]) * weights[:, None]
    share = k * 512 * chunks / N
    rank = int(share + 3 * share**0.5 + 4)
    assert np.array_equal(radii, np.sort(gaps.sum(axis=2), axis=1)[:, rank - 1] + 1)


@pytest.mark.parametrize("n", [1, 511, 512 * 3, 512 * 15 + 511])
def test_in_a_small_base_all_codes_are_within_the_radius(n):
    base = Tiles.from_codes(Codes.from_bits(projections(n, 40, 4) >= 0))
    assert np.all(radius_estimates(base, prepared(projections(33, 40, 5), False), candidates.ALL_ALLOWED, 1) == 41)
    bitmap = candidates._allowed_words(base.words, n, candidates.ALL_ALLOWED)
    assert np.bitwise_count(bitmap).sum() == n
