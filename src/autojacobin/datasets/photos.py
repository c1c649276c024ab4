"""``photos``: SIFT features of the photographs that ship inside scikit-image and scikit-learn.

Real data without a download: some fifty thousand features, each with the patch it was made from.
"""

from __future__ import annotations

import csv
import json
from dataclasses import asdict, dataclass
from importlib import metadata, resources
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from autojacobin.core.parallel import Progress
from autojacobin.datasets.descriptors import PLACE, cut_patches, opencv, read_picture, sift
from autojacobin.datasets.pictures import feature_table
from autojacobin.datasets.prepared import open_prepared
from autojacobin.errors import DataError, MissingExtraError

_FOLDERS = {"scikit-image": ("skimage", "data"), "scikit-learn": ("sklearn", "datasets", "images")}
_FROM_SCIKIT_LEARN = ("china.jpg", "flower.jpg")
_FEATURES = "features.csv"
_SIDE = 6  # of a patch, in sizes of its feature
_PATCHES = {"base": "base_patches", "queries": "query_patches"}
_PLACES = {"base": "base_places", "queries": "query_places"}


@dataclass(frozen=True)
class Recipe:
    """Which photographs go into which part, and how features are found in them. A photograph is in one part only.

    Each one in ``queries`` gives as many features as the number beside it, evenly spread; the others give all of
    theirs.
    """

    train: tuple[str, ...]
    base: tuple[str, ...]
    queries: tuple[tuple[str, int], ...]
    contrast: float = 0.01
    layers: int = 4
    patch: int = 32
    format: int = 1


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
    """Give the set ``photos`` as memory maps by their names, built into the cache folder the first time.

    ``train``, ``base`` and ``queries`` are uint8 (n, 128), ``base_patches`` and ``query_patches`` uint8 (n, 32, 32).
    """
    about = json.dumps({"recipe": asdict(PHOTOS), "versions": _versions()}, indent=1)

    def fill(folder: Path) -> None:
        build_photos(folder, progress, recipe=PHOTOS)
        (folder / "photos.json").write_text(about + "\n", encoding="utf-8")

    return open_prepared("photos", (), about, fill)


def open_places(arrays: dict[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
    """Give where the patches of ``open_photos()`` lie in their photographs, as :class:`VectorSet` has it."""
    rows: dict[str, list[tuple[str, float, float, float]]] = {"base": [], "queries": []}
    base = arrays["base"]
    if not isinstance(base, np.memmap) or base.filename is None:
        return {}  # only those of the cache have a table of features beside them
    path = Path(str(base.filename)).parent / _FEATURES
    with path.open(encoding="utf-8", newline="") as stream:
        for line in csv.DictReader(stream):
            if line["part"] in rows:
                place = line["picture"], float(line["x"]), float(line["y"]), _SIDE * float(line["size"])
                rows[line["part"]].append(place)
    fields = [("picture", "U40"), ("x", "f4"), ("y", "f4"), ("side", "f4")]
    return {_PLACES[part]: np.array(places, dtype=fields) for part, places in rows.items()}


def build_photos(folder: Path, progress: Progress | None = None, *, recipe: Recipe = PHOTOS) -> None:
    """Write the arrays into ``folder``, and ``features.csv``, which says where in which photograph each feature is."""
    parts = _gather(recipe, progress)
    for name, rows in parts.items():
        np.save(folder / f"{name}.npy", rows["vector"])
        if name in _PATCHES:
            np.save(folder / f"{_PATCHES[name]}.npy", rows["patch"])
    with feature_table(folder / _FEATURES) as table:
        for name, rows in parts.items():
            table(name, 0, rows["photograph"], rows["place"])


def _gather(recipe: Recipe, progress: Progress | None) -> dict[str, npt.NDArray[Any]]:
    """Give the features of each part: the photograph, the vector, the place and the patch of each."""
    everything, report = 2**31, progress or (lambda *_: None)
    photographs = [
        *(("train", name, everything) for name in recipe.train),
        *(("base", name, everything) for name in recipe.base),
        *(("queries", name, wanted) for name, wanted in recipe.queries),
    ]
    patch = ("patch", "u1", (recipe.patch, recipe.patch))
    found: dict[str, list[npt.NDArray[Any]]] = {"train": [], "base": [], "queries": []}
    seen: set[bytes] = set()
    for done, (part, name, wanted) in enumerate(photographs):
        report("describing photographs", done, len(photographs))
        picture = read_photograph(name)
        features = sift(picture, contrast=recipe.contrast, layers=recipe.layers)
        keys = [vector.tobytes() for vector in features.vectors]
        features = features[np.array([key not in seen for key in keys], dtype=bool)]
        seen.update(keys)
        if len(features) > wanted:
            features = features[np.arange(wanted) * len(features) // wanted]  # evenly spread
        rows = np.empty(len(features), [("photograph", "U40"), ("vector", "u1", 128), ("place", PLACE), patch])
        rows["photograph"], rows["vector"], rows["place"] = name, features.vectors, features.places
        rows["patch"] = cut_patches(picture, features.places, recipe.patch)
        found[part].append(rows)
    report("describing photographs", len(photographs), len(photographs))
    parts = {part: np.concatenate(pieces) for part, pieces in found.items()}
    # so that those who learn from the first rows only do not learn from the first photographs only
    parts["train"] = parts["train"][np.random.RandomState(0).permutation(len(parts["train"]))]
    return parts


def read_photograph(name: str) -> npt.NDArray[np.uint8]:
    """Read one of the photographs by its name."""
    distribution = "scikit-learn" if name in _FROM_SCIKIT_LEARN else "scikit-image"
    package, *inside = _FOLDERS[distribution]
    try:
        place = resources.files(package).joinpath(*inside, name)
        with resources.as_file(place) as path:
            return read_picture(path)
    except ImportError as error:
        raise MissingExtraError(distribution, "data", "the set 'photos'") from error
    except (FileNotFoundError, DataError) as error:
        raise DataError(
            f"the photograph {name} cannot be read from this installation of {distribution} "
            f"{metadata.version(distribution)}, which should have it; reinstall it with: "
            f"pip install --force-reinstall {distribution}"
        ) from error


def _versions() -> dict[str, str]:
    versions = {"opencv": str(opencv("the set 'photos'").__version__)}
    for distribution in _FOLDERS:
        try:
            versions[distribution] = metadata.version(distribution)
        except metadata.PackageNotFoundError as error:
            raise MissingExtraError(distribution, "data", "the set 'photos'") from error
    return versions
