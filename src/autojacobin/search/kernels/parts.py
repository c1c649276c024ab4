"""Segments as compiled code reads them, and what was found in them.

A *part* is a segment as a record: the addresses of its arrays, and their sizes (``prepared_search.Stored``). So one
compiled function searches any number of segments, and a call passes a handful of arrays.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import carray, types  # type: ignore[attr-defined]

from autojacobin.core.compilation import intrinsic, kernel
from autojacobin.search.kernels.l2 import measure, prefetch_bytes
from autojacobin.search.kernels.list_scan import keep_nearest_slots
from autojacobin.search.kernels.lookup import CODES_PER_BLOCK
from autojacobin.search.kernels.selection import LAST_ID, select_few

_PART = (
    "n", "codes", "offsets", "bounds", "positions", "allowed", "counts", "ids", "first_id", "rows", "vectors",
    "n_vectors", "row_bytes", "checked", "n_checked", "block_shift",
)  # fmt: skip
_MODEL = (
    "width", "bytes_per_code", "n_lists", "points", "origin", "groups", "order", "norms", "n_groups", "n_steps",
    "means", "norms_of_means", "n_means", "in_cells", "largest", "matrix", "start", "shift", "n_rows", "n_bits",
    "n_level_bits", "n_words", "lanes", "columns", "copies", "decoded", "kind",
)  # fmt: skip
_REALS = ("step", "largest_norm", "tolerance", "matrix_step", "low", "offset_step", "offset")
PART = np.dtype([(name, np.int64) for name in _PART])
"""What a part consists of. Addresses are 0 where there is no such array."""
MODEL = np.dtype([*((name, np.int64) for name in _MODEL), *((name, np.float64) for name in _REALS)])
"""What all parts share.

