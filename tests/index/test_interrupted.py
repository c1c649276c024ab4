"""An exception from outside at any instant of a change: the same object goes on, and nothing is lost.

Exceptions come at two kinds of instants: before and after every file operation, and wherever the interpreter runs
signal handlers, in every function through which a file is reached.
"""

import errno
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from autojacobin.core import lock
from autojacobin.core.lock import WriterLock
from autojacobin.errors import DataError, IndexLockedError, StorageError
from autojacobin.index import index as index_module
from autojacobin.index.index import Index
from tests.index.faults import Faults, Interrupt
from tests.index.index_model import contents, small_hasher
from tests.index.interrupts import InterruptAtCall, on_the_way_to_a_file
from tests.index.test_crash import CHANGES, names_on_disk, opened, replacement, state_on_disk, vectors

pytestmark = [
    pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="looks up open files in /proc"),
    # a file that was being opened is closed by the garbage collector
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def interrupted(work, instants, make):
    """Interrupt ``work(made)`` at some instants; give what ``make`` made, and whether the exception came through."""
    functions = on_the_way_to_a_file(lambda: work(make()))
    made = make()
    with InterruptAtCall(functions) as counting:
        work(made)
    assert counting.count > 100
    for at in instants(counting.count - 1):
        made, raised = make(), False
        try:
            with InterruptAtCall(functions, at):
                work(made)
        except Interrupt:
            raised = True
        yield made, raised


@pytest.fixture(scope="module")
def states(tmp_path_factory):
    """Folders with the index before each change, and what each of them holds; the last has no change to come."""
    folder = tmp_path_factory.mktemp("interrupted")
    with Index.create(folder / "now", small_hasher()) as index:
        index.add(vectors(10, 0))
        found = []
        for number, change in enumerate([*CHANGES, None]):
            shutil.copytree(folder / "now", folder / str(number))
            found.append((folder / str(number), contents(index)))
            if change is not None:
                change(index)
    return found


def check_that_the_object_goes_on(index, path, allowed):
    """The object shows what is on the disk, and further changes are kept."""
    found = contents(index)
    assert found in allowed
    assert state_on_disk(path) == found
    index.add(vectors(3, 9))
    new = contents(index)
    assert found.items() <= new.items()
    assert len(new) == len(found) + 3
    index.compact()
    assert contents(index) == new == state_on_disk(path)
    assert names_on_disk(path) == index._state.manifest.names()


@pytest.fixture
def a_copy(tmp_path):
    """Copies a folder to a new place; what was copied before is deleted."""

    def copy(original=None):
        shutil.rmtree(tmp_path / "copy", ignore_errors=True)
        return tmp_path / "copy" if original is None else Path(shutil.copytree(original, tmp_path / "copy"))

    return copy


@pytest.mark.parametrize("number", range(len(CHANGES)))
@pytest.mark.parametrize("when", ["before", "after"])
def test_an_interrupt_at_any_file_operation(states, a_copy, number, when, instants):
    (original, before), (_, after) = states[number], states[number + 1]
    with opened(a_copy(original), counting := Faults()) as index:
        CHANGES[number](index)
    assert counting.count > 5
    for at in instants(counting.count):
        path = a_copy(original)
        with opened(path, faults := Faults(at, f"interrupt {when}")) as index:
            with pytest.raises(Interrupt):
                CHANGES[number](index)
            faults.at = 0
            check_that_the_object_goes_on(index, path, [before, after])


@pytest.mark.parametrize("number", range(len(CHANGES)))
def test_an_interrupt_at_any_call(states, a_copy, number, instants):
    (original, before), (_, after) = states[number], states[number + 1]
    outcomes, work = set(), CHANGES[number]
    for at, (index, raised) in enumerate(interrupted(work, instants, lambda: Index.open(a_copy(original)))):
        found = contents(index)
        assert found in (before, after)
        outcomes.add((raised, found == after))
        if at % 8 == 0:
            check_that_the_object_goes_on(index, index.path, [before, after])
        else:
            index.add(vectors(3, 9))
            with Index.open(index.path) as again:
                assert contents(again) == contents(index)
            assert found.items() <= contents(index).items()
        index.close()
    if instants.every:
        assert (True, True) in outcomes  # it came after the commit
    assert before == after or (True, False) in outcomes


@pytest.mark.parametrize("over_another", [False, True])
def test_an_interrupted_save_can_be_repeated(states, a_copy, over_another, instants):
    original, before = states[0]
    new = replacement()

    def save(path):
        new.save(path, overwrite=True)

    for path, raised in interrupted(save, instants, lambda: a_copy(original if over_another else None)):
        if over_another:
            assert state_on_disk(path) in ([before, contents(new)] if raised else [contents(new)])
        new.save(path, overwrite=True)
        assert state_on_disk(path) == contents(new)
        assert len(names_on_disk(path)) == len(Index.open(path)._state.manifest.names())


