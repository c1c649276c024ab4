"""Data sets from a folder of pictures: describe each picture, and keep the vectors."""

from __future__ import annotations

import csv
import itertools
import json
import math
import os
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from autojacobin.core.counts import as_count
from autojacobin.core.files import clear_os_errors, whole_folder
from autojacobin.core.parallel import Progress
from autojacobin.datasets.descriptors import PLACE, check_kind, cut_patches, describe, sift
from autojacobin.datasets.formats.source import as_path
from autojacobin.datasets.images import as_square, opencv, read_picture
from autojacobin.datasets.prepared import GrowingArray, copy_rows
from autojacobin.errors import DataError, StorageError

PARTS = ("learn", "base", "query")
SUFFIXES = (".bmp", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")
_LARGEST_PATCH = 1024


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
    split: Sequence[float] = (0.40, 0.55, 0.05),
    seed: int = 0,
    limit: int | None = None,
    patch: int = 32,
    progress: Progress | None = None,
) -> BuiltSet:
    """Describe every picture of a folder and of the folders in it, and write the vectors as a set.

    The set is a new folder with ``learn.npy``, ``base.npy`` and ``query.npy``; ``base_patches.npy`` and
    ``query_patches.npy``, a small picture for each vector; ``pictures.csv``, which says where each vector comes from;
    and ``build.json``, which says how the set was made. Pictures are shuffled and then split, so no picture is in
    two parts, and the vectors of a picture are consecutive. Memory does not grow with the number of pictures.

    Parameters
    ----------
    images : path
        A folder with pictures; hidden files are ignored.
    out : path
        A folder that is not there yet, or is empty.
    descriptor : {"sift", "gist", "wavelet"}
        See :func:`autojacobin.datasets.descriptors.describe`.
    split : three numbers
        Shares of the pictures that go to ``learn``, ``base`` and ``query``; each gets one at least.
    seed : int
        Seed of the shuffling.
    limit : int, optional
        Most vectors from one picture, those of the highest contrast; it matters for SIFT only.
    patch : int
        Side of the small pictures, in pixels.
    progress : callable, optional
        Called as ``progress(stage, done, total)``.
    """
    source, target = as_path(images), as_path(out)
    shares = _as_shares(split)
    as_count("seed", seed, 2**32 - 1, least=0)
    as_count("patch", patch, _LARGEST_PATCH)
    if limit is not None:
        as_count("limit", limit, 2**32 - 1)
    describer = _Describer(descriptor, limit, patch)
    opencv("reading pictures")
    files, passed_over = _find_pictures(source)
    order = np.random.RandomState(seed).permutation(len(files))
    _check_target(target)
    try:
        with whole_folder(target, "give another folder, or free some space") as folder:
            store, taken, skipped = _describe_all([files[i] for i in order], source, folder, describer, progress)
            built = _split_store(folder, store, taken, [*passed_over, *skipped], shares, target, describer)
            recipe = {
                "format": 1,
                "descriptor": descriptor,
                "split": list(shares),
                "seed": int(seed),
                "limit": None if limit is None else int(limit),
                "patch": int(patch),
                "versions": {"opencv": str(opencv("reading pictures").__version__), "numpy": np.__version__},
                "pictures": built.pictures,
                "vectors": built.vectors,
                "skipped": [list(pair) for pair in built.skipped],
            }
            (folder / "build.json").write_text(json.dumps(recipe, indent=1) + "\n", encoding="utf-8")
    except FileExistsError as error:
        raise StorageError(f"cannot write {target}: another process has written there; give another folder") from error
    return built


