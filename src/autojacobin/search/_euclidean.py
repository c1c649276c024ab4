"""Euclidean distances to vectors where they lie, and the nearest of them.

Vectors are read in place, whatever numbers they are kept as, and every sum is taken in float64 from the same float32
or float64 values, so the distances are those of converted copies. Where vectors and queries are whole numbers from 0 to
255 it is taken in whole numbers (``_byte_gaps.py``): float64 holds such sums exactly too, so it is the same one in a
quarter of the time. The rows that come next are asked of the memory ahead of time: candidates lie anywhere, and waiting
for them took two thirds of the time.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from autojacobin._compile import intrinsic, kernel, use_wide_registers
from autojacobin.search._byte_gaps import BYTES_AT_ONCE, LONGEST, squared_gaps
from autojacobin.search._lines import BYTES_PER_LINE

__all__ = ["is_read_in_place", "measure", "select_nearest"]

_IN_PLACE = frozenset(np.dtype(name) for name in ("uint8", "float16", "float32", "float64"))
_HALF_UNIT = np.float32(2.0**112)  # from the exponents of float16, moved up by 13 bits, to those of float32
_BYTES_AHEAD, _FEWEST_ROWS_AHEAD, _MOST_ROWS_AHEAD = 4096, 4, 24


def is_read_in_place(vectors: Any) -> bool:
    """Tell whether :func:`measure` takes such vectors; others are converted first."""
    return bool(vectors.dtype in _IN_PLACE and vectors.dtype.isnative and vectors.flags.c_contiguous)


def measure(queries: Any, vectors: Any, rows: Any, squared: Any) -> None:
    """Write the squared distance of each query to each of its ``rows`` of ``vectors``; rows below 0 are left out.

    ``queries`` are float32 or float64, ``rows`` and ``squared`` have a row for each of them.
    """
    if vectors.dtype == np.float16:
        _measure_halves(queries, vectors.view(np.uint16), rows, squared)
    elif vectors.dtype == np.uint8 and queries.shape[1] <= LONGEST and _are_bytes(queries):
        _measure_bytes(queries.astype(np.int16), vectors, rows, squared)
    else:
        _measure(queries, vectors, rows, squared)


def _are_bytes(queries: Any) -> bool:
    """Tell whether floats are whole numbers from 0 to 255, as they are where the queries came as bytes."""
    return bool(np.all((queries >= 0) & (queries <= 255) & (queries == np.floor(queries))))


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
def _ask_ahead(vectors: Any, rows: Any, q: int, c: int) -> None:
    step = vectors.strides[0]
    ahead = c + min(_MOST_ROWS_AHEAD, max(_FEWEST_ROWS_AHEAD, _BYTES_AHEAD // max(1, step)))
    first = vectors.ctypes.data + rows[q, min(ahead, rows.shape[1] - 1)] * step
    for line in range(first & -BYTES_PER_LINE, first + step, BYTES_PER_LINE):
        _ask_for(np.uintp(line))


@kernel
def _measure_bytes(queries: Any, vectors: Any, rows: Any, squared: Any) -> None:
    use_wide_registers()
    width = np.uint64(queries.shape[1])
    rest = width - width % np.uint64(BYTES_AT_ONCE)
    for q in range(rows.shape[0]):
        for c in range(rows.shape[1]):
            _ask_ahead(vectors, rows, q, c)
            if rows[q, c] >= 0:
                row = np.int64(rows[q, c])
                total = np.int64(squared_gaps(queries, q, vectors, row))
                for j in range(rest, width):
                    gap = np.int64(queries[q, j]) - np.int64(vectors[np.uint64(row), j])
                    total += gap * gap
                squared[q, c] = total


@kernel(reassociate=True)
def _measure(queries: Any, vectors: Any, rows: Any, squared: Any) -> None:
    use_wide_registers()
    for q in range(rows.shape[0]):
        for c in range(rows.shape[1]):
            _ask_ahead(vectors, rows, q, c)
            if rows[q, c] >= 0:
                row = np.uint64(rows[q, c])  # numba need not look whether it counts from the end
                total = 0.0
                for j in range(queries.shape[1]):
                    gap = np.float64(queries[q, j]) - np.float64(vectors[row, j])
                    total += gap * gap
                squared[q, c] = total


@kernel(reassociate=True)
def _measure_halves(queries: Any, vectors: Any, rows: Any, squared: Any) -> None:
    """Vectors of float16, given as their bits, for numba does not know these numbers."""
    use_wide_registers()
    for q in range(rows.shape[0]):
        for c in range(rows.shape[1]):
            _ask_ahead(vectors, rows, q, c)
            if rows[q, c] >= 0:
                row = np.uint64(rows[q, c])
                total = 0.0
                for j in range(queries.shape[1]):
                    bits = np.uint32(vectors[row, j])
                    size = np.uint32((bits & np.uint32(0x7FFF)) << np.uint32(13)).view(np.float32) * _HALF_UNIT
                    size = size if size < np.float32(65536.0) else np.float32(np.inf)
                    value = -size if bits & np.uint32(0x8000) else size
                    gap = np.float64(queries[q, j]) - np.float64(value)
                    total += gap * gap
                squared[q, c] = total


@kernel
def select_nearest(squared: Any, ids: Any, k: int, near: Any, near_ids: Any) -> None:
    """Write the ``k`` smallest of each row of ``squared`` and their ids, in order; equal ones in order of id.

    The rows of ``near`` serve as heaps with the farthest on top, and are then taken apart from the top.
    """
    for q in range(squared.shape[0]):
        for c in range(k):
            _rise(near, near_ids, q, c, squared[q, c], np.int64(ids[q, c]))
        farthest = near[q, 0]
        for c in range(k, squared.shape[1]):
            distance = squared[q, c]
            if distance <= farthest:
                id = np.int64(ids[q, c])
                if _is_before(distance, id, near[q, 0], near_ids[q, 0]):
                    _sink(near, near_ids, q, k, distance, id)
                    farthest = near[q, 0]
        for size in range(k - 1, 0, -1):
            distance, id = near[q, size], near_ids[q, size]
            near[q, size], near_ids[q, size] = near[q, 0], near_ids[q, 0]
            _sink(near, near_ids, q, size, distance, id)


@kernel(inline=True)
def _is_before(distance: Any, id: Any, other: Any, other_id: Any) -> Any:
    return distance < other or (distance == other and id < other_id)


@kernel(inline=True)
def _rise(near: Any, near_ids: Any, q: int, place: int, distance: Any, id: Any) -> None:
    """Put an entry at ``place``, the end of a heap, and let it rise to where it belongs."""
    while place > 0:
        above = (place - 1) >> 1
        if not _is_before(near[q, above], near_ids[q, above], distance, id):
            break
        near[q, place], near_ids[q, place] = near[q, above], near_ids[q, above]
        place = above
    near[q, place], near_ids[q, place] = distance, id


@kernel(inline=True)
def _sink(near: Any, near_ids: Any, q: int, size: int, distance: Any, id: Any) -> None:
    """Put an entry in place of the top of a heap of ``size``, and let it sink to where it belongs."""
    place = 0
    while True:
        below = 2 * place + 1
        if below >= size:
            break
        other = min(below + 1, size - 1)
        if _is_before(near[q, below], near_ids[q, below], near[q, other], near_ids[q, other]):
            below = other
        if not _is_before(distance, id, near[q, below], near_ids[q, below]):
            break
        near[q, place], near_ids[q, place] = near[q, below], near_ids[q, below]
        place = below
    near[q, place], near_ids[q, place] = distance, id
