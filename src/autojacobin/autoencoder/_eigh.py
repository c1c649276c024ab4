"""Eigenvectors of symmetric matrices in their own precision, without the GIL: all of them, or the leading ones.

All come from LAPACK's ``ssyevd``. It spends most of its time after the reduction to tridiagonal form, on eigenvectors
that a tangent space has no use for; so the leading ones are found from that form by themselves (``_tridiagonal.py``)
and turned back by the reflections that led to it, which takes half to two thirds as long. That is one call for many
matrices: with a call for each step, two threads wait for the GIL as long as they compute.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from autojacobin._compile import kernel
from autojacobin.autoencoder import _lapack
from autojacobin.autoencoder._tridiagonal import find_leading

__all__ = ["eigh", "leading_eigh"]

_FEWEST_DIMENSIONS = 48  # below, ssyevd is done before the rest has begun
_LARGEST_SHARE = 0.7  # of all eigenvectors
_REFLECTIONS_AT_ONCE = 64


def eigh(matrix: Any) -> tuple[Any, Any]:
    """Ascending eigenvalues, and eigenvectors as columns, of a symmetric NumPy ``matrix``, which may be lost."""
    ssyevd = _lapack.routine("ssyevd") if matrix.dtype == np.float32 else None
    if ssyevd is None or len(matrix) == 0:
        values, vectors = np.linalg.eigh(matrix)
        return values, vectors
    n = len(matrix)
    vectors = np.asfortranarray(matrix.T)  # of a symmetric matrix in the usual order that is a view
    values = np.empty(n, dtype=np.float32)
    work = np.empty(1 + 6 * n + 2 * n * n, dtype=np.float32)
    whole_work = np.empty(3 + 5 * n, dtype=np.int32)
    _lapack.call(ssyevd, "ssyevd", b"V", b"L", n, vectors, n, values, work, len(work), whole_work, len(whole_work))
    return values, vectors


def leading_eigh(matrices: Any, r: int) -> tuple[Any, Any]:
    """Largest ``r`` eigenvalues (s, r), descending, and eigenvectors as rows (s, r, n), of matrices (s, n, n)."""
    s, n, _ = matrices.shape
    values = np.empty((s, r), dtype=matrices.dtype)
    rows = np.empty((s, r, n), dtype=matrices.dtype)
    found = np.zeros(s, dtype=np.bool_)
    ssytrd = _lapack.routine("ssytrd") if matrices.dtype == np.float32 else None
    if ssytrd is not None and n >= _FEWEST_DIMENSIONS and r <= _LARGEST_SHARE * n:
        reflections, (diagonals, beside, factors) = matrices.copy(), np.empty((3, s, n), dtype=np.float32)
        work = np.empty(_REFLECTIONS_AT_ONCE * n, dtype=np.float32)
        for i in range(s):  # rows are columns to LAPACK, which is the same in a symmetric matrix
            arrays = (diagonals[i], beside[i], factors[i])
            _lapack.call(ssytrd, "ssytrd", b"L", n, reflections[i], n, *arrays, work, len(work))
        _from_tridiagonal(reflections, diagonals, beside, factors, values, rows, found)
    for i in map(int, np.flatnonzero(~found)):
        ascending, vectors = eigh(matrices[i].copy())
        values[i], rows[i] = ascending[::-1][:r], vectors.T[::-1][:r]
    return values, rows


@kernel
def _from_tridiagonal(
    reflections: Any, diagonals: Any, beside: Any, factors: Any, values: Any, rows: Any, found: Any
) -> None:
    s, r, n = rows.shape
    vectors = np.empty((n, r), rows.dtype)
    for i in range(s):
        found[i] = find_leading(diagonals[i], beside[i, : n - 1], values[i], vectors)
        if found[i]:
            _turn_back(reflections[i], factors[i, : n - 1], vectors)
            rows[i] = vectors.T


@kernel
def _turn_back(reflections: Any, factors: Any, vectors: Any) -> None:
    """Multiply ``vectors`` by the reflections I − τ v v', the last first, many at once as I − V S⁻¹ V'.

    S is upper triangular: products of the v with one another, and 1/τ on the diagonal. A v begins with a 1 after as
    many zeros as it has a number; LAPACK leaves the rest of it in a row, behind those.
    """
    n_reflections = factors.shape[0]
    n_blocks = -(-n_reflections // _REFLECTIONS_AT_ONCE)
    for block in range(n_blocks - 1, -1, -1):
        first = block * _REFLECTIONS_AT_ONCE
        last = min(first + _REFLECTIONS_AT_ONCE, n_reflections)
        turned = vectors[first + 1 :]
        V = np.zeros((last - first, turned.shape[0]), vectors.dtype)
        for k in range(last - first):
            if factors[first + k] != 0:  # else there is nothing to reflect
                V[k, k] = 1
                V[k, k + 1 :] = reflections[first + k, first + k + 2 :]
        products = np.dot(V, turned)
        _solve_upwards(np.dot(V, V.T), factors[first:last], products)
        turned -= np.dot(V.T, products)


@kernel
def _solve_upwards(S: Any, factors: Any, right: Any) -> None:
    """Solve with the upper half of ``S`` and 1/τ on its diagonal, in the place of the right side."""
    for i in range(S.shape[0] - 1, -1, -1):
        sums = right[i]
        for k in range(i + 1, S.shape[0]):
            factor, known = S[i, k], right[k]
            for j in range(right.shape[1]):
                sums[j] -= factor * known[j]
        for j in range(right.shape[1]):
            sums[j] *= factors[i]
