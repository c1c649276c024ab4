"""Jobs over many files that are interrupted, damaged, repeated or asked for nonsense."""

import errno
import itertools
import os
import shutil
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import fsspec
import numpy as np
import pytest

from autojacobin import LSH, Codes, Index, Metric
from autojacobin.core import files as files_module
from autojacobin.datasets import write_vectors
from autojacobin.errors import DataError, IndexLockedError, NotFittedError, StorageError
from autojacobin.evaluation import ground_truth
from autojacobin.index.folder import Folder
from autojacobin.jobs import build, build_index, encode_files, search_index, true_neighbours
from autojacobin.jobs.inputs import draw_sample, open_piece, survey
from autojacobin.jobs.neighbours import truth_chunk
from tests.jobs.cut_files import BLOCK, N, cut_into_files
from tests.jobs.in_process import InProcess
from tests.waiting import joined

LEARNS_FROM = 20  # queries; see tests/conftest.py
here = InProcess()
numbers = itertools.count()


class Interrupted(InProcess):
    """Stops after some tasks, as Ctrl-C does, and remembers how many were asked for and done."""

    def __init__(self, after):
        self.after, self.asked, self.done = after, 0, 0

    def each(self, stage, function, calls, progress=None, n_done=0):
        self.asked = len(calls)
        for answer in super().each(stage, function, calls, progress, n_done):
            self.done += 1
            yield answer
            if self.done == self.after:
                raise KeyboardInterrupt


@pytest.mark.parametrize("after", [1, 3, 4])
def test_an_interrupted_build_continues_and_leaves_no_index_before(tmp_path, pattern, hasher, single, after):
    path = tmp_path / "index"
    with pytest.raises(KeyboardInterrupt):
        build_index(pattern, hasher, path, Interrupted(after), rows_per_chunk=1)
    with pytest.raises(StorageError, match="there is no index"):
        Index.open(path)
    reported, again = [], Interrupted(None)
    build_index(pattern, hasher, path, again, rows_per_chunk=1, progress=lambda *what: reported.append(what))
    assert again.asked == 4 - after
    assert reported == [("building", done, 4) for done in range(after + 1, 5)]
    with Index.open(path) as index:
        index.verify()
        assert index.codes(np.arange(N)) == single.codes(np.arange(N))
    assert sorted(os.listdir(tmp_path)) == ["index"]


def test_an_interrupted_encoding_continues(tmp_path, pattern, hasher, single):
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
        patched.setattr("autojacobin.jobs.build.shutil.rmtree", lambda *_, **__: None)
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
    with pytest.raises(StorageError, match="another job, with other model; delete it"):
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
    for_cosine = Metric("cosine").fit(LSH(8, random_state=0), X)
    with pytest.raises(DataError, match="a job builds Euclidean indexes, got a model for cosine"):
        build_index(pattern, for_cosine, tmp_path / "index", here)
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


def test_an_index_that_another_job_made_meanwhile_is_not_replaced(tmp_path, X, hasher, monkeypatch):
    """Another build finishes, and vectors are added to its index, after this one looked and before it locks."""
    files, path = cut_into_files(tmp_path / "files", X[:100], []), tmp_path / "index"
    look = build._is_finished

    def made_meanwhile(*arguments):
        found = look(*arguments)
        monkeypatch.setattr(build, "_is_finished", look)
        build_index(files, hasher, path, here)
        with Index.open(path) as index:
            index.add(X[100:105])
        return found

    monkeypatch.setattr(build, "_is_finished", made_meanwhile)
    with pytest.raises(StorageError, match="holds an index already; add to it with Index.add"):
        build_index(files, hasher, path, here)
    with Index.open(path) as index:
        index.verify()
        assert np.array_equal(index.vectors(np.arange(105)), X[:105])


