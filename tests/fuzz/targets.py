"""What is fuzzed: each reader of files, with files to start from and changes that suit its format; and conditions.

A reader may answer, or refuse with one of the errors that it promises. Anything else is a failure: another exception, a
signal, an error that is no sentence, memory for more than the file can hold, or rows that depend on how they are read.
"""

from __future__ import annotations

import gzip
import shutil
import tempfile
import warnings
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

import autojacobin
from autojacobin import LSH, PartitionedAutoencoder, PartitionedHasher
from autojacobin.codes import Codes
from autojacobin.datasets import open_vectors
from autojacobin.datasets.catalogue import unpack
from autojacobin.datasets.descriptors import read_picture
from autojacobin.datasets.sources import read_idx
from autojacobin.errors import AutoJacobinError, DataError, FormatError, StorageError
from autojacobin.hashers import methods
from autojacobin.index.comparisons import allowed_rows
from autojacobin.index.index import Index
from autojacobin.index.repair import repair
from tests.datasets.vector_files import FORMATS, foreign_file
from tests.fuzz import archives, columns, index_files, model_files
from tests.fuzz.mutations import mutated_bytes

__all__ = ["TARGETS", "Target", "run"]

GOLDEN = Path(__file__).parent.parent / "golden"
CORPUS = Path(__file__).parent / "corpus"
_VARIANTS = 6  # of files that other programs write in one format


@dataclass(frozen=True)
class Target:
    """A reader.

    Attributes
    ----------
    read : callable
        Reads ``content`` in a folder, with whatever a user would then do.
    make_seeds : callable
        Gives files to start from.
    errors : tuple of types
        What the reader may raise.
    mutate : callable
        Changes a file in a way that suits its format, drawn from a generator.
    seal : callable
        Recomputes the checksums of a file.
    """

    read: Callable[[bytes, Path], None]
    make_seeds: Callable[[], list[bytes]]
    errors: tuple[type[AutoJacobinError], ...]
    mutate: Callable[[bytes, Random], bytes] = mutated_bytes
    seal: Callable[[bytes], bytes] = bytes

    def seeds(self, name: str) -> list[bytes]:
        """Give the files to start from: those made here, and those that once failed."""
        return self.make_seeds() + [path.read_bytes() for path in sorted((CORPUS / name).glob("*"))]


