"""Leading eigenvectors of tridiagonal matrices, against NumPy's of the same matrix written out."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autojacobin.autoencoder._tridiagonal import find_leading


def leading_of_tridiagonal(diagonal, beside, r):
    values, vectors = np.empty(r, diagonal.dtype), np.empty((len(diagonal), r), diagonal.dtype)
    return (values, vectors) if find_leading(diagonal, beside, values, vectors) else None


def written_out(diagonal, beside):
    return np.diag(diagonal) + np.diag(beside, 1) + np.diag(beside, -1)


def check(diagonal, beside, r, values, vectors):
    matrix = written_out(diagonal, beside).astype(np.float64)
    scale = np.abs(matrix).max()
    assert np.allclose(values, np.linalg.eigvalsh(matrix)[::-1][:r], atol=1e-6 * scale)
    assert np.allclose(vectors.T @ vectors, np.eye(r), atol=1e-5)
    assert np.allclose(matrix @ vectors, vectors * values, atol=3e-6 * scale)


@given(st.integers(1, 40), st.data(), st.integers(0, 2**31), st.sampled_from([np.float32, np.float64]))
@settings(max_examples=60, deadline=None)
def test_values_and_vectors_are_those_of_the_matrix_or_it_says_so(n, data, seed, dtype):
    r = data.draw(st.integers(1, n))
    rng = np.random.default_rng(seed)
    falling = np.geomspace(1, data.draw(st.sampled_from([1.0, 1e-2, 1e-5])), n)
    diagonal, beside = (
        (rng.normal(size=n) * falling).astype(dtype),
        (rng.normal(size=n - 1) * falling[1:]).astype(dtype),
    )
    found = leading_of_tridiagonal(diagonal, beside, r)
    if found is None:
        spectrum = np.linalg.eigvalsh(written_out(diagonal, beside).astype(np.float64))[::-1]
        assert np.min(spectrum[: r - 1] - spectrum[1:r]) < 1e-7 * np.abs(spectrum).max()
    else:
        values, vectors = found
        assert values.dtype == vectors.dtype == dtype
        assert np.all(np.diff(values) <= 0)
        check(diagonal, beside, r, values, vectors)


def test_the_second_difference_has_sines_for_eigenvectors():
    n, r = 50, 20
    values, vectors = leading_of_tridiagonal(np.full(n, 2.0), np.full(n - 1, -1.0), r)
    angles = np.pi * np.arange(n, n - r, -1) / (n + 1)
    sines = np.sin(np.outer(np.arange(1, n + 1), angles)) * np.sqrt(2 / (n + 1))
    assert np.allclose(values, 2 - 2 * np.cos(angles), atol=1e-12)
    assert np.allclose(np.abs((vectors * sines).sum(axis=0)), 1, atol=1e-12)


def test_wilkinsons_pairs_of_nearly_equal_values_are_left_to_others():
    diagonal = np.abs(np.arange(-10.0, 11.0))
    assert leading_of_tridiagonal(diagonal, np.ones(20), 2) is None


@pytest.mark.parametrize("diagonal", [[1.0, 1.0], [2.0, 1.0, 2.0], [3.0, 3.0, 3.0, 1.0]])
def test_values_that_are_equal_are_left_to_others(diagonal):
    assert leading_of_tridiagonal(np.array(diagonal), np.zeros(len(diagonal) - 1), 2) is None


def test_a_matrix_in_two_parts_has_the_eigenvectors_of_both():
    diagonal, beside = np.array([4.0, 1.0, 3.0, 2.0]), np.array([0.5, 0.0, 0.25])
    values, vectors = leading_of_tridiagonal(diagonal, beside, 3)
    check(diagonal, beside, 3, values, vectors)


@pytest.mark.parametrize("entry", [0.0, np.nan, np.inf])
def test_what_has_no_eigenvectors_of_its_own_is_left_to_others(entry):
    assert leading_of_tridiagonal(np.full(5, entry), np.full(4, entry), 2) is None


def test_entries_that_fade_away_end_in_zeros_and_not_in_numbers_too_small_to_compute_with():
    _, vectors = leading_of_tridiagonal(np.arange(400, 0, -1, dtype=np.float32), np.full(399, 1e-3, np.float32), 5)
    entries = np.abs(vectors[vectors != 0])
    assert entries.min() > np.finfo(np.float32).tiny
