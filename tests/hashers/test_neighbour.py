"""Neighbour hashing: its gradient against differences, its training against a plain one, and what it chooses."""

import numpy as np
import pytest

import autojacobin
from autojacobin import ITQ, DataError, NeighbourHashing
from autojacobin.core.linear_algebra import corners
from autojacobin.hashers import neighbour
from autojacobin.hashers.neighbour_embedding import Weights, draw_batches, gradient_of_codes, train
from tests.hashers.methods import digits


def neighbour_loss(H, batch, gamma, decorrelation):
    """The loss by definition; training needs only its gradient."""
    n, L = H.shape
    S = (H @ H.T) * (gamma / L)
    attraction = (S.ravel()[batch.entries] * batch.values).sum() / 2
    np.fill_diagonal(S, -np.inf)
    repulsion = np.log(np.exp(S).sum(axis=1)).mean()
    C = H.T @ H / n
    np.fill_diagonal(C, 0)
    return float(repulsion - attraction + decorrelation * ((C**2).sum() / L + (H.mean(axis=0) ** 2).sum()))


def points(n=300, dtype=np.float64):
    return digits()[:n, 18:40].astype(dtype) + np.random.default_rng(0).random((n, 22)).astype(dtype)


def one_batch(X, n_neighbors=4):
    (batch,) = draw_batches(X, np.arange(len(X)), len(X), 1, n_neighbors, np.random.RandomState(0))
    return batch


def probabilities(X, k):
    """P as the class describes it, point by point."""
    P = np.zeros((len(X), len(X)))
    for i, x in enumerate(X):
        squares = ((X - x) ** 2).sum(axis=1)
        order = np.argsort(squares)[1 : 3 * k + 1]  # the point itself is the first
        first, last = squares[order[0]], squares[order[k - 1]]
        P[i, order] = np.exp(-3 * (squares[order] - first) / (last - first))
        P[i] /= P[i].sum()
    return P


def test_the_probabilities_are_a_softmax_of_distances_to_the_nearest():
    X = points()
    batch = one_batch(X)
    P = probabilities(X[batch.rows], 4)
    found = np.zeros(300 * 300)
    found[batch.entries] = batch.values
    assert np.allclose(found.reshape(300, 300) * 300, P + P.T, atol=1e-9)
    assert np.all(np.diff(batch.entries) > 0)


def test_every_row_is_drawn_once_before_one_is_drawn_again():
    rows = np.arange(100, 165)
    batches = draw_batches(points(), rows, 20, 7, 4, np.random.RandomState(0))
    assert len(batches) == 7
    drawn = [set(batch.rows.tolist()) for batch in batches]
    assert all(len(one) == 20 for one in drawn)
    assert all(len(set.union(*drawn[first : first + 3])) == 60 for first in (0, 3))
    assert set.union(*drawn) <= set(rows.tolist())


def test_the_loss_is_the_one_of_the_formula():
    X = points()
    batch = one_batch(X)
    H = np.random.default_rng(1).uniform(-1, 1, (300, 6))
    P, S = probabilities(X[batch.rows], 4), 7.0 * H @ H.T / 6
    np.fill_diagonal(S, -np.inf)
    logs = S - np.log(np.exp(S).sum(axis=1, keepdims=True))
    np.fill_diagonal(logs, 0)
    C = H.T @ H / 300
    expected = -(P * logs).sum() / 300 + 0.3 * ((C**2).sum() - (np.diag(C) ** 2).sum()) / 6
    expected += 0.3 * (H.mean(axis=0) ** 2).sum()
    assert neighbour_loss(H, batch, 7.0, 0.3) == pytest.approx(expected, rel=1e-9)


def test_the_gradient_is_the_slope_of_the_loss():
    batch = one_batch(points())
    rng = np.random.default_rng(1)
    codes, gammas, weights = rng.uniform(-1, 1, (2, 300, 6)), np.array([7.0, 12.0]), np.array([0.3, 0.01])
    by_codes, by_gamma = gradient_of_codes(codes, batch, gammas, weights)
    step = 1e-5
    for H, gamma, weight, of_codes, of_gamma in zip(codes, gammas, weights, by_codes, by_gamma, strict=True):
        for _ in range(3):
            direction = rng.normal(size=H.shape)
            up, down = (neighbour_loss(H + side * step * direction, batch, gamma, weight) for side in (1, -1))
            assert (of_codes * direction).sum() == pytest.approx((up - down) / (2 * step), rel=1e-6)
        up, down = (neighbour_loss(H, batch, gamma + side * step, weight) for side in (1, -1))
        assert of_gamma == pytest.approx((up - down) / (2 * step), rel=1e-6)


