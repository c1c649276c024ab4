"""An exception from outside at any instant of a change: the same object goes on, and nothing is lost.

Exceptions come at two kinds of instants: before and after every file operation, and wherever the interpreter runs
signal handlers, which is at the start of functions and after calls, in every function that decides about a change.
"""

import dis
import errno
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from autojacobin.errors import DataError, IndexLockedError, StorageError
from autojacobin.index import lock, storage
from autojacobin.index.folder import IndexFolder
from autojacobin.index.index import Index
from autojacobin.index.lock import WriterLock
from tests.index.faults import Faults, Interrupt
from tests.index.index_model import contents, small_hasher
from tests.index.test_crash import CHANGES, names_on_disk, opened, replacement, state_on_disk, vectors

pytestmark = [
    pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="looks up open files in /proc"),
    # a file that was being opened is closed by the garbage collector
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

FILES = {"index.py", "holder.py", "folder.py", "storage.py", "lock.py"}
FUNCTIONS = {
    "_change", "_change_on_disk", "_settle", "_read_again", "write_state", "commit", "check_writable", "settle",
    "_placed", "take_lock", "acquire", "release", "write_whole", "prepare", "_write_file", "mark_unfinished",
    "create", "save",
}  # fmt: skip


by_instruction = pytest.mark.skipif(sys.version_info >= (3, 12), reason="a tracer is not called for each instruction")


class InterruptAtCall:
    """Raises an exception at the ``at``-th instant at which a signal handler could; counts them if ``at`` is 0."""

    def __init__(self, at=0):
        self.at, self.count, self.last = at, 0, {}

    def __enter__(self):
        sys.settrace(self.enter)
        return self

    def __exit__(self, *exception):
        sys.settrace(None)

    def enter(self, frame, event, argument):
        path = Path(frame.f_code.co_filename)
        if frame.f_code.co_name not in FUNCTIONS or path.name not in FILES or "autojacobin" not in path.parts:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        self.step()
        return self.inside

    def inside(self, frame, event, argument):
        if event == "opcode":
            before = self.last.get(id(frame))
            self.last[id(frame)] = frame.f_lasti
            if before is not None and dis.opname[frame.f_code.co_code[before]].startswith("CALL"):
                self.step()
        elif event == "return":
            self.last.pop(id(frame), None)
        return self.inside

    def step(self):
        self.count += 1
        if self.count == self.at:
            raise Interrupt


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


@pytest.mark.parametrize("number", range(len(CHANGES)))
@pytest.mark.parametrize("when", ["before", "after"])
def test_an_interrupt_at_any_file_operation(states, tmp_path, number, when):
    (original, before), (_, after) = states[number], states[number + 1]
    at, interrupted = 0, True
    while interrupted:
        at, interrupted = at + 1, False
        path = Path(shutil.copytree(original, tmp_path / str(at)))
        with opened(path, faults := Faults(at, f"interrupt {when}")) as index:
            try:
                CHANGES[number](index)
            except Interrupt:
                interrupted = True
            faults.at = 0
            check_that_the_object_goes_on(index, path, [before, after] if interrupted else [after])
        shutil.rmtree(path)
    assert at > 5


@by_instruction
@pytest.mark.parametrize("number", range(len(CHANGES)))
def test_an_interrupt_at_any_call(states, tmp_path, number):
    (original, before), (_, after) = states[number], states[number + 1]
    shutil.copytree(original, tmp_path / "counted")
    with Index.open(tmp_path / "counted") as index, InterruptAtCall() as counting:
        CHANGES[number](index)
    assert counting.count > 40
    outcomes = set()
    for at in range(1, counting.count):
        path = Path(shutil.copytree(original, tmp_path / str(at)))
        index, raised = Index.open(path), False
        try:
            with InterruptAtCall(at):
                CHANGES[number](index)
        except Interrupt:
            raised = True
        found = contents(index)
        assert found in (before, after)
        outcomes.add((raised, found == after))
        if at % 8 == 0:
            check_that_the_object_goes_on(index, path, [before, after])
        else:
            index.add(vectors(3, 9))
            with Index.open(path) as again:
                assert contents(again) == contents(index)
            assert found.items() <= contents(index).items()
        index.close()
        shutil.rmtree(path)
    assert (True, True) in outcomes  # it came after the commit
    assert before == after or (True, False) in outcomes


@by_instruction
@pytest.mark.parametrize("over_another", [False, True])
def test_an_interrupted_save_can_be_repeated(states, tmp_path, over_another):
    original, before = states[0]
    new = replacement()
    shutil.copytree(original, tmp_path / "counted")
    with InterruptAtCall() as counting:
        new.save(tmp_path / "counted", overwrite=True)
    for at in range(1, counting.count):
        path = tmp_path / str(at)
        if over_another:
            shutil.copytree(original, path)
        try:
            with InterruptAtCall(at):
                new.save(path, overwrite=True)
        except Interrupt:
            if over_another:
                assert state_on_disk(path) in (before, contents(new)), at
        new.save(path, overwrite=True)
        assert state_on_disk(path) == contents(new)
        assert len(names_on_disk(path)) == len(Index.open(path)._state.manifest.names())
        shutil.rmtree(path)


