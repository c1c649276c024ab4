"""Candidates for a wanted recall, against recalls counted by brute force, and the bound against what it promises."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autojacobin import ITQ, LSH, DataError, PartitionedAutoencoder, PartitionedHasher
from autojacobin.index import Index, calibration, held_out
from autojacobin.index.calibration import recall_bound

K = 5


def clusters(n, seed):
    """Points around a few centres: neighbours are worth looking for, and codes do not find all of them."""
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(99).normal(size=(20, 12)) * 2
    return (centres[rng.integers(0, 20, n)] + rng.normal(size=(n, 12))).astype(np.float32)


def exact_neighbours(base, queries, k):
    """Row numbers of the nearest, by all distances written out."""
    gaps = ((queries[:, None, :].astype(np.float64) - base[None].astype(np.float64)) ** 2).sum(axis=2)
    return np.argsort(gaps, axis=1, kind="stable")[:, :k]


def learned(caplog):
    """What the index reported; the compiler may have reported something, too."""
    return [record.message for record in caplog.records if record.name == "autojacobin.index"]


def recall_of(ids, truth):
    return np.mean([len(set(row) & set(true)) / len(true) for row, true in zip(ids, truth, strict=True)])


@pytest.fixture(scope="module")
def X():
    return clusters(3000, seed=0)


@pytest.fixture
def index(X):
    index = Index(LSH(24, random_state=0).fit(X))
    index.add(X)
    return index


@pytest.mark.parametrize("distance", ["hamming", "asymmetric"])
@pytest.mark.parametrize("recall", [0.5, 0.9, 0.97])
def test_the_promise_is_kept_on_new_queries(index, X, distance, recall):
    queries = clusters(400, seed=1)
    chosen = index.calibrated(K, recall, distance=distance)
    assert chosen.at_least >= recall
    assert K <= chosen.candidates < len(X)
    _, ids = index.search(queries, K, recall=recall, distance=distance)
    shares = [recall_of(row[None], true[None]) for row, true in zip(ids, exact_neighbours(X, queries, K), strict=True)]
    assert np.mean(shares) >= recall - 2 * np.std(shares) / 20  # two deviations of the mean of 400
    assert np.array_equal(ids, index.search(queries, K, candidates=chosen, distance=distance)[1])


def test_the_recall_seen_is_that_of_searching_for_the_held_out_points(index, X):
    chosen = index.calibrated(K, 0.9)
    own = held_out.drawn(index._state.segments, chosen.n_queries, seed=0)
    # one more of each: the query itself is always found, and is no neighbour of its own
    _, ids = index.search(X[own], K + 1, candidates=chosen.candidates + 1)
    truth = exact_neighbours(X, X[own], K + 1)
    found = [set(row) & (set(true) - {i}) for row, true, i in zip(ids, truth, own, strict=True)]
    assert np.mean([len(one) / K for one in found]) == pytest.approx(chosen.seen, abs=1e-12)
    fewer = [set(row) for row in index.search(X[own], K + 1, candidates=chosen.candidates)[1]]
    missing = [one & (set(true) - {i}) for one, true, i in zip(fewer, truth, own, strict=True)]
    assert recall_bound(np.array([len(one) / K for one in missing]))[1] < 0.9  # one fewer is not enough


@given(st.integers(0, 2**32), st.integers(1, 6), st.integers(1, 200))
@settings(max_examples=30)
def test_ranks_are_those_in_the_list_of_all_codes(seed, k, depth):
    rng = np.random.default_rng(seed)
    X = rng.integers(0, 4, (150, 4)).astype(np.float32)  # many equal vectors, distances and codes
    index = Index(LSH(6, random_state=0).fit(X))
    index.add(X[:70], ids=rng.permutation(70) * 3)
    index.add(X[70:])
    index.remove(rng.permutation(index.ids)[:20])
    ids, size = index.ids, int(rng.integers(1, 100))
    sample = held_out.HeldOut.stored(index._state.segments, size, k)
    vectors = index.vectors(ids)
    assert np.all(np.isin(sample.own_ids, ids))
    for row, own in enumerate(sample.own_ids):
        others = ids[ids != own]
        near = exact_neighbours(index.vectors(others), index.vectors([own]), k)[0]
        assert set(sample.truth[row]) == set(others[near])

    def nearest(queries, wanted):
        return index.search(queries, min(wanted, 130), distance="hamming", rerank=False)

    ranks = sample.ranks(nearest, depth)
    codes = index.hasher.encode(vectors).to_bits()
    for row, own in enumerate(sample.own_ids):
        distances = (codes != codes[ids == own]).sum(axis=1)
        listed = [i for _, i in sorted(zip(distances, ids, strict=True)) if i != own]
        expected = sorted(listed.index(i) for i in sample.truth[row])
        assert ranks[row].tolist() == [rank if rank < depth else held_out.NOT_FOUND for rank in expected]


@pytest.mark.parametrize("chance", [0.8, 0.95, 0.99])
def test_the_bound_holds_for_about_95_samples_in_100(chance):
    rng = np.random.default_rng(0)
    bounds = [recall_bound(rng.binomial(10, chance, 600) / 10)[1] for _ in range(1000)]
    assert np.mean(np.array(bounds) <= chance) >= 0.94
    assert np.mean(bounds) >= chance - 0.015  # and says something


def test_a_sample_without_a_miss_promises_no_certainty():
    seen, at_least = recall_bound(np.ones(500))
    assert seen == 1
    assert 0.99 < at_least < 1 - 1 / 500


def test_a_sample_of_a_large_base_asks_for_no_fewer(index, X, monkeypatch):
    whole = {k: index.calibrated(k, 0.9).candidates for k in (1, 20)}
    for limit in ("_PRODUCTS", "_MOST_PRODUCTS"):
        monkeypatch.setattr(held_out, limit, 500 * 12 * 1500)  # half of the base
    index._calibrator.forget()
    sampled = index.calibrated(20, 0.9)
    assert index._calibrator._samples[20].truth.shape == (500, 10)
    assert sampled.candidates == pytest.approx(whole[20], rel=0.25)
    assert index.calibrated(1, 0.9).candidates > whole[1]
    truth = exact_neighbours(X, clusters(300, seed=2), 20)
    assert recall_of(index.search(clusters(300, seed=2), 20, candidates=sampled)[1], truth) >= 0.9


def test_own_queries_are_learned_from(index, X):
    far = clusters(1000, seed=3) * 3  # nothing like what is stored, and harder to find
    easy, hard = index.calibrated(K, 0.9), index.calibrated(K, 0.9, queries=far[:500])
    assert hard.candidates > easy.candidates
    assert hard.n_queries == 500
    _, ids = index.search(far[500:], K, recall=0.9)
    assert recall_of(ids, exact_neighbours(X, far[500:], K)) >= 0.88


def test_what_was_learned_is_kept_until_a_tenth_has_changed(index, tmp_path, monkeypatch):
    learned = []
    stored = held_out.HeldOut.stored.__func__
    counted = classmethod(lambda cls, *arguments: learned.append(arguments[1:3]) or stored(cls, *arguments))
    monkeypatch.setattr(held_out.HeldOut, "stored", counted)
    monkeypatch.setattr(calibration, "_PRODUCTS_BEFORE_LEARNING", 0)
    index.search(clusters(3, seed=5), K, recall=0.9)
    index.search(clusters(3, seed=5), K, recall=0.95, distance="asymmetric")
    assert learned == [(500, K)]
    index.calibrated(K, 0.99)  # takes more queries to show
    assert learned == [(500, K), (600, K)]
    index.add(clusters(200, seed=6))
    index.remove(index.ids[:50])
    index.compact()
    index.calibrated(K, 0.9)
    assert len(learned) == 2
    index.add(clusters(100, seed=7))
    index.calibrated(K, 0.9)
    assert len(learned) == 3
    index.save(tmp_path / "index")
    with Index.open(tmp_path / "index") as one, Index.open(tmp_path / "index") as other:
        one.calibrated(K, 0.9)
        one.refresh()
        one.calibrated(K, 0.9)
        assert len(learned) == 4
        for removed, times in ((5, 4), (400, 5)):
            other.remove(other.ids[:removed])
            one.refresh()
            one.calibrated(K, 0.9)
            assert len(learned) == times


def test_a_small_index_ranks_all_it_has(X):
    index = Index(ITQ(8, random_state=0).fit(X))
    index.add(X[:1])
    chosen = index.calibrated(1, 0.95)
    assert (chosen.candidates, chosen.at_least) == (1, 1)
    index.add(X[1:40])
    queries = clusters(30, seed=8)
    for k in (1, 39, 40):
        assert index.calibrated(k, 0.95).candidates == 40  # forty queries cannot show so much
        assert np.array_equal(index.search(queries, k, recall=0.95)[1], exact_neighbours(X[:40], queries, k))


def test_a_recall_of_one_is_an_exact_search(index, X):
    queries = clusters(20, seed=8)
    assert np.array_equal(index.search(queries, K, recall=1)[1], exact_neighbours(X, queries, K))
    assert index.calibrated(K, 1.0).candidates == len(index)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"recall": 0.0},
            "a number above 0 and at most 0.999, such as 0.95, or 1 for an exact search, got 0.0",
        ),
        ({"recall": 0.9995}, "got 0.9995"),
        ({"recall": float("nan")}, "got nan"),
        ({"recall": "high"}, "got 'high'"),
        ({"recall": True}, "got True"),
        ({"recall": 0.9, "candidates": 20}, "recall chooses how many candidates to re-rank, got candidates=20 besides"),
        ({"recall": 0.9, "rerank": False}, "got rerank=False besides"),
        ({"recall": 0.9, "distance": "cosine"}, "distance must be 'asymmetric' or 'hamming', got 'cosine'"),
    ],
)
def test_bad_wishes_are_named(index, X, arguments, message):
    with pytest.raises(DataError, match=message):
        index.search(X[:2], K, **arguments)


def test_bad_queries_and_missing_vectors_are_named(index, X):
    with pytest.raises(DataError, match="needs at least 30 queries to learn from, got 10"):
        index.calibrated(K, 0.9, queries=X[:10])
    with pytest.raises(DataError, match="queries have 5 features"):
        index.calibrated(K, 0.9, queries=X[:100, :5])
    wrong = X[:100].copy()
    wrong[3, 4] = np.nan
    with pytest.raises(DataError, match="NaN in row 3, column 4"):
        index.calibrated(K, 0.9, queries=wrong)
    with pytest.raises(DataError, match="from 1 to 3000, the size of the index, got 3001"):
        index.calibrated(3001, 0.9)
    assert index.calibrated(K, 0.9).n_queries == 500  # what was refused is not learned from
    bare = Index(index.hasher, keep_vectors=False)
    bare.add(X)
    for ask in (lambda: bare.calibrated(K, 0.9), lambda: bare.search(X[:2], K, recall=0.9)):
        with pytest.raises(DataError, match="keeps no vectors"):
            ask()


# The default


def test_a_search_that_asks_for_nothing_finds_95_in_100_by_the_best_distance(index, X):
    queries = clusters(400, seed=1)
    chosen = index.calibrated(K)
    _, ids = index.search(queries, K)
    assert (chosen.recall, chosen.distance, chosen.k) == (0.95, "asymmetric", 10)
    assert chosen.at_least >= 0.95
    assert np.array_equal(ids, index.search(queries, K, candidates=chosen, distance="asymmetric")[1])
    shares = [recall_of(row[None], true[None]) for row, true in zip(ids, exact_neighbours(X, queries, K), strict=True)]
    assert np.mean(shares) >= 0.95 - 2 * np.std(shares) / 20


@pytest.mark.parametrize("wish", [{"candidates": 20}, {"recall": 0.7}])
def test_candidates_and_recall_take_the_place_of_the_default(index, wish):
    queries = clusters(50, seed=1)
    number = wish.get("candidates") or index.calibrated(K, 0.7).candidates
    assert number < index.calibrated(K).candidates
    expected = index.search(queries, K, candidates=number, distance="asymmetric")
    assert all(np.array_equal(a, b) for a, b in zip(index.search(queries, K, **wish), expected, strict=True))


def test_a_small_index_compares_all_vectors_by_default_and_learns_nothing(X, caplog):
    index = Index(LSH(8, random_state=0).fit(X))
    index.add(X[:2000])
    with caplog.at_level("INFO", logger="autojacobin.index"):
        _, ids = index.search(clusters(30, seed=1), K)
    assert np.array_equal(ids, exact_neighbours(X[:2000], clusters(30, seed=1), K))
    assert not learned(caplog)


@pytest.mark.parametrize("lists", [None, 8])
@pytest.mark.parametrize("options", [{}, {"recall": 0.5}, {"where": "row < 2500"}])
def test_the_first_queries_are_compared_with_all_vectors_until_learning_pays(X, lists, options, monkeypatch, caplog):
    monkeypatch.setattr(calibration, "_PRODUCTS_BEFORE_LEARNING", 8 * 50 * 3000 * 12)  # NumPy counts eightfold
    hasher = LSH(12, random_state=0)
    index = Index((PartitionedHasher(hasher, n_lists=lists) if lists else hasher).fit(X))
    index.add(X, payload={"row": np.arange(3000)})
    queries, allowed = clusters(50, seed=1), 2500 if "where" in options else 3000
    exact = exact_neighbours(X[:allowed], queries, K)
    with caplog.at_level("INFO", logger="autojacobin.index"):
        for rows in (slice(0, 1), slice(1, 50)):
            assert np.array_equal(index.search(queries[rows], K, **options)[1], exact[rows])
        assert not learned(caplog)
        later = [index.search(queries, K, **options)[1] for _ in range(2)]
    assert len(learned(caplog)) == 1
    assert np.array_equal(*later)
    assert 0.4 < recall_of(later[0], exact) < 1
    index.add(clusters(400, seed=2), payload={"row": np.full(400, 9999)})  # a tenth has changed: the same once more
    caplog.clear()
    index.search(queries[:3], K, **options)
    assert not learned(caplog)


def test_many_queries_at_once_are_compared_sooner_than_single_ones(X, index, monkeypatch, caplog):
    monkeypatch.setattr(calibration, "_PRODUCTS_BEFORE_LEARNING", 0)
    monkeypatch.setattr(calibration, "_PRODUCTS_OF_MANY", 8 * 100 * 3000 * 12)
    queries = clusters(100, seed=1)
    with caplog.at_level("INFO", logger="autojacobin.index"):
        assert np.array_equal(index.search(queries, K)[1], exact_neighbours(X, queries, K))
        assert not learned(caplog)
        index.search(queries, K)
    assert len(learned(caplog)) == 1


def test_the_choice_for_a_few_queries_is_all_vectors_until_something_was_learned(index):
    few = index.calibrated(K, 0.5, n_queries=3)
    assert (few.recall, few.candidates, few.n_queries) == (1.0, 3000, 0)
    many = index.calibrated(K, 0.5)
    assert many.candidates < 3000
    assert index.calibrated(K, 0.5, n_queries=3) == many
    with pytest.raises(DataError, match="n_queries must be an integer of at least 0, got -1"):
        index.calibrated(K, n_queries=-1)


def test_the_default_is_learned_once_for_many_k_and_says_so(index, caplog, monkeypatch):
    monkeypatch.setattr(calibration, "_PRODUCTS_BEFORE_LEARNING", 0)
    with caplog.at_level("INFO", logger="autojacobin.index"):
        for k in (1, 2, 9, 10):
            index.search(clusters(3, seed=1), k)
    assert len(learned(caplog)) == 1
    assert "learning once from 500 queries how many candidates a search for 10 of 3000 vectors needs" in caplog.text


@given(st.integers(1, 10**6), st.integers(0, 10**7))
def test_the_default_learns_few_values_of_k(k, n):
    learned, recall = calibration.default_target(k, n)
    assert learned == max(n, 1) or k <= learned <= max(10, 3 * k)
    assert str(learned).rstrip("0") in ("1", "2", "5") or learned == max(n, 1)
    assert recall == (1 if n <= 2000 else 0.95)


def test_without_vectors_the_default_is_the_best_distance_alone(X):
    index = Index(LSH(24, random_state=0).fit(X), keep_vectors=False)
    index.add(X)
    answer = index.search(X[:9], K)
    expected = index.search(X[:9], K, distance="asymmetric", rerank=False)
    assert all(np.array_equal(a, b) for a, b in zip(answer, expected, strict=True))


def test_with_probes_the_candidates_are_ten_times_k(X):
    hasher = PartitionedAutoencoder(16, n_lists=8, n_iterations=2, random_state=0).fit(X)
    index = Index(hasher)
    index.add(X)
    answer = index.search(X[:20], K, probes=8)
    expected = index.search(X[:20], K, probes=8, candidates=100)
    assert all(np.array_equal(a, b) for a, b in zip(answer, expected, strict=True))
    ids = index.search(clusters(300, seed=1), K)[1]
    assert recall_of(ids, exact_neighbours(X, clusters(300, seed=1), K)) >= 0.93


def test_single_changes_do_not_keep_an_index_from_learning(X, index, monkeypatch, caplog):
    monkeypatch.setattr(calibration, "_PRODUCTS_BEFORE_LEARNING", 3 * 8 * 3000 * 12)
    with caplog.at_level("INFO", logger="autojacobin.index"):
        for row in range(9):
            index.add(X[row : row + 1])
            index.search(X[:1], K)
    assert len(learned(caplog)) == 1


def test_what_another_process_changes_counts_as_what_this_one_does(X, tmp_path, caplog):
    index = Index(LSH(24, random_state=0).fit(X))
    index.add(X)
    index.save(tmp_path / "index")
    with caplog.at_level("INFO", logger="autojacobin.index"):
        reader = Index.open(tmp_path / "index")
        for n, times in ((5, 1), (600, 2)):
            reader.calibrated(K, 0.9)
            with Index.open(tmp_path / "index") as writer:
                writer.add(clusters(n, seed=n))
            reader.refresh()
            reader.calibrated(K, 0.9)
            assert len(learned(caplog)) == times
    reader.close()


def test_after_some_were_removed_another_recall_is_learned_from_what_is_left(index):
    index.calibrated(K, 0.5)
    index.remove(np.arange(0, 3000, 20))
    fresh = Index(index.hasher)
    fresh.add(index.vectors(index.ids), index.ids)
    for options in ({"recall": 0.97}, {"recall": 0.9, "distance": "hamming"}):
        assert index.calibrated(K, **options) == fresh.calibrated(K, **options)
        assert index.calibrated(K, **options).candidates < 1500


def test_what_is_known_does_not_wait_for_what_is_being_learned(index, X, monkeypatch):
    known = index.calibrated(K, 0.5)
    begun, go_on = threading.Event(), threading.Event()
    ranks = held_out.HeldOut.ranks

    def slowly(*arguments):
        begun.set()
        assert go_on.wait(60)
        return ranks(*arguments)

    monkeypatch.setattr(held_out.HeldOut, "ranks", slowly)
    with ThreadPoolExecutor(1) as pool:
        learning = pool.submit(index.calibrated, K, 0.9, distance="hamming")
        assert begun.wait(60)
        assert index.calibrated(K, 0.5) == known
        index.search(X[:2], K, recall=0.5)
        index.add(clusters(400, seed=3))  # more than a tenth, so that what was learned is forgotten
        go_on.set()
        assert learning.result(60).candidates > 0
    assert index.calibrated(K, 0.9, distance="hamming").n_queries >= 500


def test_an_exact_search_needs_no_queries_to_learn_from(index, X):
    assert index.calibrated(K, 1, queries=X[:2]).candidates == len(index)
