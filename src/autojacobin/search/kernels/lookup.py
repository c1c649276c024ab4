"""Distances by lookup tables: 64 codes at a time, for one query.

A table has an entry for each of the 16 values of four bits of a code. With two tables for each byte of a code, a
distance is a sum of table entries. CPUs look up 16 to 64 bytes by one instruction, in tables of 16 entries that stay in
a register. (F. André, A.-M. Kermarrec and N. Le Scouarnec, "Cache locality is not enough", VLDB 2015.)

A *block* is 64 codes, byte by byte: row b holds byte b of each code. Code i is in column 2 i for i < 32, and in column
2 (i − 32) + 1 otherwise. So the bytes of a row, seen as 16-bit words, hold code i in the lower and code i + 32 in the
upper half of word i, and the sums of 32 codes come out in their order.

Table entries are at most 127, so that two of them fit a byte. The sums are 16-bit words: one adds up whole words, which
is the sum of the lower halves plus 256 times the sum of the upper ones, and the other adds up the upper halves.

Each code has an *offset*, a 16-bit number, of which a query adds a multiple to its distance: the upper 16 bits of the
product with its *factor*.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from autojacobin.core.compilation import intrinsic, kernel, trailing_zeros, use_wide_registers
from autojacobin.search.kernels.simd import CACHE_LINE, INT32, WORD, generate_loop, load, machine_has

__all__ = ["CODES_PER_BLOCK", "LARGEST_ENTRY", "make_tables", "scan_lists", "write_blocks"]

CODES_PER_BLOCK = 64
LARGEST_ENTRY = 127
_ENTRIES = 16
_BYTES = ir.VectorType(ir.IntType(8), CODES_PER_BLOCK)
_HALF = ir.VectorType(ir.IntType(16), CODES_PER_BLOCK // 2)
_ALL = np.uint64(0xFFFFFFFFFFFFFFFF)
_UNBOUNDED = np.int64(2**62)
_LARGEST_SUM = np.int64(2**16 - 1)


@kernel
def write_blocks(packed: Any, order: Any, blocks: Any) -> None:
    """Write the rows ``order`` of packed codes to blocks, in this order; ``blocks`` holds zeros."""
    for i in range(order.shape[0]):
        column = i % CODES_PER_BLOCK
        column = 2 * column if column < CODES_PER_BLOCK // 2 else 2 * column - CODES_PER_BLOCK + 1
        for b in range(packed.shape[1]):
            blocks[i // CODES_PER_BLOCK, b, column] = packed[order[i], b]


@intrinsic  # type: ignore[untyped-decorator]
def _near_codes(
    typing_context: Any,  # noqa: ARG001
    blocks: Any, block: Any, tables: Any, q: Any, used: Any, offsets: Any, factor: Any, limit: Any, sums: Any,
) -> Any:  # fmt: skip
    """Write the distances of query ``q`` to the 64 codes of a block, and give a bitmap of those up to ``limit``.

    Only the first ``used`` bytes of the codes count.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        arrays = {i: context.make_array(signature.args[i])(context, builder, arguments[i]) for i in (0, 2, 5, 7 + 1)}
        block, q, used, factor, limit = (arguments[i] for i in (1, 3, 4, 6, 7))
        rows = builder.extract_value(arrays[0].shape, 1)
        codes = builder.gep(arrays[0].data, [builder.mul(builder.mul(block, rows), WORD(CODES_PER_BLOCK))])
        per_query = builder.mul(builder.extract_value(arrays[2].shape, 1), WORD(2 * _ENTRIES))
        entries = builder.gep(arrays[2].data, [builder.mul(q, per_query)])
        zero, fifteen = ir.Constant(_HALF, [0] * 32), ir.Constant(_BYTES, [15] * 64)
        four, eight = ir.Constant(_HALF, [4] * 32), ir.Constant(_HALF, [8] * 32)

        def add_byte(b: Any, totals: list[Any]) -> list[Any]:
            row = load(builder, builder.gep(codes, [builder.mul(b, WORD(CODES_PER_BLOCK))]), _BYTES, 1)
            table = builder.gep(entries, [builder.mul(b, WORD(2 * _ENTRIES))])
            low = builder.and_(row, fifteen)
            shifted = builder.bitcast(builder.lshr(builder.bitcast(row, _HALF), four), _BYTES)
            high = builder.and_(shifted, fifteen)
            both = builder.add(
                _look_up(builder, table, low), _look_up(builder, builder.gep(table, [WORD(_ENTRIES)]), high)
            )
            words = builder.bitcast(both, _HALF)
            return [builder.add(totals[0], words), builder.add(totals[1], builder.lshr(words, eight))]

        b, totals = WORD(0), [zero, zero]
        b, totals = generate_loop(builder, b, used, 2, totals, lambda i, sums: add_byte(builder.add(i, WORD(1)), add_byte(i, sums)))
        _, totals = generate_loop(builder, b, used, 1, totals, add_byte)
        halves = [builder.sub(totals[0], builder.shl(totals[1], eight)), totals[1]]

        narrow = [_splat(builder, builder.trunc(number, ir.IntType(16)), _HALF) for number in (factor, limit)]
        first = builder.mul(block, WORD(CODES_PER_BLOCK))
        marks = []
        for number, half in enumerate(halves):
            place = builder.add(first, WORD(32 * number))
            offset = load(builder, builder.gep(arrays[5].data, [place]), _HALF, 2)
            distances = builder.add(half, _upper_product(builder, offset, narrow[0]))
            out = builder.gep(arrays[8].data, [WORD(32 * number)])
            builder.store(distances, builder.bitcast(out, _HALF.as_pointer())).align = 2
            near = builder.icmp_unsigned("<=", distances, narrow[1])
            marks.append(builder.zext(builder.bitcast(near, INT32), WORD))
        return builder.or_(marks[0], builder.shl(marks[1], WORD(32)))

    return types.uint64(blocks, block, tables, q, used, offsets, factor, limit, sums), generate


