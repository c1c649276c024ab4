"""Algorithm 1: which points go into a step, with which targets and tangent spaces, and how it is reported."""

import numpy as np
import pytest

from autojacobin.autoencoder import (
    Batch,
    Objective,
    OutOfTimeError,
    TangentsOnDemand,
    TangentSpaces,
    TimeLimit,
    train,
    training,
)
from autojacobin.autoencoder.line_search import LinePoint, strong_wolfe
from tests.autoencoder import naive
from tests.autoencoder.test_objective import problem


class Recorder(Objective):
    """An objective that remembers the batches it was asked about."""

    def __init__(self):
        super().__init__(alpha=0.1)
        object.__setattr__(self, "batches", [])

    def descent(self, network, batch, room=None):
        self.batches.append(batch)
        return super().descent(network, batch, room)


def numbered(n=60, D=5, d=3):
    """Points and tangent spaces that carry the number of the point they belong to."""
    network, _ = problem(2, D, d, 1)
    X = np.random.default_rng(0).normal(0, 0.1, (n, D))
    X[:, 0] = np.arange(n) / n
    bases = np.zeros((n, 2, D))
    bases[:, 0, 0] = np.arange(n) / n
    return network, X, TangentSpaces(bases, np.arange(n))


def test_every_epoch_goes_once_over_all_points_in_another_order():
    network, X, tangents = numbered()
    recorder = Recorder()
    train(network, X, recorder, rng=np.random.RandomState(0), tangents=tangents, batch_size=20, n_epochs=3)
    batches = [tuple(sorted(np.rint(batch.inputs[:, 0] * 60).astype(int))) for batch in recorder.batches]
    assert [len(batch) for batch in batches] == [20] * 9
    for epoch in range(3):
        assert sorted(sum(batches[3 * epoch : 3 * epoch + 3], ())) == list(range(60))
    assert len(set(batches)) == 9
    assert tuple(range(20)) not in batches


def test_each_point_has_its_own_tangent_space_and_target():
    network, X, tangents = numbered()
    recorder = Recorder()
    train(network, X, recorder, rng=np.random.RandomState(0), tangents=tangents, batch_size=20, n_epochs=2)
    for batch in recorder.batches:
        assert np.array_equal(batch.tangents.bases[:, 0, 0], batch.inputs[:, 0])
        assert np.array_equal(batch.tangents.ranks, np.rint(batch.inputs[:, 0] * 60))
        assert np.array_equal(batch.targets, batch.inputs)


def test_noise_goes_into_the_inputs_and_not_into_the_targets():
    network, X, _ = numbered()
    recorder = Recorder()
    noise = np.random.RandomState(5)

    def corrupt(clean):
        return clean * (noise.random_sample(clean.shape) > 0.3)

    train(network, X, recorder, rng=np.random.RandomState(0), batch_size=20, n_epochs=2, corrupt=corrupt)
    distinct = recorder.batches
    for batch in distinct:
        gone = batch.inputs != batch.targets
        assert 0.1 < gone.mean() < 0.5
        assert np.all(batch.inputs[gone] == 0)
        rows = np.rint(batch.targets[:, 0] * 60).astype(int)
        assert np.array_equal(batch.targets, X[rows])
    assert not np.array_equal(distinct[0].inputs == 0, distinct[3].inputs == 0)


def test_the_cost_with_noise_compares_what_comes_out_with_the_clean_points():
    network, X, _ = numbered()
    options = {"n_epochs": 1, "batch_size": None, "corrupt": np.zeros_like}
    trained, history = train(network, X, Objective(alpha=0.0), rng=np.random.RandomState(0), **options)
    assert history["cost_before"][0] == pytest.approx(naive.reconstruction(network, np.zeros_like(X), X))
    assert history["cost"][0] == pytest.approx(naive.reconstruction(trained, np.zeros_like(X), X))


def test_a_step_goes_against_the_gradient_by_the_length_it_tells():
    network, X, _ = numbered()
    objective = Objective(alpha=0.1)
    trained, history = train(network, X, objective, rng=np.random.RandomState(0), n_epochs=1, batch_size=None)
    _, gradient = objective(network, Batch(X, X))
    assert history["step"][0] > 0
    expected = network.to_vector() - history["step"][0] * gradient.to_vector()
    assert np.allclose(trained.to_vector(), expected, rtol=1e-12)


def test_later_searches_start_from_the_last_step(monkeypatch):
    tried = []
    original = training.strong_wolfe

    def watched(line, start, first_step, **options):
        tried.append(first_step)
        return original(line, start, first_step, **options)

    monkeypatch.setattr(training, "strong_wolfe", watched)
    network, X, _ = numbered()
    _, history = train(network, X, Objective(), rng=np.random.RandomState(0), n_epochs=4, batch_size=None)
    _, gradient = Objective()(network, Batch(X, X))
    assert tried[0] == pytest.approx(min(1, 1 / np.abs(gradient.to_vector()).sum()))
    assert np.array_equal(tried[1:], history["step"][:-1])


