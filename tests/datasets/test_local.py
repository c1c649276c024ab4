"""Sets of one's own: folders and files of every kind come out split, checked and mapped."""

import gzip
import os
import sys

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autojacobin import AutoJacobinError, DataError, FormatError, StorageError
from autojacobin.datasets import load_set, write_vectors
from autojacobin.evaluation import ground_truth

RNG = np.random.RandomState(3)
LEARN, BASE, QUERY = (RNG.randint(0, 200, (n, 8)).astype(np.float32) for n in (20, 50, 6))
TRUTH = ground_truth(BASE, QUERY, 4).astype(np.int32)


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("AUTOJACOBIN_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("AUTOJACOBIN_DATA", raising=False)


def write_set(folder, vectors=".fvecs", truth=".ivecs", prefix=""):
    folder.mkdir(parents=True)
    parts = [("learn", vectors, LEARN), ("base", vectors, BASE), ("query", vectors, QUERY)]
    for name, ending, array in [*parts, ("groundtruth", truth, TRUTH)] if truth else parts:
        path = folder / f"{prefix}{name}{ending.removesuffix('.gz')}"
        write_vectors(path, array)
        if ending.endswith(".gz"):
            path.with_name(path.name + ".gz").write_bytes(gzip.compress(path.read_bytes()))
            path.unlink()
    return folder


def check(data):
    assert np.array_equal(data.train, LEARN)
    assert np.array_equal(data.base, BASE)
    assert np.array_equal(data.queries, QUERY)
    assert np.array_equal(data.truth, TRUTH)


@pytest.mark.parametrize("prefix", ["", "sift_", "my-set-", "glove.6B_"])
@pytest.mark.parametrize(
    ("vectors", "truth"),
    [(".fvecs", ".ivecs"), (".npy", ".npy"), (".fbin", ".ibin"), (".csv", ".csv"), (".parquet", ".parquet"),
     (".npz", ".npz"), (".hdf5", ".hdf5"), (".fvecs.gz", ".ivecs.gz")],
)  # fmt: skip
def test_a_folder_in_any_format(tmp_path, vectors, truth, prefix):
    data = load_set(write_set(tmp_path / "mine", vectors, truth, prefix))
    check(data)
    assert data.truth.dtype.kind == "i"
    assert data.name == "mine"


def test_the_folder_one_is_in_is_not_that_of_fetched_sets(tmp_path, monkeypatch):
    (tmp_path / "cache" / "sets").mkdir(parents=True)
    monkeypatch.chdir(write_set(tmp_path / "mine"))
    check(load_set("."))


def test_names_of_other_habits_and_patches(tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    pictures = {"base": RNG.randint(0, 256, (50, 4, 4, 3)), "query": RNG.randint(0, 256, (6, 4, 4))}
    for name, array in (("train", LEARN), ("base", BASE), ("test", QUERY), ("neighbors", TRUTH)):
        np.save(folder / f"{name}.npy", array)
    for name, array in pictures.items():
        np.save(folder / f"{name}_patches.npy", array.astype(np.uint8))
    (folder / "pictures.csv").write_text("not,a,part\n")
    (folder / "README.md").write_text("words")
    (folder / ".base.npy.part").write_text("what a crash left")
    data = load_set(folder)
    check(data)
    assert np.array_equal(data.base_patches, pictures["base"])
    assert np.array_equal(data.query_patches, pictures["query"])
    assert isinstance(data.base_patches, np.memmap)


def test_a_set_is_named_by_its_folder_in_the_data_folder(tmp_path, monkeypatch):
    write_set(tmp_path / "data" / "mine" / "unpacked", prefix="sift_")  # one folder deeper, as archives are
    check(load_set("mine", folder=tmp_path / "data"))
    monkeypatch.setenv("AUTOJACOBIN_DATA", str(tmp_path / "data"))
    check(load_set("mine"))
    monkeypatch.chdir(tmp_path / "data")
    monkeypatch.delenv("AUTOJACOBIN_DATA")
    check(load_set("mine"))
    check(load_set("./mine"))


def test_without_a_learning_set_the_base_is_learned_from(tmp_path):
    folder = write_set(tmp_path / "mine", truth="")
    (folder / "learn.fvecs").unlink()
    data = load_set(folder)
    assert np.array_equal(data.train, BASE)
    assert data.truth is None


def test_vectors_are_mapped_and_not_read(tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    np.save(folder / "query.npy", QUERY.astype(np.uint8))
    header = {"descr": "|u1", "fortran_order": False, "shape": (2**33, 8)}  # 64 GB, of which nothing is written
    with (folder / "base.npy").open("wb") as stream:
        np.lib.format.write_array_header_1_0(stream, header)
        os.truncate(stream.fileno(), stream.tell() + 2**36)
    data = load_set(folder)
    assert data.base.shape == (2**33, 8)
    assert data.base[2**32].tolist() == [0] * 8


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: (f / "base.fvecs").unlink(), "has no base file, .* it has groundtruth.ivecs, learn.fvecs, query"),
        (lambda f: (f / "query.fvecs").unlink(), "has no query file"),
        (lambda f: np.save(f / "base.npy", BASE), "two files that could be its base: base.fvecs and base.npy"),
        (lambda f: write_vectors(f / "query.fvecs", QUERY[:, :5]), "train has 8, base has 8, queries has 5"),
        (lambda f: write_vectors(f / "groundtruth.ivecs", TRUTH[:3]), "int32 with 3 rows, .* each of the 6 queries"),
        (lambda f: write_vectors(f / "groundtruth.ivecs", TRUTH + 50), "names rows from .* of a base of 50"),
        (lambda f: write_vectors(f / "groundtruth.ivecs", TRUTH - 50), "names rows from -"),
        (lambda f: np.save(f / "base_patches.npy", np.zeros((9, 4, 4), np.uint8)), "9 patches for 50 vectors"),
    ],
)
def test_parts_that_do_not_go_together_are_told(tmp_path, change, message):
    folder = write_set(tmp_path / "mine")
    change(folder)
    with pytest.raises(DataError, match=message):
        load_set(folder)


