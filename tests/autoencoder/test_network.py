"""The network's Jacobian, its vector of weights, and its expansion from principal coordinates."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autojacobin.autoencoder import Network, PrincipalCoordinates
from tests.autoencoder import naive


def random_network(D, d, seed):
    rng = np.random.default_rng(seed)
    return Network(rng.normal(size=(d, D)), rng.normal(size=d), rng.normal(size=(D, d)), rng.normal(size=D))


@given(st.integers(1, 8), st.integers(1, 8), st.integers(0, 2**31))
def test_jacobian_is_the_derivative_of_the_forward_pass(D, d, seed):
    network = random_network(D, d, seed)
    X = np.random.default_rng(seed + 1).normal(size=(3, D))
    h = 1e-6
    for x in X:
        differences = [
            (network.forward((x + e)[None]).Z[0] - network.forward((x - e)[None]).Z[0]) / (2 * h) for e in h * np.eye(D)
        ]
        assert np.allclose(naive.jacobian_of(network, x), np.array(differences).T, atol=1e-7)


@given(st.integers(1, 8), st.integers(1, 8), st.integers(0, 2**31))
def test_the_vector_of_weights_goes_both_ways(D, d, seed):
    network = random_network(D, d, seed)
    theta = network.to_vector()
    assert len(theta) == 2 * d * D + d + D
    again = network.with_vector(theta)
    for name in ("W1", "b1", "W2", "b2"):
        assert np.array_equal(getattr(again, name), getattr(network, name))
        assert np.shares_memory(getattr(again, name), theta)


def flat_points(n=400, D=12, seed=0):
    """Points inside the unit ball whose variance falls by half from one direction to the next."""
    rng = np.random.default_rng(seed)
    rotation = np.linalg.qr(rng.normal(size=(D, D)))[0]
    return 0.1 * (rng.normal(size=(n, D)) * 0.5 ** (np.arange(D) / 2)) @ rotation + 0.1


@pytest.mark.parametrize(("energy", "fewest", "kept"), [(0.9, 1, 4), (0.9, 6, 6), (0.9, 99, 12), (1.0, 1, 12)])
def test_principal_coordinates_keep_the_energy_and_the_fewest_directions(energy, fewest, kept):
    X = flat_points(20_000)
    principal = PrincipalCoordinates.of(X, energy, fewest)
    reduced = principal.reduce(X)
    assert reduced.shape == (len(X), kept)
    assert reduced.var(axis=0).sum() >= energy * X.var(axis=0).sum() - 1e-12
    assert np.allclose(principal.directions @ principal.directions.T, np.eye(kept), atol=1e-12)


def test_points_without_variance_keep_one_direction():
    assert PrincipalCoordinates.of(np.ones((5, 4)), 0.99, 1).reduce(np.ones((5, 4))).shape == (5, 1)


@given(st.integers(0, 2**31))
def test_an_expanded_network_has_the_same_hidden_layer_and_to_first_order_the_same_output(seed):
    X = flat_points(seed=seed)
    principal = PrincipalCoordinates.of(X, 0.9, 1)
    network = random_network(principal.directions.shape[0], 3, seed)
    network = Network(network.W1, network.b1, 1e-3 * network.W2, 1e-3 * network.b2)  # where tanh is nearly linear
    inside, outside = network.forward(principal.reduce(X)), principal.expand(network).forward(X)
    assert np.allclose(inside.Y, outside.Y, atol=1e-12)
    expected = principal.mean + inside.Z @ principal.directions
    assert np.abs(outside.Z - expected).max() < 1e-3 * np.abs(inside.Z).max()
