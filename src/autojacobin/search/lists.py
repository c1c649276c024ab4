"""Inverted lists: codes are grouped by the centre nearest to their vectors, and a query scans a few of the groups.

*The distance.* Codes of vectors are compared as without lists. Codes of residuals x − centre are compared as all
decoded codes are: the distance of a query to a code s ∈ {−1, 1}^n_bits is constant − weights·s. Both depend on the
list, as the query becomes the residual q − centre. The weights of ``BinaryAutoencoder`` are linear in the vector, so
they are the sum of weights of the query and of weights of the list. The product of the latter with s is one number for
each code, its *offset*, which is computed when the lists are made and stored as a byte:

    constant of query and list + offset of the code − weights of the query · s

So the tables by which codes are scanned (``kernels/lookup.py``) are made once for each query. Weights of bits that are
the same for all queries, such as those of levels, go to the offsets as a whole, and these bits are not scanned.

*Whole numbers.* Each query rounds all its distances to multiples of one unit, so that they can be compared across
lists, and across segments that store their offsets on one :class:`OffsetGrid`.

*Layout.* Lists follow each other without gaps. A block of 64 codes may hold the end of one list and the beginning of
the next.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from autojacobin.codes import Codes
from autojacobin.core.arrays import empty_aligned
from autojacobin.errors import DataError
from autojacobin.search.centres import group_rows
from autojacobin.search.kernels.list_scan import count_allowed, map_allowed
from autojacobin.search.kernels.lookup import CODES_PER_BLOCK, sum_weights, write_blocks

_MOST_CODES = 2**31 - 1  # positions are stored in 32 bits
_LEVELS = 255


class OffsetGrid(NamedTuple):
    """The numbers that a byte stands for as the offset of a code: low, low + step, …, low + 255 step."""

    low: float
    step: float

    @classmethod
    def of(cls, offsets: npt.NDArray[Any]) -> OffsetGrid:
        """A grid that covers some offsets."""
        if not len(offsets):
            return cls(0.0, 0.0)
        low, high = float(offsets.min()), float(offsets.max())
        return cls(low, (high - low) / _LEVELS)

    def rounded(self, offsets: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
        """The nearest numbers of the grid."""
        steps = (offsets - self.low) / self.step if self.step else np.zeros(len(offsets))
        return np.rint(np.clip(steps, 0, _LEVELS)).astype(np.uint8)


class AllowedCodes(NamedTuple):
    """The codes of lists that count in a search: a bitmap in the order of the lists, and how many each list has."""

    bitmap: npt.NDArray[np.uint64]
    counts: npt.NDArray[np.int64]


def code_offsets(
    codes: Codes, labels: npt.NDArray[np.int32], list_weights: npt.NDArray[Any]
) -> npt.NDArray[np.float32]:
    """Offsets of codes: −(weights of its list)·s for each code; ``list_weights`` has the shape (n_lists, n_bits)."""
    if list_weights.ndim != 2 or list_weights.shape[1] != codes.n_bits:
        raise DataError(
            f"list_weights must have a weight for each of the {codes.n_bits} bits, got shape {list_weights.shape}"
        )
    offsets = np.empty(len(codes), dtype=np.float32)
    sum_weights(codes.packed, labels, np.ascontiguousarray(list_weights, dtype=np.float32), offsets)
    return offsets


@dataclass(frozen=True)
class Lists:
    """Codes of ``n_bits`` bits in lists. With two copies, there are two codes of each vector, in different lists."""

    blocks: npt.NDArray[np.uint8]  # codes in the order of the lists, shape (blocks, bytes of a code, 64), then zeros
    offsets: npt.NDArray[np.uint8]  # of the codes, as numbers of the grid, shape (64 * blocks,)
    bounds: npt.NDArray[np.int64]  # list l is the codes from ``bounds[l]`` to ``bounds[l + 1]``
    positions: npt.NDArray[np.int32]  # the row of each code in the segment, ascending in each list
    n_bits: int
    grid: OffsetGrid  # what the offsets stand for
    copies: int = 1  # codes of each row

    @classmethod
    def build(
        cls,
        codes: Codes,
        labels: npt.NDArray[np.int32],
        n_lists: int,
        offsets: npt.NDArray[Any] | None = None,
        grid: OffsetGrid | None = None,
        copies: int = 1,
    ) -> Lists:
        """Group codes by their labels, the lists of the codes.

        Codes come in the order of their positions, the copies of each row one after another. ``offsets`` are what
        :func:`code_offsets` gives; zero by default. They are rounded to the ``grid``, which covers them all by default.
        Those beyond its ends get its ends.
        """
        n = len(codes)
        if n > _MOST_CODES:
            raise DataError(f"a segment with lists holds at most {_MOST_CODES:,} codes, got {n:,}; use more segments")
        if labels.shape != (n,) or (n and not 0 <= labels.min() <= labels.max() < n_lists):
            raise DataError(f"labels must give a list from 0 to {n_lists - 1} for each of the {n} codes")
        bounds, order = group_rows(labels, n_lists)
        positions = order.astype(np.int32)
        n_blocks = -(-n // CODES_PER_BLOCK)
        blocks = empty_aligned((n_blocks, codes.packed.shape[1], CODES_PER_BLOCK), np.uint8)
        blocks[-1:] = 0
        write_blocks(codes.packed, positions, blocks)
        stored = empty_aligned((n_blocks * CODES_PER_BLOCK,), np.uint8)
        stored[n:] = 0
        if offsets is None:
            grid, stored[:n] = OffsetGrid(0.0, 0.0), 0
        else:
            grid = grid or OffsetGrid.of(offsets)
            stored[:n] = grid.rounded(offsets)[positions]
        return cls(blocks, stored, bounds, positions // copies, codes.n_bits, grid, copies)

    @property
    def n(self) -> int:
        """Number of codes."""
        return len(self.positions)

    @property
    def n_lists(self) -> int:
        """Number of lists."""
        return len(self.bounds) - 1

    def allow(self, mask: npt.NDArray[np.bool_]) -> AllowedCodes:
        """Prepare a mask of rows for searches, in time that depends mostly on how many are allowed."""
        bitmap = np.zeros(-(-len(mask) // CODES_PER_BLOCK), dtype=np.uint64)
        bitmap.view(np.uint8)[: -(-len(mask) // 8)] = np.packbits(mask, bitorder="little")
        words = np.zeros(len(self.blocks), dtype=np.uint64)
        counts = np.empty(self.n_lists, dtype=np.int64)
        for slots in self._slots:
            map_allowed(bitmap, slots, words)
        count_allowed(words, self.bounds, counts)
        return AllowedCodes(words, counts)

    @cached_property
    def _slots(self) -> npt.NDArray[np.int32]:
        """The slots of all rows, shape (copies, rows), kept for the next filter."""
        return self._by_row(np.arange(self.n, dtype=np.int32))

    def labels(self) -> npt.NDArray[np.int32]:
        """The lists of all rows, shape (copies, rows), of which the first is lowest."""
        return self._by_row(np.repeat(np.arange(self.n_lists, dtype=np.int32), np.diff(self.bounds)))

    def _by_row(self, of_slots: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        """Ascending numbers of all slots as those of the rows, shape (copies, rows), of which the first is lowest."""
        found = np.empty((self.copies, self.n // self.copies), dtype=np.int32)
        found[0, self.positions[::-1]] = of_slots[::-1]  # of a position that comes twice, the last one counts
        found[-1, self.positions] = of_slots
        return found
