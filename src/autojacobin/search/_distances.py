"""The innermost loops: distances of one query to the codes of one tile (the layout is in ``tiles.py``).

Arrays are passed whole, with the numbers of the tile and of the query: a slice costs two atomic operations on its
reference count, which is much beside the work on a tile.

The first three functions fill ``sums`` with the distances, several to a 64-bit word, and tell whether any of them may
be below ``radius``. For that, a lane of (d | high) − radius keeps its high bit if d ≥ radius, so that one subtraction
looks at all distances of a word. A distance that has the high bit itself may lose it for nothing; no near one is
missed. The last one is for single codes that are known to be near.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from autojacobin.core.compilation import kernel, popcount, use_wide_registers

__all__ = ["BYTES", "PLANES", "SHORTS", "distance_of", "hamming_bytes", "hamming_shorts", "weighted_shorts"]

PLANES = 4
# A one in every lane of a word.
BYTES = np.uint64(0x0101010101010101)
SHORTS = np.uint64(0x0001000100010001)

_NONE = np.uint64(0)
_ONE = np.uint64(1)
_TWO = np.uint64(2)
_THREE = np.uint64(3)
_HIGH_BYTES = BYTES << np.uint64(7)
_HIGH_SHORTS = SHORTS << np.uint64(15)


@kernel
def hamming_bytes(words: Any, t: int, queries: Any, q: int, sums: Any, radius: int) -> bool:
    """Hamming distances to codes of one or two words, eight to a word of ``sums``."""
    use_wide_registers()
    limit = np.uint64(radius) * BYTES
    untouched = _HIGH_BYTES
    a, b = queries[q, 0], queries[q, -1]
    if words.shape[1] == 1:
        for i in range(sums.shape[0]):
            total = _NONE
            for j in range(8):
                total += popcount(words[t, 0, j, i] ^ a) << np.uint64(8 * j)
            sums[i] = total
            untouched &= (total | _HIGH_BYTES) - limit
    else:
        for i in range(sums.shape[0]):
            total = _NONE
            for j in range(8):
                total += (popcount(words[t, 0, j, i] ^ a) + popcount(words[t, 1, j, i] ^ b)) << np.uint64(8 * j)
            sums[i] = total
            untouched &= (total | _HIGH_BYTES) - limit
    return radius > 128 or untouched != _HIGH_BYTES


@kernel
def hamming_shorts(words: Any, t: int, queries: Any, q: int, sums: Any, radius: int) -> bool:
    """Hamming distances to codes of three words or more, four to a word of ``sums``."""
    use_wide_registers()
    n_words = words.shape[1]
    whole = n_words - n_words % 4
    for w in range(0, whole, 4):
        a, b, c, d = queries[q, w], queries[q, w + 1], queries[q, w + 2], queries[q, w + 3]
        for i in range(sums.shape[0]):
            total = sums[i] if w else _NONE
            for j in range(4):
                first = popcount(words[t, w, j, i] ^ a) + popcount(words[t, w + 1, j, i] ^ b)
                second = popcount(words[t, w + 2, j, i] ^ c) + popcount(words[t, w + 3, j, i] ^ d)
                total += (first + second) << np.uint64(16 * j)
            sums[i] = total
    for w in range(whole, n_words):
        a = queries[q, w]
        for i in range(sums.shape[0]):
            total = sums[i] if w else _NONE
            for j in range(4):
                total += popcount(words[t, w, j, i] ^ a) << np.uint64(16 * j)
            sums[i] = total
    return _near_shorts(sums, radius)


@kernel
def weighted_shorts(words: Any, t: int, queries: Any, planes: Any, q: int, sums: Any, radius: int) -> bool:
    """Sums of whole weights from 0 to 15 over the bits that differ, four to a word of ``sums``.

    Plane t marks the bits whose weight has 2^t in it, so that a sum of weights is a handful of counts.
    """
    use_wide_registers()
    sums[:] = _NONE
    for w in range(words.shape[1]):
        a = queries[q, w]
        m0, m1, m2, m3 = planes[q, 0, w], planes[q, 1, w], planes[q, 2, w], planes[q, 3, w]
        if words.shape[2] == 8:
            # sums of two bytes take two words where distances of one byte took one: lanes 0 to 3, then 4 to 7
            half = words.shape[3]
            for i in range(half):
                sums[i] += _weights(words, t, w, 0, i, a, m0, m1, m2, m3)
                sums[half + i] += _weights(words, t, w, 4, i, a, m0, m1, m2, m3)
        else:
            for i in range(words.shape[3]):
                sums[i] += _weights(words, t, w, 0, i, a, m0, m1, m2, m3)
    return _near_shorts(sums, radius)


@kernel(inline=True)
def _weights(words: Any, t: int, w: int, lane: int, i: int, a: Any, m0: Any, m1: Any, m2: Any, m3: Any) -> Any:
    total = _NONE
    for j in range(4):
        differing = words[t, w, lane + j, i] ^ a
        weight = (
            popcount(differing & m0)
            + (popcount(differing & m1) << _ONE)
            + (popcount(differing & m2) << _TWO)
            + (popcount(differing & m3) << _THREE)
        )
        total += weight << np.uint64(16 * j)
    return total


@kernel
def _near_shorts(sums: Any, radius: int) -> bool:
    use_wide_registers()
    limit = np.uint64(radius) * SHORTS
    untouched = _HIGH_SHORTS
    for i in range(sums.shape[0]):
        untouched &= (sums[i] | _HIGH_SHORTS) - limit
    return bool(untouched != _HIGH_SHORTS)


@kernel(inline=True)
def distance_of(words: Any, t: int, g: Any, place: Any, queries: Any, planes: Any, q: int) -> Any:
    """Distance of code 64 g + ``place`` of tile ``t`` to query ``q``."""
    by_eights = words.shape[2] == 8  # or by fours: dividing by a number that is not known takes long
    lane = place >> 3 if by_eights else place >> 4
    step = place & 7 if by_eights else place & 15
    column = step * (words.shape[2] * words.shape[3] >> 6) + g
    distance = _in_word(words, t, 0, lane, column, queries, planes, q)
    for w in range(1, words.shape[1]):
        distance += _in_word(words, t, w, lane, column, queries, planes, q)
    return distance


@kernel(inline=True)
def _in_word(words: Any, t: int, w: int, lane: int, column: int, queries: Any, planes: Any, q: int) -> Any:
    differing = words[t, w, lane, column] ^ queries[q, w]
    if not planes.shape[0]:
        return np.int64(popcount(differing))
    return np.int64(
        popcount(differing & planes[q, 0, w])
        + (popcount(differing & planes[q, 1, w]) << _ONE)
        + (popcount(differing & planes[q, 2, w]) << _TWO)
        + (popcount(differing & planes[q, 3, w]) << _THREE)
    )
