"""The layouts of public data sets: find the published files in a folder, and make vectors of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from autojacobin.datasets.entries import Entry
from autojacobin.datasets.formats.source import open_source, unpacked
from autojacobin.datasets.local import VectorSet, find_parts, open_parts
from autojacobin.datasets.prepared import draw, open_prepared, scatter_rows
from autojacobin.datasets.vector_files import open_vectors
from autojacobin.errors import DataError, FormatError

_PICTURES = 0x803  # the first number of an IDX file of bytes in three axes
_ROWS_PER_BLOCK = 2**16


@dataclass(frozen=True)
class Layout:
    """How the files of a set are found and read.

    ``find(entry, folder)`` gives the files by what they hold, or None if some are missing; ``read(entry, files)`` makes
    the set from them.
    """

    find: Callable[[Entry, Path], dict[str, Path] | None]
    read: Callable[[Entry, dict[str, Path]], VectorSet]


def read_idx(path: Path) -> npt.NDArray[np.uint8]:
    """Read the pictures of an IDX file, packed by gzip or not."""
    source = open_source(path)
    if source.head(2) == b"\x1f\x8b":
        source = unpacked(source)
    kind, *shape = (int(number) for number in np.frombuffer(source.head(16).ljust(16, b"\0"), ">u4"))
    expected = 16 + math.prod(shape)
    if kind != _PICTURES or len(source) != expected or expected == 16:
        raise FormatError(
            f"{path} is no IDX file of pictures: it begins with the bytes {source.head(4).hex(' ')} and has "
            f"{len(source):,} bytes, expected 00 00 08 03 and {expected:,} for the shape {tuple(shape)}; fetch it "
            "again, unless it is the file of labels"
        )
    return source.content[16:].reshape(shape)


def _named(entry: Entry, **parts: Any) -> VectorSet:
    origin = {"source": entry.source, "licence": entry.licence, "citation": entry.citation}
    return VectorSet(entry.name, entry.description, **origin, **parts)


def _first_of_each(folder: Path, patterns: dict[str, tuple[str, ...]]) -> dict[str, Path] | None:
    """Find a file below a folder for each role, by the first of its patterns that fits one; None if one is missing."""
    found = {}
    for role, names in patterns.items():
        paths = [path for name in names for path in sorted(folder.rglob(name))]
        # hidden folders may be left from an interrupted unpacking
        seen = [path for path in paths if not any(part.startswith(".") for part in path.relative_to(folder).parts)]
        if not seen:
            return None
        found[role] = seen[0]
    return found


def _digits(entry: Entry, _files: dict[str, Path]) -> VectorSet:
    from sklearn.datasets import load_digits

    vectors = load_digits().data.astype(np.uint8)
    order = np.random.RandomState(0).permutation(len(vectors))
    base = vectors[order[entry.split.queries :]]
    return _named(entry, train=base, base=base, queries=vectors[order[: entry.split.queries]])


def _photos(entry: Entry, _files: dict[str, Path]) -> VectorSet:
    from autojacobin.datasets.photos import open_photos, open_places

    arrays = open_photos()
    return _named(entry, **arrays, **open_places(arrays))


def _find_texmex(_entry: Entry, folder: Path) -> dict[str, Path] | None:
    try:
        parts = find_parts(folder)
    except DataError:
        return None
    return parts if "train" in parts else None


def _texmex(entry: Entry, files: dict[str, Path]) -> VectorSet:
    data = open_parts(entry.name, entry.description, files)
    got = len(data.train) + len(data.base) + len(data.queries)
    _check(entry, files["base"].parent, got, data.base.shape[1], data.base, data.queries)
    train = data.train
    if entry.split.train is not None:
        train = train[draw(len(train), entry.split.train)[0]]
    return replace(data, train=train, source=entry.source, licence=entry.licence, citation=entry.citation)


def _find_idx(_entry: Entry, folder: Path) -> dict[str, Path] | None:
    stems = {"base": "train-images-idx3-ubyte", "queries": "t10k-images-idx3-ubyte"}
    return _first_of_each(folder, {role: (stem, f"{stem}.gz") for role, stem in stems.items()})


def _idx(entry: Entry, files: dict[str, Path]) -> VectorSet:
    def fill(folder: Path) -> None:
        for role, path in files.items():
            pictures = read_idx(path)
            scatter_rows([pictures], {role: np.arange(len(pictures))}, folder)

    pictures = open_prepared(entry.name, list(files.values()), "idx", fill)
    base, queries = (array.reshape(len(array), -1) for array in (pictures["base"], pictures["queries"]))
    _check(entry, files["base"].parent, len(base) + len(queries), base.shape[1], base, queries)
    train = base[draw(len(base), entry.split.train or len(base))[0]]
    patches = {"base_patches": pictures["base"], "query_patches": pictures["queries"]}
    return _named(entry, train=train, base=base, queries=queries, **patches)


def _find_nus_wide(_entry: Entry, folder: Path) -> dict[str, Path] | None:
    for names in (("Normalized_WT.dat",), ("Train_Normalized_WT.dat", "Test_Normalized_WT.dat")):
        found = _first_of_each(folder, {name: (name, f"{name}.gz") for name in names})
        if found is not None:
            return found
    return None


def _nus_wide(entry: Entry, files: dict[str, Path]) -> VectorSet:
    def fill(folder: Path) -> None:
        texts = [open_vectors(path, format="text") for path in files.values()]  # memory maps, which need not be closed
        n = sum(len(text) for text in texts)
        for text in texts:
            _check(entry, text.path, n, text.shape[1])
        queries, base = draw(n, entry.split.queries, entry.split.base)
        train = base[draw(len(base), entry.split.train or len(base))[0]]
        blocks = (block.astype(np.float32) for text in texts for block in text.blocks())  # the files have six digits
        scatter_rows(blocks, {"train": train, "base": base, "queries": queries}, folder)

    return _named(entry, **open_prepared(entry.name, list(files.values()), _recipe(entry), fill))


def _find_sift10m(_entry: Entry, folder: Path) -> dict[str, Path] | None:
    found = _first_of_each(folder, {"features": ("SIFT10Mfeatures.mat",)})
    return found and found | (_first_of_each(folder, {"patches": ("*[pP]atch*.mat",)}) or {})


def _sift10m(entry: Entry, files: dict[str, Path]) -> VectorSet:
    def fill(folder: Path) -> None:
        features = _matlab_rows(files["features"], entry.dimension)
        n = len(features)
        _check(entry, files["features"], n, features.shape[1])
        queries, train, base = draw(n, entry.split.queries, entry.split.train or 0, entry.split.base)
        scatter_rows(_blocks(features), {"train": train, "base": base, "queries": queries}, folder)
        if "patches" in files:
            pictures = _matlab_pictures(files["patches"], n)
            scatter_rows(pictures, {"base_patches": base, "query_patches": queries}, folder)

    return _named(entry, **open_prepared(entry.name, list(files.values()), _recipe(entry), fill))


def _matlab_pictures(path: Path, n: int) -> Iterator[npt.NDArray[Any]]:
    patches = _matlab_rows(path, n, rows_known=True)
    side = math.isqrt(patches.shape[1])
    if side * side != patches.shape[1] or patches.dtype != np.uint8:
        raise FormatError(
            f"{path} holds {patches.dtype} of {patches.shape[1]} values each, expected square grey pictures of uint8; "
            "remove the file to load the set without pictures"
        )
    for block in _blocks(patches):
        yield block.reshape(-1, side, side).transpose(0, 2, 1)  # MATLAB stores pictures column by column


def _matlab_rows(path: Path, length: int, *, rows_known: bool = False) -> npt.NDArray[Any]:
    """The matrix of a MATLAB 7.3 file, transposed if need be so that it has one point per row.

    ``length`` is the length of a row, or with ``rows_known`` the number of rows.
    """
    try:
        opened = open_vectors(path, part="fea", format="hdf5")
    except DataError:
        opened = open_vectors(path, format="hdf5")
    with opened:
        matrix = np.asarray(opened)
    axis = 0 if rows_known else 1
    if matrix.shape[axis] != length and matrix.shape[1 - axis] == length:
        matrix = matrix.T
    if matrix.shape[axis] != length:
        raise FormatError(
            f"{path} holds a matrix of shape {matrix.shape}, expected a side of {length:,}; fetch it again"
        )
    return matrix


def _blocks(matrix: npt.NDArray[Any]) -> Iterator[npt.NDArray[Any]]:
    for start in range(0, len(matrix), _ROWS_PER_BLOCK):
        yield np.ascontiguousarray(matrix[start : start + _ROWS_PER_BLOCK])


def _recipe(entry: Entry) -> str:
    return f"{entry.layout} {entry.rows} × {entry.dimension}, {entry.split}"


def _check(entry: Entry, path: Path, n: int, width: int, base: Any = None, queries: Any = None) -> None:
    """Raise a FormatError if a set has another width, or another number of vectors in all or in its parts."""
    found, expected = f"{n:,} vectors of {width} values", f"{entry.rows:,} of {entry.dimension}"
    if base is not None:
        found += f", {len(base):,} in its base and {len(queries):,} queries"
        expected += f", {entry.split.base:,} and {entry.split.queries:,}"
    right = (n, width) == (entry.rows, entry.dimension)
    if not right or (base is not None and (len(base), len(queries)) != (entry.split.base, entry.split.queries)):
        raise FormatError(
            f"{path} is not the set {entry.name}: it has {found}, expected {expected}; fetch it again, or load it by "
            "its path"
        )


LAYOUTS = {
    "digits": Layout(lambda *_: {}, _digits),  # these two ship with a package
    "photos": Layout(lambda *_: {}, _photos),
    "texmex": Layout(_find_texmex, _texmex),
    "idx": Layout(_find_idx, _idx),
    "nus-wide": Layout(_find_nus_wide, _nus_wide),
    "sift10m": Layout(_find_sift10m, _sift10m),
}