def _splat(builder: Any, number: Any, kind: Any) -> Any:
    """A vector with the same number everywhere."""
    undefined = ir.Constant(kind, ir.Undefined)
    first = ir.Constant(ir.VectorType(INT32, kind.count), [0] * kind.count)
    return builder.shuffle_vector(builder.insert_element(undefined, number, INT32(0)), undefined, first)


def _upper_product(builder: Any, one: Any, other: Any) -> Any:
    """Upper halves of the products of 16-bit numbers; LLVM finds the instruction."""
    wide = ir.VectorType(INT32, _HALF.count)
    product = builder.mul(builder.zext(one, wide), builder.zext(other, wide))
    return builder.trunc(builder.lshr(product, ir.Constant(wide, [16] * _HALF.count)), _HALF)


_LOOK_UPS = (
    ("avx512bw", 64, "llvm.x86.avx512.pshuf.b.512"),
    ("avx2", 32, "llvm.x86.avx2.pshuf.b"),
    ("ssse3", 16, "llvm.x86.ssse3.pshuf.b.128"),
    ("neon", 16, "llvm.aarch64.neon.tbl1.v16i8"),
)


def _look_up(builder: Any, table: Any, indices: Any) -> Any:
    """Entries of a table of 16 bytes for 64 indices, by the widest instruction of the machine."""
    small = ir.VectorType(ir.IntType(8), _ENTRIES)
    entries = load(builder, table, small, 1)
    for feature, width, name in _LOOK_UPS:
        if machine_has(feature):
            kind = ir.VectorType(ir.IntType(8), width)
            wide_table = _shuffle(builder, entries, [i % _ENTRIES for i in range(width)])
            function = builder.module.declare_intrinsic(name, (), ir.FunctionType(kind, [kind, kind]))
            parts = [
                builder.call(function, [wide_table, _shuffle(builder, indices, list(range(start, start + width)))])
                for start in range(0, CODES_PER_BLOCK, width)
            ]
            while len(parts) > 1:
                parts = [_join(builder, *pair) for pair in zip(parts[0::2], parts[1::2], strict=True)]
            return parts[0]
    result = ir.Constant(_BYTES, ir.Undefined)
    for i in range(CODES_PER_BLOCK):
        index = builder.zext(builder.extract_element(indices, INT32(i)), WORD)
        result = builder.insert_element(result, builder.load(builder.gep(table, [index])), INT32(i))
    return result


