"""Squared Euclidean distances to rows of a matrix, read in place whatever their type.

Sums are taken in float64. If vectors and queries are whole numbers from 0 to 255, they are whole numbers too, which
gives the same result in a quarter of the time. Otherwise, estimates in float32 show which rows are too far to be
measured; ``search/euclidean.py`` says why.

Candidates are anywhere in memory, and waiting for them took two thirds of the time. So the rows that come next are
prefetched.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import overload

from autojacobin.core import simd
from autojacobin.core.compilation import intrinsic, kernel, part_of_others, use_wide_registers
from autojacobin.core.simd import CACHE_LINE, INT32, WORD, machine_has
from autojacobin.search.kernels.selection import select_smallest

_BYTES_AHEAD, _FEWEST_ROWS_AHEAD, _MOST_ROWS_AHEAD = 4096, 4, 24

_UINT8_STRIP, _FLOAT32_STRIP = 32, 16  # numbers in a vector
_UNROLLED = 4
_UINT8S = ir.VectorType(ir.IntType(8), _UINT8_STRIP)
_INT16S = ir.VectorType(ir.IntType(16), _UINT8_STRIP)
_INT32S = ir.VectorType(INT32, _UINT8_STRIP // 2)
LONGEST_UINT8 = (2**31 - 1) // 255**2  # numbers in a vector whose sum of squares surely fits 32 bits
_FEWEST_ROWS_PER_WANTED = 4  # if a larger share is wanted, estimates save little
_LONGEST_ESTIMATED = 2**20  # numbers in a vector, up to which the relative error stays below an eighth
_UNIT, _TINY = 2.0**-24, 2.0**-120

_FLOAT32 = ir.FloatType()
_STORED = {types.uint8: ir.IntType(8), types.uint16: ir.IntType(16), types.float32: _FLOAT32}
_FLOAT16_SCALE = 2.0**112  # the exponent of float16, moved to where float32 has it, is too small by this factor
_BEYOND_FLOAT16 = 65536.0
_select_smallest = part_of_others(select_smallest)


# Prefetching


@intrinsic  # type: ignore[untyped-decorator]
def _prefetch(typing_context: Any, address: Any) -> Any:  # noqa: ARG001
    """Ask for the cache line at an address, which need not be valid, without waiting for it."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        simd.prefetch(builder, builder.inttoptr(arguments[0], ir.IntType(8).as_pointer()))
        return context.get_dummy_value()

    return types.void(types.uintp), generate


@kernel(inline=True)
def prefetch_bytes(first: int, n_bytes: int) -> None:
    """Prefetch some bytes from an address on."""
    for line in range(first & -CACHE_LINE, first + n_bytes, CACHE_LINE):
        _prefetch(np.uintp(line))


