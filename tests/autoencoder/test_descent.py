"""The cost along the line of a step, against the cost and the gradient evaluated in full at every point of it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autojacobin.autoencoder import Batch, Network, Objective, TangentSpaces
from autojacobin.autoencoder.jacobian import LineBuffer, plain_jacobian
from tests.autoencoder import naive
from tests.autoencoder.test_objective import SHAPES, problem

OBJECTIVES = {
    "jacobian": Objective(alpha=0.3, jacobian_weight=1.7),
    "contraction": Objective(alpha=0.3, contraction_weight=0.6),
    "all": Objective(alpha=0.3, jacobian_weight=1.7, contraction_weight=0.6),
    "reconstruction": Objective(alpha=0.0),
}


def at(network, descent, t):
    """The network at ``t`` on the line."""
    return network.with_vector(network.to_vector() - t * descent.gradient)


def in_full(objective, network, batch, descent, t):
    """Values and slope at ``t`` from a gradient with respect to all weights."""
    values, gradient = objective(at(network, descent, t), batch)
    return values, -gradient.to_vector() @ descent.gradient


def assert_follows(descent, objective, network, batch, steps=(1e-3, 0.02, 0.1, 0.02), tolerance=1e-11):
    for t in steps:
        values, slope = descent(t)
        expected_values, expected_slope = in_full(objective, network, batch, descent, t)
        assert values == pytest.approx(expected_values, rel=tolerance)
        assert slope == pytest.approx(expected_slope, rel=tolerance, abs=tolerance * abs(descent.slope))


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("shape", SHAPES)
def test_values_and_slopes_are_those_of_the_full_objective(name, shape):
    network, batch = problem(*shape, seed=3)
    descent = OBJECTIVES[name].descent(network, batch)
    values, gradient = OBJECTIVES[name](network, batch)
    assert descent.values == pytest.approx(values, rel=1e-13)
    assert np.allclose(descent.gradient, gradient.to_vector(), rtol=1e-12, atol=1e-12)
    assert descent.slope == pytest.approx(-(gradient.to_vector() @ gradient.to_vector()), rel=1e-12)
    assert_follows(descent, OBJECTIVES[name], network, batch)


def test_the_jacobian_term_on_the_line_is_the_definition_written_out():
    network, batch = problem(7, 5, 3, 2)
    descent = Objective(alpha=0.0, jacobian_weight=1.0).descent(network, batch)
    values, _ = descent(0.05)
    by_definition = plain_jacobian(at(network, descent, 0.05), batch.inputs, batch.tangents.bases)
    assert values["jacobian"] == pytest.approx(by_definition, rel=1e-12)


@given(st.integers(1, 9), st.integers(1, 7), st.integers(1, 9), st.integers(0, 2**31), st.floats(-0.1, 0.1))
def test_the_slope_is_the_difference_of_values_over_random_shapes(n, D, d, seed, t):
    network, batch = problem(n, D, d, 1 + seed % min(d, D), seed)
    descent = Objective(alpha=0.0, jacobian_weight=1.0).descent(network, batch)
    size = max(1.0, np.abs(descent.gradient).max())
    t, h = t / size, 1e-4 / size

    def cost(step):
        moved = at(network, descent, step)
        return naive.reconstruction(moved, batch.inputs, batch.targets) + plain_jacobian(
            moved, batch.inputs, batch.tangents.bases
        )

    values, slope = descent(t)
    assert sum(values.values()) == pytest.approx(cost(t), rel=1e-10)
    difference = (8 * (cost(t + h) - cost(t - h)) - (cost(t + 2 * h) - cost(t - 2 * h))) / (12 * h)
    assert slope == pytest.approx(difference, rel=1e-5, abs=1e-6 * size * max(1.0, cost(t)))


@pytest.mark.parametrize("n_held", [0, 10, 23])
def test_points_that_do_not_fit_into_memory_are_evaluated_in_full(monkeypatch, n_held):
    network, batch = problem(23, 6, 5, 4)
    monkeypatch.setattr("autojacobin.autoencoder.jacobian._BYTES_FOR_LINE", n_held * 3 * 6 * 5 * 8)
    monkeypatch.setattr("autojacobin.autoencoder.jacobian._POINTS_PER_TASK", 4)
    monkeypatch.setattr("autojacobin.autoencoder.jacobian._NUMBERS_PER_GROUP", 90)
    objective = OBJECTIVES["jacobian"]
    assert_follows(objective.descent(network, batch), objective, network, batch)


def test_lines_that_share_a_buffer_do_not_change_each_other():
    objective, buffer = OBJECTIVES["jacobian"], LineBuffer()
    for n, D, d in ((9, 5, 4), (8, 5, 4), (11, 5, 4), (9, 4, 5)):  # smaller, larger and of other shapes
        network, batch = problem(n, D, d, 3, seed=n)
        assert_follows(objective.descent(network, batch, buffer), objective, network, batch)


def test_some_of_the_bases_in_sixteen_bits():
    network, batch = problem(40, 12, 6, 4)
    scales = np.abs(batch.tangents.bases).max(axis=2) / 32767
    held = np.rint(batch.tangents.bases / np.where(scales > 0, scales, 1)[:, :, None]).astype(np.int16)
    points = np.array([7, 2, 30, 31, 39])
    few = Batch(batch.inputs[points], batch.targets[points], TangentSpaces(held, batch.tangents.ranks, scales)[points])
    objective = OBJECTIVES["jacobian"]
    assert_follows(objective.descent(network, few), objective, network, few)


@pytest.mark.parametrize("sixteen_bits", [False, True])
@pytest.mark.parametrize("energy", [0.2, 0.6, 1.0])
def test_truncated_spaces_and_spaces_of_rank_zero_give_the_definition_written_out(energy, sixteen_bits):
    network, batch = problem(40, 12, 6, 4)
    rng = np.random.default_rng(1)
    bases = np.linalg.qr(rng.normal(size=(40, 12, 4)))[0].transpose(0, 2, 1)
    shares = np.cumsum(rng.dirichlet(np.ones(4), 40), axis=1)
    kept = np.array([np.argmax(row >= energy - 1e-9) + 1 for row in shares])
    ranks = np.full(40, 4, dtype=np.int32)
    ranks[5:20] = kept[5:20] = 0  # whole groups of points, and parts of others
    scales = np.abs(bases).max(axis=2) / 32767
    held, per_row = (np.rint(bases / scales[:, :, None]).astype(np.int16), scales) if sixteen_bits else (bases, None)
    spaces = TangentSpaces(held, ranks, per_row, shares=shares)
    cut = spaces.at_energy(energy)[np.arange(30)][np.arange(3, 28)]
    assert np.array_equal(cut.ranks, kept[3:28])
    written_out = (np.where(np.arange(4) < row, T.T, 0).T for row, T in zip(kept, spaces.bases, strict=True))
    expected = np.array(list(written_out))[3:28]
    few = Batch(batch.inputs[3:28], batch.targets[3:28], cut)
    objective = Objective(alpha=0.0, jacobian_weight=1.0)
    descent = objective.descent(network, few)
    assert_follows(descent, objective, network, few)
    values, _ = descent(0.01)
    by_definition = plain_jacobian(at(network, descent, 0.01), few.inputs, expected)
    assert values["jacobian"] == pytest.approx(by_definition, rel=1e-4 if sixteen_bits else 1e-12)


def test_float32_stays_float32_and_close_to_float64():
    network, batch = problem(50, 24, 16, 10)
    single = Network(*(part.astype(np.float32) for part in (network.W1, network.b1, network.W2, network.b2)))
    small = Batch(
        batch.inputs.astype(np.float32),
        batch.targets.astype(np.float32),
        TangentSpaces(batch.tangents.bases.astype(np.float32), batch.tangents.ranks),
    )
    objective = Objective(jacobian_weight=1.0)
    descent = objective.descent(single, small)
    values, slope = descent(1e-4)
    exact, exact_slope = objective.descent(network, batch)(1e-4)
    assert descent.gradient.dtype == np.float32
    assert values == pytest.approx(exact, rel=1e-5)
    assert slope == pytest.approx(exact_slope, rel=1e-5)


@pytest.mark.parametrize("n_held", [10, 23])  # a GPU holds all of a batch or nothing
def test_the_large_steps_of_a_gpu_give_the_same(as_on_a_gpu, monkeypatch, n_held):
    network, batch = problem(23, 6, 5, 3)
    objective = OBJECTIVES["jacobian"]
    expected = objective.descent(network, batch)(0.02)
    monkeypatch.setattr("autojacobin.autoencoder.jacobian._BYTES_FOR_LINE", n_held * 3 * 6 * 5 * 8)
    as_on_a_gpu("jacobian")
    values, slope = objective.descent(network, batch)(0.02)
    assert values == pytest.approx(expected[0], rel=1e-12)
    assert slope == pytest.approx(expected[1], rel=1e-10)


def test_the_number_of_cores_does_not_change_a_bit(monkeypatch):
    network, batch = problem(300, 6, 5, 4)
    monkeypatch.setattr("autojacobin.autoencoder.jacobian._POINTS_PER_TASK", 32)
    results = []
    for cores in (1, 2, 3):
        monkeypatch.setattr("autojacobin.core.parallel.usable_cores", lambda cores=cores: cores)
        descent = OBJECTIVES["jacobian"].descent(network, batch)
        results.append([descent(t) for t in (0.01, 0.02)])
    assert results[1] == results[0]
    assert results[2] == results[0]


def test_a_batch_without_tangent_spaces_is_refused():
    network, batch = problem(9, 5, 4, 3)
    with pytest.raises(ValueError, match="needs tangent spaces"):
        OBJECTIVES["jacobian"].descent(network, Batch(batch.inputs, batch.targets))
