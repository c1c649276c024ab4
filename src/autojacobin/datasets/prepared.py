"""Vectors that have to be unpicked first: split and rewritten once as plain .npy files in the cache, then mapped.

Compressed, textual or unsplit sources cannot be memory-mapped as they are. Their parts are written to a folder of the
cache whose name depends on the source files and on the recipe: a changed file is never mistaken for the old one.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from autojacobin.core.files import whole_folder
from autojacobin.datasets.formats.npy import map_npy
from autojacobin.datasets.formats.source import clear_os_errors
from autojacobin.datasets.pictures import GrowingArray, map_arrays
from autojacobin.errors import FormatError, StorageError

__all__ = ["cache_folder", "cache_place", "draw", "open_prepared", "scatter_rows"]

_CACHE_VARIABLE = "AUTOJACOBIN_CACHE"
_REMEDY = f"set {_CACHE_VARIABLE} to a folder that can be written to"


def cache_folder() -> Path:
    """Give the cache folder, made if it was not there."""
    folder = cache_place()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"cannot make the cache folder {folder}: {error.strerror}; {_REMEDY}") from error
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        raise StorageError(f"cannot write to the cache folder {folder}: no permission; {_REMEDY}")
    return folder


def cache_place() -> Path:
    """Give the path of the cache folder, which need not be there.

    It is what the environment variable ``AUTOJACOBIN_CACHE`` names, or else ``autojacobin`` in the place where the
    platform keeps such things: ``$XDG_CACHE_HOME`` or ``~/.cache``, ``~/Library/Caches`` on macOS,
    ``%LOCALAPPDATA%`` on Windows.
    """
    chosen = os.environ.get(_CACHE_VARIABLE, "")
    try:
        return Path(chosen).expanduser().absolute() if chosen else _usual_place() / "autojacobin"
    except (OSError, RuntimeError) as error:  # nobody knows where the home folder is, or the one that we are in is gone
        raise StorageError(f"cannot tell where the cache folder is: {error}; {_REMEDY}") from error


def _usual_place() -> Path:
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA", "")
        return Path(local) if local else Path.home() / "AppData" / "Local"
    chosen = os.environ.get("XDG_CACHE_HOME", "")
    # the XDG specification asks that relative paths be ignored
    return Path(chosen) if os.path.isabs(chosen) else Path.home() / ".cache"


SEED = 0
_RECORD = "prepared.json"
_RECIPE_VERSION = 2  # to be raised when the same sources would be split or written otherwise


def draw(n: int, *sizes: int) -> list[npt.NDArray[np.int64]]:
    """Draw disjoint sets of rows out of ``n`` with the seed 0, each in ascending order.

    One permutation of all rows is cut into pieces of the given sizes; what is left over belongs to none of them.

    Examples
    --------
    >>> [rows.tolist() for rows in draw(6, 2, 3)]
    [[2, 5], [0, 1, 3]]
    """
    order = np.random.RandomState(SEED).permutation(n)
    cuts = np.cumsum((0, *sizes))
    return [np.sort(order[start:stop]).astype(np.int64) for start, stop in itertools.pairwise(cuts)]


def open_prepared(name: str, sources: Sequence[Path], recipe: str, fill: Callable[[Path], None]) -> dict[str, Any]:
    """Map the arrays of a prepared folder, by their names; ``fill(folder)`` writes it if it is not there.

    Parameters
    ----------
    name : str
        What the folder's name begins with, for people who look into the cache.
    sources : sequence of Path
        The files that the arrays are made from: a change of their place, size or time makes a new folder.
    recipe : str
        What else the arrays depend on.
    fill : callable
        Writes ``.npy`` files into the folder that it is given.
    """
    identity = [str(_RECIPE_VERSION), recipe]
    for source in sources:
        with clear_os_errors(source, "read"):
            status = source.stat()
        identity.append(f"{source.resolve()} {status.st_size} {status.st_mtime_ns}")
    digest = hashlib.sha256(os.fsencode("\n".join(identity))).hexdigest()[:16]  # names need not be UTF-8
    safe_name = re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip(".-") or "set"
    folder = cache_folder() / "prepared" / f"{safe_name}-{digest}"
    if not folder.is_dir():
        _build(folder, fill)
    return map_arrays(folder, _RECORD)


def scatter_rows(blocks: Iterable[npt.NDArray[Any]], roles: Mapping[str, npt.NDArray[np.int64]], folder: Path) -> None:
    """Walk once over blocks of consecutive rows and write those of each role to ``folder/role.npy``.

    ``roles`` names rows in ascending order. Written as streams, and not through a map: a full disk is then an error,
    and not the end of the process.
    """
    with contextlib.ExitStack() as stack:
        arrays: dict[str, GrowingArray] = {}
        start = 0
        for block in blocks:
            for role, rows in roles.items():
                if role not in arrays:
                    array = GrowingArray(folder / f"{role}.npy", block.dtype, block.shape[1:])
                    arrays[role] = stack.enter_context(array)
                first, last = np.searchsorted(rows, (start, start + len(block)))
                arrays[role].append(block[rows[first:last] - start])
            start += len(block)
    expected = max((int(rows[-1]) + 1 for rows in roles.values() if len(rows)), default=0)
    if start < expected:
        raise FormatError(f"the rows end at {start:,} where {expected:,} or more were announced; fetch the file anew")


def _build(folder: Path, fill: Callable[[Path], None]) -> None:
    remedy = "make room there, or set AUTOJACOBIN_CACHE to another folder"
    try:
        folder.parent.mkdir(exist_ok=True)
    except OSError as error:
        raise StorageError(f"cannot make the folder {folder.parent}: {error.strerror}; {remedy}") from error
    with contextlib.suppress(FileExistsError), whole_folder(folder, remedy) as building:  # theirs is the same
        fill(building)
        rows = {path.stem: len(map_npy(path)) for path in sorted(building.glob("*.npy"))}
        (building / _RECORD).write_text(json.dumps({"rows": rows}) + "\n", encoding="utf-8")