@kernel(inline=True)
def _prefetch_ahead(vectors: Any, rows: Any, q: int, c: int) -> None:
    """Prefetch the row that is some kilobytes ahead of ``rows[q, c]``.

    To ask for an address outside the mapped memory takes as long as to wait for a row, so rows below 0 are left out.
    """
    ahead = c + min(_MOST_ROWS_AHEAD, max(_FEWEST_ROWS_AHEAD, _BYTES_AHEAD // max(1, vectors.strides[0])))
    if ahead < rows.shape[1] and rows[q, ahead] >= 0:
        prefetch_bytes(vectors.ctypes.data + rows[q, ahead] * vectors.strides[0], vectors.strides[0])


# Sums over one row


@intrinsic  # type: ignore[untyped-decorator]
def _l2_uint8(typing_context: Any, queries: Any, q: Any, vectors: Any, row: Any) -> Any:  # noqa: ARG001
    """Squared distance of row ``q`` of ``queries`` (int16) to a row of ``vectors`` (uint8), over whole strips of 32.

    CPUs multiply pairs of 16-bit numbers and add the two products in one instruction, 32 numbers at a time.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        width, (asked, stored) = _row_pointers(context, builder, signature, arguments)

        def add_strips(count: int, start: Any, sums: list[Any]) -> list[Any]:
            parts = []
            for strip in range(count):
                offset = builder.add(start, WORD(strip * _UINT8_STRIP))
                numbers = simd.load(builder, builder.gep(asked, [offset]), _INT16S, 2)
                bytes_ = simd.load(builder, builder.gep(stored, [offset]), _UINT8S, 1)
                parts.append(_sums_of_pairs(builder, builder.sub(numbers, builder.zext(bytes_, _INT16S))))
            while len(parts) > 1:
                parts = [builder.add(one, other) for one, other in zip(parts[0::2], parts[1::2], strict=True)]
            return [builder.add(sums[0], parts[0])]

        start, sums = WORD(0), [ir.Constant(_INT32S, [0] * _INT32S.count)]
        for count in (_UNROLLED, 1):
            step = count * _UINT8_STRIP
            start, sums = simd.generate_loop(builder, start, width, step, sums, partial(add_strips, count))
        return simd.combine_lanes(builder, sums[0], builder.add)

    return types.int32(queries, q, vectors, row), generate


def _sums_of_pairs(builder: Any, numbers: Any) -> Any:
    """Squares of 16-bit numbers, added two by two."""
    if not machine_has("neon"):
        return simd.sums_of_pairs(builder, numbers, numbers)
    half = _INT32S.count  # NEON multiplies the halves of a register
    parts = (simd.shuffle(builder, numbers, range(first, first + half)) for first in (0, half))
    wide = [builder.sext(part, _INT32S) for part in parts]
    return builder.add(*(builder.mul(part, part) for part in wide))


@intrinsic  # type: ignore[untyped-decorator]
def _l2_float32(typing_context: Any, queries: Any, q: Any, vectors: Any, row: Any) -> Any:  # noqa: ARG001
    """Squared distance in float32 of row ``q`` of ``queries`` to a row of ``vectors``, over whole strips of 16.

    Vectors of uint16 are the bits of float16. Four sums are kept, so that no addition has to wait for the one before.
    """
    stored_type, strip_type = _STORED[vectors.dtype], ir.VectorType(_STORED[vectors.dtype], _FLOAT32_STRIP)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        width, (asked, stored) = _row_pointers(context, builder, signature, arguments)

        def add_strips(start: Any, sums: list[Any]) -> list[Any]:
            results = []
            for strip, total in enumerate(sums):
                offset = builder.add(start, WORD(strip * _FLOAT32_STRIP))
                numbers = simd.load(builder, builder.gep(asked, [offset]), ir.VectorType(_FLOAT32, _FLOAT32_STRIP), 4)
                align = 4 if stored_type is _FLOAT32 else stored_type.width // 8
                others = simd.load(builder, builder.gep(stored, [offset]), strip_type, align)
                gaps = builder.fsub(numbers, _as_float32(builder, others))
                squares = builder.fmul(gaps, gaps, flags=("contract",))
                results.append(builder.fadd(total, squares, flags=("contract",)))
            return results

        zeros = ir.Constant(ir.VectorType(_FLOAT32, _FLOAT32_STRIP), [0.0] * _FLOAT32_STRIP)
        start, sums = simd.generate_loop(
            builder, WORD(0), width, _UNROLLED * _FLOAT32_STRIP, [zeros] * _UNROLLED, add_strips
        )
        while len(sums) > 1:
            sums = [builder.fadd(one, other) for one, other in zip(sums[0::2], sums[1::2], strict=True)]
        _, sums = simd.generate_loop(builder, start, width, _FLOAT32_STRIP, sums, add_strips)
        return simd.combine_lanes(builder, sums[0], builder.fadd)

    return types.float32(queries, q, vectors, row), generate


def _row_pointers(context: Any, builder: Any, signature: Any, arguments: Any) -> tuple[Any, list[Any]]:
    """Width of the rows, and pointers to row ``arguments[1]`` of the queries and ``arguments[3]`` of the vectors."""
    tables = [context.make_array(signature.args[i])(context, builder, arguments[i]) for i in (0, 2)]
    width = builder.extract_value(tables[0].shape, 1)
    rows = zip(tables, (arguments[1], arguments[3]), strict=True)
    return width, [builder.gep(table.data, [builder.mul(row, width)]) for table, row in rows]


@intrinsic  # type: ignore[untyped-decorator]
def decode_float16(typing_context: Any, number: Any) -> Any:  # noqa: ARG001
    """Give the bits of a float16, which are a uint16, as float32; numbers of other types stay as they are."""
    is_float16 = number == types.uint16

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        return _as_float32(builder, arguments[0]) if is_float16 else arguments[0]

    return (types.float32 if is_float16 else number)(number), generate


def _as_float32(builder: Any, numbers: Any) -> Any:
    """One number or a vector of them as float32."""
    width = getattr(getattr(numbers.type, "element", numbers.type), "width", None)
    if width is None:
        return numbers
    if width == 8:
        return builder.uitofp(numbers, _like(numbers, _FLOAT32))
    if machine_has("f16c") or machine_has("neon"):
        return builder.fpext(builder.bitcast(numbers, _like(numbers, ir.HalfType())), _like(numbers, _FLOAT32))
    # without the instruction LLVM would call a function that numba does not link
    return _move_bits(builder, builder.zext(numbers, _like(numbers, INT32)))


def _move_bits(builder: Any, bits: Any) -> Any:
    """Move the bits of a float16 to where float32 has them."""
    floats = _like(bits, _FLOAT32)
    moved = builder.shl(builder.and_(bits, _constant(bits.type, 0x7FFF)), _constant(bits.type, 13))
    size = builder.fmul(builder.bitcast(moved, floats), _constant(floats, _FLOAT16_SCALE))
    size = builder.select(
        builder.fcmp_ordered("<", size, _constant(floats, _BEYOND_FLOAT16)), size, _constant(floats, float("inf"))
    )
    sign = builder.shl(builder.and_(bits, _constant(bits.type, 0x8000)), _constant(bits.type, 16))
    return builder.bitcast(builder.or_(builder.bitcast(size, bits.type), sign), floats)


def _like(numbers: Any, kind: Any) -> Any:
    """A type with as many elements as ``numbers``, each of ``kind``."""
    return ir.VectorType(kind, numbers.type.count) if isinstance(numbers.type, ir.VectorType) else kind


def _constant(kind: Any, value: Any) -> Any:
    return ir.Constant(kind, [value] * kind.count if isinstance(kind, ir.VectorType) else value)


# Distances of queries to rows; rows below 0 are left out


def measure(query: Any, vectors: Any, rows: Any, squared: Any, nearest: Any) -> None:
    """Write squared distances, or anything larger for rows that are not among the nearest.

    Vectors of uint16 are bits of float16. ``squared`` holds infinity, or what was measured before. ``nearest`` is
    memory for the distances and numbers of as many rows as are wanted. Rows that are not measured exactly become -1.
    """
    raise NotImplementedError("only kernels can call this function")


@overload(measure)
def _choose_measure(query: Any, vectors: Any, rows: Any, squared: Any, nearest: Any) -> Any:  # noqa: ARG001
    if vectors.dtype == types.uint8:
        return _measure_bytes
    return _measure_exactly if vectors.dtype == types.float64 else _measure_estimated


def _measure_exactly(query: Any, vectors: Any, rows: Any, squared: Any, nearest: Any) -> None:  # noqa: ARG001
    _l2_rows(query, vectors, rows, squared)


def _measure_bytes(query: Any, vectors: Any, rows: Any, squared: Any, nearest: Any) -> None:
    whole = np.empty(query.shape, dtype=np.int16)
    if query.shape[1] <= LONGEST_UINT8 and write_bytes(query, whole):
        _l2_uint8_rows(whole, vectors, rows, squared)
    else:
        _measure_estimated(query, vectors, rows, squared, nearest)


@kernel(inner=True)
def _measure_estimated(query: Any, vectors: Any, rows: Any, squared: Any, nearest: Any) -> None:
    width, wanted = query.shape[1], nearest[0].shape[1]
    if rows.shape[1] >= _FEWEST_ROWS_PER_WANTED * wanted and width <= _LONGEST_ESTIMATED:
        rounded, moved = np.empty((1, width), dtype=np.float32), 0.0
        for j in range(width):
            rounded[0, j] = query[0, j]
            moved += (query[0, j] - np.float64(rounded[0, j])) ** 2
        estimate_rows(rounded, vectors, rows, squared)
        _select_smallest(squared, rows, wanted, nearest[0], nearest[1])
        error, tiny = 2 * (width + 8) * _UNIT, (width + 8) * _TINY
        reach = math.sqrt(nearest[0][0, wanted - 1] * (1 + error) + tiny) + 2 * math.sqrt(moved) * (1 + 2.0**-20)
        limit = (reach * reach + tiny) / (1 - error)
        for c in range(rows.shape[1]):
            if squared[0, c] > limit and squared[0, c] < np.inf:
                rows[0, c] = -1
    _l2_rows(query, vectors, rows, squared)


@kernel(inner=True)
def write_bytes(queries: Any, whole: Any) -> bool:
    """Write floats as int16 if they are whole numbers from 0 to 255, as they are if the queries were bytes.

    Gives whether they are.
    """
    for q in range(np.uint64(queries.shape[0])):
        fits = True
        for j in range(np.uint64(queries.shape[1])):
            number = queries[q, j]
            byte = np.int16(number) if 0 <= number <= 255 else np.int16(0)
            fits &= number == byte
            whole[q, j] = byte
        if not fits:
            return False
    return True


@kernel(inner=True)
def _l2_uint8_rows(queries: Any, vectors: Any, rows: Any, squared: Any) -> None:
    """Squared distances of queries of int16 to rows of uint8."""
    use_wide_registers()
    width = np.uint64(queries.shape[1])
    rest = width - width % np.uint64(_UINT8_STRIP)
    for q in range(rows.shape[0]):
        for c in range(rows.shape[1]):
            _prefetch_ahead(vectors, rows, q, c)
            if rows[q, c] >= 0:
                row = np.int64(rows[q, c])
                total = np.int64(_l2_uint8(queries, q, vectors, row))
                for j in range(rest, width):
                    gap = np.int64(queries[q, j]) - np.int64(vectors[np.uint64(row), j])
                    total += gap * gap
                squared[q, c] = total


@kernel(inner=True, reassociate=True)
def _l2_rows(queries: Any, vectors: Any, rows: Any, squared: Any) -> None:
    """Squared distances in float64 of queries of float64 to rows."""
    use_wide_registers()
    for q in range(rows.shape[0]):
        for c in range(rows.shape[1]):
            _prefetch_ahead(vectors, rows, q, c)
            if rows[q, c] >= 0:
                row = np.uint64(rows[q, c])  # numba checks signed numbers for counting from the end
                total = 0.0
                for j in range(queries.shape[1]):
                    gap = queries[q, j] - np.float64(decode_float16(vectors[row, j]))
                    total += gap * gap
                squared[q, c] = total


@kernel(inner=True)
def estimate_rows(queries: Any, vectors: Any, rows: Any, squared: Any) -> None:
    """Squared distances in float32 of queries of float32 to rows."""
    use_wide_registers()
    width = np.uint64(queries.shape[1])
    rest = width - width % np.uint64(_FLOAT32_STRIP)
    for q in range(rows.shape[0]):
        for c in range(rows.shape[1]):
            _prefetch_ahead(vectors, rows, q, c)
            if rows[q, c] >= 0:
                row = np.int64(rows[q, c])
                total = _l2_float32(queries, q, vectors, row)
                for j in range(rest, width):
                    gap = queries[q, j] - np.float32(decode_float16(vectors[np.uint64(row), j]))
                    total += gap * gap
                squared[q, c] = total
