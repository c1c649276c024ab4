"""Who no longer holds the lock deletes nothing, and who closes an index gets no empty answers from it."""

import os
import threading

import numpy as np
import pytest

from autojacobin.core import lock as _lock
from autojacobin.core.lock import WriterLock
from autojacobin.errors import DataError, StorageError
from autojacobin.index.folder import Folder
from autojacobin.index.index import Index
from tests.index.index_model import contents, small_hasher, vectors
from tests.index.test_crash import state_on_disk
from tests.waiting import exit_status, happens, joined

needs_fork = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of a fork among threads; the child does next to nothing
]


def test_a_writer_that_lost_its_lock_does_not_delete_what_the_next_one_is_writing(tmp_path):
    path = tmp_path / "index"
    first = Index.create(path, small_hasher())
    first.add(vectors(3))
    begun, go_on, errors = threading.Event(), threading.Event(), []

    def blocks_of_the_first():
        yield vectors(2)
        (path / "LOCK").unlink()
        begun.set()
        happens(go_on)

    def write():
        try:
            first.add(blocks_of_the_first())
        except StorageError as error:
            errors.append(error)

    def blocks_of_the_second(thread):
        yield vectors(4)  # is in a file from here on
        go_on.set()
        joined(thread)  # the first has failed and put its things in order
        yield vectors(4, seed=1)

    thread = threading.Thread(target=write)
    thread.start()
    happens(begun)
    with Index.open(path) as second:
        second.add(blocks_of_the_second(thread))
        assert "nothing was changed" in str(errors[0])
        assert len(second) == 11
        assert state_on_disk(path) == contents(second)
    first.close()


@pytest.mark.parametrize("fault", ["fork", "close"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_change_that_goes_on_without_the_lock_deletes_nothing(tmp_path, fault):
    """A fork inside the iterator that add reads from ends in an exception there; or the iterator closes the index."""
    if fault == "fork" and not hasattr(os, "fork"):
        pytest.skip("needs fork")
    path, parent = tmp_path / "index", os.getpid()
    index = Index.create(path, small_hasher())

    def blocks():
        yield vectors(2)
        if fault == "close":
            index.close()
        elif (child := os.fork()) == 0:
            raise SystemExit
        else:
            assert exit_status(child) == 0
        yield vectors(3)

    def add():
        try:
            index.add(blocks())
        finally:
            if os.getpid() != parent:
                os._exit(0)

    if fault == "close":
        with pytest.raises(StorageError, match="nothing was changed"):
            add()
        with Index.open(path) as other:
            assert len(other) == 0
            other.add(vectors(1))
    else:
        add()
        assert state_on_disk(path) == contents(index)
        assert len(index) == 5
        index.close()


class TestForks:
    pytestmark = needs_fork

    def test_a_fork_at_the_very_instant_of_locking_lets_go_too(self, tmp_path, monkeypatch):
        lock, take = WriterLock(tmp_path), _lock._lock
        children = []

        def lock_and_fork(descriptor):
            take(descriptor)
            if (child := os.fork()) == 0:
                os._exit(0 if lock._descriptor is None else 1)
            children.append(child)

        monkeypatch.setattr(_lock, "_lock", lock_and_fork)
        lock.acquire()
        assert [exit_status(child) for child in children] == [0]
        assert lock.held
        lock.release()

    def test_a_fork_while_another_thread_learns_a_recall(self):
        index = Index(small_hasher())
        index.add(vectors(20))
        inside, done = threading.Event(), threading.Event()

        def learn():
            with index._learning:
                inside.set()
                happens(done)

        thread = threading.Thread(target=learn)
        thread.start()
        happens(inside)
        pid = os.fork()
        if pid == 0:
            free = index._learning.acquire(blocking=False)
            os._exit(0 if free else 1)
        done.set()
        joined(thread)
        assert exit_status(pid) == 0


ANSWERS = {
    "len": lambda index: len(index),
    "in": lambda index: 3 in index,
    "ids": lambda index: index.ids.tolist(),
    "parts": lambda index: sum(len(part.ids) for part in index.parts()),
    "vectors": lambda index: index.vectors([3]).tolist(),
    "codes": lambda index: index.codes([3]).packed.tolist(),
    "search": lambda index: index.search(vectors(2), 20)[1].tolist(),
    "info": lambda index: index.info()["vectors"],
}


@pytest.mark.parametrize("answer", ANSWERS)
def test_an_index_that_is_closed_during_a_question_answers_or_refuses(tmp_path, monkeypatch, answer):
    """But it never answers from the emptiness that close leaves."""
    with Index.create(tmp_path / "index", small_hasher()) as index:
        index.add(vectors(20))
        expected = ANSWERS[answer](index)
    index = Index.open(tmp_path / "index")
    refuse = Index._check_open

    def another_thread_closes_it(self):
        refuse(self)
        self._closed, self._state = True, type(self._state)(self._state.hasher, True)

    with monkeypatch.context() as patch:
        patch.setattr(Index, "_check_open", another_thread_closes_it)
        assert ANSWERS[answer](index) == expected
    with pytest.raises(DataError, match="this index is closed"):
        ANSWERS[answer](index)
    index.close()


def test_verify_does_not_depend_on_the_folder_that_a_writer_lets_go(tmp_path, monkeypatch):
    index = Index.create(tmp_path / "index", small_hasher())
    index.add(vectors(5))
    monkeypatch.chdir(tmp_path)
    place = Folder._at

    def at_and_let_go(self, name):
        found = place(self, name)
        index._folder.release()  # another thread closes the index
        return found

    monkeypatch.setattr(Folder, "_at", at_and_let_go)
    index.verify()
    assert len(index) == 5
    index.close()


def test_an_interrupted_close_gives_the_lock_back(tmp_path, monkeypatch):
    index = Index.create(tmp_path / "index", small_hasher())
    with monkeypatch.context() as patch:
        patch.setattr("autojacobin.index.index.replace", lambda *a, **k: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            index.close()
    with Index.open(tmp_path / "index") as other:
        other.add(vectors(2))
        np.testing.assert_array_equal(other.ids, [0, 1])
