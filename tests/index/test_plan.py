"""Plans: the recall that was asked for is found by brute force, under filters and for odd queries, too."""

import copy
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autojacobin import LSH, BinaryAutoencoder, DataError, Index, PartitionedAutoencoder, PartitionedHasher
from autojacobin.evaluation import ground_truth
from autojacobin.index.execution import search_codes, search_wider
from autojacobin.index.plan import make_plan
from autojacobin.search.kernels.segment_search import mark_unlike
from autojacobin.search.probing import Probing

K = 5


def clusters(n, seed):
    """Points around a few centres: neighbours are worth looking for, and codes do not find all of them."""
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(99).normal(size=(20, 12)) * 2
    return (centres[rng.integers(0, 20, n)] + rng.normal(size=(n, 12))).astype(np.float32)


def recalls(ids, truth):
    return np.array([len(set(row) & set(true)) / len(true) for row, true in zip(ids, truth, strict=True)])


METHODS = {
    "signs": lambda: LSH(24, random_state=0),
    "auto-encoder": lambda: BinaryAutoencoder(24, random_state=0),
    "signs in lists": lambda: PartitionedHasher(LSH(24, random_state=0), n_lists=32, random_state=0),
    "auto-encoder in lists": lambda: PartitionedAutoencoder(29, n_lists=32, random_state=0),
    "in two lists": lambda: PartitionedAutoencoder(58, n_lists=32, copies=2, random_state=0),
}
WITH_LISTS = ["signs in lists", "auto-encoder in lists", "in two lists"]


@pytest.fixture(scope="module")
def X():
    return clusters(4000, seed=0)


@pytest.fixture(scope="module", params=METHODS)
def index(request, X):
    index = Index(METHODS[request.param]().fit(X))
    index.add(X)
    return index


@pytest.mark.parametrize(("recall", "planned"), [(0.5, 0.52), (0.9, 0.904), (0.975, 0.976)])
def test_a_plan_allows_fewer_misses_unless_the_queries_were_those_of_a_user(index, X, recall, planned):
    known = index._state.knowledge
    taught = replace(known, queries=X[:100])
    plan, as_taught = (make_plan(index._state, lambda _, some=some: some, 10, recall=asked)
                       for some, asked in ((known, recall), (taught, planned)))  # fmt: skip
    assert plan.at_least >= planned - 1e-6
    assert abs(plan.candidates - as_taught.candidates) <= 1
    assert plan.lists == as_taught.lists


@pytest.mark.parametrize("recall", [0.5, 0.9, 0.97])
def test_the_promise_is_kept_on_new_queries(index, X, recall):
    queries = clusters(400, seed=1)
    plan = index.plan(10, recall=recall)
    assert plan.at_least >= recall
    assert 10 <= plan.candidates < len(X)
    found = recalls(index.search(queries, 10, recall=recall)[1], ground_truth(X, queries, 10))
    assert found.mean() >= recall - 2 * found.std() / 20  # two deviations of the mean of 400


def test_the_same_call_gives_the_same_answer_whatever_was_asked_before(index, X):
    queries = clusters(40, seed=1)
    first = index.search(queries, K)
    for options in ({"recall": 0.5}, {"recall": 0.99}, {"candidates": 50}, {"among": np.arange(0, 4000, 2)}):
        index.search(queries, K, **options)
    for again in (index.search(queries, K), [np.concatenate(part) for part in zip(
        *(index.search(queries[row : row + 1], K) for row in range(40)), strict=True
    )]):  # fmt: skip
        assert np.array_equal(first[1], again[1])
        assert np.allclose(first[0], again[0], rtol=1e-12)


@pytest.mark.parametrize("share", [0.5, 0.1, 0.01])
@pytest.mark.parametrize("kind", ["random", "clusters"])
def test_a_recall_is_kept_within_a_filter(index, X, share, kind, monkeypatch):
    monkeypatch.setattr("autojacobin.index.plan.EXACT_UP_TO", 20)  # so that the choice matters for a small index
    index = copy.deepcopy(index)  # without the plans that it has made
    order = np.random.default_rng(5).random(len(X)) if kind == "random" else X @ X[0]
    allowed = np.sort(np.argsort(order)[: int(share * len(X))])
    queries = clusters(300, seed=3)
    truth = allowed[ground_truth(X[allowed], queries, K)]
    ids = index.search(queries, K, among=allowed)[1]
    found = recalls(ids, truth)
    assert np.isin(ids, allowed).all()
    assert found.mean() >= 0.95 - 3 * found.std() / np.sqrt(300)


