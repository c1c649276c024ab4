"""An index against a plain dict of vectors: changes, searches, files, readers and writers, bad input."""

import itertools
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autojacobin import ITQ, LSH, DataError, NotFittedError
from autojacobin.search import hamming_topk
from autojacobin.search import index as index_module
from autojacobin.search._lock import IndexLockedError
from autojacobin.search.asymmetric import asymmetric_topk
from autojacobin.search.index import Index
from autojacobin.search.storage import StorageError
from tests.search.index_model import N_FEATURES, as_bytes, by_hamming, by_reranking, contents, small_hasher

GOLDEN = Path(__file__).parent.parent / "golden" / "index-1"


def vectors(n, seed=0):
    return np.random.default_rng(seed).integers(-2, 3, (n, N_FEATURES)).astype(np.float32)


@pytest.fixture
def hasher():
    return small_hasher()


@pytest.fixture
def index(hasher):
    index = Index(hasher)
    index.add(vectors(20))
    return index


change = st.one_of(
    st.tuples(st.just("add"), st.integers(1, 25)),
    st.tuples(st.just("add with ids"), st.lists(st.integers(0, 60), min_size=1, max_size=25, unique=True)),
    st.tuples(st.just("stream"), st.lists(st.integers(0, 9), min_size=1, max_size=4).filter(any)),
    st.tuples(st.just("remove"), st.integers(1, 30)),
    st.tuples(st.sampled_from(["compact", "save", "reopen", "refresh"]), st.none()),
)


@given(st.booleans(), st.lists(change, min_size=1, max_size=12), st.integers(1, 30), st.integers(0, 2**32))
@settings(deadline=None, max_examples=60)
def test_any_sequence_of_changes_equals_a_dict(on_disk, changes, limit, seed):
    hasher, rng, model, next_id = small_hasher(), np.random.default_rng(seed), {}, 0
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setattr(index_module, "most_rows", lambda n_bits: limit)
        index = Index.create(Path(folder) / "0", hasher) if on_disk else Index(hasher)
        for number, (name, argument) in enumerate(changes, 1):
            new = rng.integers(-2, 3, (40, N_FEATURES)).astype(np.float32)
            if name == "add":
                index.add(new[:argument])
                model |= dict(enumerate(new[:argument], next_id))
                next_id += argument
            elif name == "add with ids":
                index.add(new[: len(argument)], ids=argument)
                model |= dict(zip(argument, new, strict=False))
                next_id = max(next_id, max(argument) + 1)
            elif name == "stream":
                edges = np.cumsum([0, *argument])
                index.add(new[start:end] for start, end in itertools.pairwise(edges))
                model |= dict(enumerate(new[: edges[-1]], next_id))
                next_id += int(edges[-1])
            elif name == "remove":
                gone = rng.permutation(sorted(model))[:argument].astype(np.int64)
                index.remove(gone)
                model = {i: vector for i, vector in model.items() if i not in gone}
            elif name == "save":
                index.save(Path(folder) / str(number))
                index.close()
                index = Index.open(Path(folder) / str(number))
            elif name == "reopen" and index.path is not None:
                index.close()
                index = Index.open(index.path)
            else:
                getattr(index, name if name != "reopen" else "refresh")()
            assert contents(index) == as_bytes(model)
        index.verify()
        if model:
            check_searches(index, model, rng)
        index.close()


def check_searches(index, model, rng):
    queries = rng.integers(-2, 3, (3, N_FEATURES)).astype(np.float32)
    k = int(rng.integers(1, len(model) + 1))
    distances, ids = index.search(queries, k, rerank=False)
    expected_distances, expected_ids = by_hamming(model, index.hasher, queries, k)
    assert np.array_equal(distances, expected_distances)
    assert np.array_equal(ids, expected_ids)
    candidates = int(rng.integers(k, len(model) + 3))
    distances, ids = index.search(queries, k, candidates=candidates)
    expected_distances, expected_ids = by_reranking(model, index.hasher, queries, k, candidates)
    assert np.allclose(distances, expected_distances)
    assert np.array_equal(ids, expected_ids)


@pytest.mark.parametrize("distance", ["hamming", "asymmetric"])
def test_many_segments_answer_as_one(hasher, distance):
    X, queries = vectors(300), vectors(7, seed=1)
    one, many = Index(hasher), Index(hasher)
    one.add(X)
    for start in range(0, 300, 9):
        many.add(X[start : start + 9])
    for rerank in (False, True):
        for k in (1, 10, 300):
            expected = one.search(queries, k, distance=distance, rerank=rerank)
            answer = many.search(queries, k, distance=distance, rerank=rerank)
            assert all(np.array_equal(a, b) for a, b in zip(answer, expected, strict=True))


