"""A trial against the measures it stands for, and the files it is kept in."""

import os
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autojacobin import ITQ, BinaryAutoencoder, DataError, StorageError
from autojacobin.evaluation import ground_truth, m_recall, measure, recall_curve
from autojacobin.hashers import find_method, registry
from autojacobin.paper.reproduction import Settings
from autojacobin.paper.reproduction.results import Results, Store
from autojacobin.paper.reproduction.trials import (
    COMPARED,
    VARIANTS,
    Outcome,
    Trial,
    cut,
    fingerprint,
    make_hasher,
    n_looked_at,
    run_trial,
)
from autojacobin.search import asymmetric_topk, decoded_topk, hamming_topk
from tests.paper.reproduction.small import SETTINGS, small_set


@pytest.fixture(scope="module")
def tried():
    data = cut(small_set(), SETTINGS)
    truth = ground_truth(data.base, data.queries, 99)
    return data, truth, run_trial(Trial("ITQ", 16, 0, pictured=True), data, truth, 120)


def test_the_measures_of_a_trial_are_those_of_the_answer(tried):
    data, truth, outcome = tried
    hasher = ITQ(16, random_state=0).fit(data.train)
    _, ids = hamming_topk(hasher.encode(data.queries), hasher.encode(data.base), 120)
    for k in (1, 10, 99):
        assert np.allclose(outcome.recall_curve(k), recall_curve(ids, truth, k, 120), rtol=0, atol=1e-12)
        assert np.allclose(outcome.m_recall(k), measure("m-recall@120", ids, truth, k).values, rtol=0, atol=1e-12)
        assert outcome.m_recall(k).mean() == pytest.approx(m_recall(ids, truth, k, 120), abs=1e-12)


def test_a_trial_can_rank_by_the_asymmetric_distance_too(tried):
    data, truth, by_hamming = tried
    outcome = run_trial(Trial("ITQ", 16, 0), data, truth, 120)
    assert np.array_equal(outcome.before, by_hamming.before)
    assert run_trial(Trial("LSH", 16, 0), data, truth, 120).by_asymmetric() is None
    hasher = ITQ(16, random_state=0).fit(data.train)
    _, ids = asymmetric_topk(hasher.project(data.queries), hasher.encode(data.base), 120)
    assert np.allclose(outcome.by_asymmetric().recall_curve(10), recall_curve(ids, truth, 10, 120), rtol=0, atol=1e-12)


def test_codes_that_are_searched_are_compared_by_their_own_distance(tried):
    data, truth, _ = tried
    outcome = run_trial(Trial("BinaryAutoencoder", 16, 0), data, truth, 120)
    hasher = BinaryAutoencoder(16, random_state=0).fit(data.train)
    _, ids = decoded_topk(hasher.distance_terms(data.queries), hasher.encode(data.base), 120)
    assert np.allclose(outcome.recall_curve(10), recall_curve(ids, truth, 10, 120), rtol=0, atol=1e-12)


def test_what_is_pictured_are_the_nearest_of_the_retrieved(tried):
    data, _, outcome = tried
    hasher = ITQ(16, random_state=0).fit(data.train)
    _, ids = hamming_topk(hasher.encode(data.queries), hasher.encode(data.base), 99)
    for query, (retrieved, shown) in enumerate(zip(ids, outcome.pictured, strict=True)):
        gaps = ((data.base[retrieved].astype(float) - data.queries[query]) ** 2).sum(axis=1)
        assert np.array_equal(shown, retrieved[np.lexsort((retrieved, gaps))])


@given(st.integers(1, 5), st.integers(1, 30), st.integers(1, 4), st.integers(0, 2**32))
def test_the_curve_and_m_recall_by_their_definitions(n_queries, depth, k, seed):
    before = np.random.default_rng(seed).integers(0, depth + 1, (n_queries, k + 1)).astype(np.int32)
    outcome = Outcome(before, depth, {})
    recalls = [(before[:, :k] < i).mean(axis=1) for i in range(1, depth + 1)]
    assert np.allclose(outcome.recall_curve(k), [recall.mean() for recall in recalls])
    assert np.allclose(outcome.m_recall(k), np.mean(recalls, axis=0))


