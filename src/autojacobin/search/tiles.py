"""Codes laid out for the kernels: tiles of columns of 64-bit words.

A tile holds 2,048 codes. Word w of code p = L·i + j of a tile stands at ``[w, j, i]``, where L is the number of
distances that share a 64-bit word: 8 of one byte for codes of up to 128 bits, 4 of two bytes for longer
ones. A kernel that runs along i counts the bits of many codes at once, shifts the count of lane j by
its place and adds the lanes up; the sum *is* eight (or four) distances in the order of the codes. No
narrowing, no shuffling. (Little-endian machines only, as NumPy's view of the sum as bytes.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from autojacobin.codes import Codes
from autojacobin.search._compile import kernel

__all__ = ["CODES_PER_TILE", "Tiles", "code_words", "lanes_for", "n_words", "shape_of", "tiles_of"]

CODES_PER_TILE = 2048


def lanes_for(n_bits: int) -> int:
    """Distances that share a 64-bit word."""
    return 8 if n_bits <= 128 else 4


def n_words(n_bits: int) -> int:
    """64-bit words that a code takes up."""
    return -(-n_bits // 64)


@dataclass(frozen=True)
class Tiles:
    """``n`` codes of ``n_bits`` bits as tiles, shape (tiles, words, lanes, 2048 / lanes); the last one is filled up."""

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

    def put(self, codes: Codes, first: int) -> None:
        """Lay out codes from position ``first`` on."""
        _lay_out(code_words(codes), self.words, first)

    def take(self, positions: npt.NDArray[np.int64]) -> Codes:
        """Give the codes at some positions back."""
        lanes = lanes_for(self.n_bits)
        tile, inside = np.divmod(positions, CODES_PER_TILE)
        words = self.words[tile, :, inside % lanes, inside // lanes]
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
    lanes = lanes_for(n_bits)
    return -(-n // CODES_PER_TILE), n_words(n_bits), lanes, CODES_PER_TILE // lanes


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
    for row in range(rows.shape[0]):
        position = first + row
        tile = position // CODES_PER_TILE
        inside = position - tile * CODES_PER_TILE
        lane, column = inside % lanes, inside // lanes
        for w in range(rows.shape[1]):
            tiles[tile, w, lane, column] = rows[row, w]
