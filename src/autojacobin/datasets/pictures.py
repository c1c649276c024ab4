"""Data sets from a folder of pictures: describe each picture, and keep the vectors."""

from __future__ import annotations

import csv
import itertools
import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from autojacobin.core.counts import as_count
from autojacobin.core.files import clear_os_errors, whole_folder
from autojacobin.core.parallel import Progress
from autojacobin.datasets.descriptors import (
    PLACE,
    as_square,
    check_kind,
    cut_patches,
    describe,
    opencv,
    read_picture,
    sift,
)
from autojacobin.datasets.formats.source import as_path
from autojacobin.datasets.prepared import GrowingArray
from autojacobin.errors import DataError, StorageError

SHARES = {"learn": 0.40, "base": 0.55, "query": 0.05}  # of the pictures
SUFFIXES = (".bmp", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")
_PATCH = 32  # side of the small pictures, in pixels


@dataclass(frozen=True)
class BuiltSet:
    """What was built: how many pictures and vectors are in each part, and which pictures were left out and why."""

    folder: Path
    descriptor: str
    pictures: dict[str, int]
    vectors: dict[str, int]
    skipped: tuple[tuple[str, str], ...]


def build_set(
    images: str | os.PathLike[str],
    out: str | os.PathLike[str],
    descriptor: str,
    *,
    seed: int = 0,
    limit: int | None = None,
    progress: Progress | None = None,
) -> BuiltSet:
    """Describe every picture of a folder and of the folders in it, and write the vectors as a set.

    The set is a new folder with ``learn.npy``, ``base.npy`` and ``query.npy``; ``base_patches.npy`` and
    ``query_patches.npy``, a small picture for each vector; ``pictures.csv``, which says where each vector comes from;
    and ``build.json``, which says how the set was made. Pictures are shuffled, and each goes to one part: 40 % to
    ``learn``, 55 % to ``base`` and 5 % to ``query``, and one to each at least. The vectors of a picture are
    consecutive. Memory does not grow with the number of pictures.

    Parameters
    ----------
    images : path
        A folder with pictures; hidden files are ignored.
    out : path
        A folder that is not there yet, or is empty.
    descriptor : {"sift", "gist", "wavelet"}
        See :func:`autojacobin.datasets.descriptors.describe`.
    seed : int
        Seed of the shuffling.
    limit : int, optional
        Most vectors from one picture, those of the highest contrast; it matters for SIFT only.
    progress : callable, optional
        Called as ``progress(stage, done, total)``.
    """
    source, target = as_path(images), as_path(out)
    as_count("seed", seed, 2**32 - 1, least=0)
    if limit is not None:
        as_count("limit", limit, 2**32 - 1)
    check_kind(descriptor)
    version = str(opencv("reading pictures").__version__)
    files, passed_over = _find_pictures(source)
    order = np.random.RandomState(seed).permutation(len(files))
    _check_target(target)
    try:
        with whole_folder(target, "give another folder, or free some space") as folder:
            shuffled = [files[i] for i in order]
            described = partial(_described, kind=descriptor, limit=limit)
            pictures, vectors, skipped = _describe_all(shuffled, source, folder, described, progress)
            built = BuiltSet(target, descriptor, pictures, vectors, tuple(sorted([*passed_over, *skipped])))
            recipe = {
                "format": 1,
                "descriptor": descriptor,
                "split": list(SHARES.values()),
                "seed": int(seed),
                "limit": None if limit is None else int(limit),
                "patch": _PATCH,
                "versions": {"opencv": version, "numpy": np.__version__},
                "pictures": built.pictures,
                "vectors": built.vectors,
                "skipped": [list(pair) for pair in built.skipped],
            }
            (folder / "build.json").write_text(json.dumps(recipe, indent=1) + "\n", encoding="utf-8")
    except FileExistsError as error:
        raise StorageError(f"cannot write {target}: another process has written there; give another folder") from error
    return built


def _described(path: Path, kind: str, limit: int | None) -> tuple[npt.NDArray[Any], ...]:
    """Give the vectors of a picture, their places in it, and a small picture for each."""
    picture = read_picture(path)
    if kind == "sift":
        features = sift(picture, limit=limit)
        return features.vectors, features.places, cut_patches(picture, features.places, _PATCH)
    height, width = picture.shape[:2]
    whole = np.array([((width - 1) / 2, (height - 1) / 2, min(height, width), 0, 0)], PLACE)
    thumbnail = np.round(as_square(picture, _PATCH)).astype(np.uint8)
    return describe(picture, kind), whole, thumbnail[None]


def _find_pictures(folder: Path) -> tuple[list[Path], list[tuple[str, str]]]:
    """Give the pictures below a folder, and the folders that cannot be read with the reason."""
    if not os.path.isdir(folder):
        raise StorageError(f"cannot read pictures from {folder}: it is not a folder; give the folder that they are in")
    found: list[Path] = []
    troubles: list[OSError] = []  # os.walk ignores them by default
    for place, folders, names in os.walk(folder, onerror=troubles.append):
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += [Path(place, name) for name in names if name.lower().endswith(SUFFIXES) and not name.startswith(".")]
    if not found:
        why = f"; the folder {troubles[0].filename} cannot be read: {troubles[0].strerror}" if troubles else ""
        raise DataError(f"there is no picture in {folder}, expected files that end in {', '.join(SUFFIXES)}{why}")
    passed_over = [
        (Path(trouble.filename).relative_to(folder).as_posix(), f"cannot read this folder: {trouble.strerror}")
        for trouble in troubles
    ]
    return sorted(found), passed_over


def _describe_all(
    files: list[Path],
    source: Path,
    folder: Path,
    described: Callable[[Path], tuple[npt.NDArray[Any], ...]],
    progress: Progress | None,
) -> tuple[dict[str, int], dict[str, int], list[tuple[str, str]]]:
    """Write the vectors and patches of all pictures, each into one part; count pictures and vectors of the parts."""
    pictures, vectors, skipped = dict.fromkeys(SHARES, 0), dict.fromkeys(SHARES, 0), []
    arrays: dict[str, GrowingArray] = {}
    with ExitStack() as stack:

        def append(name: str, rows: npt.NDArray[Any]) -> None:
            if name not in arrays:
                array = GrowingArray(folder / f"{name}.npy", rows.dtype, rows.shape[1:])
                arrays[name] = stack.enter_context(array)
            arrays[name].append(rows)

        table = stack.enter_context(feature_table(folder / "pictures.csv"))
        for done, file in enumerate(files):
            if progress is not None:
                progress("describing pictures", done, len(files))
            name = file.relative_to(source).as_posix()
            try:
                rows, places, small = described(file)
            except DataError as error:
                skipped.append((name, str(error)))
                continue
            if not len(rows):
                skipped.append((name, "no features were found in it"))
                continue
            part = _next_part(pictures)
            table(part, vectors[part], itertools.repeat(name, len(rows)), places)
            append(part, rows)
            if part != "learn":
                append(f"{part}_patches", small)
            pictures[part] += 1
            vectors[part] += len(rows)
    if progress is not None:
        progress("describing pictures", len(files), len(files))
    if not all(pictures.values()):
        why = f"; the first problem was: {skipped[0][0]}: {skipped[0][1]}" if skipped else ""
        raise DataError(
            f"a set needs at least {len(SHARES)} pictures that can be described, got {sum(pictures.values())} "
            f"of {len(files)} in {source}{why}"
        )
    return pictures, vectors, skipped


def _next_part(pictures: dict[str, int]) -> str:
    """The part that the next picture goes to: one that has none, or the one that is farthest behind its share."""
    total = sum(pictures.values()) + 1
    return max(SHARES, key=lambda part: (not pictures[part], total * SHARES[part] - pictures[part]))


@contextmanager
def feature_table(path: Path) -> Iterator[Callable[[str, int, Iterable[str], npt.NDArray[Any]], None]]:
    """Open a CSV file that says for each row of each part which picture it is from, and where it is in it.

    The block gets a function that writes rows of a part, given the number of the first one.
    """
    with path.open("w", encoding="utf-8", errors="surrogateescape", newline="") as stream:
        table = csv.writer(stream)
        table.writerow(["part", "row", "picture", "x", "y", "size", "angle"])

        def write(part: str, first: int, names: Iterable[str], places: npt.NDArray[Any]) -> None:
            for row, (name, place) in enumerate(zip(names, places, strict=True), first):
                numbers = (f"{float(place[field]):.2f}" for field in ("x", "y", "size", "angle"))
                table.writerow([part, row, name, *numbers])

        yield write


def _check_target(target: Path) -> None:
    if not target.parent.is_dir():
        raise StorageError(f"cannot write {target}: the folder {target.parent} does not exist; make it first")
    with clear_os_errors(f"write {target}", "fix this, and repeat"):
        if target.is_dir() and os.path.samefile(target, os.curdir):
            raise StorageError(f"cannot write {target}: it is the folder that you are in; give a new one")
        if target.is_dir() and not any(target.iterdir()):
            return
        if os.path.lexists(target):
            raise StorageError(f"cannot write {target}: something is there already; give another folder, or remove it")
