"""PCA with a random rotation."""

import numpy as np

from autojacobin import ITQ, PCARotation
from autojacobin.core.linear_algebra import random_rotation
from tests.hashers.methods import digits


def test_the_hyperplanes_are_rotated_principal_directions():
    X = digits()[:500].astype(np.float64)
    hasher = PCARotation(12, random_state=5).fit(X)
    _, _, directions = np.linalg.svd(X - X.mean(axis=0), full_matrices=False)
    A = hasher.hyperplanes()[0]
    assert np.allclose(A @ A.T, np.eye(12))
    assert np.allclose(A.T @ A, directions[:12].T @ directions[:12])  # the same subspace
    frame = random_rotation(12, np.random.RandomState(5)) @ A  # without the rotation, each row is a direction
    assert np.allclose(np.abs(frame @ directions[:12].T), np.eye(12), atol=1e-8)


def test_itq_starts_there():
    X = digits()[:500]
    start, learned = (make(12, random_state=5).fit(X) for make in (PCARotation, ITQ))
    assert np.allclose(start.weights_.T @ start.weights_, learned.weights_.T @ learned.weights_, atol=1e-5)
    assert start.get_params() == {"n_bits": 12, "random_state": 5}
    errors = [np.mean((np.abs(one.project(X)) - 1) ** 2) for one in (start, learned)]
    assert errors[0] > errors[1]
