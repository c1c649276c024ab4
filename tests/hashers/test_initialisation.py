"""Initial networks have the codes of the method that they are named after."""

import numpy as np
import pytest

from autojacobin import ITQ, AutoJacoBin, NOKMeans, OKMeans
from autojacobin.hashers.autoencoders.autobin import initial_network
from tests.hashers.methods import digits


def test_the_initial_network_from_itq_has_its_hyperplanes():
    X = digits()[:400].astype(np.float64)
    start = initial_network(X, 16, "itq", np.random.RandomState(3))
    itq = ITQ(16, random_state=3).fit(X)
    assert np.allclose(np.abs(np.sum(itq.weights_ * start.W1, axis=1)), 1, atol=1e-6)


@pytest.mark.parametrize("init", ["okmeans", "nokmeans"])
def test_an_initial_network_from_hyperplanes_has_their_codes_and_reconstructs(init):
    X = digits()[:400].astype(np.float64)
    start = AutoJacoBin(16, init=init, alpha=0.1, energy=0.98, jacobian_weight=0, n_epochs=0, random_state=0).fit(X)
    hasher = (OKMeans if init == "okmeans" else NOKMeans)(16, random_state=0).fit(X * start.scale_)
    assert np.mean(start.transform(X) == hasher.transform(X * start.scale_)) > 0.999
    scaled = X * start.scale_
    linear = (scaled @ start.W1_.T + start.b1_) @ start.W2_.T + start.b2_
    assert np.allclose(start.W2_ @ start.W1_ @ start.W2_, start.W2_, atol=1e-10)
    assert np.allclose(linear.mean(axis=0), scaled.mean(axis=0), atol=1e-10)
