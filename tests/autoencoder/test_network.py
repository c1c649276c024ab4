"""The network's Jacobian and its vector of weights."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from autojacobin.autoencoder import Network
from tests.autoencoder import naive


def random_network(D, d, seed):
    rng = np.random.default_rng(seed)
    return Network(rng.normal(size=(d, D)), rng.normal(size=d), rng.normal(size=(D, d)), rng.normal(size=D))


@given(st.integers(1, 8), st.integers(1, 8), st.integers(0, 2**31))
@settings(deadline=None)
def test_jacobian_is_the_derivative_of_the_forward_pass(D, d, seed):
    network = random_network(D, d, seed)
    X = np.random.default_rng(seed + 1).normal(size=(3, D))
    h = 1e-6
    for x, J in zip(X, network.jacobian(X), strict=True):
        differences = [
            (network.forward((x + e)[None]).Z[0] - network.forward((x - e)[None]).Z[0]) / (2 * h) for e in h * np.eye(D)
        ]
        assert np.allclose(J, np.array(differences).T, atol=1e-7)
        assert np.allclose(J, naive.jacobian_of(network, x), atol=1e-13)


@given(st.integers(1, 8), st.integers(1, 8), st.integers(0, 2**31))
@settings(deadline=None)
def test_the_vector_of_weights_goes_both_ways(D, d, seed):
    network = random_network(D, d, seed)
    theta = network.to_vector()
    assert len(theta) == 2 * d * D + d + D
    again = network.with_vector(theta)
    for name in ("W1", "b1", "W2", "b2"):
        assert np.array_equal(getattr(again, name), getattr(network, name))
        assert np.shares_memory(getattr(again, name), theta)
