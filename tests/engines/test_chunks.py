"""What is done to a chunk, against a single machine that has all vectors; and jobs that are interrupted."""

import itertools
import os
import pickle

import fsspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autojacobin import ITQ, LSH, Codes, Index
from autojacobin.datasets import write_vectors
from autojacobin.engines._executor import InProcess
from autojacobin.engines.chunks import cut_into_chunks, encode_chunk, merge, truth_chunk
from autojacobin.engines.cluster import build_index, encode_files, search_index, true_neighbours
from autojacobin.engines.inputs import survey
from autojacobin.errors import DataError, FormatError, IndexLockedError, NotFittedError, StorageError
from autojacobin.evaluation import ground_truth
from autojacobin.search.storage import Folder

from .cut_files import cut_into_files

BLOCK = 2**16
N = 3 * BLOCK + 1000
CUTS = [10, BLOCK - 3, BLOCK + 1, 2 * BLOCK + 77]
ENDINGS = ("npy", "u8bin", "bvecs", "parquet", "u8bin")
here = InProcess()
numbers = itertools.count()


@pytest.fixture(scope="module")
def X():
    return np.random.default_rng(0).integers(0, 6, size=(N, 8)).astype(np.uint8)


@pytest.fixture(scope="module")
def pattern(X, tmp_path_factory):
    return cut_into_files(tmp_path_factory.mktemp("files"), X, CUTS, ENDINGS)


@pytest.fixture(scope="module")
def hasher(X):
    return LSH(20, random_state=0).fit(X[:500])


@pytest.fixture(scope="module")
def single(X, hasher):
    index = Index(hasher)
    index.add(X)
    return index


@pytest.fixture(scope="module")
def built(pattern, hasher, tmp_path_factory):
    path = tmp_path_factory.mktemp("built") / "index"
    assert build_index(pattern, hasher, path, here, rows_per_chunk=1) == N
    return path


def test_chunks_cover_all_rows_once_and_begin_where_blocks_do(pattern, X):
    inputs = survey(pattern)
    for rows in (1, BLOCK, BLOCK + 1, 10 * BLOCK):
        chunks = cut_into_chunks(inputs, rows)
        assert [chunk.first_id for chunk in chunks] == [sum(c.rows for c in chunks[:n]) for n in range(len(chunks))]
        assert sum(chunk.rows for chunk in chunks) == N
        assert all(chunk.first_id % BLOCK == 0 for chunk in chunks)
    assert len(pickle.dumps(chunks)) < 2000  # paths, not vectors


@pytest.mark.parametrize("method", [LSH, ITQ])
def test_codes_are_those_of_one_machine_however_files_are_cut(tmp_path, method):
    X = np.random.default_rng(1).normal(size=(2 * BLOCK + 500, 12)).astype(np.float32)
    model = method(12, random_state=0).fit(X[:2000])
    model.save(tmp_path / "model")
    whole = Index(model, keep_vectors=False)
    whole.add(X)
    expected = whole.codes(np.arange(len(X)))
    for cuts, rows in (([], 1), ([5, 70_001], 1), ([5, 70_001], 2 * BLOCK)):
        files = cut_into_files(tmp_path / str(next(numbers)), X, cuts, ("npy", "fvecs"))
        chunks = cut_into_chunks(survey(files), rows)
        assert Codes.concatenate(encode_chunk(chunk, str(tmp_path / "model")) for chunk in chunks) == expected


def test_the_index_is_the_one_that_a_single_machine_builds(built, single, X):
    with Index.open(built) as index:
        index.verify()
        assert index.info()["segments"] == 4
        assert np.array_equal(index.ids, np.arange(N))
        assert index.codes(np.arange(N)) == single.codes(np.arange(N))
        assert np.array_equal(index.vectors(np.arange(N)), X)
        named = {file.name for segment in index._segments for file in segment.files.values()}
        named |= {index._manifest.hasher.name, "MANIFEST.json", "LOCK"}
        index.add(X[:5])
        assert N + 4 in index
        index.remove(np.arange(N, N + 5))
    assert named <= set(os.listdir(built))
    assert not os.path.exists(f"{built}.building")


