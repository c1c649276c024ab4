"""Distances of codes by counting bits.

Three functions compute the distances of one query to all codes of a tile, whose layout is described in ``tiles.py``.
They write several distances into each 64-bit word of ``sums``, in lanes of one or two bytes, and report whether any
distance may be below ``radius``. For that they compute (d | high) − radius in every lane, where ``high`` is the highest
bit of the lane: the bit stays set if d ≥ radius. One subtraction thus tests all distances of a word. If d has the high
bit itself, a distance may be reported as near although it is not, but no near one is missed.

A weighted distance is a sum of integer weights over the bits that differ. The weights of a query are stored as bit
planes: plane t marks the bits whose weight has 2^t in its binary form. A sum of weights is then one bit count for each
plane. The number of planes is a multiple of four; planes of zeros fill up the rest.

The functions for bytes, for shorts and for weights are chosen by the types of the arguments, so that a search waits for
the compilation of those that it needs and no others. ARM counts the bits of bytes, not of words. Functions of their own
add up these counts, two to four times as fast.

Whole arrays are passed, with the numbers of the tile and of the query. A slice of an array would cost two atomic
operations on its reference count, which is much compared with the work on a tile.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import overload

from autojacobin.core.compilation import intrinsic, kernel, popcount, use_wide_registers
from autojacobin.search.kernels.simd import (
    WORD,
    call,
    everywhere,
    generate_loop,
    load,
    machine_has,
    prefetch,
    shuffle,
)

PLANES = 4  # bit planes that are counted together

# A one in every lane of a word, and the highest bit of every lane.
_BYTES, _SHORTS = np.uint64(0x0101010101010101), np.uint64(0x0001000100010001)
_HIGH_BYTES, _HIGH_SHORTS = _BYTES << np.uint64(7), _SHORTS << np.uint64(15)
_ZERO, _ONE, _TWO, _THREE = np.uint64(0), np.uint64(1), np.uint64(2), np.uint64(3)
_ALL = ~np.uint64(0)
_TWO_WORDS = ir.VectorType(WORD, 2)
_BYTE_COUNTS, _SHORT_COUNTS = ir.VectorType(ir.IntType(8), 16), ir.VectorType(ir.IntType(16), 8)


@kernel
def write_tiles(rows: Any, tiles: Any, first: int) -> None:
    """Write codes, given as rows of words, into tiles from position ``first`` on."""
    lanes = tiles.shape[2]
    codes = lanes * tiles.shape[3]
    steps = 64 // lanes
    groups = codes // 64
    for row in range(rows.shape[0]):
        position = first + row
        tile = position // codes
        inside = position - tile * codes
        group = inside // 64
        bit = inside - 64 * group
        lane = bit // steps
        column = (bit - lane * steps) * groups + group
        for w in range(rows.shape[1]):
            tiles[tile, w, lane, column] = rows[row, w]


def tile_distances(words: Any, t: int, queries: Any, planes: Any, q: int, sums: Any, lanes: Any, radius: int) -> bool:
    """Write the distances of query ``q`` to the codes of tile ``t``; report whether any may be below ``radius``.

    ``sums`` and ``lanes`` are the same memory, as 64-bit words and as single distances. ``planes`` is None for the
    Hamming distance.
    """
    raise NotImplementedError("only kernels can call this function")


@overload(tile_distances)
def _choose_distances(
    words: Any, t: int, queries: Any, planes: Any, q: int, sums: Any, lanes: Any, radius: int  # noqa: ARG001
) -> Any:  # fmt: skip
    if not isinstance(planes, types.NoneType):
        return _weighted_shorts
    if machine_has("neon"):
        return _bytes_by_neon if lanes.dtype == types.uint8 else _shorts_by_neon
    return _hamming_bytes if lanes.dtype == types.uint8 else _hamming_shorts


def _hamming_bytes(words: Any, t: int, queries: Any, planes: Any, q: int, sums: Any, lanes: Any, radius: int) -> bool:  # noqa: ARG001
    """Hamming distances to codes of one or two words, eight distances in a word of ``sums``."""
    use_wide_registers()
    limit = np.uint64(radius) * _BYTES
    untouched = _HIGH_BYTES
    a, b = queries[q, 0], queries[q, -1]
    if words.shape[1] == 1:
        for i in range(sums.shape[0]):
            total = _ZERO
            for j in range(8):
                total += popcount(words[t, 0, j, i] ^ a) << np.uint64(8 * j)
            sums[i] = total
            untouched &= (total | _HIGH_BYTES) - limit
    else:
        for i in range(sums.shape[0]):
            total = _ZERO
            for j in range(8):
                total += (popcount(words[t, 0, j, i] ^ a) + popcount(words[t, 1, j, i] ^ b)) << np.uint64(8 * j)
            sums[i] = total
            untouched &= (total | _HIGH_BYTES) - limit
    return radius > 128 or untouched != _HIGH_BYTES


def _hamming_shorts(words: Any, t: int, queries: Any, planes: Any, q: int, sums: Any, lanes: Any, radius: int) -> bool:  # noqa: ARG001
    """Hamming distances to codes of three words or more, four distances in a word of ``sums``."""
    use_wide_registers()
    n_words = words.shape[1]
    whole = n_words - n_words % 4
    for w in range(0, whole, 4):
        a, b, c, d = queries[q, w], queries[q, w + 1], queries[q, w + 2], queries[q, w + 3]
        for i in range(sums.shape[0]):
            total = sums[i] if w else _ZERO
            for j in range(4):
                first = popcount(words[t, w, j, i] ^ a) + popcount(words[t, w + 1, j, i] ^ b)
                second = popcount(words[t, w + 2, j, i] ^ c) + popcount(words[t, w + 3, j, i] ^ d)
                total += (first + second) << np.uint64(16 * j)
            sums[i] = total
    for w in range(whole, n_words):
        a = queries[q, w]
        for i in range(sums.shape[0]):
            total = sums[i] if w else _ZERO
            for j in range(4):
                total += popcount(words[t, w, j, i] ^ a) << np.uint64(16 * j)
            sums[i] = total
    return _any_short_below(sums, radius)


def _weighted_shorts(words: Any, t: int, queries: Any, planes: Any, q: int, sums: Any, lanes: Any, radius: int) -> bool:  # noqa: ARG001
    """Weighted distances, four in a word of ``sums``."""
    use_wide_registers()
    half = words.shape[3]
    for i in range(sums.shape[0]):
        sums[i] = _ZERO
    for w in range(words.shape[1]):
        a = queries[q, w]
        for p in range(0, planes.shape[1], PLANES):
            shift = np.uint64(p)
            m0, m1, m2, m3 = planes[q, p, w], planes[q, p + 1, w], planes[q, p + 2, w], planes[q, p + 3, w]
            if words.shape[2] == 8:
                # The tile is laid out for distances of one byte, in eight lanes. Lanes 0 to 3 go to the first half of
                # ``sums``, lanes 4 to 7 to the second.
                for i in range(half):
                    sums[i] += _four_weights(words, t, w, 0, i, a, m0, m1, m2, m3) << shift
                    sums[half + i] += _four_weights(words, t, w, 4, i, a, m0, m1, m2, m3) << shift
            else:
                for i in range(half):
                    sums[i] += _four_weights(words, t, w, 0, i, a, m0, m1, m2, m3) << shift
    return _any_short_below(sums, radius)


@kernel(inline=True)
def _four_weights(words: Any, t: int, w: int, lane: int, i: int, a: Any, m0: Any, m1: Any, m2: Any, m3: Any) -> Any:
    total = _ZERO
    for j in range(4):
        total += _weight(words[t, w, lane + j, i] ^ a, m0, m1, m2, m3) << np.uint64(16 * j)
    return total


@kernel(inline=True)
def _weight(differing: Any, m0: Any, m1: Any, m2: Any, m3: Any) -> Any:
    return (
        popcount(differing & m0)
        + (popcount(differing & m1) << _ONE)
        + (popcount(differing & m2) << _TWO)
        + (popcount(differing & m3) << _THREE)
    )


@kernel(inner=True)
def _any_short_below(sums: Any, radius: int) -> bool:
    use_wide_registers()
    limit = np.uint64(radius) * _SHORTS
    untouched = _HIGH_SHORTS
    for i in range(sums.shape[0]):
        untouched &= (sums[i] | _HIGH_SHORTS) - limit
    return bool(untouched != _HIGH_SHORTS)


# Hamming distances on ARM


def _bytes_by_neon(words: Any, t: int, queries: Any, planes: Any, q: int, sums: Any, lanes: Any, radius: int) -> bool:  # noqa: ARG001
    """Hamming distances to codes of one or two words."""
    for i in range(0, sums.shape[0], 2):
        _write_two_sums(words, t, queries, q, sums, lanes, i)
    limit = np.uint64(radius) * _BYTES
    untouched = _HIGH_BYTES
    for i in range(sums.shape[0]):
        untouched &= (sums[i] | _HIGH_BYTES) - limit
    return radius > 128 or untouched != _HIGH_BYTES


def _shorts_by_neon(words: Any, t: int, queries: Any, planes: Any, q: int, sums: Any, lanes: Any, radius: int) -> bool:  # noqa: ARG001
    """Hamming distances to codes of three words or more."""
    for i in range(0, sums.shape[0], 2):
        _write_two_sums(words, t, queries, q, sums, lanes, i)
    return _any_short_below(sums, radius)


@intrinsic  # type: ignore[untyped-decorator]
def _write_two_sums(
    _typing_context: Any, words: Any, t: Any, queries: Any, q: Any, sums: Any, lanes: Any, i: Any
) -> Any:
    """Write words ``i`` and ``i`` + 1 of ``sums``: the distances of query ``q`` to eight or four codes each.

    The bits of each byte are counted. Adding neighbours, pair by pair, brings the counts of a word together, and those
    of all lanes into one register.
    """
    n_lanes = 8 if lanes.dtype == types.uint8 else 4
    kind, suffix = (_BYTE_COUNTS, "v16i8") if n_lanes == 8 else (_SHORT_COUNTS, "v8i16")

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        tiles, asked, out = (context.make_array(signature.args[n])(context, builder, arguments[n]) for n in (0, 2, 4))
        tile, number, column = (arguments[n] for n in (1, 3, 6))
        n_words, columns = builder.extract_value(tiles.shape, 1), builder.extract_value(tiles.shape, 3)
        lanes_per_tile = builder.mul(n_words, WORD(n_lanes))
        first_lane = builder.mul(tile, lanes_per_tile)
        following = builder.mul(builder.add(first_lane, lanes_per_tile), columns)
        following = builder.add(following, builder.mul(column, lanes_per_tile))
        query = builder.gep(asked.data, [builder.mul(number, n_words)])

        def count(w: Any) -> list[Any]:
            """Counts of word ``w``, for each lane. On the way, its share of the next tile is prefetched."""
            given = everywhere(builder, builder.load(builder.gep(query, [w])), _TWO_WORDS)
            lane = builder.mul(w, WORD(n_lanes))
            results = []
            for j in range(n_lanes):
                if j % 4 == 0:  # 16 bytes for each lane, and 64 in a cache line
                    ahead = builder.mul(builder.add(lane, WORD(j)), WORD(2))
                    prefetch(builder, builder.gep(tiles.data, [builder.add(following, ahead)]))
                row = builder.add(first_lane, builder.add(lane, WORD(j)))
                place = builder.add(builder.mul(row, columns), column)
                differing = builder.xor(load(builder, builder.gep(tiles.data, [place]), _TWO_WORDS), given)
                counts = call(builder, "llvm.ctpop.v16i8", _BYTE_COUNTS, builder.bitcast(differing, _BYTE_COUNTS))
                if n_lanes == 4:  # sums of neighbouring bytes, as shorts
                    counts = call(builder, "llvm.aarch64.neon.uaddlp.v8i16.v16i8", kind, counts)
                results.append(counts)
            return results

        def add_word(w: Any, totals: list[Any]) -> list[Any]:
            return [builder.add(total, counts) for total, counts in zip(totals, count(w), strict=True)]

        _, totals = generate_loop(builder, WORD(1), n_words, 1, count(WORD(0)), add_word)
        while len(totals) > 1:
            pairs = zip(totals[0::2], totals[1::2], strict=True)
            totals = [call(builder, f"llvm.aarch64.neon.addp.{suffix}", kind, *pair) for pair in pairs]
        # lane 0 of both words, lane 1 of both, and so on become all lanes of one word, then those of the other
        order = [*range(0, 2 * n_lanes, 2), *range(1, 2 * n_lanes, 2)]
        target = builder.bitcast(builder.gep(out.data, [column]), kind.as_pointer())
        builder.store(shuffle(builder, totals[0], order), target).align = 8
        return context.get_dummy_value()

    return types.void(words, t, queries, q, sums, lanes, i), generate


@kernel(inline=True)
def code_distance(words: Any, t: int, g: Any, bit: Any, queries: Any, planes: Any, q: int, lists: Any) -> Any:
    """Distance of code 64 g + ``bit`` of tile ``t`` to query ``q``.

    ``lists`` is a tuple with an entry for each plane, or with one entry for the Hamming distance. The compiler knows
    its length and leaves out what is not needed.
    """
    by_eights = words.shape[2] == 8  # or by fours; a division by a number unknown to the compiler would be slow
    lane = bit >> 3 if by_eights else bit >> 4
    step = bit & 7 if by_eights else bit & 15
    column = step * (words.shape[2] * words.shape[3] >> 6) + g
    distance = _word_distance(words[t, 0, lane, column] ^ queries[q, 0], planes, q, 0, lists)
    for w in range(1, words.shape[1]):
        distance += _word_distance(words[t, w, lane, column] ^ queries[q, w], planes, q, w, lists)
    return distance


@kernel(inline=True)
def _word_distance(differing: Any, planes: Any, q: int, w: int, lists: Any) -> Any:
    if len(lists) == 1:
        return np.int64(popcount(differing))
    total = _weight(differing, planes[q, 0, w], planes[q, 1, w], planes[q, 2, w], planes[q, 3, w])
    for p in range(PLANES, len(lists), PLANES):
        m0, m1, m2, m3 = planes[q, p, w], planes[q, p + 1, w], planes[q, p + 2, w], planes[q, p + 3, w]
        total += _weight(differing, m0, m1, m2, m3) << np.uint64(p)
    return np.int64(total)


def near_bitmap(sums: Any, lanes: Any, tile_lanes: int, radius: int, near: Any) -> None:
    """Write a bitmap of the codes of a tile in their order: 1 where the distance in ``sums`` may be below ``radius``.

    ``sums`` and ``lanes`` are those of :func:`tile_distances`, ``tile_lanes`` is the number of lanes that the tile is
    laid out for.
    """
    raise NotImplementedError("only kernels can call this function")


@overload(near_bitmap)
def _choose_bitmap(sums: Any, lanes: Any, tile_lanes: int, radius: int, near: Any) -> Any:  # noqa: ARG001
    return _near_bytes if lanes.dtype == types.uint8 else _near_shorts


def _near_bytes(sums: Any, lanes: Any, tile_lanes: int, radius: int, near: Any) -> None:  # noqa: ARG001
    use_wide_registers()
    groups = near.shape[0]
    limit = np.uint64(radius) * _BYTES
    unknown = _ALL if radius > 128 else _ZERO  # the high bits show nothing
    for g in range(groups):
        bits = unknown
        for s in range(8):
            bits |= (~((sums[s * groups + g] | _HIGH_BYTES) - limit) & _HIGH_BYTES) >> np.uint64(7 - s)
        near[g] = bits


def _near_shorts(sums: Any, lanes: Any, tile_lanes: int, radius: int, near: Any) -> None:  # noqa: ARG001
    use_wide_registers()
    groups = near.shape[0]
    limit = np.uint64(radius) * _SHORTS
    unknown = _ALL if radius > 32768 else _ZERO
    if tile_lanes == 4:
        for g in range(groups):
            bits = unknown
            for s in range(16):
                bits |= (~((sums[s * groups + g] | _HIGH_SHORTS) - limit) & _HIGH_SHORTS) >> np.uint64(15 - s)
            near[g] = bits
    else:  # the tile is laid out for distances of one byte: lanes 0 to 3 are in the first half, then 4 to 7
        for g in range(groups):
            low, top = unknown, unknown
            for s in range(8):
                low |= (~((sums[s * groups + g] | _HIGH_SHORTS) - limit) & _HIGH_SHORTS) >> np.uint64(15 - s)
                top |= (~((sums[(8 + s) * groups + g] | _HIGH_SHORTS) - limit) & _HIGH_SHORTS) >> np.uint64(15 - s)
            # bits 16 j + s of each half belong at 8 j + s
            near[g] = _every_other_byte(low) | (_every_other_byte(top) << np.uint64(32))


@kernel(inline=True)
def _every_other_byte(word: Any) -> Any:
    word = (word | (word >> np.uint64(8))) & np.uint64(0x0000FFFF0000FFFF)
    return (word | (word >> np.uint64(16))) & np.uint64(0x00000000FFFFFFFF)


@kernel
def row_distances(words: Any, query: Any, distances: Any) -> None:
    """Hamming distances of one query to codes that are given as rows of words."""
    for row in range(words.shape[0]):
        total = _ZERO
        for w in range(words.shape[1]):
            total += popcount(words[row, w] ^ query[w])
        distances[row] = total


@kernel
def table_sums(packed: Any, tables: Any, sums: Any) -> None:
    """For each packed code, add up the values that ``tables`` has for its bytes, in the order of the bytes."""
    for row in range(packed.shape[0]):
        total = 0.0
        for byte in range(packed.shape[1]):
            total += tables[byte, packed[row, byte]]
        sums[row] = total
