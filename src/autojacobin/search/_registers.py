"""Registers of 512 bits in the code that is written for LLVM: eight words of 64, loaded and stored where they lie."""

from __future__ import annotations

from typing import Any

import numba
from llvmlite import binding, ir

__all__ = ["VECTOR", "WORD", "WORDS", "everywhere", "load", "machine_has", "store"]

WORDS = 8
WORD = ir.IntType(64)
VECTOR = ir.VectorType(WORD, WORDS)


def everywhere(number: int) -> Any:
    """A constant with the same number in every word."""
    return ir.Constant(VECTOR, [number] * WORDS)


def load(builder: Any, pointer: Any) -> Any:
    """Load the eight words at a pointer to words; NumPy promises no more than that words are aligned."""
    vector = builder.load(builder.bitcast(pointer, VECTOR.as_pointer()))
    vector.align = 8
    return vector


def store(builder: Any, vector: Any, pointer: Any) -> None:
    """Store eight words at a pointer to words."""
    builder.store(vector, builder.bitcast(pointer, VECTOR.as_pointer())).align = 8


def machine_has(feature: str) -> bool:
    """Tell whether the code is for this machine and it has a feature of LLVM's list, such as ``avx512f``."""
    settings: Any = numba.config
    chosen = settings.CPU_NAME or settings.CPU_FEATURES  # somebody compiles for another machine than this
    return not chosen and bool(binding.get_host_cpu_features().get(feature))
