"""A few queries against all codes of tiles, in the calling thread.

64 codes at a time are compared with a radius, and those that may be within it are measured one by one. Whenever the
memory for them is full, the k nearest stay and the radius shrinks; of equal distances, the lower positions stay. The
first radius is estimated from every 16th block of 64 codes, because the order of codes often has a meaning. A query
that finds fewer than k is searched for again without an estimate. A tile stays in the nearest cache for all queries.

*Weighted distances* are sums of table entries, as in ``lookup.py``. Here the entries are bytes that are rounded down,
and scaled so that the radius is 254. Their sums saturate at 255. So all codes within the radius have a sum below 255,
and few others do. Words of 64 codes are transposed in registers for the table lookups.

*Hamming distances.* Bits that differ are counted. ARM counts the bits of bytes, and sums of neighbours bring the counts
of a word together.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from autojacobin.core import simd
from autojacobin.core.compilation import intrinsic, kernel, popcount, trailing_zeros, use_wide_registers
from autojacobin.core.simd import VECTOR, WORD, WORDS, machine_has
from autojacobin.search.kernels.list_scan import keep_nearest_slots
from autojacobin.search.kernels.lookup import CODES_PER_BLOCK, LOOK_UPS, look_up_halves
from autojacobin.search.kernels.selection import kth_smallest

_BLOCKS_PER_SAMPLED = 16
_FEWEST_TO_SAMPLE = 2**13  # codes
_FEWEST_MORE = 128  # codes beyond k that are written down before the radius shrinks
_RADIUS = 254  # in the tables of bytes
_MOST_WORDS_BY_BYTES = 3  # of a code, whose distance fits a byte
MISSING = 2**16 - 1  # distance where there is no code
_BYTES, _SHORTS = ir.VectorType(ir.IntType(8), 16), ir.VectorType(ir.IntType(16), 8)
_UNBOUNDED = 2**31 - 1


@kernel
def scan_queries(
    words: Any, n: int, allowed: Any, queries: Any, planes: Any, asked: Any, k: int, found: Any, nearest: Any
) -> None:
    """Scan tiles for queries that are given as codes and planes of weights; see :func:`scan_tiles`."""
    sizes = np.empty(64 * words.shape[1], dtype=np.int32)
    tables = np.empty((queries.shape[0], 16 * words.shape[1], 16), dtype=np.uint16)
    for q in range(queries.shape[0]):
        write_sizes(queries, planes, q, sizes)
        write_query(sizes, tables, asked, q)
    scan_tiles(words, n, allowed, tables, asked, k, found, nearest)


@kernel(inner=True)
def write_sizes(queries: Any, planes: Any, q: int, sizes: Any) -> None:
    """Write what a set bit of a code adds to the distance of query ``q``; the opposite of what a clear bit adds."""
    for b in range(sizes.shape[0]):
        weight, shift = np.int64(0 if planes.shape[0] else 1), np.uint64(b & 63)
        for p in range(planes.shape[1]):
            weight += np.int64((planes[q, p, b >> 6] >> shift) & np.uint64(1)) << p
        sizes[b] = -weight if (queries[q, b >> 6] >> shift) & np.uint64(1) else weight


@kernel(inner=True)
def write_query(sizes: Any, tables: Any, asked: Any, q: int) -> None:
    """Write the tables of query ``q`` from what a set bit adds to its distances, or its code if bits are counted."""
    if asked.itemsize == 8:
        for w in range(asked.shape[2]):
            word = np.uint64(0)
            for b in range(64):
                word |= np.uint64(sizes[64 * w + b] < 0) << np.uint64(b)
            asked[q, 0, w] = word
    else:
        write_tables(sizes, tables, q)


@kernel(inner=True)
def write_tables(sizes: Any, tables: Any, q: int) -> None:
    """Write the tables of query ``q`` from what a set bit adds to its distances."""
    for g in range(tables.shape[1]):
        for value in range(16):
            total = 0
            for b in range(4):
                size = sizes[4 * g + b]
                total += max(size, 0) if value >> b & 1 else max(-size, 0)
            tables[q, g, value] = total


@kernel(inner=True)
def scan_tiles(
    words: Any, n: int, allowed: Any, tables: Any, asked: Any, k: int, found: Any, nearest: Any
) -> None:  # fmt: skip
    """Write whole distances and positions of the ``k`` nearest codes, in any order; positions are -1 where codes lack.

    ``words`` are tiles with ``n`` codes, and ``allowed`` is a bitmap of the positions that count; if it is empty, all
    do. ``tables`` has a table of uint16 for each query and each four bits of a code. ``asked`` is memory for such
    tables of bytes, or, for the Hamming distance, the codes of the queries, of shape (n_queries, 1, words).
    """
    n_queries, room = tables.shape[0], _memory_for(k)
    distances, slots = np.empty((n_queries, room + 64), dtype=np.int32), np.empty((n_queries, room), dtype=np.int64)
    counts, radii = np.empty(n_queries, dtype=np.int64), np.full(n_queries, _UNBOUNDED)
    share = k / _BLOCKS_PER_SAMPLED
    rank = int(share + 4 * math.sqrt(share) + 4)
    if n >= _FEWEST_TO_SAMPLE and n >= 4 * _BLOCKS_PER_SAMPLED * rank:
        every = (0, n_queries, _BLOCKS_PER_SAMPLED)
        _scan(words, n, allowed, tables, asked, every, rank, distances, slots, counts, radii)
        for q in range(n_queries):
            enough = counts[q] >= rank
            radii[q] = int(kth_smallest(distances[q], counts[q], rank)) if enough else _UNBOUNDED
            _fill_tables(tables, asked, q, radii[q])
    estimates = radii.copy()
    _scan(words, n, allowed, tables, asked, (0, n_queries, 1), k, distances, slots, counts, radii)
    for q in range(n_queries):
        if counts[q] < k and estimates[q] < _UNBOUNDED:
            radii[q] = _UNBOUNDED
            _scan(words, n, allowed, tables, asked, (q, q + 1, 1), k, distances, slots, counts, radii)
        if counts[q] > k:
            keep_nearest_slots(distances[q], slots[q], counts[q], k, None)
        for i in range(k):
            there = i < counts[q]
            found[q, i], nearest[q, i] = (distances[q, i], slots[q, i]) if there else (MISSING, -1)


@kernel(inline=True)
def _memory_for(k: int) -> int:
    """Codes that are written down before the radius shrinks, and a block more."""
    return k + max(k, _FEWEST_MORE) + CODES_PER_BLOCK


@kernel(inner=True)
def _scan(
    words: Any, n: int, allowed: Any, tables: Any, asked: Any, some: Any, k: int, distances: Any, slots: Any,
    counts: Any, radii: Any,
) -> None:  # fmt: skip
    """Write down the ``k`` nearest codes within the radius of each query, or a few more; the radius may shrink.

    ``some`` is the first query, the end of the queries, and a step: of how many blocks one is scanned.
    """
    use_wide_registers()
    codes, per_lane = words.shape[2] * words.shape[3], 64 // words.shape[2]
    in_lane, in_group = trailing_zeros(np.uint64(words.shape[3])), trailing_zeros(np.uint64(codes // 64))
    trigger, weighted, step = _memory_for(k) - CODES_PER_BLOCK, asked.itemsize == 1, CODES_PER_BLOCK * some[2]
    for q in range(some[0], some[1]):
        counts[q] = 0
    for t in range(words.shape[0]):
        for q in range(some[0], some[1]):
            count, radius = counts[q], radii[q]
            for first in range(-(t * codes) & (step - 1), codes, step):
                near = ~np.uint64(0)
                if radius < _UNBOUNDED:
                    near = _near(words, t, first, asked, q, radius)
                while near:
                    bit = np.int64(trailing_zeros(near))
                    near &= near - np.uint64(1)
                    # all are powers of two; a division by a number unknown to the compiler would be slow
                    place = np.uint64(first + (((bit & 7) << 3) | (bit >> 3) if weighted else bit))
                    lane = place >> in_lane
                    column = place - (lane << in_lane)
                    row = column >> in_group
                    group = np.int64(column - (row << in_group))
                    position = t * codes + 64 * group + per_lane * np.int64(lane) + np.int64(row)
                    if position < n and (len(allowed) == 0 or (allowed[position >> 3] >> (position & 7)) & 1):
                        distance = _distance(words, t, lane, column, tables, asked, q)
                        if distance <= radius:
                            distances[q, count], slots[q, count] = distance, position
                            count += 1
                if count >= trigger:
                    radius = int(keep_nearest_slots(distances[q], slots[q], count, k, None))
                    count = k
                    _fill_tables(tables, asked, q, radius)
            counts[q], radii[q] = count, radius


@kernel(inline=True)
def _distance(words: Any, t: int, lane: Any, column: Any, tables: Any, asked: Any, q: int) -> Any:
    """Whole distance of a code."""
    total = np.int64(0)
    for w in range(words.shape[1]):
        word = words[t, w, lane, column]
        if asked.itemsize == 8:
            total += np.int64(popcount(word ^ asked[q, 0, w]))
        else:
            for part in range(16):
                total += np.int64(tables[q, 16 * w + part, word & np.uint64(15)])
                word >>= np.uint64(4)
    return total


@kernel(inner=True)
def _fill_tables(tables: Any, asked: Any, q: int, radius: int) -> None:
    """Scale tables so that the radius is 254, and round down: no sum of entries gets larger by that."""
    if asked.itemsize == 8:
        return
    scale = np.float32(_RADIUS) / np.float32(radius) if radius > 0 else np.float32(_RADIUS + 1)
    for g in range(np.uint64(tables.shape[1])):
        for value in range(np.uint64(16)):
            asked[q, g, value] = np.uint8(min(np.float32(tables[q, g, value]) * scale, np.float32(_RADIUS + 1)))


@intrinsic  # type: ignore[untyped-decorator]
def _near(_typing_context: Any, words: Any, t: Any, first: Any, asked: Any, q: Any, radius: Any) -> Any:
    """Bitmap of the 64 words from ``first`` on whose codes may be within the radius: 1 for all that are.

    By tables of bytes, bit 8 i + j is word 8 j + i. By counting, they have the same order.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        tiles, data = (context.make_array(signature.args[i])(context, builder, arguments[i]) for i in (0, 3))
        _, t, first, _, q, radius = arguments
        n_words, lanes, columns = (builder.extract_value(tiles.shape, axis) for axis in (1, 2, 3))
        codes = builder.mul(lanes, columns)
        size = builder.mul(*(builder.extract_value(data.shape, axis) for axis in (1, 2)))
        query = builder.gep(data.data, [builder.mul(q, size)])

        def block(w: Any) -> Any:
            row = builder.mul(builder.add(builder.mul(t, n_words), w), codes)
            return builder.gep(tiles.data, [builder.add(row, first)])

        if asked.dtype == types.uint8:
            return _bitmap(builder, _near_by_tables(builder, block, n_words, query))
        if not machine_has("neon"):
            return _bitmap(builder, _near_by_counts(builder, block, n_words, query, radius))
        fits = builder.icmp_unsigned("<=", n_words, WORD(_MOST_WORDS_BY_BYTES))
        results = []
        with builder.if_else(fits) as branches:
            for kind, branch in zip((_BYTES, _SHORTS), branches, strict=True):
                with branch:
                    masks = _near_by_counted_bytes(builder, block, n_words, query, radius, kind)
                    results.append((_bitmap(builder, masks), builder.block))
        near = builder.phi(WORD)
        for result in results:
            near.add_incoming(*result)
        return near

    return types.uint64(words, t, first, asked, q, radius), generate


