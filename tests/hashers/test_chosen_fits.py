"""Fits of Auto-JacoBin that choose their settings: on real and on odd data, and that nothing else is touched."""

import itertools
import pickle
import warnings
import weakref

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

from autojacobin import ITQ, AutoJacoBin, DataError, load
from autojacobin.autoencoder import Network, TangentsOnDemand, tangent, training
from autojacobin.evaluation import ground_truth, m_recall
from autojacobin.hashers.model_selection import recipe_name, settings_text, split
from autojacobin.search import hamming_topk
from tests.hashers.methods import METHODS, digits, some

PUBLISHED = {"init": "random", "alpha": 0.1, "jacobian_weight": 1.0, "energy": 0.98}


def quick(**parameters):
    return AutoJacoBin(16, n_neighbors=40, n_epochs=2, batch_size=200, random_state=0, **parameters)


def test_the_defaults_choose_on_real_data_and_are_not_worse_than_where_they_start():
    X = digits()
    hasher = quick().fit(X[:800])
    results = hasher.search_results_
    assert results["m_recall"][results["chosen"] == 1] >= results["m_recall"][results["n_steps"] == 0].max()
    assert set(results["init"][results["n_epochs"] == 0]) == {"random", "itq", "okmeans", "nokmeans"}
    rivals = [METHODS[name](16).fit(X[:800]).score(X[800:]) for name in ("ITQ", "OKMeans", "NOKMeans", "AutoJacoBin")]
    assert hasher.score(X[800:]) > max(rivals) - 0.02


def take_the_last(monkeypatch):
    """Score whatever is looked at above all before it, so that training is chosen whether it pays or not."""
    scores = itertools.count()
    monkeypatch.setattr(
        "autojacobin.hashers.autoencoders.autojacobin.held_out_score",
        lambda *_: lambda _: np.full(9, float(next(scores))),
    )


def test_what_was_chosen_is_trained_on_all_points(monkeypatch):
    take_the_last(monkeypatch)
    X = digits()[:800]
    light = quick(jacobian_weight=0).fit(X)
    assert light.search_results_["n_epochs"][-2] == 6  # of three batches, since a quarter of the points are queries
    assert light.chosen_["n_epochs"] == 5  # of four
    assert light.history_["n_points"].tolist() == [200] * 18
    assert not hasattr(light, "tangent_rank_")
    heavy = quick(jacobian_weight=0.5, init="random", alpha=0.1, energy=0.9).fit(X)
    given = {"init": "random", "alpha": 0.1, "jacobian_weight": 0.5, "energy": 0.9}
    assert heavy.chosen_ == {**given, "n_epochs": 2}
    assert heavy.history_["n_points"].sum() == 800 * 2
    assert heavy.tangent_rank_.shape == (800,)
    assert "jacobian" in heavy.history_


def held_out_m_recall(hasher, X, seed):
    """m-Recall of the delivered codes for the points that the fit has held out."""
    rng = np.random.RandomState(seed)
    rng.randint(2**31 - 1, size=2)  # what a fit draws before it splits
    queries, base = (X[rows] for rows in split(len(X), rng))
    depth = max(20, len(base) // 100)
    _, ids = hamming_topk(hasher.encode(queries), hasher.encode(base), depth)
    return m_recall(ids, ground_truth(base, queries, 10), 10, depth)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.rare) for seed in (1, 2, 3))])
@pytest.mark.parametrize(("n", "batch_size"), [(520, 60), (900, 1000), pytest.param(1600, 150, marks=pytest.mark.rare)])
def test_what_is_delivered_was_scored_and_is_not_behind_its_start(n, batch_size, seed):
    X = digits()[:n]
    hasher = quick().set_params(batch_size=batch_size, random_state=seed, n_epochs=3).fit(X)
    results = hasher.search_results_
    chosen = int(results["chosen"].argmax())
    assert results["chosen"].sum() == 1
    assert held_out_m_recall(hasher, X, seed) == pytest.approx(results["m_recall"][chosen], abs=2e-3)  # one in float32
    if results["n_steps"][chosen]:
        assert results["m_recall"][chosen] >= results["m_recall"][results["n_steps"] == 0].max()
    assert len(hasher.history_.get("cost", [])) == results["n_steps"][chosen]