@pytest.mark.parametrize("distance", ["hamming", "asymmetric"])
@pytest.mark.parametrize(("k", "options"), [(7, {}), (300, {"candidates": 500}), (40, {"rerank": False})])
def test_search_over_segments_is_the_search_of_the_index(built, single, X, distance, k, options):
    queries = X[5:25]
    found = search_index(built, queries, k, here, distance=distance, **options)
    expected = single.search(queries, k, distance=distance, **options)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.dtype == theirs.dtype
        assert np.array_equal(ours, theirs)


def test_search_of_an_index_with_removals_chosen_ids_and_several_types(tmp_path, X, hasher):
    path = tmp_path / "index"
    with Index.create(path, hasher) as index:
        index.add(X[:300])
        index.add(X[300:600].astype(np.float64) + 0.25, ids=np.arange(5000, 5600, 2)[::-1])
        index.remove(np.arange(0, 300, 3))
        queries = X[290:310]
        for options in ({}, {"distance": "asymmetric"}, {"rerank": False}):
            expected = index.search(queries, 30, **options)
            found = search_index(path, queries, 30, here, **options)
            assert all(map(np.array_equal, found, expected))


@pytest.mark.parametrize("k", [1, 100])
def test_ground_truth_is_that_of_one_machine(pattern, X, k):
    queries = X[:12]
    assert np.array_equal(true_neighbours(pattern, queries, k, here, rows_per_chunk=1), ground_truth(X, queries, k))


@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_ground_truth_of_any_cut_is_that_of_the_whole(tmp_path_factory, data):
    kind = data.draw(st.sampled_from(["u1", "i4", "i8", "f4", "f8"]))
    n, width = data.draw(st.integers(1, 30)), data.draw(st.integers(1, 5))
    largest = {"u1": 255, "i4": 2**31 - 1, "i8": 2**33, "f4": 2**20, "f8": 2**40}[kind]
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    few = data.draw(st.booleans())  # so that there are ties
    X = rng.integers(0, 3 if few else largest, size=(n + 3, width)).astype(kind)
    if kind[0] == "f" and not few:
        X /= 7
    X, queries = X[:n], X[n:]
    cuts = sorted(data.draw(st.lists(st.integers(0, n), max_size=4)))
    pattern = cut_into_files(tmp_path_factory.mktemp("cut"), X, cuts)
    k = data.draw(st.integers(1, n))
    assert np.array_equal(true_neighbours(pattern, queries, k, here), ground_truth(X, queries, k))


@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_merging_in_any_grouping_is_sorting_the_whole(data):
    n, k = data.draw(st.integers(1, 40)), data.draw(st.integers(1, 12))
    distances = np.array(data.draw(st.lists(st.integers(0, 4), min_size=n, max_size=n)))
    order = np.lexsort((np.arange(n), distances))[:k]
    cuts = sorted(data.draw(st.lists(st.integers(0, n), max_size=5)))
    edges = [0, *cuts, n]
    answers = []
    for start, stop in itertools.pairwise(edges):
        if stop > start:
            ids = start + np.lexsort((np.arange(stop - start), distances[start:stop]))[:k]
            answers.append((distances[ids][None], ids[None]))
    while len(answers) > 1:
        answers = data.draw(st.permutations(answers))
        taken = data.draw(st.integers(2, len(answers)))
        answers = [merge(answers[:taken], k), *answers[taken:]]
    assert np.array_equal(answers[0][1][0], order)
    assert np.array_equal(answers[0][0][0], distances[order])


def test_numbers_whose_squares_overflow_are_refused_and_not_misjudged(tmp_path):
    np.save(tmp_path / "far.npy", np.array([[1e200], [2e200]]))
    with pytest.raises(DataError, match=r"far.npy.*squares float64 holds, got 1e\+200; divide"):
        true_neighbours(tmp_path / "far.npy", np.array([[0.0]]), 1, here)