def _near_by_tables(builder: Any, block: Any, n_words: Any, tables: Any) -> list[Any]:
    """Masks of the codes whose sums of entries are below 255."""
    width = next((width for feature, width, _ in LOOK_UPS if machine_has(feature)), 16)  # bytes in a register
    bytes_, words = ir.VectorType(ir.IntType(8), width), ir.VectorType(WORD, width // 8)

    def add(one: Any, other: Any) -> Any:
        return simd.call(builder, f"llvm.uadd.sat.v{width}i8", bytes_, one, other)

    def add_word(start: int, w: Any, totals: list[Any]) -> list[Any]:
        source, totals = block(w), list(totals)
        rows = [simd.load(builder, builder.gep(source, [WORD(start + WORDS * i)]), words) for i in range(8)]
        for b, values in enumerate(_transposed(builder, [builder.bitcast(row, bytes_) for row in rows])):
            place = builder.add(builder.mul(w, WORD(256)), WORD(32 * b))
            halves = look_up_halves(builder, builder.gep(tables, [place]), values)
            totals = [add(total, half) for total, half in zip(totals, halves, strict=True)]
        return totals

    masks = []
    for start in range(0, WORDS, words.count):
        zeros = ir.Constant(bytes_, [0] * width)
        _, totals = simd.generate_loop(builder, WORD(0), n_words, 1, [zeros] * 2, partial(add_word, start))
        masks.append(builder.icmp_unsigned("!=", add(*totals), ir.Constant(bytes_, [255] * width)))
    return masks


def _near_by_counts(builder: Any, block: Any, n_words: Any, query: Any, radius: Any) -> list[Any]:
    """Masks of the codes that differ from the query in at most ``radius`` bits."""

    def count(w: Any) -> list[Any]:
        given, source = simd.everywhere(builder, builder.load(builder.gep(query, [w]))), block(w)
        pointers = [builder.gep(source, [WORD(i)]) for i in range(0, CODES_PER_BLOCK, WORDS)]
        differing = [builder.xor(simd.load(builder, pointer), given) for pointer in pointers]
        return [simd.call(builder, "llvm.ctpop.v8i64", VECTOR, words) for words in differing]

    def add_word(w: Any, totals: list[Any]) -> list[Any]:
        return [builder.add(*pair) for pair in zip(totals, count(w), strict=True)]

    _, totals = simd.generate_loop(builder, WORD(1), n_words, 1, count(WORD(0)), add_word)
    return [builder.icmp_unsigned("<=", total, simd.everywhere(builder, radius)) for total in totals]


def _near_by_counted_bytes(
    builder: Any, block: Any, n_words: Any, query: Any, radius: Any, kind: Any
) -> list[Any]:  # fmt: skip
    """The same on ARM, which counts the bits of bytes; sums of neighbours are added until there is one for each code.

    ``kind`` says whether the sums are bytes or shorts.
    """
    words, suffix = ir.VectorType(WORD, 2), "v16i8" if kind is _BYTES else "v8i16"
    per_turn = 8 * words.count  # as many sums as there are registers

    def count(start: int, w: Any) -> list[Any]:
        given, source = simd.everywhere(builder, builder.load(builder.gep(query, [w])), words), block(w)
        pointers = [builder.gep(source, [WORD(i)]) for i in range(start, start + per_turn, words.count)]
        differing = [builder.bitcast(builder.xor(simd.load(builder, one, words), given), _BYTES) for one in pointers]
        counts = [simd.call(builder, "llvm.ctpop.v16i8", _BYTES, some) for some in differing]
        if kind is _BYTES:
            return counts
        return [simd.call(builder, "llvm.aarch64.neon.uaddlp.v8i16.v16i8", _SHORTS, some) for some in counts]

    def add_word(start: int, w: Any, totals: list[Any]) -> list[Any]:
        return [builder.add(*pair) for pair in zip(totals, count(start, w), strict=True)]

    masks, limits = [], simd.everywhere(builder, builder.trunc(radius, kind.element), kind)
    for start in range(0, CODES_PER_BLOCK, per_turn):
        first = count(start, WORD(0))
        _, totals = simd.generate_loop(builder, WORD(1), n_words, 1, first, partial(add_word, start))
        while len(totals) * kind.count > per_turn:
            pairs = zip(totals[0::2], totals[1::2], strict=True)
            totals = [simd.call(builder, f"llvm.aarch64.neon.addp.{suffix}", kind, *pair) for pair in pairs]
        masks += [builder.icmp_unsigned("<=", total, limits) for total in totals]
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
        some = builder.icmp_unsigned("!=", simd.combine_lanes(builder, parts[0], builder.or_), WORD(0))
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
