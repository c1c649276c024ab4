"""Leading eigenvectors of symmetric matrices: by LAPACK on a CPU, and of many matrices at once on a GPU.

numpy.linalg.eigh computes float32 in float64, which takes twice as long, and scipy.linalg.eigh holds the GIL. So LAPACK
is called through the pointers that SciPy exports for Cython.

On a GPU, batched ``eigh`` computes all D eigenvectors, which takes 13 to 30 times as long at 960 dimensions on an H200.
A tangent space needs r of them. Subspace iteration multiplies a block of r + r/4 + 32 vectors by the matrix and makes
the block orthonormal again. After two such rounds the columns are nearly sorted by eigenvalue, and a round applies
Chebyshev's polynomial T₂ of the matrix instead, which reduces the error as much as four plain rounds. A small ``eigh``
within the block ends it. Where the residual shows that this was not enough, the matrix is decomposed by ``eigh``.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from autojacobin.core.arrays import namespace
from autojacobin.core.parallel import scipy_linalg

_PLAIN_ROUNDS = 2
_FILTERED_ROUNDS = 2
_LAST_ROUNDS = 2
_COLUMNS_AT_EDGE = 8
_LARGEST_ANGLE = 5e-4
_GAP = 0.1  # the space is well defined if the next eigenvalue is smaller by this share


def eigh(matrix: Any) -> tuple[Any, Any]:
    """Ascending eigenvalues, and eigenvectors as columns, of a symmetric NumPy ``matrix``, which may be overwritten."""
    ssyevd = lapack_routine("ssyevd") if matrix.dtype == np.float32 else None
    if ssyevd is None or len(matrix) == 0:
        values, vectors = np.linalg.eigh(matrix)
        return values, vectors
    n = len(matrix)
    vectors = np.asfortranarray(matrix.T)  # a view, if the matrix is stored row by row
    values = np.empty(n, dtype=np.float32)
    work, int_work = np.empty(1 + 6 * n + 2 * n * n, dtype=np.float32), np.empty(3 + 5 * n, dtype=np.int32)
    info = ctypes.c_int(0)
    arguments = (n, vectors, n, values, work, len(work), int_work, len(int_work))
    ssyevd(b"V", b"L", *map(_as_pointer, arguments), ctypes.byref(info))
    if info.value:
        raise np.linalg.LinAlgError(f"ssyevd did not converge, got info={info.value}")
    return values, vectors


def leading_eigh(matrices: Any, r: int) -> tuple[Any, Any]:
    """Largest ``r`` eigenvalues (s, r), descending, and eigenvectors as rows (s, r, n), of matrices (s, n, n)."""
    s, n, _ = matrices.shape
    values, rows = np.empty((s, r), dtype=matrices.dtype), np.empty((s, r, n), dtype=matrices.dtype)
    for i, matrix in enumerate(matrices):
        ascending, vectors = eigh(matrix.copy())
        values[i], rows[i] = ascending[::-1][:r], vectors.T[::-1][:r]
    return values, rows


@cache
def lapack_routine(name: str) -> Callable[..., None] | None:
    """Return a single-precision LAPACK routine with 32-bit integers, or None if SciPy does not export one."""
    capsule = scipy_linalg().cython_lapack.__pyx_capi__.get(name)
    if capsule is None:
        return None
    api = ctypes.pythonapi
    signature_of = ctypes.PYFUNCTYPE(ctypes.c_char_p, ctypes.py_object)(("PyCapsule_GetName", api))
    pointer_of = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_GetPointer", api))
    signature = signature_of(capsule)
    parameters = signature.removeprefix(b"void (").removesuffix(b")").split(b", ")
    if any(kind not in (b"int *", b"char *") and not kind.endswith(b"_s *") for kind in parameters):
        return None
    kinds = [ctypes.c_char_p if kind == b"char *" else ctypes.c_void_p for kind in parameters]
    return ctypes.CFUNCTYPE(None, *kinds)(pointer_of(capsule, signature))


def _as_pointer(value: Any) -> Any:
    return value.ctypes.data if isinstance(value, np.ndarray) else ctypes.byref(ctypes.c_int(value))


def block_size(r: int) -> int:
    """Number of vectors that are iterated to find ``r`` eigenvectors."""
    return r + r // 4 + 32


def leading_eigenvectors(matrices: Any, r: int, start: Any) -> tuple[Any, Any]:
    """Largest ``r`` eigenvalues (s, r), descending, and eigenvectors as rows (s, r, D), of matrices (s, D, D).

    The matrices are symmetric and have no negative eigenvalues. ``start`` has orthonormal columns, more than ``r``.
    """
    xp = namespace(matrices)
    V = xp.broadcast_to(start, (len(matrices), *start.shape))
    for _ in range(_PLAIN_ROUNDS):
        V = _orthonormal(xp.matmul(matrices, V))
    for _ in range(_FILTERED_ROUNDS):
        V = _orthonormal(_filtered(matrices, V))
    for _ in range(_LAST_ROUNDS):  # vectors beyond the rank of a matrix consist of rounding errors alone
        V = _orthonormal(V)
    images = xp.matmul(matrices, V)
    values, rotation = xp.linalg.eigh(xp.matmul(V.transpose(0, 2, 1), images))
    values, rotation = values[:, ::-1], rotation[:, :, ::-1][:, :, :r]
    vectors, images = xp.matmul(V, rotation), xp.matmul(images, rotation)
    images -= vectors * values[:, None, :r]
    residual = xp.sqrt((images * images).sum(axis=(1, 2)))
    gap = values[:, r - 1] - values[:, r]
    missed = (gap > _GAP * values[:, r - 1]) & ~(residual <= _LARGEST_ANGLE * gap)
    missed |= ~xp.isfinite(residual)
    values, rows = values[:, :r].copy(), vectors.transpose(0, 2, 1).copy()
    again = xp.flatnonzero(missed)
    if len(again):
        all_values, all_vectors = xp.linalg.eigh(matrices[again])
        values[again] = all_values[:, ::-1][:, :r]
        rows[again] = all_vectors.transpose(0, 2, 1)[:, ::-1][:, :r]
    return values, rows


def _filtered(matrices: Any, V: Any) -> Any:
    """T₂(2A/b − 1) V = 2 C (C V) − V with C = 2A/b − 1, where b estimates the smallest eigenvalue in the block."""
    xp = namespace(V)
    images = xp.matmul(matrices, V)
    last = slice(-_COLUMNS_AT_EDGE, None)
    edge = (V[:, :, last] * images[:, :, last]).sum(axis=1).mean(axis=1)
    edge = xp.maximum(edge, xp.finfo(V.dtype).eps * xp.trace(matrices, axis1=1, axis2=2))
    factor = (2 / xp.where(edge > 0, edge, 1))[:, None, None]
    images *= factor
    images -= V
    result = xp.matmul(matrices, images)
    result *= factor
    result -= images
    result *= 2
    result -= V
    return result


def _orthonormal(Y: Any) -> Any:
    """Orthonormal columns with the same span: scale the columns to unit length, then divide by a Cholesky factor."""
    xp = namespace(Y)
    tiny = xp.finfo(Y.dtype).tiny
    Y = Y / xp.maximum(xp.sqrt((Y * Y).sum(axis=1, keepdims=True)), tiny)
    products = xp.matmul(Y.transpose(0, 2, 1), Y)
    # A small multiple of the identity keeps nearly equal columns from making the products singular. The next round
    # separates such columns.
    little = 4 * Y.shape[2] * float(xp.finfo(Y.dtype).eps)
    products += little * xp.eye(Y.shape[2], dtype=Y.dtype)
    products /= 1 + little
    return xp.matmul(Y, xp.linalg.inv(xp.linalg.cholesky(products)).transpose(0, 2, 1))
