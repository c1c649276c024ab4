"""The manifest of an index: one JSON file that says which files make up its state, and how files are named."""

from __future__ import annotations

import json
import re
import secrets
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import xxhash

from autojacobin.core.version import VERSION
from autojacobin.errors import FormatError
from autojacobin.index.metric import EUCLIDEAN, Metric
from autojacobin.index.names import ID_KINDS, LARGEST_ID

FORMAT_VERSION = 3
MANIFEST_NAME = "MANIFEST.json"
MOST_CODES = 2**24  # in a segment; a forged number must not take all memory
_MOST_BITS = 2**20
_MOST_FEATURES = 2**32
_NO_DIGEST = b"0" * 16
_DIGEST = re.compile(rb'\A\{\n "checksum": "([0-9a-f]{16})",\n')
_SUFFIXES = {"payload": "arrow", "hasher": "safetensors", "knowledge": "safetensors"} | dict.fromkeys(
    ("codes", "ids", "rows", "vectors", "dead", "blocks", "offsets", "bounds", "order", "names", "ends", "hashes",
     "places"), "bin"
)  # fmt: skip
_NAME = re.compile(r"([a-z]+)-[0-9a-f]{16}\.([a-z]+)")


@dataclass(frozen=True)
class ArrayFile:
    """A file as the manifest names it. ``checksum`` is that of an array's header, or of the whole of another file."""

    name: str
    size: int
    checksum: str


def new_name(kind: str) -> str:
    """Name a new file with 64 random bits, so that no name is used twice."""
    return f"{kind}-{secrets.token_hex(8)}.{_SUFFIXES[kind]}"


def kind_of(name: str) -> str | None:
    """The kind of a file of an index; None for any other name."""
    found = _NAME.fullmatch(name)
    return found.group(1) if found is not None and _SUFFIXES.get(found.group(1)) == found.group(2) else None


def damaged(path: Path, what: str) -> FormatError:
    """Return the error for a file whose content is not what was written."""
    return FormatError(
        f"{path} is damaged or is not part of this index, got {what}; restore it from a copy, "
        f"or save what is intact with: autojacobin index repair {path.parent} NEW_FOLDER"
    )


def other_format(path: Path, version: int) -> FormatError:
    """Return the error for a file of an earlier or later format."""
    advice = "install a newer version" if version > FORMAT_VERSION else "build the index again from the vectors"
    return FormatError(f"{path} has index format {version}, expected {FORMAT_VERSION}; {advice}")


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
        found = {kind: _array_file(file, kind) for kind, file in files.items()}
        return cls(n, _whole(record, "n_dead", 0, n), first_id, found)


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
    columns: str | None = None  # of an index whose last vector was removed: their Arrow schema, in base64

    def names(self) -> set[str]:
        """Names of all files of this state but the manifest's own."""
        files = [self.hasher, *(file for segment in self.segments for file in segment.files.values())]
        return {file.name for file in (*files, self.knowledge) if file is not None}

    def to_bytes(self) -> bytes:
        """JSON with a checksum over all its bytes, the 16 digits of the checksum itself counted as zeros."""
        header = {
            "checksum": _NO_DIGEST.decode(),  # stays the first key, where readers look for it
            "format": "autojacobin index",
            "format_version": FORMAT_VERSION,
            "library_version": VERSION,
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
            knowledge = fields.get("knowledge")
            manifest = cls(
                generation=_whole(fields, "generation", 0, LARGEST_ID),
                n_bits=_whole(fields, "n_bits", 1, _MOST_BITS),
                n_features=_whole(fields, "n_features", 1, _MOST_FEATURES),
                keep_vectors=_field(fields, "keep_vectors", bool),
                next_id=_whole(fields, "next_id", 0, LARGEST_ID + 1),
                hasher=_array_file(fields.get("hasher"), "hasher"),
                segments=tuple(SegmentRecord.from_json(record) for record in _field(fields, "segments", list)),
                partitions=_partitions(fields),
                id_kind=_choice(fields, "id_kind", (None, *ID_KINDS)),
                metric=Metric(**_field(fields, "metric", dict)),
                knowledge=None if knowledge is None else _array_file(knowledge, "knowledge"),
                n_changed=_whole(fields, "n_changed", 0, LARGEST_ID),
                columns=None if fields.get("columns") is None else _field(fields, "columns", str),
            )
        except (ValueError, TypeError, RecursionError) as error:
            raise damaged(path, f"a manifest with a wrong entry ({error})") from error
        n_files = 1 + (manifest.knowledge is not None) + sum(len(segment.files) for segment in manifest.segments)
        if len(manifest.names()) != n_files:
            raise damaged(path, "a manifest that names a file twice")
        return manifest


def _partitions(fields: Any) -> int | str | None:
    if type(fields.get("partitions")) is int:
        return _whole(fields, "partitions", 1, MOST_CODES)
    return _choice(fields, "partitions", (None, "auto"))


def _choice(fields: Any, name: str, allowed: tuple[str | None, ...]) -> str | None:
    value: str | None = fields.get(name)
    if value not in allowed:
        raise ValueError(f"{name} is {value!r:.50}")
    return value


def _array_file(record: Any, kind: str) -> ArrayFile:
    name = _field(record, "name", str)
    if kind_of(name) != kind:  # it could be a path that leads out of the folder
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
