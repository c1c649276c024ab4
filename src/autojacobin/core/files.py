"""Write files and folders atomically, so that no reader sees half of one, and translate errors of the system."""

import errno
import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from autojacobin.core.addresses import redacted_address
from autojacobin.errors import AutoJacobinError, DataError, DataTypeError, StorageError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

T = TypeVar("T")

HAS_FOLDER_DESCRIPTORS = os.open in os.supports_dir_fd and hasattr(os, "O_DIRECTORY")  # everywhere but on Windows
F_FULLFSYNC: int | None = getattr(fcntl, "F_FULLFSYNC", None)
_MOST_TRIES, _PAUSE = 100, 0.02
_ADDRESS = re.compile("[A-Za-z][A-Za-z0-9+.-]+://")


def as_path(path: Any) -> Path:
    """Convert what the caller passed to a path on this machine."""
    try:
        text = os.fsdecode(path)
    except TypeError:
        raise DataTypeError(f"a path must be text, such as 'base.npy', or a path object, got {path!r:.60}") from None
    if not text or "\0" in text:
        raise DataError(f"a path must be text without NUL characters, and not empty, got {text!r:.60}; give another")
    if _ADDRESS.match(text) and not os.path.exists(text):
        raise DataError(
            f"a path on this machine is expected, got the address {redacted_address(text)}; fetch the file first, or "
            "read it with autojacobin.jobs"
        )
    return Path(text)


def check_not_special(path: Path, doing: str, expected: str = "a file") -> None:
    """Raise an error if a folder, pipe or device is at a path: a pipe may keep a reader waiting without end."""
    if os.path.exists(path) and not stat.S_ISREG(mode := os.stat(path).st_mode):
        what = "a folder" if stat.S_ISDIR(mode) else "a pipe or a device"
        raise StorageError(f"cannot {doing} {path}: it is {what}, expected {expected}; give the path of a file")


def no_folder(folder: Path) -> str:
    """Why there is no folder at a path, and what to do; empty if there is one."""
    if os.path.isdir(folder):
        return ""
    above = next((one for one in (folder, *folder.parents) if os.path.exists(one)), folder)
    if os.path.exists(above) and not os.path.isdir(above):
        return f"{above} is a file, expected a folder; give another path"
    return f"the folder {folder} does not exist; make it first"


def write_atomically(path: str | os.PathLike[str], content: bytes, *, overwrite: bool = True) -> None:
    """Replace the file at ``path`` in one step; without ``overwrite``, one that exists is a StorageError."""
    target = as_path(path)
    if not overwrite and os.path.lexists(target):
        raise StorageError(f"{target} exists already; pass overwrite=True to replace it, or give another path")
    with atomic_writer(target) as stream:
        stream.write(content)


@contextmanager
def atomic_writer(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a stream whose content is at ``path`` when the block ends; if it ends in an error, nothing is written there.

    The bytes go to a temporary file in the same folder (the stream's ``name``), reach the disk, and are then renamed
    over the target. The folder is synced too, or the rename itself could be lost.
    """
    target = as_path(path)
    if problem := no_folder(target.parent):
        raise FileNotFoundError(f"cannot write {target}: {problem}")
    # not mkstemp, whose files only their owner may read
    temporary = os.fspath(target.parent / f".{secrets.token_hex(8)}.part")
    try:
        with open(temporary, "x+b") as stream:
            yield stream
            stream.flush()
            sync(stream.fileno())
        patiently(lambda: os.replace(temporary, target))
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    sync_folder(target.parent)


@contextmanager
def whole_folder(target: Path, remedy: str) -> Iterator[Path]:
    """Give a new folder beside ``target``, which is renamed to it if the block succeeds, and removed otherwise.

    ``target`` may be an empty folder. If it is anything else by then, that is a FileExistsError. Other errors of the
    disk are a StorageError that ends with ``remedy``.
    """
    # not mkdtemp, whose folders only their owner may read
    temporary = target.parent / f".{target.name}-{secrets.token_hex(8)}.part"
    try:
        temporary.mkdir()
        try:
            yield temporary
            for file in temporary.rglob("*"):
                sync_folder(file) if file.is_dir() else _sync_file(file)
            sync_folder(temporary)
            _move(temporary, target)
            sync_folder(target.parent)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    except (FileExistsError, StorageError):
        raise
    except OSError as error:
        raise StorageError(f"cannot write {target}: {os_reason(error)}; {remedy}") from error


@contextmanager
def clear_os_errors(task: str, advice: str | Callable[[OSError], str]) -> Iterator[None]:
    """Raise an error of the operating system as a StorageError, ``cannot TASK: REASON; ADVICE``.

    ``advice`` may also be a function that makes all that follows the colon. Errors of this library pass through.
    """
    try:
        yield
    except AutoJacobinError:
        raise
    except OSError as error:
        message = f"cannot {task}: "
        if error.strerror is None and str(error).startswith(message):  # the message of atomic_writer is complete
            message = str(error)
        else:
            message += f"{os_reason(error)}; {advice}" if isinstance(advice, str) else advice(error)
        clear = StorageError(message)
        clear.errno = error.errno
        raise clear from error


def os_reason(error: OSError) -> str:
    """Give what the operating system says, without the number and the path."""
    return (error.strerror or str(error)).lower()


def _move(temporary: Path, target: Path) -> None:
    try:
        if target.is_dir():
            target.rmdir()  # Windows does not rename over an empty folder
        os.rename(temporary, target)
    except OSError as error:
        if error.errno in (errno.EEXIST, errno.ENOTEMPTY):
            raise FileExistsError(errno.EEXIST, "something is there already", str(target)) from error
        raise


def patiently(operation: Callable[[], T]) -> T:
    """Open or replace a file; on Windows, where this fails while another process has it open, for two seconds."""
    for _ in range(0 if HAS_FOLDER_DESCRIPTORS else _MOST_TRIES):
        try:
            return operation()
        except PermissionError:
            time.sleep(_PAUSE)
    return operation()


def sync(descriptor: int) -> None:
    """Flush the content of a file, or the names in a folder, to disk."""
    if F_FULLFSYNC is not None:  # on macOS, fsync leaves the data in the memory of the disk itself
        with suppress(OSError):  # of a file system that has no such operation
            fcntl.fcntl(descriptor, F_FULLFSYNC)
            return
    os.fsync(descriptor)


def sync_folder(folder: Path) -> None:
    """Flush the names in a folder to disk. Windows does this by itself at an unknown time."""
    if not HAS_FOLDER_DESCRIPTORS:
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        sync(descriptor)
    finally:
        os.close(descriptor)


def _sync_file(file: Path) -> None:
    with file.open("rb+") as stream:
        sync(stream.fileno())
