"""Theorem 1: the function that sends a point to the nearest one of a manifold has the Jacobian TT' there."""

from itertools import pairwise

import numpy as np
import pytest

from autojacobin.autoencoder import tangent_spaces
from tests.autoencoder.manifolds import Affine, Sphere, Torus

MANIFOLDS = {"circle": Sphere(2), "sphere": Sphere(3), "torus": Torus(), "affine": Affine()}


@pytest.mark.parametrize("name", MANIFOLDS)
def test_the_jacobian_of_f_is_the_tangent_projector(name):
    manifold = MANIFOLDS[name]
    h = 1e-6
    for m in manifold.sample(20, np.random.default_rng(0)):
        steps = h * np.eye(manifold.D)
        columns = [(manifold.nearest(m + s) - manifold.nearest(m - s)) / (2 * h) for s in steps]
        assert np.allclose(np.array(columns).T, manifold.projector(m), atol=1e-8)


@pytest.mark.parametrize("name", MANIFOLDS)
def test_the_first_order_error_shrinks_with_the_step(name):
    manifold = MANIFOLDS[name]
    rng = np.random.default_rng(1)
    for m in manifold.sample(20, rng):
        t = rng.normal(size=manifold.D)
        t /= np.linalg.norm(t)
        errors = [
            np.linalg.norm(manifold.nearest(m + h * t) - manifold.nearest(m) - h * manifold.projector(m) @ t) / h
            for h in (1e-1, 1e-2, 1e-3, 1e-4)
        ]
        for larger, smaller in pairwise(errors):
            assert smaller <= max(0.5 * larger, 1e-10)
        assert errors[-1] < 1e-3


@pytest.mark.parametrize("name", ["circle", "sphere", "torus"])
def test_estimated_tangent_spaces_come_close_to_that_jacobian(name):
    manifold = MANIFOLDS[name]
    points = manifold.sample(4000, np.random.default_rng(2))
    rank = manifold.D - 1
    spaces = tangent_spaces(points, n_neighbors=15, max_rank=rank, energy=1.0)
    errors = [np.linalg.norm(T.T @ T - manifold.projector(m), ord=2) for m, T in zip(points, spaces.bases, strict=True)]
    assert np.median(errors) < 0.1
