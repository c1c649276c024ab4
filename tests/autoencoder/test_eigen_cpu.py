"""Eigenvectors on a CPU against those of NumPy, which computes in double precision."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autojacobin.autoencoder import eigenvectors
from autojacobin.autoencoder.eigenvectors import eigh, lapack_routine, leading_eigh


def symmetric(n, seed, dtype):
    factor = np.random.default_rng(seed).normal(size=(n, n)) * np.geomspace(1, 0.01, n)
    return (factor.T @ factor).astype(dtype)


def leading_of(matrix, r):
    values, rows = leading_eigh(matrix[None], r)
    return values[0], rows[0]


@given(st.integers(1, 60), st.integers(0, 2**31), st.sampled_from([np.float32, np.float64]))
def test_values_and_vectors_are_those_of_the_matrix(n, seed, dtype):
    matrix = symmetric(n, seed, dtype)
    values, vectors = eigh(matrix.copy())
    tolerance = 50 * n * np.finfo(dtype).eps * max(1.0, np.abs(matrix).max())
    assert values.dtype == vectors.dtype == dtype
    assert np.allclose(values, np.linalg.eigvalsh(matrix.astype(np.float64)), atol=tolerance)
    assert np.allclose(vectors.T @ vectors, np.eye(n), atol=tolerance)
    assert np.allclose(matrix @ vectors, vectors * values, atol=tolerance)


@given(st.integers(40, 150), st.data(), st.integers(0, 2**31), st.sampled_from([np.float32, np.float64]))
def test_leading_eigenvectors_are_the_first_of_all(n, data, seed, dtype):
    r = data.draw(st.integers(1, n))
    matrix = symmetric(n, seed, dtype)
    values, rows = leading_of(matrix, r)
    tolerance = 50 * n * np.finfo(dtype).eps * max(1.0, np.abs(matrix).max())
    assert values.dtype == rows.dtype == dtype
    assert rows.shape == (r, n)
    assert np.allclose(values, np.linalg.eigvalsh(matrix.astype(np.float64))[::-1][:r], atol=tolerance)
    assert np.allclose(rows @ rows.T, np.eye(r), atol=tolerance)
    assert np.allclose(matrix @ rows.T, rows.T * values, atol=tolerance)


@pytest.mark.parametrize("rank", [0, 1, 5])
def test_leading_eigenvectors_of_a_matrix_of_low_rank_are_orthonormal(rank):
    factor = np.random.default_rng(3).normal(size=(rank, 90)).astype(np.float32)
    matrix = factor.T @ factor
    values, rows = leading_of(matrix, 30)
    assert np.allclose(rows @ rows.T, np.eye(30), atol=1e-5)
    assert np.allclose(rows.T * values @ rows, matrix, atol=1e-4)


def test_each_of_many_matrices_gives_the_result_it_gives_alone():
    equal = np.eye(60, dtype=np.float32)  # whose eigenvectors are not unique
    matrices = np.stack([symmetric(60, 0, np.float32), equal, symmetric(60, 1, np.float32)])
    values, rows = leading_eigh(matrices, 7)
    for matrix, its_values, its_rows in zip(matrices, values, rows, strict=True):
        expected_values, expected_rows = leading_of(matrix, 7)
        assert np.array_equal(its_values, expected_values)
        assert np.array_equal(its_rows, expected_rows)
        assert np.allclose(its_rows @ its_rows.T, np.eye(7), atol=1e-5)
        assert np.allclose(matrix @ its_rows.T, its_rows.T * its_values, atol=1e-4 * np.abs(matrix).max())


def test_scipy_exports_the_routine_and_numpy_takes_its_place(monkeypatch):
    matrix = symmetric(60, 0, np.float32)
    values, rows = leading_of(matrix, 5)
    assert lapack_routine("ssyevd") is not None
    monkeypatch.setattr(eigenvectors, "lapack_routine", lambda _: None)
    again, other_rows = leading_of(matrix, 5)
    assert np.allclose(again, values, rtol=1e-4, atol=1e-5)
    assert np.allclose(np.abs((rows * other_rows).sum(axis=1)), 1, atol=1e-3)


def test_a_routine_that_scipy_does_not_have_is_none():
    assert lapack_routine("snothing") is None


def test_a_routine_in_another_precision_is_none():
    assert lapack_routine("dsyevd") is None


def test_a_matrix_without_rows_has_no_values():
    values, vectors = eigh(np.zeros((0, 0), dtype=np.float32))
    assert values.shape == (0,)
    assert vectors.shape == (0, 0)


def test_a_failure_of_lapack_is_reported(monkeypatch):
    def fails(*arguments):
        arguments[-1]._obj.value = 7

    monkeypatch.setattr(eigenvectors, "lapack_routine", lambda name: fails)
    with pytest.raises(np.linalg.LinAlgError, match="info=7"):
        eigh(symmetric(5, 0, np.float32))
