"""The auto-encoder methods: what they leave behind, their options, and the toy example of the paper."""

import numpy as np
import pytest

from autojacobin import ITQ, AutoBin, AutoJacoBin, CAutoBin, DataError, DAutoBin, load
from autojacobin.autoencoder import Batch, Network, Objective, tangent_spaces
from tests.autoencoder import naive
from tests.hashers.methods import AUTO_ENCODERS, METHODS, digits, fitted

TERMS = {
    "AutoJacoBin": ["reconstruction", "jacobian", "binary"],
    "AutoBin1": ["reconstruction", "binary"],
    "AutoBin2": ["reconstruction", "binary"],
    "DAutoBin": ["reconstruction", "binary"],
    "CAutoBin": ["reconstruction", "binary", "contraction"],
}


@pytest.mark.parametrize("name", AUTO_ENCODERS)
def test_the_cost_falls_on_real_data(name):
    hasher = METHODS[name](24).set_params(batch_size=None, n_epochs=20).fit(digits()[:400])
    history = hasher.history_
    assert len(history["cost"]) == 20
    assert np.all(history["cost"] <= history["cost_before"])
    assert history["cost"][-1] < 0.997 * history["cost_before"][0]
    if name != "DAutoBin":  # whose noise is drawn anew at every step
        assert np.allclose(history["cost"][:-1], history["cost_before"][1:], rtol=1e-5)


@pytest.mark.parametrize("name", AUTO_ENCODERS)
def test_the_cost_falls_over_mini_batches(name):
    hasher = METHODS[name](24).set_params(batch_size=200, n_epochs=4).fit(digits()[:1000])
    history = hasher.history_
    assert history["epoch"].tolist() == [epoch for epoch in range(4) for _ in range(5)]
    assert np.all(history["n_points"] == 200)
    assert np.all(history["cost"] <= history["cost_before"])
    first, last = history["cost"][:5].mean(), history["cost"][-5:].mean()
    assert last < first


@pytest.mark.parametrize("name", AUTO_ENCODERS)
def test_the_history_has_every_term_and_they_add_up(name):
    history = fitted(name).history_
    columns = {"epoch", "n_points", "cost_before", "cost", "step", "evaluations", *TERMS[name]}
    assert set(history) == columns
    assert np.allclose(sum(history[term] for term in TERMS[name]), history["cost"])
    assert np.all(history["evaluations"] >= 2)
    assert np.all(history["evaluations"] <= 26)
    assert np.all(history["step"] >= 0)


def test_the_last_row_of_the_history_is_the_objective_at_the_weights():
    X = digits()[:300]
    hasher = AutoJacoBin.as_published(16, n_neighbors=40, batch_size=None, n_epochs=3, random_state=0).fit(
        X.astype(np.float64)
    )
    network = Network(hasher.W1_, hasher.b1_, hasher.W2_, hasher.b2_)
    scaled = X.astype(np.float64) * hasher.scale_
    assert np.linalg.norm(scaled, axis=1).max() == pytest.approx(0.8)
    spaces = tangent_spaces(scaled, 40, 16, 0.98)
    assert np.array_equal(spaces.ranks, hasher.tangent_rank_)
    values, _ = Objective(0.1, 1e-4, jacobian_weight=1.0)(network, Batch(scaled, scaled, spaces))
    assert {term: hasher.history_[term][-1] for term in values} == pytest.approx(values)


@pytest.mark.parametrize("name", AUTO_ENCODERS)
def test_attributes_have_their_shapes(name):
    hasher = fitted(name)
    shapes = [getattr(hasher, attribute).shape for attribute in ("W1_", "b1_", "W2_", "b2_")]
    assert shapes == [(16, 64), (16,), (64, 16), (64,)]
    assert isinstance(hasher.scale_, float)
    assert hasattr(hasher, "tangent_rank_") == (name == "AutoJacoBin")


