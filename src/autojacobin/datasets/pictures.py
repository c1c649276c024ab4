"""Data sets of pictures: those of a folder, and ``photos``, SIFT features of photographs that come with packages."""

from __future__ import annotations

import csv
import json
import os
from dataclasses import asdict, dataclass
from importlib import metadata, resources
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from autojacobin.core.counts import as_count
from autojacobin.core.files import as_path, whole_folder
from autojacobin.core.parallel import Progress
from autojacobin.datasets.descriptors import (
    PATCH_SIZES,
    PLACE,
    as_square,
    check_kind,
    cut_patches,
    describe,
    opencv,
    read_picture,
    sift,
)
from autojacobin.datasets.prepared import growing_arrays, open_prepared
from autojacobin.errors import DataError, StorageError, import_extra

SHARES = {"learn": 0.40, "base": 0.55, "query": 0.05}  # of the pictures
SUFFIXES = (".bmp", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")
_PATCH = 32  # side of the small pictures, in pixels
_FOLDERS = {"scikit-image": ("skimage", "data"), "scikit-learn": ("sklearn", "datasets", "images")}
_FROM_SCIKIT_LEARN = ("china.jpg", "flower.jpg")


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

    ``docs/descriptors.md`` lists the files of the set. Pictures are shuffled, and each goes to one part: 40 % to
    ``learn``, 55 % to ``base`` and 5 % to ``query``, and one to each at least. The vectors of a picture are
    consecutive. Memory does not grow with the number of pictures.

    Parameters
    ----------
    images : path
        A folder with pictures; hidden files are ignored.
    out : path
        A folder that is not there yet.
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
    if not target.parent.is_dir():
        raise StorageError(f"cannot write {target}: the folder {target.parent} does not exist; make it first")
    if os.path.lexists(target):
        raise StorageError(f"cannot write {target}: something is there already; give another folder, or remove it")
    try:
        with whole_folder(target, "give another folder, or free some space") as folder:
            shuffled = [files[i] for i in order]
            pictures, vectors, skipped = _describe_all(shuffled, source, folder, descriptor, limit, progress)
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
        vectors, places = sift(picture, limit=limit)
        return vectors, places, cut_patches(picture, places, _PATCH)
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
    files: list[Path], source: Path, folder: Path, kind: str, limit: int | None, progress: Progress | None
) -> tuple[dict[str, int], dict[str, int], list[tuple[str, str]]]:
    """Write the vectors and patches of all pictures, each into one part; count pictures and vectors of the parts."""
    pictures, vectors, skipped = dict.fromkeys(SHARES, 0), dict.fromkeys(SHARES, 0), []
    report, columns = progress or (lambda *_: None), ("x", "y", "size", "angle")
    with (
        growing_arrays(folder) as append,
        (folder / "pictures.csv").open("w", encoding="utf-8", errors="surrogateescape", newline="") as stream,
    ):
        table = csv.writer(stream)
        table.writerow(["part", "row", "picture", *columns])
        for done, file in enumerate(files):
            report("describing pictures", done, len(files))
            name = file.relative_to(source).as_posix()
            try:
                rows, places, small = _described(file, kind, limit)
            except DataError as error:
                skipped.append((name, str(error)))
                continue
            if not len(rows):
                skipped.append((name, "no features were found in it"))
                continue
            part = _next_part(pictures)
            for row, place in enumerate(places, vectors[part]):
                table.writerow([part, row, name, *(f"{float(place[column]):.2f}" for column in columns)])
            append(part, rows)
            if part != "learn":
                append(f"{part}_patches", small)
            pictures[part] += 1
            vectors[part] += len(rows)
    report("describing pictures", len(files), len(files))
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


@dataclass(frozen=True)
class Recipe:
    """Which photographs go into which part, with the number of features of each query, and how they are found."""

    train: tuple[str, ...]
    base: tuple[str, ...]
    queries: tuple[tuple[str, int], ...]
    contrast: float = 0.01
    layers: int = 4
    format: int = 2


