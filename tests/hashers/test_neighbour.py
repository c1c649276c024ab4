"""Neighbour hashing: its gradient against differences, its training against a plain one, and what it chooses."""

import numpy as np
import pytest

import autojacobin
from autojacobin import ITQ, DataError, NeighbourHashing
from autojacobin.core.linear_algebra import corners
from autojacobin.hashers import neighbour
from autojacobin.hashers.neighbour_embedding import (
    Affine,
    Weights,
    draw_batches,
    gradient_of_codes,
    neighbour_loss,
    train,
)
from tests.hashers.methods import digits


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
    H = rng.uniform(-1, 1, (300, 6))
    by_codes, by_gamma = gradient_of_codes(H, batch, 7.0, 0.3)
    step = 1e-5
    for _ in range(5):
        direction = rng.normal(size=H.shape)
        up, down = (neighbour_loss(H + side * step * direction, batch, 7.0, 0.3) for side in (1, -1))
        assert (by_codes * direction).sum() == pytest.approx((up - down) / (2 * step), rel=1e-6)
    up, down = (neighbour_loss(H, batch, 7.0 + side * step, 0.3) for side in (1, -1))
    assert by_gamma == pytest.approx((up - down) / (2 * step), rel=1e-6)


@pytest.mark.parametrize("cores", ["1", "3"])
def test_signs_have_the_same_gradient_by_a_table_and_on_any_number_of_cores(cores, monkeypatch):
    batch = one_batch(points())
    H = corners(np.random.default_rng(1).normal(size=(300, 6)))
    expected = gradient_of_codes(H, batch, 7.0, 0.3)
    monkeypatch.setenv("OMP_NUM_THREADS", cores)
    by_codes, by_gamma = gradient_of_codes(H, batch, 7.0, 0.3, signs=True)
    assert np.allclose(by_codes, expected[0], rtol=1e-9, atol=1e-12)
    assert by_gamma == pytest.approx(expected[1], rel=1e-9)


def plainly_trained(Z, start, batches, weights, n_steps):
    """The same training in plain dense matrices, with the textbook's AdamW; W and b in one matrix."""
    L, A = len(start.b), np.column_stack([start.W, start.b])
    origin, log_gamma = A.copy(), np.log(10.0)
    means, squares = np.zeros(A.size + 1), np.zeros(A.size + 1)
    for step in range(n_steps):
        batch = batches[step % len(batches)]
        X = np.column_stack([Z[batch.rows], np.ones(len(batch.rows))])
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
        ones = np.column_stack([Z, np.ones(len(Z))])
        dA += weights.pull * 2 / (L * len(Z)) * (ones @ (A - origin).T).T @ ones
        dgamma = gamma * (M * (H @ H.T)).sum() / (2 * L)
        share = step / n_steps
        rise, fall = share / 0.3, (share - 0.3) / 0.7
        rate = 0.0004 + 0.0096 * (1 - np.cos(np.pi * rise)) / 2 if rise < 1 else 0.01 * (1 + np.cos(np.pi * fall)) / 2
        gradient = np.append(dA.ravel(), dgamma)
        means, squares = 0.9 * means + 0.1 * gradient, 0.999 * squares + 0.001 * gradient**2
        unbiased = means / (1 - 0.9 ** (step + 1)), squares / (1 - 0.999 ** (step + 1))
        update = rate * unbiased[0] / (np.sqrt(unbiased[1]) + 1e-8)
        A[:, :-1] *= 1 - rate
        A -= update[:-1].reshape(A.shape)
        log_gamma -= update[-1]
    return Affine(A[:, :-1], A[:, -1])


def test_training_is_adam_on_the_straight_through_gradient():
    X = points()
    Z = X[:, :6] - X[:, :6].mean(axis=0)
    start = Affine(np.random.default_rng(2).normal(size=(6, 6)), np.zeros(6))
    batches = draw_batches(X, np.arange(300), 150, 2, 4, np.random.RandomState(0))
    told = []
    found = train(Z, start, batches, Weights(0.2, 0.5), 12, told.append)
    expected = plainly_trained(Z, start, batches, Weights(0.2, 0.5), 12)
    assert np.allclose(found.W, expected.W, atol=1e-9)
    assert np.allclose(found.b, expected.b, atol=1e-9)
    assert np.abs(found.W - start.W).max() > 0.01
    assert told == list(range(1, 13))


def test_codes_of_neighbours_are_closer_than_those_of_itq_on_points_it_has_not_seen():
    X = digits()
    found = NeighbourHashing(48, n_steps=200, random_state=0).fit(X[:1200])
    assert found.chosen_["n_steps"] == 200
    assert found.score(X[1200:], k=5) > ITQ(48, random_state=0).fit(X[:1200]).score(X[1200:], k=5) + 0.003


