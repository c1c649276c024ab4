"""Load and fetch data sets by their names, and find the folder that they are kept in."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from autojacobin.core.addresses import redacted_address
from autojacobin.core.files import clear_os_errors
from autojacobin.core.parallel import Progress
from autojacobin.datasets.download import fetch_file
from autojacobin.datasets.entries import CATALOGUE, Entry
from autojacobin.datasets.local import VectorSet, open_local
from autojacobin.datasets.prepared import cache_path
from autojacobin.datasets.sources import LAYOUTS
from autojacobin.errors import DataError, FormatError, StorageError

_DATA_VARIABLE = "AUTOJACOBIN_DATA"


def load_set(name: str | os.PathLike[str], folder: str | os.PathLike[str] | None = None) -> VectorSet:
    """Load a set by its name or by its path; its vectors are memory-mapped and not scaled.

    Parameters
    ----------
    name : str or path
        A name of the catalogue (``autojacobin data list``), the name of a folder or file in the data folder, or the
        path of one. A folder holds ``learn``, ``base``, ``query`` and perhaps ``groundtruth`` files in any format that
        :func:`open_vectors` reads; a single file is split, see ``docs/datasets.md``. A name of the catalogue
        comes first; ``./mnist`` is the path.
    folder : path, optional
        The data folder; by default that of :func:`data_folder`.

    Examples
    --------
    >>> from autojacobin.datasets import load_set
    >>> load_set("digits").base.shape
    (1497, 64)
    """
    text = os.fsdecode(name)
    if isinstance(name, str) and name in CATALOGUE:
        entry = CATALOGUE[name]
        return LAYOUTS[entry.layout].read(entry, _files_of(entry, folder))
    data = data_folder(folder) if folder is not None or os.environ.get(_DATA_VARIABLE) else None
    for path in [Path(text)] if data is None else [data / text, Path(text)]:
        if text and os.path.exists(path):  # unlike Path.exists, this takes any text
            return open_local(path)
    where = "here" if data is None else f"here or in {data}"
    raise DataError(f"{_unknown(text)}; nor is there such a file or folder {where}")


def fetch_set(name: str, folder: str | os.PathLike[str] | None = None, progress: Progress | None = None) -> VectorSet:
    """Download a set of the catalogue into the data folder, unless it is there already, and load it.

    Parameters
    ----------
    name : str
        A name of the catalogue.
    folder : path, optional
        The data folder; by default that of :func:`data_folder`.
    progress : callable, optional
        Called as ``progress(stage, done, total)``, in bytes; ``total`` is 0 where it is not known.
    """
    entry = _entry(name)
    if not is_here(name, folder):
        if not entry.files:
            raise DataError(_by_hand(entry, data_folder(folder) / name))
        target = data_folder(folder) / name
        with clear_os_errors(f"make the folder {target}", "choose another one with --data or AUTOJACOBIN_DATA"):
            target.mkdir(parents=True, exist_ok=True)
        for remote in entry.files:
            with clear_os_errors(
                f"read or keep {remote.name} in {target}", "check its permissions, or make room there"
            ):
                fetch_file(remote, target, progress)
        if not is_here(name, folder):
            raise FormatError(
                f"the download of the set {name} lacks some of its files, expected {entry.by_hand}; "
                f"look into {target}, delete what is wrong there and fetch it again"
            )
    return load_set(name, folder)


def is_here(name: str, folder: str | os.PathLike[str] | None = None) -> bool:
    """Whether all files of a set in the catalogue are on this machine and can be read."""
    try:
        return _found(_entry(name), folder) is not None
    except StorageError:
        return False


def data_folder(folder: str | os.PathLike[str] | None = None) -> Path:
    """Give the folder that sets are kept in: ``folder``, or ``$AUTOJACOBIN_DATA``, or ``sets`` in the cache."""
    chosen = os.fsdecode(folder) if folder is not None else os.environ.get(_DATA_VARIABLE, "")
    if chosen:
        return Path(chosen).expanduser()
    return cache_path() / "sets"


def _entry(name: str) -> Entry:
    if not isinstance(name, str) or name not in CATALOGUE:
        raise DataError(_unknown(name))
    return CATALOGUE[name]


def _unknown(name: object) -> str:
    shown = redacted_address(name) if isinstance(name, str) else name
    return f"no data set is called {shown!r}, expected one of: {', '.join(CATALOGUE)}"


def _found(entry: Entry, folder: str | os.PathLike[str] | None) -> dict[str, Path] | None:
    if entry.kind == "built in":
        return {}
    for path in (data_folder(folder) / entry.name, *map(Path, entry.elsewhere)):
        files = LAYOUTS[entry.layout].find(entry, path) if os.path.isdir(path) else None
        if files is not None:
            return files
    return None


def _files_of(entry: Entry, folder: str | os.PathLike[str] | None) -> dict[str, Path]:
    files = _found(entry, folder)
    if files is None:
        path = data_folder(folder) / entry.name
        if not entry.files:
            raise StorageError(_by_hand(entry, path))
        there = "" if folder is None else f" --data {shlex.quote(str(path.parent))}"
        raise StorageError(
            f"the set {entry.name} is not in {path}; fetch it with: autojacobin data fetch {entry.name}{there}, "
            f"which downloads it, or unpacks what you have put there: {entry.by_hand}"
        )
    return files


def _by_hand(entry: Entry, path: Path) -> str:
    return f"the set {entry.name} is not in {path} and cannot be fetched by a program; put there {entry.by_hand}"
