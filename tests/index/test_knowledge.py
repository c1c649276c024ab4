"""What an index knows about itself: against counts by brute force, stored, kept while little changes, and damaged."""

import copy

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autojacobin import LSH, DataError, FormatError, Index, PartitionedAutoencoder
from autojacobin.evaluation import ground_truth
from autojacobin.index import calibration
from autojacobin.index.calibration import learn
from autojacobin.index.knowledge import Knowledge
from autojacobin.index.plan import cheapest
from autojacobin.index.state import drawn
from autojacobin.search.centres import Centres
from tests.index.test_plan import clusters, recalls

LEARNS_FROM = 300  # queries; see tests/conftest.py

K = 10


@pytest.fixture(scope="module")
def X():
    return clusters(3000, seed=0)


@pytest.fixture(scope="module")
def learned(X):
    index = Index(LSH(24, random_state=0).fit(X))
    index.add(X)
    return index


@pytest.fixture
def index(learned):
    return copy.deepcopy(learned)


def tables(known):
    return [getattr(known, name) for name in ("levels", "candidates", "seen", "at_least", "thresholds", "codes", "far")]


def same(one, two):
    return all(np.array_equal(a, b) for a, b in zip(tables(one), tables(two), strict=True))


def test_the_recall_seen_is_that_of_searching_for_the_sample(index, X):
    known = index._state.knowledge
    own = drawn(index._state.segments, known.n_queries, seed=0)
    place = int(np.searchsorted(known.candidates, 60))
    number = int(known.candidates[place])
    # one more of each: the query itself is always found, and is no neighbour of its own
    _, ids = index.search(X[own], K + 1, candidates=number + 1)
    truth = ground_truth(X, X[own], K + 1)
    found = [set(row) & (set(true) - {i}) for row, true, i in zip(ids, truth, own, strict=True)]
    assert np.mean([len(one) / K for one in found]) == pytest.approx(known.seen[0, 0, place], abs=1e-6)


def test_lists_are_expected_to_hold_as_many_neighbours_as_they_do(X):
    index = Index(PartitionedAutoencoder(29, n_lists=32, random_state=0).fit(X))
    index.add(X)
    known, queries = index._state.knowledge, clusters(500, seed=4)
    squared = ((queries[:, None] - index._state.hasher.search_centres().points) ** 2).sum(axis=2)
    order = np.argsort(squared, axis=1)
    expected = np.exp(
        calibration.log_expected(np.take_along_axis(squared, order, axis=1).astype(np.float32), known.weights[0])
    )
    labels = index._state.hasher.split(index.codes(np.arange(3000)))[1]
    near = labels[ground_truth(X, queries, K)]
    held = np.array([[(near[q] == number).sum() for number in order[q]] for q in range(500)])
    assert expected.sum(axis=1).mean() == pytest.approx(K, rel=0.1)
    for ranks in (slice(0, 1), slice(1, 3)):
        assert expected[:, ranks].sum() == pytest.approx(held[:, ranks].sum(), rel=0.3)


@given(st.integers(0, 2**32), st.integers(1, 6), st.integers(1, 5))
def test_recalls_are_those_of_the_codes_above_a_threshold(seed, k, n_thresholds):
    rng = np.random.default_rng(seed)
    n_queries, n = 7, 60
    found = np.array([rng.permutation(80)[:n] for _ in range(n_queries)])
    found[rng.random(found.shape) < 0.1] = -1
    own = rng.integers(0, 80, n_queries)
    truth = np.array([rng.permutation(np.setdiff1d(np.arange(80), [i]))[: k + 2] for i in own])
    counts = rng.integers(0, k + 1, n_queries)
    counts[0] = k
    totals = counts + rng.random(n_queries)
    strengths = rng.normal(size=found.shape).round(1)
    thresholds, grid = -np.sort(-rng.normal(size=n_thresholds)), np.array([1, 3, 10, 60])
    first = (strengths[:, :, np.newaxis] < thresholds).sum(axis=2).astype(np.uint8)
    nearness = calibration._nearness(found, own, [calibration._Level(k, 1, truth, counts, totals)], 1, 1)
    seen, at_least = calibration._recalls(nearness, first, counts, totals, grid, n_thresholds)
    for t, threshold in enumerate(thresholds):
        for place, number in enumerate(grid):
            shares = []
            for q in range(n_queries):
                kept = [
                    i for i, s in zip(found[q], strengths[q], strict=True) if s >= threshold and i >= 0 and i != own[q]
                ]
                shares.append(len(set(kept[:number]) & set(truth[q, : counts[q]])))
            assert seen[t, place] == pytest.approx(sum(shares) / totals.sum())
            assert at_least[t, place] <= sum(shares) / totals.sum() + 1e-12


