"""One query against all codes of tiles, in the calling thread.

64 codes at a time are compared with a radius, and those that may be within it are measured one by one. Whenever the
memory for them is full, the k nearest stay and the radius shrinks; of equal distances, the lower positions stay. Every
16th block of 64 codes comes first: the order of codes often has a meaning, and a radius from one end of it would suit
the other badly.

*Weighted distances.* A distance is a sum of table entries, two for each byte of a code, as in
``lookup.py``. Here the entries are bytes that are rounded down, and scaled so that the radius is 254. Their sums
saturate at 255. So a sum below 255 is what all codes within the radius have, and few others. Words of 64 codes are
transposed in registers for the table lookups.

*Hamming distances.* Bits that differ are counted.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from autojacobin.core.compilation import intrinsic, kernel, trailing_zeros, use_wide_registers
from autojacobin.search.kernels.list_scan import keep_nearest_slots
from autojacobin.search.kernels.lookup import LOOK_UPS, look_up_halves
from autojacobin.search.kernels.simd import (
    VECTOR,
    WORD,
    WORDS,
    call,
    everywhere,
    generate_loop,
    horizontal_sum,
    load,
    machine_has,
)

MOST_WORDS = 31  # of a code, whose bits a byte can count for each of its bytes
_CODES_PER_BLOCK = 64
_BLOCKS_PER_SAMPLED = 16
_FEWEST_MORE = 128  # codes beyond k that are written down before the radius shrinks
_RADIUS = 254  # in the tables of bytes
_SIXTEEN = ir.VectorType(ir.IntType(8), 16)
_UNBOUNDED = 2**31 - 1


@kernel(inner=True)
def scan_tiles(
    words: Any, n: int, allowed: Any, query: Any, asked: Any, k: int, found: Any, nearest: Any
) -> None:  # fmt: skip
    """Write whole distances and positions of the ``k`` nearest codes, in any order; positions are -1 where codes lack.

    ``words`` are tiles with ``n`` codes, and ``allowed`` is a bitmap of the positions that count; if it is empty, all
    do. ``query`` has a table of uint16 for each four bits of a code. ``asked`` is memory for such tables of bytes, or,
    for the Hamming distance, a row of words, the code of the query.
    """
    use_wide_registers()
    codes = words.shape[2] * words.shape[3]
    groups, per_lane = codes // 64, 64 // words.shape[2]
    trigger = k + max(k, _FEWEST_MORE)
    distances, slots = np.empty(trigger + 2 * 64, dtype=np.int32), np.empty(trigger + 64, dtype=np.int64)
    count, radius, weighted = 0, np.int64(_UNBOUNDED), asked.itemsize == 1
    for turn in range(2 * words.shape[0]):
        t = turn if turn < words.shape[0] else turn - words.shape[0]
        for first in range(0, codes, _CODES_PER_BLOCK):
            sampled = (t * codes + first) & (_CODES_PER_BLOCK * _BLOCKS_PER_SAMPLED - 1) == 0
            if sampled != (turn == t):
                continue
            near = ~np.uint64(0)
            if radius < _UNBOUNDED:
                near = _near(words, t, first, asked, radius)
            while near:
                bit = np.int64(trailing_zeros(near))
                near &= near - np.uint64(1)
                place = first + (((bit & 7) << 3) | (bit >> 3) if weighted else bit)
                lane = place // words.shape[3]
                column = place - lane * words.shape[3]
                step = column // groups
                position = t * codes + 64 * (column - step * groups) + per_lane * lane + step
                if position < n and (len(allowed) == 0 or (allowed[position >> 3] >> (position & 7)) & 1):
                    distance = _distance(words, t, lane, column, query)
                    if distance <= radius:
                        distances[count], slots[count] = distance, position
                        count += 1
            if count >= trigger:
                radius = keep_nearest_slots(distances, slots, count, k, None)
                count = k
                if weighted:
                    _fill_tables(query, radius, asked)
    if count > k:
        keep_nearest_slots(distances, slots, count, k, None)
        count = k
    for i in range(count):
        found[i], nearest[i] = distances[i], slots[i]
    for i in range(count, k):
        nearest[i] = -1


@kernel(inner=True)
def write_query(sizes: Any, tables: Any, asked: Any) -> None:
    """Write the tables of a query from what a set bit adds to its distances, and its code if bits are counted."""
    for g in range(tables.shape[0]):
        for value in range(16):
            total = 0
            for b in range(4):
                size = sizes[4 * g + b]
                total += max(size, 0) if value >> b & 1 else max(-size, 0)
            tables[g, value] = total
    if asked.itemsize == 8:
        for w in range(asked.shape[1]):
            word = np.uint64(0)
            for b in range(64):
                word |= np.uint64(sizes[64 * w + b] < 0) << np.uint64(b)
            asked[0, w] = word


@kernel(inline=True)
def _distance(words: Any, t: int, lane: int, column: int, query: Any) -> Any:
    """Whole distance of a code."""
    total = np.int32(0)
    for w in range(words.shape[1]):
        word = words[t, w, lane, column]
        for part in range(16):
            total = np.int32(total + query[16 * w + part, word & np.uint64(15)])
            word >>= np.uint64(4)
    return total


@kernel(inner=True)
def _fill_tables(query: Any, radius: int, tables: Any) -> None:
    """Scale tables so that the radius is 254, and round down: no sum of entries gets larger by that."""
    scale = np.float32(_RADIUS) / np.float32(radius) if radius > 0 else np.float32(_RADIUS + 1)
    for g in range(np.uint64(tables.shape[0])):
        for value in range(np.uint64(16)):
            tables[g, value] = np.uint8(min(np.float32(query[g, value]) * scale, np.float32(_RADIUS + 1)))


@intrinsic  # type: ignore[untyped-decorator]
def _near(_typing_context: Any, words: Any, t: Any, first: Any, asked: Any, radius: Any) -> Any:
    """Bitmap of the 64 words from ``first`` on whose codes may be within the radius: 1 for all that are.

    By tables of bytes, bit 8 i + j is word 8 j + i. By counting, they have the same order.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        tiles, data = (context.make_array(signature.args[i])(context, builder, arguments[i]) for i in (0, 3))
        _, t, first, _, radius = arguments
        n_words, lanes, columns = (builder.extract_value(tiles.shape, axis) for axis in (1, 2, 3))
        codes = builder.mul(lanes, columns)

        def block(w: Any) -> Any:
            row = builder.mul(builder.add(builder.mul(t, n_words), w), codes)
            return builder.gep(tiles.data, [builder.add(row, first)])

        if asked.dtype == types.uint8:
            return _bitmap(builder, _near_by_tables(builder, block, n_words, data.data))
        return _bitmap(builder, _near_by_counts(builder, block, n_words, data.data, radius))

    return types.uint64(words, t, first, asked, radius), generate


