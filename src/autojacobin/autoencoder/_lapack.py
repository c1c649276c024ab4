"""Routines of LAPACK in single precision, called without the GIL.

``numpy.linalg.eigh`` computes float32 in float64, which takes twice as long, and ``scipy.linalg.eigh`` holds the GIL.
So the routines are called where SciPy hands them out to other libraries.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

__all__ = ["call", "routine"]


@cache
def routine(name: str) -> Callable[..., None] | None:
    """Give a routine itself, or None where SciPy has none with whole numbers of 32 bits."""
    from scipy.linalg import cython_lapack

    capsule = cython_lapack.__pyx_capi__.get(name)
    if capsule is None:
        return None
    api = ctypes.pythonapi
    signature_of = ctypes.PYFUNCTYPE(ctypes.c_char_p, ctypes.py_object)(("PyCapsule_GetName", api))
    pointer_of = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_GetPointer", api))
    signature = signature_of(capsule)
    parameters = signature.removeprefix(b"void (").removesuffix(b")").split(b", ")
    whole = {b"int *", b"char *"}
    if any(kind not in whole and not kind.endswith(b"_s *") for kind in parameters):
        return None
    kinds = [ctypes.c_char_p if kind == b"char *" else ctypes.c_void_p for kind in parameters]
    found: Callable[..., None] = ctypes.CFUNCTYPE(None, *kinds)(pointer_of(capsule, signature))
    return found


def call(function: Callable[..., None], name: str, *arguments: Any) -> None:
    """Call ``function`` with flags as bytes, whole numbers, and arrays in the order of its parameters but the last.

    That one is where it tells of a failure.
    """
    failed = ctypes.c_int(0)
    function(*map(_argument, arguments), ctypes.byref(failed))
    if failed.value:
        raise np.linalg.LinAlgError(f"{name} did not converge, got info={failed.value}")


def _argument(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.ctypes.data
    return ctypes.byref(ctypes.c_int(value)) if isinstance(value, int) else value