def test_a_full_disk_is_named_and_the_job_continues(tmp_path, X, hasher, monkeypatch):
    """At each file that a job writes the disk is full once; what was done before is kept."""
    files = cut_into_files(tmp_path / "files", X[:100], [])
    write, left = files_module.sync, [0]

    def full(descriptor):
        left[0] -= 1
        if not left[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(descriptor)

    monkeypatch.setattr(files_module, "sync", full)
    for name, job in (
        ("index", lambda path: build_index(files, hasher, path, here, rows_per_chunk=1)),
        ("codes", lambda path: encode_files(files, hasher, path, here, rows_per_chunk=1)),
    ):
        failed = 0
        while True:
            left[0] = failed + 1
            try:
                job(tmp_path / f"{name}-{failed}")
                break
            except StorageError as error:
                assert "no space left on device" in str(error)
                assert "make room" in str(error)
            failed += 1
            job(tmp_path / f"{name}-{failed - 1}")
        assert failed > 5


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


def test_a_nan_is_reported_with_file_and_row(tmp_path, X):
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


def in_place(path, content):
    path.write_bytes(content)


def by_renaming(path, content):
    path.with_suffix(".new").write_bytes(content)
    path.with_suffix(".new").replace(path)


def removed(path, content):
    path.unlink()


CHANGED = r"part-001.npy(: there is no such file| was changed while the job ran, expected the file as it was before)"


@pytest.mark.parametrize("change", [in_place, by_renaming, removed])
def test_a_file_that_changes_while_a_job_runs_ends_it(tmp_path, X, hasher, change):
    """The jobs have one task for each chunk, and the second file changes when the first task is done."""
    cut_into_files(tmp_path / "old", X, [BLOCK])
    other = X[BLOCK:].copy()
    other[:, 0] += 1
    np.save(tmp_path / "new.npy", other)
    content = (tmp_path / "new.npy").read_bytes()
    jobs = {
        "index": lambda files, **options: build_index(files, hasher, tmp_path / "index", here, **options),
        "codes": lambda files, **options: encode_files(files, hasher, tmp_path / "codes", here, **options),
        "truth": lambda files, **options: true_neighbours(files, X[:3], 5, here, **options),
    }
    for name, job in jobs.items():
        folder = shutil.copytree(tmp_path / "old", tmp_path / f"for {name}")
        files, second = f"{folder}/part-*", folder / "part-001.npy"

        def changing(stage, done, total, second=second):
            if done == 1:
                change(second, content)

        with pytest.raises(StorageError, match=CHANGED):
            job(files, rows_per_chunk=1, progress=changing)
    with pytest.raises(StorageError, match="there is no index"):
        Index.open(tmp_path / "index")


def test_a_file_that_changes_while_it_is_read_is_named(tmp_path, X):
    files = cut_into_files(tmp_path / "files", X[:100], [50])
    (chunk,) = survey(files).chunks()
    with pytest.raises(StorageError, match=CHANGED), open_piece(chunk.pieces[1]):
        write_vectors(tmp_path / "files" / "part-001.npy", X[:50] + 1)
    write_vectors(tmp_path / "files" / "part-001.npy", X[:10])
    with pytest.raises(StorageError, match=CHANGED):
        truth_chunk(chunk, X[:1], 1)
    with pytest.raises(StorageError, match=CHANGED):
        draw_sample(files, 60, progress=lambda *_: write_vectors(tmp_path / "files" / "part-001.npy", X[:50]))


@pytest.mark.parametrize("ending", ["npy", "parquet"])
def test_a_remote_file_that_changes_is_named(tmp_path, X, ending):
    memory = fsspec.filesystem("memory")
    write_vectors(tmp_path / f"x.{ending}", X[:50])
    write_vectors(tmp_path / f"y.{ending}", X[50:100])
    memory.put_file(str(tmp_path / f"x.{ending}"), f"/x.{ending}")
    (chunk,) = survey(f"memory://x.{ending}").chunks()
    truth_chunk(chunk, X[:1], 1)
    with pytest.raises(StorageError, match="was changed while the job ran"), open_piece(chunk.pieces[0]):
        memory.put_file(str(tmp_path / f"y.{ending}"), f"/x.{ending}")
    with pytest.raises(StorageError, match="was changed while the job ran"):
        truth_chunk(chunk, X[:1], 1)
    memory.store.clear()


def test_a_file_on_a_web_server_that_changes_is_named(tmp_path, X):
    pytest.importorskip("aiohttp")
    write_vectors(tmp_path / "x.csv", X[:50])
    handler = partial(SimpleHTTPRequestHandler, directory=tmp_path)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, name="web server")
        thread.start()
        try:
            (chunk,) = survey(f"http://127.0.0.1:{server.server_port}/x.csv").chunks()
            truth_chunk(chunk, X[:1], 1)
            write_vectors(tmp_path / "x.csv", X[:60])
            with pytest.raises(StorageError, match="was changed while the job ran"):
                truth_chunk(chunk, X[:1], 1)
        finally:
            server.shutdown()
            joined(thread)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"k": 0}, "k must be an integer of at least 1, got 0"),
        ({"distance": "euclid"}, "distance must be 'asymmetric' or 'hamming', got 'euclid'"),
        ({"candidates": 20, "rerank": False}, "candidates are for re-ranking"),
        ({"candidates": 2}, "candidates must be at least k = 5, got 2"),
        ({"candidates": 2.5}, "candidates must be an integer of at least 1, got 2.5"),
    ],
)
def test_wrong_arguments_of_a_search_are_reported(built, X, options, message):
    with pytest.raises(DataError, match=message):
        search_index(built, X[:2], **({"k": 5} | options), workers=here)


