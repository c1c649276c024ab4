"""FAISS keeps the contract, its indexes hold our codes, and its transform makes the same bits."""

import re
import subprocess
import sys

import faiss
import numpy as np
import pytest

from autojacobin import (
    ITQ,
    LSH,
    Codes,
    DataError,
    FormatError,
    Index,
    Metric,
    MissingExtraError,
    NotFittedError,
    StorageError,
)  # fmt: skip
from autojacobin.engines import FaissEngine, hasher_to_faiss, to_faiss, write_faiss
from autojacobin.hashers import methods
from autojacobin.hashers.base import LinearHasher
from tests.engines.conformance import Conformance, clustered, nearest, scattered_ids
from tests.hashers.methods import LINEAR, digits, fitted


def open_engine(location, n_bits, n_features=None):
    assert n_features is None
    return FaissEngine(location, n_bits)


def distance_of_opposites():
    index = faiss.IndexBinaryFlat(256)
    index.add(np.zeros((1, 32), dtype=np.uint8))
    return index.search(np.full((1, 32), 255, dtype=np.uint8), 1)[0].item()


class TestFaissEngine(Conformance):
    random_cases = 100
    counts_opposites = "NEON" not in faiss.get_compile_options() or distance_of_opposites() == 256


# The file of the engine


def test_what_is_no_index_of_faiss_is_not_written(tmp_path):
    with pytest.raises(DataError, match="an index of FAISS is needed, got str; make one with to_faiss"):
        write_faiss("codes", tmp_path / "codes.faiss")
    assert list(tmp_path.iterdir()) == []


def test_an_engine_that_could_not_be_saved_can_be_closed_again(tmp_path):
    (tmp_path / "folder").mkdir()
    engine = FaissEngine(tmp_path / "folder" / "codes.faiss", 64)
    engine.write(clustered(5, 64, 0), range(5))
    (tmp_path / "folder").rmdir()
    with pytest.raises(StorageError, match="cannot be written"):
        engine.close()
    (tmp_path / "folder").mkdir()
    engine.close()
    assert FaissEngine(engine.path, 64).read(range(5)) == clustered(5, 64, 0)


def test_the_file_is_read_by_faiss_alone(tmp_path):
    codes, ids = clustered(200, 64, 0), scattered_ids(200, 1)
    with FaissEngine(tmp_path / "codes.faiss", 64) as engine:
        engine.write(codes, ids)
    index = faiss.read_index_binary(str(tmp_path / "codes.faiss"))
    distances, _ = index.search(codes[:9].packed, 20)
    np.testing.assert_array_equal(distances, nearest(codes[:9], codes, ids, 20)[0])
    np.testing.assert_array_equal(index.reconstruct(int(ids[7])), codes[7].packed[0])


def test_changes_reach_the_file_when_saved_and_not_after_an_error(tmp_path):
    path, codes = tmp_path / "codes.faiss", clustered(5, 64, 0)
    engine = FaissEngine(path, 64)
    engine.write(codes, range(5))
    assert not path.exists()
    engine.save()
    before = path.read_bytes()
    engine.delete([0])
    assert path.read_bytes() == before
    engine.close()
    assert FaissEngine(path, 64).count() == 4
    with pytest.raises(DataError, match="got 0, which is not"), FaissEngine(path, 64) as engine:
        [engine.delete([id]) for id in (1, 0)]
    assert FaissEngine(path, 64).count() == 4
    assert [entry.name for entry in tmp_path.iterdir()] == ["codes.faiss"]


def test_an_engine_that_was_only_read_does_not_touch_its_file(tmp_path):
    path = tmp_path / "codes.faiss"
    with FaissEngine(path, 64) as engine:
        engine.write(clustered(5, 64, 0), range(5))
    number = path.stat().st_ino
    with FaissEngine(path, 64) as engine:
        assert engine.count() == 5
    assert path.stat().st_ino == number


def _written_by_faiss(index, path):
    faiss.write_index_binary(index, str(path))


@pytest.mark.parametrize(
    ("make", "kind", "message"),
    [
        (lambda path: path.write_bytes(b""), FormatError, "is damaged or holds no binary index of FAISS"),
        (lambda path: path.write_bytes(b"IBM2" + bytes(20)), FormatError, "is damaged"),
        (lambda path: path.write_text("hello, this is no index"), FormatError, "is damaged"),
        (lambda path: path.mkdir(), StorageError, "codes.faiss: is a directory; check"),
        (
            lambda path: _written_by_faiss(faiss.IndexBinaryFlat(64), path),
            DataError,
            "holds an IndexBinaryFlat, expected",
        ),
        (
            lambda path: _written_by_faiss(faiss.IndexBinaryIDMap2(faiss.IndexBinaryHNSW(64, 8)), path),
            DataError,
            "holds an IndexBinaryIDMap2 of an IndexBinaryHNSW",
        ),
    ],
)
def test_files_that_are_none_of_ours(tmp_path, make, kind, message):
    path = tmp_path / "codes.faiss"
    make(path)
    with pytest.raises(kind) as error:
        FaissEngine(path, 64)
    assert message in str(error.value)


