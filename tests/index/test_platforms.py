"""Systems without flock, without descriptors of folders, with another fsync, and with few descriptors to spare."""

import errno
import gc
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from autojacobin.core import files, lock
from autojacobin.core.lock import WriterLock
from autojacobin.errors import IndexLockedError, StorageError
from autojacobin.index import index as index_module
from autojacobin.index.array_files import BLOCK_BYTES, CheckedArray
from autojacobin.index.folder import Folder, clear_os_errors
from autojacobin.index.index import Index
from autojacobin.index.manifest import ArrayFile
from tests.index.index_model import contents, small_hasher, vectors
from tests.index.test_crash import CHANGES, names_on_disk, state_on_disk


class FileLocks:
    """Locks on bytes of files as msvcrt has them: they belong to a descriptor, and end some time after its close."""

    LK_NBLCK, LK_UNLCK = 2, 0

    def __init__(self):
        self.locked = {}

    def locking(self, descriptor, mode, n_bytes):
        assert n_bytes == 1
        status = os.fstat(descriptor)
        byte = status.st_dev, status.st_ino, os.lseek(descriptor, 0, os.SEEK_CUR)
        if mode == self.LK_NBLCK and byte not in self.locked:
            self.locked[byte] = descriptor
        elif mode == self.LK_UNLCK and self.locked.get(byte) == descriptor:
            del self.locked[byte]
        else:
            raise OSError(errno.EACCES, os.strerror(errno.EACCES))


@pytest.fixture
def as_on_windows(monkeypatch):
    locks = FileLocks()
    monkeypatch.setattr(lock, "fcntl", None)
    monkeypatch.setattr(lock, "msvcrt", locks)
    monkeypatch.setattr(files, "HAS_FOLDER_DESCRIPTORS", False)
    monkeypatch.delattr(os, "pwrite")
    return locks


def test_an_index_where_there_is_no_flock_and_no_descriptor_of_a_folder(tmp_path, as_on_windows):
    path = tmp_path / "index"
    with Index.create(path, small_hasher()) as index:
        index.add(vectors(10))
        for change in CHANGES:
            change(index)
            assert state_on_disk(path) == contents(index)
            with Index.open(path) as other, pytest.raises(IndexLockedError, match=f"by process {os.getpid()},"):
                other.add(vectors(1))
        assert names_on_disk(path) == index._state.manifest.names()
    assert as_on_windows.locked == {}  # given back at once, not when the system gets to it
    with Index.open(path) as index:
        before = len(index)
        index.add(vectors(1))
        (path / "LOCK").rename(path / "moved")
        (path / "LOCK").touch()
        with pytest.raises(StorageError, match="LOCK is no longer the file"):
            index.add(vectors(1))
    assert len(state_on_disk(path)) == before + 1


@pytest.mark.rare
@pytest.mark.skipif(sys.platform != "linux", reason="looks up open files in /proc")
def test_indexes_models_and_commands_where_there_is_nothing_of_posix(tmp_path):
    command = [sys.executable, "-m", "tests.index.without_posix", str(tmp_path)]
    result = subprocess.run(
        command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False, timeout=1200
    )
    assert (result.returncode, result.stdout) == (0, "done\n"), result.stderr


def test_a_manifest_that_a_reader_has_open_is_replaced_when_it_is_closed(tmp_path, as_on_windows, monkeypatch):
    replace, refused = os.replace, []

    def refusing(source, target, **options):
        if len(refused) < 3:
            refused.append(target)
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), target)
        replace(source, target, **options)

    monkeypatch.setattr(os, "replace", refusing)
    with Index.create(tmp_path / "index", small_hasher()) as index:
        index.add(vectors(10))
    assert len(refused) == 3
    assert len(state_on_disk(tmp_path / "index")) == 10


def test_a_file_that_stays_open_elsewhere_is_an_error(tmp_path, as_on_windows, monkeypatch):
    def refusing(source, target, **options):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), target)

    with Index.create(tmp_path / "index", small_hasher()) as index:
        index.add(vectors(10))
        with monkeypatch.context() as patch:
            patch.setattr(files, "_PAUSE", 0)
            patch.setattr(os, "replace", refusing)
            with pytest.raises(StorageError, match=r"permission denied at MANIFEST.json; nothing was changed"):
                index.add(vectors(5))
        index.add(vectors(3))
    assert len(state_on_disk(tmp_path / "index")) == 13


