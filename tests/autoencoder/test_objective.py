"""Every term against its definition, every gradient against differences and against Appendix II."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autojacobin.autoencoder import Batch, Network, Objective, TangentSpaces
from autojacobin.autoencoder.jacobian import jacobian, plain_jacobian, squared_norm
from autojacobin.autoencoder.network import Partials
from autojacobin.autoencoder.objective import binary, contraction, reconstruction
from tests.autoencoder import appendix_two, naive

EPSILON = 1e-4
# d < D, d = D and d > D, each with tangent spaces of full and of lower rank
SHAPES = [
    (7, 5, 3, 3),
    (7, 5, 3, 1),
    (6, 4, 4, 4),
    (6, 4, 4, 2),
    (5, 3, 6, 3),
    (5, 3, 6, 1),
    (1, 6, 2, 2),
    (4, 1, 1, 1),
]


def problem(n, D, d, r, seed=0):
    rng = np.random.default_rng(seed)
    network = Network(
        W1=rng.normal(0, 0.7, (d, D)),
        b1=rng.normal(0, 0.3, d),
        W2=rng.normal(0, 0.7, (D, d)),
        b2=rng.normal(0, 0.3, D),
    )
    bases = np.stack([np.linalg.qr(rng.normal(size=(D, D)))[0][:r] for _ in range(n)])
    ranks = rng.integers(0, r + 1, n)
    ranks[0] = r
    bases[np.arange(r) >= ranks[:, None]] = 0  # of unequal ranks, padded with zeros, down to rank 0
    inputs = rng.normal(0, 0.5, (n, D))
    return network, Batch(inputs, inputs + rng.normal(0, 0.1, (n, D)), TangentSpaces(bases, ranks))


TERMS = {
    "reconstruction": (
        lambda network, state, batch, partials: reconstruction(state, batch.targets, 1.0, partials),
        lambda network, batch: naive.reconstruction(network, batch.inputs, batch.targets),
        lambda network, batch: appendix_two.auto_encoder(network, batch.inputs, batch.targets),
    ),
    "jacobian": (
        lambda network, state, batch, partials: jacobian(network, state, batch.tangents, 1.0, partials),
        lambda network, batch: plain_jacobian(network, batch.inputs, batch.tangents.bases),
        lambda network, batch: appendix_two.jacobian(network, batch.inputs, batch.tangents.bases),
    ),
    "binary": (
        lambda network, state, batch, partials: binary(state, EPSILON, 1.0, partials),
        lambda network, batch: naive.binary(network, batch.inputs, EPSILON),
        lambda network, batch: appendix_two.binary(network, batch.inputs, EPSILON),
    ),
    "contraction": (
        lambda network, state, batch, partials: contraction(network, state, 1.0, partials),
        lambda network, batch: naive.contraction(network, batch.inputs),
        None,  # the paper gives no gradient for it
    ),
}


def value_and_gradient(term, network, batch):
    state = network.forward(batch.inputs)
    partials = Partials.zeros(network, state)
    value = TERMS[term][0](network, state, batch, partials)
    return value, network.backward(state, partials).to_vector()


def central_differences(function, theta, h=1e-5):
    steps = np.eye(len(theta)) * h
    # the four-point formula: its error is O(h⁴), so h can stay large enough for the rounding not to show
    return np.array(
        [
            (8 * (function(theta + s) - function(theta - s)) - (function(theta + 2 * s) - function(theta - 2 * s)))
            / (12 * h)
            for s in steps
        ]
    )


def relative_error(got, expected):
    return np.linalg.norm(got - expected) / max(np.linalg.norm(expected), 1e-12)


@pytest.mark.parametrize("term", TERMS)
@pytest.mark.parametrize("shape", SHAPES)
def test_value_is_the_definition_written_out(term, shape):
    network, batch = problem(*shape)
    value, _ = value_and_gradient(term, network, batch)
    assert value == pytest.approx(TERMS[term][1](network, batch), rel=1e-12)


@pytest.mark.parametrize("term", TERMS)
@pytest.mark.parametrize("shape", SHAPES)
def test_gradient_agrees_with_central_differences_of_the_definition(term, shape):
    network, batch = problem(*shape, seed=1)
    _, gradient = value_and_gradient(term, network, batch)
    differences = central_differences(
        lambda theta: TERMS[term][1](network.with_vector(theta), batch), network.to_vector()
    )
    assert relative_error(gradient, differences) <= 1e-6


@pytest.mark.parametrize("term", [name for name in TERMS if TERMS[name][2]])
@pytest.mark.parametrize("shape", SHAPES)
def test_gradient_agrees_with_the_corrected_appendix(term, shape):
    network, batch = problem(*shape, seed=2)
    _, gradient = value_and_gradient(term, network, batch)
    printed = np.concatenate([np.asarray(part).ravel() for part in TERMS[term][2](network, batch)])
    assert relative_error(gradient, printed) <= 1e-12


@given(st.integers(1, 9), st.integers(1, 7), st.integers(1, 9), st.integers(0, 2**31), st.sampled_from(list(TERMS)))
def test_value_and_gradient_over_random_shapes(n, D, d, seed, term):
    network, batch = problem(n, D, d, 1 + seed % min(d, D), seed)
    value, gradient = value_and_gradient(term, network, batch)
    assert value == pytest.approx(TERMS[term][1](network, batch), rel=1e-10)
    differences = central_differences(
        lambda theta: TERMS[term][1](network.with_vector(theta), batch), network.to_vector()
    )
    assert np.abs(gradient - differences).max() <= 1e-6 * max(1.0, np.abs(differences).max())


def test_the_jacobian_term_as_printed_is_its_definition():
    network, batch = problem(7, 5, 3, 2)
    gaps = (naive.jacobian_of(network, x) - T.T @ T for x, T in zip(batch.inputs, batch.tangents.bases, strict=True))
    defined = sum((gap**2).sum() for gap in gaps)
    assert plain_jacobian(network, batch.inputs, batch.tangents.bases) == pytest.approx(defined, rel=1e-13)


def test_the_objective_is_the_weighted_sum_of_its_terms():
    network, batch = problem(9, 5, 4, 3)
    weights = {"reconstruction": 1.0, "jacobian": 1.7, "binary": 0.3, "contraction": 0.6}
    objective = Objective(alpha=0.3, epsilon=EPSILON, jacobian_weight=1.7, contraction_weight=0.6)
    values, gradient = objective(network, batch)
    parts = {term: value_and_gradient(term, network, batch) for term in TERMS}
    assert values == pytest.approx({term: weights[term] * parts[term][0] for term in TERMS})
    expected = sum(weights[term] * parts[term][1] for term in TERMS)
    assert relative_error(gradient.to_vector(), expected) <= 1e-13


def test_a_term_of_weight_zero_is_left_out():
    network, batch = problem(9, 5, 4, 3)
    values, _ = Objective(alpha=0.0)(network, Batch(batch.inputs, batch.targets))
    assert list(values) == ["reconstruction"]
    with pytest.raises(ValueError, match="needs tangent spaces"):
        Objective(jacobian_weight=1.0)(network, Batch(batch.inputs, batch.targets))


def test_groups_of_points_do_not_change_the_result(monkeypatch):
    network, batch = problem(23, 6, 5, 4)
    objective = Objective(jacobian_weight=1.0)
    whole, gradient = objective(network, batch)
    # tasks of 7 points, groups of 3, panels of 2 hidden units
    monkeypatch.setattr("autojacobin.autoencoder.jacobian._POINTS_PER_TASK", 7)
    monkeypatch.setattr("autojacobin.autoencoder.jacobian._PAIRS_PER_PANEL", 10)
    monkeypatch.setattr("autojacobin.autoencoder.jacobian._NUMBERS_PER_GROUP", 90)
    parts, gradient_of_parts = objective(network, batch)
    assert parts == pytest.approx(whole, rel=1e-13)
    assert relative_error(gradient_of_parts.to_vector(), gradient.to_vector()) <= 1e-13


def test_float32_stays_float32_and_close_to_float64():
    network, batch = problem(50, 24, 16, 10)
    single = Network(*(part.astype(np.float32) for part in (network.W1, network.b1, network.W2, network.b2)))
    small = Batch(
        batch.inputs.astype(np.float32),
        batch.targets.astype(np.float32),
        TangentSpaces(batch.tangents.bases.astype(np.float32), batch.tangents.ranks),
    )
    objective = Objective(jacobian_weight=1.0, contraction_weight=0.1)
    values, gradient = objective(single, small)
    exact, exact_gradient = objective(network, batch)
    assert gradient.to_vector().dtype == np.float32
    assert values == pytest.approx(exact, rel=1e-5)
    assert relative_error(gradient.to_vector(), exact_gradient.to_vector()) <= 1e-5


@pytest.mark.parametrize(("n", "D"), [(9, 4), (4, 9), (6, 6)])
def test_the_norm_is_the_same_whichever_side_has_fewer_rows(n, D):
    network, batch = problem(n, D, 5, 2)
    state = network.forward(batch.inputs)
    part = squared_norm(network, state.g, state.a)
    assert part.value == pytest.approx(sum((naive.jacobian_of(network, x) ** 2).sum() for x in batch.inputs), rel=1e-12)
    # it is of the second degree in each of these, so Euler's rule gives twice the value
    pairs = ((part.g, state.g), (part.a, state.a), (part.W1, network.W1), (part.W2, network.W2))
    for derivative, variable in pairs:
        assert (derivative * variable).sum() == pytest.approx(2 * part.value, rel=1e-12)


@pytest.mark.rare
def test_no_temporary_is_as_large_as_a_jacobian_for_every_point():
    import tracemalloc

    n, D, d = 64, 256, 4
    network, batch = problem(n, D, d, 2)
    tracemalloc.start()
    Objective(jacobian_weight=1.0)(network, batch)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < n * D * D * 8 / 4


@pytest.mark.parametrize("d", [3, 8, 9])
def test_the_few_large_steps_of_a_gpu_give_the_same(as_on_a_gpu, monkeypatch, d):
    network, batch = problem(23, 6, d, 3)
    objective = Objective(jacobian_weight=1.0)
    values, gradient = objective(network, batch)
    as_on_a_gpu("jacobian")
    for step in (2**28, 250):  # all at once, and in several panels and groups
        monkeypatch.setattr("autojacobin.autoencoder.jacobian._NUMBERS_PER_GPU_STEP", step)
        others, its_gradient = objective(network, batch)
        assert others == pytest.approx(values, rel=1e-12)
        assert relative_error(its_gradient.to_vector(), gradient.to_vector()) <= 1e-12


def test_some_of_the_bases_in_sixteen_bits():
    network, batch = problem(40, 12, 6, 4)
    scales = np.abs(batch.tangents.bases).max(axis=2) / 32767
    held = np.rint(batch.tangents.bases / np.where(scales > 0, scales, 1)[:, :, None]).astype(np.int16)
    points = np.array([7, 2, 30, 31, 39])
    compact = TangentSpaces(held, batch.tangents.ranks, scales)[points]
    whole = TangentSpaces(batch.tangents.bases[points], batch.tangents.ranks[points])
    objective = Objective(jacobian_weight=1.0)
    inputs, targets = batch.inputs[points], batch.targets[points]
    values, gradient = objective(network, Batch(inputs, targets, whole))
    others, its_gradient = objective(network, Batch(inputs, targets, compact))
    assert others == pytest.approx(values, rel=1e-4)
    assert relative_error(its_gradient.to_vector(), gradient.to_vector()) <= 1e-4


def test_the_number_of_cores_does_not_change_a_bit(monkeypatch):
    network, batch = problem(300, 6, 5, 4)
    monkeypatch.setattr("autojacobin.autoencoder.jacobian._POINTS_PER_TASK", 32)
    results = []
    for cores in (1, 2, 3):
        monkeypatch.setattr("autojacobin.core.parallel.usable_cores", lambda cores=cores: cores)
        values, gradient = Objective(jacobian_weight=1.0)(network, batch)
        results.append((values, gradient.to_vector()))
    for values, gradient in results[1:]:
        assert values == results[0][0]
        assert np.array_equal(gradient, results[0][1])
