"""Rows of vectors asked of the memory before they are read: they lie anywhere, and waiting for them takes long."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from autojacobin.core.compilation import intrinsic, kernel
from autojacobin.search._lines import BYTES_PER_LINE

__all__ = ["ask_ahead", "ask_for_row"]

_BYTES_AHEAD, _FEWEST_ROWS_AHEAD, _MOST_ROWS_AHEAD = 4096, 4, 24


@intrinsic  # type: ignore[untyped-decorator]
def _ask_for(typing_context: Any, address: Any) -> Any:  # noqa: ARG001
    """Ask the memory for the line at an address, which need not be valid, without waiting for it."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        pointer, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        whole = ir.FunctionType(ir.VoidType(), [pointer, number, number, number])
        prefetch = builder.module.declare_intrinsic("llvm.prefetch", [pointer], whole)
        to_read, keep_near, as_data = (ir.Constant(number, value) for value in (0, 3, 1))
        builder.call(prefetch, [builder.inttoptr(arguments[0], pointer), to_read, keep_near, as_data])
        return context.get_dummy_value()

    return types.void(types.uintp), generate


@kernel(inline=True)
def ask_for_row(vectors: Any, row: int) -> None:
    """Ask for all lines of a row of ``vectors``."""
    step = vectors.strides[0]
    first = vectors.ctypes.data + row * step
    for line in range(first & -BYTES_PER_LINE, first + step, BYTES_PER_LINE):
        _ask_for(np.uintp(line))


@kernel(inline=True)
def ask_ahead(vectors: Any, rows: Any, q: int, c: int) -> None:
    """Ask for the row that is some kilobytes ahead of ``rows[q, c]``."""
    ahead = c + min(_MOST_ROWS_AHEAD, max(_FEWEST_ROWS_AHEAD, _BYTES_AHEAD // max(1, vectors.strides[0])))
    ask_for_row(vectors, rows[q, min(ahead, rows.shape[1] - 1)])