def test_an_outcome_comes_back_from_its_file_as_it_was(tried, tmp_path):
    data, truth, _ = tried
    trial = Trial("AutoJacoBin", 8, 0, (("alpha", 1.0),), pictured=True)
    outcome = run_trial(trial, data, truth, 120)
    outcome = replace(outcome, asymmetric=outcome.before[::-1])
    store = Store(tmp_path)
    store.keep_outcome("one", outcome)
    back = store.outcome("one")
    assert np.array_equal(back.before, outcome.before)
    assert np.array_equal(back.pictured, outcome.pictured)
    assert np.array_equal(back.asymmetric, outcome.asymmetric)
    assert (back.depth, back.seconds, back.warned) == (outcome.depth, outcome.seconds, outcome.warned)
    assert back.history.keys() == outcome.history.keys()
    for name in back.history:
        assert np.array_equal(back.history[name], outcome.history[name])


@pytest.mark.parametrize("damage", ["cut", "emptied", "gone"])
def test_a_damaged_file_counts_as_missing(tried, tmp_path, damage):
    store = Store(tmp_path)
    store.keep_outcome("one", tried[2])
    path = tmp_path / "work" / "one.npz"
    content = path.read_bytes()
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes({"cut": content[:100], "emptied": b""}[damage])
    found = store.outcome("one")
    assert found is None


@pytest.mark.parametrize("step", [5, pytest.param(1, marks=pytest.mark.rare)])
def test_no_flipped_bit_of_finished_work_changes_it(tmp_path, step):
    store = Store(tmp_path)
    store.keep_outcome("one", Outcome(np.zeros((2, 2), dtype=np.int32), 3, {"fit": 1.0}, history={"cost": np.ones(2)}))
    store.array("two", lambda: np.arange(3))

    def outcome():
        found = store.outcome("one")
        if found is None:
            return None
        history = {name: column.tolist() for name, column in found.history.items()}
        return found.before.tolist(), found.depth, found.seconds, found.warned, history, found.pictured

    for key, read in (("one", outcome), ("two", lambda: store.array("two", lambda: np.zeros(0)).tolist() or None)):
        path, whole = tmp_path / "work" / f"{key}.npz", read()
        assert whole is not None
        content = path.read_bytes()
        for place in range(0, len(content), step):
            path.write_bytes(content[:place] + bytes([content[place] ^ 1 << place % 8]) + content[place + 1 :])
            assert read() in (None, whole)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder_is_reported_before_anything_is_computed(tmp_path):
    Store(tmp_path)
    (tmp_path / "work").chmod(0o500)
    with pytest.raises(StorageError, match="cannot write results to .* choose another folder with --out"):
        Store(tmp_path)


def test_an_array_is_made_once(tmp_path):
    store, made = Store(tmp_path), []
    for _ in range(2):
        assert np.array_equal(store.array("a", lambda: made.append("a") or np.arange(3)), np.arange(3))
    assert made == ["a"]


def test_a_folder_that_cannot_be_made_is_reported(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot write results to .*file.*choose another folder with --out"):
        Store(tmp_path / "file")


def test_keys_of_different_trials_and_data_differ():
    cells = [Trial(method, bits, seed) for method in COMPARED for bits in (8, 16) for seed in (0, 1)]
    cells += [Trial("AutoJacoBin", 8, 0, (("alpha", 1.0),)), Trial("AutoJacoBin", 8, 0, pictured=True)]
    prints = [fingerprint(small_set()), fingerprint(cut(small_set(), SETTINGS))]
    keys = {trial.key(data, depth, k) for trial in cells for data in prints for depth in (10, 20) for k in (5, 9)}
    assert len(keys) == len(cells) * 8
    assert fingerprint(small_set()) == prints[0]


@pytest.mark.parametrize("part", ["train", "base", "queries"])
def test_a_single_changed_number_is_another_set(part):
    data = small_set()
    for row in (0, 517 % len(getattr(data, part)), -1):
        changed = getattr(data, part).copy()
        changed[row, 3] += 1
        assert fingerprint(replace(data, **{part: changed})) != fingerprint(data)


def test_the_key_of_a_trial_follows_the_defaults_of_its_method(monkeypatch):
    before = Trial("ITQ", 8, 0).key("data", 10, 5)
    monkeypatch.setitem(registry._METHODS, "ITQ", replace(find_method("ITQ"), parameters={"n_iter": 7}))
    assert Trial("ITQ", 8, 0).key("data", 10, 5) != before


def test_the_picture_looks_at_no_more_than_was_retrieved():
    assert [n_looked_at(n, 5000) for n in (100, 990_000, 10_000_000)] == [99, 99, 1000]
    assert n_looked_at(10_000_000, 200) == 200


@pytest.mark.parametrize("method", [*COMPARED, *VARIANTS])
def test_every_method_can_be_made_and_is_seeded(method):
    data = cut(small_set(), SETTINGS)
    codes = [make_hasher(method, 8, 3, {}).fit(data.train).encode(data.queries) for _ in range(2)]
    assert codes[0] == codes[1]


def test_the_paper_s_settings_follow_the_set():
    data = small_set()
    settings = Settings.for_set(data)
    assert (settings.bits, settings.depth, settings.seeds) == ((64,), 1000, 3)
    assert Settings.for_set(data, bits=(32, 16, 16), depth=50, seeds=1).bits == (16, 32)
    with pytest.raises(DataError, match="bits must be an integer from 1 to 64, the dimension of small"):
        Settings.for_set(data, bits=(65,))
    with pytest.raises(DataError, match="depth must be an integer from 1 to 1000, the size of the base, got 1001"):
        Settings.for_set(data, depth=1001)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"seeds": 0}, "seeds must be an integer of at least 1, got 0"),
        ({"depth": 0}, "depth must be an integer of at least 1, got 0"),
        ({"training_points": 0}, "training_points must be an integer of at least 1, got 0"),
        ({"bits": ()}, "bits must hold at least one number, got none"),
        ({"bits": (0, 8)}, "every length of codes and every k must be an integer of at least 1, got 0"),
    ],
)
def test_settings_that_mean_nothing_are_refused(given, message):
    with pytest.raises(DataError, match=message):
        Settings.for_set(small_set(), **given)
    with pytest.raises(DataError, match=message):
        Settings(**given)