def test_tangent_ranks_are_capped_at_the_bits():
    ranks = fitted("AutoJacoBin").tangent_rank_
    assert ranks.shape == (300,)
    assert 1 <= ranks.min() <= ranks.max() <= 16
    low = AutoJacoBin.as_published(16, n_neighbors=40, energy=0.5, n_epochs=0).fit(digits()[:300])
    assert low.tangent_rank_.mean() < ranks.mean()


def test_the_threshold_is_the_bias_or_the_origin():
    X = digits()[:300]
    bias, origin = (AutoBin(16, threshold=threshold, random_state=0).fit(X) for threshold in ("bias", "origin"))
    assert np.array_equal(bias.W1_, origin.W1_)
    assert np.allclose(bias.project(X) - origin.project(X), bias.b1_, atol=1e-5)
    hidden = Network(bias.W1_, bias.b1_, bias.W2_, bias.b2_).forward(X * bias.scale_).Y
    assert np.array_equal(bias.transform(X), hidden >= 0)


def test_the_start_is_a_rotated_principal_frame():
    X = digits()[:300].astype(np.float64)
    principal = np.linalg.svd(X - X.mean(axis=0), full_matrices=False)[2][:16]
    for init in ("random", "itq"):
        start = AutoBin(16, init=init, n_epochs=0, random_state=0).fit(X)
        assert np.allclose(start.W1_ @ start.W1_.T, np.eye(16), atol=1e-10)
        assert np.allclose(start.W1_.T @ start.W1_, principal.T @ principal, atol=1e-8)
        assert np.allclose(start.b2_, X.mean(axis=0) * start.scale_)
    from autojacobin import ITQ

    itq = ITQ(16, random_state=0).fit(X * start.scale_)
    assert np.allclose(np.abs(itq.weights_ @ start.W1_.T), np.eye(16), atol=1e-6)


def test_more_bits_than_features_start_from_an_extended_frame():
    X = digits()[:300, 20:30].astype(np.float64)
    start = AutoBin(25, n_epochs=0, random_state=0).fit(X)
    assert np.allclose(start.W1_[:10] @ start.W1_[:10].T, np.eye(10), atol=1e-10)
    assert np.allclose(start.W1_[10:20] @ start.W1_[10:20].T, np.eye(10), atol=1e-10)
    assert np.allclose(start.W2_ @ start.W1_, np.eye(10), atol=1e-10)  # the linear part reconstructs exactly


def test_tol_stops_early_and_zero_never_does():
    X = digits()[:400]
    whole = AutoBin(16, n_epochs=40, batch_size=100, random_state=0).fit(X)
    assert len(whole.history_["cost"]) == 160
    short = AutoBin(16, n_epochs=40, batch_size=100, tol=0.05, random_state=0).fit(X)
    steps = len(short.history_["cost"])
    assert steps < 160
    assert steps % 4 == 0
    assert np.array_equal(short.history_["cost"], whole.history_["cost"][:steps])
    by_epoch = short.history_["cost"].reshape(-1, 4).sum(axis=1)
    gains = 1 - by_epoch[1:] / by_epoch[:-1]
    assert np.all(gains[:-1] >= 0.05)
    assert gains[-1] < 0.05