Of lists, the centres as ``Centres.arrays`` gives them, and the grid of the offsets. Of tiles, the numbers of bits, the
shape, a constant, and whether distances are those of decoded codes. The weights of the bits of a query are
2 (query − start)·matrix' + shift. Of lists, the matrix is in bytes, multiples of ``matrix_step``. ``kind`` is the type
of the vectors, a place in ``KINDS``.
"""
KINDS: tuple[Any, ...] = None, np.uint8, np.float16, np.float32, np.float64
"""Types of vectors; the first is for no vectors."""


_PREFETCHED = 256  # bytes of a vector; the CPU notices by itself that others follow
_UINT8, _FLOAT16, _FLOAT32 = 1, 2, 3  # in KINDS


@intrinsic  # type: ignore[untyped-decorator]
def pointer(_typing_context: Any, address: Any, like: Any) -> Any:
    """An address as a pointer to numbers of the type of ``like``."""
    kind = types.CPointer(like.dtype)  # type: ignore[no-untyped-call]

    def generate(context: Any, builder: Any, _: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(kind))

    return kind(address, like), generate


@kernel(inline=True)
def parts_at(addresses: Any) -> Any:
    """The parts: given are their address and number, and the address of what they share."""
    return carray(pointer(addresses[0], PART), (addresses[1],))


@kernel(inline=True)
def models_at(addresses: Any) -> Any:
    """What the parts share, as the only entry of an array."""
    return carray(pointer(addresses[2], MODEL), (1,))


@kernel(inner=True)
def in_float64(queries: Any, doubles: Any, first: int) -> Any:
    """Queries of a block in float64."""
    exact = np.empty(queries.shape)
    for q in range(queries.shape[0]):
        for j in range(queries.shape[1]):
            exact[q, j] = doubles[first + q, j] if doubles.shape[0] > 0 else queries[q, j]
    return exact


@kernel(inner=True)
def nearest_of_parts(parts: Any, found: Any, places: Any, wanted: int) -> Any:
    """Numbers, parts, positions and whole distances of the nearest codes of all parts; numbers are -1 if fewer."""
    n_parts, n, kept = found.shape
    candidates, capacity = np.empty((4, n, wanted), dtype=np.int64), n_parts * kept + CODES_PER_BLOCK
    whole, slots, ids = np.empty(capacity, np.int32), np.empty(capacity, np.int64), np.empty(capacity, np.int64)
    for q in range(n):
        count = 0
        for s in range(n_parts):
            for c in range(kept):
                if places[s, q, c] < 0:  # and so are all that follow
                    break
                whole[count], slots[count] = found[s, q, c], s * kept + c
                ids[s * kept + c] = _id_at(parts, s, places[s, q, c])
                count += 1
        if count > wanted:
            keep_nearest_slots(whole, slots, count, wanted, ids)
            count = wanted
        for c in range(count):
            s = slots[c] // kept
            candidates[0, q, c], candidates[1, q, c] = ids[slots[c]], s
            candidates[2, q, c], candidates[3, q, c] = places[s, q, slots[c] - s * kept], whole[c]
            row_bytes = parts[s].row_bytes  # of the vector, which will be needed soon
            start = parts[s].vectors + _row_at(parts, s, candidates[2, q, c]) * row_bytes
            prefetch_bytes(start, min(row_bytes, _PREFETCHED))
        for c in range(count, wanted):
            candidates[0, q, c] = -1
    return candidates


@kernel(inner=True)
def order_codes(candidates: Any, facts: Any, distances: Any, numbers: Any) -> None:
    """Write real distances and numbers of the nearest candidates by whole distance; infinity and -1 if fewer."""
    wanted = numbers.shape[1]
    values, names = np.empty((1, candidates.shape[2])), np.empty((1, candidates.shape[2]), dtype=np.int64)
    for q in range(numbers.shape[0]):
        for c in range(candidates.shape[2]):
            missing = candidates[0, q, c] < 0
            names[0, c], values[0, c] = candidates[0, q, c], np.inf if missing else candidates[3, q, c]
        select_few(values, names, wanted, distances[q : q + 1], numbers[q : q + 1])
        for i in range(wanted):
            distances[q, i] = np.float32(facts[q, 1] + facts[q, 0] * distances[q, i])


@kernel(inner=True)
def order_vectors(
    queries: Any, parts: Any, kind: int, candidates: Any, distances: Any, numbers: Any, doubtful: Any, n_doubtful: int
) -> int:  # fmt: skip
    """Write distances and numbers of the nearest candidates by their vectors; infinity and -1 where there are fewer.

    Gives how many vectors are doubtful now.
    """
    wanted = numbers.shape[1]
    squared = np.empty((1, candidates.shape[2]))
    names, rows = np.empty((1, candidates.shape[2]), np.int64), np.empty((1, candidates.shape[2]), np.int64)
    for q in range(numbers.shape[0]):
        for c in range(candidates.shape[2]):
            names[0, c], squared[0, c] = candidates[0, q, c], np.inf
        scratch = distances[q : q + 1], numbers[q : q + 1]
        for s in range(parts.shape[0]):
            for c in range(candidates.shape[2]):
                here = names[0, c] >= 0 and candidates[1, q, c] == s
                rows[0, c] = _row_at(parts, s, candidates[2, q, c]) if here else -1
            if kind == _UINT8:
                _measure_part(queries, q, parts, s, np.uint8, rows, squared, scratch)
            elif kind == _FLOAT16:
                _measure_part(queries, q, parts, s, np.uint16, rows, squared, scratch)
            elif kind == _FLOAT32:
                _measure_part(queries, q, parts, s, np.float32, rows, squared, scratch)
            else:
                _measure_part(queries, q, parts, s, np.float64, rows, squared, scratch)
            n_doubtful = _note_doubtful(parts, s, rows, squared, doubtful, n_doubtful)
        select_few(squared, names, wanted, *scratch)
        for i in range(wanted):
            distances[q, i] = math.sqrt(distances[q, i])
            if numbers[q, i] == LAST_ID:  # nothing was comparable
                numbers[q, i] = -1
    return n_doubtful


@kernel(inline=True)
def _id_at(parts: Any, s: int, position: int) -> Any:
    if parts[s].ids == 0:
        return parts[s].first_id + position
    return carray(pointer(parts[s].ids, np.int64), (parts[s].n,))[position]


@kernel(inline=True)
def _row_at(parts: Any, s: int, position: int) -> Any:
    if parts[s].rows == 0:
        return position
    return np.int64(carray(pointer(parts[s].rows, np.uint32), (parts[s].n,))[position])


@kernel(inner=True)
def _note_doubtful(parts: Any, s: int, rows: Any, squared: Any, doubtful: Any, n_doubtful: int) -> int:
    """Note the rows of a part whose distance is not finite, or that have bytes that were not checked."""
    row_bytes, shift = parts[s].row_bytes, parts[s].block_shift
    n_checked = parts[s].n_checked if parts[s].checked != 0 else 0
    checked = carray(pointer(parts[s].checked, np.uint8), (n_checked,))
    for c in range(rows.shape[1]):
        row = rows[0, c]
        if row < 0:
            continue
        is_doubtful = not squared[0, c] < np.inf
        if n_checked > 0:
            start = row * row_bytes
            for block in range(start >> shift, ((start + row_bytes - 1) >> shift) + 1):
                is_doubtful |= checked[block] == 0
        if is_doubtful:
            doubtful[0, n_doubtful], doubtful[1, n_doubtful] = s, row
            n_doubtful += 1
    return n_doubtful


@kernel(inner=True)
def _measure_part(
    queries: Any, q: int, parts: Any, s: int, like: Any, rows: Any, squared: Any, scratch: Any
) -> None:  # fmt: skip
    """Write squared distances to rows of a part."""
    vectors = carray(pointer(parts[s].vectors, like), (parts[s].n_vectors, queries.shape[1]))
    measure(queries[q : q + 1], vectors, rows, squared, scratch)
