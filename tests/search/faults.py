"""A file layer on which one operation, or every operation from one on, goes wrong."""

import errno
import os
from pathlib import Path

from autojacobin.search.storage import Files


class Crash(BaseException):
    """The process is gone; nothing after this reaches the disk."""


class FaultyFiles(Files):
    """Fails at operation number ``at``, in one of these ways.

    ``"error"``, ``"no space"``: the operation fails and has done nothing. ``"torn error"``: a write fails half-way.
    ``"errors from here"``: it and all after it fail. ``"crash"``: the process ends before the operation,
    ``"torn crash"``: in the middle of it.

    ``"power cut, undoing …"``: the machine goes off before the operation. Files that were not synced since they were
    written lose half their content, and of the creations, renames and deletions since the folder was last synced those
    undo themselves that the name says. (What reaches the disk before a sync is up to the machine; POSIX promises no
    order.)
    """

    def __init__(self, at=0, fault="error"):
        self.at, self.fault, self.count, self.gone = at, fault, 0, False
        self.unsynced = set()
        self.undo = []  # (kind of operation, how to take it back)

    def step(self, torn=None):
        """Count an operation, and let it go wrong if it is its turn."""
        if self.gone:
            raise Crash
        self.count += 1
        late = self.fault == "errors from here" and self.at and self.count > self.at
        if self.count != self.at and not late:
            return
        if self.fault.startswith("torn") and torn is not None:
            torn()
        if self.fault in ("error", "torn error", "errors from here"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        if self.fault == "no space":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.gone = True
        if self.fault.startswith("power cut"):
            self.cut_power(self.fault.removeprefix("power cut, undoing "))
        raise Crash

    def cut_power(self, undone):
        for path in self.unsynced:
            if path.exists():
                os.truncate(path, path.stat().st_size // 2)
        for kind, take_back in reversed(self.undo):
            if undone in ("all", kind):
                take_back()

    def create(self, path):
        self.step()
        if not path.exists():
            self.undo.append(("creations", lambda: path.unlink(missing_ok=True)))
        self.unsynced.add(path)
        return super().create(path)

    def write(self, descriptor, content, offset):
        self.step(lambda: os.pwrite(descriptor, content[: len(content) // 2], offset))
        self.unsynced.add(_path_of(descriptor))
        super().write(descriptor, content, offset)

    def sync(self, descriptor):
        self.step()
        self.unsynced.discard(_path_of(descriptor))

    def rename(self, source, target):
        self.step()
        before, content = target.read_bytes() if target.exists() else None, source.read_bytes()

        def take_back():
            source.write_bytes(content)
            _put_back(target, before)

        self.undo.append(("renames", take_back))
        super().rename(source, target)

    def unlink(self, path):
        self.step()
        content = path.read_bytes()
        self.undo.append(("deletions", lambda: _put_back(path, content)))
        super().unlink(path)

    def sync_folder(self, path):
        self.step()
        self.undo = []


def _put_back(path, content):
    if content is None:
        path.unlink(missing_ok=True)
    else:
        path.write_bytes(content)


def _path_of(descriptor):
    return Path(os.readlink(f"/proc/self/fd/{descriptor}"))