def test_remote_inputs_make_the_same_index(tmp_path, X, hasher, single):
    memory = fsspec.filesystem("memory")
    cut_into_files(tmp_path / "files", X, [BLOCK - 9, 2 * BLOCK + 5], ("npy", "u8bin", "parquet"))
    for path in (tmp_path / "files").iterdir():
        memory.put_file(str(path), f"/many/{path.name}")
    try:
        build_index("memory://many/*", hasher, tmp_path / "index", here, rows_per_chunk=1)
        truth = true_neighbours("memory://many/*", X[:3], 5, here, rows_per_chunk=1)
    finally:
        memory.rm("/many", recursive=True)
    with Index.open(tmp_path / "index") as index:
        assert index.codes(np.arange(N)) == single.codes(np.arange(N))
    assert np.array_equal(truth, ground_truth(X, X[:3], 5))


class Interrupted(InProcess):
    """Stops after some tasks, as Ctrl-C does, and remembers how many were asked for and done."""

    def __init__(self, after):
        self.after, self.asked, self.done = after, 0, 0

    def each(self, stage, tasks, progress=None):
        self.asked = len(tasks)
        for answer in super().each(stage, tasks, progress):
            self.done += 1
            yield answer
            if self.done == self.after:
                raise KeyboardInterrupt


@pytest.mark.parametrize("after", [1, 3, 4])
def test_an_interrupted_build_goes_on_and_leaves_no_index_meanwhile(tmp_path, pattern, hasher, single, after):
    path = tmp_path / "index"
    with pytest.raises(KeyboardInterrupt):
        build_index(pattern, hasher, path, Interrupted(after), rows_per_chunk=1)
    with pytest.raises(StorageError, match="there is no index"):
        Index.open(path)
    told, again = [], Interrupted(None)
    build_index(pattern, hasher, path, again, rows_per_chunk=1, progress=lambda *what: told.append(what))
    assert again.asked == 4 - after
    assert told == [("building", done, 4) for done in range(after + 1, 5)]
    with Index.open(path) as index:
        index.verify()
        assert index.codes(np.arange(N)) == single.codes(np.arange(N))
    assert sorted(os.listdir(tmp_path)) == ["index"]


def test_an_interrupted_encoding_goes_on(tmp_path, pattern, hasher, single):
    with pytest.raises(KeyboardInterrupt):
        encode_files(pattern, hasher, tmp_path / "codes", Interrupted(2), rows_per_chunk=1)
    again = Interrupted(None)
    paths = encode_files(pattern, hasher, tmp_path / "codes", again, rows_per_chunk=1)
    assert again.done == 2
    assert [path.name for path in paths] == [f"codes-{start:015d}.npz" for start in range(0, N, BLOCK)]
    assert Codes.concatenate(map(Codes.load, paths)) == single.codes(np.arange(N))


@pytest.mark.parametrize("damage", ["cut", "gone", "torn record"])
def test_segments_of_an_earlier_run_that_are_damaged_are_made_again(tmp_path, pattern, hasher, damage):
    path, work = tmp_path / "index", tmp_path / "index.building"
    with pytest.raises(KeyboardInterrupt):
        build_index(pattern, hasher, path, Interrupted(2), rows_per_chunk=1)
    victim = next(iter(sorted(work.glob("chunk-*.json" if damage == "torn record" else "codes-*.bin"))))
    if damage == "gone":
        victim.unlink()
    else:
        victim.write_bytes(victim.read_bytes()[:-7])
    again = Interrupted(None)
    build_index(pattern, hasher, path, again, rows_per_chunk=1)
    assert again.done == 3
    with Index.open(path) as index:
        index.verify()
        assert len(index) == N


def test_a_crash_before_the_commit_loses_no_segment(tmp_path, pattern, hasher, monkeypatch):
    def fails(*_):
        raise OSError(28, "No space left on device")

    path = tmp_path / "index"
    with monkeypatch.context() as patched:
        patched.setattr(Folder, "commit", fails)
        with pytest.raises(OSError, match="No space"):
            build_index(pattern, hasher, path, here, rows_per_chunk=1)
    assert os.listdir(path) == ["LOCK"]
    again = Interrupted(None)
    build_index(pattern, hasher, path, again, rows_per_chunk=1)
    assert again.done == 0
    with Index.open(path) as index:
        index.verify()


