"""Save what is intact of a damaged index.

Arrays are checked block by block, so a flipped bit costs the vectors of one block and not the index. Vectors are
encoded again. A payload is one block: where it is damaged, the vectors are saved without it. Where the manifest
is lost, the headers of the files say which of them belong together.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import numpy.typing as npt

from autojacobin.errors import DataError, FormatError, StorageError
from autojacobin.hashers import Hasher, load
from autojacobin.hashers.base import for_index
from autojacobin.index.array_files import CheckedArray, open_array, read_label, salvage_array, salvage_label
from autojacobin.index.changes import read_hasher
from autojacobin.index.folder import Folder, clear_os_errors
from autojacobin.index.index import Index
from autojacobin.index.manifest import MANIFEST_NAME, MOST_CODES, ArrayFile, Manifest, SegmentRecord, damaged, kind_of
from autojacobin.index.names import UUID_BYTES
from autojacobin.index.payload import Payload, empty_like, matching, read_payload, taken
from autojacobin.index.segment import ROWS_PER_BLOCK, Part
from autojacobin.search.distances import METRICS
from autojacobin.search.tiles import Tiles, shape_of

_IN_ORDER = 0.9  # share of vectors that match their codes; another machine may round a few differently

Ids = npt.NDArray[np.int64]


@dataclass
class Repair:
    """What :func:`repair` saved and what was lost.

    Attributes
    ----------
    saved : int
        Vectors (or codes, where an index keeps no vectors) in the new index.
    lost : int
        Vectors whose bytes are damaged or gone.
    renumbered : int
        Vectors that are saved, but whose ids are lost; they got new ids after all others. New names are
        ``recovered-0`` and so on, or random UUIDs.
    revived : int
        Vectors that may have been removed: the list of what was removed is damaged.
    problems : list of str
        What was found, one sentence per damaged file.
    """

    saved: int = 0
    lost: int = 0
    renumbered: int = 0
    revived: int = 0
    problems: list[str] = field(default_factory=list)


def repair(source: str | os.PathLike[str], target: str | os.PathLike[str], hasher: Hasher | None = None) -> Repair:
    """Write everything that is intact in the index ``source`` to a new index ``target``; the source stays as it is.

    Parameters
    ----------
    source : path
        Folder of the damaged index; it may have lost its manifest.
    target : path
        A new or empty folder.
    hasher : Hasher, optional
        The hasher of the index, in case its own copy is damaged.

    Returns
    -------
    report : Repair
        How many vectors were saved and lost, and why.
    """
    folder = Folder(source)
    if not folder.path.is_dir():
        raise StorageError(f"there is no folder {folder.path}, expected that of an index; give its path")
    if os.path.realpath(target) == os.path.realpath(folder.path):
        raise StorageError(f"the repaired index needs a folder of its own, got {target} for both; give a new path")
    with clear_os_errors(folder.path, "read"):
        content: object = folder  # of the manifest, other than any so far
        while folder.read_manifest() != content:  # a writer may delete files meanwhile: then once more
            report, content = Repair(), folder.read_manifest()
            manifest = _manifest(folder, report)
            used = for_index(hasher if hasher is not None else _hasher(folder, manifest, report))
            _check_hasher(used, manifest)
            records = _records(folder, report) if manifest is None else list(manifest.segments)
            keep_vectors = manifest.keep_vectors if manifest is not None else any("vectors" in r.files for r in records)
            segments = [_Salvage(folder, record, used, keep_vectors, manifest is None, report) for record in records]
        kind = _kind_of_ids(segments) if manifest is None else manifest.id_kind
        next_id = _number(segments, 0 if manifest is None else manifest.next_id, kind, report)
        _give_columns(segments, report)
        parts = (part for segment in segments for part in segment.parts())
        if manifest is None:
            metric = used.metric_ or METRICS[0]
            report.problems.append(f"The metric is not known without the manifest; that of the model is {metric}.")
            new = Index(used, keep_vectors=keep_vectors)
        else:
            used.metric_ = None  # one that the user gives may have another, and the manifest is right
            new = Index(used, keep_vectors=keep_vectors, partitions=manifest.partitions, metric=manifest.metric)
        with new._placed(target, parts, next_id, kind) as index:
            report.saved = len(index)
    return report


def _number(segments: list[_Salvage], next_id: int, kind: str | None, report: Repair) -> int:
    """Give new ids to vectors that lost theirs, keep one vector for each id, and give the next free id.

    Of two vectors with one id the one in the later segment is kept: it took the place of the other.
    """
    ids = np.concatenate([np.empty(0, dtype=np.int64), *(segment.ids for segment in reversed(segments))])
    next_id = max(next_id, int(ids.max(initial=-1)) + 1)
    first = np.zeros(len(ids), dtype=bool)
    lost = np.flatnonzero(ids < 0)
    report.renumbered = len(lost)
    if kind in ("string", "uuid"):
        names = [name for segment in reversed(segments) for name in segment.names]
        report.renumbered = names.count(None)
        names = _renamed(names, str(kind))
        first[list({name: row for row, name in reversed(list(enumerate(names)))}.values())] = True
        lost = np.setdiff1d(np.arange(len(ids)), np.unique(ids, return_index=True)[1])  # numbers are internal
        lost = np.union1d(lost, np.flatnonzero(ids < 0))
    ids[lost] = np.arange(next_id, next_id + len(lost))
    if kind not in ("string", "uuid"):
        first[np.unique(ids, return_index=True)[1]] = True
    end = 0
    for segment in reversed(segments):
        start, end = end, end + len(segment.ids)
        kept = first[start:end]
        segment.ids, segment.keep = ids[start:end][kept], segment.keep[kept]
        if kind in ("string", "uuid"):
            segment.names = [name for name, keep in zip(names[start:end], kept, strict=True) if keep]
    return next_id + len(lost)


def _renamed(names: list[bytes | None], kind: str) -> list[bytes]:
    """Give a name to all that have none: ``recovered-0`` and so on, or a random UUID."""
    taken = set(names)
    fresh = (f"recovered-{number}".encode() for number in count())
    free = (name for name in fresh if name not in taken) if kind == "string" else (uuid4().bytes for _ in count())
    return [next(free) if name is None else name for name in names]


def _kind_of_ids(segments: list[_Salvage]) -> str | None:
    """The kind of the ids of an index without a manifest; UUIDs are 16 bytes that are seldom text."""
    if not any(segment.has_names for segment in segments):
        return "integer" if segments else None
    names = [name for segment in segments for name in segment.names if name is not None]
    uuids = bool(names) and all(len(name) == UUID_BYTES for name in names) and not all(map(_is_text, names))
    return "uuid" if uuids else "string"


def _is_text(name: bytes) -> bool:
    try:
        return "\0" not in name.decode()
    except UnicodeDecodeError:
        return False


def _give_columns(segments: list[_Salvage], report: Repair) -> None:
    """Give all segments the columns of the first that has some; nulls where a payload is lost."""
    schema = next((segment.columns.schema for segment in segments if segment.columns is not None), None)
    for segment in segments if schema is not None else ():
        if segment.columns is None:
            segment.columns = empty_like(schema, segment.n)
        try:
            segment.columns = matching(segment.columns, schema)
        except DataError as error:
            report.problems.append(f"A payload is left out: {str(error).split(';')[0]}.")
            segment.columns = empty_like(schema, segment.n)


class _Salvage:
    """What can be read of one segment."""

    def __init__(
        self,
        folder: Folder,
        record: SegmentRecord,
        hasher: Hasher,
        keep_vectors: bool,
        guessed: bool,
        report: Repair,
    ) -> None:
        self._folder, self._record, self._hasher, self._report = folder, record, hasher, report
        self._guessed = guessed  # whether the record was put together without a manifest, and may lack a file
        self._content = "vectors" if keep_vectors else "codes"
        n = record.n
        shapes: dict[str, tuple[tuple[int | None, ...], Any]] = {
            "codes": (shape_of(n, int(hasher.n_bits)), np.uint64),
            "ids": ((n,), np.int64),
            "rows": ((n,), np.uint32),
            "vectors": ((n, int(hasher.n_features_in_)), None),
            "dead": ((-(-n // 8),), np.uint8),
            "ends": ((n,), np.int64),
        }
        self._arrays: dict[str, npt.NDArray[Any]] = {}
        self._whole: dict[str, Any] = {}
        for kind, file in sorted(record.files.items(), key=lambda item: item[0] == "names"):  # after the ends
            if kind == "names":
                known = "ends" in self._arrays and self._whole["ends"][-1]
                shapes[kind] = ((int(self._arrays["ends"][-1]) if known else None,), np.uint8)
            array = self._opened(file, kind, *shapes[kind]) if kind in shapes else None
            if array is not None:
                self._arrays[kind], self._whole[kind] = self._read(kind, array)
        self._order: Ids = np.arange(n)
        self._known = np.ones(n, dtype=bool)  # whether it is known which vector a position has
        self.n, self.has_names = n, bool(record.files.keys() & {"names", "ends"})
        self.columns = self._columns()
        self.keep, self.ids = self._salvaged()
        self.names: list[Any] = self._names()

    def _opened(self, file: ArrayFile, kind: str, shape: tuple[int | None, ...], dtype: Any) -> CheckedArray | None:
        try:
            return open_array(self._folder, file, kind, shape, dtype)
        except (FormatError, OSError) as error:
            self._report.problems.append(_sentence(self._folder.path / file.name, error))
        lengths = tuple(length for length in shape if length is not None)
        if len(lengths) < len(shape):
            return None
        try:
            return salvage_array(self._folder, file, kind, lengths, dtype)
        except (FormatError, OSError):
            return None

    def _salvaged(self) -> tuple[Ids, Ids]:
        """Positions of live codes that can be saved, and their ids, -1 where these are lost."""
        n = self._record.n
        ids, has_id = self._ids()
        alive = ~self._dead()
        whole = np.zeros(n, dtype=bool)
        if self._content == "vectors" and "vectors" in self._arrays:
            self._order, has_row = self._rows()
            whole, has_id = self._whole["vectors"][self._order], has_id & has_row
            self._known = has_row
            self._report.revived += int((~alive & ~has_row).sum())  # removed were positions, not these rows
            alive |= ~has_row
        elif self._content == "codes" and "codes" in self._arrays:
            whole = self._whole_codes()
        self._report.lost += int((alive & ~whole).sum())
        keep = np.flatnonzero(alive & whole)
        return keep, np.where(has_id, ids, -1)[keep]

    def parts(self) -> Iterator[Part]:
        """Give what is kept, in blocks."""
        n_bits = int(self._hasher.n_bits)
        for start in range(0, len(self.keep), ROWS_PER_BLOCK):
            block = slice(start, start + ROWS_PER_BLOCK)
            if self._content == "vectors":
                vectors = np.asarray(self._arrays["vectors"][self._order[self.keep[block]]])
                part = Part(self.ids[block], self._hasher.encode(vectors), vectors)
            else:
                tiles = Tiles(self._arrays["codes"], self._record.n, n_bits)
                part = Part(self.ids[block], tiles.take(self.keep[block]), None)
            names = self.names[block] if self.names else None
            yield replace(part, names=names, payload=self._rows_of_payload(self.keep[block]))

    def _rows_of_payload(self, positions: Ids) -> Any:
        """Columns of some positions, nulls where it is unknown which vector has them."""
        if self.columns is None:
            return None
        return taken(self.columns, positions, self._known[positions])

    def _columns(self) -> Any:
        """The payload, or None if there is none or it is damaged."""
        file = self._record.files.get("payload")
        if file is None:
            return None
        try:
            return Payload.open(self._folder, file, self.n).table
        except (FormatError, OSError) as error:
            self._report.problems.append(_sentence(self._folder.path / file.name, error))
            return None

    def _names(self) -> list[bytes | None]:
        """Names of what is kept, None where they are lost; empty for an index of integers."""
        if not self.has_names:
            return []
        if not {"names", "ends"} <= self._arrays.keys():
            return [None] * len(self.keep)
        text, ends = self._arrays["names"], self._arrays["ends"]
        starts = np.concatenate([[0], ends[:-1]])
        known = self._known & self._whole["ends"] & np.concatenate([[True], self._whole["ends"][:-1]])
        known &= (starts < ends) & (ends <= len(text)) & (starts >= 0)
        damaged_before = np.concatenate([[0], np.cumsum(~self._whole["names"])])
        known[known] = damaged_before[ends[known]] == damaged_before[starts[known]]
        return [bytes(text[starts[at] : ends[at]]) if known[at] else None for at in self.keep.tolist()]

    def _ids(self) -> tuple[Ids, Any]:
        n = self._record.n
        if self._record.first_id is not None:
            return np.arange(self._record.first_id, self._record.first_id + n), np.ones(n, dtype=bool)
        if "ids" not in self._arrays:
            return np.full(n, -1, dtype=np.int64), np.zeros(n, dtype=bool)
        ids = self._arrays["ids"]
        return ids, self._whole["ids"] & (ids >= 0)

    def _rows(self) -> tuple[Ids, Any]:
        """Row of each position, and whether it is known; positions whose row is lost get the rows that are left."""
        n = self._record.n
        if "rows" not in self._record.files:
            return np.arange(n), self._in_order() if self._guessed else np.ones(n, dtype=bool)
        if "rows" not in self._arrays:
            return np.arange(n), np.zeros(n, dtype=bool)
        rows = self._arrays["rows"].astype(np.int64)
        known = self._whole["rows"] & (rows < n)
        left = np.setdiff1d(np.arange(n), rows[known])
        rows[~known] = left[: int((~known).sum())]
        return rows, known

    def _in_order(self) -> Any:
        """Positions that have the code of the vector in the same row; none if most have not, and a file is missing."""
        n = self._record.n
        same = np.ones(n, dtype=bool)
        if "codes" not in self._arrays:
            return same
        codes = Tiles(self._arrays["codes"], n, int(self._hasher.n_bits))
        checked = np.flatnonzero(self._whole_codes() & self._whole["vectors"])
        for start in range(0, len(checked), ROWS_PER_BLOCK):
            rows = checked[start : start + ROWS_PER_BLOCK]
            vectors = np.asarray(self._arrays["vectors"][rows])
            same[rows] = (codes.take(rows).packed == self._hasher.encode(vectors).packed).all(axis=1)
        return same & (same[checked].sum() >= _IN_ORDER * len(checked))

    def _dead(self) -> Any:
        """Positions that were removed; those of damaged blocks may be alive, and come back."""
        n = self._record.n
        known = dead = np.zeros(n, dtype=bool)
        if "dead" not in self._record.files:
            return dead
        if "dead" in self._arrays:
            known = np.repeat(self._whole["dead"], 8)[:n]
            dead = known & np.unpackbits(self._arrays["dead"], count=n, bitorder="little").astype(bool)
        n_unknown = int((~known).sum())
        # without the manifest nobody knows how many were removed
        self._report.revived += min(n_unknown, self._record.n_dead - int(dead.sum()) if self._record.n_dead else n)
        return dead

    def _whole_codes(self) -> Any:
        """Codes in intact blocks."""
        words, n = self._arrays["codes"], self._record.n
        return np.repeat(self._whole["codes"], Tiles(words, n, int(self._hasher.n_bits)).codes_per_tile)[:n]

    def _read(self, kind: str, array: CheckedArray) -> tuple[npt.NDArray[Any], Any]:
        """Return an array, and which of its rows are in intact blocks.

        Vectors stay mapped. Other arrays are read, with zeros in place of damaged blocks.
        """
        whole, n_wrong = np.ones(len(array.array), dtype=bool), 0
        content = np.zeros(array.array.nbytes if kind != "vectors" else 0, dtype=np.uint8)
        row_bytes = array.array.nbytes // len(array.array)
        for place, stream, is_whole in array.blocks_of_file(self._folder):
            if not is_whole:
                whole[place.start // row_bytes : -(-place.stop // row_bytes)] = False
                n_wrong += 1
            elif kind != "vectors":
                content[place] = np.frombuffer(stream.read(place.stop - place.start), dtype=np.uint8)
        if n_wrong and array.file is not None:
            path = self._folder.path / array.file.name
            self._report.problems.append(f"{path}: {n_wrong} blocks do not match their checksums or cannot be read.")
        if kind == "vectors":
            return array.array, whole
        return content.view(array.array.dtype).reshape(array.array.shape), whole


def _check_hasher(hasher: Hasher, manifest: Manifest | None) -> None:
    if manifest is None:
        return
    got, expected = (int(hasher.n_bits), int(hasher.n_features_in_)), (manifest.n_bits, manifest.n_features)
    if got != expected:
        raise DataError(
            f"the hasher makes codes of {got[0]} bits from {got[1]} features, but the index has {expected[0]} bits and "
            f"{expected[1]} features; give the model that the index was built with"
        )


def _manifest(folder: Folder, report: Repair) -> Manifest | None:
    content = folder.read_manifest()
    if content is None:
        report.problems.append(f"{folder.path / MANIFEST_NAME} is missing.")
        return None
    try:
        return Manifest.from_bytes(content, folder.path / MANIFEST_NAME)
    except FormatError as error:
        report.problems.append(_sentence(folder.path / MANIFEST_NAME, error))
        return None


def _hasher(folder: Folder, manifest: Manifest | None, report: Repair) -> Hasher:
    names = [manifest.hasher.name] if manifest is not None else [n for n in folder.names() if kind_of(n) == "hasher"]
    for name in names:
        try:
            return read_hasher(folder, manifest) if manifest is not None else load(folder.path / name)
        except (FormatError, OSError) as error:
            report.problems.append(_sentence(folder.path / name, error))
    raise StorageError(
        f"the hasher of {folder.path} is damaged or gone, and without it there are no codes; "
        "give the model file that the index was built with, by --model or hasher="
    )


def _records(folder: Folder, report: Repair) -> list[SegmentRecord]:
    """Find out which files belong together, without a manifest."""
    groups: dict[Any, dict[str, ArrayFile]] = {}
    labels: dict[Any, Any] = {}
    unread: list[tuple[str, Exception]] = []
    names = [name for name in folder.names() if kind_of(name) not in (None, "hasher", "knowledge")]
    for name in sorted(names, key=lambda name: folder.status(name).st_mtime_ns):  # of two with one id the later counts
        try:
            if kind_of(name) == "payload":
                segment, file = read_payload(folder, name)
                groups.setdefault(segment, {})["payload"] = file
                continue
            kind, _, _, label, file = read_label(folder, name)
        except (FormatError, OSError) as error:
            unread.append((name, error))
            continue
        group = groups.setdefault(label.segment, {})
        labels[label.segment] = (label.first_id, label.n)
        if kind != "dead" or kind not in group or _n_dead(folder, file) > _n_dead(folder, group[kind]):
            group[kind] = file
    for name, reason in unread:
        kind = name.split("-")[0]
        segment, file = salvage_label(folder, name) if kind_of(name) != "payload" else (b"", ArrayFile(name, 0, ""))
        if segment in groups and kind not in groups[segment]:
            groups[segment][kind] = file
        else:
            report.problems.append(_sentence(folder.path / name, reason))
    records = []
    for key, group in groups.items():
        first_id, n = labels.get(key, (None, 0))
        if {"codes", "vectors"} & group.keys() and 1 <= n <= MOST_CODES:
            records.append(SegmentRecord(n, 0, first_id, group))
    return records


def _n_dead(folder: Folder, file: ArrayFile) -> int:
    """Number of dead codes in a bitmap, of which the later one has more; -1 if it is damaged."""
    try:
        kind, shape, dtype, *_ = read_label(folder, file.name)
        bitmap = open_array(folder, file, kind, shape, dtype).check()
    except (FormatError, OSError):
        return -1
    return int(np.bitwise_count(bitmap).sum())


def _sentence(path: Path, error: Exception) -> str:
    text = str(error) if isinstance(error, FormatError) else str(damaged(path, str(error)))
    return text.split(";")[0] + "."