@pytest.mark.parametrize("cores", ["1", "3"])
def test_signs_have_the_same_gradient_by_a_table_and_on_any_number_of_cores(cores, monkeypatch):
    batch = one_batch(points())
    H, of_each = (
        corners(np.random.default_rng(1).normal(size=(2, 300, 6))),
        (np.array([7.0, 3.0]), np.array([0.3, 0.0])),
    )
    expected = gradient_of_codes(H, batch, *of_each)
    monkeypatch.setenv("OMP_NUM_THREADS", cores)
    by_codes, by_gamma = gradient_of_codes(H, batch, *of_each, signs=True)
    assert np.allclose(by_codes, expected[0], rtol=1e-9, atol=1e-12)
    assert np.allclose(by_gamma, expected[1], rtol=1e-9)


def plainly_trained(Z, start, batches, weights, n_steps):
    """The same training in plain dense matrices, with the textbook's AdamW."""
    L, A, log_gamma = len(start), start.copy(), np.log(10.0)
    means, squares = np.zeros(A.size + 1), np.zeros(A.size + 1)
    for step in range(n_steps):
        batch = batches[step % len(batches)]
        X = Z[batch.rows]
        n, beta, gamma = len(X), 1 + 3 * step / n_steps, np.exp(log_gamma)
        Y = X @ A.T
        H = np.where(Y >= 0, 1.0, -1.0)
        S = gamma * H @ H.T / L
        np.fill_diagonal(S, -np.inf)
        Q = np.exp(S - S.max(axis=1, keepdims=True))
        Q /= Q.sum(axis=1, keepdims=True)
        both = np.zeros(n * n)
        both[batch.entries] = batch.values
        M = (Q + Q.T) / n - both.reshape(n, n)
        C = H.T @ H / n
        C -= np.diag(np.diag(C))
        dH = gamma / L * M @ H + weights.decorrelation * (4 / (L * n) * H @ C + 2 / n * H.mean(axis=0))
        dA = (dH * beta * (1 - np.tanh(beta * Y) ** 2)).T @ X
        dA += weights.pull * 2 / (L * len(Z)) * (Z @ (A - start).T).T @ Z
        dgamma = gamma * (M * (H @ H.T)).sum() / (2 * L)
        share = step / n_steps
        rise, fall = share / 0.3, (share - 0.3) / 0.7
        rate = 0.0004 + 0.0096 * (1 - np.cos(np.pi * rise)) / 2 if rise < 1 else 0.01 * (1 + np.cos(np.pi * fall)) / 2
        gradient = np.append(dA.ravel(), dgamma)
        means, squares = 0.9 * means + 0.1 * gradient, 0.999 * squares + 0.001 * gradient**2
        unbiased = means / (1 - 0.9 ** (step + 1)), squares / (1 - 0.999 ** (step + 1))
        update = rate * unbiased[0] / (np.sqrt(unbiased[1]) + 1e-8)
        A[:, :-1] *= 1 - 2 * rate
        A -= update[:-1].reshape(A.shape)
        log_gamma -= update[-1]
    return A


def test_training_is_adam_on_the_straight_through_gradient():
    X = points()
    Z = np.column_stack([X[:, :6] - X[:, :6].mean(axis=0), np.ones(300)])
    start = np.random.default_rng(2).normal(size=(6, 7))
    batches = draw_batches(X, np.arange(300), 150, 2, 4, np.random.RandomState(0))
    steps, pairs = [], [Weights(0.2, 0.5), Weights(0.01, 3.0)]
    found = train(Z, start, batches, pairs, 12, lambda done, _: steps.append(done))
    assert found.shape == (2, 6, 7)
    for one, pair in zip(found, pairs, strict=True):
        assert np.allclose(one, plainly_trained(Z, start, batches, pair, 12), atol=1e-9)
        assert np.abs(one - start).max() > 0.01
    assert steps == list(range(1, 13))