def test_a_crash_after_the_commit_is_tidied_up_by_the_next_run(tmp_path, pattern, hasher, monkeypatch):
    path = tmp_path / "index"
    with monkeypatch.context() as patched:
        patched.setattr("autojacobin.engines._job_folder.JobFolder.clear_away", lambda self: None)
        build_index(pattern, hasher, path, here, rows_per_chunk=1)
    assert os.path.exists(f"{path}.building")
    again = Interrupted(None)
    assert build_index(pattern, hasher, path, again, rows_per_chunk=1) == N
    assert again.asked == 0
    assert os.listdir(tmp_path) == ["index"]
    with pytest.raises(StorageError, match="holds an index already"):
        build_index(pattern, hasher, path, here, rows_per_chunk=1)


def test_another_job_does_not_go_on_with_the_first(tmp_path, X, hasher):
    files = cut_into_files(tmp_path / "files", X, [BLOCK])
    with pytest.raises(KeyboardInterrupt):
        build_index(files, hasher, tmp_path / "index", Interrupted(1), rows_per_chunk=1)
    other = LSH(20, random_state=1).fit(X[:500])
    with pytest.raises(StorageError, match="another job, with other model; delete it to begin anew"):
        build_index(files, other, tmp_path / "index", here, rows_per_chunk=1)
    with pytest.raises(StorageError, match="another job, with other vectors"):
        build_index(files, hasher, tmp_path / "index", here, rows_per_chunk=1, keep_vectors=False)


@pytest.mark.parametrize(("rows", "again"), [(1, 2), (2 * BLOCK, 2)])
def test_what_was_made_of_a_file_that_has_changed_since_is_made_again(tmp_path, X, hasher, rows, again):
    files = cut_into_files(tmp_path / "files", X, [2 * BLOCK])
    with pytest.raises(KeyboardInterrupt):
        build_index(files, hasher, tmp_path / "index", Interrupted(4), rows_per_chunk=1)
    np.save(tmp_path / "files" / "part-001.npy", X[2 * BLOCK :][::-1])
    second = Interrupted(None)
    build_index(files, hasher, tmp_path / "index", second, rows_per_chunk=rows)
    assert second.done == again
    with Index.open(tmp_path / "index") as index:
        index.verify()
        expected = np.concatenate([X[: 2 * BLOCK], X[2 * BLOCK :][::-1]])
        assert np.array_equal(index.vectors(np.arange(N)), expected)
        single = Index(hasher)
        single.add(expected)
        assert index.codes(np.arange(N)) == single.codes(np.arange(N))


def test_encoding_again_with_other_files_does_what_is_new_and_leaves_no_stray_file(tmp_path, X, hasher, single):
    files = cut_into_files(tmp_path / "files", X, [2 * BLOCK])
    encode_files(files, hasher, tmp_path / "codes", here, rows_per_chunk=1)
    (tmp_path / "files" / "part-001.npy").rename(tmp_path / "later.npy")
    fewer = Interrupted(None)
    paths = encode_files(files, hasher, tmp_path / "codes", fewer, rows_per_chunk=1)
    assert fewer.done == 0
    assert sorted((tmp_path / "codes").glob("codes-*")) == paths
    (tmp_path / "later.npy").rename(tmp_path / "files" / "part-001.npy")
    more = Interrupted(None)
    paths = encode_files(files, hasher, tmp_path / "codes", more, rows_per_chunk=1)
    assert more.done == 2
    assert Codes.concatenate(map(Codes.load, paths)) == single.codes(np.arange(N))


