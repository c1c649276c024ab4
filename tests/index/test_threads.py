"""Several threads, copies and forks of one index."""

import copy
import os
import pickle
import signal
import threading

import numpy as np
import pytest

from autojacobin.errors import DataTypeError, IndexLockedError, StorageError
from autojacobin.index.index import Index
from tests.index.index_model import contents, small_hasher, vectors
from tests.index.test_crash import state_on_disk
from tests.waiting import SECONDS, exit_status, happens, joined, read_from


def in_threads(*works):
    """Run functions side by side, and raise what one of them raised."""
    errors, ready = [], threading.Barrier(len(works))

    def run(work):
        try:
            ready.wait(SECONDS)
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    joined(*threads)
    if errors:
        raise errors[0]


@pytest.mark.parametrize("on_disk", [False, True])
def test_writers_of_one_object_take_turns_and_searches_stay_free(tmp_path, on_disk):
    index = Index.create(tmp_path / "index", small_hasher()) if on_disk else Index(small_hasher())
    index.add(vectors(50))
    searched = []

    def write(seed):
        for step in range(8):
            index.add(vectors(5, seed=100 * seed + step))
            if step % 4 == 3:
                index.compact()
                index.remove([10 * seed + step])

    def search():
        for _ in range(20):
            distances, ids = index.search(vectors(3), 10)
            searched.append(ids)
            assert distances.shape == ids.shape == (3, 10)

    def refresh():
        for _ in range(20):
            index.refresh()

    in_threads(lambda: write(1), lambda: write(2), search, refresh)
    assert len(searched) == 20
    assert len(index) == 50 + 2 * 8 * 5 - 4
    found = contents(index)
    assert len(found) == len(index)
    if on_disk:
        index.close()
        assert state_on_disk(tmp_path / "index") == found


def test_an_index_in_a_folder_cannot_be_copied_or_pickled(tmp_path):
    with Index.create(tmp_path / "index", small_hasher()) as index:
        for attempt in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(DataTypeError, match="cannot be copied or pickled"):
                attempt(index)
        with Index.open(tmp_path / "index") as other, pytest.raises(IndexLockedError):
            other.add(vectors(1))  # the attempts did not free the lock
        index.add(vectors(2))
        assert len(index) == 2


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, lambda index: pickle.loads(pickle.dumps(index))])
def test_an_index_in_memory_can_be_copied(duplicate):
    index = Index(small_hasher())
    index.add(vectors(20))
    other = duplicate(index)
    index.add(vectors(3, seed=1))
    other.remove([0])
    assert len(index) == 23
    assert len(other) == 19
    np.testing.assert_array_equal(other.search(vectors(4), 5)[1], copy.copy(other).search(vectors(4), 5)[1])
    in_threads(lambda: other.add(vectors(2)), lambda: other.add(vectors(2)))
    assert len(contents(other)) == 23


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of a fork among threads; the child does next to nothing
def test_a_forked_child_does_not_keep_the_lock_of_a_dead_parent(tmp_path):
    """A grandchild that outlives the child which held the lock."""
    path = tmp_path / "index"
    Index.create(path, small_hasher()).close()
    reading, writing = os.pipe()
    parent = os.fork()
    if parent == 0:
        index = Index.open(path)
        index.add(vectors(1))  # holds the lock from here on
        if os.fork() == 0:
            os.write(writing, str(os.getpid()).encode())  # now that it has let go of what it inherited
            signal.pause()
            os._exit(0)
        signal.pause()
    child = int(read_from(reading, 20))
    os.kill(parent, signal.SIGKILL)
    exit_status(parent)
    try:
        with Index.open(path) as index:
            index.add(vectors(1))
            assert len(index) == 2
    finally:
        os.kill(child, signal.SIGKILL)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_fork_during_a_change_can_use_an_index_in_memory():
    index = Index(small_hasher())
    inside, done = threading.Event(), threading.Event()

    def blocks():
        yield vectors(3)
        inside.set()
        happens(done)

    thread = threading.Thread(target=lambda: index.add(blocks()))
    thread.start()
    happens(inside)
    pid = os.fork()
    if pid == 0:
        index.add(vectors(2))  # the parent's other thread holds the mutex, which this process does not wait for
        os._exit(len(index))
    done.set()
    joined(thread)
    assert os.waitstatus_to_exitcode(exit_status(pid)) == 2
    assert len(index) == 3


# The lock and the folder


