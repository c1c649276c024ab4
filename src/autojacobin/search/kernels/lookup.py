"""Distances by lookup tables: 64 codes at a time, for one query.

A table has an entry for each of the 16 values of four bits of a code, and a distance is a sum of entries of two tables
for each byte. CPUs look up 16 to 64 bytes by one instruction, in tables of 16 entries that stay in a register.
(F. André, A.-M. Kermarrec and N. Le Scouarnec, "Cache locality is not enough", VLDB 2015.)

A *block* is 64 codes, byte by byte: row b holds byte b of each code. Seen as 16-bit words, a row holds code i in the
lower and code i + 32 in the upper half of word i, so that the sums of 32 codes come out in their order.

Table entries are at most 127, so that two of them fit a byte. The sums are 16-bit words: one adds up whole words, which
is the sum of the lower halves plus 256 times the sum of the upper ones, and the other adds up the upper halves.

Each code has an *offset*, a byte. A query adds the product of the offset and its own *factor*, divided by 256.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from autojacobin.core import simd
from autojacobin.core.compilation import intrinsic, kernel, use_wide_registers
from autojacobin.core.simd import INT32, WORD, machine_has

CODES_PER_BLOCK = 64
_LARGEST_ENTRY = 127
_ENTRIES = 16
_BYTES = ir.VectorType(ir.IntType(8), CODES_PER_BLOCK)
_WORDS = ir.VectorType(ir.IntType(16), CODES_PER_BLOCK // 2)
_ZERO, _ONE, _TWO, _THREE = np.float32(0), np.uint64(1), np.uint64(2), np.uint64(3)


@kernel(inline=True)
def _column(slot: int) -> int:
    """Column of a code in its block."""
    number = slot % CODES_PER_BLOCK
    return 2 * number if number < CODES_PER_BLOCK // 2 else 2 * number - CODES_PER_BLOCK + 1


@kernel
def write_blocks(packed: Any, rows: Any, blocks: Any) -> None:
    """Write some rows of packed codes to blocks, in this order."""
    for slot in range(rows.shape[0]):
        for b in range(packed.shape[1]):
            blocks[slot // CODES_PER_BLOCK, b, _column(slot)] = packed[rows[slot], b]


@intrinsic  # type: ignore[untyped-decorator]
def measure_block(
    typing_context: Any,  # noqa: ARG001
    blocks: Any, offsets: Any, block: Any, valid: Any, tables: Any, q: Any, factor: Any, start: Any, limit: Any,
    sums: Any, row: Any, ahead: Any,
) -> Any:  # fmt: skip
    """Write ``start`` plus the distances of query ``q`` to the 64 codes of a block to a row of ``sums``.

    Sums that do not fit 16 bits, and those of codes that are not set in the bitmap ``valid``, are written as 65,535.
    Gives a bitmap of the valid codes whose sums are at most ``limit``. Prefetches block ``ahead``.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        blocks, offsets, tables, sums = (
            context.make_array(signature.args[i])(context, builder, arguments[i]) for i in (0, 1, 4, 9)
        )
        block, valid, q, factor, start, limit, row = (arguments[i] for i in (2, 3, 5, 6, 7, 8, 10))
        width, used = (builder.extract_value(shape, 1) for shape in (blocks.shape, tables.shape))
        codes, later = (
            builder.gep(blocks.data, [builder.mul(builder.mul(number, width), WORD(CODES_PER_BLOCK))])
            for number in (block, arguments[11])
        )
        entries = builder.gep(tables.data, [builder.mul(builder.mul(q, used), WORD(2 * _ENTRIES))])
        zero, eight = (_constant(_WORDS, number) for number in (0, 8))

        def add_byte(b: Any, totals: list[Any]) -> list[Any]:
            bytes_ = simd.load(builder, builder.gep(codes, [builder.mul(b, WORD(CODES_PER_BLOCK))]), _BYTES, 1)
            simd.prefetch(builder, builder.gep(later, [builder.mul(b, WORD(CODES_PER_BLOCK))]))
            table = builder.gep(entries, [builder.mul(b, WORD(2 * _ENTRIES))])
            words = builder.bitcast(builder.add(*look_up_halves(builder, table, bytes_)), _WORDS)
            return [builder.add(totals[0], words), builder.add(totals[1], builder.lshr(words, eight))]

        simd.prefetch(builder, builder.gep(offsets.data, [builder.mul(arguments[11], WORD(CODES_PER_BLOCK))]))
        _, (whole, upper) = simd.generate_loop(builder, WORD(0), used, 1, [zero, zero], add_byte)
        lower = builder.sub(whole, builder.shl(upper, eight))
        factors, starts, limits = (
            simd.everywhere(builder, builder.trunc(number, ir.IntType(16)), _WORDS) for number in (factor, start, limit)
        )
        near = WORD(0)
        for first, totals in ((0, lower), (32, upper)):
            place = builder.add(builder.mul(block, WORD(CODES_PER_BLOCK)), WORD(first))
            small = simd.load(builder, builder.gep(offsets.data, [place]), ir.VectorType(ir.IntType(8), 32), 1)
            scaled = _upper_product(builder, builder.shl(builder.zext(small, _WORDS), eight), factors)
            distances = simd.call(builder, "llvm.uadd.sat.v32i16", _WORDS, builder.add(totals, scaled), starts)
            bits = builder.trunc(builder.lshr(valid, WORD(first)), INT32)
            distances = builder.select(_as_mask(builder, bits), distances, _constant(_WORDS, 65535))
            out = builder.gep(sums.data, [builder.add(builder.mul(row, WORD(CODES_PER_BLOCK)), WORD(first))])
            builder.store(distances, builder.bitcast(out, _WORDS.as_pointer())).align = 2
            marks = builder.and_(builder.bitcast(builder.icmp_unsigned("<=", distances, limits), INT32), bits)
            near = builder.or_(near, builder.shl(builder.zext(marks, WORD), WORD(first)))
        return near

    return types.uint64(blocks, offsets, block, valid, tables, q, factor, start, limit, sums, row, ahead), generate