def test_one_segment_answers_as_the_functions_for_codes_do(hasher):
    X, queries = vectors(300), vectors(7, seed=1)
    index = Index(hasher)
    index.add(X)
    expected = hamming_topk(hasher.encode(queries), hasher.encode(X), 20)
    assert all(np.array_equal(a, b) for a, b in zip(index.search(queries, 20, rerank=False), expected, strict=True))
    expected = asymmetric_topk(hasher.project(queries), hasher.encode(X), 20)
    answer = index.search(queries, 20, distance="asymmetric", rerank=False)
    assert all(np.array_equal(a, b) for a, b in zip(answer, expected, strict=True))


@pytest.mark.parametrize("n_bits", [2200, 33000])
@pytest.mark.parametrize("distance", ["hamming", "asymmetric"])
def test_codes_too_long_for_the_kernels_are_found(n_bits, distance):
    X = vectors(30)
    index = Index(LSH(n_bits, random_state=0).fit(X))
    index.add(X[:10])
    index.add(X[10:])
    index.remove([3, 17])
    kept = [i for i in range(30) if i not in (3, 17)]
    distances, ids = index.search(X[kept], 1, distance=distance, rerank=False)
    assert not distances.any()
    assert all(np.array_equal(X[i], X[j]) for i, j in zip(kept, ids[:, 0], strict=True))


@pytest.mark.parametrize("dtype", ["?", "u1", "i2", "i8", "f2", "f4", "f8", ">f4", "g"])
def test_vectors_are_kept_in_the_type_in_which_they_come(hasher, tmp_path, dtype):
    X = np.abs(vectors(10)).astype(dtype)
    with Index.create(tmp_path / "index", hasher) as index:
        index.add(X)
        index.compact()
    with Index.open(tmp_path / "index") as index:
        kept = index._segments[0].vectors
        assert np.array_equal(kept, X)
        expected = {"?": "|u1", "g": "<f8"}.get(dtype, np.dtype(dtype).newbyteorder("<").str)
        assert kept.dtype.str == expected
        assert index.search(X[:2], 1, candidates=10)[0].tolist() == [[0], [0]]


def test_types_may_change_within_a_stream_and_survive_compaction(hasher):
    index = Index(hasher)
    index.add(iter([vectors(5).astype(np.int8), vectors(5, seed=1), vectors(5, seed=2).astype(np.int8)]))
    assert [segment.vectors.dtype.str for segment in index._segments] == ["|i1", "<f4", "|i1"]
    before = index.search(vectors(3, seed=3), 15, candidates=15)
    index.compact()
    assert [(segment.vectors.dtype.str, segment.tiles.n) for segment in index._segments] == [("|i1", 10), ("<f4", 5)]
    assert all(np.array_equal(a, b) for a, b in zip(index.search(vectors(3, seed=3), 15), before, strict=True))


def test_a_memory_map_and_a_data_frame_are_taken(tmp_path):
    frame = pd.DataFrame(vectors(40), columns=list("abcd"))
    np.save(tmp_path / "vectors.npy", frame.to_numpy())
    index = Index(ITQ(4, random_state=0).fit(frame))
    index.add(frame)
    plain = Index(ITQ(4, random_state=0).fit(frame.to_numpy()))
    plain.add(np.load(tmp_path / "vectors.npy", mmap_mode="r"))
    assert contents(plain) == as_bytes(dict(enumerate(frame.to_numpy())))
    assert np.array_equal(index.search(frame[:5], 3)[1], plain.search(frame.to_numpy()[:5], 3)[1])


def test_the_index_is_not_changed_through_the_arrays_and_the_hasher_it_was_given(hasher):
    X = vectors(30)
    index = Index(hasher)
    index.add(X)
    before = index.search(vectors(3, seed=1), 5)
    X[:] = 0
    hasher.set_params(n_bits=9).fit(vectors(60, seed=7))
    assert all(np.array_equal(a, b) for a, b in zip(index.search(vectors(3, seed=1), 5), before, strict=True))


