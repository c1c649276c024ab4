"""Save what is intact of a damaged index.

Arrays are checked block by block, so a flipped bit costs the vectors of one block and not the index. Vectors are
encoded again. A payload is one block: if it does not match its checksum, its vectors are saved with nulls;
if it does, all columns that can be read are saved. If the manifest is lost,
the headers of the files say which of them belong together.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import numpy.typing as npt

from autojacobin.core.files import as_path
from autojacobin.core.parallel import slices
from autojacobin.errors import DataError, FormatError, StorageError
from autojacobin.hashers import Hasher, load
from autojacobin.hashers.base import for_index
from autojacobin.index.array_files import SegmentLabel, open_array, read_label, salvage_array
from autojacobin.index.changes import read_hasher
from autojacobin.index.folder import Folder, clear_os_errors
from autojacobin.index.index import Index
from autojacobin.index.manifest import MANIFEST_NAME, MOST_CODES, ArrayFile, Manifest, SegmentRecord, damaged, kind_of
from autojacobin.index.names import LARGEST_ID, UUID_BYTES, NameTable
from autojacobin.index.payload import Payload, empty_like, joint_schema, matching, read_payload, taken
from autojacobin.index.segment import NONE_DEAD, ROWS_PER_BLOCK, Part
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

    ``source`` may have lost its manifest. Give the hasher of the index in case its own copy is damaged.
    """
    folder, target = Folder(source), as_path(target)
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
            got = int(used.n_bits), int(used.n_features_in_)
            expected = got if manifest is None else (manifest.n_bits, manifest.n_features)
            if got != expected:
                wrong = f"codes of {got[0]} bits from {got[1]} features, expected {expected[0]} from {expected[1]}"
                raise DataError(f"the hasher makes {wrong}; give the model that the index was built with")
            records = _records(folder, report) if manifest is None else list(manifest.segments)
            keep_vectors = manifest.keep_vectors if manifest is not None else any("vectors" in r.files for r in records)
            segments = [_Salvage(folder, record, used, keep_vectors, report) for record in records]
        kind = _kind_of_ids(segments) if manifest is None else manifest.id_kind
        next_id = _number(segments, 0 if manifest is None else manifest.next_id, kind, report)
        # a crash may have left segments without the newest columns
        schema = joint_schema([segment.columns for segment in segments if segment.columns is not None])
        for segment in segments:
            segment.drop_other_types(schema)
        parts = (part for segment in segments for part in segment.parts(schema))
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
    """Give new ids to vectors that lost theirs, keep the last vector of each id, and give the next free id."""
    ids = np.concatenate([np.empty(0, dtype=np.int64), *(segment.ids for segment in segments)])
    names = []
    if kind in ("string", "uuid"):
        names = [name for segment in segments for name in segment.names]
        report.renumbered, next_id = names.count(None), len(ids)
        ids, names = np.arange(len(ids)), _with_new_names(names, kind)  # inside, numbers stand for names
    else:
        lost = ids < 0
        report.renumbered, first = int(lost.sum()), max(next_id, int(ids.max(initial=-1)) + 1)
        if first + report.renumbered <= LARGEST_ID + 1:
            next_id = first + report.renumbered
            ids[lost] = np.arange(first, next_id)
        else:  # there are no larger ones; enough of the first are free
            ids[lost], next_id = np.setdiff1d(np.arange(len(ids)), ids)[: report.renumbered], first
    backwards = np.array(names, dtype=object)[::-1] if names else ids[::-1]
    last, end = np.zeros(len(ids), dtype=bool), 0
    last[len(ids) - 1 - np.unique(backwards, return_index=True)[1]] = True
    for segment in segments:
        start, end = end, end + len(segment.ids)
        kept = last[start:end]
        segment.ids, segment.keep = ids[start:end][kept], segment.keep[kept]
        segment.names = [name for name, keep in zip(names[start:end], kept, strict=False) if keep]
    return next_id


