"""The manifest of an index: one JSON file that says which files make up its state."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import xxhash

from autojacobin.index.array_files import FORMAT_VERSION, ArrayFile, damaged, other_format
from autojacobin.index.metrics import EUCLIDEAN, Metric
from autojacobin.index.names import ID_KINDS
from autojacobin.index.storage import is_hasher_name, is_knowledge_name, is_part_name

__all__ = ["LARGEST_ID", "MOST_CODES", "Manifest", "SegmentRecord"]

LARGEST_ID = 2**63 - 1
_NO_DIGEST = b"0" * 16
_DIGEST = re.compile(rb'\A\{\n "checksum": "([0-9a-f]{16})",\n')
MOST_CODES = 2**24  # in a segment; a forged number must not take all memory
_MOST_BITS = 2**20
_MOST_FEATURES = 2**32


@dataclass(frozen=True)
class SegmentRecord:
    """A segment in the manifest: codes, how many of them are dead, the first id if ids are consecutive, files."""

    n: int
    n_dead: int
    first_id: int | None
    files: dict[str, ArrayFile]

    @classmethod
    def from_json(cls, record: Any) -> SegmentRecord:
        """Read what ``asdict`` wrote."""
        n = _whole(record, "n", 1, MOST_CODES)
        files = _field(record, "files", dict)
        first_id = None if record.get("first_id") is None else _whole(record, "first_id", 0, LARGEST_ID + 1 - n)
        return cls(
            n=n,
            n_dead=_whole(record, "n_dead", 0, n),
            first_id=first_id,
            files={
                kind: _array_file(file, is_part_name(_field(file, "name", str), kind)) for kind, file in files.items()
            },
        )


@dataclass(frozen=True)
class Manifest:
    """A state of an index."""

    generation: int
    n_bits: int
    n_features: int
    keep_vectors: bool
    next_id: int
    hasher: ArrayFile
    segments: tuple[SegmentRecord, ...] = ()
    partitions: int | str | None = None
    id_kind: str | None = None
    metric: Metric = EUCLIDEAN
    knowledge: ArrayFile | None = None
    n_changed: int = 0

    def names(self) -> set[str]:
        """Names of all files of this state but the manifest's own."""
        files = [self.hasher, *(file for segment in self.segments for file in segment.files.values())]
        return {file.name for file in (*files, self.knowledge) if file is not None}

    def followed_by(self, **changes: Any) -> Manifest:
        """Give the state after this one, with other values for some fields."""
        return replace(self, generation=self.generation + 1, **changes)

    def to_bytes(self) -> bytes:
        """JSON with a checksum over all its bytes, the 16 digits of the checksum itself counted as zeros."""
        header = {
            "checksum": _NO_DIGEST.decode(),  # stays the first key, where readers look for it
            "format": "autojacobin index",
            "format_version": FORMAT_VERSION,
            "library_version": version("autojacobin"),
        }
        content = json.dumps(header | asdict(self), indent=1).encode() + b"\n"
        return content.replace(_NO_DIGEST, xxhash.xxh64_hexdigest(content).encode(), 1)

    @classmethod
    def from_bytes(cls, content: bytes, path: Path) -> Manifest:
        """Read what ``to_bytes`` wrote; ``path`` is for the messages."""
        found = _DIGEST.match(content)
        if found is None:
            raise damaged(path, "no manifest of this library")
        start, end = found.span(1)
        if xxhash.xxh64_hexdigest(content[:start] + _NO_DIGEST + content[end:]) != found.group(1).decode():
            raise damaged(path, "content that does not match its checksum")
        try:
            fields = json.loads(content)
            format_version = _whole(fields, "format_version", 1, LARGEST_ID)
            if format_version != FORMAT_VERSION:
                raise other_format(path, format_version)
            hasher = _field(fields, "hasher", dict)
            manifest = cls(
                generation=_whole(fields, "generation", 0, LARGEST_ID),
                n_bits=_whole(fields, "n_bits", 1, _MOST_BITS),
                n_features=_whole(fields, "n_features", 1, _MOST_FEATURES),
                keep_vectors=_field(fields, "keep_vectors", bool),
                next_id=_whole(fields, "next_id", 0, LARGEST_ID + 1),
                hasher=_array_file(hasher, is_hasher_name(_field(hasher, "name", str))),
                segments=tuple(SegmentRecord.from_json(record) for record in _field(fields, "segments", list)),
                partitions=_partitions(fields.get("partitions")),
                id_kind=_id_kind(fields),
                metric=Metric(**_field(fields, "metric", dict)),
                knowledge=_knowledge(fields.get("knowledge")),
                n_changed=_whole(fields, "n_changed", 0, LARGEST_ID),
            )
        except (ValueError, TypeError, RecursionError) as error:
            raise damaged(path, f"a manifest with a wrong entry ({error})") from error
        n_files = 1 + (manifest.knowledge is not None) + sum(len(segment.files) for segment in manifest.segments)
        if len(manifest.names()) != n_files:
            raise damaged(path, "a manifest that names a file twice")
        return manifest


def _partitions(value: Any) -> int | str | None:
    if value is not None and value != "auto" and not (type(value) is int and 1 <= value <= MOST_CODES):
        raise ValueError(f"partitions is {value!r:.50}")
    found: int | str | None = value
    return found


def _knowledge(record: Any) -> ArrayFile | None:
    return None if record is None else _array_file(record, is_knowledge_name(_field(record, "name", str)))


def _id_kind(fields: Any) -> str | None:
    """The kind of the ids; None before the first vector is added."""
    kind: str | None = fields.get("id_kind")
    if kind not in (None, *ID_KINDS):
        raise ValueError(f"id_kind is {kind!r:.50}")
    return kind


def _array_file(record: dict[str, Any], name_is_right: bool) -> ArrayFile:
    name = _field(record, "name", str)
    if not name_is_right:  # it could be a path that leads out of the folder
        raise ValueError(f"the file name {name!r}")
    return ArrayFile(name, _whole(record, "size", 0, LARGEST_ID), _field(record, "checksum", str))


def _field(record: Any, name: str, kind: type) -> Any:
    value = record.get(name) if isinstance(record, dict) else None
    if type(value) is not kind:
        raise ValueError(f"{name} is {value!r:.50}")
    return value


def _whole(record: Any, name: str, least: int, most: int) -> int:
    value: int = _field(record, name, int)
    if not least <= value <= most:
        raise ValueError(f"{name} is {value!r:.50}")
    return value
