"""Eigenvectors of a symmetric matrix in its own precision, without the GIL.

``numpy.linalg.eigh`` computes float32 in float64, which takes twice as long, and ``scipy.linalg.eigh`` holds the GIL.
So LAPACK's ``ssyevd`` is called where SciPy hands it out to other libraries; where it does not, NumPy does the work.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

__all__ = ["eigh"]


def eigh(matrix: Any) -> tuple[Any, Any]:
    """Ascending eigenvalues, and eigenvectors as columns, of a symmetric NumPy ``matrix``, which may be lost."""
    routine = _ssyevd() if matrix.dtype == np.float32 else None
    if routine is None or len(matrix) == 0:
        values, vectors = np.linalg.eigh(matrix)
        return values, vectors
    n = len(matrix)
    vectors = np.asfortranarray(matrix.T)  # of a symmetric matrix in the usual order that is a view
    values = np.empty(n, dtype=np.float32)
    work = np.empty(1 + 6 * n + 2 * n * n, dtype=np.float32)
    whole_work = np.empty(3 + 5 * n, dtype=np.int32)
    failed = ctypes.c_int(0)
    routine(
        b"V",
        b"L",
        ctypes.byref(ctypes.c_int(n)),
        vectors.ctypes.data,
        ctypes.byref(ctypes.c_int(n)),
        values.ctypes.data,
        work.ctypes.data,
        ctypes.byref(ctypes.c_int(len(work))),
        whole_work.ctypes.data,
        ctypes.byref(ctypes.c_int(len(whole_work))),
        ctypes.byref(failed),
    )
    if failed.value:
        raise np.linalg.LinAlgError(f"ssyevd did not converge, got info={failed.value}")
    return values, vectors


@cache
def _ssyevd() -> Callable[..., None] | None:
    """Give the routine itself, or None where SciPy has none with whole numbers of 32 bits."""
    from scipy.linalg import cython_lapack

    capsule = cython_lapack.__pyx_capi__.get("ssyevd")
    if capsule is None:
        return None
    api = ctypes.pythonapi
    name = ctypes.PYFUNCTYPE(ctypes.c_char_p, ctypes.py_object)(("PyCapsule_GetName", api))
    pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_GetPointer", api))
    signature = name(capsule)
    if not signature.startswith(b"void (char *, char *, int *"):
        return None
    routine: Callable[..., None] = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_char_p, *[ctypes.c_void_p] * 9)(
        pointer(capsule, signature)
    )
    return routine
