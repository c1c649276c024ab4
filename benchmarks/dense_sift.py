"""A large set of real descriptors: dense SIFT of all the photographs in a folder, split by photograph.

    python benchmarks/dense_sift.py PHOTOS OUT [--base 1000000] [--learn 100000] [--queries 2000] [--step 8]

Descriptors are taken on a grid at three scales, upright, as uint8. Places without contrast are left out, and so are
equal descriptors. Photographs of learn, base and query differ. OUT is a set that ``load_set`` opens by name, with
the 100 exact neighbours of each query; an OUT that exists is left alone.

The figures in README.md used 1,542 photographs: 1,000 of the repository EliSchwartz/imagenet-sample-images (one of each
class of ImageNet), 500 of BIDS/BSDS500, and 42 of the Debian packages lomiri-wallpapers-16.04, lomiri-wallpapers-20.04,
mate-backgrounds (the folder nature) and plasma-workspace-wallpapers. Debian packages can be unpacked without installing
them: ``apt-get download NAME && dpkg -x NAME*.deb FOLDER``.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from autojacobin.core import parallel
from autojacobin.core.files import whole_folder
from autojacobin.datasets import write_vectors
from autojacobin.datasets.descriptors import read_picture
from autojacobin.evaluation import ground_truth

MOST_PIXELS = 400_000  # so that a few large photographs do not dominate
ENDINGS = (".jpg", ".jpeg", ".png", ".webp")
OCTAVES = (0, 1, 2)
SIZE = 2 * 1.6 * 2 ** (1 / 3)  # of a feature that OpenCV finds in the first layer of the first octave
PATCH_SIZES = 6  # width of what a descriptor covers, in sizes
CONTRAST = 8.0  # least standard deviation of the grey levels of a patch
SHARES = {"learn": 0.10, "query": 0.05, "base": 0.85}  # of the photographs
TRUE_NEIGHBOURS = 100


def read_grey(path: Path) -> Any:
    """Grey levels of a photograph of at most ``MOST_PIXELS`` pixels."""
    grey = cv2.cvtColor(read_picture(path), cv2.COLOR_RGB2GRAY)
    shrink = math.sqrt(MOST_PIXELS / grey.size)
    return grey if shrink >= 1 else cv2.resize(grey, None, fx=shrink, fy=shrink, interpolation=cv2.INTER_AREA)


def places(grey: Any, step: int) -> Any:
    """Rows (x, y, octave) of the grid whose patches lie inside the photograph and have contrast."""
    found = []
    for octave in OCTAVES:
        width = round(PATCH_SIZES * SIZE * 2**octave)
        mean = cv2.blur(grey.astype(np.float32), (width, width))
        square = cv2.blur(grey.astype(np.float32) ** 2, (width, width))
        y, x = (np.arange(width // 2, side - width // 2, step) for side in grey.shape)
        contrast = (square - mean**2)[np.ix_(y, x)] >= CONTRAST**2
        rows, columns = np.nonzero(contrast)
        found.append(np.stack([x[columns], y[rows], np.full(len(rows), octave)], axis=1))
    return np.concatenate(found)


def describe(grey: Any, chosen: Any) -> Any:
    """SIFT descriptors at places, each from the layer of the pyramid that fits its scale."""
    points = [
        cv2.KeyPoint(float(x), float(y), SIZE * 2.0**octave, 0.0, 0.0, int(octave) + (1 << 8))
        for x, y, octave in chosen
    ]
    if not points:
        return np.empty((0, 128), np.uint8)
    return cv2.SIFT_create().compute(grey, points)[1].astype(np.uint8)


def distinct(vectors: Any) -> Any:
    """The first of each group of equal rows, by a hash of 64 bits."""
    factors = np.random.default_rng(0).integers(1, 2**63, vectors.shape[1] // 8, dtype=np.uint64) | np.uint64(1)
    hashes = np.zeros(len(vectors), np.uint64)
    for word, factor in zip(vectors.view(np.uint64).T, factors, strict=True):
        hashes += (word ^ (word >> np.uint64(29))) * factor
    return vectors[np.sort(np.unique(hashes, return_index=True)[1])]


def make_part(name: str, photographs: list[Path], wanted: int, step: int, rng: np.random.Generator) -> Any:
    """``wanted`` descriptors in random order, from every photograph the same share of its places."""
    grids = parallel.run_tasks(lambda path: places(read_grey(path), step), [(path,) for path in photographs])
    share = min(1.0, 1.05 * wanted / sum(map(len, grids)))  # a few will be equal
    chosen = [grid[rng.permutation(len(grid))[: math.ceil(share * len(grid))]] for grid in grids]
    tasks = list(zip(photographs, chosen, strict=True))
    described = parallel.run_tasks(lambda path, some: describe(read_grey(path), some), tasks)
    vectors = distinct(np.concatenate(described))
    total = sum(map(len, grids))
    print(
        f"{name}: {len(photographs)} photographs, {total:,} places, {len(vectors):,} different descriptors", flush=True
    )
    if len(vectors) < wanted:
        raise SystemExit(
            f"the photographs of {name} give {len(vectors):,} descriptors, expected {wanted:,}; add photographs, or "
            f"pass a --step smaller than {step}"
        )
    return vectors[rng.permutation(len(vectors))[:wanted]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photos", type=Path, help="a folder; photographs in the folders inside it count too")
    parser.add_argument("out", type=Path, help="folder to make")
    parser.add_argument("--base", type=int, default=1_000_000)
    parser.add_argument("--learn", type=int, default=100_000)
    parser.add_argument("--queries", type=int, default=2_000)
    parser.add_argument("--step", type=int, default=8, help="pixels between places of the grid")
    arguments = parser.parse_args()
    if arguments.out.exists():
        raise SystemExit(f"{arguments.out} exists already; name a folder that is not there yet")
    paths = sorted(path for path in arguments.photos.rglob("*") if path.suffix.lower() in ENDINGS and path.is_file())
    rng = np.random.default_rng(0)
    cuts = np.cumsum([round(share * len(paths)) for share in list(SHARES.values())[:-1]])
    photographs = dict(zip(SHARES, np.split(rng.permutation(len(paths)), cuts), strict=True))
    wanted = {"learn": arguments.learn, "query": arguments.queries, "base": arguments.base}
    if min(len(numbers) for numbers in photographs.values()) == 0:
        raise SystemExit(f"{arguments.photos} has {len(paths)} photographs, expected at least 20; add some")
    with whole_folder(arguments.out, "name a folder that is not there yet") as folder:
        parts = {
            name: make_part(name, [paths[number] for number in numbers], wanted[name], arguments.step, rng)
            for name, numbers in photographs.items()
        }
        for name, vectors in parts.items():
            write_vectors(folder / f"{name}.bvecs", vectors)
        print("exact neighbours")
        truth = ground_truth(parts["base"], parts["query"], min(TRUE_NEIGHBOURS, arguments.base))
        write_vectors(folder / "groundtruth.ivecs", truth.astype(np.int32))


if __name__ == "__main__":
    main()
