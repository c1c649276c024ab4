"""Arrays in the cache: compressed, textual or unsplit sources, written once as .npy files and then mapped."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from autojacobin.core.files import clear_os_errors, whole_folder
from autojacobin.datasets.formats.flat import map_npy, npy_header
from autojacobin.datasets.formats.source import clear_read_errors
from autojacobin.errors import AutoJacobinError, FormatError, StorageError

_OTHER_FOLDER = "set AUTOJACOBIN_CACHE to a folder that can be written to"
_REMEDY = f"free some space, or {_OTHER_FOLDER}"
_RECORD = "prepared.json"
_RECIPE_VERSION = 2  # raise it when the same sources would be split or written in another way


def open_prepared(name: str, sources: Sequence[Path], recipe: str, fill: Callable[[Path], None]) -> dict[str, Any]:
    """Map the arrays of a folder of the cache by their names; ``fill(folder)`` writes them if it is not there.

    A change of the path, size or time of a file in ``sources``, or of ``recipe``, which says what else the arrays
    depend on, makes a new folder, so that a changed file is never mistaken for the old one.
    """
    identity = [str(_RECIPE_VERSION), recipe]
    for source in sources:
        with clear_read_errors(source):
            status = source.stat()
        identity.append(f"{source.resolve()} {status.st_size} {status.st_mtime_ns}")
    digest = hashlib.sha256(os.fsencode("\n".join(identity))).hexdigest()[:16]  # names need not be UTF-8
    safe_name = re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip(".-") or "set"
    folder = cache_path() / "prepared" / f"{safe_name}-{digest}"
    if not folder.is_dir():
        with clear_os_errors(f"make the cache folder {folder.parent}", _OTHER_FOLDER):
            folder.parent.mkdir(parents=True, exist_ok=True)
        # if another process is faster, its folder holds the same
        with contextlib.suppress(FileExistsError), whole_folder(folder, _REMEDY) as building:
            fill(building)
            rows = {path.stem: len(map_npy(path)) for path in sorted(building.glob("*.npy"))}
            record = json.dumps({"rows": rows, "recipe": recipe}) + "\n"
            (building / _RECORD).write_text(record, encoding="utf-8")
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


def scatter_rows(blocks: Iterable[npt.NDArray[Any]], roles: Mapping[str, npt.NDArray[np.int64]], folder: Path) -> None:
    """Walk once over blocks of consecutive rows and write those of each role, in ascending order, to its file."""
    start = 0
    with growing_arrays(folder) as append:
        for block in blocks:
            for role, rows in roles.items():
                first, last = np.searchsorted(rows, (start, start + len(block)))
                append(role, block[rows[first:last] - start])
            start += len(block)
    expected = max((int(rows[-1]) + 1 for rows in roles.values() if len(rows)), default=0)
    if start < expected:
        raise FormatError(f"the file has only {start:,} rows, expected {expected:,} or more; fetch the file again")


def draw(n: int, *sizes: int) -> list[npt.NDArray[np.int64]]:
    """Draw disjoint sets of rows out of ``n`` with the seed 0, each in ascending order, by cutting one permutation."""
    order = np.random.RandomState(0).permutation(n)
    cuts = np.cumsum((0, *sizes))
    return [np.sort(order[start:stop]).astype(np.int64) for start, stop in itertools.pairwise(cuts)]


@contextlib.contextmanager
def growing_arrays(folder: Path) -> Iterator[Callable[[str, npt.NDArray[Any]], None]]:
    """Give the block a function that appends rows to ``folder/name.npy``; the files can be read after the block."""
    # not as memory maps: with these, a full disk would kill the process
    files: dict[str, BinaryIO] = {}
    like: dict[str, npt.NDArray[Any]] = {}  # no rows, of the shape and type of those in the file
    counts: Counter[str] = Counter()
    with contextlib.ExitStack() as stack:

        def append(name: str, rows: npt.NDArray[Any]) -> None:
            if name not in files:
                files[name] = stack.enter_context((folder / f"{name}.npy").open("wb"))
                like[name] = np.empty((0, *rows.shape[1:]), rows.dtype)
                files[name].write(npy_header(like[name].shape, rows.dtype))
            files[name].write(np.ascontiguousarray(rows, like[name].dtype).data)
            counts[name] += len(rows)

        yield append
        for name, file in files.items():
            file.seek(0)
            file.write(npy_header((counts[name], *like[name].shape[1:]), like[name].dtype))


def cache_path() -> Path:
    """Give the cache folder: ``AUTOJACOBIN_CACHE``, or ``autojacobin`` in ``$XDG_CACHE_HOME`` or ``~/.cache``."""
    chosen, caches = (os.environ.get(name, "") for name in ("AUTOJACOBIN_CACHE", "XDG_CACHE_HOME"))
    # the XDG specification says to ignore relative paths
    default = Path(caches if os.path.isabs(caches) else "~/.cache", "autojacobin")
    try:
        return Path(chosen or default).expanduser().absolute()
    except (OSError, RuntimeError) as error:  # the home folder is not known, or the current folder is gone
        raise StorageError(f"cannot find the cache folder: {error}; {_OTHER_FOLDER}") from error
