"""Data sets from files: a folder with learn, base and query files, or one file that is split."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from autojacobin.core.files import clear_os_errors
from autojacobin.datasets.formats.containers import hdf5_file
from autojacobin.datasets.formats.flat import map_npy
from autojacobin.datasets.formats.source import open_source
from autojacobin.datasets.prepared import draw, open_prepared, scatter_rows
from autojacobin.datasets.vector_files import FORMATS, by_name, open_vectors
from autojacobin.errors import DataError, FormatError

_ROLES = {  # by what the names of their files end with
    "train": "learn|train",
    "base": "base",
    "queries": "query|queries|test",
    "truth": "groundtruth|truth|neighbors",
    "base_patches": "base_patches",
    "query_patches": "query_patches|queries_patches",
}
_MOST_QUERIES, _MOST_TRAINING = 1_000, 10_000


@dataclass(frozen=True)
class VectorSet:
    """Vectors split for an experiment: ``train`` to learn from, ``base`` to search in, and ``queries``.

    Attributes
    ----------
    name, description : str
        What the set is called, and one sentence on what it holds.
    train, base, queries : array-like of shape (n, dimension)
        The vectors as they are stored, not scaled; memory-mapped where their files allow it.
    truth : array-like of int of shape (n_queries, k), optional
        Ids of the true neighbours in ``base``, nearest first, if they came with the set.
    base_patches, query_patches : array-like of uint8 of shape (n, height, width) or (n, height, width, 3), optional
        The pictures that the vectors describe, in the same order.
    base_places, query_places : structured array of shape (n,), optional
        Where these pictures lie in larger ones: the name of the ``picture``, ``x`` and ``y`` of the middle and the
        ``side``, in pixels, and the ``angle``, in degrees.
    source, licence, citation : str
        Where the set is from, under what terms it may be used, and what to cite; empty where that is not known.
    """

    name: str
    description: str
    train: Any
    base: Any
    queries: Any
    truth: Any = None
    base_patches: Any = None
    query_patches: Any = None
    base_places: Any = None
    query_places: Any = None
    source: str = ""
    licence: str = ""
    citation: str = ""


def open_local(path: Path) -> VectorSet:
    """Open a folder or a file as a set, as :func:`load_set` does; ``docs/datasets.md`` says how a file is split."""
    if path.is_dir():
        return open_parts(path.resolve().name, f"the files in {path}", find_parts(path))
    if {"train", "test"} <= _datasets(path):
        return _ann_benchmarks(path)
    return _split_file(path)


def find_parts(folder: Path) -> dict[str, Path]:
    """Find the files of a set in a folder, or in the only folder inside it, by what they hold; or raise a DataError."""
    found: dict[str, Path] = {}
    for file in _files(folder):
        format, packed = by_name(file)
        stem = Path(file.stem).stem if packed else file.stem
        fitting = (role for role, names in _ROLES.items() if re.fullmatch(f"(?:.*[_.-])?(?:{names})", stem, re.DOTALL))
        role = next(fitting, None)
        if format is None or role is None:
            continue
        if role in found:
            raise DataError(
                f"{folder} has two files that could be its {role}: {found[role].name} and {file.name}; "
                "move one of them elsewhere"
            )
        found[role] = file
    inner = [path for path in sorted(folder.iterdir()) if path.is_dir() and not path.name.startswith(".")]
    if not found and len(inner) == 1:
        return find_parts(inner[0])
    for role, name in (("base", "base"), ("queries", "query")):
        if role not in found:
            there = ", ".join(file.name for file in _files(folder)[:8]) or "no files"
            raise DataError(
                f"{folder} is not a set: it has no {name} file, expected learn, base and query (and groundtruth) "
                f"in a format such as base.npy or sift_base.fvecs; it has {there}"
            )
    return found


def open_parts(name: str, description: str, parts: Mapping[str, Path]) -> VectorSet:
    """Map the files of a set and check that they belong together."""
    arrays: dict[str, Any] = {}
    for role, path in parts.items():
        arrays[role] = _pictures(path) if role.endswith("_patches") else _mapped(path)
    arrays.setdefault("train", arrays["base"])
    truth = arrays.get("truth")
    if truth is not None and truth.dtype.kind == "f" and np.all(np.isfinite(truth) & (truth == np.floor(truth))):
        arrays["truth"] = truth.astype(np.int64)  # text files are read as floats
    _check_together(name, arrays)
    return VectorSet(name, description, **arrays, source=str(parts["base"].parent))


def _files(folder: Path) -> list[Path]:
    with clear_os_errors(f"read the folder {folder}", "check its permissions"):
        return sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))


def _mapped(path: Path, part: str | None = None) -> npt.NDArray[Any]:
    with open_vectors(path, part=part) as vectors:
        return np.asarray(vectors)


def _pictures(path: Path) -> npt.NDArray[np.uint8]:
    pictures = map_npy(path)
    if pictures.dtype != np.uint8 or pictures.ndim not in (3, 4) or pictures.shape[3:] not in ((), (3,)):
        what = f"{pictures.dtype} of shape {pictures.shape}"
        raise FormatError(f"{path} holds no pictures: got {what}, expected uint8 of shape (n, height, width[, 3])")
    return pictures


def _check_together(name: str, arrays: Mapping[str, Any]) -> None:
    widths = {role: arrays[role].shape[1] for role in ("train", "base", "queries")}
    if len(set(widths.values())) > 1:
        widths_listed = ", ".join(f"{role} has {width}" for role, width in widths.items())
        raise DataError(f"the vectors of {name} differ in width: {widths_listed}; they do not belong together")
    for part in ("base", "queries"):
        patches = arrays.get("base_patches" if part == "base" else "query_patches")
        if patches is not None and len(patches) != len(arrays[part]):
            raise DataError(
                f"{name} has {len(patches):,} patches for {len(arrays[part]):,} vectors of its {part}, expected one "
                "each; build them together, or remove the patches"
            )
    truth = arrays.get("truth")
    if truth is None:
        return
    if truth.dtype.kind not in "iu" or len(truth) != len(arrays["queries"]):
        raise DataError(
            f"the ground truth of {name} is {truth.dtype} with {len(truth):,} rows, expected whole numbers with a row "
            f"for each of the {len(arrays['queries']):,} queries; compute it again, or remove it"
        )
    if int(truth.min()) < 0 or int(truth.max()) >= len(arrays["base"]):
        raise DataError(
            f"the ground truth of {name} names rows from {truth.min()} to {truth.max()} of a base of "
            f"{len(arrays['base']):,}; it belongs to another base, so compute it again, or remove it"
        )


def _datasets(path: Path) -> set[str]:
    """Names at the top of an HDF5 file; empty if it is another file."""
    if not path.is_file() or by_name(path) not in ((FORMATS["hdf5"], False), (None, False)):
        return set()
    try:
        with hdf5_file(open_source(path)) as file:
            return set(file)
    except Exception:  # open_vectors reports a missing h5py and damaged files
        return set()


def _ann_benchmarks(path: Path) -> VectorSet:
    parts = {"base": "train", "queries": "test", "truth": "neighbors"}
    there = _datasets(path)
    arrays: dict[str, Any] = {role: _mapped(path, part) for role, part in parts.items() if part in there}
    arrays["train"] = arrays["base"]
    _check_together(path.name, arrays)
    description = f"{path.name} of ann-benchmarks; the base is also the training set"
    return VectorSet(path.stem, description, **arrays, source=str(path))


def _split_file(path: Path) -> VectorSet:
    def fill(folder: Path) -> None:
        with open_vectors(path) as vectors:
            n = len(vectors)
            if n < 2:
                raise DataError(f"{path} has {n} vector, expected at least two, one to search for and one to find")
            n_queries = min(_MOST_QUERIES, max(1, n // 10))
            queries, base = draw(n, n_queries, n - n_queries)
            train = base[draw(len(base), min(_MOST_TRAINING, len(base)))[0]]
            scatter_rows(vectors.blocks(), {"train": train, "base": base, "queries": queries}, folder)

    arrays = open_prepared(path.stem, [path], f"split {_MOST_QUERIES} {_MOST_TRAINING}", fill)
    description = (
        f"{path.name}, split with the seed 0; {len(arrays['train']):,} vectors of the base are the training set"
    )
    return VectorSet(path.stem, description, **arrays, source=str(path))