def test_a_ground_truth_of_distances_is_told(tmp_path):
    folder = write_set(tmp_path / "mine", truth="")
    np.save(folder / "groundtruth.npy", TRUTH + 0.5)
    with pytest.raises(DataError, match="ground truth of mine is float64"):
        load_set(folder)


@pytest.mark.parametrize(
    "patches",
    [
        np.zeros((50, 4, 4)),
        np.zeros((50, 16), np.uint8),
        np.zeros((50, 4, 4, 2), np.uint8),
        np.array(["text"] * 50),
        b"nonsense",
        b"",
        b"\x93NUMPY\x01\x00\x02\x00(\n",
    ],
)
def test_patches_that_are_no_pictures_are_told(tmp_path, patches):
    folder = write_set(tmp_path / "mine")
    if isinstance(patches, bytes):
        (folder / "base_patches.npy").write_bytes(patches)
    else:
        np.save(folder / "base_patches.npy", patches)
    with pytest.raises(FormatError, match=r"base_patches\.npy (holds no|is damaged|is empty)"):
        load_set(folder)


def test_a_damaged_file_is_told(tmp_path):
    folder = write_set(tmp_path / "mine")
    os.truncate(folder / "base.fvecs", 100)
    with pytest.raises(FormatError, match=r"base\.fvecs"):
        load_set(folder)


def test_an_empty_folder_is_told(tmp_path):
    (tmp_path / "mine").mkdir()
    with pytest.raises(DataError, match="is not a set: .* it has no files"):
        load_set(tmp_path / "mine")


