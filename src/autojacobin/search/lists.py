"""Inverted lists: codes are grouped by the centre nearest to their vectors, and a query scans a few of the groups.

*The distance.* There are two kinds. Codes of vectors are compared as without lists, and which list a code is in makes
no difference: :func:`weighted_list_queries`. Codes of residuals x − centre are compared as follows
(:func:`list_queries`). The distance of a query to a code s ∈ {−1, 1}^n_bits is

    constant − weights·s,

as for all decoded codes, but constant and weights depend on the list, as the query becomes the residual q − centre. The
weights of ``BinaryAutoencoder`` are linear in the vector, up to a term that is the same for all. So they are the sum of
weights that depend on the query alone, and of weights that depend on the list alone. The product of the latter with s
is one number for each code, its *offset*, which is computed when the lists are made and stored as a byte:

    constant of query and list + offset of the code − weights of the query · s

The tables by which codes are scanned (``kernels/lookup.py``) are then made once for each query instead of once for each
list that it probes. Weights of bits that are the same for all queries, such as those of levels, go to the offsets as a
whole, and these bits are not scanned.

*Whole numbers.* Each query rounds all its distances to multiples of one unit, so that they can be compared across
lists, and across segments that store their offsets on one :class:`OffsetGrid`.

*Layout.* Lists follow each other without gaps. A block of 64 codes may hold the end of one list and the beginning of
the next.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from autojacobin.codes import Codes
from autojacobin.core.parallel import run_tasks, usable_cores
from autojacobin.errors import DataError
from autojacobin.search.kernels.coarse_quantiser import group_rows
from autojacobin.search.kernels.list_scan import map_allowed, scan_lists, sort_found
from autojacobin.search.kernels.lookup import (
    CODES_PER_BLOCK,
    make_bit_tables,
    make_tables,
    read_blocks,
    sum_weights,
    write_blocks,
    write_weights,
)
from autojacobin.search.kernels.selection import merge_topk
from autojacobin.search.kernels.simd import empty_aligned
from autojacobin.search.queries import Queries

# What correctness needs
_MOST_CODES = 2**31 - 1  # positions are stored in 32 bits
_MOST_BITS = 2**16
_LEVELS = 255
_MISSING = 2**31 - 1  # distance where there is no code
_MOST_PLANES = 4  # of weights; four of them may add up to 127, the largest entry of a table

# What tunes the search
_QUERIES_PER_TASK, _PREPARED_PER_TASK = 64, 256
_FEWEST_CODES_PER_PART = 2**17  # of a query whose probes are divided among the cores


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


_ALL_CODES = AllowedCodes(np.empty(0, dtype=np.uint64), np.empty(0, dtype=np.int64))


@dataclass(frozen=True)
class ListQueries:
    """Queries, the lists that they probe, and their distances as tables of whole numbers.

    Attributes
    ----------
    probes : array of int32, shape (n_queries, n_probes)
        Numbers of the lists, nearest first, which is fastest. Those below 0 are left out.
    starts : array of int32, shape (n_queries, n_probes)
        What each list adds to the distances.
    tables : array of uint8, shape (n_queries, bytes, 2, 16)
        What each value of the lower and the upper four bits of a byte of a code adds.
    factors : array of int64, shape (n_queries,)
        An offset adds ``offset * factor // 256``.
    units, smallest : arrays of float64, shape (n_queries,), optional
        The real distance is ``smallest + units * distance``. If there are none, whole numbers are the distances.
    """

    probes: npt.NDArray[np.int32]
    starts: npt.NDArray[np.int32]
    tables: npt.NDArray[np.uint8]
    factors: npt.NDArray[np.int64]
    units: npt.NDArray[np.float64] | None
    smallest: npt.NDArray[np.float64] | None

    def __len__(self) -> int:
        return len(self.probes)

    def real(self, distances: npt.NDArray[np.int32]) -> npt.NDArray[Any]:
        """Convert integer distances to real ones, one row per query, and to infinity where there is no code."""
        if self.units is None or self.smallest is None:
            return distances
        real = (self.smallest[:, None] + self.units[:, None] * distances).astype(np.float32)
        real[distances == _MISSING] = np.inf
        return real


def list_queries(
    weights: npt.NDArray[Any], probes: npt.NDArray[np.int32], constants: npt.NDArray[Any], grid: OffsetGrid
) -> ListQueries:
    """Prepare queries.

    Parameters
    ----------
    weights : array of shape (n_queries, n_scanned)
        Weights of the first bits of a code, which depend on the query alone. The other bits are not scanned.
    probes : array of int32, shape (n_queries, n_probes)
        The lists to scan, as :meth:`autojacobin.search.centres.Centres.nearest` gives them.
    constants : array of shape (n_queries, n_probes)
        The constant of each query and list.
    grid : OffsetGrid
        The grid of the lists.
    """
    n, n_bits = weights.shape
    if not 1 <= n_bits <= _MOST_BITS:
        raise DataError(f"lists are scanned by 1 to {_MOST_BITS:,} bits of a code, got weights of {n_bits:,}")
    if probes.shape != constants.shape or len(probes) != n:
        raise DataError(
            f"probes and constants must have one shape, with a row for each of the {n} queries, got {probes.shape} and "
            f"{constants.shape}"
        )
    units, smallest = np.empty(n), np.empty(n)
    queries = ListQueries(
        np.ascontiguousarray(probes, dtype=np.int32),
        np.empty(probes.shape, dtype=np.int32),
        np.empty((n, -(-n_bits // 8), 2, 16), dtype=np.uint8),
        np.empty(n, dtype=np.int64),
        units,
        smallest,
    )
    floats, added = (np.ascontiguousarray(array, dtype=np.float32) for array in (weights, constants))

    def prepare(start: int) -> None:
        rows = slice(start, start + _PREPARED_PER_TASK)
        make_tables(
            floats[rows], added[rows], queries.probes[rows], grid.low, grid.step, queries.tables[rows],
            queries.factors[rows], queries.starts[rows], units[rows], smallest[rows],
        )  # fmt: skip

    _run(prepare, [(start,) for start in range(0, n, _PREPARED_PER_TASK)])
    return queries


def weighted_list_queries(queries: Queries, n_bits: int, probes: npt.NDArray[np.int32]) -> ListQueries:
    """Prepare queries for codes that are compared as without lists, such as those of vectors, in the calling thread.

    Whole distances are those of the exhaustive search, to the last bit, and so are the real ones.

    Parameters
    ----------
    queries : Queries
        Queries that are prepared for codes of ``n_bits`` bits. Weights may be up to 15.
    n_bits : int
        Bits of a code.
    probes : array of int32, shape (n_queries, n_probes)
        The lists to scan.
    """
    n, n_planes = len(queries), queries.planes.shape[1] if len(queries.planes) else 0
    if queries.levels is not None or n_planes > _MOST_PLANES or len(probes) != n:
        raise DataError(
            f"lists are scanned by weights of up to {2**_MOST_PLANES - 1} for each bit, with a row of probes for each "
            f"query, got queries of {n_planes} planes and {len(probes)} rows for {n}; use the distance 'asymmetric' or "
            "'hamming'"
        )
    tables = np.empty((n, -(-n_bits // 8), 2, 16), dtype=np.uint8)
    make_bit_tables(queries.words, queries.planes, tables)
    scales = queries.scales
    smallest = np.zeros(n) if scales is not None and queries.constants is None else queries.constants
    return ListQueries(
        np.ascontiguousarray(probes, dtype=np.int32),
        np.zeros(probes.shape, dtype=np.int32),
        tables,
        np.zeros(n, dtype=np.int64),
        scales,
        smallest,
    )


def query_weights(
    queries: npt.NDArray[np.float32], origin: npt.NDArray[Any], decoder: npt.NDArray[Any]
) -> npt.NDArray[np.float32]:
    """Weights of bits that depend on the query alone, 2 (q − origin)·C', for a few queries in the calling thread.

    A matrix product of a BLAS library would start threads of its own, and round one query otherwise than many.
    """
    weights = np.empty((len(queries), len(decoder)), dtype=np.float32)
    rows, matrix = (np.ascontiguousarray(array, dtype=np.float32) for array in (queries, decoder))
    write_weights(rows, origin.astype(np.float32, copy=False), matrix, weights)
    return weights


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
    """``n`` codes of ``n_bits`` bits in lists.

    Attributes
    ----------
    blocks : array of uint8, shape (blocks, bytes of a code, 64)
        The codes in the order of the lists, 64 in a block; the last block is filled up with zeros.
    offsets : array of uint8, shape (64 * blocks,)
        Offsets of the codes, as numbers of the grid.
    bounds : array of int64, shape (n_lists + 1,)
        List l is the codes from ``bounds[l]`` to ``bounds[l + 1]``.
    positions : array of int32, shape (n,)
        The row of each code in the segment, ascending in each list.
    n_bits : int
        Bits of a code.
    grid : OffsetGrid
        What the offsets stand for.
    """

    blocks: npt.NDArray[np.uint8]
    offsets: npt.NDArray[np.uint8]
    bounds: npt.NDArray[np.int64]
    positions: npt.NDArray[np.int32]
    n_bits: int
    grid: OffsetGrid

    @classmethod
    def build(
        cls,
        codes: Codes,
        labels: npt.NDArray[np.int32],
        n_lists: int,
        offsets: npt.NDArray[Any] | None = None,
        grid: OffsetGrid | None = None,
    ) -> Lists:
        """Group codes by their labels.

        Parameters
        ----------
        codes : Codes
            Codes in the order of their positions.
        labels : array of int, shape (n,)
            The list of each code.
        n_lists : int
            Number of lists.
        offsets : array of shape (n,), optional
            What :func:`code_offsets` gives; zero by default.
        grid : OffsetGrid, optional
            The grid to round offsets to. Those beyond its ends get its ends. By default it covers them all.
        """
        n = len(codes)
        if n > _MOST_CODES:
            raise DataError(f"a segment with lists holds at most {_MOST_CODES:,} codes, got {n:,}; use more segments")
        if labels.shape != (n,) or (n and not 0 <= labels.min() <= labels.max() < n_lists):
            raise DataError(f"labels must give a list from 0 to {n_lists - 1} for each of the {n} codes")
        bounds, positions = np.zeros(n_lists + 1, dtype=np.int64), np.empty(n, dtype=np.int32)
        group_rows(labels, bounds, positions)
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
        return cls(blocks, stored, bounds, positions, codes.n_bits, grid)

    @property
    def n(self) -> int:
        """Number of codes."""
        return len(self.positions)

    @property
    def n_lists(self) -> int:
        """Number of lists."""
        return len(self.bounds) - 1

    @cached_property
    def filled(self) -> npt.NDArray[np.bool_] | None:
        """Mask of the lists that hold a code; None if all do."""
        filled: npt.NDArray[np.bool_] = np.diff(self.bounds) > 0
        return None if filled.all() else filled

    def codes(self) -> Codes:
        """Read all codes, in the order of their positions."""
        packed = np.empty((self.n, self.blocks.shape[1]), dtype=np.uint8)
        read_blocks(self.blocks, self.positions, packed)
        return Codes(packed, self.n_bits)

    def allow(self, allowed: npt.NDArray[np.uint8]) -> AllowedCodes:
        """Prepare a bitmap of positions for searches: position p is bit ``p % 8`` of byte ``p // 8``.

        Reads the whole bitmap, so the result should be kept if the same codes are allowed in several searches. Its
        ``counts`` tell which lists are worth probing.
        """
        words = np.zeros(len(self.blocks), dtype=np.uint64)
        counts = np.zeros(self.n_lists, dtype=np.int64)
        map_allowed(self.positions, self.bounds, allowed, words, counts)
        return AllowedCodes(words, counts)

    def allow_positions(self, positions: npt.NDArray[np.int64]) -> AllowedCodes:
        """Prepare some positions for searches, in time that depends on their number and hardly on that of all codes."""
        slots, labels = self._places
        bits = np.zeros(CODES_PER_BLOCK * len(self.blocks), dtype=bool)
        bits[slots[positions]] = True
        counts = np.bincount(labels[positions], minlength=self.n_lists)
        return AllowedCodes(np.packbits(bits, bitorder="little").view(np.uint64), counts)

    @cached_property
    def _places(self) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        """The slot and the list of each position."""
        slots, labels = np.empty(self.n, dtype=np.int32), np.empty(self.n, dtype=np.int32)
        slots[self.positions] = np.arange(self.n, dtype=np.int32)
        labels[self.positions] = np.repeat(np.arange(self.n_lists, dtype=np.int32), np.diff(self.bounds))
        return slots, labels

    def labels(self, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
        """The lists of some positions."""
        return self._places[1][positions]

    def nearest(
        self, queries: ListQueries, k: int, allowed: AllowedCodes | None = None, *, ordered: bool = True
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
        """Find the ``k`` nearest codes of each query in the lists that it probes.

        Parameters
        ----------
        queries : ListQueries
            Prepared queries.
        k : int
            Neighbours of each query.
        allowed : AllowedCodes, optional
            The codes that count. By default all do.
        ordered : bool, default=True
            Whether to sort the codes by distance, equal distances by position. Which codes are found does not depend
            on it.

        Returns
        -------
        distances, positions : arrays of shape (n_queries, k)
            Distances as whole numbers. Where there are fewer than ``k`` codes, the last positions are -1 and the
            distances 2³¹ − 1.
        """
        if queries.tables.shape[1] > self.blocks.shape[1]:
            raise DataError(
                f"the queries have weights for {queries.tables.shape[1]} bytes of a code, but the codes have "
                f"{self.blocks.shape[1]}; prepare the queries with the hasher of the codes"
            )
        parts = self._parts_of_probes(queries)
        found = np.empty((parts, len(queries), k), dtype=np.int32)
        positions = np.empty((parts, len(queries), k), dtype=np.int64)

        store, bitmap = (self.blocks, self.offsets), tuple(allowed or _ALL_CODES)

        def search(part: int, start: int) -> None:
            rows = slice(start, start + _QUERIES_PER_TASK)
            probes, starts = queries.probes[rows], queries.starts[rows]
            if parts > 1:
                probes, starts = (np.ascontiguousarray(table[:, part::parts]) for table in (probes, starts))
            out = found[part, rows], positions[part, rows]
            scan_lists(
                store, self.bounds, self.positions, bitmap, queries.tables[rows], queries.factors[rows], probes, starts,
                k, *out,
            )  # fmt: skip
            if ordered and parts == 1:
                sort_found(*out)

        starts = range(0, len(queries), _QUERIES_PER_TASK)
        _run(search, [(part, start) for start in starts for part in range(parts)])
        return merge_topk(list(zip(found, positions, strict=True)), k)

    def _parts_of_probes(self, queries: ListQueries) -> int:
        """Into how many parts to divide the probes of each query: one, unless few queries scan many codes."""
        if not 0 < len(queries) <= _QUERIES_PER_TASK // 2:
            return 1
        n_probes = queries.probes.shape[1]
        codes = self.n * n_probes // self.n_lists * len(queries)  # about as many: to look at each list takes longer
        parts = min(codes // _FEWEST_CODES_PER_PART, n_probes)
        return min(parts, usable_cores()) if parts > 1 else 1


def _run(work: Callable[..., None], tasks: list[tuple[int, ...]]) -> None:
    """Run tasks on all cores, or at once if there is only one: threads would take as long as a search."""
    if len(tasks) == 1:
        work(*tasks[0])
    else:
        run_tasks(work, tasks)
