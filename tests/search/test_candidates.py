"""Candidates in any order against the search in order: the same set, ties included, whatever the guesses were."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autojacobin import Codes
from autojacobin.search import _candidates
from autojacobin.search._candidates import tiled_candidates
from autojacobin.search._topk import NO_PLANES, NONE_DEAD, tiled_topk
from autojacobin.search.asymmetric import quantise
from autojacobin.search.tiles import Tiles, code_words

N = 2048 * 40 + 77  # enough tiles for a sample, and a last one that is not full


def projections(n, n_bits, seed):
    """Real values near a surface of few dimensions, so that bits depend on each other."""
    rng = np.random.default_rng(seed)
    mixing = np.random.default_rng(99).normal(size=(6, n_bits))
    return (rng.normal(size=(n, 6)) @ mixing + rng.normal(size=(n, n_bits)) / 2).astype(np.float32)


def prepared(values, weighted):
    if weighted:
        query = quantise(values)
        return query.words, query.planes, query.n_levels
    codes = Codes.from_bits(values >= 0)
    return code_words(codes), NO_PLANES, codes.n_bits + 1


@pytest.fixture(scope="module")
def bases():
    return {n_bits: Tiles.from_codes(Codes.from_bits(projections(N, n_bits, 0) >= 0)) for n_bits in (40, 130)}


def check(base, queries, k, dead=NONE_DEAD):
    words, planes, n_levels = queries
    expected = tiled_topk(words, planes, base, k, n_levels=n_levels, dead=dead)[1]
    found = tiled_candidates(words, planes, base, k, n_levels=n_levels, dead=dead)
    assert found.dtype == np.int64
    assert np.array_equal(np.sort(found, axis=1), np.sort(expected, axis=1))


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
@settings(deadline=None, max_examples=15)
def test_the_dead_are_left_out_and_ties_go_to_the_first(bases, seed, weighted, k):
    rng = np.random.default_rng(seed)
    dead = np.packbits(rng.random(N) < rng.random() * 0.9, bitorder="little")
    values = projections(130, 40, seed)
    values[::3] = values[0]  # and equal queries
    check(bases[40], prepared(values, weighted), k, dead)


@pytest.mark.parametrize("radius", [1, 3, 39])
@pytest.mark.parametrize("weighted", [False, True])
def test_bad_guesses_cost_time_only(bases, radius, weighted, monkeypatch):
    asked = []

    def guess(search, first_tile, last_tile):
        asked.append(len(search.queries))
        rough = np.full(len(search.queries), radius)
        rough[::2] = 8 if not weighted else 60  # some are good
        return rough

    queries = prepared(projections(150, 40, 2), weighted)
    expected = tiled_topk(*queries[:2], bases[40], 50, n_levels=queries[2])[1]
    monkeypatch.setattr(_candidates._Search, "guess_radii", guess)
    found = tiled_candidates(*queries[:2], bases[40], 50, n_levels=queries[2])
    assert sum(asked) >= 150
    monkeypatch.undo()
    assert np.array_equal(np.sort(found, axis=1), np.sort(expected, axis=1))


def test_nothing_depends_on_the_number_of_threads_or_queries(bases, monkeypatch):
    words, planes, n_levels = prepared(projections(600, 40, 3), True)
    whole = np.sort(tiled_candidates(words, planes, bases[40], 100, n_levels=n_levels), axis=1)
    few = np.sort(tiled_candidates(words[:5], planes[:5], bases[40], 100, n_levels=n_levels), axis=1)
    assert np.array_equal(few, whole[:5])
    for cores in (1, 3):
        monkeypatch.setattr(_candidates, "usable_cores", lambda cores=cores: cores)
        monkeypatch.setattr(_candidates, "_QUERIES_PER_TASK", 100 * cores)
        again = tiled_candidates(words, planes, bases[40], 100, n_levels=n_levels)
        assert np.array_equal(np.sort(again, axis=1), whole)