@by_instruction
def test_an_interrupted_create_leaves_an_index_or_none(tmp_path):
    hasher = small_hasher()
    with InterruptAtCall() as counting:
        Index.create(tmp_path / "counted", hasher).close()
    for at in range(1, counting.count):
        path = tmp_path / str(at)
        try:
            with InterruptAtCall(at):
                Index.create(path, hasher).close()
        except Interrupt:
            pass
        try:
            index = Index.create(path, hasher)
        except StorageError as error:
            assert "holds an index already" in str(error)
            index = Index.open(path)
        index.add(vectors(3, 1))
        assert state_on_disk(path) == contents(index)
        index.close()
        shutil.rmtree(path)


def test_an_interrupt_while_the_state_is_read_again_is_no_loss_either(states, tmp_path):
    (original, _), (_, after) = states[3], states[4]
    path = Path(shutil.copytree(original, tmp_path / "index"))
    with opened(path, Faults()) as index:
        index.remove([])  # takes the lock
        home = index._folder

        def interrupted(*arguments):
            raise Interrupt

        home.settle = interrupted
        folder_commit = home.store.commit

        def commit_and_interrupt(*arguments):
            folder_commit(*arguments)
            raise Interrupt

        home.store.commit = commit_and_interrupt
        with pytest.raises(Interrupt):
            CHANGES[3](index)
        del home.settle, home.store.commit
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

        with pytest.raises(DataError, match="make one change after the other"):
            index.add(blocks())
        assert len(index) == 0
        index.add(vectors(2, 3))
        assert contents(index) == {i: vector.tobytes() for i, vector in enumerate(vectors(2, 3))}
        index.close()


@by_instruction
def test_an_interrupted_lock_is_given_back(states, tmp_path):
    path = Path(shutil.copytree(states[0][0], tmp_path / "index"))
    with Index.open(path) as index, InterruptAtCall() as counting:
        index.remove([])
    for at in range(1, counting.count):
        index = Index.open(path)
        try:
            with InterruptAtCall(at):
                index.remove([])
        except Interrupt:
            pass
        index.close()
        with Index.open(path) as other:
            other.remove([])  # nobody else holds the lock
    with Index.open(path) as index, Index.open(path) as other:
        index.remove([])
        with pytest.raises(IndexLockedError):
            other.remove([])


def test_saving_interrupted_at_any_file_operation(states, tmp_path, monkeypatch):
    original, before = states[0]
    new, at, interrupted = replacement(), 0, True
    while interrupted:
        at, interrupted = at + 1, False
        path = Path(shutil.copytree(original, tmp_path / str(at)))
        faults = Faults(at, "interrupt after")
        with monkeypatch.context() as patch:
            patch.setattr(storage, "Files", faults.files)
            try:
                new.save(path, overwrite=True)
            except Interrupt:
                interrupted = True
        assert state_on_disk(path) in ([before, contents(new)] if interrupted else [contents(new)])
        new.save(path, overwrite=True)
        assert state_on_disk(path) == contents(new)
        assert np.all(Index.open(path).ids == new.ids)
        shutil.rmtree(path)


@by_instruction
def test_an_interrupt_between_the_lock_and_the_reading_of_a_new_state(states, tmp_path):
    """An object that is behind takes the lock, is interrupted, and goes on: what others wrote meanwhile stays."""

    def behind(path):
        shutil.copytree(states[0][0], path)
        index = Index.open(path)
        with Index.open(path) as other:
            other.add(vectors(7, 1))
            other.compact()  # deletes all files that the first object knows
            return index, contents(other)

    index, _ = behind(tmp_path / "counted")
    with index, InterruptAtCall() as counting:
        index.add(vectors(2, 2))
    assert counting.count > 40
    for at in range(1, counting.count):
        index, written = behind(tmp_path / str(at))
        try:
            with InterruptAtCall(at):
                index.add(vectors(2, 2))
        except Interrupt:
            pass
        index.add(vectors(3, 3))
        assert written.items() <= contents(index).items(), at
        assert state_on_disk(index.path) == contents(index)
        index.close()
        shutil.rmtree(tmp_path / str(at))


def test_a_state_that_could_not_be_read_is_read_before_the_next_change(tmp_path, monkeypatch):
    path = tmp_path / "index"
    Index.create(path, small_hasher()).close()
    index = Index.open(path)
    with Index.open(path) as other:
        other.add(vectors(7, 1))

    def out_of_descriptors(*arguments, **options):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patch:
        patch.setattr(IndexFolder, "read_segments", out_of_descriptors)
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