def test_training_takes_the_steps_that_full_gradients_lead_to():
    network, batch = problem(40, 6, 4, 3)
    X, tangents = batch.inputs, batch.tangents
    objective = Objective(jacobian_weight=1.0)
    options = {"n_epochs": 3, "batch_size": 20}
    trained, history = train(network, X, objective, rng=np.random.RandomState(0), tangents=tangents, **options)

    rng, step, taken = np.random.RandomState(0), None, []
    for _ in range(3):
        for chosen in np.array_split(rng.permutation(40), 2):
            points = np.sort(chosen)
            part = Batch(X[points], X[points], tangents[points])
            network, step = plain_step(network, objective, part, step)
            taken.append(step)
    assert np.allclose(history["step"], taken, rtol=1e-8)
    assert np.allclose(trained.to_vector(), network.to_vector(), rtol=0, atol=1e-9)


def plain_step(network, objective, batch, last_step):
    """A step of Algorithm 1 that asks for the whole gradient at every point of the line."""
    theta = network.to_vector()
    values, gradient = objective(network, batch)
    direction = -gradient.to_vector()

    def line(t):
        values, gradient = objective(network.with_vector(theta + t * direction), batch)
        return LinePoint(t, sum(values.values()), gradient.to_vector() @ direction)

    start = LinePoint(0.0, sum(values.values()), -direction @ direction)
    first = min(1.0, 1.0 / np.abs(direction).sum()) if last_step is None else last_step
    step = strong_wolfe(line, start, first)[0].t
    return network.with_vector(theta + step * direction), step


class Clock:
    """A clock that advances by a second whenever it is read."""

    def __init__(self):
        self.now = 0

    def monotonic(self):
        self.now += 1
        return self.now


@pytest.mark.parametrize("seconds", [1, 3, 5, 100])
def test_a_training_that_is_out_of_time_ends_with_the_steps_so_far(monkeypatch, seconds):
    network, X, tangents = numbered()
    options = {"tangents": tangents, "batch_size": 20, "n_epochs": 3}
    whole, history = train(network, X, Objective(), rng=np.random.RandomState(0), **options)
    monkeypatch.setattr(training, "time", Clock())
    reported = []
    limit = TimeLimit(seconds, lambda *words: reported.append(words))
    ended, its_history = train(network, X, Objective(), rng=np.random.RandomState(0), progress=limit, **options)
    n_steps = min(seconds, 9)
    assert np.array_equal(its_history["cost"], history["cost"][:n_steps])
    assert reported[:n_steps] == [("training", step + 1, 9) for step in range(n_steps)]
    assert np.array_equal(ended.to_vector(), whole.to_vector()) == (n_steps == 9)
    assert limit.expired == (n_steps < 9)


def test_time_that_runs_out_among_the_tangent_spaces_ends_the_training_too():
    network, X, _ = numbered()

    def stop(stage, done, total):
        if done > 40:
            raise OutOfTimeError

    tangents = TangentsOnDemand(X, 20, 2, 0.9, sample=None, rng=np.random.RandomState(0), progress=stop)
    objective = Objective(jacobian_weight=1.0)
    _, history = train(network, X, objective, rng=np.random.RandomState(0), tangents=tangents, batch_size=20)
    assert len(history["cost"]) == 2


def test_a_hook_sees_each_network_with_its_costs():
    network, X, _ = numbered()
    seen = []
    options = {"batch_size": 20, "n_epochs": 2, "on_step": lambda *step: seen.append(step)}
    trained, history = train(network, X, Objective(), rng=np.random.RandomState(0), **options)
    assert len(seen) == 6
    assert seen[-1][0] is trained
    for number, (after, row) in enumerate(seen):
        assert row == {name: column[number] for name, column in history.items()}
        assert row["cost"] == pytest.approx(row["reconstruction"] + row["binary"])
        assert not np.array_equal(after.to_vector(), (seen[number - 1][0] if number else network).to_vector())


def test_a_hook_can_end_the_training():
    network, X, _ = numbered()

    def stop(network, row):
        if row["epoch"] == 1:
            raise OutOfTimeError

    options = {"batch_size": 20, "n_epochs": 3, "on_step": stop}
    _, history = train(network, X, Objective(), rng=np.random.RandomState(0), **options)
    assert history["epoch"].tolist() == [0, 0, 0, 1]


def test_training_stops_below_a_cost():
    network, X, _ = numbered()
    options = {"batch_size": 20, "n_epochs": 3}
    _, history = train(network, X, Objective(), rng=np.random.RandomState(0), **options)
    costs = history["cost"]
    assert len(costs) == 9
    for limit in (costs[0], costs[4], costs.min()):
        expected = np.append(np.flatnonzero(costs < limit), 8)[0] + 1
        _, some = train(network, X, Objective(), rng=np.random.RandomState(0), stop_below=limit, **options)
        assert np.array_equal(some["cost"], costs[:expected])
    assert (costs < costs[0]).any()


def test_steps_that_are_asked_for_are_the_first_ones():
    network, X, _ = numbered()
    options = {"batch_size": 20, "n_epochs": 3}
    _, whole = train(network, X, Objective(), rng=np.random.RandomState(0), **options)
    _, some = train(network, X, Objective(), rng=np.random.RandomState(0), n_steps=4, **options)
    assert np.array_equal(some["cost"], whole["cost"][:4])
    same, none = train(network, X, Objective(), rng=np.random.RandomState(0), n_steps=0, **options)
    assert same is network
    assert none == {}
