"""One writer at a time: a lock that the operating system takes back when its owner dies."""

import os
import stat
import weakref
from contextlib import suppress
from pathlib import Path

from autojacobin.errors import IndexLockedError, StorageError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]
try:
    import msvcrt
except ImportError:  # everywhere else
    msvcrt = None  # type: ignore[assignment]

LOCK_NAME = "LOCK"
_FLAGS = os.O_RDWR | os.O_CREAT
for _name in ("O_BINARY", "O_NOFOLLOW", "O_NONBLOCK"):  # no system has all of them
    _FLAGS |= getattr(os, _name, 0)
_LOCKED_BYTE = 2**30  # Windows locks bytes, which others then cannot read; this one is beyond the process number


class WriterLock:
    """The right to write to a folder, held until it is released or the process ends, however it ends.

    The lock is on the file ``LOCK``, in which the owner leaves its process number for the message that others get.
    The file is never deleted by the library: a process that waits for a deleted file would hold a lock on nothing.
    If somebody else deletes it, :meth:`check` says so before the next change.
    """

    held = False
    _descriptor: int | None = None

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def acquire(self) -> None:
        """Take the lock, or raise an error that names its owner."""
        _LOCKS.add(self)  # before there is anything that a fork could inherit
        self.release()  # the rest of an interrupted attempt
        try:
            self._descriptor = self._open()
            _lock(self._descriptor)
            if not self._is_in_place():
                raise StorageError(f"cannot lock {self._folder}: its {LOCK_NAME} was replaced meanwhile; repeat")
            os.ftruncate(self._descriptor, 0)
            os.write(self._descriptor, f"{os.getpid()}\n".encode())
            self.held = True
        except BlockingIOError:
            assert self._descriptor is not None
            os.lseek(self._descriptor, 0, os.SEEK_SET)
            owner = os.read(self._descriptor, 32).decode("ascii", "replace").strip() or "unknown"
            self.release()
            raise IndexLockedError(
                f"the index {self._folder} is being written to by process {owner}, expected no other writer; "
                "close it there, or wait until that process ends"
            ) from None
        except BaseException:
            self.release()
            raise

    def check(self, files: os.stat_result | None = None) -> None:
        """Refuse to go on if the locked file is no longer the one at the path of the folder.

        ``files`` is the status of ``LOCK`` as seen by the descriptor through which files are written.
        """
        if not self.held or not self._is_in_place(files):
            raise StorageError(
                f"cannot write to the index {self._folder}: its {LOCK_NAME} is no longer the file that this writer "
                "locked, because it was deleted or the folder was moved or replaced; nothing was changed; "
                "open the index again"
            )

    def release(self) -> None:
        """Release the lock, if it is held."""
        self.held = False  # first: an exception from outside must not leave it set without the lock
        try:
            if self._descriptor is not None:
                _unlock(self._descriptor)
        finally:
            self.forget()

    def forget(self) -> None:
        """Close this process's copy of the lock, which leaves it to the process that has another one."""
        self.held = False
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            os.close(descriptor)

    def __del__(self) -> None:
        self.release()

    def _open(self) -> int:
        path = self._folder / LOCK_NAME
        if os.path.lexists(path) and not stat.S_ISREG(os.lstat(path).st_mode):
            raise StorageError(f"cannot lock {self._folder}: {path} is a link or no file; delete it, and repeat")
        return os.open(path, _FLAGS, 0o666)

    def _is_in_place(self, files: os.stat_result | None = None) -> bool:
        assert self._descriptor is not None
        own = os.fstat(self._descriptor)
        try:
            found = os.stat(self._folder / LOCK_NAME, follow_symlinks=False)
        except OSError:
            return False
        return os.path.samestat(own, found) and (files is None or os.path.samestat(own, files))


def _lock(descriptor: int) -> None:
    if fcntl is not None:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return
    os.lseek(descriptor, _LOCKED_BYTE, os.SEEK_SET)
    try:
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined,unused-ignore]
    except OSError as error:
        raise BlockingIOError(*error.args) from error
    finally:
        os.lseek(descriptor, 0, os.SEEK_SET)


def _unlock(descriptor: int) -> None:
    """Release the lock at once: after a close, a fork that is just starting would hold it, and Windows for a while."""
    if fcntl is not None:
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        return
    with suppress(OSError):  # it was not locked
        os.lseek(descriptor, _LOCKED_BYTE, os.SEEK_SET)
        msvcrt.locking(descriptor, msvcrt.LK_UNLCK, 1)  # type: ignore[attr-defined,unused-ignore]


_LOCKS: weakref.WeakSet[WriterLock] = weakref.WeakSet()


def _let_go() -> None:
    """Close a forked child's copies of the locks, which would outlive the parent that holds them."""
    for lock in list(_LOCKS):
        lock.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go)
