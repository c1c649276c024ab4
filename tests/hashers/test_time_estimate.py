"""The time of a fit is estimated from its shapes and reported; it is a guess, so its accuracy is not tested."""

import numpy as np
import pytest

from autojacobin import AutoJacoBin
from autojacobin.hashers.time_estimate import Speed, Work, estimated_seconds, measured_speed
from tests.hashers.methods import digits

SPEED = Speed(tangent=1e-3, step=1e-4, operation=1e-11)


def first_report(hasher, X):
    seen = []
    hasher.set_params(progress=lambda *report: seen.append(report)).fit(X)
    return seen[0]


@pytest.mark.parametrize("make", [AutoJacoBin, AutoJacoBin.as_published])
def test_the_estimate_is_reported_first(make):
    stage, done, total = first_report(
        make(8, n_neighbors=30, batch_size=200, n_epochs=1, random_state=0), digits()[:600]
    )
    assert stage.startswith("fitting, about ")
    assert (done, total) == (0, 0)


def test_the_estimate_is_not_above_the_time_that_is_allowed(monkeypatch):
    monkeypatch.setattr("autojacobin.hashers.autojacobin.measured_speed", lambda *_: Speed(1e9, 1e9, 0))
    hasher = AutoJacoBin.as_published(8, n_neighbors=30, n_epochs=1, max_seconds=13.0, random_state=0)
    assert first_report(hasher, digits()[:300])[0] == "fitting, about 13 s"


def test_a_fit_is_the_same_with_an_estimate_and_without():
    X = digits()[:300]
    hashers = [AutoJacoBin.as_published(8, n_neighbors=30, n_epochs=1, random_state=0) for _ in range(2)]
    first_report(hashers[0], X)
    assert np.array_equal(hashers[0].W1_, hashers[1].fit(X).W1_)


def test_the_estimate_grows_with_points_epochs_candidates_and_bits():
    def training(n, epochs):
        return estimated_seconds(Work.of_training(n, epochs), SPEED, 2)

    assert training(1000, 5) < training(2000, 5) < training(2000, 10)
    sizes = {"n_points": 2000, "n_features": 64, "n_bits": 32, "n_candidates": 3, "n_first": 900, "n_repeated": 0}
    usual = estimated_seconds(Work.of_choice(**sizes), SPEED, 2)
    for name, value in {**sizes, "n_repeated": 3000}.items():
        larger = estimated_seconds(Work.of_choice(**{**sizes, name: 2 * value}), SPEED, 2)
        assert larger > usual, name
    assert estimated_seconds(Work.of_choice(**sizes), SPEED, 4) < usual


def test_points_of_more_dimensions_and_bits_are_measured_to_take_longer():
    rng = np.random.default_rng(0)
    few = measured_speed(rng.normal(size=(400, 8)).astype(np.float32), 4, 12, None)
    many = measured_speed(rng.normal(size=(400, 256)).astype(np.float32), 64, 300, 350)
    assert many.tangent > few.tangent > 0
    assert many.step > few.step > 0
    assert min(few.operation, many.operation) > 0