def test_an_interrupted_create_leaves_an_index_or_none(a_copy, instants):
    hasher = small_hasher()
    for path, _ in interrupted(lambda path: Index.create(path, hasher).close(), instants, a_copy):
        try:
            index = Index.create(path, hasher)
        except StorageError as error:
            assert "holds an index already" in str(error)
            index = Index.open(path)
        index.add(vectors(3, 1))
        assert state_on_disk(path) == contents(index)
        index.close()


def test_an_interrupt_while_the_state_is_read_again_is_no_loss_either(states, tmp_path):
    (original, _), (_, after) = states[3], states[4]
    path = Path(shutil.copytree(original, tmp_path / "index"))
    with opened(path, Faults()) as index:
        index.remove([])  # takes the lock
        home = index._folder

        def interrupted(*arguments):
            raise Interrupt

        home.settle = interrupted
        folder_commit = home.commit

        def commit_and_interrupt(*arguments):
            folder_commit(*arguments)
            raise Interrupt

        home.commit = commit_and_interrupt
        with pytest.raises(Interrupt):
            CHANGES[3](index)
        del home.settle, home.commit
        assert not home.settled
        index.add(vectors(1, 8))
        assert len(index) == len(after) + 1
        assert state_on_disk(path) == contents(index)


def test_an_iterator_cannot_change_the_index_that_reads_it(tmp_path):
    for index in (Index(small_hasher()), Index.create(tmp_path / "index", small_hasher())):

        def blocks(index=index):
            yield vectors(5, 0)
            index.add(vectors(5, 1))
            yield vectors(5, 2)

        with pytest.raises(DataError, match="do one after the other"):
            index.add(blocks())
        assert len(index) == 0
        index.add(vectors(2, 3))
        assert contents(index) == {i: vector.tobytes() for i, vector in enumerate(vectors(2, 3))}
        index.close()


def test_an_interrupted_lock_is_given_back(states, tmp_path, instants):
    path = Path(shutil.copytree(states[0][0], tmp_path / "index"))
    for index, _ in interrupted(lambda index: index.remove([]), instants, lambda: Index.open(path)):
        index.close()
        with Index.open(path) as other:
            other.remove([])  # nobody else holds the lock
    with Index.open(path) as index, Index.open(path) as other:
        index.remove([])
        with pytest.raises(IndexLockedError):
            other.remove([])


def test_saving_interrupted_at_any_file_operation(states, a_copy, monkeypatch, instants):
    original, before = states[0]
    new = replacement()

    def save(path, faults):
        with monkeypatch.context() as patch:
            patch.setattr(index_module, "Folder", faults.folder)
            new.save(path, overwrite=True)

    save(a_copy(original), counting := Faults())
    for at in instants(counting.count):
        path = a_copy(original)
        with pytest.raises(Interrupt):
            save(path, Faults(at, "interrupt after"))
        assert state_on_disk(path) in (before, contents(new))
        new.save(path, overwrite=True)
        assert state_on_disk(path) == contents(new)
        assert np.all(Index.open(path).ids == new.ids)


def test_an_interrupt_between_the_lock_and_the_reading_of_a_new_state(states, a_copy, instants):
    """An object that is behind takes the lock, is interrupted, and goes on: what others wrote meanwhile stays."""

    def behind():
        index = Index.open(a_copy(states[0][0]))
        with Index.open(index.path) as other:
            other.add(vectors(7, 1))
            other.compact()  # deletes all files that the first object knows
        return index

    with behind() as index:
        written = state_on_disk(index.path)
    for index, _ in interrupted(lambda index: index.add(vectors(2, 2)), instants, behind):
        index.add(vectors(3, 3))
        assert written.items() <= contents(index).items()
        assert state_on_disk(index.path) == contents(index)
        index.close()


def test_a_state_that_could_not_be_read_is_read_before_the_next_change(tmp_path, monkeypatch):
    path = tmp_path / "index"
    Index.create(path, small_hasher()).close()
    index = Index.open(path)
    with Index.open(path) as other:
        other.add(vectors(7, 1))

    def out_of_descriptors(*arguments, **options):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patch:
        patch.setattr(index_module.changes, "read_state", out_of_descriptors)
        with pytest.raises(StorageError, match="too many open files; allow more with ulimit -n"):
            index.add(vectors(1, 2))
    index.add(vectors(1, 2))
    assert len(index) == len(state_on_disk(path)) == 8
    index.close()


def test_a_lock_whose_release_is_interrupted_is_not_thought_to_be_held(tmp_path, monkeypatch):
    held, unlock = WriterLock(tmp_path), lock._unlock

    def unlock_and_interrupt(descriptor):
        unlock(descriptor)
        raise Interrupt

    held.acquire()
    with monkeypatch.context() as patch:
        patch.setattr(lock, "_unlock", unlock_and_interrupt)
        with pytest.raises(Interrupt):
            held.release()
    assert not held.held
    other = WriterLock(tmp_path)
    other.acquire()
    with pytest.raises(IndexLockedError):
        held.acquire()
    other.release()
