"""The manifest of an index: one JSON file that says which files make up its state."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from autojacobin.search._checksum import checksum
from autojacobin.search.storage import FORMAT_VERSION, ArrayFile, damaged, too_new

__all__ = ["Manifest", "SegmentRecord"]

_NO_DIGEST = b"0" * 16
_DIGEST = re.compile(rb'\A\{\n "checksum": "([0-9a-f]{16})",\n')


@dataclass(frozen=True)
class SegmentRecord:
    """What the manifest says of a segment: vectors, how many of them are dead, the first id if ids are consecutive."""

    n: int
    n_dead: int
    first_id: int | None
    files: dict[str, ArrayFile]


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

    def names(self) -> set[str]:
        """Names of all files of this state but the manifest's own."""
        return {self.hasher.name} | {file.name for segment in self.segments for file in segment.files.values()}

    def followed_by(self, segments: tuple[SegmentRecord, ...], next_id: int) -> Manifest:
        """Give the state after this one."""
        return replace(self, generation=self.generation + 1, segments=segments, next_id=next_id)

    def to_bytes(self) -> bytes:
        """JSON with a checksum over all its bytes, the 16 digits of the checksum itself counted as zeros."""
        header = {
            "checksum": _NO_DIGEST.decode(),  # stays the first key, where readers look for it
            "format": "autojacobin index",
            "format_version": FORMAT_VERSION,
            "library_version": version("autojacobin"),
        }
        content = json.dumps(header | asdict(self), indent=1).encode() + b"\n"
        return content.replace(_NO_DIGEST, checksum(content).encode(), 1)

    @classmethod
    def from_bytes(cls, content: bytes, path: Path) -> Manifest:
        """Read what ``to_bytes`` wrote; ``path`` is for the messages."""
        found = _DIGEST.match(content)
        if found is None:
            raise damaged(path, "no manifest of this library")
        start, end = found.span(1)
        if checksum(content[:start] + _NO_DIGEST + content[end:]) != found.group(1).decode():
            raise damaged(path, "a checksum that does not go with its content")
        try:
            fields: dict[str, Any] = json.loads(content)
            if int(fields["format_version"]) > FORMAT_VERSION:
                raise too_new(path, int(fields["format_version"]))
            return cls(
                generation=int(fields["generation"]),
                n_bits=int(fields["n_bits"]),
                n_features=int(fields["n_features"]),
                keep_vectors=bool(fields["keep_vectors"]),
                next_id=int(fields["next_id"]),
                hasher=_array_file(fields["hasher"]),
                segments=tuple(_segment(record) for record in fields["segments"]),
            )
        except (ValueError, TypeError, KeyError) as error:
            raise damaged(path, f"a manifest without what it should say ({error})") from error


def _segment(record: dict[str, Any]) -> SegmentRecord:
    files = {str(kind): _array_file(file) for kind, file in record["files"].items()}
    first_id = record["first_id"]
    return SegmentRecord(int(record["n"]), int(record["n_dead"]), None if first_id is None else int(first_id), files)


def _array_file(record: dict[str, Any]) -> ArrayFile:
    name = str(record["name"])
    if Path(name).name != name:
        raise ValueError(f"the file name {name!r}")  # a manifest must not lead out of its folder
    return ArrayFile(name, int(record["size"]), str(record["checksum"]))
