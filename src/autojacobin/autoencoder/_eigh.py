"""Eigenvectors of a symmetric matrix in its own precision, without the GIL: all of them, or the leading ones.

All come from LAPACK's ``ssyevd``. It spends most of its time after the reduction to tridiagonal form, on eigenvectors
that a tangent space has no use for; so the leading ones are found from that form by themselves (``_tridiagonal.py``)
and turned back by the reflections that led to it, which takes half to two thirds as long.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from autojacobin._compile import kernel
from autojacobin.autoencoder import _lapack
from autojacobin.autoencoder._tridiagonal import leading_of_tridiagonal

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


def leading_eigh(matrix: Any, r: int) -> tuple[Any, Any]:
    """Largest ``r`` eigenvalues, descending, and their eigenvectors as rows (r, n); ``matrix`` may be lost."""
    n = len(matrix)
    ssytrd = _lapack.routine("ssytrd") if matrix.dtype == np.float32 else None
    if ssytrd is not None and n >= _FEWEST_DIMENSIONS and r <= _LARGEST_SHARE * n:
        found = _from_tridiagonal(ssytrd, matrix.copy(), r)
        if found is not None:
            return found
    values, vectors = eigh(matrix)
    return values[::-1][:r], vectors.T[::-1][:r]


def _from_tridiagonal(ssytrd: Any, matrix: Any, r: int) -> tuple[Any, Any] | None:
    n = len(matrix)
    reflections = np.asfortranarray(matrix.T)
    diagonal, beside, factors = (np.empty(n, dtype=np.float32) for _ in range(3))
    work = np.empty(_REFLECTIONS_AT_ONCE * n, dtype=np.float32)
    _lapack.call(ssytrd, "ssytrd", b"L", n, reflections, n, diagonal, beside, factors, work, len(work))
    found = leading_of_tridiagonal(diagonal, beside[: n - 1], r)
    if found is None:
        return None
    values, vectors = found
    _turn_back(reflections, factors[: n - 1], vectors)
    return values, vectors.T


def _turn_back(reflections: Any, factors: Any, vectors: Any) -> None:
    """Multiply ``vectors`` by the reflections I − τ v v', the last first, many at once as I − V S⁻¹ V'.

    S is upper triangular: products of the v with one another, and 1/τ on the diagonal.
    """
    starts = range(0, len(factors), _REFLECTIONS_AT_ONCE)
    for first in reversed(starts):
        last = min(first + _REFLECTIONS_AT_ONCE, len(factors))
        turned = vectors[first + 1 :]
        V = np.empty((len(turned), last - first), dtype=vectors.dtype)
        _unpack(reflections[first + 1 :, first:last], factors[first:last], V)
        products = V.T @ turned
        _solve_upwards(V.T @ V, factors[first:last], products)
        turned -= V @ products


@kernel
def _unpack(packed: Any, factors: Any, V: Any) -> None:
    """Write the vectors v as columns, as LAPACK leaves them below a diagonal of ones; none where τ is 0."""
    for j in range(V.shape[1]):
        for i in range(V.shape[0]):
            V[i, j] = 0 if i < j or factors[j] == 0 else (1 if i == j else packed[i, j])


@kernel
def _solve_upwards(S: Any, factors: Any, right: Any) -> None:
    """Solve with the upper half of ``S`` and 1/τ on its diagonal, in the place of the right side."""
    for i in range(S.shape[0] - 1, -1, -1):
        for k in range(i + 1, S.shape[0]):
            for j in range(right.shape[1]):
                right[i, j] -= S[i, k] * right[k, j]
        for j in range(right.shape[1]):
            right[i, j] *= factors[i]