@pytest.mark.parametrize("wish", [{}, {"recall": 0.8}])
def test_a_search_has_the_defaults_and_the_recall_of_the_index(tmp_path, wish):
    X = np.random.default_rng(1).normal(size=(2500, 8)).astype(np.float32)
    with Index.create(tmp_path / "index", LSH(24, random_state=0).fit(X)) as index:
        index.add(X[:1300])
        index.add(X[1300:])
    with Index.open(tmp_path / "index") as index:
        expected = index.search(X[:20] + 0.1, 5, **wish)
    stages = []
    answer = search_index(
        tmp_path / "index", X[:20] + 0.1, 5, here, progress=lambda stage, *_: stages.append(stage), **wish
    )
    assert all(np.array_equal(a, b) for a, b in zip(answer, expected, strict=True))
    assert stages[0] == "choosing candidates"


@pytest.mark.parametrize("how", [{}, {"candidates": 50}, {"recall": 0.9}, {"rerank": False}])
def test_more_neighbours_than_vectors_are_all_of_them(tmp_path, X, how):
    with Index.create(tmp_path / "index", LSH(16, random_state=0).fit(X[:40])) as index:
        index.add(X[:25])
        index.add(X[25:40])
        expected = index.search(X[40:43], 40, **how)
        found = search_index(tmp_path / "index", X[40:43], 2**31 - 1 if "candidates" not in how else 45, here, **how)
        np.testing.assert_allclose(found[0], expected[0], rtol=1e-5)
        assert (np.sort(found[1], axis=1) == np.arange(40)).all()


def test_a_search_by_default_gives_what_the_index_gives_to_the_last_bit(tmp_path):
    rng = np.random.default_rng(0)
    X = (rng.integers(0, 4, (1500, 8)) * 0.1).astype(np.float32)
    with Index.create(tmp_path / "index", LSH(16, random_state=0).fit(X)) as index:
        index.add(X)
        expected = index.search(X[:50] + np.float32(0.01), 10)
    found = search_index(tmp_path / "index", X[:50] + np.float32(0.01), 10, InProcess())
    assert all(np.array_equal(a, b) for a, b in zip(found, expected, strict=True))