@pytest.mark.parametrize("chance", [0.8, 0.95, 0.99])
def test_the_bound_holds_for_about_95_samples_in_100(chance):
    rng, k = np.random.default_rng(0), 10
    truth, counts, bounds = np.tile(np.arange(k), (600, 1)), np.full(600, k), []
    for _ in range(300):
        found = np.where(rng.random((600, k)) < chance, truth, -1)
        level = calibration._Level(k, 1, truth, counts, counts.astype(float))
        nearness = calibration._nearness(found, np.full(600, -1), [level], 1, 1)
        table = calibration._recalls(nearness, np.zeros(found.shape, np.uint8), *level[3:], np.array([k]), 1)
        bounds.append(table[1][0, 0])
    assert np.mean(np.array(bounds) <= chance) >= 0.92
    assert np.mean(bounds) >= chance - 0.015  # and says something


def test_a_sample_of_a_large_base_asks_for_no_fewer(index, X, monkeypatch):
    whole = index.plan(20, recall=0.9).candidates
    monkeypatch.setattr(calibration, "_PRODUCTS", LEARNS_FROM * 12 * 1500)  # half of the base
    known = learn(index._state, "asymmetric")
    place = int(np.argmax(known.at_least[known.level(20), 0] >= 0.9))
    assert known.candidates[place] == pytest.approx(whole, rel=0.3)