@pytest.fixture(scope="module")
def chosen():
    """A hasher that chose its weights, what it reported, and the points that it has not seen."""
    told, X = [], digits()
    hasher = NeighbourHashing(48, n_steps=120, random_state=1, progress=lambda *row: told.append(row)).fit(X[:1500])
    return hasher, told, X[1500:]


def test_codes_of_neighbours_are_closer_than_those_of_itq_on_points_it_has_not_seen(chosen):
    hasher, _, unseen = chosen
    itq = ITQ(48, random_state=1).fit(digits()[:1500])
    assert hasher.score(unseen, k=5) > itq.score(unseen, k=5) + 0.003


def test_what_was_compared_is_told_and_the_best_of_it_is_delivered(chosen):
    hasher, told, _ = chosen
    results = hasher.search_results_
    assert results["n_steps"].tolist() == [0, 100, 100, 100, 120]
    assert np.isnan(results["pull"][0])
    assert list(zip(results["decorrelation"][1:4], results["pull"][1:4], strict=True)) == [*neighbour._CANDIDATES]
    best = int(results["m_recall"][:4].argmax())
    assert best > 0
    assert results["chosen"].tolist() == [0, 0, 0, 0, 1]
    assert results["m_recall"][4] >= results["m_recall"][0]
    weights = {name: float(results[name][best]) for name in ("decorrelation", "pull")}
    assert hasher.chosen_ == {**weights, "n_steps": 120}
    assert hasher.trained_as == (
        f"NeighbourHashing (chosen: decorrelation {weights['decorrelation']:g}, pull {weights['pull']:g}, n_steps 120)"
    )
    assert repr(hasher).endswith(f"trained as {hasher.trained_as}")
    assert told == [
        *(("choosing", done, 100) for done in range(1, 101)),
        *(("training", done, 120) for done in range(1, 121)),
    ]


def test_it_is_saved_with_what_it_chose(chosen, tmp_path):
    hasher, _, unseen = chosen
    hasher.save(tmp_path / "m.safetensors")
    loaded = autojacobin.load(tmp_path / "m.safetensors")
    assert loaded.trained_as == hasher.trained_as
    assert loaded.encode(unseen) == hasher.encode(unseen)
    for name, column in hasher.search_results_.items():
        assert np.array_equal(loaded.search_results_[name], column, equal_nan=True)


def spoil(monkeypatch, n_steps):
    """Make trainings of this many steps give hyperplanes that say nothing."""

    def spoiled(Z, start, batches, weights, steps, report):
        if steps == n_steps:
            return np.stack([0 * start + np.eye(start.shape[1])[-1]] * len(weights))
        return train(Z, start, batches, weights, steps, report)

    monkeypatch.setattr(neighbour, "train", spoiled)


def test_where_training_does_not_help_itq_is_delivered(monkeypatch):
    spoil(monkeypatch, 100)
    X = digits()[:600]
    hasher = NeighbourHashing(16, n_steps=120, random_state=0).fit(X)
    assert len(hasher.search_results_["chosen"]) == 4  # nothing was trained further
    assert hasher.trained_name == "ITQ"
    assert hasher.trained_as == "ITQ (chosen: n_steps 0)"
    start = NeighbourHashing(16, decorrelation=0, pull=0, n_steps=0, random_state=0).fit(X)
    assert hasher.encode(X) == start.encode(X)


@pytest.mark.parametrize(("lead", "chosen"), [(0.01, [1, 0, 0, 0]), (0.1, [0, 1, 0, 0])])
def test_a_lead_within_the_noise_does_not_leave_itq(monkeypatch, lead, chosen):
    noise = np.tile([-0.3, 0.3], 50)  # of 100 queries: a standard error of 0.03
    recalls = iter([np.full(100, 0.5), 0.5 + lead + noise, np.full(100, 0.4), np.full(100, 0.4)])
    monkeypatch.setattr(neighbour, "held_out_score", lambda *_: lambda _hyperplanes: next(recalls))
    results = NeighbourHashing(24, n_steps=100, random_state=0).fit(digits()[:800]).search_results_
    assert results["m_recall"].tolist() == pytest.approx([0.5, 0.5 + lead, 0.4, 0.4])
    assert results["chosen"].tolist() == chosen