def test_a_cut_file_is_reported_at_every_length(tmp_path):
    with FaissEngine(tmp_path / "whole.faiss", 64) as engine:
        engine.write(clustered(5, 64, 0), range(5))
    whole, cut = (tmp_path / "whole.faiss").read_bytes(), tmp_path / "cut.faiss"
    for length in range(len(whole)):
        cut.write_bytes(whole[:length])
        with pytest.raises(FormatError, match="is damaged"):
            FaissEngine(cut, 64)


def test_ids_that_faiss_took_twice(tmp_path):
    index = faiss.IndexBinaryIDMap2(faiss.IndexBinaryFlat(64))
    index.add_with_ids(clustered(2, 64, 0).packed, np.array([3, 3]))
    write_faiss(index, tmp_path / "codes.faiss")
    with pytest.raises(DataError, match="ids that are negative or not unique"):
        FaissEngine(tmp_path / "codes.faiss", 64)


def test_a_length_that_the_codes_do_not_have(tmp_path):
    write_faiss(to_faiss(clustered(50, 64, 0)), tmp_path / "codes.faiss")
    with pytest.raises(DataError, match="codes of more than 60 bits"):
        FaissEngine(tmp_path / "codes.faiss", 60)


def test_nowhere_to_write(tmp_path):
    with pytest.raises(StorageError, match="there is no folder"):
        FaissEngine(tmp_path / "nowhere" / "codes.faiss", 64)
    with pytest.raises(StorageError, match="cannot be written"):
        write_faiss(to_faiss(clustered(5, 64, 0)), tmp_path / "nowhere" / "codes.faiss")
    (tmp_path / "folder").mkdir()
    with pytest.raises(StorageError, match="cannot be written"):
        write_faiss(to_faiss(clustered(5, 64, 0)), tmp_path / "folder")
    assert list(tmp_path.iterdir()) == [tmp_path / "folder"]


# Indexes of every kind


def small_index(n=400, n_bits=24):
    vectors = np.random.default_rng(0).normal(size=(n, 32)).astype(np.float32)
    index = Index(ITQ(n_bits, random_state=0).fit(vectors))
    index.add(vectors, scattered_ids(n, 1))
    index.remove(index.ids[5:9])
    return index, vectors


@pytest.mark.parametrize(("kind", "options"), [("flat", {}), ("ivf", {"nlist": 8, "nprobe": 8}), ("hnsw", {})])
def test_an_index_keeps_its_codes_and_ids(tmp_path, kind, options):
    index, vectors = small_index()
    reported = []
    made = to_faiss(index, kind, progress=lambda *stage: reported.append(stage), **options)
    write_faiss(made, tmp_path / "codes.faiss")
    read = faiss.read_index_binary(str(tmp_path / "codes.faiss"))
    queries = index.hasher.encode(vectors[:30])
    distances, ids = read.search(queries.packed, 10)
    exact, _ = nearest(queries, index.codes(index.ids), index.ids, 10)
    if kind == "hnsw":
        assert np.mean(distances == exact) > 0.95
    else:
        np.testing.assert_array_equal(distances, exact)
    chosen = index.codes(ids.ravel()).to_bits().reshape(30, 10, -1)
    np.testing.assert_array_equal((chosen != queries.to_bits()[:, None]).sum(axis=2), distances)
    assert reported[-1] == ("adding codes", 396, 396)


def test_an_index_with_lists_is_exported_as_one_without():
    vectors = np.random.default_rng(0).normal(size=(400, 32)).astype(np.float32)
    hasher = ITQ(16, random_state=0).fit(vectors)
    within, without = Index(hasher, partitions=8), Index(hasher)
    for index in (within, without):
        index.add(vectors)
    assert within.info()["lists"] == 8
    queries = hasher.encode(vectors[:30]).packed
    found, expected = (to_faiss(index).search(queries, 10) for index in (within, without))
    np.testing.assert_array_equal(found[0], expected[0])
    np.testing.assert_array_equal(found[1], expected[1])
    hashing = hasher_to_faiss(within.hasher, within).search(vectors[:30], 10)
    np.testing.assert_array_equal(hashing[0], expected[0])