def test_ids_count_on_from_the_largest_ever_used(hasher):
    index = Index(hasher)
    index.add(vectors(2), ids=[10, 5])
    index.add(vectors(2))
    assert index.ids.tolist() == [5, 10, 11, 12]
    index.remove([12, 11])
    index.remove(10)
    index.add(vectors(1))
    assert index.ids.tolist() == [5, 13]
    assert 5 in index
    assert np.int64(13) in index
    assert all(absent not in index for absent in (10, -1, 2**70, "5", None))


def test_consecutive_ids_need_no_file_and_sorted_vectors_no_row_numbers(hasher, tmp_path):
    with Index.create(tmp_path / "index", hasher) as index:
        index.add(vectors(10))
        index.add(vectors(10), ids=np.arange(29, 19, -1))
        index.add(vectors(10), ids=np.arange(40, 60, 2))
        assert [sorted(segment.files) for segment in index._segments] == [
            ["codes", "vectors"],
            ["codes", "rows", "vectors"],
            ["codes", "ids", "vectors"],
        ]
        assert contents(index)


def test_compaction_leaves_one_segment_and_nothing_to_do_the_second_time(hasher, tmp_path):
    with Index.create(tmp_path / "index", hasher) as index:
        for seed in range(4):
            index.add(vectors(10, seed))
        index.remove(range(15, 25))
        before = contents(index)
        index.compact()
        figures = index.info()
        assert (figures["segments"], figures["dead"], figures["vectors"]) == (1, 0, 30)
        assert contents(index) == before
        index.compact()
        assert index.info() == figures


def test_an_index_without_vectors_searches_codes_alone(hasher, tmp_path):
    with Index.create(tmp_path / "index", hasher, keep_vectors=False) as index:
        index.add(vectors(20), ids=np.arange(20)[::-1])
        index.remove([4])
        index.compact()
    index = Index.open(tmp_path / "index")
    expected = by_hamming({i: v for i, v in enumerate(vectors(20)[::-1]) if i != 4}, hasher, vectors(3, seed=1), 19)
    assert np.array_equal(index.search(vectors(3, seed=1), 19, rerank=False)[1], expected[1])
    with pytest.raises(DataError, match="keeps no vectors to re-rank by; pass rerank=False"):
        index.search(vectors(3), 1)
    index.close()


# Readers and writers


def test_a_reader_keeps_its_state_until_it_refreshes(hasher, tmp_path):
    with Index.create(tmp_path / "index", hasher) as writer, Index.open(tmp_path / "index") as reader:
        writer.add(vectors(20))
        assert len(reader) == 0
        reader.refresh()
        before = contents(reader)
        writer.remove([3])
        writer.compact()
        writer.add(vectors(5))
        assert contents(reader) == before
        assert len(reader.search(vectors(2), 20, rerank=False)[1][0]) == 20
        reader.verify()
        reader.refresh()
        assert contents(reader) == contents(writer)


def test_a_second_writer_is_told_who_writes_and_may_write_afterwards(hasher, tmp_path):
    first = Index.create(tmp_path / "index", hasher)
    second = Index.open(tmp_path / "index")
    with pytest.raises(IndexLockedError, match=f"being written to by process {os.getpid()},"):
        second.add(vectors(3))
    program = (
        f"import sys; from autojacobin.search.index import Index; Index.open({str(tmp_path / 'index')!r}).remove([])"
    )
    other = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert f"being written to by process {os.getpid()}," in other.stderr
    first.add(vectors(4))
    first.close()
    second.add(vectors(3))
    assert second.ids.tolist() == list(range(7))  # after a look at what the first had done meanwhile
    second.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of a fork among threads; the child does next to nothing
def test_a_fork_does_not_share_the_right_to_write_and_does_not_keep_it(hasher, tmp_path):
    index = Index.create(tmp_path / "index", hasher)
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            index.add(vectors(1))
        except IndexLockedError:
            os.read(reading, 1)  # stays until it is told to go
            os._exit(0)
        os._exit(1)
    index.add(vectors(2))
    index.close()
    with Index.open(tmp_path / "index") as other:
        other.add(vectors(1))
        assert len(other) == 3
    os.write(writing, b"!")
    assert os.waitpid(pid, 0)[1] == 0
    os.close(reading)
    os.close(writing)


def test_an_index_that_is_forgotten_gives_the_right_to_write_back(hasher, tmp_path):
    Index.create(tmp_path / "index", hasher).add(vectors(2))
    with Index.open(tmp_path / "index") as other:
        other.add(vectors(1))
        assert len(other) == 3