@intrinsic  # type: ignore[untyped-decorator]
def mark_row(typing_context: Any, sums: Any, row: Any, limit: Any) -> Any:  # noqa: ARG001
    """Bitmap of the 64 sums of a row that are at most ``limit``."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        table = context.make_array(signature.args[0])(context, builder, arguments[0])
        limits = simd.everywhere(builder, builder.trunc(arguments[2], ir.IntType(16)), _WORDS)
        near = WORD(0)
        for first in (0, 32):
            place = builder.add(builder.mul(arguments[1], WORD(CODES_PER_BLOCK)), WORD(first))
            values = simd.load(builder, builder.gep(table.data, [place]), _WORDS, 2)
            marks = builder.bitcast(builder.icmp_unsigned("<=", values, limits), INT32)
            near = builder.or_(near, builder.shl(builder.zext(marks, WORD), WORD(first)))
        return near

    return types.uint64(sums, row, limit), generate


@intrinsic  # type: ignore[untyped-decorator]
def count_sums(typing_context: Any, sums: Any, rows: Any, limit: Any) -> Any:  # noqa: ARG001
    """Count the sums of the first ``rows`` rows that are at most ``limit``. There may be 2^16 rows."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        table = context.make_array(signature.args[0])(context, builder, arguments[0])
        limits = simd.everywhere(builder, builder.trunc(arguments[2], ir.IntType(16)), _WORDS)
        end = builder.mul(arguments[1], WORD(CODES_PER_BLOCK))

        def add(place: Any, counts: list[Any]) -> list[Any]:
            results = []
            for first, count in zip((0, 32), counts, strict=True):
                values = simd.load(builder, builder.gep(table.data, [builder.add(place, WORD(first))]), _WORDS, 2)
                more = builder.add(count, _constant(_WORDS, 1))
                results.append(builder.select(builder.icmp_unsigned("<=", values, limits), more, count))
            return results

        _, counts = simd.generate_loop(builder, WORD(0), end, CODES_PER_BLOCK, [_constant(_WORDS, 0)] * 2, add)
        wide = ir.VectorType(INT32, 32)
        total = builder.add(*(builder.zext(count, wide) for count in counts))
        return builder.zext(simd.combine_lanes(builder, total, builder.add), WORD)

    return types.int64(sums, rows, limit), generate