@pytest.fixture(scope="module", params=METHODS)
def far_clusters(request):
    """An index of clusters that are far apart, and its vectors."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(50, 12)) * 5
    X = (centres[rng.integers(0, 50, 2500)] + 0.3 * rng.normal(size=(2500, 12))).astype(np.float32)
    index = Index(METHODS[request.param]().fit(X))
    index.add(X)
    return index, X


@pytest.mark.parametrize("kind", ["middle", "far", "axis", "zero"])
def test_queries_unlike_all_vectors_are_searched_wider(far_clusters, kind):
    index, X = far_clusters
    rng = np.random.default_rng(7)
    one, two = X[rng.integers(0, len(X), 100)], X[rng.integers(0, len(X), 100)]
    queries = {
        "middle": (one + two) / 2,
        "far": 30 * one,
        "axis": 10 * np.eye(12, dtype=np.float32)[rng.integers(0, 12, 100)],
        "zero": 1e-3 * one,
    }[kind].astype(np.float32)
    found = recalls(index.search(queries, 10)[1], ground_truth(X, queries, 10))
    assert found.mean() >= 0.9


@pytest.mark.parametrize("far_clusters", WITH_LISTS, indirect=True)
def test_wider_searches_in_one_call_give_what_searches_one_after_the_other_give(far_clusters):
    index, X = far_clusters
    plan, state = index.plan(10), index._state
    rng = np.random.default_rng(8)
    one, two = X[rng.integers(0, len(X), 100)], X[rng.integers(0, len(X), 100)]
    queries = np.concatenate([one, (one + two) / 2]).astype(np.float32)
    options = queries, plan.distance, 10, plan.candidates, plan.probing
    found = search_codes(state, *options)
    assert plan.wider.probings[1].most == state.n_lists  # few lists are all scanned
    many = state.n_lists // 2
    wider = replace(
        plan.wider,
        candidates=(60, 300),
        probings=(plan.wider.probings[0], Probing(many)),
        far=np.quantile(found[0][:, 0], [0.5, 0.8]),
        central=np.quantile(((queries - plan.wider.middle) ** 2).sum(axis=1), [0.3, 0.2, 0.1]),
    )
    levels = np.empty(len(queries), dtype=np.int64)
    mark_unlike(queries, wider.middle, found[0], wider.far, wider.central, levels)
    assert set(levels.tolist()) == {0, 1, 2, 3}
    expected = search_wider(state, queries, plan.distance, found, wider)
    together = search_codes(state, *options, wider=wider)
    assert np.array_equal(together[1], expected[1])
    assert np.array_equal(together[0], expected[0])
    far = levels == 2
    assert np.array_equal(together[1][far], index.search(queries[far], 10, probes=many, candidates=300)[1])


@pytest.mark.parametrize("k", [4001, 2**31 - 1, 2**70])
@pytest.mark.parametrize(
    "how", [{}, {"recall": 0.5}, {"recall": 1}, {"rerank": False}, {"rerank": False, "distance": "hamming"}]
)
def test_no_k_costs_more_than_all_vectors(index, X, k, how):
    if how.get("distance", index.hasher.distances[0]) not in index.hasher.distances:
        how = {}
    for n_queries in (1, 3, 20, 70):  # numbers of queries that are searched in different ways
        distances, ids = index.search(X[:n_queries], k, **how)
        assert ids.shape == (n_queries, len(X))
        assert (np.sort(ids, axis=1) == np.arange(len(X))).all()
        assert (np.diff(distances, axis=1) >= 0).all()
    assert index.plan(k, **how).k == len(X)
    assert index.search(X[:2], k, among=[7, 8], **how)[1].shape == (2, len(X))


def test_an_argument_of_a_wrong_type_is_refused_also_after_an_equal_one_was_used():
    index = Index(LSH(8, random_state=0).fit(clusters(50, seed=1)))
    index.add(clusters(50, seed=1))
    asked = clusters(3, seed=2)
    for right, wrong in (
        ({"k": 3}, {"k": 3.0}),
        ({"k": 1}, {"k": True}),
        ({"k": 1}, {"k": np.True_}),
        ({"recall": 1}, {"recall": True}),
        ({"candidates": 20}, {"candidates": 20.0}),
        ({"rerank": True}, {"rerank": 1}),
        ({"rerank": False}, {"rerank": 0.0}),
        ({"rerank": None}, {"rerank": "no"}),
        ({"rerank": None}, {"rerank": np.ones(2)}),
    ):
        for search in (partial(index.search, asked), partial(index.plan, **({} if "k" in right else {"k": 10}))):
            search(**right)
            with pytest.raises(DataError, match="must be"):
                search(**wrong)
            with pytest.raises(DataError, match="must be"):
                search(**wrong, among=[1, 2, 3])


@given(st.data())
def test_a_plan_finds_what_brute_force_does_in_any_state(data):
    """Over states, filters and k: what is found is allowed, in order, and all of it if all is compared."""
    method = data.draw(st.sampled_from(sorted(METHODS)))
    n = data.draw(st.integers(40, 400))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    X = rng.integers(0, 6, (n, 12)).astype(np.float32)
    hasher = METHODS[method]()
    index = Index(hasher.fit(clusters(200, seed=1)))
    for part in np.array_split(np.arange(n), data.draw(st.integers(1, 3))):
        index.add(X[part])
    gone = rng.permutation(n)[: data.draw(st.integers(0, n // 2))]
    index.remove(gone)
    live = np.setdiff1d(np.arange(n), gone)
    mask = rng.random(n) < data.draw(st.sampled_from([0.05, 0.5, 1.0]))
    allowed = live[mask[live]]
    k = data.draw(st.integers(1, len(live)))
    queries = rng.integers(0, 6, (data.draw(st.sampled_from([1, 3, 20])), 12)).astype(np.float32)
    how = data.draw(st.sampled_from([{}, {"recall": 1}, {"candidates": n}, {"candidates": n, "probes": "all"}]))
    if "probes" in how and "lists" not in method:
        how = {"candidates": n}
    distances, ids = index.search(queries, k, among=allowed, **how)
    gaps = np.sqrt(((queries[:, None].astype(float) - X[allowed]) ** 2).sum(axis=2))
    order = np.argsort(gaps, axis=1, kind="stable")[:, :k]
    n_found = min(k, len(allowed))
    assert ids.shape == (len(queries), k)
    assert (ids[:, n_found:] == -1).all()
    assert np.isnan(distances[:, n_found:]).all()
    assert np.isin(ids[:, :n_found], allowed).all()
    assert (np.diff(distances[:, :n_found], axis=1) >= 0).all()
    if "candidates" not in how or "lists" not in method or "probes" in how:
        assert np.array_equal(ids[:, :n_found], allowed[order])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"recall": 0.0}, "a number above 0 and at most 0.999, such as 0.95, or 1 for an exact search, got 0.0"),
        ({"recall": 0.9995}, "got 0.9995"),
        ({"recall": float("nan")}, "got nan"),
        ({"recall": "high"}, "got 'high'"),
        ({"recall": True}, "got True"),
        ({"recall": 0.9, "candidates": 20}, "recall chooses how many candidates to re-rank, got candidates=20 besides"),
        ({"recall": 0.9, "rerank": False}, "got rerank=False besides"),
        ({"recall": 0.9, "distance": "cosine"}, "distance must be .*, got 'cosine'"),
        ({"candidates": [3]}, "candidates must be an integer"),
    ],
)
def test_bad_wishes_are_named(index, X, arguments, message):
    with pytest.raises(DataError, match=message):
        index.search(X[:2], K, **arguments)
    with pytest.raises(DataError, match=message):
        index.plan(K, **arguments)


def test_a_small_index_compares_all_vectors(X):
    index = Index(LSH(8, random_state=0).fit(X))
    index.add(X[:2000])
    plan = index.plan(K)
    assert plan.compares_all
    assert plan.at_least == 1
    queries = clusters(30, seed=1)
    assert np.array_equal(index.search(queries, K)[1], ground_truth(X[:2000], queries, K))


def test_without_vectors_the_default_is_the_best_distance_alone(X):
    index = Index(LSH(24, random_state=0).fit(X), keep_vectors=False)
    index.add(X)
    answer = index.search(X[:9], K)
    expected = index.search(X[:9], K, distance="asymmetric", rerank=False)
    assert all(np.array_equal(a, b) for a, b in zip(answer, expected, strict=True))
    with pytest.raises(DataError, match="keeps no vectors"):
        index.plan(K, recall=0.9)


def test_with_probes_the_candidates_are_ten_times_k(X):
    index = Index(METHODS["auto-encoder in lists"]().fit(X))
    index.add(X)
    answer = index.search(X[:20], K, probes=8)
    expected = index.search(X[:20], K, probes=8, candidates=100)
    assert all(np.array_equal(a, b) for a, b in zip(answer, expected, strict=True))