def run(target: Target, content: bytes, folder: Path) -> str:
    """Read one file; give the name of the error that it was refused with, or nothing."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            target.read(target.seal(content), folder)
    except target.errors as error:
        text = str(error)
        assert "\n" not in text, f"an error that is more than a sentence: {text}"
        assert len(text) < 1000 + len(str(folder)), f"an error of {len(text)} characters"
        assert str(folder) in text or not isinstance(error, FormatError), f"an error without a path: {text}"
        text.encode()
        return type(error).__name__
    return ""


# Vector files


def _read_vectors(content: bytes, folder: Path, *, name: str) -> None:
    path = folder / name
    path.write_bytes(content)
    with open_vectors(path) as vectors:
        assert min(vectors.shape) >= 1
        assert vectors.dtype.kind in "biuf"
        whole = np.asarray(vectors)
        assert whole.shape == vectors.shape
        assert whole.dtype == vectors.dtype
    with open_vectors(path) as vectors:
        for key in (0, -1, slice(1, 7), [0, -1]):
            assert np.asarray(vectors[key]).tobytes() == whole[key].tobytes()
        if len(vectors) <= 1000:
            assert sum(len(block) for block in vectors.blocks(7)) == len(vectors)


def _vector_files(*endings: str) -> list[bytes]:
    small = np.arange(27).reshape(9, 3)
    with tempfile.TemporaryDirectory() as folder:
        files = [
            foreign_file(Path(folder) / f"{variant}.{ending}", *matrix, variant=variant).read_bytes()
            for ending in endings
            for matrix in ((), (small,))
            for variant in range(_VARIANTS)
        ]
    return sorted(set(files), key=files.index)


def _vectors(ending: str, **changes: Any) -> Target:
    read = partial(_read_vectors, name=f"a.{ending}")
    return Target(read, partial(_vector_files, ending), (FormatError, DataError), **changes)


# Models, codes, indexes


def _read_model(content: bytes, folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(content)
    model = autojacobin.load(path)
    X = np.random.RandomState(0).standard_normal((3, model.n_features_in_)).astype(np.float32)
    try:
        assert model.encode(X).to_bits().shape == (3, model.n_bits)
        assert np.isfinite(model.project(X)).all()
    except DataError as error:  # finite weights that are large may take any vector out of the range of float32
        assert "too large to project" in str(error)
    model.save(folder / "again.safetensors", overwrite=True)
    assert _parameters(autojacobin.load(folder / "again.safetensors")) == _parameters(model)
    assert getattr(model, "chosen_", {}) is not None


def _search_with_model(content: bytes, folder: Path) -> None:
    """Search an index that has its codes in the lists of a model, as far as the model encodes anything."""
    path = folder / "model.safetensors"
    path.write_bytes(content)
    model = autojacobin.load(path)
    X = np.random.RandomState(0).standard_normal((40, model.n_features_in_)).astype(np.float32)
    X[-4:] *= np.array([[1e15 / np.abs(X).max()], [1e-30], [1e-45], [0]], dtype=np.float32)
    index = Index(model)
    probes = min(2, len(model.centres_))  # type: ignore[attr-defined]
    try:
        index.add(X)
        for options in ({"recall": 1}, {"rerank": False}, {"candidates": 20, "probes": probes}, {"probes": "all"}):
            distances, ids = index.search(X, 5, **options)  # type: ignore[arg-type]
            assert np.isin(ids, index.ids).all()
            assert not np.isnan(distances).any() or options == {"rerank": False}
    except DataError as error:
        assert "too large to project" in str(error)


def _models_with_lists() -> list[bytes]:
    vectors = np.random.RandomState(0).standard_normal((60, 6)).astype(np.float32)
    hashers = (
        PartitionedHasher(LSH(5, random_state=0), n_lists=4, random_state=0),
        PartitionedAutoencoder(9, n_lists=4, n_iterations=3, random_state=0),
    )
    return [hasher.fit(vectors).to_bytes() for hasher in hashers]


def _parameters(model: autojacobin.Hasher) -> dict[str, Any]:
    """Parameters, and those of a hasher that is one of them."""
    return {name: value for name, value in model.get_params().items() if not isinstance(value, autojacobin.Hasher)}


def _models() -> list[bytes]:
    """Golden models, and a new one of each class that has none yet."""
    paths = sorted(GOLDEN.glob("hashers-*/*.safetensors"))
    vectors = np.random.RandomState(0).standard_normal((60, 6)).astype(np.float32)
    files = [path.read_bytes() for path in paths]
    with tempfile.TemporaryDirectory() as folder:
        for name, method in {method.hasher.__name__: method for method in methods()}.items():
            if name not in {path.stem for path in paths}:
                method.make(4, seed=0).fit(vectors).save(Path(folder) / name)
                files.append((Path(folder) / name).read_bytes())
    return files


def _read_codes(content: bytes, folder: Path) -> None:
    path = folder / "codes.npz"
    path.write_bytes(content)
    codes = Codes.load(path)
    assert codes.to_bits().shape == (len(codes), codes.n_bits)


def _code_files() -> list[bytes]:
    return [path.read_bytes() for path in sorted(GOLDEN.glob("hashers-3/*.npz"))[:2]]


def _write_index(files: index_files.Folder, path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)  # not written over: what was there may still be mapped
    path.mkdir()
    for name, content in files.items():
        (path / name).write_bytes(content)


def _repair_index(content: bytes, folder: Path) -> None:
    golden, files = index_files.from_archive(content)
    if zlib.crc32(content) % 2:
        files = index_files.sealed_folder(files)
    _write_index(files, folder / golden)
    shutil.rmtree(folder / "repaired", ignore_errors=True)
    report = repair(folder / golden, folder / "repaired")
    with Index.open(folder / "repaired") as index:
        assert len(index) == report.saved
        index.verify()


def _read_index(content: bytes, folder: Path) -> None:
    golden, files = index_files.from_archive(content)
    path = folder / golden
    _write_index(index_files.sealed_folder(files), path)
    with Index.open(path) as index:
        ids = index.ids
        assert len(ids) == len(index)
        queries = np.random.RandomState(0).uniform(0, 16, (2, index.hasher.n_features_in_)).astype(np.float32)
        vectors_kept = index.info()["vectors_kept"]
        by_codes = [{"rerank": False, "distance": distance} for distance in index.hasher.distances]
        for options in [*by_codes, {}] if vectors_kept else by_codes:
            if len(ids):
                distances, found = index.search(queries, min(len(ids), 5), **options)  # type: ignore[arg-type]
                assert distances.shape == found.shape == (2, min(len(ids), 5))
                assert np.isin(found, ids).all()
        if len(ids) and index.info()["columns"]:
            assert len(index.search(queries, 5, where="price < 1500", columns=["shop"])) == 3
        some = ids[:: max(1, len(ids) // 3)][:4]
        assert len(index.codes(some)) == len(some)
        if vectors_kept:
            assert index.vectors(some).shape == (len(some), index.hasher.n_features_in_)
        index.verify()


@cache
def _index_seeds(kind: str | None, only: str) -> list[bytes]:
    """Archives with each file of a kind, or of a whole folder; of all golden folders, or of one."""
    chosen: list[dict[str, bytes]] = []
    for golden, files in index_files.GOLDEN.items():
        if not golden.endswith(only):
            continue
        named = {f"{golden}/{name}": content for name, content in files.items()}
        if kind is None:
            chosen.append({f"{golden}/MANIFEST.json": files["MANIFEST.json"]})
        else:
            chosen += [{name: named[name]} for name in named if kind == "any" or f"/{kind}" in name.lower()]
    return [index_files.archived(files) for files in chosen]


def _mutated_index(content: bytes, rng: Random, *, kind: str | None) -> bytes:
    golden, files = index_files.from_archive(content)
    if kind is None:
        return index_files.as_archive(golden, index_files.mutated_folder(files, rng))
    return index_files.as_archive(golden, index_files.mutated_file(files, kind, rng))


def _index(kind: str | None = None, read: Callable[[bytes, Path], None] = _read_index, only: str = "") -> Target:
    return Target(
        read,
        partial(_index_seeds, kind, only),
        (FormatError, StorageError, DataError),
        mutate=partial(_mutated_index, kind=kind),
    )


# Conditions

_PIECES = [
    "a", "s", "b", "day", "f", "(", ")", ",", "=", "<", ">=", "<>", "+", "-", ".", "%", "_", ";", "1", "-2.5", "1e9",
    "null", "true", "and", "or", "not", "in", "between", "is", "like", "ilike", "date",
    "'x'", "'%a_'", '"a"', "'2020-01-01'", "'", '"', "''", "not " * 480, "(" * 60, ")" * 60, "%a" * 90, "_" * 20,
    "(with a as ", "9" * 120, "1e999", "\ud800", "é", "\n",
]  # fmt: skip


def _read_condition(content: bytes, _folder: Path) -> None:
    table = _payload()
    allowed = allowed_rows([table], content.decode(errors="surrogateescape"))
    assert allowed.shape == (table.num_rows,)
    assert allowed.dtype == bool


@cache
def _payload() -> Any:
    import pyarrow

    texts = ["ab" * 5_000, "", None]
    columns = {"a": [1, -(2**63), None], "s": texts, "b": [True, False, None], "f": [0.5, -np.inf, None]}
    days = pyarrow.array([0, 18_262, None], pyarrow.date32())
    return pyarrow.table(columns | {"day": days, "list": [[1], [], None]})


def _conditions() -> list[bytes]:
    conditions = (
        "a < 3 and not s like '%a_b%' or b", "day between '2020-01-01' and date '2021-01-01'", "(a in (1, 2.5, null))",
        "f >= -1e300 and s = 'it''s'", '"a" <> f', "list is not null", "s ilike 'AB%'", "not (not b or 1 = 1) and null",
    )  # fmt: skip
    return [condition.encode() for condition in conditions]


def _mutated_condition(content: bytes, rng: Random) -> bytes:
    """Insert, replace and repeat words; or change bytes."""
    if not rng.randrange(4):
        return mutated_bytes(content, rng)
    words = content.decode(errors="surrogateescape").split(" ")
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(words) + 1)
        words[at : at + rng.randrange(3)] = rng.choice(([rng.choice(_PIECES)], words[: rng.randrange(20)]))
    return " ".join(words).encode(errors="surrogatepass")


# Downloads


def _read_idx(content: bytes, folder: Path) -> None:
    (folder / "a").write_bytes(content)
    assert 0 < read_idx(folder / "a").nbytes <= 1032 * len(content)


def _idx_files() -> list[bytes]:
    plain = b"\0\0\x08\3" + np.array([2, 3, 4], ">u4").tobytes() + bytes(range(24))
    return [plain, archives.gzipped(plain)]


def _sealed_idx(content: bytes) -> bytes:
    return archives.sealed_gzip(content) if content.startswith(b"\x1f\x8b") else content


def _read_picture(content: bytes, folder: Path) -> None:
    (folder / "a.png").write_bytes(content)
    picture = read_picture(folder / "a.png")
    assert picture.dtype == np.uint8
    assert picture.ndim == 3


def _pictures() -> list[bytes]:
    import cv2

    picture = (np.arange(7 * 9 * 3) % 256).astype(np.uint8).reshape(7, 9, 3)
    endings = (".png", ".jpg", ".bmp", ".ppm", ".tiff", ".webp")
    return [cv2.imencode(ending, picture)[1].tobytes() for ending in endings]


def _read_archive(content: bytes, folder: Path, *, name: str) -> None:
    (folder / name).write_bytes(content)
    with tempfile.TemporaryDirectory(dir=folder) as parent:
        unpack(folder / name, Path(parent) / "target")
        assert any(path.is_file() for path in (Path(parent) / "target").rglob("*"))
        assert [path.name for path in Path(parent).iterdir()] == ["target"]


def _read_tar(content: bytes, folder: Path) -> None:
    _read_archive(gzip.compress(content, 1), folder, name="a.tar.gz")


def _tars() -> list[bytes]:
    import io
    import tarfile

    files = []
    for kind in (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        stream = io.BytesIO()
        with tarfile.open(fileobj=stream, mode="w", format=kind) as tar:
            for name, content in (("a.bin", b"12345"), ("folder/" + "ä" * 45, b"1" * 600)):
                info = tarfile.TarInfo(name)
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
        files.append(stream.getvalue())
    return files


def _sealed_tar(content: bytes) -> bytes:
    """Recompute the checksum of every block that looks like the header of a member."""
    found = bytearray(content)
    for start in range(0, len(found) - 511, 512):
        if found[start + 257 : start + 262] == b"ustar":
            found[start + 148 : start + 156] = b" " * 8
            found[start + 148 : start + 156] = b"%06o\0 " % (sum(found[start : start + 512]))
    return bytes(found)


def _zips() -> list[bytes]:
    return [index_files.archived({"a.bin": b"12345", "folder/b.txt": b"1" * 50}), *_vector_files("npz")[:2]]


_PACKED = {"mutate": archives.mutated_gzip, "seal": archives.sealed_gzip}
_ZIPPED = {"mutate": archives.mutated_zip, "seal": archives.sealed_zip}
_DAMAGED = (FormatError,)

TARGETS: dict[str, Target] = {
    **{ending: _vectors(ending) for ending in FORMATS if ending != "npz"},
    "npz": _vectors("npz", **_ZIPPED),
    "fvecs.gz": _vectors("fvecs.gz", **_PACKED),
    "unnamed": Target(  # a file whose name does not tell its format
        partial(_read_vectors, name="a"),
        lambda: [_vector_files(ending)[0] for ending in ("npy", "npz", "hdf5", "parquet", "npy.gz")],
        (FormatError, DataError),
    ),
    "model": Target(_read_model, _models, _DAMAGED, mutate=model_files.mutated_model, seal=model_files.sealed_model),
    "model-lists": Target(
        _search_with_model,
        _models_with_lists,
        _DAMAGED,
        mutate=model_files.mutated_model,
        seal=model_files.sealed_model,
    ),
    "codes": Target(_read_codes, _code_files, _DAMAGED, **_ZIPPED),
    **{f"index-{kind}": _index(kind) for kind in ("manifest", "codes", "ids", "rows", "vectors", "dead")},
    "index-lists": _index("any", only="-lists"),
    "index-named": _index("any", only="-named"),
    "index-folder": _index(),
    "index-repair": _index(read=_repair_index),
    "index-columns": Target(columns.check_columns, lambda: [b"a", b"b", b"c"], (DataError,)),
    "index-arrow": Target(
        partial(columns.check_file, name="a.arrow"),
        columns.arrow_files,
        (FormatError, DataError),
        mutate=columns.mutated_file,
    ),
    "index-json": Target(
        partial(columns.check_file, name="a.jsonl"),
        columns.json_lines,
        (FormatError, DataError),
        mutate=columns.mutated_json,
    ),
    "condition": Target(_read_condition, _conditions, (DataError,), mutate=_mutated_condition),
    "idx": Target(_read_idx, _idx_files, _DAMAGED, seal=_sealed_idx),
    "picture": Target(_read_picture, _pictures, (DataError,)),
    "tar": Target(_read_tar, _tars, _DAMAGED, seal=_sealed_tar),
    "zip": Target(partial(_read_archive, name="a.zip"), _zips, _DAMAGED, **_ZIPPED),
}
