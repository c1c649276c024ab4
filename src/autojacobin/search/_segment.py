"""A segment: some codes with their ids, and the vectors if they are kept, in memory or memory-mapped.

Codes stand in the order of their ids, so that the order of positions, by which the kernels break ties, is the order of
ids. Vectors stand in the order in which they came, for they pass through in a stream; where the two orders differ, a
list of row numbers leads from one to the other. A segment never changes but for the bitmap of its dead positions, and
that makes a new ``Segment``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from autojacobin._parallel import run_tasks, usable_cores
from autojacobin.codes import Codes
from autojacobin.search._manifest import SegmentRecord
from autojacobin.search.storage import ArrayFile, Store, Stored, damaged, open_array
from autojacobin.search.tiles import Tiles, n_words, shape_of

__all__ = ["ROWS_PER_BLOCK", "Part", "Segment", "most_rows", "open_segment", "write_segments"]

ROWS_PER_BLOCK = 2**16  # a whole number of tiles
_MOST_ROWS = 2**22
_MOST_CODE_BYTES = 2**28
NONE_DEAD = np.empty(0, dtype=np.uint8)

Ids = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Part:
    """Some rows on their way into segments: ids in any order, codes, and vectors unless they are not kept."""

    ids: Ids
    codes: Codes
    vectors: Any


@dataclass(frozen=True)
class Segment:
    """``tiles.n`` codes in ascending order of id. Either ``first_id`` or ``id_list`` says which ids these are."""

    tiles: Tiles
    first_id: int | None
    id_list: Any = None
    rows: Any = None
    vectors: Any = None
    dead: npt.NDArray[np.uint8] = field(default_factory=lambda: NONE_DEAD)
    n_dead: int = 0
    files: dict[str, ArrayFile] = field(default_factory=dict)

    @property
    def n_live(self) -> int:
        """Number of codes that are not dead."""
        return self.tiles.n - self.n_dead

    @property
    def record(self) -> SegmentRecord:
        """What the manifest says of this segment."""
        return SegmentRecord(self.tiles.n, self.n_dead, self.first_id, self.files)

    def ids_at(self, positions: Any) -> Ids:
        """Ids of the codes at some positions."""
        found: Ids = positions + self.first_id if self.first_id is not None else self.id_list[positions]
        return found

    def live_positions(self) -> Ids:
        """Positions that are not dead, ascending."""
        if not self.n_dead:
            return np.arange(self.tiles.n, dtype=np.int64)
        return np.flatnonzero(np.unpackbits(self.dead, count=self.tiles.n, bitorder="little") == 0)

    def find(self, ids: Ids) -> tuple[npt.NDArray[np.int64], Ids]:
        """Which of ``ids`` live here, as places in ``ids``, and at which positions."""
        if self.first_id is not None:
            positions = ids - self.first_id
            here = (positions >= 0) & (positions < self.tiles.n)
        else:
            listed = self.id_list
            positions = np.searchsorted(listed, ids)
            here = listed[np.minimum(positions, self.tiles.n - 1)] == ids
        places = np.flatnonzero(here)
        positions = positions[places].astype(np.int64)
        if self.n_dead:
            live = (self.dead[positions >> 3] >> (positions & 7)) & 1 == 0
            places, positions = places[live], positions[live]
        return places, positions

    def vectors_at(self, positions: Ids) -> npt.NDArray[Any]:
        """Vectors of the codes at some positions."""
        rows = positions if self.rows is None else self.rows[positions]
        found: npt.NDArray[Any] = self.vectors[rows]
        return found

    def without(self, positions: Ids, store: Store) -> Segment:
        """Mark positions, alive so far, as dead."""
        if not len(positions):
            return self
        bitmap = self.dead.copy() if self.n_dead else np.zeros(-(-self.tiles.n // 8), dtype=np.uint8)
        np.bitwise_or.at(bitmap, positions >> 3, (1 << (positions & 7)).astype(np.uint8))
        writer = store.start("dead", np.uint8)
        writer.append(bitmap)
        dead, file = writer.finish()
        files = self.files if file is None else self.files | {"dead": file}
        return replace(self, dead=dead, n_dead=self.n_dead + len(positions), files=files)

    def copied_to(self, store: Store) -> Segment:
        """Write the same segment somewhere else, block by block."""
        arrays: dict[str, Any] = {"codes": self.tiles.words, "ids": self.id_list, "rows": self.rows}
        arrays |= {"vectors": self.vectors, "dead": self.dead if self.n_dead else None}
        stored = {kind: _copied(kind, array, store) for kind, array in arrays.items() if array is not None}
        return _assembled(self.tiles.n, self.tiles.n_bits, self.first_id, self.n_dead, stored)


def most_rows(n_bits: int) -> int:
    """Largest segment: its codes are held in memory while it is written."""
    affordable: int = _MOST_CODE_BYTES // (8 * n_words(n_bits))
    return min(_MOST_ROWS, max(ROWS_PER_BLOCK, affordable))


def write_segments(parts: Iterable[Part], store: Store, limit: int) -> list[Segment]:
    """Write a stream of parts as segments of at most ``limit`` rows and of one dtype of vectors each."""
    segments: list[Segment] = []
    builder: _Builder | None = None
    for part in _split(parts, limit):
        if builder is not None and not builder.takes(part, limit):
            segments.append(builder.finish())
            builder = None
        if builder is None:
            builder = _Builder(part, store)
        builder.append(part)
    if builder is not None:
        segments.append(builder.finish())
    return segments


def open_segment(folder: Path, record: SegmentRecord, n_bits: int, n_features: int, keep_vectors: bool) -> Segment:
    """Map the files of a segment, each checked against what the manifest says."""
    n = record.n
    expected: dict[str, tuple[tuple[int, ...], Any]] = {
        "codes": (shape_of(n, n_bits), np.uint64),
        "ids": ((n,), np.int64),
        "rows": ((n,), np.uint32),
        "vectors": ((n, n_features), None),
        "dead": ((-(-n // 8),), np.uint8),
    }
    must_be_there = {"codes": True, "ids": record.first_id is None, "vectors": keep_vectors, "dead": record.n_dead > 0}
    there = {kind: kind in record.files for kind in must_be_there}
    if there != must_be_there or record.files.keys() - expected.keys():
        raise damaged(folder, f"a segment of the files {', '.join(sorted(record.files)) or 'none'}")
    stored: dict[str, Stored] = {
        kind: (open_array(folder, file, kind, *expected[kind]), file) for kind, file in record.files.items()
    }
    return _assembled(n, n_bits, record.first_id, record.n_dead, stored)


class _Builder:
    """One segment in the making: vectors go straight to the store, codes and ids wait until they can be sorted."""

    def __init__(self, first: Part, store: Store) -> None:
        self._store = store
        self._n = 0
        self._ids: list[Ids] = []
        self._codes: list[Codes] = []
        self._dtype = None if first.vectors is None else first.vectors.dtype
        self._vectors = (
            None if first.vectors is None else store.start("vectors", first.vectors.dtype, first.vectors.shape[1:])
        )

    def takes(self, part: Part, limit: int) -> bool:
        """Whether a part still fits in."""
        dtype = None if part.vectors is None else part.vectors.dtype
        return self._n + len(part.ids) <= limit and dtype == self._dtype

    def append(self, part: Part) -> None:
        self._ids.append(part.ids)
        self._codes.append(part.codes)
        if self._vectors is not None:
            self._vectors.append(part.vectors)
        self._n += len(part.ids)

    def finish(self) -> Segment:
        ids = np.concatenate(self._ids)
        order = None if np.all(ids[1:] > ids[:-1]) else np.argsort(ids)
        ids = ids if order is None else ids[order]
        stored = {"codes": self._store_codes(Codes.concatenate(self._codes), order)}
        first_id = int(ids[0]) if int(ids[-1]) - int(ids[0]) == self._n - 1 else None
        if first_id is None:
            stored["ids"] = _copied("ids", ids, self._store)
        if self._vectors is not None:
            stored["vectors"] = self._vectors.finish()
            if order is not None:
                stored["rows"] = _copied("rows", order.astype(np.uint32), self._store)
        return _assembled(self._n, self._codes[0].n_bits, first_id, 0, stored)

    def _store_codes(self, codes: Codes, order: Ids | None) -> Stored:
        writer = self._store.start("codes", np.uint64, shape_of(0, codes.n_bits)[1:])

        def laid_out(start: int) -> Any:
            rows = slice(start, start + ROWS_PER_BLOCK)
            return Tiles.from_codes(codes[rows if order is None else order[rows]]).words

        starts = [(start,) for start in range(0, self._n, ROWS_PER_BLOCK)]  # whole tiles but for the last
        at_once = 4 * usable_cores()
        for first in range(0, len(starts), at_once):
            for words in run_tasks(laid_out, starts[first : first + at_once]):
                writer.append(words)
        return writer.finish()


def _split(parts: Iterable[Part], limit: int) -> Iterator[Part]:
    """Parts in order, none larger than a block, cut where a segment is full."""
    room = limit
    for part in parts:
        start = 0
        while start < len(part.ids):
            rows = slice(start, start + min(room, ROWS_PER_BLOCK))
            piece = Part(part.ids[rows], part.codes[rows], None if part.vectors is None else part.vectors[rows])
            start += len(piece.ids)
            room = room - len(piece.ids) or limit
            yield piece


def _copied(kind: str, array: npt.NDArray[Any], store: Store) -> Stored:
    writer = store.start(kind, array.dtype, array.shape[1:])
    step = max(1, 2**25 // max(1, array[:1].nbytes))
    for start in range(0, len(array), step):
        writer.append(array[start : start + step])
    return writer.finish()


def _assembled(n: int, n_bits: int, first_id: int | None, n_dead: int, stored: dict[str, Stored]) -> Segment:
    arrays = {kind: array for kind, (array, _) in stored.items()}
    return Segment(
        tiles=Tiles(arrays["codes"], n, n_bits),
        first_id=first_id,
        id_list=arrays.get("ids"),
        rows=arrays.get("rows"),
        vectors=arrays.get("vectors"),
        dead=arrays.get("dead", NONE_DEAD),
        n_dead=n_dead,
        files={kind: file for kind, (_, file) in stored.items() if file is not None},
    )
