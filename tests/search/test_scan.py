"""The nearest codes of tiles against sorting all distances, ties included, whatever the estimates were."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autojacobin import Codes
from autojacobin.search import scan
from autojacobin.search.asymmetric import asymmetric_queries
from autojacobin.search.hamming import hamming_queries
from autojacobin.search.tiles import Tiles

N = 2048 * 20 + 77  # enough tiles for a sample, and a last one that is not full


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


@pytest.mark.parametrize("n", [1, 511, 2048 * 5 + 1])
def test_the_bitmap_of_allowed_codes_ends_with_the_base(n):
    base = base_of(n, 40, 4)
    assert np.bitwise_count(scan._allowed_words(base.words, n, scan.ALL_ALLOWED)).sum() == n


def test_nothing_depends_on_the_number_of_threads_or_queries(bases, monkeypatch):
    queries = prepared(projections(600, 40, 3), True)
    whole = bases[40].nearest(queries, 100)[1]
    assert np.array_equal(bases[40].nearest(queries[:5], 100)[1], whole[:5])
    for cores in (1, 3):
        monkeypatch.setattr(scan, "usable_cores", lambda cores=cores: cores)
        monkeypatch.setattr(scan, "_QUERIES_PER_TASK", 100 * cores)
        assert np.array_equal(bases[40].nearest(queries, 100)[1], whole)


@pytest.mark.parametrize("n_bits", [600, 2100])
@pytest.mark.parametrize("weighted", [False, True])
def test_codes_that_are_too_long_to_be_sliced(n_bits, weighted):
    base = Tiles.from_codes(Codes.from_bits(projections(700, n_bits, 8) >= 0))
    values = projections(12, n_bits, 9)
    found, expected = base.nearest(prepared(values, weighted), 40), by_sorting(base, values, weighted, 40)
    assert np.array_equal(found[0], expected[0])
    assert np.array_equal(found[1], expected[1])
