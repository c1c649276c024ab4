"""Write a stream of vectors and codes as segments."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from autojacobin.codes import Codes
from autojacobin.core.parallel import run_tasks, slices, usable_cores
from autojacobin.hashers import Hasher
from autojacobin.hashers.list_hasher import ListHasher
from autojacobin.index.array_files import CheckedArray, SegmentLabel, start_array, write_array
from autojacobin.index.folder import Folder
from autojacobin.index.manifest import MOST_CODES
from autojacobin.index.names import NameTable
from autojacobin.index.payload import Payload, concatenate, write_payload
from autojacobin.index.segment import OF_LISTS, OF_NAMES, ROWS_PER_BLOCK, Ids, Part, Segment
from autojacobin.search.tiles import Tiles, n_words, shape_of

_MOST_CODE_BYTES = 2**28
_MOST_WITHOUT_LISTS = 2**22
_FEWEST_IN_LISTS = 2**12  # lists of fewer codes are made quickly at the first search


def most_rows(hasher: Hasher) -> int:
    """Largest segment: its codes are held in memory while it is written. With lists, few large ones are faster."""
    affordable: int = _MOST_CODE_BYTES // (8 * n_words(int(hasher.n_bits)))
    most = MOST_CODES if isinstance(hasher, ListHasher) else _MOST_WITHOUT_LISTS
    return min(most, max(ROWS_PER_BLOCK, affordable))


def write_segments(parts: Iterable[Part], folder: Folder | None, hasher: Hasher) -> list[Segment]:
    """Write a stream of parts as segments of at most ``most_rows(hasher)`` rows and of one dtype of vectors each."""
    segments: list[Segment] = []
    limit = most_rows(hasher)
    builder: _Builder | None = None
    for part in _split(parts, limit):
        if builder is not None and not builder.takes(part, limit):
            segments.append(builder.finish())
            builder = None
        if builder is None:
            builder = _Builder(part, folder, hasher)
        builder.append(part)
    if builder is not None:
        segments.append(builder.finish())
    return segments


class _Builder:
    """A segment that is being written: vectors go straight to the store, codes and ids wait to be sorted."""

    def __init__(self, first: Part, folder: Folder | None, hasher: Hasher) -> None:
        self._folder, self._hasher = folder, hasher
        self._n = 0
        self._ids: list[Ids] = []
        self._codes: list[Codes] = []
        self._names: list[bytes] | None = None if first.names is None else []
        self._payloads: list[Any] = []
        rows = first.vectors
        self._dtype = None if rows is None else rows.dtype
        self._vectors = None if rows is None else start_array(folder, "vectors", rows.dtype, rows.shape[1:])

    def takes(self, part: Part, limit: int) -> bool:
        """Whether a part still fits in."""
        dtype = None if part.vectors is None else part.vectors.dtype
        return self._n + len(part.ids) <= limit and dtype == self._dtype

    def append(self, part: Part) -> None:
        self._ids.append(part.ids)
        self._codes.append(part.codes)
        if self._names is not None and part.names is not None:
            self._names.extend(part.names)
        if part.payload is not None:
            self._payloads.append(part.payload)
        if self._vectors is not None:
            self._vectors.append(part.vectors)
        self._n += len(part.ids)

    def finish(self) -> Segment:
        ids = np.concatenate(self._ids)
        order = None if np.all(ids[1:] > ids[:-1]) else np.argsort(ids)
        ids = ids if order is None else ids[order]
        first_id = int(ids[0]) if int(ids[-1]) - int(ids[0]) == self._n - 1 else None
        label = SegmentLabel.new(first_id, self._n, self._codes[0].n_bits)
        codes = Codes.concatenate(self._codes)
        arrays = {"codes": self._store_codes(codes, order, label)}
        if isinstance(self._hasher, ListHasher) and self._n >= _FEWEST_IN_LISTS:
            lists = self._hasher.lists(codes if order is None else codes[order])
            for kind, name in OF_LISTS.items():
                arrays[kind] = write_array(self._folder, kind, getattr(lists, name), label)
        if first_id is None:
            arrays["ids"] = write_array(self._folder, "ids", ids, label)
        if self._vectors is not None:
            arrays["vectors"] = self._vectors.finish(label)
            if order is not None:
                arrays["rows"] = write_array(self._folder, "rows", order.astype(np.uint32), label)
        if self._names is not None:
            table = NameTable.of(self._names if order is None else [self._names[row] for row in order.tolist()])
            for kind, name in OF_NAMES.items():
                arrays[kind] = write_array(self._folder, kind, getattr(table, name), label)
        return Segment(label, arrays, 0, self._stored_payload(order, label))

    def _stored_payload(self, order: Ids | None, label: SegmentLabel) -> Payload | None:
        if not self._payloads:
            return None
        table = concatenate(self._payloads)
        return write_payload(self._folder, table if order is None else table.take(order), label)

    def _store_codes(self, codes: Codes, order: Ids | None, label: SegmentLabel) -> CheckedArray:
        writer = start_array(self._folder, "codes", np.uint64, shape_of(0, codes.n_bits)[1:])

        def laid_out(rows: slice) -> Any:
            return Tiles.from_codes(codes[rows if order is None else order[rows]]).words

        blocks = [(rows,) for rows in slices(self._n, ROWS_PER_BLOCK)]  # whole tiles but for the last
        for some in slices(len(blocks), 4 * usable_cores()):
            for words in run_tasks(laid_out, blocks[some]):
                writer.append(words)
        return writer.finish(label)


def _split(parts: Iterable[Part], limit: int) -> Iterator[Part]:
    """Parts in order, none larger than a block, cut where a segment is full."""
    room = limit
    for part in parts:
        start = 0
        while start < len(part.ids):
            rows = slice(start, start + min(room, ROWS_PER_BLOCK))
            piece = part[rows]
            start += len(piece.ids)
            room = room - len(piece.ids) or limit
            yield piece
