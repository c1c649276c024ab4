"""Codes laid out for the kernels: tiles of columns of 64-bit words.

A tile takes 32 KB or less, so that it stays in the nearest cache while many queries pass over it: 2,048 codes of up to
128 bits, 1,024 of up to 256, and so on. A 64-bit word of distances has L lanes: 8 of one byte for codes of up to 128
bits, 4 of two bytes for longer ones. Lane j counts bits in column j of the tile, and a kernel that runs along the
columns counts the bits of many codes at once, shifts each count to its lane and adds the lanes up: the sum *is* L
distances. No narrowing, no shuffling.

Code p = 64 g + (64 / L) j + s of a tile stands at ``[w, j, s·G + g]``, with G the number of 64s in a tile. With this
order, one bit of each lane, shifted by s and put together over s, gives a 64-bit map of the codes 64 g … 64 g + 63 in
their own order: which of them are near (``_selection.py``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from autojacobin.codes import Codes
from autojacobin.core.compilation import kernel

__all__ = ["Tiles", "code_words", "codes_per_tile", "lanes_for", "n_words", "shape_of", "tiles_of"]

_MOST_CODES, _FEWEST_CODES = 2048, 128
_BYTES_PER_TILE = 2**15


def lanes_for(n_bits: int) -> int:
    """Distances that share a 64-bit word."""
    return 8 if n_bits <= 128 else 4


def codes_per_tile(n_bits: int) -> int:
    """Codes in a tile, a power of two."""
    codes = _MOST_CODES
    while codes > _FEWEST_CODES and 8 * n_words(n_bits) * codes > _BYTES_PER_TILE:
        codes //= 2
    return codes


def n_words(n_bits: int) -> int:
    """64-bit words that a code takes up."""
    return -(-n_bits // 64)


@dataclass(frozen=True)
class Tiles:
    """``n`` codes of ``n_bits`` bits as tiles, the last one filled up with zeros.

    ``words`` has the shape (tiles, words, lanes, codes a tile / lanes).
    """

    words: npt.NDArray[np.uint64]
    n: int
    n_bits: int

    @classmethod
    def empty(cls, n: int, n_bits: int) -> Tiles:
        """Tiles of zeros for ``n`` codes."""
        return cls(np.zeros(shape_of(n, n_bits), dtype=np.uint64), n, n_bits)

    @classmethod
    def from_codes(cls, codes: Codes) -> Tiles:
        """Lay out codes."""
        tiles = cls.empty(len(codes), codes.n_bits)
        _lay_out(code_words(codes), tiles.words, 0)
        return tiles

    @property
    def codes_per_tile(self) -> int:
        """Codes in a tile."""
        return codes_per_tile(self.n_bits)

    def put(self, codes: Codes, first: int) -> None:
        """Lay out codes from position ``first`` on."""
        _lay_out(code_words(codes), self.words, first)

    def take(self, positions: npt.NDArray[np.int64]) -> Codes:
        """Give the codes at some positions back."""
        tile, inside = np.divmod(positions, self.codes_per_tile)
        group, place = np.divmod(inside, 64)
        lane, step = np.divmod(place, 64 // lanes_for(self.n_bits))
        words = self.words[tile, :, lane, step * (self.codes_per_tile // 64) + group]
        packed = np.ascontiguousarray(words).view(np.uint8)[:, : -(-self.n_bits // 8)]
        return Codes(packed, self.n_bits)


def tiles_of(codes: Codes) -> Tiles:
    """Tiles of ``codes``, laid out at the first search and kept with them for the next."""
    if codes._tiles is None:
        codes._tiles = Tiles.from_codes(codes)
    tiles: Tiles = codes._tiles
    return tiles


def shape_of(n: int, n_bits: int) -> tuple[int, int, int, int]:
    """Shape of the tiles for ``n`` codes."""
    lanes, codes = lanes_for(n_bits), codes_per_tile(n_bits)
    return -(-n // codes), n_words(n_bits), lanes, codes // lanes


def code_words(codes: Codes) -> npt.NDArray[np.uint64]:
    """Codes as 64-bit words, shape (n, words); the bytes that fill up the last word are zero."""
    width = codes.packed.shape[1]
    if width % 8 == 0:
        return codes.packed.view(np.uint64)
    padded = np.zeros((len(codes), 8 * n_words(codes.n_bits)), dtype=np.uint8)
    padded[:, :width] = codes.packed
    return padded.view(np.uint64)


@kernel
def _lay_out(rows: Any, tiles: Any, first: int) -> None:
    lanes = tiles.shape[2]
    codes = lanes * tiles.shape[3]
    steps = 64 // lanes
    groups = codes // 64
    for row in range(rows.shape[0]):
        position = first + row
        tile = position // codes
        inside = position - tile * codes
        group = inside // 64
        place = inside - 64 * group
        lane = place // steps
        column = (place - lane * steps) * groups + group
        for w in range(rows.shape[1]):
            tiles[tile, w, lane, column] = rows[row, w]