def test_a_lock_that_was_never_taken_can_be_released(tmp_path, as_on_windows):
    first, second = WriterLock(tmp_path), WriterLock(tmp_path)
    first.acquire()
    with pytest.raises(IndexLockedError):
        second.acquire()
    second.release()
    assert first.held
    assert len(as_on_windows.locked) == 1
    first.release()
    second.acquire()
    second.release()


def test_files_reach_the_disk_itself_on_macos(tmp_path, monkeypatch):
    """There, fsync alone leaves them in the memory of the disk."""
    done = []

    def full(descriptor, operation):
        done.append(operation)
        if len(done) > 1:
            raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))

    monkeypatch.setattr(files, "F_FULLFSYNC", 51)
    monkeypatch.setattr(files, "fcntl", SimpleNamespace(fcntl=full))
    monkeypatch.setattr(os, "fsync", lambda descriptor: done.append("fsync"))
    folder = Folder(tmp_path)
    folder.sync_names()
    assert done == [51]
    folder.sync_names()  # on a file system that has no such operation
    assert done == [51, 51, "fsync"]


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="looks up open files in /proc")
def test_small_segments_take_no_descriptors(tmp_path):
    """Or a thousand small additions would be the last, and the index could not even be opened to compact it."""
    with Index.create(tmp_path / "index", small_hasher()) as index:
        index.add(vectors(5))
        gc.collect()  # indexes of other tests that were not closed
        before = len(os.listdir("/proc/self/fd"))
        for step in range(20):
            index.upsert(vectors(5, seed=step), ids=[7, 900 - step, 1000 + step, 3, 5])
        assert index.info()["segments"] > 10
        with Index.open(tmp_path / "index") as other:
            assert contents(other) == contents(index)
            assert len(os.listdir("/proc/self/fd")) == before


def test_too_many_open_files_are_reported_with_what_to_do(tmp_path):
    wanted = "too many open files; allow more with ulimit -n, and join the segments of the index with compact"
    with pytest.raises(StorageError, match=wanted), clear_os_errors(tmp_path, "read"):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def test_vectors_beyond_four_gigabytes_are_checked_in_their_own_blocks(tmp_path):
    """The numbers of rows have 32 bits, which their places in the file need not fit into."""
    row_bytes, n = 3072, 1_500_000
    path = tmp_path / "vectors"
    with open(path, "wb") as stream:
        stream.truncate(n * row_bytes)  # a hole, which takes no room
    array = np.memmap(path, dtype=np.uint8, mode="r", shape=(n, row_bytes))
    checksums = np.zeros(-(-n * row_bytes // BLOCK_BYTES), dtype=np.uint64)  # that of no block
    rows = np.array([n - 1], dtype=np.uint32)
    checked = CheckedArray(array, ArrayFile("", 0, ""), None, path, checksums)
    seen = []
    checked._check_blocks = lambda blocks: seen.extend(blocks.tolist())
    checked.check_rows(rows)
    assert seen == [(n - 1) * row_bytes // BLOCK_BYTES]


# What reaches the disk of the folder itself


class Recording(Folder):
    operations: list = []  # noqa: RUF012

    def sync_names(self):
        self.operations.append(("sync folder", self.path))
        super().sync_names()

    def unlink(self, name):
        self.operations.append(("unlink", name))
        super().unlink(name)


@pytest.fixture
def operations(monkeypatch):
    monkeypatch.setattr(index_module, "Folder", Recording)
    monkeypatch.setattr(Recording, "operations", [])
    return Recording.operations


def test_the_name_of_a_folder_that_was_there_before_reaches_the_disk_too(tmp_path, monkeypatch):
    (tmp_path / "index").mkdir()
    synced, sync = [], files.sync_folder
    monkeypatch.setattr(files, "sync_folder", lambda path: synced.append(path) or sync(path))
    Index.create(tmp_path / "index", small_hasher()).close()
    assert tmp_path in synced


def test_the_mark_of_an_unfinished_index_does_not_come_back_after_a_power_cut(tmp_path, operations):
    Index.create(tmp_path / "index", small_hasher()).close()
    seen = Recording.operations
    assert ("sync folder", tmp_path / "index") in seen[seen.index(("unlink", "UNFINISHED")) :]


def test_the_hasher_of_an_empty_index_that_lost_its_manifest_is_not_deleted(tmp_path):
    path = tmp_path / "index"
    Index.create(path, small_hasher()).close()
    (path / "MANIFEST.json").unlink()
    names = {entry.name for entry in path.iterdir()}
    with pytest.raises(StorageError, match="has lost its MANIFEST.json"):
        Index.create(path, small_hasher())
    assert {entry.name for entry in path.iterdir()} == names