@pytest.mark.parametrize("batch_size", [60, 1000])
def test_a_last_fit_that_goes_wrong_is_not_delivered(monkeypatch, batch_size):
    X = digits()[:700]
    settings = {"jacobian_weight": 0.0, "init": "itq", "alpha": 0.03, "batch_size": batch_size}

    def ruined(self, network, X, *_, **__):
        random = np.random.RandomState(1).normal(size=network.W1.shape).astype(X.dtype)
        return Network(random, 0 * network.b1, network.W2, network.b2), {"cost": np.zeros(3)}

    monkeypatch.setattr(AutoJacoBin, "_trained", ruined)
    hasher = quick().set_params(**settings).fit(X)
    results = hasher.search_results_
    best = int(results["m_recall"].argmax())
    assert results["n_steps"][best] > 0  # training was worth it, so there was a last fit
    assert results["chosen"][-1] == 0
    assert results["m_recall"][-1] < results["m_recall"][best]
    assert results["chosen"][best] == 1
    assert held_out_m_recall(hasher, X, 0) == pytest.approx(results["m_recall"][best], abs=2e-3)


def test_nine_tenths_of_the_points_are_enough_to_deliver_what_was_compared(monkeypatch):
    monkeypatch.setattr("autojacobin.hashers.model_selection._ENOUGH_QUERIES", 10)
    monkeypatch.setattr(AutoJacoBin, "_trained", None)  # no fit after the choice
    X = digits()[:900]
    hasher = quick(jacobian_weight=1.0, init="random", alpha=0.1).fit(X)
    results = hasher.search_results_
    assert results["m_recall"][results["chosen"] == 1] == results["m_recall"].max()
    assert len(hasher.history_.get("cost", [])) == results["n_steps"][results["chosen"] == 1]


class Clock:
    """A clock that advances by a second whenever it is read."""

    def __init__(self):
        self.now = 0

    def monotonic(self):
        self.now += 1
        return self.now


@pytest.mark.parametrize("seconds", [1, 4, 20, 60])
def test_a_choice_that_is_out_of_time_delivers_the_best_so_far(monkeypatch, tmp_path, seconds):
    X = digits()[:600]
    monkeypatch.setattr(training, "time", Clock())
    hasher = quick(max_seconds=seconds).fit(X)
    results = hasher.search_results_
    assert results["m_recall"][results["chosen"] == 1] == results["m_recall"].max()
    assert held_out_m_recall(hasher, X, 0) == pytest.approx(results["m_recall"].max(), abs=2e-3)
    if seconds == 1:
        assert results["init"].tolist() == ["random"]
    hasher.save(tmp_path / "model.safetensors")
    assert load(tmp_path / "model.safetensors").encode(X) == hasher.encode(X)


def test_a_choice_among_a_sample_that_is_out_of_time_knows_the_ranks_of_the_sample(monkeypatch):
    monkeypatch.setattr("autojacobin.hashers.autoencoders.autojacobin._MOST_TO_CHOOSE", 600)
    monkeypatch.setattr(training, "time", Clock())
    take_the_last(monkeypatch)
    hasher = quick(jacobian_weight=1.0, init="itq", alpha=0.1, max_seconds=25).fit(digits()[:1000])
    assert set(hasher.history_["n_points"]) == {225}  # of the sample: there was no last fit
    assert hasher.tangent_rank_.shape == (1000,)
    assert np.sum(hasher.tangent_rank_ >= 0) == 450


@pytest.mark.rare
def test_time_enough_does_not_change_the_choice():
    X = digits()[:600]
    assert np.array_equal(quick(max_seconds=1e6).fit(X).W1_, quick().fit(X).W1_)


def test_given_settings_stay_as_they_are():
    hasher = quick(init="itq", alpha=0.05).fit(digits()[:600])
    looked = hasher.search_results_
    assert set(looked["init"]) == {"itq"}
    assert set(looked["alpha"][looked["n_epochs"] > 0]) == {0.05}
    assert hasher.get_params()["alpha"] == 0.05
    published = AutoJacoBin.as_published(16, n_neighbors=40, n_epochs=1, random_state=0).fit(digits()[:600])
    assert not hasattr(published, "search_results_")
    assert published.chosen_ == {**PUBLISHED, "n_epochs": 1}


def test_prepared_points_take_the_papers_settings():
    X = digits()[:300]
    few = AutoJacoBin(16, n_neighbors=40, random_state=0).fit(X)
    assert not hasattr(few, "search_results_")
    same = AutoJacoBin.as_published(16, n_neighbors=40, random_state=0).fit(X)
    assert np.array_equal(few.W1_, same.W1_)
    assert few.chosen_ == same.chosen_


