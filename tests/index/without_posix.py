"""Takes from a process what Windows does not have, and then works with indexes, models and files.

    python -m tests.index.without_posix FOLDER

Windows has no flock, no pwrite, no descriptor of a folder and no fork. It opens files for text unless told otherwise,
renames onto nothing that exists unless told to, and neither deletes nor renames what is open or mapped. All of that is
done to the functions of ``os`` before the library is imported. Locks of bytes are those of Linux, which belong to a
descriptor too.
"""

import errno
import fcntl
import os
import shutil
import struct
import sys
import tempfile
import types
from pathlib import Path

import numba  # noqa: F401  other libraries find out for themselves where they are, so they are imported before
import numpy as np
import pyarrow  # noqa: F401
import sklearn.decomposition  # noqa: F401
import typer  # noqa: F401

MISSING = (
    "pwrite", "pwritev", "pread", "preadv", "fork", "register_at_fork", "sched_getaffinity", "getuid", "geteuid",
    "fchmod", "fchown", "O_DIRECTORY", "O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC",
)  # fmt: skip
BINARY = 0x8000  # O_BINARY of Windows


def take_away():
    """Leave what Windows has."""
    sys.modules["msvcrt"] = byte_locks(fcntl.fcntl)
    for name in ("fcntl", "resource", "pwd", "grp", "termios"):
        sys.modules[name] = None
    for name in MISSING:
        vars(os).pop(name, None)
    os.O_BINARY = BINARY
    tempfile._bin_openflags |= BINARY
    shutil._use_fd_functions = False
    os.supports_dir_fd = set()
    os.open = opening(os.open)
    os.listdir = refusing_descriptors(os.listdir)
    os.unlink = os.remove = refusing_open_files(os.unlink)
    os.rename = refusing_open_files(os.rename, onto=True)
    os.replace = refusing_open_files(os.replace)


def byte_locks(control):
    """Stand in for msvcrt: a lock of one byte at the place of the descriptor, refused at once if it is taken."""

    def locking(descriptor, mode, n_bytes):
        kind = fcntl.F_UNLCK if mode == module.LK_UNLCK else fcntl.F_WRLCK
        at = os.lseek(descriptor, 0, os.SEEK_CUR)
        try:
            control(descriptor, 37, struct.pack("hhqqi4x", kind, os.SEEK_SET, at, n_bytes, 0))  # F_OFD_SETLK
        except OSError:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES)) from None

    module = types.ModuleType("msvcrt")
    module.LK_UNLCK, module.LK_NBLCK, module.locking = 0, 2, locking
    return module


def opening(function):
    def opened(path, flags, mode=0o777, *, dir_fd=None):
        if dir_fd is not None:
            raise NotImplementedError("dir_fd unavailable on this platform")
        if os.path.isdir(path):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        if flags & (os.O_WRONLY | os.O_RDWR) and not flags & BINARY:
            raise AssertionError(f"{path} is opened for text, in which Windows changes the ends of lines")
        return function(path, flags & ~BINARY, mode)

    return opened


def refusing_descriptors(function):
    def listed(path="."):
        if isinstance(path, int):
            raise TypeError("listdir: path should be string, bytes, os.PathLike or None, not int")
        return function(path)

    return listed


def refusing_open_files(function, onto=False):
    def moved(*paths, **descriptors):
        if any(value is not None for value in descriptors.values()):
            raise NotImplementedError("dir_fd unavailable on this platform")
        if onto and os.path.lexists(paths[1]):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), paths[1])
        for path in map(os.path.realpath, paths):
            if any(used == path or used.startswith(path + os.sep) for used in in_use()):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return function(*paths)

    return moved


def in_use():
    """Paths of the files that are open or mapped."""
    found = set()
    for number in os.listdir("/proc/self/fd"):
        try:
            found.add(os.readlink(f"/proc/self/fd/{number}"))
        except OSError:  # that of the listing itself
            continue
    lines = Path("/proc/self/maps").read_text().splitlines()
    return found | {line.split(maxsplit=5)[5] for line in lines if line.count(" ") > 5 and "/" in line}


def work(folder):
    """Change and read an index in every way, with files large enough to be mapped."""
    from autojacobin import LSH, Index, load
    from autojacobin.errors import IndexLockedError
    from autojacobin.index.repair import repair

    rng = np.random.default_rng(0)
    rows = rng.normal(size=(3_000, 32)).astype(np.float32)
    hasher = LSH(64, random_state=0).fit(rows)
    for _ in range(2):  # the second replaces the first
        hasher.save(folder / "model.safetensors", overwrite=True)
    hasher = load(folder / "model.safetensors")
    path = folder / "index"
    with Index.create(path, hasher) as index, Index.open(path) as reader:
        index.add(rows[:2_000], payload={"number": np.arange(2_000)})
        with Index.open(path) as second:  # holds the files of this state
            assert is_refused(lambda: second.add(rows[:1]), IndexLockedError)
            index.add(rows[2_000:], ids=np.arange(5_000, 6_000), payload={"number": np.arange(1_000)})
            index.update([5_000], rows[:1])
            index.remove(np.arange(0, 2_000, 2))
            index.compact()
            assert second.search(rows[:5], 1)[1].tolist() == [[0], [1], [2], [3], [4]]
        assert len(reader) == 0
        for _ in range(2):
            index.save(folder / "saved", overwrite=True)
        odd = np.concatenate([np.arange(1, 2_000, 2), np.arange(5_000, 6_000)])
        assert index.ids.tolist() == odd.tolist()
    for kept in (path, folder / "saved"):
        with Index.open(kept) as index:
            index.verify()
            assert index.ids.tolist() == odd.tolist()
            assert index.search(rows[1:6:2], 1)[1].tolist() == [[1], [3], [5]]
            assert index.get([5_001]).to_pylist() == [{"number": 1}]
    index = reader = second = None
    with Index.open(path) as index:
        index.add(rows[:1], payload={"number": [7]})
        named = index._state.manifest.names() | {"LOCK", "MANIFEST.json"}
        assert set(os.listdir(path)) == named  # what could not be deleted while it was open is gone now
    assert repair(path, folder / "repaired").lost == 0
    command_line(folder, rows)


def command_line(folder, rows):
    from autojacobin.cli import main

    os.chdir(folder)
    np.save("base.npy", rows)
    commands = (
        "train base.npy new.safetensors --method itq --bits 16", "index build new.safetensors base.npy built",
        "index add built base.npy", "index compact built", "search built base.npy found.npz -k 1",
    )  # fmt: skip
    for command in commands:
        sys.argv = ["autojacobin", *command.split(), "--quiet"]
        try:
            main()
        except SystemExit as end:
            assert not end.code, command
    with np.load("found.npz") as found:
        assert len(found["ids"]) == len(rows)


def is_refused(change, error):
    try:
        change()
    except error:
        return True
    return False


if __name__ == "__main__":
    take_away()
    work(Path(sys.argv[1]).resolve())
    print("done")