def test_saving_over_an_index_that_is_being_written_is_refused(index, hasher, tmp_path):
    with Index.create(tmp_path / "index", hasher), pytest.raises(IndexLockedError):
        index.save(tmp_path / "index")


def test_saving_replaces_the_index_that_was_there(index, hasher, tmp_path):
    index.save(tmp_path / "index")
    names = {entry.name for entry in (tmp_path / "index").iterdir()}
    other = Index(ITQ(3, random_state=0).fit(vectors(50)))
    other.add(vectors(7))
    other.save(tmp_path / "index")
    with Index.open(tmp_path / "index") as opened:
        assert contents(opened) == contents(other)
        assert opened.hasher.n_bits == 3
        opened.save(tmp_path / "index")  # where it is already
    assert names & {entry.name for entry in (tmp_path / "index").iterdir()} == {"LOCK", "MANIFEST.json"}


# Bad input: one sentence, and the index unchanged


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"vectors": vectors(2), "ids": [1, 1]}, "ids must be unique, got 1 more than once"),
        ({"vectors": vectors(2), "ids": [1, -1]}, "integers from 0 to 2^63 - 1, got -1"),
        ({"vectors": vectors(1), "ids": [2**63]}, "integers from 0 to 2^63 - 1, got 9223372036854775808"),
        ({"vectors": vectors(2), "ids": [1.0, 2.0]}, "ids must be a list of integers, got float64"),
        ({"vectors": vectors(2), "ids": ["a", "b"]}, "ids must be a list of integers"),
        ({"vectors": vectors(2), "ids": [[1, 2]]}, "ids must be a list of integers, got int64 of shape (1, 2)"),
        ({"vectors": vectors(2), "ids": [1]}, "got 1 ids for 2 vectors"),
        ({"vectors": vectors(2), "ids": []}, "got 0 ids for 2 vectors"),
        ({"vectors": "blocks", "ids": range(7)}, "got 7 ids for 8 or more vectors"),
        ({"vectors": "blocks", "ids": range(9)}, "got 9 ids for 8 vectors"),
        ({"vectors": vectors(2)[:, :3]}, "X has 3 features, but LSH is expecting 4"),
        ({"vectors": vectors(0)}, "0 sample(s)"),
        ({"vectors": iter([])}, "an iterator without a block"),
        ({"vectors": [["a"] * 4]}, "text where numbers are expected"),
        ({"vectors": "nan"}, "contains NaN in row 5, column 2"),
    ],
)
@pytest.mark.parametrize("on_disk", [False, True])
def test_what_cannot_be_added_is_named_and_changes_nothing(hasher, tmp_path, on_disk, arguments, message):
    index = Index.create(tmp_path / "index", hasher) if on_disk else Index(hasher)
    index.add(vectors(20))
    arguments = dict(arguments)
    if isinstance(arguments["vectors"], str):
        wrong = vectors(8)
        wrong[5, 2] = np.nan if arguments["vectors"] == "nan" else 0
        arguments["vectors"] = iter([wrong[:4], wrong[4:]])
    before, files = contents(index), sorted(os.listdir(tmp_path / "index")) if on_disk else []
    with pytest.raises(DataError) as error:
        index.add(**arguments)
    assert message in str(error.value)
    assert contents(index) == before
    assert files == (sorted(os.listdir(tmp_path / "index")) if on_disk else [])
    index.add(vectors(1))
    assert index.ids[-1] == 20
    index.close()


def test_ids_run_out_in_a_sentence(hasher):
    index = Index(hasher)
    index.add(vectors(1), ids=[2**63 - 1])
    assert index.ids.tolist() == [2**63 - 1]
    with pytest.raises(DataError, match="no ids after 9223372036854775807"):
        index.add(vectors(1))


def test_an_error_of_the_callers_own_stream_is_passed_on(index, tmp_path):
    def blocks():
        yield vectors(3)
        raise FileNotFoundError("the caller's file")

    index.save(tmp_path / "index")
    with Index.open(tmp_path / "index") as opened:
        with pytest.raises(FileNotFoundError, match="the caller's file"):
            opened.add(blocks())
        assert contents(opened) == contents(index)