def test_a_second_fit_leaves_nothing_of_the_first():
    hasher = quick(jacobian_weight=0).fit(digits()[:600])
    hasher.set_params(init="random", alpha=0.1, energy=0.98).fit(digits()[:600])
    assert not hasattr(hasher, "search_results_")


def test_more_points_than_are_needed_are_sampled(monkeypatch):
    monkeypatch.setattr("autojacobin.hashers.autoencoders.autojacobin._MOST_TO_CHOOSE", 600)
    take_the_last(monkeypatch)
    hasher = quick(init="itq").fit(digits()[:1000])
    assert hasher.search_results_["n_steps"][-2:].tolist() == [4, 4]
    assert hasher.history_["n_points"].tolist() == [200] * 4
    assert hasher.tangent_rank_.shape == (1000,)
    assert np.sum(hasher.tangent_rank_ >= 0) == 800  # a point that no step used has no space


def test_choosing_by_origin_looks_at_codes_without_a_bias():
    hasher = AutoJacoBin(8, threshold="origin")
    network = Network(np.eye(8), np.full(8, 5.0), np.eye(8), np.zeros(8))
    points = -np.ones((3, 8))
    assert not hasher._bits_of(network, points).any()
    assert AutoJacoBin(8)._bits_of(network, points).all()


def test_results_survive_the_file(tmp_path):
    hasher = quick(jacobian_weight=0).fit(digits()[:600])
    hasher.save(tmp_path / "model.safetensors")
    again = load(tmp_path / "model.safetensors")
    assert again.search_results_.keys() == hasher.search_results_.keys()
    for name, column in hasher.search_results_.items():
        assert np.array_equal(again.search_results_[name], column, equal_nan=column.dtype.kind == "f")
    assert repr(again.chosen_) == repr(hasher.chosen_)
    assert again.encode(digits()) == hasher.encode(digits())


def test_more_bits_than_features_can_choose_too():
    hasher = AutoJacoBin(40, n_neighbors=40, n_epochs=1, random_state=0).fit(digits()[:600, 20:40])
    assert "okmeans" not in hasher.search_results_["init"]
    assert hasher.encode(digits()[:, 20:40]).n_bits == 40


@pytest.mark.rare
def test_tangent_spaces_that_memory_cannot_hold_are_never_held_at_once(monkeypatch):
    X = digits()[:700].astype(np.float64)
    settings = {"jacobian_weight": 1.0, "init": "itq", "alpha": 0.1}
    held = quick(**settings).fit(X)
    monkeypatch.setattr(tangent, "_MOST_BYTES_STORED", 0)
    at_once, empty = [], TangentsOnDemand._empty
    monkeypatch.setattr(
        TangentsOnDemand, "_empty", lambda self, ranks: at_once.append(len(ranks)) or empty(self, ranks)
    )
    by_batch = quick(**settings).fit(X)
    assert 0 < max(at_once) <= 234  # a batch
    assert np.allclose(by_batch.search_results_["m_recall"], held.search_results_["m_recall"])
    assert np.allclose(by_batch.W1_, held.W1_, rtol=1e-6, atol=1e-9)


def test_the_spaces_to_choose_with_are_gone_before_those_of_all_points_come(monkeypatch):
    monkeypatch.setattr("autojacobin.hashers.autoencoders.autojacobin._MOST_TO_CHOOSE", 600)
    spaces, alive = [], []
    estimate = AutoJacoBin._tangents

    def watched(self, X, energy, rng, report):
        alive.extend(one() is not None for one in spaces)
        found = estimate(self, X, energy, rng, report)
        spaces.append(weakref.ref(found))
        return found

    monkeypatch.setattr(AutoJacoBin, "_tangents", watched)
    numbers = itertools.count()  # whatever is looked at last is the best
    monkeypatch.setattr(
        "autojacobin.hashers.autoencoders.autojacobin.held_out_score",
        lambda *_: lambda network: np.full(9, float(next(numbers))),
    )
    hasher = quick(jacobian_weight=1.0, init="random", alpha=0.1).fit(digits()[:900])
    assert hasher.chosen_["n_epochs"] > 0
    assert alive == [False]


