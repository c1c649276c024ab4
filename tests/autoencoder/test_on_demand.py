"""Tangent spaces of more points than memory holds: the same spaces, by batch, among all points or a sample."""

import numpy as np
import pytest

from autojacobin.autoencoder import Objective, TangentsOnDemand, TangentSpaces, on_demand, tangents_for_training, train
from autojacobin.autoencoder._neighbors import Candidates
from tests.autoencoder.test_objective import problem

SETTINGS = (25, 4, 0.9)


def cloud(n=300, D=6):
    return np.random.default_rng(0).normal(size=(n, D)) * np.geomspace(1, 0.1, D)


def both(monkeypatch, X, sample=None):
    held = tangents_for_training(X, *SETTINGS, sample=sample, rng=np.random.RandomState(0))
    monkeypatch.setattr(on_demand, "_BYTES_HELD", 0)
    later = tangents_for_training(X, *SETTINGS, sample=sample, rng=np.random.RandomState(0))
    assert isinstance(held, TangentSpaces)
    assert isinstance(later, TangentsOnDemand)
    assert len(later) == len(held) == len(X)
    return held, later


@pytest.mark.parametrize("sample", [None, 100, 300, 1000])
def test_a_batch_gets_the_spaces_that_would_have_been_held(monkeypatch, sample):
    held, later = both(monkeypatch, cloud(), sample)
    points = np.array([3, 17, 18, 251])
    assert np.allclose(later[points].bases, held[points].bases, atol=1e-12)
    assert np.array_equal(later[points].ranks, held.ranks[points])


def test_a_part_waits_for_its_batches_too(monkeypatch):
    held, later = both(monkeypatch, cloud())
    rows = np.array([4, 9, 11, 200, 299])
    part = later.only(rows)
    assert isinstance(part, TangentsOnDemand)
    assert len(part) == 5
    assert np.allclose(part[np.array([1, 3])].bases, held.only(rows)[np.array([1, 3])].bases, atol=1e-12)
    assert np.array_equal(part.at_energy(0.5).ranks, held.at_energy(0.5).only(rows).ranks)


def test_all_ranks_are_known_in_the_end(monkeypatch):
    held, later = both(monkeypatch, cloud())
    later[np.arange(10)]
    monkeypatch.setattr(on_demand, "_POINTS_AT_ONCE", 70)
    assert np.array_equal(later.ranks, held.ranks)


def test_training_does_not_feel_the_difference(monkeypatch):
    X = 0.1 * cloud()
    held, later = both(monkeypatch, X)
    network, _ = problem(1, 6, 4, 1)
    options = {"batch_size": 100, "n_epochs": 2}
    objective = Objective(jacobian_weight=1.0)
    trained, history = train(network, X, objective, rng=np.random.RandomState(1), tangents=held, **options)
    same, its_history = train(network, X, objective, rng=np.random.RandomState(1), tangents=later, **options)
    assert np.allclose(trained.to_vector(), same.to_vector(), rtol=1e-9)
    assert its_history["cost"] == pytest.approx(history["cost"])


def test_a_sample_bounds_what_is_looked_at_and_is_drawn_from_the_generator():
    X = cloud()
    rng = np.random.RandomState(5)
    spaces = tangents_for_training(X, *SETTINGS, sample=40, rng=rng)
    chosen = np.sort(np.random.RandomState(5).choice(300, 40, replace=False))
    for i in (0, 100, 299):
        nearest = X[chosen][np.argsort(np.linalg.norm(X[chosen] - X[i], axis=1))[:25]]
        directions = np.linalg.svd(nearest - nearest.mean(axis=0))[2][: spaces.ranks[i]]
        found = spaces.bases[i]
        assert np.allclose(found.T @ found, directions.T @ directions, atol=1e-10)


def test_the_generator_is_left_alone_when_there_is_nothing_to_draw():
    rng = np.random.RandomState(5)
    tangents_for_training(cloud(50), 20, 3, 0.9, sample=50, rng=rng)
    assert rng.randint(2**31) == np.random.RandomState(5).randint(2**31)


def test_the_candidates_are_all_given_when_there_are_not_more():
    candidates = Candidates(cloud(10))
    assert len(candidates) == 10
    assert np.array_equal(candidates.nearest(cloud(3), 10), [np.arange(10)] * 3)