def test_only_ids_in_the_index_can_be_removed(index):
    for ids, message in [([3, 20], "got 20, which is not"), ([-1], "got -1"), ([1.5], "list of integers")]:
        with pytest.raises(DataError, match=message):
            index.remove(ids)
    assert len(index) == 20
    index.remove([])
    index.remove([3, 3])
    with pytest.raises(DataError, match="got 3, which is not"):
        index.remove(3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"k": 0}, "k must be an integer from 1 to 20, the size of the index, got 0"),
        ({"k": -3}, "got -3"),
        ({"k": 21}, "got 21"),
        ({"k": 1.0}, "got 1.0"),
        ({"distance": "cosine"}, "distance must be 'hamming' or 'asymmetric', got 'cosine'"),
        ({"candidates": 2}, "candidates must be at least k = 3, got 2"),
        ({"candidates": "all"}, "candidates must be an integer of at least 1, got 'all'"),
        ({"candidates": 9, "rerank": False}, "candidates are for re-ranking, got 9 with rerank=False"),
        ({"queries": vectors(2)[:, :3]}, "X has 3 features"),
        ({"queries": vectors(2) * np.nan}, "contains NaN in row 0"),
        ({"queries": vectors(2)[0]}, "Expected 2D array, got 1D"),
        ({"queries": iter([vectors(2)])}, "takes a matrix of numbers"),
    ],
)
def test_searches_that_cannot_be_answered_are_named(index, arguments, message):
    with pytest.raises(DataError) as error:
        index.search(**{"queries": vectors(2), "k": 3, **arguments})
    assert message in str(error.value)


def test_an_empty_index_and_an_unfitted_hasher_are_named(hasher):
    with pytest.raises(DataError, match="nothing to find: the index is empty"):
        Index(hasher).search(vectors(2), 1)
    with pytest.raises(NotFittedError):
        Index(LSH(8))
    with pytest.raises(DataError, match="an index needs a fitted hasher, got str"):
        Index("LSH")


def test_a_closed_index_says_so(index):
    index.close()
    index.close()
    assert repr(index) == "Index(closed)"
    for use in (lambda: len(index), lambda: index.add(vectors(1)), lambda: index.search(vectors(1), 1), index.verify):
        with pytest.raises(DataError, match="this index is closed"):
            use()


def test_paths_that_cannot_hold_an_index_are_named(index, hasher, tmp_path):
    file = tmp_path / "file"
    file.write_text("mine")
    full = tmp_path / "full"
    full.mkdir()
    (full / "thesis.tex").write_text("mine")
    index.save(tmp_path / "index")
    for make in (lambda path: Index.create(path, hasher), index.save):
        with pytest.raises(StorageError, match="file is a file, expected the folder"):
            make(file)
        with pytest.raises(StorageError, match="the folder .*missing does not exist"):
            make(tmp_path / "missing" / "index")
        with pytest.raises(StorageError, match="the folder holds thesis.tex, which is no part of an index"):
            make(full)
    with pytest.raises(StorageError, match="holds an index already; open it with Index.open"):
        Index.create(tmp_path / "index", hasher)
    with pytest.raises(StorageError, match="file is a file"):
        Index.open(file)
    for empty in (tmp_path / "nowhere", full):
        with pytest.raises(StorageError, match="there is no index at"):
            Index.open(empty)
    assert sorted(os.listdir(full)) == ["thesis.tex"]


@pytest.mark.skipif(not hasattr(os, "seteuid"), reason="needs POSIX permissions")
def test_a_folder_without_permission_is_named(index):
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        path = Path(folder) / "index"
        index.save(path)
        path.chmod(0o555)
        (path / "LOCK").chmod(0o444)
        user = os.geteuid()
        try:
            if user == 0:
                os.seteuid(65534)  # root may do everything
            with Index.open(path) as opened:
                before = contents(opened)
                with pytest.raises(StorageError, match="cannot write to the index .*: permission denied"):
                    opened.add(vectors(2))
                assert contents(opened) == before
            with pytest.raises(StorageError, match="permission denied"):
                index.save(path / "within")
        finally:
            os.seteuid(user)
            path.chmod(0o755)


# Format 1


def test_the_golden_index_of_format_1_stays_readable():
    expected = np.load(GOLDEN / "expected.npz")
    with Index.open(GOLDEN / "index") as index:
        index.verify()
        assert np.array_equal(index.ids, expected["ids"])
        kinds = {"hamming": ("hamming", False), "asymmetric": ("asymmetric", False), "reranked": ("hamming", True)}
        for name, (distance, rerank) in kinds.items():
            distances, ids = index.search(expected["queries"], 10, distance=distance, rerank=rerank)
            assert np.allclose(distances, expected[f"{name}_distances"], rtol=1e-5)
            assert np.array_equal(ids, expected[f"{name}_ids"])
