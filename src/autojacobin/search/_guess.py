"""Within which distance the k nearest codes of each query most likely lie, from a sample of the codes.

The distances of a few chunks to a query are left in planes, one bit of each of them a plane (``_adders.py``), and the
smallest but so many is read off bit by bit from the highest: count the codes that have the bit, keep those that do or
those that do not. That takes as long whatever is looked for, and no distance is ever written out.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from autojacobin.core.compilation import kernel, popcount, use_wide_registers
from autojacobin.search._adders import write_margins
from autojacobin.search._lines import empty_at_line
from autojacobin.search._registers import WORDS
from autojacobin.search._slices import CODES_PER_CHUNK, SlicedQueries, set_seeds, slice_chunk
from autojacobin.search.tiles import Tiles

__all__ = ["guessed_radii"]

_CHUNKS, _FEWEST_CHUNKS, _MOST_CHUNKS = 16, 4, 256
_DEVIATIONS = 3  # by which the sample may have more than its share of the k nearest
_A_FEW_MORE = 4


def guessed_radii(
    sliced: SlicedQueries, base: Tiles, alive: npt.NDArray[np.uint64], k: int, n_levels: int, most: int
) -> npt.NDArray[np.int64] | None:
    """Radius of each query that leaves about ``most`` codes near, or nothing where the base is too small to tell.

    ``alive`` has a bit for each code of the tiles that counts.
    """
    whole = base.n // CODES_PER_CHUNK
    chunks = min(_CHUNKS, whole // 4)
    if chunks < _FEWEST_CHUNKS:
        return None
    # a small sample of a large base would leave too many near
    while 2 * chunks <= min(whole // 4, _MOST_CHUNKS) and _rank(k, chunks, base.n) * whole > most * chunks:
        chunks *= 2
    rank = _rank(k, chunks, base.n)
    if rank > chunks * CODES_PER_CHUNK // 4:
        return None
    # spread over the whole, since the order of a base often means something
    sample = np.arange(chunks) * whole // chunks
    mask = alive.reshape(-1, WORDS)[sample].ravel()
    margins = empty_at_line((len(sliced.width), len(mask)), np.uint64)
    radii = np.empty(len(sliced.rows), dtype=np.int64)
    _radii_of_sample(
        base.words, sample, mask, rank, n_levels, sliced.rows, sliced.ends, sliced.origins, sliced.seeds,
        sliced.room_for(chunks), sliced.every_row, sliced.lists, sliced.width, margins, radii,
    )  # fmt: skip
    return radii if radii.max() < n_levels else None


def _rank(k: int, chunks: int, n: int) -> int:
    """How many codes of a sample of chunks to have within the radius, so that k of all are."""
    share = k * chunks * CODES_PER_CHUNK / n
    return int(share + _DEVIATIONS * share**0.5 + _A_FEW_MORE)


@kernel
def _radii_of_sample(
    words: Any, sample: Any, alive: Any, rank: int, n_levels: int, rows: Any, ends: Any, origins: Any, seeds: Any,
    slices: Any, every_row: Any, lists: Any, width: Any, margins: Any, radii: Any,
) -> None:  # fmt: skip
    use_wide_registers()
    chunks_per_tile = words.shape[2] * words.shape[3] // CODES_PER_CHUNK
    for slot in range(sample.shape[0]):
        t, c = divmod(sample[slot], chunks_per_tile)
        slice_chunk(words, t, c, slices, slot, every_row, lists, width)
    chosen = np.empty_like(alive)
    for q in range(radii.shape[0]):
        set_seeds(seeds, q, n_levels + origins[q])
        for c in range(slices.shape[0]):
            write_margins(slices, c, rows, ends, q, seeds, margins, lists, width)
        radii[q] = n_levels - _largest(margins, alive, rank, chosen)


@kernel
def _largest(margins: Any, alive: Any, rank: int, chosen: Any) -> Any:
    """The largest but ``rank`` - 1 of the numbers whose bits are the rows of ``margins``; none is negative."""
    use_wide_registers()
    chosen[:] = alive
    number, left = np.int64(0), np.int64(rank)
    for plane in range(margins.shape[0] - 2, -1, -1):
        count = np.uint64(0)
        for i in range(chosen.shape[0]):
            count += popcount(chosen[i] & margins[plane, i])
        enough = np.int64(count) >= left
        flip = np.uint64(0) if enough else ~np.uint64(0)
        for i in range(chosen.shape[0]):
            chosen[i] &= margins[plane, i] ^ flip
        number = 2 * number + (1 if enough else 0)
        left -= np.int64(0 if enough else count)
    return number