def _as_mask(builder: Any, bits: Any) -> Any:
    """32 bits as a mask of 16-bit words. Without mask registers, LLVM would move one bit after another."""
    if machine_has("avx512bw"):
        return builder.bitcast(bits, ir.VectorType(ir.IntType(1), _WORDS.count))
    both = builder.bitcast(simd.everywhere(builder, bits, ir.VectorType(INT32, _WORDS.count // 2)), _WORDS)
    halves = simd.shuffle(builder, both, [i // 16 for i in range(_WORDS.count)])
    chosen = builder.and_(halves, ir.Constant(_WORDS, [1 << i % 16 for i in range(_WORDS.count)]))
    return builder.icmp_unsigned("!=", chosen, _constant(_WORDS, 0))


def _constant(kind: Any, number: int) -> Any:
    return ir.Constant(kind, [number] * kind.count)


def _upper_product(builder: Any, one: Any, other: Any) -> Any:
    """Upper halves of the products of 16-bit numbers."""
    if machine_has("avx512bw"):  # LLVM does not always find this instruction by itself
        return simd.call(builder, "llvm.x86.avx512.pmulhu.w.512", _WORDS, one, other)
    wide = ir.VectorType(INT32, _WORDS.count)
    product = builder.mul(builder.zext(one, wide), builder.zext(other, wide))
    return builder.trunc(builder.lshr(product, _constant(wide, 16)), _WORDS)


LOOK_UPS = (
    ("avx512bw", 64, "llvm.x86.avx512.pshuf.b.512"),
    ("avx2", 32, "llvm.x86.avx2.pshuf.b"),
    ("ssse3", 16, "llvm.x86.ssse3.pshuf.b.128"),
    ("neon", 16, "llvm.aarch64.neon.tbl1.v16i8"),
)


def look_up_halves(builder: Any, tables: Any, values: Any) -> tuple[Any, Any]:
    """Entries of two tables of 16 bytes, which follow each other, for the lower and the upper halves of bytes."""
    if machine_has("neon"):  # which shifts bytes
        upper = builder.lshr(values, _constant(values.type, 4))
    else:
        words = ir.VectorType(ir.IntType(16), values.type.count // 2)
        upper = builder.bitcast(builder.lshr(builder.bitcast(values, words), _constant(words, 4)), values.type)
    return _look_up(builder, tables, values), _look_up(builder, builder.gep(tables, [WORD(_ENTRIES)]), upper)


def _look_up(builder: Any, table: Any, values: Any) -> Any:
    """Entries of a table of 16 bytes for the lower four bits of values, by the best instruction of the machine."""
    entries, count = simd.load(builder, table, ir.VectorType(ir.IntType(8), _ENTRIES), 1), values.type.count
    if machine_has("avx512vbmi") and count == 64:  # looks at the lower six bits, and the table is repeated
        repeated = simd.shuffle(builder, entries, [i % _ENTRIES for i in range(count)])
        return simd.call(builder, "llvm.x86.avx512.permvar.qi.512", values.type, repeated, values)
    indices = builder.and_(values, _constant(values.type, _ENTRIES - 1))
    for feature, width, name in LOOK_UPS:
        if machine_has(feature):
            repeated = simd.shuffle(builder, entries, [i % _ENTRIES for i in range(width)])
            parts = [simd.shuffle(builder, indices, range(i, i + width)) for i in range(0, count, width)]
            return simd.join(builder, [simd.call(builder, name, part.type, repeated, part) for part in parts])
    result = ir.Constant(values.type, ir.Undefined)
    for i in range(count):
        index = builder.zext(builder.extract_element(indices, INT32(i)), WORD)
        result = builder.insert_element(result, builder.load(builder.gep(table, [index])), INT32(i))
    return result


@kernel
def sum_weights(packed: Any, labels: Any, weights: Any, sums: Any) -> None:
    """Write −weights[label]·s for the code s ∈ {−1, 1} of each row."""
    for row in range(packed.shape[0]):
        label, total = labels[row], 0.0
        for b in range(weights.shape[1]):
            one = (packed[row, b >> 3] >> (b & 7)) & 1
            total += -weights[label, b] if one else weights[label, b]
        sums[row] = total


@kernel(reassociate=True)
def write_exact_weights(queries: Any, origin: Any, decoder: Any, weights: Any) -> None:
    """Write 2 (q − origin)·c for each query q and each row c of the decoder, as floats."""
    use_wide_registers()
    width = np.uint64(queries.shape[1])
    shifted = np.empty(queries.shape[1], dtype=np.float32)
    for q in range(queries.shape[0]):
        for j in range(width):
            shifted[j] = np.float32(2) * (queries[q, j] - origin[j])
        for row in range(decoder.shape[0]):
            total = np.float32(0)
            for j in range(width):
                total += shifted[j] * decoder[row, j]
            weights[q, row] = total


@kernel(reassociate=True)
def make_tables(
    weights: Any, constants: Any, probes: Any, low: float, step: float, tables: Any, factors: Any, starts: Any,
    units: Any, smallest: Any,
) -> None:  # fmt: skip
    """Round the distances of queries to whole numbers of units; each query has its own unit.

    The real distance of query q to a code s of the list that it probes as its p-th is

        constants[q, p] + low + step · offset − weights[q]·s

    and in whole numbers starts[q, p] + (offset · factors[q] >> 8) + the entries of the tables, to be multiplied by
    units[q] and added to smallest[q].
    """
    n_bits, used = weights.shape[1], tables.shape[1]
    largest = min(_LARGEST_ENTRY, 2**14 // used)
    sizes = np.zeros(8 * used, dtype=np.float32)
    for q in range(weights.shape[0]):
        total, widest = 0.0, np.float32(0)
        for b in range(n_bits):
            sizes[b] = np.float32(-2) * np.float32(weights[q, b])  # what a set bit adds to the distance
            total += abs(sizes[b])
        for g in range(2 * used):
            width = abs(sizes[4 * g]) + abs(sizes[4 * g + 1]) + abs(sizes[4 * g + 2]) + abs(sizes[4 * g + 3])
            widest = max(widest, width)
        nearest, farthest = np.inf, -np.inf
        for p in range(constants.shape[1]):
            if probes[q, p] >= 0:
                nearest = min(nearest, np.float64(constants[q, p]))
                farthest = max(farthest, np.float64(constants[q, p]))
        if nearest > farthest:  # nothing is probed
            nearest = farthest = 0.0
        unit = max(
            np.float64(widest) / largest, step * 255 / (65535 - 2 * largest * used), (farthest - nearest) / 2**30
        )
        if not 0 < unit < np.inf:
            unit = 1.0
        units[q] = unit
        smallest[q] = nearest + low - total / 2
        factors[q] = np.int64(_between_zero_and(65535, 256 * step / unit))
        for p in range(constants.shape[1]):
            start = _between_zero_and(2**30, (constants[q, p] - nearest) / unit)
            starts[q, p] = np.int32(np.rint(start)) if probes[q, p] >= 0 else 0
        per_unit = np.float32(1 / unit)
        for b in range(n_bits):
            sizes[b] *= per_unit
        for g in range(2 * used):
            _write_table(sizes, np.uint64(4 * g), tables, np.uint64(q), np.uint64(g >> 1), np.uint64(g & 1))


@kernel(inline=True)
def _between_zero_and(most: int, value: float) -> Any:
    """The value within these bounds; 0 for NaN."""
    if value > 0:
        return value if value < most else np.float64(most)
    return 0.0


@kernel(inline=True)
def _write_table(sizes: Any, first: Any, tables: Any, q: Any, byte: Any, half: Any) -> None:
    """Write the sums of sizes over the bits that differ from the signs of four sizes, for the 16 values."""
    one, two, three, four = sizes[first], sizes[first + _ONE], sizes[first + _TWO], sizes[first + _THREE]
    # a bit whose size is negative adds nothing if it is set, and otherwise what it takes from the constant here
    constant = np.float32(0.5) - (min(one, _ZERO) + min(two, _ZERO) + min(three, _ZERO) + min(four, _ZERO))
    for value in range(np.uint64(_ENTRIES)):
        total = (
            (constant + one * np.float32(value & _ONE))
            + (two * np.float32((value >> _ONE) & _ONE) + three * np.float32((value >> _TWO) & _ONE))
            + four * np.float32((value >> _THREE) & _ONE)
        )
        tables[q, byte, half, value] = np.uint8(np.int32(_between_zero_and(_LARGEST_ENTRY, total)))