def test_settings_are_put_in_order():
    settings = Settings(bits=(16, 8, 16), ks=(10, 1), alphas=(1.0, 0.1, 1.0))
    assert (settings.bits, settings.ks, settings.alphas) == ((8, 16), (1, 10), (0.1, 1.0))


def test_a_cut_set_keeps_vectors_and_pictures_together():
    data, whole = cut(small_set(), SETTINGS), small_set()
    assert (len(data.train), len(data.base), len(data.queries)) == (300, 1000, 40)
    for vector, picture in zip(data.queries, data.query_patches, strict=True):
        row = np.flatnonzero((whole.queries == vector).all(axis=1))[0]
        assert np.array_equal(whole.query_patches[row], picture)


def outcome_with(recall, n=400, seed=0, noise=0.0):
    """Queries that find their only neighbour at once with probability ``recall``, and never otherwise."""
    rng = np.random.default_rng(seed)
    found = rng.random(n) < recall + noise
    return Outcome(np.where(found, 0, 10)[:, None].astype(np.int32), 10, {"fit": 1.0})


def test_methods_within_the_noise_are_level_with_the_best():
    settings = Settings(bits=(8,), ks=(1,), depth=10, seeds=1)
    results = Results(small_set(), settings, np.zeros((400, 1), dtype=np.int64))
    results.outcomes = {
        Trial("ITQ", 8, 0): outcome_with(0.80),
        Trial("OKMeans", 8, 0): outcome_with(0.79),  # the same draws but for four queries
        Trial("LSH", 8, 0): outcome_with(0.50),
    }
    best, level = results.level_with_best(["LSH", "ITQ", "OKMeans"], 8, 1)
    assert best == "ITQ"
    assert "LSH" not in level
    assert results.m_recall("ITQ", 8, 1).spread is None


def test_methods_that_differ_by_less_than_their_seeds_are_level():
    settings = Settings(bits=(8,), ks=(1,), depth=10, seeds=2)
    results = Results(small_set(), settings, np.zeros((400, 1), dtype=np.int64))
    for seed, shift in ((0, 0.0), (1, 0.1)):
        results.outcomes[Trial("ITQ", 8, seed)] = outcome_with(0.75 + shift)
        results.outcomes[Trial("LSH", 8, seed)] = outcome_with(0.72 + shift)
    assert results.level_with_best(["LSH", "ITQ"], 8, 1) == ("ITQ", ["LSH"])


def test_a_single_query_shows_no_difference():
    results = Results(small_set(), Settings(bits=(8,), ks=(1,), depth=10, seeds=1), np.zeros((1, 1), dtype=np.int64))
    for method, place in (("ITQ", 0), ("LSH", 9)):
        results.outcomes[Trial(method, 8, 0)] = Outcome(np.array([[place]], dtype=np.int32), 10, {"fit": 1.0})
    assert results.level_with_best(["LSH", "ITQ"], 8, 1) == ("ITQ", ["LSH"])
