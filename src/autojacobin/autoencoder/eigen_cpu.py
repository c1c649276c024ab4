"""Eigenvectors of symmetric matrices on a CPU, in their own precision and without the GIL.

numpy.linalg.eigh computes float32 in float64, which takes twice as long, and scipy.linalg.eigh holds the GIL. So LAPACK
is called through the pointers that SciPy exports for Cython.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from autojacobin.core.parallel import scipy_linalg


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
    found: Callable[..., None] = ctypes.CFUNCTYPE(None, *kinds)(pointer_of(capsule, signature))
    return found


def _as_pointer(value: Any) -> Any:
    return value.ctypes.data if isinstance(value, np.ndarray) else ctypes.byref(ctypes.c_int(value))