@given(n=st.integers(2, 60), width=st.integers(1, 4), ending=st.sampled_from([".npy", ".bvecs", ".u8bin", ".csv"]))
def test_a_file_is_split_into_queries_and_base(n, width, ending, tmp_path_factory):
    path = tmp_path_factory.mktemp("file") / f"vectors{ending}"
    vectors = np.arange(n * width).reshape(n, width) % 256
    write_vectors(path, vectors.astype(np.uint8))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AUTOJACOBIN_CACHE", str(path.parent / "cache"))
        data, again = load_set(path), load_set(path)
    assert len(data.queries) == max(1, n // 10)
    together = np.concatenate([data.base, data.queries])
    assert sorted(together.tolist()) == sorted(vectors.tolist())
    assert sorted(data.train.tolist()) == sorted(data.base.tolist())  # fewer than 10,000: all of them
    assert np.array_equal(data.queries, again.queries)


def test_a_large_file_has_1000_queries_and_10000_to_learn_from(tmp_path):
    np.save(tmp_path / "vectors.npy", np.arange(30_000).reshape(-1, 1))
    data = load_set(tmp_path / "vectors.npy")
    assert (len(data.train), len(data.base), len(data.queries)) == (10_000, 29_000, 1_000)
    parts = [set(part.ravel().tolist()) for part in (data.train, data.base, data.queries)]
    assert parts[0] < parts[1]
    assert not parts[1] & parts[2]
    assert parts[1] | parts[2] == set(range(30_000))
    assert isinstance(data.base, np.memmap)


def test_a_file_of_ann_benchmarks_has_its_own_split(tmp_path):
    with h5py.File(tmp_path / "glove.hdf5", "w") as file:
        file["train"], file["test"], file["neighbors"] = BASE, QUERY, TRUTH
        file["distances"] = np.zeros(TRUTH.shape, np.float32)
    data = load_set(tmp_path / "glove.hdf5")
    assert np.array_equal(data.train, BASE)
    assert np.array_equal(data.base, BASE)
    assert np.array_equal(data.queries, QUERY)
    assert np.array_equal(data.truth, TRUTH)
    with h5py.File(tmp_path / "other.hdf5", "w") as file:
        file["train"] = BASE
    assert len(load_set(tmp_path / "other.hdf5").queries) == 5  # no test vectors: a file like any other


def test_a_file_too_small_to_split_is_told(tmp_path):
    np.save(tmp_path / "vectors.npy", np.ones((1, 3)))
    with pytest.raises(DataError, match="has 1 vector, expected at least two"):
        load_set(tmp_path / "vectors.npy")


@pytest.mark.parametrize("content", [b"", b"words", b"\x89HDF\r\n\x1a\n"])
def test_a_file_that_holds_no_vectors_is_told(tmp_path, content):
    for name in ("a.hdf5", "a.fvecs", "a.unknown"):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(FormatError, match=name.replace(".", r"\.")):
            load_set(tmp_path / name)


@pytest.mark.parametrize("name", ["train.npy", "base.npy", "queries.npy", "prepared.json"])
@pytest.mark.parametrize("left", [None, 0, 60])
def test_a_damaged_cache_is_told(tmp_path, name, left):
    np.save(tmp_path / "vectors.npy", np.ones((30, 3)))
    load_set(tmp_path / "vectors.npy")
    (file,) = (tmp_path / "cache" / "prepared").glob(f"vectors-*/{name}")
    if left is None:
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[: min(left, file.stat().st_size // 2)])
    with pytest.raises(FormatError, match=f"{file.parent} is damaged: .*; remove this folder, and it is built again"):
        load_set(tmp_path / "vectors.npy")


@pytest.mark.skipif(sys.platform != "linux", reason="other systems take no such names")
def test_a_name_that_is_no_text_will_do(tmp_path):
    file = tmp_path / os.fsdecode(b"\xff vectors.npy")
    np.save(file, np.arange(60.0).reshape(20, 3))
    assert load_set(file).base.shape == (18, 3)


def test_a_file_of_ann_benchmarks_is_known_without_an_ending(tmp_path):
    with h5py.File(tmp_path / "downloaded", "w") as file:
        file["train"], file["test"] = BASE, QUERY
    data = load_set(tmp_path / "downloaded")
    assert np.array_equal(data.base, BASE)
    assert np.array_equal(data.queries, QUERY)


def test_damaged_files_of_ann_benchmarks_are_told(tmp_path):
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        file["train"], file["test"], file["neighbors"] = BASE, QUERY, TRUTH
    whole = (tmp_path / "a.hdf5").read_bytes()
    random = np.random.RandomState(0)
    refused = 0
    for _ in range(60):
        damaged = bytearray(whole)
        for place in random.randint(0, 1000, 5):
            damaged[place] = random.randint(256)
        (tmp_path / "a.hdf5").write_bytes(damaged)
        try:
            assert load_set(tmp_path / "a.hdf5").base.ndim == 2
        except AutoJacobinError:
            refused += 1
    assert refused > 20


@pytest.mark.parametrize("wrong", [np.inf, -np.inf, np.nan])
def test_a_ground_truth_that_is_not_finite_is_told(tmp_path, wrong):
    folder = write_set(tmp_path / "mine", truth="")
    truth = TRUTH.astype(np.float64)
    truth[0, 0] = wrong
    np.save(folder / "groundtruth.npy", truth)
    with pytest.raises(DataError, match="ground truth of mine is float64"):
        load_set(folder)


@pytest.mark.skipif(sys.platform != "linux", reason="/dev/full is Linux's")
def test_a_cache_that_cannot_be_written_to_is_told(tmp_path, monkeypatch):
    np.save(tmp_path / "vectors.npy", np.ones((30, 3)))
    monkeypatch.setenv("AUTOJACOBIN_CACHE", "/dev/full/cache")
    with pytest.raises(StorageError, match="set AUTOJACOBIN_CACHE"):
        load_set(tmp_path / "vectors.npy")
