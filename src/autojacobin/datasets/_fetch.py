"""A whole set from its sources into its folder: downloaded, checked, unpacked, and left alone if it is there."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from autojacobin.datasets._checksums import first_checksum, keep_checksum, verify
from autojacobin.datasets._download import download
from autojacobin.datasets._entries import Entry, RemoteFile
from autojacobin.datasets._unpack import unpack
from autojacobin.errors import StorageError

__all__ = ["fetch"]


def fetch(
    entry: Entry,
    folder: Path,
    progress: Callable[[str, int, int], None] | None = None,
    *,
    tries: int = 5,
    timeout: float = 30.0,
    pause: float = 1.0,
) -> Path:
    """Bring the files of a set into ``folder/NAME`` and give that folder.

    Files that are there already, also those that somebody put there by hand, are checked and not downloaded again.
    The other parameters are those of ``_download.download``.
    """
    home = folder / entry.name
    try:
        home.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(
            f"cannot make the folder {home}: {error.strerror}; choose another one with --data or AUTOJACOBIN_DATA"
        ) from error
    for remote in entry.files:
        if _is_unpacked(home, remote):
            continue
        target = home / remote.name
        try:
            if remote.checksum is None:
                first_checksum(target)  # or a damaged one would be found out after hours of fetching
            if os.path.isfile(target):
                verify(remote, target, target, progress)
            else:
                download(remote, target, progress, tries=tries, timeout=timeout, pause=pause)
            if remote.unpacked_bytes is not None:
                unpack(target, _unpacked(home, remote), remote.unpacked_bytes, inner=remote.inner, progress=progress)
            keep_checksum(remote, target, progress)  # once it has shown to be whole
            if remote.unpacked_bytes is not None:
                target.unlink()  # its vectors are here now, and it would take their room once more
        except OSError as error:
            if not os.path.exists(target) and _is_unpacked(home, remote):
                continue  # another process did the same, and was faster to take the archive away
            if isinstance(error, StorageError):
                raise
            raise StorageError(
                f"cannot read or keep {target}: {error.strerror or error}; check its permissions, or make room there"
            ) from error
    return home


def _is_unpacked(home: Path, remote: RemoteFile) -> bool:
    return remote.unpacked_bytes is not None and os.path.isdir(_unpacked(home, remote))


def _unpacked(home: Path, remote: RemoteFile) -> Path:
    return home / remote.name.split(".", 1)[0]
