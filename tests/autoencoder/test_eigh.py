"""Eigenvectors in single precision, against NumPy's, which computes in double precision."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autojacobin.autoencoder import _eigh
from autojacobin.autoencoder._eigh import eigh


def symmetric(n, seed, dtype):
    factor = np.random.default_rng(seed).normal(size=(n, n)) * np.geomspace(1, 0.01, n)
    return (factor.T @ factor).astype(dtype)


@given(st.integers(1, 60), st.integers(0, 2**31), st.sampled_from([np.float32, np.float64]))
@settings(max_examples=40, deadline=None)
def test_values_and_vectors_are_those_of_the_matrix(n, seed, dtype):
    matrix = symmetric(n, seed, dtype)
    values, vectors = eigh(matrix.copy())
    tolerance = 50 * n * np.finfo(dtype).eps * max(1.0, np.abs(matrix).max())
    assert values.dtype == vectors.dtype == dtype
    assert np.allclose(values, np.linalg.eigvalsh(matrix.astype(np.float64)), atol=tolerance)
    assert np.allclose(vectors.T @ vectors, np.eye(n), atol=tolerance)
    assert np.allclose(matrix @ vectors, vectors * values, atol=tolerance)


def test_scipy_hands_the_routine_out_and_numpy_does_without(monkeypatch):
    matrix = symmetric(20, 0, np.float32)
    values, vectors = eigh(matrix.copy())
    monkeypatch.setattr(_eigh, "_ssyevd", lambda: None)
    assert np.allclose(eigh(matrix)[0], values, rtol=1e-4, atol=1e-5)
    assert np.allclose(np.abs(eigh(matrix)[1][:, -1]), np.abs(vectors[:, -1]), atol=1e-3)


def test_a_matrix_without_rows_has_no_values():
    values, vectors = eigh(np.zeros((0, 0), dtype=np.float32))
    assert values.shape == (0,)
    assert vectors.shape == (0, 0)


def test_a_failure_of_lapack_is_told(monkeypatch):
    def fails(*arguments):
        arguments[-1]._obj.value = 7

    monkeypatch.setattr(_eigh, "_ssyevd", lambda: fails)
    with pytest.raises(np.linalg.LinAlgError, match="info=7"):
        eigh(symmetric(5, 0, np.float32))
