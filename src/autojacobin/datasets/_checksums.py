"""Whether a file is the one it should be: by the checksum its owners publish, or else by that of the first fetch."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from pathlib import Path

from autojacobin.core.files import write_atomically
from autojacobin.datasets._entries import RemoteFile
from autojacobin.errors import FormatError

__all__ = ["first_checksum", "keep_checksum", "verify"]

_BYTES_AT_ONCE = 2**20


def verify(
    remote: RemoteFile, path: Path, target: Path, progress: Callable[[str, int, int], None] | None = None
) -> None:
    """Compare the file at ``path`` with what is known of the one that belongs at ``target``."""
    size = path.stat().st_size
    wrong = accept = ""
    if remote.size is not None and size != remote.size:
        wrong = f"it has {size:,} bytes where {remote.size:,} are expected"
    elif remote.checksum is not None:
        method, expected = remote.checksum.split(":")
        got = _digest(path, method, progress)
        wrong = f"its {method} is {got} where {expected} is published" if got != expected else ""
    elif (first := first_checksum(target)) is not None:
        got = _digest(path, "sha256", progress)
        record = _record(target).name
        wrong = f"its sha256 is {got} where that of the first fetch was {first}, says {record}" if got != first else ""
        accept = f"; if its owners have changed the file, delete {_record(target)} first, to accept the new one"
    if wrong:
        advice = f"delete {target} and fetch it again" if path == target else "what came is deleted, fetch it again"
        raise FormatError(f"{target.name} is damaged, or not the file at {remote.shown}: {wrong}; {advice}{accept}")


def keep_checksum(remote: RemoteFile, target: Path, progress: Callable[[str, int, int], None] | None = None) -> None:
    """Write ``NAME.sha256`` beside a file whose owners publish no checksum, if it is not there yet."""
    if remote.checksum is None and first_checksum(target) is None:
        write_atomically(_record(target), f"{_digest(target, 'sha256', progress)}  {target.name}\n".encode())


def _record(target: Path) -> Path:
    return target.with_name(f"{target.name}.sha256")


def first_checksum(target: Path) -> str | None:
    """Give the SHA-256 of a file when it was first fetched, or None if it was not; a damaged record is refused."""
    record = _record(target)
    try:
        words = record.read_text(encoding="utf-8", errors="replace").split(maxsplit=1)
    except FileNotFoundError:
        return None
    if not words or not re.fullmatch("[0-9a-f]{64}", words[0]):
        raise FormatError(
            f"{record} is damaged, expected the SHA-256 of {target.name} as it was first fetched; delete it, and the "
            "next fetch is trusted"
        )
    return words[0]


def _digest(path: Path, method: str, progress: Callable[[str, int, int], None] | None) -> str:
    digest = hashlib.new(method, usedforsecurity=False)  # against accidents: systems may forbid md5 for anything else
    size, done = path.stat().st_size, 0
    with path.open("rb") as stream:
        while piece := stream.read(_BYTES_AT_ONCE):
            digest.update(piece)
            done += len(piece)
            if progress is not None:
                progress(f"checking {path.name.removesuffix('.part')}", done, size)
    return digest.hexdigest()