def test_a_deleted_lock_stops_the_writer_before_it_writes(tmp_path):
    first = Index.create(tmp_path / "index", small_hasher())
    first.add(vectors(3))
    (tmp_path / "index" / "LOCK").unlink()
    with Index.open(tmp_path / "index") as second:
        second.add(vectors(4))
        with pytest.raises(StorageError, match="LOCK is no longer the file that this writer locked"):
            first.add(vectors(5))
        second.add(vectors(1))
        assert state_on_disk(tmp_path / "index") == contents(second)
        assert len(second) == 8
    first.close()


def test_a_lock_that_is_lost_in_the_middle_of_a_change_stops_it(tmp_path):
    path = tmp_path / "index"
    index = Index.create(path, small_hasher())
    index.add(vectors(3))
    before = state_on_disk(path)

    def blocks():
        yield vectors(2)
        (path / "LOCK").unlink()
        yield vectors(2)

    with pytest.raises(StorageError, match="nothing was changed"):
        index.add(blocks())
    assert state_on_disk(path) == before
    index.close()


def test_a_link_under_the_name_of_the_lock_is_not_followed(tmp_path):
    path = tmp_path / "index"
    Index.create(path, small_hasher()).close()
    (tmp_path / "precious").write_text("mine")
    (path / "LOCK").unlink()
    (path / "LOCK").symlink_to(tmp_path / "precious")
    with Index.open(path) as index, pytest.raises(StorageError, match="LOCK is a link or no file; delete it"):
        index.add(vectors(1))
    assert (tmp_path / "precious").read_text() == "mine"
    (path / "LOCK").unlink()
    os.mkfifo(path / "LOCK")
    with Index.open(path) as index, pytest.raises(StorageError, match="LOCK is a link or no file; delete it"):
        index.add(vectors(1))


def test_an_index_stays_in_its_folder_when_the_process_changes_its_own(tmp_path, monkeypatch):
    for place in ("one", "other"):
        (tmp_path / place).mkdir()
    monkeypatch.chdir(tmp_path / "other")
    with Index.create("index", small_hasher()) as index:
        index.add(vectors(7, seed=7))
    precious = state_on_disk(tmp_path / "other" / "index")
    monkeypatch.chdir(tmp_path / "one")
    with Index.create("index", small_hasher()) as index:
        monkeypatch.chdir(tmp_path / "other")
        index.add(vectors(3))
        assert index.path == tmp_path / "one" / "index"
        index.verify()
    assert len(state_on_disk(tmp_path / "one" / "index")) == 3
    assert state_on_disk(tmp_path / "other" / "index") == precious


@pytest.mark.parametrize("in_the_middle", [False, True])
def test_a_folder_that_another_takes_the_place_of_is_not_written_to(tmp_path, in_the_middle):
    live, old, backup = tmp_path / "live", tmp_path / "old", tmp_path / "backup"
    with Index.create(backup, small_hasher()) as index:
        index.add(vectors(9, seed=9))
    precious = state_on_disk(backup)
    index = Index.create(live, small_hasher())
    index.add(vectors(3))
    before = contents(index)

    def swap():
        live.rename(old)
        backup.rename(live)

    def blocks():
        yield vectors(2)
        swap()
        yield vectors(2)

    if not in_the_middle:
        swap()
    with pytest.raises(StorageError, match="the folder was moved or replaced; nothing was changed"):
        index.add(blocks() if in_the_middle else vectors(4))
    assert contents(index) == before
    index.close()
    assert state_on_disk(live) == precious
    assert state_on_disk(old) == before
    assert not {entry.name for entry in live.iterdir()} & {entry.name for entry in old.iterdir() if "-" in entry.name}


def test_a_reader_goes_to_the_index_that_took_the_place_of_its_own(tmp_path):
    """With the other index's hasher, which is not the one that the reader opened."""
    with Index.create(tmp_path / "live", small_hasher()) as index:
        index.add(vectors(3))
    sample = vectors(60, seed=5)
    other = type(small_hasher())(4, random_state=1).fit(sample)
    with Index.open(tmp_path / "live") as reader:
        assert len(reader.search(sample[:2], 2)[1]) == 2
        replacement = Index(other)
        replacement.add(sample)
        replacement.save(tmp_path / "live", overwrite=True)
        reader.refresh()
        assert int(reader.hasher.n_bits) == 4
        for wanted, found in zip(
            replacement.search(sample[:5], 10, rerank=False), reader.search(sample[:5], 10, rerank=False), strict=True
        ):
            np.testing.assert_array_equal(wanted, found)
