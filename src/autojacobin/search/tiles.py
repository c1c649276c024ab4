"""Codes in the layout that the kernels read: tiles of columns of 64-bit words.

A tile takes at most 32 KB, so that it stays in the nearest cache while many queries pass over it: 2,048 codes of up to
128 bits, 1,024 of up to 256, and so on.

A tile has L lanes: 8 for codes of up to 128 bits, 4 for longer ones. Code p = 64 g + (64 / L) j + s of a tile is at
``[w, j, s·G + g]``, with G the number of groups of 64 codes in a tile. So the eight words from one place on belong to
the same place of eight groups, and squares of 64 × 64 bits can be transposed side by side
(``native/codes/bitslice.hpp``).
The layout is part of the file format of an index.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from autojacobin._native import kernels
from autojacobin.codes import Codes
from autojacobin.core.arrays import namespace
from autojacobin.core.parallel import run_tasks
from autojacobin.search.gpu import DeviceCodes
from autojacobin.search.queries import Queries
from autojacobin.search.scan import ALL_ALLOWED, topk

_MOST_CODES, _FEWEST_CODES = 2048, 128
_BYTES_PER_TILE = 2**15


def lanes_for(n_bits: int) -> int:
    """Lanes of a tile."""
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


def shape_of(n: int, n_bits: int) -> tuple[int, int, int, int]:
    """Shape of the tiles for ``n`` codes."""
    lanes, codes = lanes_for(n_bits), codes_per_tile(n_bits)
    return -(-n // codes), n_words(n_bits), lanes, codes // lanes


@dataclass(frozen=True)
class Tiles:
    """``n`` codes of ``n_bits`` bits as tiles; the last tile is filled up with zeros.

    ``words`` has the shape (tiles, words, lanes, codes in a tile / lanes).
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
        """Tiles of ``codes``."""
        tiles = cls.empty(len(codes), codes.n_bits)
        tiles.put(codes, 0)
        return tiles

    @property
    def codes_per_tile(self) -> int:
        """Codes in a tile."""
        return codes_per_tile(self.n_bits)

    def put(self, codes: Codes, first: int) -> None:
        """Write codes from position ``first`` on."""
        kernels.write_tiles(code_words(codes), self.words, first)

    def take(self, positions: npt.NDArray[np.int64]) -> Codes:
        """Read the codes at some positions."""
        tile, inside = np.divmod(positions, self.codes_per_tile)
        group, bit = np.divmod(inside, 64)
        lane, step = np.divmod(bit, 64 // lanes_for(self.n_bits))
        words = self.words[tile, :, lane, step * (self.codes_per_tile // 64) + group]
        packed = np.ascontiguousarray(words).view(np.uint8)[:, : -(-self.n_bits // 8)]
        return Codes(packed, self.n_bits)

    def nearest(
        self, queries: Queries, k: int, allowed: npt.NDArray[np.uint8] | None = None, *, in_order: bool = True
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
        """Find the ``k`` nearest codes of each query, or all allowed ones if they are fewer.

        ``allowed`` is a bitmap of the positions that count: position p is bit ``p % 8`` of byte ``p // 8``. By default
        all do. Gives distances as whole numbers and positions, both of shape (n_queries, k), in ascending order; equal
        distances in order of position. Unless ``in_order``, they may come in any order.
        """
        bitmap = ALL_ALLOWED if allowed is None else allowed
        if queries.levels is not None:
            return self._nearest_by_levels(queries.words, queries.levels.table, k, bitmap)
        return topk(self.words, self.n, queries.words, queries.planes, queries.n_levels, k, bitmap, in_order)

    def _nearest_by_levels(self, queries: Any, table: Any, k: int, allowed: Any) -> tuple[Any, Any]:
        n_allowed = int(np.unpackbits(allowed, count=self.n, bitorder="little").sum()) if allowed.size else self.n
        found = min(k, n_allowed)
        levels, positions = np.empty((len(queries), found), np.int32), np.empty((len(queries), found), np.int64)

        def search(q: int) -> None:
            levels[q], positions[q] = kernels.nearest_by_levels(self.words, self.n, queries[q], table, allowed, found)

        if found:
            run_tasks(search, [(q,) for q in range(len(queries))])
        return levels, positions


def tiles_of(codes: Codes) -> Any:
    """Tiles of ``codes``, or ``DeviceCodes`` if they are on a GPU: made at the first search and kept with the codes."""
    if codes._tiles is None:
        codes._tiles = Tiles.from_codes(codes) if namespace(codes.packed) is np else DeviceCodes(codes)
    return codes._tiles


def code_words(codes: Codes) -> npt.NDArray[np.uint64]:
    """Codes as 64-bit words, shape (n, words); the last word is filled up with zeros."""
    width = codes.packed.shape[1]
    if width % 8 == 0:
        return codes.packed.view(np.uint64)
    padded = np.zeros((len(codes), 8 * n_words(codes.n_bits)), dtype=np.uint8)
    padded[:, :width] = codes.packed
    return padded.view(np.uint64)