def test_bad_inputs_leave_nothing_behind(tmp_path, pattern, hasher, X):
    np.save(tmp_path / "narrow.npy", X[:9, :3])
    with pytest.raises(DataError, match="dimension 3, but the LSH was fitted on 8"):
        build_index(tmp_path / "narrow.npy", hasher, tmp_path / "index", here)
    with pytest.raises(DataError, match="hasher must be a fitted hasher, got int"):
        build_index(pattern, 3, tmp_path / "index", here)
    with pytest.raises(DataError, match="one dimension, got 8 in .* and 3 in the queries"):
        true_neighbours(pattern, X[:2, :3], 1, here)
    with pytest.raises(DataError, match=f"k must be an integer from 1 to {N}"):
        true_neighbours(pattern, X[:2], N + 1, here)
    with pytest.raises(StorageError, match="does not exist"):
        build_index(pattern, hasher, tmp_path / "no" / "index", here)
    assert os.listdir(tmp_path) == ["narrow.npy"]
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter.txt").write_text("dear")
    with pytest.raises(StorageError, match="letter.txt, which is no part of"):
        build_index(pattern, hasher, tmp_path / "full", here)
    with pytest.raises(StorageError, match="letter.txt, which is no part of"):
        encode_files(pattern, hasher, tmp_path / "full", here)


def test_two_builds_of_one_index_do_not_mix(tmp_path, pattern, hasher):
    seen = []

    def begin_again(*_):
        with pytest.raises(IndexLockedError, match="is being written to by process"):
            build_index(pattern, hasher, tmp_path / "index", here, rows_per_chunk=1)
        seen.append(1)

    build_index(pattern, hasher, tmp_path / "index", here, rows_per_chunk=1, progress=begin_again)
    assert len(seen) == 4


@pytest.mark.parametrize("path", [5, None, "a\0b"])
def test_what_is_no_path(path, pattern, hasher, X):
    for call in (
        lambda: build_index(pattern, hasher, path, InProcess()),
        lambda: encode_files(pattern, hasher, path, InProcess()),
        lambda: search_index(path, X[:2], 3, InProcess()),
    ):
        with pytest.raises(DataError, match="path"):
            call()


def test_a_hasher_that_was_not_fitted_makes_nothing(tmp_path, pattern):
    with pytest.raises(NotFittedError):
        build_index(pattern, LSH(24), tmp_path / "index", InProcess())
    assert list(tmp_path.iterdir()) == []


def test_queries_of_a_ground_truth_are_checked_before_the_files_are_blamed(pattern, X):
    queries = X[:3].astype(np.float64)
    queries[1, 2] = np.nan
    with pytest.raises(DataError, match="in the queries: .* NaN in row 1, column 2"):
        true_neighbours(pattern, queries, 3, InProcess())
    assert true_neighbours(pattern, X[:0], 3, InProcess()).shape == ground_truth(X, X[:0], 3).shape == (0, 3)


def test_a_nan_is_told_with_file_and_row(tmp_path, X):
    Y = X[: BLOCK + 100].astype(np.float32)
    Y[BLOCK + 50, 3] = np.nan
    files = cut_into_files(tmp_path / "files", Y, [100, BLOCK], ("fbin",))
    model = LSH(8, random_state=0).fit(Y[:100])
    for job in (
        lambda: build_index(files, model, tmp_path / "i", here),
        lambda: true_neighbours(files, Y[:2], 1, here),
    ):
        with pytest.raises(DataError, match=r"part-002.fbin: Input X contains NaN in row 50, column 3"):
            job()


def test_a_file_that_shrinks_under_the_work_is_named(tmp_path, X):
    files = cut_into_files(tmp_path / "files", X[:100], [50])
    (chunk,) = cut_into_chunks(survey(files))
    write_vectors(tmp_path / "files" / "part-001.npy", X[:10])
    with pytest.raises(FormatError, match=r"part-001.npy holds 10 vectors, expected 50 or more"):
        truth_chunk(chunk, X[:1], 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"k": 0}, "k must be an integer from 1 to"),
        ({"distance": "euclid"}, "distance must be 'hamming' or 'asymmetric', got 'euclid'"),
        ({"candidates": 20, "rerank": False}, "candidates are for re-ranking"),
        ({"candidates": 2}, "candidates must be at least k = 5, got 2"),
        ({"candidates": 2.5}, "candidates must be an integer of at least 1, got 2.5"),
    ],
)
def test_wrong_arguments_of_a_search_are_told(built, X, options, message):
    with pytest.raises(DataError, match=message):
        search_index(built, X[:2], **({"k": 5} | options), executor=here)