@pytest.mark.parametrize("n_bits", [5, 64, 100])
def test_codes_get_their_row_numbers(n_bits):
    codes = clustered(60, n_bits, 0)
    made = to_faiss(codes)
    np.testing.assert_array_equal(np.stack([made.reconstruct(row) for row in range(60)]), codes.packed)
    distances, _ = made.search(codes.packed[:5], 60)
    np.testing.assert_array_equal(distances, nearest(codes[:5], codes, np.arange(60), 60)[0])


def test_an_index_with_names_is_written_under_their_places():
    X = np.random.default_rng(0).normal(size=(20, 8)).astype(np.float32)
    index = Index(LSH(8, random_state=0).fit(X))
    index.add(X, ids=[f"name {row}" for row in range(20)])
    index.remove(["name 0", "name 7"])
    index.update(["name 3"], X[:1])
    made = to_faiss(index)
    for place, name in enumerate(index.ids):
        np.testing.assert_array_equal(made.reconstruct(place), index.codes([name]).packed[0])
    hashing = hasher_to_faiss(index.hasher, index)
    assert sorted(hashing.search(X[:1], 18)[1][0].tolist()) == list(range(18))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"source": np.zeros((3, 8), dtype=np.uint8)}, "an Index or Codes are needed, got ndarray"),
        ({"kind": "hnsw", "M": 1}, "M must be an integer from 2 to 2048"),
        ({"kind": "hnsw", "M": 2**31}, "M must be an integer from 2 to 2048"),
        ({"kind": "hnsw", "ef_search": 2**40}, "ef_search must be an integer from 1 to 1048576"),
        ({"kind": "hnsw", "ef_construction": 2**31}, "ef_construction must be an integer from 1 to 1048576"),
        ({"kind": ["flat"]}, "kind must be 'flat', 'ivf' or 'hnsw', got ['flat']"),
        ({"kind": "tree"}, "kind must be 'flat', 'ivf' or 'hnsw', got 'tree'"),
        ({"nlist": 3}, "nlist is no option of a FAISS index of kind 'flat', expected: none"),
        ({"kind": "hnsw", "nlist": 3}, "expected: M, ef_construction, ef_search"),
        ({"kind": "ivf", "nlist": 0}, "nlist must be an integer of at least 1"),
        ({"kind": "ivf", "nlist": 100}, "100 lists need at least as many codes to be learned from, got 20"),
        (
            {"kind": "ivf", "source": clustered(1, 64, 0)[:0]},
            "there are no vectors to add",
        ),
    ],
)
def test_what_no_index_can_be_made_of(arguments, message):
    with pytest.raises(DataError) as error:
        to_faiss(**{"source": clustered(20, 64, 0), **arguments})
    assert message in str(error.value)


@pytest.mark.parametrize("links", [2, 2048])
def test_the_fewest_and_the_most_links(links):
    codes = clustered(40, 64, 0)
    distances, ids = to_faiss(codes, "hnsw", M=links, ef_search=2**20).search(codes.packed[:5], 4)
    apart = (codes[:5].to_bits()[:, None, :] != codes.to_bits()[ids]).sum(axis=2)
    np.testing.assert_array_equal(distances, apart)
    np.testing.assert_array_equal(distances[:, 0], 0)


# The hasher as a transform of FAISS


def test_hyperplanes_that_single_precision_cannot_hold():
    hasher = ITQ(4, random_state=0).fit(np.random.default_rng(0).normal(size=(50, 8)))
    hasher.mean_ = hasher.mean_ + 1e60
    with pytest.raises(DataError, match="single precision cannot hold the hyperplanes of this hasher"):
        hasher_to_faiss(hasher)


@pytest.mark.parametrize("name", LINEAR)
def test_bits_of_every_linear_method_are_ours(name):
    hasher, vectors = fitted(name), digits()
    made = hasher_to_faiss(hasher)
    bits = Codes(made.sa_encode(vectors), hasher.n_bits).to_bits()
    projections = hasher.project(vectors)
    # the numbers of a vector are its projections on Sign, so that nothing is rounded, not even at the many zeros
    surely = (np.abs(projections) > 1e-5 * np.abs(projections).max()) | (name == "Sign")
    np.testing.assert_array_equal(bits[surely], hasher.transform(vectors)[surely])
    assert surely.mean() > 0.999


