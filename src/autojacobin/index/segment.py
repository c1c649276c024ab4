"""A segment: some codes with their ids, and the vectors if they are kept, in memory or memory-mapped.

Codes are sorted by id. The kernels break ties by position, so ties are in the order of ids. Vectors are written as a
stream, in the order in which they were added; where the two orders differ, a list holds the row number of each code's
vector. Only the bitmap of dead positions can change, and each change of it makes a new ``Segment``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from autojacobin.codes import Codes
from autojacobin.core.parallel import run_tasks, slices, usable_cores
from autojacobin.hashers import Hasher
from autojacobin.hashers.list_hasher import ListHasher
from autojacobin.index.array_files import CheckedArray, SegmentLabel, open_array, start_array, write_array
from autojacobin.index.folder import Folder
from autojacobin.index.manifest import MANIFEST_NAME, MOST_CODES, ArrayFile, SegmentRecord, damaged
from autojacobin.index.names import NameTable, repeated_name
from autojacobin.index.payload import Payload, concatenate, write_payload
from autojacobin.search.kernels.lookup import CODES_PER_BLOCK
from autojacobin.search.lists import Lists
from autojacobin.search.tiles import Tiles, n_words, shape_of

ROWS_PER_BLOCK = 2**16  # a whole number of tiles
_MOST_CODE_BYTES = 2**28
_MOST_WITHOUT_LISTS = 2**22
_FEWEST_IN_LISTS = 2**12  # lists of fewer codes are made quickly at the first search

_NO_HASHES = np.empty(0, dtype=np.uint64), np.empty(0, dtype=np.uint32)
NONE_DEAD = np.empty(0, dtype=np.uint8)
OF_LISTS = {"blocks": "blocks", "offsets": "offsets", "bounds": "bounds", "order": "positions"}
"""Kinds of files that hold the fields of ``Lists``."""
OF_NAMES = {"names": "text", "ends": "ends", "hashes": "hashes", "places": "places"}
"""Kinds of files that hold the fields of ``NameTable``."""

Ids = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Part:
    """Some rows that will be written to segments, ids in any order; the last three are None where there are none."""

    ids: Ids
    codes: Codes
    vectors: Any
    names: Sequence[bytes] | None = None
    payload: Any = None

    def __getitem__(self, rows: slice) -> Part:
        fields: dict[str, Any] = {name: None if all_ is None else all_[rows] for name, all_ in vars(self).items()}
        return Part(**fields)


@dataclass(frozen=True)
class Segment:
    """Codes in ascending order of id, with ids and vectors. Files are checked when they are read."""

    label: SegmentLabel
    arrays: dict[str, CheckedArray]
    n_dead: int = 0
    payload: Payload | None = None
    derived: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)
    """Data that searches derive from the codes and keep, such as lists. Removals do not change it."""

    @property
    def n(self) -> int:
        """Number of codes, dead ones included."""
        return self.label.n

    @property
    def n_live(self) -> int:
        """Number of codes that are not dead."""
        return self.label.n - self.n_dead

    @property
    def first_id(self) -> int | None:
        """Id of the first code if ids are consecutive."""
        return self.label.first_id

    @property
    def tiles(self) -> Tiles:
        """The codes."""
        return Tiles(self.arrays["codes"].check(), self.label.n, self.label.n_bits)

    def lists(self, hasher: ListHasher) -> Lists:
        """The codes in lists: those of the files, or lists that are made at the first search and kept."""
        kept = self.derived.get("lists")
        if kept is None and "blocks" in self.arrays:
            fields: dict[str, Any] = {name: self.arrays[kind].check() for kind, name in OF_LISTS.items()}
            kept = Lists(**fields, n_bits=hasher.n_code_bits, grid=hasher.offset_grid, copies=hasher.copies)
            n_blocks = -(-kept.n // CODES_PER_BLOCK)
            sizes = kept.n, kept.bounds[0], kept.bounds[-1], kept.blocks.shape, len(kept.offsets), kept.n_lists
            n, shape = self.n * hasher.copies, (n_blocks, -(-kept.n_bits // 8), CODES_PER_BLOCK)
            if sizes != (n, 0, n, shape, n_blocks * CODES_PER_BLOCK, len(hasher.centres_)):
                found = f"{kept.bounds[-1]} codes of {kept.blocks.shape[1]} bytes in {kept.n_lists} lists"
                expected = f"{n} codes of {kept.n_bits} bits in {len(hasher.centres_)} lists"
                raise damaged(self.arrays["blocks"].path, f"{found}, expected {expected}")
        elif kept is None:
            kept = hasher.lists(self.tiles.take(np.arange(self.n)))
        self.derived["lists"] = kept
        return kept

    @property
    def id_list(self) -> Any:
        """The ids, or None if they are consecutive."""
        return self.arrays["ids"].check() if "ids" in self.arrays else None

    @property
    def rows(self) -> Any:
        """Row of each code's vector, or None if vectors have the order of codes."""
        return self.arrays["rows"].check() if "rows" in self.arrays else None

    @property
    def vectors(self) -> Any:
        """The vectors, or None. They are unchecked: call :meth:`check_vectors` for the rows that you read."""
        return self.arrays["vectors"].array if "vectors" in self.arrays else None

    @property
    def dead(self) -> npt.NDArray[np.uint8]:
        """Bitmap of the positions that do not count."""
        return self.arrays["dead"].array if "dead" in self.arrays else NONE_DEAD

    @property
    def files(self) -> dict[str, ArrayFile]:
        """Files of the segment by kind; none if it is in memory."""
        files = {kind: array.file for kind, array in self.arrays.items() if array.file is not None}
        if self.payload is not None and self.payload.file is not None:
            files["payload"] = self.payload.file
        return files

    @property
    def record(self) -> SegmentRecord:
        """The segment as the manifest describes it."""
        return SegmentRecord(self.n, self.n_dead, self.first_id, self.files)

    def ids_at(self, positions: Any) -> Ids:
        """Ids of the codes at some positions."""
        return positions + self.first_id if self.first_id is not None else self.id_list[positions]

    @property
    def names(self) -> NameTable:
        """The names of the codes, in an index that has names."""
        if "names" not in self.derived:
            fields = {name: self.arrays[kind].check() for kind, name in OF_NAMES.items()}
            self.derived["names"] = NameTable(**fields)
        return self.derived["names"]

    def find_names(self, names: Sequence[bytes]) -> tuple[npt.NDArray[np.int64], Ids]:
        """Which of ``names`` live here, as places in ``names``, and at which positions."""
        places, positions = self.names.find(names)
        live = self._are_live(positions)
        return places[live], positions[live]

    def live_positions(self) -> Ids:
        """Positions that are not dead, ascending."""
        return np.flatnonzero(self.live_mask()) if self.n_dead else np.arange(self.n, dtype=np.int64)

    def live_mask(self) -> npt.NDArray[np.bool_]:
        """For each position, whether it is not dead."""
        if not self.n_dead:
            return np.ones(self.n, dtype=bool)
        return ~np.unpackbits(self.dead, count=self.n, bitorder="little").view(np.bool_)

    def find(self, ids: Ids) -> tuple[npt.NDArray[np.int64], Ids]:
        """Which of ``ids`` live here, as places in ``ids``, and at which positions."""
        if self.first_id is not None:
            positions = ids - self.first_id
            here = (positions >= 0) & (positions < self.n)
        else:
            listed = self.id_list
            positions = np.searchsorted(listed, ids)
            here = listed[np.minimum(positions, self.n - 1)] == ids
        places = np.flatnonzero(here)
        positions = positions[places].astype(np.int64)
        live = self._are_live(positions)
        return places[live], positions[live]

    def _are_live(self, positions: Ids) -> Any:
        if not self.n_dead:
            return slice(None)
        return (self.dead[positions >> 3] >> (positions & 7)) & 1 == 0

    def check_vectors(self, rows: Ids) -> None:
        """Check the vectors in some rows before they are read; negative rows are passed over."""
        self.arrays["vectors"].check_rows(np.maximum(rows, 0))

    def vectors_at(self, positions: Ids) -> npt.NDArray[Any]:
        """Vectors of the codes at some positions."""
        rows = positions if self.rows is None else self.rows[positions]
        self.check_vectors(rows)
        return self.vectors[rows]

    def without(self, positions: Ids, folder: Folder | None) -> Segment:
        """Mark positions, alive so far, as dead."""
        if not len(positions):
            return self
        bitmap = self.dead.copy() if self.n_dead else np.zeros(-(-self.n // 8), dtype=np.uint8)
        np.bitwise_or.at(bitmap, positions >> 3, (1 << (positions & 7)).astype(np.uint8))
        dead = write_array(folder, "dead", bitmap, self.label)
        return replace(self, arrays=self.arrays | {"dead": dead}, n_dead=self.n_dead + len(positions))

    def verify(self, folder: Folder | None = None) -> None:
        """Compare all files with their checksums again: as they are mapped, or as they are in a folder."""
        for array in self.arrays.values():
            array.verify(folder)
        if self.payload is not None:
            self.payload.verify()

    def copied_to(self, folder: Folder | None) -> Segment:
        """Copy the segment to a folder or into memory, block by block, after a check that all of it is intact."""
        self.verify()
        label = SegmentLabel.new(self.first_id, self.n, self.label.n_bits)
        arrays = {kind: write_array(folder, kind, array.array, label) for kind, array in self.arrays.items()}
        payload = None if self.payload is None else write_payload(folder, self.payload.table, label)
        return Segment(label, arrays, self.n_dead, payload)


def open_segment(
    folder: Folder,
    record: SegmentRecord,
    n_bits: int,
    n_features: int,
    keep_vectors: bool,
    id_kind: str | None = None,
    *,
    check: bool = True,
) -> Segment:
    """Map the files of a segment, each compared with what the manifest says; without ``check``, not with checksums."""
    n = record.n
    arrays: dict[str, CheckedArray] = {}
    expected: dict[str, tuple[tuple[int | None, ...], Any, Any]] = {
        "codes": (shape_of(n, n_bits), np.uint64, partial(_problem_of_codes, n_bits)),
        "ids": ((n,), np.int64, partial(_problem_of_order, "ids that do not ascend from 0 on", True, 0)),
        "rows": ((n,), np.uint32, partial(_problem_of_places, n)),
        "vectors": ((n, n_features), None, None),
        "dead": ((-(-n // 8),), np.uint8, partial(_problem_of_dead, n, record.n_dead)),
        "blocks": ((None, None, CODES_PER_BLOCK), np.uint8, None),
        "offsets": ((None,), np.uint8, None),
        "bounds": ((None,), np.int64, partial(_problem_of_order, "lists that do not follow each other", False, 0)),
        "order": ((None,), np.int32, partial(_problem_of_places, n)),
        "names": ((None,), np.uint8, partial(_problem_of_names, str(id_kind), arrays)),
        "ends": ((n,), np.int64, partial(_problem_of_order, "names that do not follow each other", True, 1)),
        "hashes": ((n,), np.uint64, partial(_problem_of_order, "hashes that do not ascend", False, 0)),
        "places": ((n,), np.uint32, partial(_problem_of_places, n)),
    }
    needed = {"codes": True, "ids": record.first_id is None, "vectors": keep_vectors, "dead": record.n_dead > 0}
    needed |= dict.fromkeys(OF_NAMES, id_kind in ("string", "uuid")) | dict.fromkeys(OF_LISTS, "blocks" in record.files)
    optional = {"payload", "rows"} if keep_vectors else {"payload"}
    if record.files.keys() - optional != {kind for kind, is_needed in needed.items() if is_needed}:
        kinds = f"a segment of the files {', '.join(sorted(record.files)) or 'none'}"
        raise damaged(folder.path / MANIFEST_NAME, f"{kinds} and ids of the kind {id_kind}")
    payload = None
    for kind, file in record.files.items():
        if kind == "payload":
            payload = Payload(None, file, folder, n)
            continue
        shape, dtype, problem = expected[kind]
        arrays[kind] = open_array(folder, file, kind, shape, dtype, check=check, problem=problem)
    label = arrays["codes"].label
    assert label is not None
    for kind, array in arrays.items():
        if array.label != replace(label, first_id=record.first_id, n=n, n_bits=n_bits):
            raise damaged(folder.path / record.files[kind].name, "a file of another segment")
    if "dead" in arrays:
        arrays["dead"] = CheckedArray(np.array(arrays["dead"].check()), arrays["dead"].file)
    return Segment(label, arrays, record.n_dead, payload)


# Writing


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


# Checks


def check_ids(segments: Sequence[Segment], next_id: int, path: Path) -> None:
    """Check that no id and no name lives twice, and that no id is beyond ``next_id``."""
    ids = [segment.ids_at(segment.live_positions()) for segment in segments if segment.n_live]
    if ids:
        together = np.sort(np.concatenate(ids))
        twice = together[1:][together[1:] == together[:-1]]
        if len(twice):
            raise damaged(path, f"the id {twice[0]} in two segments")
        if int(together[-1]) >= next_id:
            raise damaged(path, f"the id {together[-1]} and the next free id {next_id}")
    named = [segment for segment in segments if "names" in segment.arrays]
    live = [segment._are_live(segment.names.places.astype(np.int64)) for segment in named]
    name = repeated_name([(segment.names, mask) for segment, mask in zip(named, live, strict=True)])
    if name is not None:
        raise damaged(path, f"the name {name.decode('utf-8', 'backslashreplace')[:60]!r} more than once")


def _problem_of_codes(n_bits: int, words: npt.NDArray[Any]) -> str | None:
    """Return what is wrong if a padding bit is set; the kernels index a table by distances, so none may be."""
    if n_bits % 64 and bool((words[:, -1] >> np.uint64(n_bits % 64)).any()):
        return f"codes with bits beyond their {n_bits}"
    return None


def _problem_of_order(problem: str, strictly: bool, least: int, numbers: npt.NDArray[Any]) -> str | None:
    """Return the problem unless numbers ascend from ``least`` on."""
    ascend = np.greater if strictly else np.greater_equal
    return None if len(numbers) and numbers[0] >= least and bool(ascend(numbers[1:], numbers[:-1]).all()) else problem


def _problem_of_places(n: int, places: npt.NDArray[Any]) -> str | None:
    inside = len(places) and int(places.min()) >= 0 and int(places.max()) < n
    return None if inside else f"places that are not among the {n} of the segment"


def _problem_of_names(kind: str, arrays: dict[str, CheckedArray], text: npt.NDArray[Any]) -> str | None:
    """Compare the text with the ends, which are in another file."""
    return NameTable(text, arrays["ends"].check(), *_NO_HASHES).problem(kind)


def _problem_of_dead(n: int, n_dead: int, bitmap: npt.NDArray[Any]) -> str | None:
    found, within = int(np.bitwise_count(bitmap).sum()), int(np.unpackbits(bitmap, count=n, bitorder="little").sum())
    return None if found == within == n_dead else f"{within} dead codes of {n}, where the manifest says {n_dead}"