def _shuffle(builder: Any, vector: Any, order: list[int]) -> Any:
    undefined = ir.Constant(vector.type, ir.Undefined)
    return builder.shuffle_vector(vector, undefined, ir.Constant(ir.VectorType(INT32, len(order)), order))


def _join(builder: Any, one: Any, other: Any) -> Any:
    count = 2 * one.type.count
    return builder.shuffle_vector(one, other, ir.Constant(ir.VectorType(INT32, count), list(range(count))))


@kernel
def make_tables(
    weights: Any, constants: Any, low: float, step: float, tables: Any, factors: Any, starts: Any, units: Any,
    smallest: Any,
) -> None:  # fmt: skip
    """Round the distances of queries to whole numbers of units; each query has its own unit.

    The real distance of query q to a code s of the list that it probes as its p-th is

        constants[q, p] + low + step · offset − weights[q]·s

    and in whole numbers starts[q, p] + (offset · factors[q] >> 16) + the entries of the tables, to be multiplied by
    units[q] and added to smallest[q].
    """
    n_bits, used = weights.shape[1], tables.shape[1]
    largest = min(LARGEST_ENTRY, 2**14 // used)
    sizes = np.zeros(8 * used, dtype=np.float32)
    for q in range(weights.shape[0]):
        total, widest = 0.0, np.float32(0)
        for b in range(n_bits):
            sizes[b] = np.float32(2) * abs(np.float32(weights[q, b]))
            total += sizes[b]
        for g in range(2 * used):
            widest = max(widest, sizes[4 * g] + sizes[4 * g + 1] + sizes[4 * g + 2] + sizes[4 * g + 3])
        nearest, farthest = np.inf, -np.inf
        for p in range(constants.shape[1]):
            nearest, farthest = min(nearest, constants[q, p]), max(farthest, constants[q, p])
        unit = max(
            np.float64(widest) / largest, step * 65535 / (65535 - 2 * largest * used), (farthest - nearest) / 2**30
        )
        if not unit > 0:
            unit = 1.0
        units[q] = unit
        smallest[q] = nearest + low - total / 2
        factors[q] = min(np.int64(65535), np.int64(65536 * step / unit))
        for p in range(constants.shape[1]):
            starts[q, p] = np.int32(np.rint((constants[q, p] - nearest) / unit))
        per_unit = np.float32(1 / unit)
        for b in range(n_bits):
            sizes[b] *= per_unit
        for g in range(2 * used):
            _write_table(weights, q, sizes, 4 * g, n_bits, tables[q, g >> 1, g & 1])


@kernel(inline=True)
def _write_table(weights: Any, q: int, sizes: Any, first: int, n_bits: int, table: Any) -> None:
    """Write the sums of sizes over the bits that differ from the signs of four weights, for the 16 values."""
    signs = 0
    for j in range(min(4, n_bits - first)):
        signs |= (1 if weights[q, first + j] >= 0 else 0) << j
    one, two, three, four = sizes[first], sizes[first + 1], sizes[first + 2], sizes[first + 3]
    for value in range(_ENTRIES):
        differs = value ^ signs
        total = (
            one * np.float32(differs & 1)
            + two * np.float32((differs >> 1) & 1)
            + three * np.float32((differs >> 2) & 1)
            + four * np.float32((differs >> 3) & 1)
        )
        table[value] = np.uint8(total + np.float32(0.5))


@kernel
def scan_lists(
    store: Any, allowed: Any, tables: Any, factors: Any, probes: Any, starts: Any, k: int, found: Any, slots: Any
) -> None:  # fmt: skip
    """Write the whole distances and slots of the ``k`` nearest codes of each query, in any order.

    ``store`` is the tuple (blocks, offsets, bounds, positions): list l holds the slots from bounds[l] to bounds[l + 1].
    ``allowed`` is a bitmap of slots, empty if all count, and the number of allowed codes in each list. Probes below 0
    are left out. Missing codes have slot -1.
    """
    use_wide_registers()
    blocks, offsets, bounds, positions = store
    bitmap, n_allowed = allowed
    used = tables.shape[1]
    trigger = k + max(k, 128)
    distances = np.empty(trigger + CODES_PER_BLOCK, dtype=np.int32)
    chosen = np.empty(trigger + CODES_PER_BLOCK, dtype=np.int64)
    sums = np.empty(CODES_PER_BLOCK, dtype=np.uint16)
    for q in range(probes.shape[0]):
        count, radius = 0, _UNBOUNDED
        for p in range(probes.shape[1]):
            number = np.int64(probes[q, p])
            if number < 0 or starts[q, p] > radius:
                continue
            first, last = bounds[number], bounds[number + 1]
            if first == last or (len(bitmap) > 0 and n_allowed[number] == 0):
                continue
            start = np.int64(starts[q, p])
            limit = min(radius - start, _LARGEST_SUM)
            for block in range(first >> 6, (last + 63) >> 6):
                near = _near_codes(blocks, block, tables, q, used, offsets, factors[q], limit, sums)
                place = block << 6
                if place < first:
                    near &= _ALL << np.uint64(first - place)
                if place + 64 > last:
                    near &= _ALL >> np.uint64(place + 64 - last)
                if len(bitmap) > 0:
                    near &= bitmap[block]
                while near:
                    i = np.int64(trailing_zeros(near))
                    near &= near - np.uint64(1)
                    distances[count] = np.int32(start + np.int64(sums[i]))
                    chosen[count] = place + i
                    count += 1
                if count >= trigger:
                    radius = np.int64(_keep_nearest(distances, chosen, count, k, positions))
                    count = k
                    limit = min(radius - start, _LARGEST_SUM)
                    if limit < 0:
                        break
        if count > k:
            _keep_nearest(distances, chosen, count, k, positions)
            count = k
        for i in range(count):
            found[q, i], slots[q, i] = distances[i], chosen[i]
        for i in range(count, k):
            found[q, i], slots[q, i] = np.int32(2**31 - 1), -1


@kernel
def _keep_nearest(distances: Any, slots: Any, count: int, k: int, positions: Any) -> int:
    """Move the ``k`` nearest of ``count`` codes to the front, and give the distance of the k-th.

    Of equal distances, the lower positions stay.
    """
    use_wide_registers()
    radius = _kth_smallest(distances, count, k)
    within, below = 0, 0
    for i in range(count):
        within += distances[i] <= radius
        below += distances[i] < radius
    last = np.int64(0)
    if within > k:
        ties, n_ties = np.empty(within - below, dtype=np.int32), 0
        for i in range(count):
            if distances[i] == radius:
                ties[n_ties] = positions[slots[i]]
                n_ties += 1
        last = np.int64(_kth_smallest(ties, n_ties, k - below))
    kept = 0
    for i in range(count):
        # written in any case and then counted or not: the CPU would mispredict half of the branches
        distance, slot = distances[i], slots[i]
        distances[kept], slots[kept] = distance, slot
        if distance == radius and within > k:
            kept += np.int64(positions[slot]) <= last
        else:
            kept += distance <= radius
    return radius


@kernel
def _kth_smallest(values: Any, count: int, k: int) -> Any:
    """The ``k``-th smallest of the first ``count`` values of int32: halve the range, and count by whole vectors."""
    use_wide_registers()
    low, high = values[0], values[0]
    for i in range(np.uint64(count)):
        low, high = min(low, values[i]), max(high, values[i])
    while low < high:
        middle = np.int32((np.int64(low) + np.int64(high)) >> 1)
        within = np.int32(0)
        for i in range(np.uint64(count)):
            within = np.int32(within + np.int32(values[i] <= middle))
        if within >= k:
            high = middle
        else:
            low = np.int32(middle + 1)
    return low