def test_neighbours_that_are_missing_are_told_once_and_to_the_caller():
    X = digits()[:600, 18:30]
    for fit in ("fit", "fit_transform"):
        hasher = AutoJacoBin(8, n_neighbors=700, n_epochs=1, random_state=0)
        with pytest.warns(UserWarning, match="from 700 neighbours, but there are 600 training points") as told:
            getattr(hasher, fit)(X)
        assert [warning.filename for warning in told] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        AutoJacoBin(8, n_neighbors=700, n_epochs=0, random_state=0).fit(X)  # chosen among starts, without spaces
        AutoJacoBin(8, n_neighbors=700, jacobian_weight=0, n_epochs=1, random_state=0).fit(X)


def test_an_interrupted_choice_leaves_the_hasher_as_it_was():
    X = digits()[:600]
    hasher = quick(jacobian_weight=1.0, init="random", alpha=0.1).fit(X)
    before = dict(vars(hasher))
    for stage, reached in (("choosing", 0), ("choosing", 2), ("tangent spaces", 64), ("training", 0)):

        def interrupt(now, done, total, stage=stage, reached=reached):
            if now == stage and done >= reached:
                raise KeyboardInterrupt

        hasher.set_params(progress=interrupt)
        with pytest.raises(KeyboardInterrupt):
            hasher.fit(X[:550])
        hasher.set_params(progress=None)
        assert vars(hasher).keys() == before.keys()
        assert all(vars(hasher)[name] is value for name, value in before.items())


def test_progress_runs_from_nothing_to_all_in_every_stage():
    told = []
    quick(progress=lambda *words: told.append(words)).fit(digits()[:600])
    stages = list(dict.fromkeys(stage for stage, _, _ in told))
    assert stages[:2] == ["choosing", "tangent spaces"]
    for stage in stages:
        done = [number for name, number, _ in told if name == stage]
        totals = {total for name, _, total in told if name == stage}
        assert done == sorted(done)
        assert len(totals) == 1
        assert {done[-1]} == totals


@pytest.mark.rare
def test_threads_and_memory_maps_do_not_change_the_choice(monkeypatch, tmp_path):
    X = digits()[:800].astype(np.float32)
    np.save(tmp_path / "X.npy", X)
    fitted = []
    for cores, points in ((1, X), (2, np.load(tmp_path / "X.npy", mmap_mode="r"))):
        monkeypatch.setattr("autojacobin.core.parallel.usable_cores", lambda cores=cores: cores)
        with threadpool_limits(cores, user_api="blas"):
            fitted.append(quick().fit(points))
    assert np.array_equal(fitted[0].search_results_["m_recall"], fitted[1].search_results_["m_recall"])
    assert np.array_equal(fitted[0].W1_, fitted[1].W1_)


@pytest.mark.rare
def test_copies_searches_and_pickles_keep_what_is_open():
    X = digits()[:1000]
    search = GridSearchCV(quick(jacobian_weight=0), {"alpha": ["auto", 0.1]}, cv=2).fit(X)
    assert set(search.best_estimator_.search_results_["alpha"]) - {0.1} or search.best_params_ == {"alpha": 0.1}
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    fitted = search.best_estimator_
    assert not hasattr(clone(fitted), "search_results_")
    again = pickle.loads(pickle.dumps(fitted))
    assert repr(again.chosen_) == repr(fitted.chosen_)
    assert again.encode(X) == fitted.encode(X)
    given = quick(jacobian_weight=0).set_params(random_state=np.random.RandomState(0)).fit(X)
    same = quick(jacobian_weight=0).fit(X)
    assert np.array_equal(given.W1_, same.W1_)


def test_settings_that_change_after_the_fit_do_not_change_what_was_chosen(tmp_path):
    hasher = quick(jacobian_weight=0).fit(digits()[:600])
    chosen, codes = hasher.chosen_, hasher.encode(digits())
    hasher.set_params(alpha=7.0, init="random", n_epochs=9).save(tmp_path / "model.safetensors")
    again = load(tmp_path / "model.safetensors")
    assert repr(again.chosen_) == repr(chosen)
    assert again.encode(digits()) == codes
    assert again.alpha == 7.0


def test_points_that_hardly_differ_take_the_papers_settings():
    rng = np.random.RandomState(0)
    rng.randint(2**31 - 1, size=2)  # what a fit draws before it splits
    asking, searched = split(600, rng)
    for row, chooses in ((asking[0], False), (searched[0], True)):  # the one point that differs asks, or is searched
        X = np.zeros((600, 4), dtype=np.float32)
        X[row] = 1.0
        hasher = AutoJacoBin(2, n_neighbors=5, n_epochs=1, random_state=0).fit(X)
        assert np.isfinite(hasher.W1_).all()
        assert hasattr(hasher, "search_results_") == chooses
        assert hasher.transform(X).std(axis=0).max() > 0


