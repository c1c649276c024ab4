"""The innermost loops: distances of one query to the codes of one tile (the layout is in ``tiles.py``)."""

from __future__ import annotations

from typing import Any

import numpy as np

from autojacobin.search._compile import kernel, popcount, use_wide_registers

__all__ = ["PLANES", "hamming_bytes", "hamming_shorts", "weighted_shorts"]

PLANES = 4

_NONE = np.uint64(0)
_ONE = np.uint64(1)
_TWO = np.uint64(2)
_THREE = np.uint64(3)


@kernel
def hamming_bytes(tile: Any, query: Any, sums: Any) -> None:
    """Hamming distances, eight to a word of ``sums``, two words of the codes at a time."""
    use_wide_registers()
    words = tile.shape[0]
    if words == 1:
        for i in range(sums.shape[0]):
            sums[i] = _one_word_bytes(tile, 0, query[0], i)
        return
    a, b = query[0], query[1]
    for i in range(sums.shape[0]):
        sums[i] = _two_words_bytes(tile, 0, a, b, i)
    for w in range(2, words - 1, 2):
        a, b = query[w], query[w + 1]
        for i in range(sums.shape[0]):
            sums[i] += _two_words_bytes(tile, w, a, b, i)
    if words % 2:
        a = query[words - 1]
        for i in range(sums.shape[0]):
            sums[i] += _one_word_bytes(tile, words - 1, a, i)


@kernel
def _one_word_bytes(tile: Any, w: int, a: Any, i: int) -> Any:
    total = _NONE
    for j in range(8):
        total += popcount(tile[w, j, i] ^ a) << np.uint64(8 * j)
    return total


@kernel
def _two_words_bytes(tile: Any, w: int, a: Any, b: Any, i: int) -> Any:
    total = _NONE
    for j in range(8):
        total += (popcount(tile[w, j, i] ^ a) + popcount(tile[w + 1, j, i] ^ b)) << np.uint64(8 * j)
    return total


@kernel
def hamming_shorts(tile: Any, query: Any, sums: Any) -> None:
    """Hamming distances, four to a word of ``sums``, two words of the codes at a time."""
    use_wide_registers()
    words = tile.shape[0]
    if words == 1:
        for i in range(sums.shape[0]):
            sums[i] = _one_word_shorts(tile, 0, query[0], i)
        return
    a, b = query[0], query[1]
    for i in range(sums.shape[0]):
        sums[i] = _two_words_shorts(tile, 0, a, b, i)
    for w in range(2, words - 1, 2):
        a, b = query[w], query[w + 1]
        for i in range(sums.shape[0]):
            sums[i] += _two_words_shorts(tile, w, a, b, i)
    if words % 2:
        a = query[words - 1]
        for i in range(sums.shape[0]):
            sums[i] += _one_word_shorts(tile, words - 1, a, i)


@kernel
def _one_word_shorts(tile: Any, w: int, a: Any, i: int) -> Any:
    total = _NONE
    for j in range(4):
        total += popcount(tile[w, j, i] ^ a) << np.uint64(16 * j)
    return total


@kernel
def _two_words_shorts(tile: Any, w: int, a: Any, b: Any, i: int) -> Any:
    total = _NONE
    for j in range(4):
        total += (popcount(tile[w, j, i] ^ a) + popcount(tile[w + 1, j, i] ^ b)) << np.uint64(16 * j)
    return total


@kernel
def weighted_shorts(tile: Any, query: Any, planes: Any, sums: Any) -> None:
    """Sums of whole weights from 0 to 15 over the bits that differ, four to a word of ``sums``.

    Plane t marks the bits whose weight has 2^t in it, so that a sum of weights is a handful of counts.
    """
    use_wide_registers()
    sums[:] = _NONE
    eight_lanes = tile.shape[1] == 8
    for w in range(tile.shape[0]):
        a, m0, m1, m2, m3 = query[w], planes[0, w], planes[1, w], planes[2, w], planes[3, w]
        if eight_lanes:
            for i in range(tile.shape[2]):
                sums[2 * i] += _weights(tile, w, 0, i, a, m0, m1, m2, m3)
                sums[2 * i + 1] += _weights(tile, w, 4, i, a, m0, m1, m2, m3)
        else:
            for i in range(tile.shape[2]):
                sums[i] += _weights(tile, w, 0, i, a, m0, m1, m2, m3)


@kernel
def _weights(tile: Any, w: int, lane: int, i: int, a: Any, m0: Any, m1: Any, m2: Any, m3: Any) -> Any:
    total = _NONE
    for j in range(4):
        differing = tile[w, lane + j, i] ^ a
        weight = (
            popcount(differing & m0)
            + (popcount(differing & m1) << _ONE)
            + (popcount(differing & m2) << _TWO)
            + (popcount(differing & m3) << _THREE)
        )
        total += weight << np.uint64(16 * j)
    return total