def _near_by_tables(builder: Any, block: Any, n_words: Any, tables: Any) -> list[Any]:
    """Masks of the codes whose sums of entries are below 255."""
    width = next((width for feature, width, _ in LOOK_UPS if machine_has(feature)), 16)  # bytes in a register
    bytes_, words = ir.VectorType(ir.IntType(8), width), ir.VectorType(WORD, width // 8)

    def add(one: Any, other: Any) -> Any:
        return call(builder, f"llvm.uadd.sat.v{width}i8", bytes_, one, other)

    def add_word(start: int, w: Any, totals: list[Any]) -> list[Any]:
        source, totals = block(w), list(totals)
        rows = [load(builder, builder.gep(source, [WORD(start + WORDS * i)]), words) for i in range(8)]
        for b, values in enumerate(_transposed(builder, [builder.bitcast(row, bytes_) for row in rows])):
            place = builder.add(builder.mul(w, WORD(256)), WORD(32 * b))
            halves = look_up_halves(builder, builder.gep(tables, [place]), values)
            totals = [add(total, half) for total, half in zip(totals, halves, strict=True)]
        return totals

    masks = []
    for start in range(0, WORDS, words.count):
        zeros = ir.Constant(bytes_, [0] * width)
        _, totals = generate_loop(builder, WORD(0), n_words, 1, [zeros] * 2, partial(add_word, start))
        masks.append(builder.icmp_unsigned("!=", add(*totals), ir.Constant(bytes_, [255] * width)))
    return masks


def _near_by_counts(builder: Any, block: Any, n_words: Any, query: Any, radius: Any) -> list[Any]:
    """Masks of the codes that differ from the query in at most ``radius`` bits."""
    by_bytes = machine_has("neon")  # which counts the bits of bytes
    kind = ir.VectorType(WORD, 2) if by_bytes else VECTOR
    counts, name = (_SIXTEEN, "llvm.ctpop.v16i8") if by_bytes else (VECTOR, "llvm.ctpop.v8i64")
    per_turn = 8 * kind.count  # as many sums as there are registers

    def count(start: int, w: Any) -> list[Any]:
        given, source = everywhere(builder, builder.load(builder.gep(query, [w])), kind), block(w)
        pointers = [builder.gep(source, [WORD(i)]) for i in range(start, start + per_turn, kind.count)]
        differing = [builder.xor(load(builder, pointer, kind), given) for pointer in pointers]
        return [call(builder, name, counts, builder.bitcast(words, counts)) for words in differing]

    def add_word(start: int, w: Any, totals: list[Any]) -> list[Any]:
        return [builder.add(*pair) for pair in zip(totals, count(start, w), strict=True)]

    masks = []
    for start in range(0, _CODES_PER_BLOCK, per_turn):
        first = count(start, WORD(0))
        _, totals = generate_loop(builder, WORD(1), n_words, 1, first, partial(add_word, start))
        limit = radius
        if by_bytes:  # sums of neighbours, until there is one for each word
            shorts = ir.VectorType(ir.IntType(16), 8)
            totals = [call(builder, "llvm.aarch64.neon.uaddlp.v8i16.v16i8", shorts, total) for total in totals]
            while len(totals) > 2:
                pairs = zip(totals[0::2], totals[1::2], strict=True)
                totals = [call(builder, "llvm.aarch64.neon.addp.v8i16", shorts, *pair) for pair in pairs]
            limit = builder.trunc(radius, shorts.element)
        masks += [builder.icmp_unsigned("<=", total, everywhere(builder, limit, total.type)) for total in totals]
    return masks


def _transposed(builder: Any, rows: list[Any]) -> list[Any]:
    """Transpose squares of 8 × 8 bytes: row i holds byte j of square s at 8 s + j, and the result has it in row j."""
    for size, distance in ((4, 4), (2, 2), (1, 1)):
        kind = ir.VectorType(ir.IntType(8 * size), rows[0].type.count // size)
        numbers = [builder.bitcast(row, kind) for row in rows]
        for i in range(8):
            if not i & distance:
                one, other = numbers[i], numbers[i + distance]
                for odd, target in ((0, i), (1, i + distance)):
                    order = [j + odd + k for j in range(0, kind.count, 2) for k in (0, kind.count)]
                    chosen = ir.Constant(ir.VectorType(ir.IntType(32), kind.count), order)
                    numbers[target] = builder.shuffle_vector(one, other, chosen)
        rows = [builder.bitcast(row, rows[0].type) for row in numbers]
    return rows


def _bitmap(builder: Any, masks: list[Any]) -> Any:
    """Masks of 64 codes as one word, which is most often zero."""
    before = builder.block
    some = ir.Constant(ir.IntType(1), 1)
    if not machine_has("avx512bw"):  # no instruction gives the bits of a mask
        bytes_ = ir.VectorType(ir.IntType(8), masks[0].type.count)
        words = ir.VectorType(WORD, bytes_.count // 8)
        parts = [builder.bitcast(builder.sext(mask, bytes_), words) for mask in masks]
        while len(parts) > 1:
            parts = [builder.or_(*pair) for pair in zip(parts[0::2], parts[1::2], strict=True)]
        some = builder.icmp_unsigned("!=", horizontal_sum(builder, parts[0], builder.or_), WORD(0))
    with builder.if_then(some):
        bits = WORD(0)
        for number, mask in enumerate(masks):
            part = builder.zext(builder.bitcast(mask, ir.IntType(mask.type.count)), WORD)
            bits = builder.or_(bits, builder.shl(part, WORD(number * mask.type.count)))
        inside = builder.block
    result = builder.phi(WORD)
    result.add_incoming(WORD(0), before)
    result.add_incoming(bits, inside)
    return result
