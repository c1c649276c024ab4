"""Eigenvectors on a CPU against those of NumPy, which computes in double precision."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autojacobin.autoencoder import eigen_cpu
from autojacobin.autoencoder.eigen_cpu import eigh, lapack_routine, leading_eigh, leading_of_tridiagonal


def symmetric(n, seed, dtype):
    factor = np.random.default_rng(seed).normal(size=(n, n)) * np.geomspace(1, 0.01, n)
    return (factor.T @ factor).astype(dtype)


def leading_of(matrix, r):
    values, rows = leading_eigh(matrix[None], r)
    return values[0], rows[0]


@given(st.integers(1, 60), st.integers(0, 2**31), st.sampled_from([np.float32, np.float64]))
@settings(max_examples=40)
def test_values_and_vectors_are_those_of_the_matrix(n, seed, dtype):
    matrix = symmetric(n, seed, dtype)
    values, vectors = eigh(matrix.copy())
    tolerance = 50 * n * np.finfo(dtype).eps * max(1.0, np.abs(matrix).max())
    assert values.dtype == vectors.dtype == dtype
    assert np.allclose(values, np.linalg.eigvalsh(matrix.astype(np.float64)), atol=tolerance)
    assert np.allclose(vectors.T @ vectors, np.eye(n), atol=tolerance)
    assert np.allclose(matrix @ vectors, vectors * values, atol=tolerance)


@given(st.integers(40, 150), st.data(), st.integers(0, 2**31), st.sampled_from([np.float32, np.float64]))
@settings(max_examples=30)
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


def test_leading_eigenvectors_of_a_tridiagonal_matrix():
    matrix = np.diag(np.arange(1, 61, dtype=np.float32)) + np.diag(np.full(59, 0.1, np.float32), 1)
    matrix = np.maximum(matrix, matrix.T)
    values, rows = leading_of(matrix, 10)
    assert np.allclose(matrix @ rows.T, rows.T * values, atol=1e-4)


@pytest.mark.parametrize("missing", ["ssyevd", "ssytrd"])
def test_scipy_exports_the_routines_and_numpy_takes_their_place(monkeypatch, missing):
    matrix = symmetric(60, 0, np.float32)
    values, rows = leading_of(matrix, 5)
    exported = lapack_routine
    assert exported(missing) is not None
    monkeypatch.setattr(eigen_cpu, "lapack_routine", lambda name: None if name == missing else exported(name))
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

    monkeypatch.setattr(eigen_cpu, "lapack_routine", lambda name: fails)
    with pytest.raises(np.linalg.LinAlgError, match="info=7"):
        eigh(symmetric(5, 0, np.float32))


# The leading eigenvectors of a tridiagonal matrix


def tridiagonal_leading(diagonal, off_diagonal, r):
    values, vectors = np.empty(r, diagonal.dtype), np.empty((len(diagonal), r), diagonal.dtype)
    return (values, vectors) if leading_of_tridiagonal(diagonal, off_diagonal, values, vectors) else None


def written_out(diagonal, off_diagonal):
    return np.diag(diagonal) + np.diag(off_diagonal, 1) + np.diag(off_diagonal, -1)


def check(diagonal, off_diagonal, r, values, vectors):
    matrix = written_out(diagonal, off_diagonal).astype(np.float64)
    scale = np.abs(matrix).max()
    assert np.allclose(values, np.linalg.eigvalsh(matrix)[::-1][:r], atol=1e-6 * scale)
    assert np.allclose(vectors.T @ vectors, np.eye(r), atol=1e-5)
    assert np.allclose(matrix @ vectors, vectors * values, atol=3e-6 * scale)


@given(st.integers(1, 40), st.data(), st.integers(0, 2**31), st.sampled_from([np.float32, np.float64]))
@settings(max_examples=60)
def test_tridiagonal_values_and_vectors_are_those_of_the_matrix_or_it_returns_false(n, data, seed, dtype):
    r = data.draw(st.integers(1, n))
    rng = np.random.default_rng(seed)
    falling = np.geomspace(1, data.draw(st.sampled_from([1.0, 1e-2, 1e-5])), n)
    diagonal, off_diagonal = (
        (rng.normal(size=n) * falling).astype(dtype),
        (rng.normal(size=n - 1) * falling[1:]).astype(dtype),
    )
    found = tridiagonal_leading(diagonal, off_diagonal, r)
    if found is None:
        spectrum = np.linalg.eigvalsh(written_out(diagonal, off_diagonal).astype(np.float64))[::-1]
        assert np.min(spectrum[: r - 1] - spectrum[1:r]) < 1e-7 * np.abs(spectrum).max()
    else:
        values, vectors = found
        assert values.dtype == vectors.dtype == dtype
        assert np.all(np.diff(values) <= 0)
        check(diagonal, off_diagonal, r, values, vectors)


def test_the_second_difference_has_sines_for_eigenvectors():
    n, r = 50, 20
    values, vectors = tridiagonal_leading(np.full(n, 2.0), np.full(n - 1, -1.0), r)
    angles = np.pi * np.arange(n, n - r, -1) / (n + 1)
    sines = np.sin(np.outer(np.arange(1, n + 1), angles)) * np.sqrt(2 / (n + 1))
    assert np.allclose(values, 2 - 2 * np.cos(angles), atol=1e-12)
    assert np.allclose(np.abs((vectors * sines).sum(axis=0)), 1, atol=1e-12)


def test_wilkinsons_pairs_of_nearly_equal_values_are_refused():
    diagonal = np.abs(np.arange(-10.0, 11.0))
    assert tridiagonal_leading(diagonal, np.ones(20), 2) is None


@pytest.mark.parametrize("diagonal", [[1.0, 1.0], [2.0, 1.0, 2.0], [3.0, 3.0, 3.0, 1.0]])
def test_values_that_are_equal_are_refused(diagonal):
    assert tridiagonal_leading(np.array(diagonal), np.zeros(len(diagonal) - 1), 2) is None


def test_a_matrix_in_two_parts_has_the_eigenvectors_of_both():
    diagonal, off_diagonal = np.array([4.0, 1.0, 3.0, 2.0]), np.array([0.5, 0.0, 0.25])
    values, vectors = tridiagonal_leading(diagonal, off_diagonal, 3)
    check(diagonal, off_diagonal, 3, values, vectors)


@pytest.mark.parametrize("entry", [0.0, np.nan, np.inf])
def test_what_has_no_eigenvectors_of_its_own_is_refused(entry):
    assert tridiagonal_leading(np.full(5, entry), np.full(4, entry), 2) is None


def test_entries_that_fade_away_end_in_zeros_and_not_in_numbers_too_small_to_compute_with():
    _, vectors = tridiagonal_leading(np.arange(400, 0, -1, dtype=np.float32), np.full(399, 1e-3, np.float32), 5)
    entries = np.abs(vectors[vectors != 0])
    assert entries.min() > np.finfo(np.float32).tiny
