"""The folder of an index, in which one operation, or every operation from one on, goes wrong."""

import errno
import os
from pathlib import Path

from autojacobin.index.folder import Folder


class Crash(BaseException):
    """The process is gone; nothing after this reaches the disk."""


class Interrupt(BaseException):
    """An exception from outside, such as Ctrl-C or a time limit. The process goes on with the same objects."""


class Faults:
    """Makes operation number ``at`` fail, in one of these ways.

    ``"error"``, ``"no space"``: the operation fails and has done nothing. ``"torn error"``: a write fails half-way.
    ``"errors from here"``: it and all after it fail. ``"crash"``: the process ends before the operation,
    ``"torn crash"``: in the middle of it. ``"interrupt before"``, ``"interrupt after"``: an exception arrives before
    the operation or after it, and the process goes on.

    ``"power cut, undoing …"``: the machine goes off before the operation. Files that were not synced since they were
    written lose half their content, and of the creations, renames and deletions since the folder was last synced those
    undo themselves that the name says. (What reaches the disk before a sync is up to the machine; POSIX promises no
    order.)
    """

    def __init__(self, at=0, fault="error"):
        self.at, self.fault, self.count, self.gone = at, fault, 0, False
        self.unsynced = set()
        self.undo = []  # (kind of operation, how to take it back)

    def folder(self, path):
        return FaultyFolder(path, self)

    def step(self, work, torn=None):
        """Count an operation, and do it, unless it is its turn to go wrong."""
        if self.gone:
            raise Crash
        self.count += 1
        late = self.fault == "errors from here" and self.at and self.count > self.at
        if self.count != self.at and not late:
            return work()
        if self.fault == "interrupt after":
            work()
        if self.fault.startswith("interrupt"):
            raise Interrupt
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


class FaultyFolder(Folder):
    def __init__(self, path, faults):
        super().__init__(path)
        self.faults = faults

    def create(self, name):
        path = self.path / name

        def work():
            if not path.exists():
                self.faults.undo.append(("creations", lambda: path.unlink(missing_ok=True)))
            self.faults.unsynced.add(path)
            return Folder.create(self, name)

        return self.faults.step(work)

    def write(self, descriptor, content, offset):
        def work():
            self.faults.unsynced.add(_path_of(descriptor))
            Folder.write(self, descriptor, content, offset)

        self.faults.step(work, lambda: os.pwrite(descriptor, content[: len(content) // 2], offset))

    def sync(self, descriptor):
        self.faults.step(lambda: self.faults.unsynced.discard(_path_of(descriptor)))

    def rename(self, source, target):
        def work():
            old, new = self.path / source, self.path / target
            before, content = new.read_bytes() if new.exists() else None, old.read_bytes()

            def take_back():
                old.write_bytes(content)
                _put_back(new, before)

            self.faults.undo.append(("renames", take_back))
            Folder.rename(self, source, target)

        self.faults.step(work)

    def unlink(self, name):
        def work():
            path = self.path / name
            content = path.read_bytes()
            self.faults.undo.append(("deletions", lambda: _put_back(path, content)))
            Folder.unlink(self, name)

        self.faults.step(work)

    def sync_names(self):
        self.faults.step(lambda: self.faults.undo.clear())


def _put_back(path, content):
    if content is None:
        path.unlink(missing_ok=True)
    else:
        path.write_bytes(content)


def _path_of(descriptor):
    return Path(os.readlink(f"/proc/self/fd/{descriptor}"))
