"""Arrays in the cache: sources that cannot be mapped as they are, written once as .npy files and then mapped.

Compressed, textual or unsplit sources cannot be memory-mapped. Their parts are written to a folder of the cache. Its
name depends on the source files and on the recipe, so a changed file is never mistaken for the old one.
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

from autojacobin.core.files import clear_os_errors, whole_folder
from autojacobin.datasets.formats.flat import map_npy, npy_header
from autojacobin.datasets.formats.source import clear_read_errors
from autojacobin.errors import AutoJacobinError, FormatError, StorageError

_OTHER_FOLDER = "set AUTOJACOBIN_CACHE to a folder that can be written to"
_REMEDY = f"free some space, or {_OTHER_FOLDER}"
_SEED = 0
_RECORD = "prepared.json"
_RECIPE_VERSION = 2  # raise it when the same sources would be split or written in another way


def open_prepared(name: str, sources: Sequence[Path], recipe: str, fill: Callable[[Path], None]) -> dict[str, Any]:
    """Map the arrays of a folder of the cache by their names; ``fill(folder)`` writes them if it is not there.

    The folder's name begins with ``name``, for people who look into the cache. A change of the path, size or time of a
    file in ``sources``, or of ``recipe``, which says what else the arrays depend on, makes a new folder.
    """
    identity = [str(_RECIPE_VERSION), recipe]
    for source in sources:
        with clear_read_errors(source):
            status = source.stat()
        identity.append(f"{source.resolve()} {status.st_size} {status.st_mtime_ns}")
    digest = hashlib.sha256(os.fsencode("\n".join(identity))).hexdigest()[:16]  # names need not be UTF-8
    safe_name = re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip(".-") or "set"
    folder = cache_folder() / "prepared" / f"{safe_name}-{digest}"
    if not folder.is_dir():
        with clear_os_errors(f"make the folder {folder.parent}", _REMEDY):
            folder.parent.mkdir(exist_ok=True)
        # if another process is faster, its folder holds the same
        with contextlib.suppress(FileExistsError), whole_folder(folder, _REMEDY) as building:
            fill(building)
            rows = {path.stem: len(map_npy(path)) for path in sorted(building.glob("*.npy"))}
            (building / _RECORD).write_text(json.dumps({"rows": rows}) + "\n", encoding="utf-8")
    return _map_arrays(folder)


def scatter_rows(blocks: Iterable[npt.NDArray[Any]], roles: Mapping[str, npt.NDArray[np.int64]], folder: Path) -> None:
    """Walk once over blocks of consecutive rows and write those of each role to ``folder/role.npy``.

    ``roles`` names rows in ascending order. The files are written as streams: with a memory map, a full disk would
    kill the process.
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
        raise FormatError(f"the file has only {start:,} rows, expected {expected:,} or more; fetch the file again")


def draw(n: int, *sizes: int) -> list[npt.NDArray[np.int64]]:
    """Draw disjoint sets of rows out of ``n`` with the seed 0, each in ascending order, by cutting one permutation."""
    order = np.random.RandomState(_SEED).permutation(n)
    cuts = np.cumsum((0, *sizes))
    return [np.sort(order[start:stop]).astype(np.int64) for start, stop in itertools.pairwise(cuts)]


def _map_arrays(folder: Path) -> dict[str, npt.NDArray[Any]]:
    try:
        rows = json.loads((folder / _RECORD).read_text(encoding="utf-8"))["rows"]
        arrays: dict[str, npt.NDArray[Any]] = {name: map_npy(folder / f"{name}.npy") for name in rows}
        if any(len(array) != rows[name] for name, array in arrays.items()):
            raise ValueError("an array has another length than it was written with")
    except (AutoJacobinError, OSError, ValueError, KeyError, TypeError) as error:
        raise FormatError(
            f"the set in {folder} is damaged: files are missing or have changed; remove this folder, "
            "and it is built again"
        ) from error
    return arrays


class GrowingArray:
    """An ``.npy`` file that rows are appended to; it can be read once it is closed."""

    def __init__(self, path: Path, dtype: npt.DTypeLike, row_shape: tuple[int, ...]) -> None:
        self.dtype = np.dtype(dtype)
        self.row_shape = row_shape
        self.rows = 0
        self._stream = path.open("wb")
        self._stream.write(npy_header((self.rows, *self.row_shape), self.dtype))

    def append(self, rows: npt.NDArray[Any]) -> None:
        """Write more rows."""
        self._stream.write(np.ascontiguousarray(rows, dtype=self.dtype).data)
        self.rows += len(rows)

    def close(self) -> None:
        """Write the number of rows into the header."""
        if not self._stream.closed:
            self._stream.seek(0)
            self._stream.write(npy_header((self.rows, *self.row_shape), self.dtype))
            self._stream.close()

    def __enter__(self) -> GrowingArray:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def cache_folder() -> Path:
    """Give the cache folder, made if it was not there."""
    folder = cache_path()
    with clear_os_errors(f"make the cache folder {folder}", _OTHER_FOLDER):
        folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        raise StorageError(f"cannot write to the cache folder {folder}: no permission; {_OTHER_FOLDER}")
    return folder


def cache_path() -> Path:
    """Give the path of the cache folder, which need not be there: ``AUTOJACOBIN_CACHE``, or a folder of the platform.

    That is ``autojacobin`` in ``$XDG_CACHE_HOME`` or ``~/.cache``, ``~/Library/Caches`` on macOS, ``%LOCALAPPDATA%`` on
    Windows.
    """
    chosen = os.environ.get("AUTOJACOBIN_CACHE", "")
    try:
        return Path(chosen).expanduser().absolute() if chosen else _system_cache() / "autojacobin"
    except (OSError, RuntimeError) as error:  # the home folder is not known, or the current folder is gone
        raise StorageError(f"cannot find the cache folder: {error}; {_OTHER_FOLDER}") from error


def _system_cache() -> Path:
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA", "")
        return Path(local) if local else Path.home() / "AppData" / "Local"
    chosen = os.environ.get("XDG_CACHE_HOME", "")
    # the XDG specification says to ignore relative paths
    return Path(chosen) if os.path.isabs(chosen) else Path.home() / ".cache"
