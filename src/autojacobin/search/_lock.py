"""One writer at a time: a lock that the operating system takes back when its owner dies."""

from __future__ import annotations

import os
from pathlib import Path

from autojacobin.errors import IndexLockedError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

__all__ = ["LOCK_NAME", "WriterLock"]

LOCK_NAME = "LOCK"


class WriterLock:
    """The right to write to an index, held until it is released or the process ends, however it ends.

    The lock is ``flock`` on the file ``LOCK``, in which the owner leaves its process number for the message
    that others get. The file is never deleted: whoever waited for a deleted one would hold a lock on nothing.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._descriptor: int | None = None
        self._owner = 0

    @property
    def held(self) -> bool:
        """Whether this object holds the lock; a fork of the process that took it does not."""
        return self._descriptor is not None and self._owner == os.getpid()

    def acquire(self) -> None:
        """Take the lock, or say at once who has it."""
        if fcntl is None:
            raise IndexLockedError(
                f"cannot write to the index {self._folder}: this system has no flock to keep a second writer out; "
                "write it on Linux or macOS, or keep the index in memory"
            )
        descriptor = os.open(self._folder / LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        except BlockingIOError:
            owner = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(descriptor)
            raise IndexLockedError(
                f"the index {self._folder} is being written to by process {owner}, expected no other writer; "
                "close it there, or wait until that process ends"
            ) from None
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor, self._owner = descriptor, os.getpid()

    def release(self) -> None:
        """Give the lock back; nothing happens if it is not held."""
        if self._descriptor is not None:
            if self.held:
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)  # closing alone would leave it to forks of this process
            os.close(self._descriptor)
            self._descriptor = None

    def __del__(self) -> None:
        self.release()
