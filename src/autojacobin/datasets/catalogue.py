"""Named data sets: where they are kept, how they are fetched and loaded."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from pathlib import Path

from autojacobin.core.addresses import redacted_address
from autojacobin.datasets.download import fetch
from autojacobin.datasets.entries import CATALOGUE, Entry
from autojacobin.datasets.local import VectorSet, open_local
from autojacobin.datasets.prepared import cache_place
from autojacobin.datasets.sources import LAYOUTS
from autojacobin.errors import DataError, DataTypeError, FormatError, StorageError

__all__ = [
    "CATALOGUE", "Entry", "VectorSet", "data_folder", "fetch_set", "is_here",
    "load_set",
]  # fmt: skip


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
    text = _as_text(name, "a data set")
    if isinstance(name, str) and name in CATALOGUE:
        entry = CATALOGUE[name]
        return LAYOUTS[entry.layout].read(entry, _files_of(entry, folder))
    home = data_folder(folder) if folder is not None or os.environ.get(_DATA_VARIABLE) else None
    places = [Path(text)] if home is None else [home / text, Path(text)]
    for place in places:
        if text and os.path.exists(place):  # which takes any text, as Path.exists does not
            return open_local(place)
    where = f"nor is there such a file or folder here{f' or in {home}' if home is not None else ''}"
    raise DataError(
        f"no data set is called {redacted_address(text)!r}, expected one of: {', '.join(CATALOGUE)}; {where}"
    )


def fetch_set(
    name: str,
    folder: str | os.PathLike[str] | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> VectorSet:
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
        home = fetch(entry, data_folder(folder), progress)
        if not is_here(name, folder):
            raise FormatError(
                f"what was fetched for the set {name} does not hold its files, expected {entry.by_hand}; "
                f"look into {home}, delete what is wrong there and fetch it again"
            )
    return load_set(name, folder)


def is_here(name: str, folder: str | os.PathLike[str] | None = None) -> bool:
    """Whether all files of a set of the catalogue are on this machine, and can be looked at."""
    try:
        return _found(_entry(name), folder) is not None
    except StorageError:
        return False


def data_folder(folder: str | os.PathLike[str] | None = None) -> Path:
    """Give the folder that sets are kept in: ``folder``, or ``$AUTOJACOBIN_DATA``, or ``sets`` in the cache."""
    chosen = _as_text(folder, "the data folder") if folder is not None else os.environ.get(_DATA_VARIABLE, "")
    if chosen:
        return Path(chosen).expanduser()
    return cache_place() / "sets"


def _entry(name: str) -> Entry:
    if not isinstance(name, str) or name not in CATALOGUE:
        shown = redacted_address(name) if isinstance(name, str) else name
        raise DataError(f"no data set is called {shown!r}, expected one of: {', '.join(CATALOGUE)}")
    return CATALOGUE[name]


def _as_text(path: str | os.PathLike[str], what: str) -> str:
    try:
        return os.fsdecode(path)
    except TypeError:
        raise DataTypeError(f"{what} is named by text or a path, got {type(path).__name__}") from None


def _found(entry: Entry, folder: str | os.PathLike[str] | None) -> dict[str, Path] | None:
    if entry.kind == "built in":
        return {}
    for place in (data_folder(folder) / entry.name, *map(Path, entry.elsewhere)):
        files = LAYOUTS[entry.layout].find(entry, place) if os.path.isdir(place) else None
        if files is not None:
            return files
    return None


def _files_of(entry: Entry, folder: str | os.PathLike[str] | None) -> dict[str, Path]:
    files = _found(entry, folder)
    if files is None:
        place = data_folder(folder) / entry.name
        if not entry.files:
            raise StorageError(_by_hand(entry, place))
        there = "" if folder is None else f" --data {shlex.quote(str(place.parent))}"
        raise StorageError(
            f"the set {entry.name} is not in {place}; fetch it with: autojacobin data fetch {entry.name}{there}, "
            f"which downloads it, or unpacks what you have put there: {entry.by_hand}"
        )
    return files


def _by_hand(entry: Entry, place: Path) -> str:
    return f"the set {entry.name} is not in {place} and cannot be fetched by a program; put there {entry.by_hand}"
