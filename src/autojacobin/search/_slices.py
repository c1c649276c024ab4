"""Tiles turned on their side, for many queries at once.

A slice is one bit of 512 codes: row b of a chunk has bit b of each of them. The distances of all 512 codes to a query
are then sums of whole rows (``_adders.py``), and for the Hamming distance only the rows in which the query has a one
are needed, half of them as a rule:

    d(x, q) = |x| + |q| − 2 · (ones that x and q have in common)

Turning a tile costs as much as asking it for a dozen queries, so it is done for as many as there are and forgotten
again: what is kept, in memory and on disk, stays the tiles. Codes of more than 512 bits have tiles of fewer than 512
codes and are not sliced.

The rows of a chunk: one for each bit; one of zeros, which fills up lists of rows; then, for Hamming distances, the
planes of ~|x|, or, for weighted ones, the rows of the bits inverted, since a bit of a query counts where it agrees.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from autojacobin.core.compilation import kernel, trailing_zeros, use_wide_registers
from autojacobin.search._adders import add_up_rows
from autojacobin.search._distances import PLANES
from autojacobin.search._lines import empty_at_line
from autojacobin.search._registers import WORDS
from autojacobin.search._turning import turn_blocks
from autojacobin.search.tiles import Tiles, n_words

__all__ = ["CODES_PER_CHUNK", "SlicedQueries", "can_be_sliced", "set_seeds", "slice_chunk", "slice_tile"]

CODES_PER_CHUNK = 64 * WORDS
_LONGEST_WORDS = 8
_ROWS_AT_ONCE = 8


def can_be_sliced(base: Tiles) -> bool:
    """Tell whether a tile holds whole chunks of 512 codes."""
    return n_words(base.n_bits) <= _LONGEST_WORDS


@dataclass(frozen=True)
class SlicedQueries:
    """A block of queries as lists of rows, and room for the slices of a tile.

    ``rows`` names the rows that a query adds up, ``ends`` where its lists end (one list for Hamming distances, one for
    each plane of the weights), ``origins`` what a query's numbers start with apart from its radius, ``seeds`` the
    start itself, a word of zeros or ones for each of its bits. ``lists`` and ``width`` are tuples as long as there are
    lists a query and bits a number: the compiler knows the length of a tuple.
    """

    rows: npt.NDArray[np.uint16]
    ends: npt.NDArray[np.int64]
    origins: npt.NDArray[np.int64]
    seeds: npt.NDArray[np.uint64]
    lists: tuple[int, ...]
    width: tuple[int, ...]
    slices: npt.NDArray[np.uint64]
    every_row: npt.NDArray[np.uint16]

    @classmethod
    def over(cls, base: Tiles, queries: Any, planes: Any) -> SlicedQueries:
        """Prepare queries for tiles like those of ``base``; ``planes`` are empty for Hamming distances."""
        n_bits, n = 64 * queries.shape[1], len(queries)
        levels = PLANES if planes.size else 1
        # Room for the largest distance and a sign. It goes by whole words, since every width is compiled for itself.
        width = (n_bits * ((1 << levels) - 1)).bit_length() + 1
        rows = np.empty((n, levels * (n_bits + _ROWS_AT_ONCE)), dtype=np.uint16)
        ends = np.empty((n, levels), dtype=np.int64)
        if planes.size:
            _list_agreeing(queries, planes, rows, ends)
            weights = np.bitwise_count(planes).sum(axis=2, dtype=np.int64)
            origins = -1 - weights @ (1 << np.arange(PLANES))
            extra = n_bits
        else:
            _list_ones(queries, rows, ends)
            origins = -np.bitwise_count(queries).sum(axis=1, dtype=np.int64)
            extra = width
        chunks = base.codes_per_tile // CODES_PER_CHUNK
        return cls(
            rows,
            ends,
            origins,
            np.empty((n, width), dtype=np.uint64),
            (0,) * levels,
            (0,) * width,
            _room(chunks, n_bits, extra),
            WORDS * np.arange(n_bits, dtype=np.uint16)[None],
        )

    def room_for(self, chunks: int) -> npt.NDArray[np.uint64]:
        """Room for the slices of another number of chunks than a tile has."""
        n_bits = self.every_row.shape[1]
        return _room(chunks, n_bits, self.slices.shape[1] - n_bits - 1)


def _room(chunks: int, n_bits: int, extra: int) -> npt.NDArray[np.uint64]:
    slices = empty_at_line((chunks, n_bits + 1 + extra, WORDS), np.uint64)
    slices[:, n_bits] = 0
    return slices


@kernel
def _list_ones(queries: Any, rows: Any, ends: Any) -> None:
    n_bits = 64 * queries.shape[1]
    for q in range(queries.shape[0]):
        count = 0
        for b in range(n_bits):
            if (queries[q, b >> 6] >> np.uint64(b & 63)) & np.uint64(1):
                rows[q, count] = WORDS * b
                count += 1
        ends[q, 0] = _fill_up(rows, q, count, n_bits)


@kernel
def _list_agreeing(queries: Any, planes: Any, rows: Any, ends: Any) -> None:
    n_bits = 64 * queries.shape[1]
    for q in range(queries.shape[0]):
        count = 0
        for level in range(planes.shape[1]):
            for w in range(queries.shape[1]):
                bits = planes[q, level, w]
                while bits:
                    place = np.int64(trailing_zeros(bits))
                    bits &= bits - np.uint64(1)
                    one = (queries[q, w] >> np.uint64(place)) & np.uint64(1)
                    rows[q, count] = WORDS * (64 * w + place + (0 if one else n_bits + 1))
                    count += 1
            count = _fill_up(rows, q, count, n_bits)
            ends[q, level] = count


@kernel
def _fill_up(rows: Any, q: int, count: int, n_bits: int) -> int:
    while count % _ROWS_AT_ONCE:
        rows[q, count] = WORDS * n_bits
        count += 1
    return count


@kernel
def set_seeds(seeds: Any, q: int, number: int) -> None:
    """Let the numbers of query ``q`` start with ``number``, in two's complement."""
    for i in range(seeds.shape[1]):
        seeds[q, i] = np.uint64(-((number >> i) & 1))


@kernel
def slice_tile(words: Any, t: int, slices: Any, every_row: Any, lists: Any, width: Any) -> None:
    """Turn tile ``t`` chunk by chunk."""
    for c in range(slices.shape[0]):
        slice_chunk(words, t, c, slices, c, every_row, lists, width)


@kernel
def slice_chunk(words: Any, t: int, c: int, slices: Any, slot: int, every_row: Any, lists: Any, width: Any) -> None:
    """Turn chunk ``c`` of tile ``t``, and fill the rows that follow those of the bits."""
    use_wide_registers()
    n_bits = 64 * words.shape[1]
    for w in range(words.shape[1]):
        turn_blocks(words, t, c, w, slices, slot)
    if len(lists) > 1:
        for b in range(n_bits):
            for i in range(WORDS):
                slices[slot, n_bits + 1 + b, i] = ~slices[slot, b, i]
    else:
        every_end = np.full((1, 1), n_bits)
        sums = np.empty((len(width), WORDS), dtype=np.uint64)
        add_up_rows(slices, slot, every_row, every_end, 0, sums, width)
        for b in range(len(width)):
            for i in range(WORDS):
                slices[slot, n_bits + 1 + b, i] = sums[b, i]