@pytest.mark.rare
def test_a_final_training_that_is_worse_than_the_short_one_is_not_delivered(monkeypatch, chosen):
    spoil(monkeypatch, 120)
    hasher = NeighbourHashing(48, n_steps=120, random_state=1).fit(digits()[:1500])
    assert hasher.search_results_["n_steps"].tolist() == [0, 100, 100, 100, 120]
    assert hasher.chosen_ == {**chosen[0].chosen_, "n_steps": 100}
    assert hasher.score(chosen[2], k=5) > 0.5


def test_a_weight_that_is_given_is_not_chosen():
    hasher = NeighbourHashing(16, pull=1.5, n_steps=20, random_state=0).fit(digits()[:600])
    assert hasher.search_results_["pull"].tolist()[1:3] == [1.5, 1.5]
    assert hasher.search_results_["decorrelation"].tolist()[1:3] == [0.003, 0.03]
    given = NeighbourHashing(16, decorrelation=0.1, pull=1.5, n_steps=20, random_state=0).fit(digits()[:600])
    assert not hasattr(given, "search_results_")
    assert given.chosen_ == {"decorrelation": 0.1, "pull": 1.5, "n_steps": 20}
    assert given.trained_as == "NeighbourHashing"


def test_prepared_points_get_the_codes_of_itq():
    X = digits()[:200]
    hasher = NeighbourHashing(16, random_state=0).fit(X)
    assert hasher.trained_as == "ITQ"
    start = NeighbourHashing(16, decorrelation=0, pull=0, n_steps=0, random_state=0).fit(X)
    assert hasher.encode(X) == start.encode(X)


def test_the_start_is_itq():
    X = points(400)
    start = NeighbourHashing(12, decorrelation=0, pull=0, n_steps=0, random_state=3).fit(X)
    assert start.encode(X) == ITQ(12, random_state=3).fit(X).encode(X)
    projections = start.project(X)
    assert np.allclose(projections.mean(axis=0), 0, atol=1e-9)
    assert np.allclose(projections.std(axis=0), 1)


def test_a_strong_pull_keeps_the_codes_of_itq():
    X = points(400)
    start, far, near = (
        NeighbourHashing(12, decorrelation=0.01, pull=pull, n_steps=n_steps, random_state=3).fit(X).transform(X)
        for pull, n_steps in ((0, 0), (0, 60), (1e4, 60))
    )
    assert np.mean(near != start) < 0.03 < np.mean(far != start)


@pytest.mark.rare
def test_more_bits_than_features_are_further_rotations():
    X = points(700)[:, :5]
    hasher = NeighbourHashing(12, n_steps=100, random_state=0).fit(X)
    bits = hasher.transform(X)
    assert len(np.unique(bits, axis=1).T) == 12
    start = NeighbourHashing(12, decorrelation=0, pull=0, n_steps=0, random_state=0).fit(X)
    assert np.allclose(start.project(X).std(axis=0), 1)
    for group in (slice(0, 5), slice(5, 10)):  # each is the frame in another rotation, scaled
        rows = start.weights_[group] / np.linalg.norm(start.weights_[group], axis=1, keepdims=True)
        assert np.allclose(rows @ rows.T, np.eye(5), atol=1e-6)


def test_it_decodes_by_least_squares():
    X = points(400)
    hasher = NeighbourHashing(12, decorrelation=0.01, pull=0.1, n_steps=60, random_state=0).fit(X)
    codes = hasher.encode(X)
    signs = np.column_stack([codes.to_signs(), np.ones(400)])
    best = signs @ np.linalg.lstsq(signs, X, rcond=None)[0]
    error, least = (((X - vectors) ** 2).sum() for vectors in (hasher.decode(codes), best))
    assert least <= error < 1.001 * least


def test_it_learns_from_more_points_than_others():
    assert NeighbourHashing().default_training_points() == 50_000
    with pytest.raises(DataError, match=r"selection_k of NeighbourHashing must be below 450.* got 500; 2 is usual"):
        NeighbourHashing(8, selection_k=500).fit(digits()[:600])