class _Describer:
    """Gives the vectors of a picture, their places in it, and a small picture for each."""

    def __init__(self, kind: str, limit: int | None, patch: int) -> None:
        check_kind(kind)
        self.kind, self.limit, self.patch = kind, limit, patch
        self.dtype, self.width = {"sift": ("u1", 128), "gist": ("<f4", 960), "wavelet": ("<f4", 128)}[kind]
        self.patch_shape = (patch, patch) if kind == "sift" else (patch, patch, 3)

    def __call__(self, picture: npt.NDArray[np.uint8]) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]:
        if self.kind == "sift":
            features = sift(picture, limit=self.limit)
            return features.vectors, features.places, cut_patches(picture, features.places, self.patch)
        height, width = picture.shape[:2]
        whole = np.array([((width - 1) / 2, (height - 1) / 2, min(height, width), 0, 0)], PLACE)
        thumbnail = np.round(as_square(picture, self.patch)).astype(np.uint8)
        return describe(picture, self.kind), whole, thumbnail[None]


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
    files: list[Path], source: Path, folder: Path, describer: _Describer, progress: Progress | None
) -> tuple[dict[str, Path], list[tuple[str, int]], list[tuple[str, str]]]:
    """Write the vectors, places and patches of all pictures into one store, and count those of each picture."""
    store = {name: folder / f"all-{name}.npy" for name in ("vectors", "places", "patches")}
    taken, skipped = [], []
    with ExitStack() as stack:
        vectors = stack.enter_context(GrowingArray(store["vectors"], describer.dtype, (describer.width,)))
        places = stack.enter_context(GrowingArray(store["places"], PLACE, ()))
        patches = stack.enter_context(GrowingArray(store["patches"], "u1", describer.patch_shape))
        for done, file in enumerate(files):
            if progress is not None:
                progress("describing pictures", done, len(files))
            name = file.relative_to(source).as_posix()
            try:
                described = describer(read_picture(file))
            except DataError as error:
                skipped.append((name, str(error)))
                continue
            for array, rows in zip((vectors, places, patches), described, strict=True):
                array.append(rows)
            if len(described[0]):
                taken.append((name, len(described[0])))
            else:
                skipped.append((name, "no features were found in it"))
    if progress is not None:
        progress("describing pictures", len(files), len(files))
    if len(taken) < len(PARTS):
        why = f"; the first problem was: {skipped[0][0]}: {skipped[0][1]}" if skipped else ""
        raise DataError(
            f"a set needs at least {len(PARTS)} pictures that can be described, got {len(taken)} "
            f"of {len(files)} in {source}{why}"
        )
    return store, taken, skipped


def _split_store(
    folder: Path,
    store: dict[str, Path],
    taken: list[tuple[str, int]],
    skipped: list[tuple[str, str]],
    shares: tuple[float, ...],
    target: Path,
    describer: _Describer,
) -> BuiltSet:
    """Split the store into the parts, now that the number of pictures is known."""
    ends = np.concatenate([[0], np.cumsum([count for _, count in taken])]).tolist()
    all_vectors, all_places, all_patches = (np.load(path, mmap_mode="r") for path in store.values())
    pictures, vectors, origins = {}, {}, []
    first = 0
    for part, count in zip(PARTS, _shared_out(len(taken), shares), strict=True):
        rows = slice(ends[first], ends[first + count])
        copy_rows(all_vectors, folder / f"{part}.npy", rows)
        if part != "learn":
            copy_rows(all_patches, folder / f"{part}_patches.npy", rows)
        names = itertools.chain.from_iterable(itertools.repeat(name, n) for name, n in taken[first : first + count])
        origins.append((part, names, all_places[rows]))
        pictures[part], vectors[part] = count, rows.stop - rows.start
        first += count
    write_features(folder / "pictures.csv", origins)
    del all_vectors, all_places, all_patches, origins  # Windows cannot delete a mapped file
    for path in store.values():
        path.unlink()
    return BuiltSet(target, describer.kind, pictures, vectors, tuple(sorted(skipped)))


def write_features(path: Path, parts: Iterable[tuple[str, Iterable[str], npt.NDArray[Any]]]) -> None:
    """Write a CSV file that says for each row of each part which picture it is from, and where it is in it."""
    with path.open("w", encoding="utf-8", errors="surrogateescape", newline="") as stream:
        table = csv.writer(stream)
        table.writerow(["part", "row", "picture", "x", "y", "size", "angle"])
        for part, names, places in parts:
            for row, (name, place) in enumerate(zip(names, places, strict=True)):
                numbers = (f"{float(place[field]):.2f}" for field in ("x", "y", "size", "angle"))
                table.writerow([part, row, name, *numbers])


def _shared_out(n: int, shares: tuple[float, ...]) -> tuple[int, int, int]:
    learn = min(max(1, round(n * shares[0])), n - 2)
    query = min(max(1, round(n * shares[2])), n - 1 - learn)
    return learn, n - learn - query, query


def _as_shares(split: Sequence[float]) -> tuple[float, ...]:
    try:
        shares = tuple(float(share) for share in split)
    except (TypeError, ValueError):
        shares = ()
    if len(shares) != len(PARTS) or not all(0 < share < math.inf for share in shares):
        raise DataError(f"split must be three numbers above 0, the shares of {', '.join(PARTS)}, got {split!r}")
    total = sum(shares)
    return tuple(share / total for share in shares)


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