@pytest.fixture(scope="module")
def taught(X):
    """An index with lists that has learned from 1,000 queries."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calibration, "_MOST_QUERIES", 1000)
        index = Index(PartitionedAutoencoder(29, n_lists=32, random_state=0).fit(X))
        index.add(X)
    return index


@pytest.mark.parametrize(("share", "depth"), [(0.05, 2048), (0.2, 60), (0.6, 60)])
def test_a_sample_of_a_large_base_shows_the_same_recall(taught, X, monkeypatch, share, depth):
    index, whole = taught, taught._state.knowledge
    monkeypatch.setattr(calibration, "_MOST_QUERIES", 1000)
    monkeypatch.setattr(calibration, "_PRODUCTS", 1000 * 12 * int(3000 * share))
    monkeypatch.setattr(calibration, "_MOST_PRODUCTS", 0)
    monkeypatch.setattr(calibration, "_DEPTH", depth)  # of 60 codes, only the sample has many of 50 neighbours
    known = learn(index._state, "decoded")
    squared = _squared(X[::7], index._state.hasher.search_centres().points)
    for level in range(3):
        expected = [np.interp(c, whole.candidates, whole.seen[level, -1]) for c in known.candidates]
        assert np.abs(known.seen[level, -1] - expected)[: np.searchsorted(known.candidates, depth)].max() < 0.015
        totals = [np.exp(calibration.log_expected(squared, some.weights[level])).sum() for some in (known, whole)]
        assert totals[0] == pytest.approx(totals[1], rel=0.1)


def test_a_table_that_promises_too_much_is_corrected_by_searches(taught, X, monkeypatch):
    recalls_of = calibration._recalls

    def promised(*arguments):
        return tuple(1 - (1 - table) / 3 for table in recalls_of(*arguments))

    monkeypatch.setattr(calibration, "_MOST_QUERIES", 1000)
    honest = learn(taught._state, "decoded")
    monkeypatch.setattr(calibration, "_recalls", promised)
    known = learn(taught._state, "decoded")
    for recall in (0.8, 0.9, 0.95):
        candidates = [cheapest(taught._state, some, K, recall, "decoded").candidates for some in (known, honest)]
        assert candidates[0] >= 0.9 * candidates[1]


def test_lists_in_cells_that_are_not_looked_at_count_as_missed(taught, X, monkeypatch):
    monkeypatch.setattr(calibration, "_MOST_QUERIES", 1000)
    monkeypatch.setattr(calibration, "cells_to_look_at", lambda _n_lists, _wanted: 1)
    monkeypatch.setattr(Centres, "ranks_of_cells", lambda _centres, _queries, numbers: numbers % 2)
    known, state = learn(taught._state, "decoded"), taught._state
    queries = drawn(state.segments, 1000, seed=0)[::4]  # all codes are looked at for every fourth one
    labels = state.hasher.split(taught.codes(np.arange(3000)))[1]
    near = ground_truth(X, X[queries], K + 1)[:, 1:]
    assert known.seen[0, -1, -1] == pytest.approx((labels[near] % 2 == 0).mean(), abs=1e-3)


def _squared(queries, points):
    return np.sort(((queries[:, None] - points) ** 2).sum(axis=2), axis=1).astype(np.float32)


def test_it_is_stored_and_read_again(index, X, tmp_path):
    index.save(tmp_path / "index")
    with Index.open(tmp_path / "index") as opened:
        assert same(opened._state.knowledge, index._state.knowledge)
        assert opened.plan(K).candidates == index.plan(K).candidates
        opened.verify()


def test_it_is_kept_until_a_tenth_has_changed_and_compact_learns(X, tmp_path):
    with Index.create(tmp_path / "index", LSH(24, random_state=0).fit(X)) as index:
        index.add(X)
        first = index._state.knowledge
        index.add(clusters(200, seed=6))
        index.remove(index.ids[:50])
        assert index._state.knowledge is first
        with Index.open(tmp_path / "index") as reader:
            assert same(reader._state.knowledge, first)
            assert reader._state.n_changed == 250
        index.compact()
        second = index._state.knowledge
        assert second.n == 3150
        assert same(second, learn(index._state, "asymmetric"))
        index.add(clusters(400, seed=7))
        assert index._state.knowledge.n == 3550
        assert index._state.n_changed == 0
        names = [path.name for path in (tmp_path / "index").glob("knowledge-*")]
        assert names == [index._state.manifest.knowledge.name]


def test_a_folder_without_it_learns_at_first_need(index, X, tmp_path):
    index._state = index._state.__class__(**{**vars_of(index._state), "knowledge": None})
    index.save(tmp_path / "index")
    with Index.open(tmp_path / "index") as opened:
        assert opened._state.knowledge is None
        queries = clusters(300, seed=1)
        assert recalls(opened.search(queries, K)[1], ground_truth(X, queries, K)).mean() >= 0.93
        assert opened._state.knowledge is None  # a search does not write
        opened.compact()
        assert opened._state.knowledge is not None


def vars_of(state):
    return {name: value for name, value in vars(state).items() if name != "kept"}


def test_damage_is_an_error(index, tmp_path):
    index.save(tmp_path / "index")
    (path,) = (tmp_path / "index").glob("knowledge-*")
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(FormatError, match="knowledge-.*does not match its checksum"):
        Index.open(tmp_path / "index")


@pytest.mark.parametrize("forged", [b"", b"no tables", None])
def test_a_forged_file_is_refused(index, forged):
    if forged is None:
        known = index._state.knowledge
        forged = Knowledge(**{**vars(known), "seen": known.seen[:, :, 1:]}).to_bytes()
    with pytest.raises(ValueError, match="tables"):
        Knowledge.from_bytes(forged)


def test_own_queries_are_learned_from_and_kept(index, X, tmp_path):
    far = clusters(1000, seed=3) * 3  # nothing like what is stored, and harder to find
    index.save(tmp_path / "index")
    with Index.open(tmp_path / "index") as opened:
        easy = opened.plan(K, recall=0.9)
        opened.learn(far[:500])
        hard = opened.plan(K, recall=0.9)
        assert hard.candidates > easy.candidates or hard.compares_all
        assert hard.compares_all or hard.n_queries == 500
        opened.add(clusters(400, seed=9))
        assert np.array_equal(opened._state.knowledge.own_queries, far[:500])
    with Index.open(tmp_path / "index") as opened:
        assert np.array_equal(opened._state.knowledge.own_queries, far[:500])
        _, ids = opened.search(far[500:], K, recall=0.9)
        base = opened.vectors(opened.ids)
        assert recalls(ids, ground_truth(base, far[500:], K)).mean() >= 0.88


def test_bad_queries_to_learn_from_are_named(index, X):
    before = index._state.knowledge
    with pytest.raises(DataError, match="learns from at least 100 queries, got 10"):
        index.learn(X[:10])
    with pytest.raises(DataError, match="queries have 5 features"):
        index.learn(X[:100, :5])
    wrong = X[:100].copy()
    wrong[3, 4] = np.nan
    with pytest.raises(DataError, match="NaN in row 3, column 4"):
        index.learn(wrong)
    for other in (Index(index.hasher), Index(index.hasher, keep_vectors=False)):
        with pytest.raises(DataError, match="an index learns by its vectors, and this one has none"):
            other.learn(X[:100])
    assert index._state.knowledge is before


def test_another_distance_is_learned_once(index, X, monkeypatch):
    learned = []
    monkeypatch.setattr(
        "autojacobin.index.index.learn", lambda *arguments: learned.append(arguments[1]) or learn(*arguments)
    )
    for _ in range(2):
        index.search(X[:3], K, distance="hamming", recall=0.9)
    index.add(clusters(20, seed=2))
    index.search(X[:3], K, distance="hamming", recall=0.9)
    assert learned == ["hamming"]
    index.search(X[:3], K)
    assert learned == ["hamming"]
    replaced = index.ids[: len(index) // 8]  # more than a tenth, so that all is learned again
    index.upsert(index.vectors(replaced), ids=replaced)
    index.search(X[:3], K, distance="hamming", recall=0.9)
    assert learned == ["hamming", "hamming"]
