"""The data sets of the catalogue: what is known about each, how its files are found, and vectors made of them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from autojacobin.core.parallel import slices
from autojacobin.datasets.formats.source import open_source, unpacked
from autojacobin.datasets.local import VectorSet, find_parts, open_parts
from autojacobin.datasets.prepared import draw, open_prepared, scatter_rows
from autojacobin.datasets.vector_files import open_vectors
from autojacobin.errors import DataError, FormatError

_PICTURES = 0x803  # the first number of an IDX file of bytes in three axes
_ROWS_PER_BLOCK = 2**16
# The files of a layout below the folder of a set, by what they hold. The first line of which all are there is taken.
_FILES: dict[str, tuple[dict[str, str], ...]] = {
    "idx": ({"base": "train-images-idx3-ubyte", "queries": "t10k-images-idx3-ubyte"},),
    "nus-wide": ({"all": "Normalized_WT.dat"}, {"train": "Train_Normalized_WT.dat", "test": "Test_Normalized_WT.dat"}),
    "sift10m": (
        {"features": "SIFT10Mfeatures.mat", "patches": "*[pP]atch*.mat"},
        {"features": "SIFT10Mfeatures.mat"},
    ),
}


@dataclass(frozen=True)
class RemoteFile:
    """A file to download."""

    url: str
    name: str  # in the folder of its set
    checksum: str | None = None  # "md5:…" or "sha256:…", where one is published


@dataclass(frozen=True)
class Split:
    """Numbers of vectors for training, in the base, and of queries; with ``train=None`` all are used for training."""

    train: int | None
    base: int
    queries: int


@dataclass(frozen=True)
class Entry:
    """A named set: what is known about it before it is downloaded.

    Files with another number of ``rows`` in all, or of another ``dimension``, are refused. The ``split`` is that of
    Table I of the paper, if the set is in it. ``files`` are empty if the set ships with something installed, or must be
    fetched by hand. ``by_hand`` says what to put into the folder of the set, and where to get it. ``elsewhere`` are
    folders in which a package of the operating system may have put it.
    """

    name: str
    description: str
    layout: str  # a key of READERS
    dimension: int
    rows: int
    split: Split
    source: str
    licence: str  # the terms of use as its owners publish them
    citation: str
    download: str = "none"  # its size in words
    files: tuple[RemoteFile, ...] = ()
    by_hand: str = ""
    elsewhere: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """How to get it: ``built in``, ``download`` or ``by hand``."""
        return "download" if self.files else "by hand" if self.by_hand else "built in"


def _entry(split: dict[str, int], files: Sequence[Any] = (), elsewhere: Sequence[str] = (), **fields: Any) -> Entry:
    remote = tuple(RemoteFile(**file) for file in files)
    return Entry(split=Split(**split), files=remote, elsewhere=tuple(elsewhere), **fields)


_TABLE = json.loads(Path(__file__).with_name("catalogue.json").read_text(encoding="utf-8"))
CATALOGUE: dict[str, Entry] = {fields["name"]: _entry(**fields) for fields in _TABLE}


def find_files(entry: Entry, folder: Path) -> dict[str, Path] | None:
    """Find the files of a set below a folder, packed by gzip or not, by what they hold; None if some are missing."""
    if entry.layout == "texmex":
        try:
            parts = find_parts(folder)
        except DataError:
            return None
        return parts if "train" in parts else None
    # hidden folders may be left from an interrupted unpacking
    visible = [path for path in sorted(folder.rglob("*")) if "/." not in f"/{path.relative_to(folder).as_posix()}"]

    def named(name: str) -> list[Path]:
        return [path for pattern in (name, f"{name}.gz") for path in visible if path.match(pattern)]

    for names in _FILES[entry.layout]:
        found = {role: paths[0] for role, name in names.items() if (paths := named(name))}
        if len(found) == len(names):
            return found
    return None


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


def _digits(entry: Entry, _files: dict[str, Path]) -> VectorSet:
    from sklearn.datasets import load_digits

    vectors = load_digits().data.astype(np.uint8)
    order = np.random.RandomState(0).permutation(len(vectors))
    base = vectors[order[entry.split.queries :]]
    return _named(entry, train=base, base=base, queries=vectors[order[: entry.split.queries]])


def _photos(entry: Entry, _files: dict[str, Path]) -> VectorSet:
    from autojacobin.datasets.pictures import open_photos

    return _named(entry, **open_photos())


def _texmex(entry: Entry, files: dict[str, Path]) -> VectorSet:
    data = open_parts(entry.name, entry.description, files)
    got = len(data.train) + len(data.base) + len(data.queries)
    _check(entry, files["base"].parent, got, data.base.shape[1], data.base, data.queries)
    train = data.train
    if entry.split.train is not None:
        train = train[draw(len(train), entry.split.train)[0]]
    return replace(data, train=train, source=entry.source, licence=entry.licence, citation=entry.citation)


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


def _sift10m(entry: Entry, files: dict[str, Path]) -> VectorSet:
    def fill(folder: Path) -> None:
        features = _matlab_matrix(files["features"])
        if len(features) == entry.dimension:
            features = features.T
        n = len(features)
        _check(entry, files["features"], n, features.shape[1])
        queries, train, base = draw(n, entry.split.queries, entry.split.train or 0, entry.split.base)
        scatter_rows(_blocks(features), {"train": train, "base": base, "queries": queries}, folder)
        if "patches" in files:
            patches = _matlab_matrix(files["patches"])
            if patches.shape[1] == n:
                patches = patches.T
            side = math.isqrt(patches.shape[1])
            if patches.shape != (n, side**2) or patches.dtype != np.uint8:
                raise FormatError(
                    f"{files['patches']} holds {patches.dtype} of shape {patches.shape}, expected a square grey picture"
                    f" of uint8 for each of {n:,} features; remove the file to load the set without pictures"
                )
            # MATLAB stores pictures column by column
            pictures = (block.reshape(-1, side, side).transpose(0, 2, 1) for block in _blocks(patches))
            scatter_rows(pictures, {"base_patches": base, "query_patches": queries}, folder)

    return _named(entry, **open_prepared(entry.name, list(files.values()), _recipe(entry), fill))


def _matlab_matrix(path: Path) -> npt.NDArray[Any]:
    """Give the matrix ``fea`` of a MATLAB 7.3 file, or its only one."""
    try:
        opened = open_vectors(path, part="fea", format="hdf5")
    except DataError:
        opened = open_vectors(path, format="hdf5")
    with opened:
        return np.asarray(opened)


def _blocks(matrix: npt.NDArray[Any]) -> Iterator[npt.NDArray[Any]]:
    return (np.ascontiguousarray(matrix[rows]) for rows in slices(len(matrix), _ROWS_PER_BLOCK))


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


READERS = {
    "digits": _digits,
    "photos": _photos,
    "texmex": _texmex,
    "idx": _idx,
    "nus-wide": _nus_wide,
    "sift10m": _sift10m,
}