def test_zero_is_a_one_on_both_sides():
    vectors = np.array([[0.0, 0.0], [-0.0, 0.0], [1.0, -1.0], [-1.0, 1.0]], dtype=np.float32)
    hasher = LSH(9, random_state=0).fit(vectors)
    assert not hasher.hyperplanes()[1].any()  # through the origin, so that the first two vectors lie on all of them
    np.testing.assert_array_equal(hasher_to_faiss(hasher).sa_encode(vectors), hasher.encode(vectors).packed)


def test_a_saved_index_encodes_and_searches_with_no_code_of_ours(tmp_path):
    index, vectors = small_index(n_bits=20)
    write_faiss(hasher_to_faiss(index.hasher, index), tmp_path / "hashing.faiss")
    np.save(tmp_path / "queries.npy", vectors[:25])
    program = (
        "import faiss, numpy as np, sys\n"
        "index = faiss.read_index('hashing.faiss')\n"
        "distances, ids = index.search(np.load('queries.npy'), 10)\n"
        "np.savez('found.npz', distances=distances, ids=ids)\n"
        "assert not [name for name in sys.modules if name.startswith('autojacobin')]\n"
    )
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True, timeout=1200)
    with np.load(tmp_path / "found.npz") as found:
        distances, ids = found["distances"], found["ids"]
    queries = index.hasher.encode(vectors[:25])
    np.testing.assert_array_equal(distances, nearest(queries, index.codes(index.ids), index.ids, 10)[0])
    chosen = index.codes(ids.ravel()).to_bits().reshape(25, 10, -1)
    np.testing.assert_array_equal((chosen != queries.to_bits()[:, None]).sum(axis=2), distances)


def test_codes_fill_a_hashing_index_in_their_order():
    index, vectors = small_index()
    codes = index.hasher.encode(vectors)
    made, filled = hasher_to_faiss(index.hasher), hasher_to_faiss(index.hasher, codes)
    made.add(vectors)
    assert filled.ntotal == made.ntotal == len(vectors)
    np.testing.assert_array_equal(filled.search(vectors[:9], 5)[0], made.search(vectors[:9], 5)[0])
    named = hasher_to_faiss(index.hasher, index)
    named.add_with_ids(vectors[:1], np.array([99_999]))
    assert named.ntotal == len(index) + 1
    assert 99_999 in named.search(vectors[:1], 3)[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((fitted("SpectralHashing"),), "SpectralHashing has none; export its codes with to_faiss"),
        (("ITQ",), "a fitted hasher is needed, got str"),
        ((fitted("ITQ"), clustered(3, 64, 0)), "the hasher has 16 bits, got codes of 64"),
        ((fitted("ITQ"), [[1, 0]]), "an Index or Codes are needed, got list"),
    ],
)
def test_what_cannot_hash_in_faiss(arguments, message):
    with pytest.raises(DataError) as error:
        hasher_to_faiss(*arguments)
    assert message in str(error.value)


def test_a_hasher_that_was_not_fitted():
    with pytest.raises(NotFittedError):
        hasher_to_faiss(ITQ(16))


def test_a_missing_package_names_its_pip_line(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "faiss", None)
    for call in (lambda: to_faiss(clustered(2, 64, 0)), lambda: FaissEngine(tmp_path / "codes.faiss", 64)):
        with pytest.raises(MissingExtraError, match=r"pip install 'autojacobin\[faiss\]'"):
            call()


def test_an_index_that_hashes_prepares_vectors_as_the_metric_of_the_hasher_wants_them():
    X = np.random.default_rng(0).normal(size=(200, 16)).astype(np.float32) * np.linspace(0.1, 9, 200)[:, None]
    metric = Metric("cosine")
    hasher = metric.fit(ITQ(12, random_state=0), X)
    found = hasher_to_faiss(hasher).sa_encode(X.astype(np.float32))
    assert (np.unpackbits(found ^ hasher.encode(metric.prepare(X)).packed).sum() / found.size) < 1e-3
    with pytest.raises(DataError, match="FAISS cannot hash for inner products, as this ITQ does"):
        hasher_to_faiss(Metric.of("inner_product", X).fit(ITQ(12, random_state=0), X))


@pytest.mark.parametrize("method", methods(), ids=lambda method: method.name)
def test_the_documented_methods_are_those_that_faiss_can_hash_by(method):
    documented = re.search(r"sides of hyperplanes: (.*?)\. For", " ".join(hasher_to_faiss.__doc__.split()))[1]
    name = "AutoBin" if "AutoBin" in method.hasher.__name__ else method.hasher.__name__
    assert (name in re.findall(r"\w+", documented)) == issubclass(method.hasher, LinearHasher)