def test_what_was_compared_is_told_and_the_best_of_it_is_delivered():
    X = digits()[:700]
    hasher = NeighbourHashing(16, n_steps=150, random_state=1).fit(X)
    results = hasher.search_results_
    assert results["n_steps"].tolist()[:5] == [0, 100, 100, 100, 100]
    assert np.isnan(results["pull"][0])
    assert list(zip(results["decorrelation"][1:5], results["pull"][1:5], strict=True)) == [*neighbour._CANDIDATES]
    assert results["chosen"].sum() == 1
    chosen = int(results["chosen"].argmax())
    assert results["m_recall"][chosen] >= results["m_recall"][0]
    assert hasher.chosen_ == {name: results[name][chosen] for name in ("decorrelation", "pull", "n_steps")}
    assert hasher.trained_as == (
        f"NeighbourHashing (chosen: decorrelation {results['decorrelation'][chosen]:g}, "
        f"pull {results['pull'][chosen]:g}, n_steps {results['n_steps'][chosen]})"
    )
    assert repr(hasher).endswith(f"trained as {hasher.trained_as}")


def spoil(monkeypatch, n_steps):
    """Make trainings of this many steps give hyperplanes that say nothing."""

    def spoiled(Z, start, batches, weights, steps, report):
        if steps == n_steps:
            return Affine(0 * start.W, start.b + 1)
        return train(Z, start, batches, weights, steps, report)

    monkeypatch.setattr(neighbour, "train", spoiled)


def test_where_training_does_not_help_itq_is_delivered(monkeypatch):
    spoil(monkeypatch, 100)
    X = digits()[:600]
    hasher = NeighbourHashing(16, n_steps=120, random_state=0).fit(X)
    assert len(hasher.search_results_["chosen"]) == 5  # nothing was trained further
    assert hasher.trained_name == "ITQ"
    assert hasher.trained_as == "ITQ (chosen: n_steps 0)"
    start = NeighbourHashing(16, decorrelation=0, pull=0, n_steps=0, random_state=0).fit(X)
    assert hasher.encode(X) == start.encode(X)


def test_a_final_training_that_is_worse_than_the_short_one_is_not_delivered(monkeypatch):
    spoil(monkeypatch, 150)
    hasher = NeighbourHashing(16, n_steps=150, random_state=1).fit(digits()[:700])
    results = hasher.search_results_
    assert results["n_steps"].tolist() == [0, 100, 100, 100, 100, 150]
    assert hasher.chosen_["n_steps"] == 100
    assert hasher.score(digits()[700:1200]) > 0.5


def test_a_weight_that_is_given_is_not_chosen():
    hasher = NeighbourHashing(16, pull=1.5, n_steps=20, random_state=0).fit(digits()[:600])
    assert hasher.search_results_["pull"].tolist()[1:3] == [1.5, 1.5]
    assert hasher.search_results_["decorrelation"].tolist()[1:3] == [0.003, 0.03]
    given = NeighbourHashing(16, decorrelation=0.1, pull=1.5, n_steps=20, random_state=0).fit(digits()[:600])
    assert not hasattr(given, "search_results_")
    assert given.chosen_ == {"decorrelation": 0.1, "pull": 1.5, "n_steps": 20}
    assert given.trained_as == "NeighbourHashing"


def test_few_points_get_the_codes_of_itq():
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


def test_it_is_saved_with_what_it_chose(tmp_path):
    hasher = NeighbourHashing(16, n_steps=20, random_state=0).fit(digits()[:600])
    hasher.save(tmp_path / "m.safetensors")
    loaded = autojacobin.load(tmp_path / "m.safetensors")
    assert loaded.trained_as == hasher.trained_as
    assert loaded.encode(digits()) == hasher.encode(digits())
    for name, column in hasher.search_results_.items():
        assert np.array_equal(loaded.search_results_[name], column, equal_nan=True)


def test_progress_is_told_in_two_stages():
    told = []
    hasher = NeighbourHashing(16, n_steps=120, random_state=1, progress=lambda *row: told.append(row))
    hasher.fit(digits()[:700])
    assert told[0] == ("choosing", 1, 400)
    assert told[399] == ("choosing", 400, 400)
    assert told[-1] == ("training", 120, 120)


def test_it_learns_from_more_points_than_others():
    assert NeighbourHashing().default_training_points() == 50_000
    with pytest.raises(DataError, match=r"selection_k of NeighbourHashing must be below 450.* got 500; 2 is usual"):
        NeighbourHashing(8, selection_k=500).fit(digits()[:600])