def test_training_stops_below_a_cost():
    X = digits()[:400]
    whole = AutoBin(16, batch_size=100, random_state=0).fit(X).history_["cost"]
    limit = np.sort(whole)[len(whole) // 2]
    stopped = AutoBin(16, batch_size=100, stop_below=limit, random_state=0).fit(X).history_["cost"]
    assert np.array_equal(stopped, whole[: np.argmax(whole < limit) + 1])
    assert len(stopped) < len(whole)


@pytest.mark.parametrize("name", AUTO_ENCODERS)
def test_without_any_time_the_start_is_delivered_whole(name, tmp_path):
    X = digits()[:300]
    hasher = METHODS[name]().set_params(max_seconds=1e-9).fit(X)
    start = METHODS[name]().set_params(n_epochs=0).fit(X)
    assert len(hasher.history_.get("cost", [])) <= 1
    if not hasher.history_:
        assert np.array_equal(hasher.W1_, start.W1_)
    hasher.save(tmp_path / "model.safetensors")
    assert load(tmp_path / "model.safetensors").encode(X) == hasher.encode(X)


@pytest.mark.parametrize("name", AUTO_ENCODERS)
def test_time_enough_changes_nothing(name):
    limited = METHODS[name]().set_params(max_seconds=1e6).fit(digits()[:300])
    assert np.array_equal(limited.W1_, fitted(name).W1_)
    if name == "AutoJacoBin":
        assert np.array_equal(limited.tangent_rank_, fitted(name).tangent_rank_)


@pytest.mark.parametrize("wrong", [0, -1, "1", np.nan])
def test_a_wrong_time_is_an_error(wrong):
    with pytest.raises(DataError, match="max_seconds of AutoBin must be None or a number above 0 and at most"):
        AutoBin(8, max_seconds=wrong).fit(digits()[:300])


def test_batches_cut_the_epoch_into_equal_parts():
    history = AutoBin(4, batch_size=100, n_epochs=2, random_state=0).fit(digits()[:260]).history_
    assert sorted(history["n_points"][:3].tolist()) == [86, 87, 87]
    assert AutoBin(4, batch_size=1000, n_epochs=2).fit(digits()[:260]).history_["n_points"].tolist() == [260, 260]
    assert AutoBin(4, batch_size=None, n_epochs=2).fit(digits()[:260]).history_["n_points"].tolist() == [260, 260]


def test_prepareder_points_than_neighbours_is_said_and_works():
    with pytest.warns(UserWarning, match="from 80 neighbours, but there are 50 training points; all 50 are used"):
        few = AutoJacoBin.as_published(16, random_state=0).fit(digits()[:50])
    same = AutoJacoBin.as_published(16, n_neighbors=50, random_state=0).fit(digits()[:50])
    assert np.array_equal(few.W1_, same.W1_)


@pytest.mark.rare
def test_neighbours_are_looked_for_in_a_sample_of_many_points():
    X = digits()[:600]
    settings = {"n_neighbors": 40, "random_state": 0}
    whole = AutoJacoBin.as_published(16, **settings).fit(X)
    assert np.array_equal(AutoJacoBin.as_published(16, tangent_sample=None, **settings).fit(X).W1_, whole.W1_)
    assert np.array_equal(AutoJacoBin.as_published(16, tangent_sample=600, **settings).fit(X).W1_, whole.W1_)
    sampled = AutoJacoBin.as_published(16, tangent_sample=300, **settings).fit(X)
    assert sampled.tangent_rank_.shape == (600,)
    assert np.array_equal(AutoJacoBin.as_published(16, tangent_sample=300, **settings).fit(X).W1_, sampled.W1_)
    assert not np.array_equal(sampled.W1_, whole.W1_)
    assert sampled.history_["cost"][-1] == pytest.approx(whole.history_["cost"][-1], rel=0.2)
    with pytest.warns(UserWarning, match="from 80 neighbours, but there are 50 in tangent_sample; all 50 are used"):
        AutoJacoBin.as_published(16, tangent_sample=50, n_epochs=0).fit(X)


@pytest.mark.rare
def test_more_points_than_memory_holds_are_fitted_batch_by_batch(monkeypatch):
    X = digits()[:600].astype(np.float64)
    settings = {"n_neighbors": 40, "batch_size": 200, "n_epochs": 2, "random_state": 0}
    held = AutoJacoBin.as_published(16, **settings).fit(X)
    monkeypatch.setattr("autojacobin.autoencoder.tangent._MOST_BYTES_STORED", 0)
    by_batch = AutoJacoBin.as_published(16, **settings).fit(X)
    assert np.allclose(by_batch.W1_, held.W1_, rtol=1e-6, atol=1e-9)
    assert np.array_equal(by_batch.tangent_rank_, held.tangent_rank_)
    start = AutoJacoBin.as_published(16, n_neighbors=40, n_epochs=0, random_state=0).fit(X)
    assert (start.tangent_rank_ == -1).all()  # no step has used a point


def test_dautobin_sets_the_share_of_entries_to_zero():
    corrupt = DAutoBin(corruption=0.2)._corruption(np.random.RandomState(0))
    X = np.ones((200, 100), dtype=np.float32)
    noisy = corrupt(X)
    assert set(np.unique(noisy)) == {0.0, 1.0}
    assert np.mean(noisy == 0) == pytest.approx(0.2, abs=0.01)
    assert noisy.dtype == np.float32
    assert not np.array_equal(corrupt(X), noisy)  # drawn anew
    X = digits()[:300]
    none = DAutoBin(16, corruption=0.0, random_state=0).fit(X)
    assert np.allclose(none.W1_, AutoBin(16, random_state=0).fit(X).W1_, atol=1e-3)


def test_cautobin_contracts():
    X = digits()[:300]

    def norm(hasher):
        y = np.tanh(hasher.project(X))
        return np.mean(((1 - y**2) ** 2) @ np.sum(hasher.W1_**2, axis=1))

    assert norm(CAutoBin(16, contraction=0.03, random_state=0).fit(X)) < norm(fitted("AutoBin1"))
    free = CAutoBin(16, contraction=0.0, alpha=0.1, random_state=0).fit(X)
    assert np.array_equal(free.W1_, AutoBin(16, random_state=0).fit(X).W1_)


def test_without_its_jacobian_term_auto_jacobin_is_autobin():
    X = digits()[:300]
    without = AutoJacoBin.as_published(16, jacobian_weight=0.0, n_neighbors=40, random_state=0).fit(X)
    assert np.array_equal(without.W1_, AutoBin(16, random_state=0).fit(X).W1_)


def test_from_itq_begins_with_the_codes_of_itq():
    X = digits()[:400].astype(np.float64)
    start = AutoJacoBin.from_itq(16, n_epochs=0, n_neighbors=40, random_state=3).fit(X)
    assert start.encode(digits()) == ITQ(16, random_state=3).fit(X).encode(digits())


def test_from_itq_chooses_alpha_and_how_long_it_trains():
    hasher = AutoJacoBin.from_itq(8, n_neighbors=30, n_epochs=1, random_state=0).fit(digits()[:600])
    tried = hasher.search_results_
    assert set(tried["init"]) == {"itq"}
    trained = tried["n_steps"] > 0
    assert set(tried["alpha"][trained]) == {0.03, 0.1, 0.3, 1.0}
    assert set(tried["jacobian_weight"][trained]) == {0.1}
    assert set(tried["energy"][trained]) == {0.98}
    assert tried["m_recall"][tried["chosen"] == 1] >= tried["m_recall"][~trained]


def test_on_centred_data_a_shift_changes_nothing(tmp_path):
    X, shift = digits()[:400].astype(np.float64), np.arange(64) - 500.0
    settings = {"n_neighbors": 40, "n_epochs": 2, "batch_size": 100, "random_state": 0}
    plain = AutoJacoBin.from_itq(16, **settings).fit(X)
    moved = AutoJacoBin.from_itq(16, **settings).fit(X + shift)
    assert np.allclose(moved.project(X + shift), plain.project(X), atol=1e-3)  # rounding decides between neighbours
    codes = plain.encode(X)
    assert np.allclose(moved.decode(codes), plain.decode(codes) + shift, atol=0.05)
    assert ((plain.decode(codes) - X) ** 2).sum() < 0.7 * ((X - X.mean(axis=0)) ** 2).sum()
    moved.save(tmp_path / "model.safetensors")
    again = load(tmp_path / "model.safetensors")
    assert np.array_equal(again.project(X), moved.project(X))
    assert np.array_equal(again.decode(codes), moved.decode(codes))
    not_centred = moved.set_params(centred=False).fit(X)
    assert not hasattr(not_centred, "mean_")


@pytest.mark.rare
def test_centred_data_of_many_features_are_reduced_too():
    rng = np.random.RandomState(0)
    X = rng.normal(size=(300, 4)) @ rng.normal(size=(4, 260)) + 0.01 * rng.normal(size=(300, 260)) + 50
    hasher = AutoJacoBin.from_itq(8, n_neighbors=40, n_epochs=1, random_state=0).fit(X)
    assert hasher.W1_.shape == (8, 260)
    codes = hasher.encode(X)
    assert ((hasher.decode(codes) - X) ** 2).sum() < 0.7 * ((X - X.mean(axis=0)) ** 2).sum()


def test_progress_is_told_stage_by_stage():
    seen = []
    AutoJacoBin.as_published(8, n_neighbors=30, batch_size=100, progress=lambda *args: seen.append(args)).fit(
        digits()[:300]
    )
    assert [stage for stage, done, total in seen if done == total] == ["tangent spaces", "training", "training"]
    assert ("training", 15, 15) in seen


@pytest.mark.parametrize("init", ["random", pytest.param("itq", marks=pytest.mark.rare)])
def test_the_jacobian_term_pulls_the_jacobian_towards_the_tangent_spaces(init):
    X = digits()[:250].astype(np.float64)
    trained = AutoJacoBin.as_published(
        16, alpha=0.0, n_neighbors=40, batch_size=None, n_epochs=15, init=init, random_state=0
    ).fit(X)
    start = AutoJacoBin.as_published(16, n_neighbors=40, n_epochs=0, init=init, random_state=0).fit(X)
    spaces = tangent_spaces(X * start.scale_, 40, 16, 0.98)
    projectors = np.einsum("nrj,nrk->njk", spaces.bases, spaces.bases)

    def gap(hasher):
        network = Network(hasher.W1_, hasher.b1_, hasher.W2_, hasher.b2_)
        return np.mean(
            np.sum(([naive.jacobian_of(network, x) for x in X * hasher.scale_] - projectors) ** 2, axis=(1, 2))
        )

    assert gap(trained) < gap(start)


def test_the_parameters_reach_the_objective():
    weights = {"alpha": 0.3, "epsilon": 0.02}
    assert AutoBin(**weights)._objective() == Objective(0.3, 0.02)
    assert DAutoBin(**weights)._objective() == Objective(0.3, 0.02)
    published = AutoJacoBin.as_published(jacobian_weight=1.7, **weights)
    assert published._objective_for(published._given()) == Objective(0.3, 0.02, jacobian_weight=1.7)
    assert CAutoBin(contraction=0.4, **weights)._objective() == Objective(0.3, 0.02, contraction_weight=0.4)


def test_as_published_has_the_papers_settings():
    common = {
        "n_bits": 64, "epsilon": 1e-4, "batch_size": 1000, "n_epochs": 5, "scale": 0.8, "threshold": "bias",
        "init": "random", "tol": 0.0, "stop_below": None, "max_seconds": None, "random_state": None, "device": "cpu",
        "progress": None,
    }  # fmt: skip
    own = {"alpha": 0.1, "energy": 0.98, "n_neighbors": None, "tangent_sample": 100_000, "jacobian_weight": 1.0}
    own |= {"selection_k": 10, "selection_depth": None, "pca_energy": None, "centred": False}
    assert AutoJacoBin.as_published().get_params() == {**common, **own}
    assert AutoJacoBin.as_published(16, alpha=1.0).get_params() == {**common, **own, "n_bits": 16, "alpha": 1.0}
    open_ones = dict.fromkeys(("alpha", "energy", "init", "jacobian_weight"), "auto")
    assert AutoJacoBin().get_params() == {**common, **own, **open_ones, "pca_energy": 0.95}
    assert AutoBin().get_params() == {**common, "alpha": 0.1}
    assert DAutoBin().get_params() == {**common, "alpha": 0.1, "corruption": 0.1}
    assert CAutoBin().get_params() == {**common, "alpha": 0.01, "contraction": 0.01}


def wide_digits(n=400, D=270):
    """Digits turned into more dimensions than they vary in, with a little noise in all of them."""
    rng = np.random.default_rng(0)
    turn = np.linalg.qr(rng.normal(size=(D, 64)))[0].T
    return (digits()[:n] @ turn + 0.05 * rng.normal(size=(n, D))).astype(np.float32)


def test_many_features_are_reduced_while_training_and_the_network_takes_all_of_them(tmp_path):
    X = wide_digits()
    common = {"n_neighbors": 40, "batch_size": 200, "n_epochs": 2, "random_state": 0}
    reduced, whole = (AutoJacoBin.as_published(16, pca_energy=energy, **common).fit(X) for energy in (0.99, None))
    assert reduced.W1_.shape == whole.W1_.shape == (16, 270)
    assert not np.array_equal(reduced.W1_, whole.W1_)
    scores = [hasher.score(wide_digits(800)[400:]) for hasher in (reduced, whole)]
    assert scores[0] > scores[1] - 0.03
    errors = [float(((hasher.decode(hasher.encode(X)) - X) ** 2).sum()) for hasher in (reduced, whole)]
    assert errors[0] < 1.1 * errors[1]
    reduced.save(tmp_path / "model.safetensors")
    assert load(tmp_path / "model.safetensors").encode(X) == reduced.encode(X)


def test_training_in_principal_directions_leaves_no_weight_in_the_others():
    X = wide_digits()
    hasher = AutoJacoBin(16, pca_energy=0.9, jacobian_weight=0, n_epochs=1, random_state=0).fit(X)
    _, values, directions = np.linalg.svd(X - X.mean(axis=0), full_matrices=False)
    share = np.cumsum(values**2) / (values**2).sum()
    others = directions[max(int((share < 0.9).sum()) + 1, 2 * 16) :]
    assert np.abs(hasher.W1_ @ others.T).max() < 1e-4 * np.abs(hasher.W1_).max()


@pytest.mark.parametrize("parameters", [{"threshold": "origin"}, {"pca_energy": None}])
def test_features_are_not_reduced_unasked(parameters):
    X = wide_digits(60)
    common = {"n_neighbors": 40, "n_epochs": 1, "random_state": 0}
    given = AutoJacoBin(16, **common, **parameters).fit(X)
    published = AutoJacoBin.as_published(16, **common, **{**parameters, "pca_energy": None}).fit(X)
    assert np.array_equal(given.W1_, published.W1_)


def test_few_features_are_not_reduced():
    few, common = wide_digits(60)[:, :256], {"n_neighbors": 40, "n_epochs": 1, "random_state": 0}
    assert np.array_equal(
        AutoJacoBin(16, **common).fit(few).W1_, AutoJacoBin(16, pca_energy=None, **common).fit(few).W1_
    )


def test_data_far_from_the_origin_are_warned_of():
    """Divided by their largest norm, such points differ in the last digits only, and the bits become constant."""
    X = digits()[:600].astype(np.float64) + 1000
    with pytest.warns(UserWarning, match=r"of the 16 bits of AutoJacoBin are the same .*subtract their mean first"):
        AutoJacoBin.as_published(16, n_neighbors=40, random_state=0).fit(X)


@pytest.mark.rare
def test_the_toy_example_uses_seven_codes():
    """1,000 points on x1 + x2 + x3 = 1, x > 0, three bits: three lines cut the triangle into seven parts.

    The paper does not say how its toy was scaled. At 0.8 the tanh is almost linear and four to six codes are used;
    at 8, where the hidden features reach the faces of the cube as in the paper's picture, seven are the rule.
    """
    used = []
    for seed in range(8):
        X = np.random.RandomState(seed).dirichlet([1, 1, 1], 1000)
        toy = AutoJacoBin.as_published(3, alpha=0.01, scale=8, batch_size=None, n_epochs=50, random_state=seed).fit(X)
        used.append(len(np.unique(toy.transform(X), axis=0)))
        assert np.abs(np.tanh(toy.project(X))).max() > 0.95
    assert used.count(7) >= 4
    assert max(used) == 7  # the eighth code would need a plane that is not one