# The two views of the motorcycle are a stereo pair: features of one have their neighbours in the other. The cat and the
# cameraman have no counterpart in the base.
PHOTOS = Recipe(
    train=(
        "astronaut.png", "brick.png", "coffee.png", "coins.png", "flower.jpg", "gravel.png", "moon.png", "rocket.jpg",
    ),
    base=("china.jpg", "grass.png", "hubble_deep_field.jpg", "ihc.png", "motorcycle_left.png", "retina.jpg"),
    queries=(("camera.png", 200), ("chelsea.png", 200), ("motorcycle_right.png", 600)),
)  # fmt: skip


def open_photos(progress: Progress | None = None) -> dict[str, npt.NDArray[Any]]:
    """Give the arrays of the set ``photos`` by their names, built into the cache folder the first time."""
    version = str(opencv("the set 'photos'").__version__)
    import_extra("skimage", "data", "the set 'photos'", "scikit-image")
    versions = {"opencv": version, **{distribution: metadata.version(distribution) for distribution in _FOLDERS}}
    about = {"photos": asdict(PHOTOS), "versions": versions}
    return open_prepared("photos", (), json.dumps(about), lambda folder: build_photos(folder, progress, recipe=PHOTOS))


def build_photos(folder: Path, progress: Progress | None = None, *, recipe: Recipe = PHOTOS) -> None:
    """Write the vectors, patches and places of the features into ``folder``."""
    everything, report = 2**31, progress or (lambda *_: None)
    photographs = [
        *(("train", name, everything) for name in recipe.train),
        *(("base", name, everything) for name in recipe.base),
        *(("query", name, wanted) for name, wanted in recipe.queries),
    ]
    seen: set[bytes] = set()
    with growing_arrays(folder) as append:
        for done, (part, name, wanted) in enumerate(photographs):
            report("describing photographs", done, len(photographs))
            picture = read_photograph(name)
            vectors, places = sift(picture, contrast=recipe.contrast, layers=recipe.layers)
            keys = [vector.tobytes() for vector in vectors]
            rows = np.flatnonzero([key not in seen for key in keys])
            seen.update(keys)
            if len(rows) > wanted:
                rows = rows[np.arange(wanted) * len(rows) // wanted]  # evenly spread
            append("queries" if part == "query" else part, vectors[rows])
            if part != "train":
                append(f"{part}_patches", cut_patches(picture, places[rows], _PATCH))
                append(f"{part}_places", _places_in(name, places[rows]))
    report("describing photographs", len(photographs), len(photographs))
    # so that those who learn from the first rows only do not learn from the first photographs only
    train = np.load(folder / "train.npy")
    np.save(folder / "train.npy", train[np.random.RandomState(0).permutation(len(train))])


def _places_in(photograph: str, places: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Where patches lie in a photograph, as :class:`VectorSet` has it."""
    kinds = [("picture", "U40"), ("x", "<f4"), ("y", "<f4"), ("side", "<f4"), ("angle", "<f4")]
    found = np.empty(len(places), kinds)
    found["picture"], found["side"] = photograph, PATCH_SIZES * places["size"]
    for name in ("x", "y", "angle"):
        found[name] = places[name]
    return found


def read_photograph(name: str) -> npt.NDArray[np.uint8]:
    """Read one of the photographs by its name."""
    distribution = "scikit-learn" if name in _FROM_SCIKIT_LEARN else "scikit-image"
    package, *inside = _FOLDERS[distribution]
    try:
        return read_picture(Path(str(resources.files(package)), *inside, name))
    except DataError as error:
        raise DataError(
            f"the photograph {name} cannot be read from this installation of {distribution} "
            f"{metadata.version(distribution)}, which should have it; reinstall it with: "
            f"pip install --force-reinstall {distribution}"
        ) from error