@pytest.mark.parametrize(("n", "bits", "features", "dtype"), [
    (500, 1, 6, np.float64), (501, 12, 5, np.uint8), (560, 4, 1, np.float32), (700, 8, 8, np.float32),
])  # fmt: skip
def test_odd_data_give_codes_and_finite_scores(n, bits, features, dtype):
    X = digits()[:n, 18 : 18 + features].astype(dtype)
    X[:, features // 2] = 3 if features > 1 else X[:, 0]  # a constant column
    X[n // 2 :] = X[: n - n // 2]  # every point twice
    hasher = AutoJacoBin(bits, n_neighbors=30, n_epochs=1, random_state=None).fit(X)
    assert np.isfinite(hasher.search_results_["m_recall"]).all()
    assert all(np.isfinite(part).all() for part in (hasher.W1_, hasher.b1_, hasher.W2_, hasher.b2_))
    assert hasher.encode(X).n_bits == bits


def test_true_neighbours_must_be_fewer_than_the_points_searched():
    X = digits()[:600]
    with pytest.raises(
        DataError, match="selection_k of AutoJacoBin must be below 450, the number of points .*, got 450"
    ):
        AutoJacoBin(8, selection_k=450).fit(X)
    hasher = quick(jacobian_weight=0, init="itq", alpha=0.1, selection_k=449, selection_depth=5).fit(X)
    assert hasattr(hasher, "search_results_")


@pytest.mark.parametrize("name", ["selection_k", "selection_depth"])
def test_what_candidates_are_compared_by_is_checked(name):
    with pytest.raises(DataError, match=f"{name} of AutoJacoBin must be .*an integer from 1 to [0-9,]+, got 0"):
        AutoJacoBin(8, **{name: 0}).fit(digits()[:600])


@pytest.mark.parametrize("name", some(METHODS))
def test_grid_search_and_pipelines_work_with_every_method(name):
    """GridSearchCV by m-Recall over the length of the codes: more bits find more."""
    pipeline = make_pipeline(StandardScaler(with_std=False), METHODS[name](8))
    step = pipeline.steps[1][0]
    search = GridSearchCV(pipeline, {f"{step}__n_bits": [4, 24]}, cv=2).fit(digits()[:400])
    assert search.best_params_ == {f"{step}__n_bits": 24}
    assert 0 < search.best_score_ <= 1
    assert search.transform(digits()[:5]).shape == (5, 24)


def test_what_was_chosen_is_named_truthfully():
    settings = {"init": "itq", "alpha": 0.03, "jacobian_weight": 0.0, "energy": float("nan"), "n_epochs": 1}
    assert recipe_name(settings) == "AutoBin from ITQ"
    assert recipe_name({**settings, "jacobian_weight": 1.0}) == "Auto-JacoBin from ITQ"
    assert recipe_name({**settings, "n_epochs": 0, "jacobian_weight": float("nan")}) == "the hyperplanes of ITQ"
    assert settings_text(settings) == "init itq, alpha 0.03, jacobian_weight 0, n_epochs 1"


def test_a_model_shows_what_it_chose(tmp_path):
    X = np.random.default_rng(0).normal(size=(600, 6)).astype(np.float32)
    hasher = AutoJacoBin(4, jacobian_weight=0, init="itq", alpha=0.03, n_epochs=1, random_state=0)
    assert "trained as" not in repr(hasher)
    assert hasher.trained_as == "AutoJacoBin"
    hasher.fit(X)
    assert hasher.trained_name in ("AutoBin from ITQ", "the hyperplanes of ITQ")
    assert hasher.trained_as.startswith(f"{hasher.trained_name} (chosen: init itq")
    assert repr(hasher).endswith(f", trained as {hasher.trained_as}")
    hasher.save(tmp_path / "model.safetensors")
    assert load(tmp_path / "model.safetensors").trained_as == hasher.trained_as
    assert ITQ(4, random_state=0).fit(X).trained_as == "ITQ"


def test_settings_that_were_given_are_not_called_chosen():
    X = np.random.default_rng(0).normal(size=(60, 6)).astype(np.float32)
    hasher = AutoJacoBin.as_published(4, n_neighbors=20, n_epochs=1, random_state=0).fit(X)
    assert hasher.trained_as == "Auto-JacoBin from a random rotation"
    assert "trained as" not in repr(hasher)