def _with_new_names(names: list[bytes | None], kind: str) -> list[bytes]:
    """Give a name to all that have none: ``recovered-0`` and so on, or a random UUID."""
    used = set(names)
    fresh = (f"recovered-{number}".encode() for number in count())
    free = (name for name in fresh if name not in used) if kind == "string" else (uuid4().bytes for _ in count())
    return [next(free) if name is None else name for name in names]


def _kind_of_ids(segments: list[_Salvage]) -> str | None:
    """The kind of the ids of an index without a manifest; UUIDs are 16 bytes that are seldom text."""
    if not any(segment.has_names for segment in segments):
        return "integer" if segments else None
    names = [name for segment in segments for name in segment.names if name is not None]
    if any(len(name) != UUID_BYTES for name in names):
        return "string"
    is_text = b"\0" not in b"".join(names) and (not names or NameTable.of(names).problem("string") is None)
    return "string" if is_text else "uuid"


class _Salvage:
    """What can be read of one segment."""

    keep: Ids  # positions of live codes that can be saved
    ids: Ids  # of these; -1 where they are lost
    names: list[Any]  # of these; None where they are lost

    def __init__(
        self, folder: Folder, record: SegmentRecord, hasher: Hasher, keep_vectors: bool, report: Repair
    ) -> None:
        self._folder, self._record, self._hasher, self._report = folder, record, hasher, report
        n = record.n
        self._arrays: dict[str, npt.NDArray[Any]] = {}
        self._whole: dict[str, npt.NDArray[np.bool_]] = {}
        self._read("codes", shape_of(n, int(hasher.n_bits)), np.uint64)
        self._read("ids", (n,), np.int64)
        self._read("rows", (n,), np.uint32)
        self._read("dead", (-(-n // 8),), np.uint8)
        self._read("vectors", (n, int(hasher.n_features_in_)), None)
        self._read("ends", (n,), np.int64)
        ends = self._arrays.get("ends")
        self._read("names", (int(ends[-1]) if ends is not None and self._whole["ends"][-1] else None,), np.uint8)
        self.columns = self._payload()
        self.has_names = bool(record.files.keys() & {"names", "ends"})
        self._content = "vectors" if keep_vectors else "codes"
        if self._content not in self._arrays:  # nothing can be saved; and n may be forged, and large
            report.lost += n - int(np.unpackbits(self._arrays.get("dead", NONE_DEAD)).sum())
            self.keep, self.ids, self.names = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64), []
            return
        self._order, self._known = self._rows()
        dead = self._dead() & self._known  # it is known of positions, not of vectors that lost theirs
        whole = self._whole["vectors"][self._order] if keep_vectors else self._whole_codes()
        report.lost += int((~dead & ~whole).sum())
        self.keep = np.flatnonzero(~dead & whole)
        self.ids = np.where(self._known, self._ids(), -1)[self.keep]
        self.names = self._names()

    def parts(self, schema: Any) -> Iterator[Part]:
        """Give what is kept, in blocks, with the columns of ``schema`` unless that is None."""
        columns = self.columns
        if schema is not None:
            columns = empty_like(schema, self._record.n) if columns is None else matching(columns, schema)
        for block in slices(len(self.keep), ROWS_PER_BLOCK):
            keep = self.keep[block]
            vectors = np.asarray(self._arrays["vectors"][self._order[keep]]) if self._content == "vectors" else None
            yield Part(
                self.ids[block],
                self._tiles().take(keep) if vectors is None else self._hasher.encode(vectors),
                vectors,
                self.names[block] if self.names else None,
                None if columns is None else taken(columns, keep, self._known[keep]),
            )

    def _read(self, kind: str, shape: tuple[int | None, ...], dtype: Any) -> None:
        """Read an array, with zeros in place of damaged blocks, and which of its rows are intact; map vectors."""
        file = self._record.files.get(kind)
        if file is None:
            return
        path = self._folder.path / file.name
        try:
            array = open_array(self._folder, file, kind, shape, dtype)
        except (FormatError, OSError) as error:
            self._report.problems.append(_sentence(path, error))
            try:
                array = salvage_array(self._folder, file, kind, tuple(length or 0 for length in shape), dtype)
            except (FormatError, OSError):
                return
        found = array.array
        whole, n_wrong, row_bytes = np.ones(len(found), dtype=bool), 0, found.nbytes // max(1, len(found))
        content = np.zeros(found.nbytes if kind != "vectors" else 0, dtype=np.uint8)
        for place, stream, is_whole in array.blocks_of_file(self._folder):
            if not is_whole:
                whole[place.start // row_bytes : -(-place.stop // row_bytes)] = False
                n_wrong += 1
            elif kind != "vectors":
                content[place] = np.frombuffer(stream.read(place.stop - place.start), dtype=np.uint8)
        if n_wrong:
            self._report.problems.append(f"{path}: {n_wrong} blocks do not match their checksums or cannot be read.")
        self._whole[kind] = whole
        self._arrays[kind] = found if kind == "vectors" else content.view(found.dtype).reshape(found.shape)

    def _payload(self) -> Any:
        """The columns, or None if there are none or they are damaged."""
        file = self._record.files.get("payload")
        if file is None:
            return None
        path = self._folder.path / file.name
        try:
            table, wrong = Payload(None, file, self._folder, self._record.n).intact_columns()
        except (FormatError, OSError) as error:
            self._report.problems.append(_sentence(path, error))
            return None
        self._report.problems += [f"{path}: {problem}." for problem in wrong]
        return table if table.num_columns else None

    def drop_other_types(self, schema: Any) -> None:
        """Drop columns whose values do not fit the type that the column has in another segment."""
        for name in () if self.columns is None else self.columns.column_names:
            assert self.columns is not None
            try:
                matching(self.columns.select([name]), schema)
            except DataError as error:
                path = self._folder.path / self._record.files["payload"].name
                self._report.problems.append(f"{path}: {str(error).partition(';')[0]}.")
                self.columns = self.columns.drop_columns([name])
        if self.columns is not None and not self.columns.num_columns:
            self.columns = None

    def _ids(self) -> Ids:
        """Id of each position, -1 where it is lost."""
        n = self._record.n
        if self._record.first_id is not None:
            return np.arange(self._record.first_id, self._record.first_id + n)
        return np.where(self._whole["ids"], self._arrays["ids"], -1) if "ids" in self._arrays else np.full(n, -1)

    def _names(self) -> list[bytes | None]:
        """Names of what is kept, None where they are lost or ids are integers."""
        if not {"names", "ends"} <= self._arrays.keys():
            return [None] * len(self.keep)
        text, ends = self._arrays["names"], self._arrays["ends"]
        starts = np.concatenate([[0], ends[:-1]])
        known = self._known & self._whole["ends"] & np.concatenate([[True], self._whole["ends"][:-1]])
        known &= (starts >= 0) & (starts < ends) & (ends <= len(text))
        damaged_before = np.concatenate([[0], np.cumsum(~self._whole["names"])])
        known[known] = damaged_before[ends[known]] == damaged_before[starts[known]]
        return [bytes(text[starts[at] : ends[at]]) if known[at] else None for at in self.keep.tolist()]

    def _rows(self) -> tuple[Ids, npt.NDArray[np.bool_]]:
        """Row of each position, and whether it is known; positions whose row is lost get the rows that are left."""
        n = self._record.n
        rows, known = np.arange(n), np.ones(n, dtype=bool)
        if self._content == "codes":
            return rows, known
        if "rows" not in self._arrays:
            return rows, known & ("rows" not in self._record.files and self._is_in_order())
        rows = self._arrays["rows"].astype(np.int64)
        known = self._whole["rows"] & (rows < n)  # a forged file may have a right checksum
        rows[~known] = np.setdiff1d(np.arange(n), rows[known])[: int((~known).sum())]
        return rows, known

    def _is_in_order(self) -> bool:
        """Whether vectors have the order of their codes. If the manifest is lost, so may be the file that denies it."""
        if "codes" not in self._arrays:
            return True
        rows = np.flatnonzero(self._whole_codes() & self._whole["vectors"])[:ROWS_PER_BLOCK]
        codes = self._hasher.encode(np.asarray(self._arrays["vectors"][rows])) if len(rows) else None
        same = codes is None or (self._tiles().take(rows).packed == codes.packed).all(axis=1).mean()
        return bool(same >= _IN_ORDER)

    def _dead(self) -> npt.NDArray[np.bool_]:
        """Positions that were removed; those of damaged blocks may be alive, and come back."""
        n = self._record.n
        known = dead = np.zeros(n, dtype=bool)
        if "dead" not in self._record.files:
            return dead
        if "dead" in self._arrays:
            known = np.repeat(self._whole["dead"], 8)[:n]
            dead = known & np.unpackbits(self._arrays["dead"], count=n, bitorder="little").astype(bool)
        # without the manifest nobody knows how many were removed
        unseen = self._record.n_dead - int(dead.sum()) if self._record.n_dead else n
        self._report.revived += min(int((~known).sum()), unseen) + int((dead & ~self._known).sum())
        return dead

    def _tiles(self) -> Tiles:
        return Tiles(self._arrays["codes"], self._record.n, int(self._hasher.n_bits))

    def _whole_codes(self) -> npt.NDArray[np.bool_]:
        """Codes in intact blocks."""
        return np.repeat(self._whole["codes"], self._tiles().codes_per_tile)[: self._record.n]


def _manifest(folder: Folder, report: Repair) -> Manifest | None:
    path = folder.path / MANIFEST_NAME
    try:
        manifest = folder.manifest()
        report.problems += [f"{path} is missing."] if manifest is None else []
        return manifest
    except FormatError as error:
        report.problems.append(_sentence(path, error))
        return None


def _hasher(folder: Folder, manifest: Manifest | None, report: Repair) -> Hasher:
    names = [manifest.hasher.name] if manifest is not None else [n for n in folder.names() if kind_of(n) == "hasher"]
    for name in names:
        try:
            return read_hasher(folder, manifest) if manifest is not None else load(folder.path / name)
        except (FormatError, OSError) as error:
            report.problems.append(_sentence(folder.path / name, error))
    raise StorageError(f"the hasher of {folder.path} is damaged or gone; give the model file by --model or hasher=")


def _records(folder: Folder, report: Repair) -> list[SegmentRecord]:
    """Find out which files belong together, without a manifest."""
    groups: dict[bytes, dict[str, ArrayFile]] = {}
    labels: dict[bytes, SegmentLabel] = {}
    names = [name for name in folder.names() if kind_of(name) not in (None, "hasher", "knowledge")]
    for name in sorted(names, key=lambda name: folder.status(name).st_mtime_ns):  # of two with one id the later counts
        kind = str(kind_of(name))
        try:
            if kind == "payload":
                segment, file = read_payload(folder, name)
            else:
                label, file = read_label(folder, name)
                segment = label.segment
                labels[segment] = label
            groups.setdefault(segment, {})[kind] = file
        except (FormatError, OSError) as error:
            report.problems.append(_sentence(folder.path / name, error))
    records = []
    for segment, files in groups.items():
        if {"codes", "vectors"} & files.keys() and 1 <= labels[segment].n <= MOST_CODES:
            n, first_id = labels[segment].n, labels[segment].first_id
            forged = first_id is not None and first_id > LARGEST_ID + 1 - n
            records.append(SegmentRecord(n, 0, None if forged else first_id, files))
    return records


def _sentence(path: Path, error: Exception) -> str:
    text = str(error) if isinstance(error, FormatError) else str(damaged(path, str(error)))
    return text.split(";")[0] + "."
