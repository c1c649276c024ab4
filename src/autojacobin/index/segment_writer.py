"""Write a stream of vectors and codes as segments."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import groupby
from operator import itemgetter
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
from autojacobin.index.payload import concatenate, write_payload
from autojacobin.index.segment import OF_LISTS, OF_NAMES, ROWS_PER_BLOCK, Part, Segment
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
    numbered = groupby(_pieces(parts, most_rows(hasher)), key=itemgetter(0))
    return [_write_segment((piece for _, piece in pieces), folder, hasher) for _, pieces in numbered]


def _pieces(parts: Iterable[Part], limit: int) -> Iterator[tuple[int, Part]]:
    """Parts in order, cut so that none is larger than a block, each with the number of its segment."""
    number, room, dtype = 0, limit, None
    for part in parts:
        found = None if part.vectors is None else part.vectors.dtype
        if found != dtype:
            number, room, dtype = number + 1, limit, found
        start = 0
        while start < len(part.ids):
            piece = part[start : start + min(room, ROWS_PER_BLOCK)]
            yield number, piece
            start, room = start + len(piece.ids), room - len(piece.ids)
            if not room:
                number, room = number + 1, limit


def _write_segment(pieces: Iterator[Part], folder: Folder | None, hasher: Hasher) -> Segment:
    """Write one segment: vectors go straight to the store, and the rest waits to be sorted by id."""
    parts: list[Part] = []
    vectors = None
    for part in pieces:
        if part.vectors is not None:
            vectors = vectors or start_array(folder, "vectors", part.vectors.dtype, part.vectors.shape[1:])
            vectors.append(part.vectors)
        parts.append(replace(part, vectors=None))
    ids, codes = np.concatenate([part.ids for part in parts]), Codes.concatenate(part.codes for part in parts)
    order = None if np.all(ids[1:] > ids[:-1]) else np.argsort(ids)
    if order is not None:
        ids, codes = ids[order], codes[order]
    first_id = int(ids[0]) if int(ids[-1]) - int(ids[0]) == len(ids) - 1 else None
    label = SegmentLabel.new(first_id, len(ids), codes.n_bits)
    arrays = {"codes": _write_codes(codes, folder, label)}
    derived: dict[str, Any] = {}
    if isinstance(hasher, ListHasher) and len(ids) >= _FEWEST_IN_LISTS:
        lists = hasher.lists(codes)
        derived |= {kind: getattr(lists, name) for kind, name in OF_LISTS.items()}
    if first_id is None:
        derived["ids"] = ids
    if vectors is not None:
        arrays["vectors"] = vectors.finish(label)
        if order is not None:
            derived["rows"] = order.astype(np.uint32)
    if parts[0].names is not None:
        names = [name for part in parts for name in part.names or ()]
        table = NameTable.of(names if order is None else [names[row] for row in order.tolist()])
        derived |= {kind: getattr(table, name) for kind, name in OF_NAMES.items()}
    arrays |= {kind: write_array(folder, kind, array, label) for kind, array in derived.items()}
    payload = None
    if parts[0].payload is not None:
        columns = concatenate([part.payload for part in parts])
        payload = write_payload(folder, columns if order is None else columns.take(order), label)
    return Segment(label, arrays, 0, payload)


def _write_codes(codes: Codes, folder: Folder | None, label: SegmentLabel) -> CheckedArray:
    writer = start_array(folder, "codes", np.uint64, shape_of(0, codes.n_bits)[1:])
    blocks = [(codes[rows],) for rows in slices(len(codes), ROWS_PER_BLOCK)]  # whole tiles but for the last
    for some in slices(len(blocks), 4 * usable_cores()):
        for tiles in run_tasks(Tiles.from_codes, blocks[some]):
            writer.append(tiles.words)
    return writer.finish(label)
