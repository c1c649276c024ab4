"""The place where an index lives on the disk: who may write there, and which state is the newest."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import xxhash

from autojacobin.errors import FormatError, StorageError
from autojacobin.hashers import Hasher
from autojacobin.hashers.base import for_index
from autojacobin.hashers.persistence import read_model
from autojacobin.index.array_files import ArrayFile, damaged
from autojacobin.index.changes import State
from autojacobin.index.files import clear_os_errors
from autojacobin.index.knowledge import Knowledge, is_outdated, learn_again
from autojacobin.index.lock import LOCK_NAME, WriterLock
from autojacobin.index.manifest import Manifest, SegmentRecord
from autojacobin.index.segment import Segment, check_ids, open_segment
from autojacobin.index.storage import MANIFEST_NAME, FolderStore

T = TypeVar("T")


class IndexFolder:
    """The folder of an index with its lock.

    ``settled`` is False while the newest state on disk may differ from the one in memory: from the moment the
    lock is taken until the state has been read, and from the beginning of a change until its end is known. The next
    change then begins by reading the state.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(os.path.abspath(path))  # the folder stays the same when the process changes its own
        self.store = FolderStore(self.path)
        self.lock = WriterLock(self.path)
        self.settled = True

    def prepare(self) -> None:
        """Make the folder, unless it is there and is empty or holds an index; take the lock."""
        with clear_os_errors(self.path, "write to"):
            self._check_file()
            if not self.path.parent.is_dir():
                raise StorageError(
                    f"cannot make the index {self.path}: the folder {self.path.parent} does not exist; make it first"
                )
            if not self.path.is_dir():
                self.path.mkdir()
            with suppress(PermissionError):  # the parent of a folder that was there need not be readable
                FolderStore(self.path.parent).files.sync_folder()
            self._check_content()
            self.take_lock()
            try:
                self.settle()
                if self.store.read_manifest() is None:
                    self._check_content()  # once more, now that nobody else writes here
                    self.store.mark_unfinished()
            except BaseException:
                self.release()
                raise

    def check_vacant(self, instead: str) -> None:
        """Raise if the folder holds an index; ``instead`` is the advice that comes before "or give another path"."""
        if self.store.read_manifest() is not None:
            raise StorageError(f"{self.path} holds an index already; {instead}, or give another path")

    def check_new(self, instead: str) -> None:
        """Raise if an index cannot be made here, because of what is here already; as :meth:`check_vacant`."""
        with clear_os_errors(self.path, "write to"):
            self._check_file()
            if self.path.is_dir():
                self.check_vacant(instead)
                self._check_content()

    def take_lock(self) -> None:
        """Become the writer. The state in the folder may be a new one, so it is not settled."""
        with clear_os_errors(self.path, "write to"):
            self.settled = False
            self.lock.acquire()
            try:
                self.store.files.hold()
                self._check_place()
            except BaseException:
                self.release()
                raise

    def release(self) -> None:
        """Give up the right to write."""
        try:
            self.lock.release()
        finally:
            self.store.files.release()

    def settle(self) -> None:
        """Flush the state in the folder to disk, then delete the files that it does not name."""
        self.store.files.sync_folder()  # a rename that was interrupted reaches the disk now
        self._check_place()  # without the lock, these may be the files that another writer is about to commit
        with suppress(FormatError):  # with a manifest that cannot be read, nothing is known to be superfluous
            content = self.store.read_manifest()
            if content is not None:
                named = Manifest.from_bytes(content, self.path / MANIFEST_NAME).names()
                if named <= set(self.store.files.names()):  # else it may be an old one that somebody restored
                    self.store.sweep(named)
            elif not self.store.may_be_lost():
                self.store.sweep(set())
        self.settled = True

    def newest(self, work: Callable[[Manifest], T]) -> T:
        """Give ``work(manifest)`` for the newest manifest; again if a writer deletes files meanwhile."""
        with clear_os_errors(self.path, "read"):
            self._check_file()
            content = self.store.read_manifest()
            while content is not None:
                try:
                    return work(Manifest.from_bytes(content, self.path / MANIFEST_NAME))
                except FileNotFoundError as error:
                    before, content = content, self.store.read_manifest()
                    if content == before:
                        missing = self.path / Path(str(error.filename)).name
                        raise damaged(missing, "no file of that name") from error
            if self.path.is_dir():
                self._check_lost()
            below = sorted(self.path.glob(f"*/{MANIFEST_NAME}"))
            if below:
                raise StorageError(f"there is no index at {self.path}, but one at {below[0].parent}; give that path")
        remedy = "make one with Index.create or `autojacobin index build`"
        raise StorageError(f"there is no index at {self.path}: it has no {MANIFEST_NAME}; {remedy}")

    def read_hasher(self, manifest: Manifest) -> Hasher:
        """Load the hasher of a state."""
        self._checked_content(manifest.hasher)
        path = self.path / manifest.hasher.name
        hasher = for_index(read_model(path))  # load hides that a writer has just deleted the file
        hasher.metric_, hasher.radius_ = manifest.metric.name, manifest.metric.radius
        if (hasher.n_bits, hasher.n_features_in_) != (manifest.n_bits, manifest.n_features):
            raise damaged(path, f"{hasher.n_bits} bits and {hasher.n_features_in_} features")
        return hasher

    def read_knowledge(self, manifest: Manifest) -> Knowledge | None:
        """Read what the index knows about itself, if it has learned."""
        if manifest.knowledge is None:
            return None
        content = self._checked_content(manifest.knowledge)
        try:
            return Knowledge.from_bytes(content)
        except ValueError as error:
            raise damaged(self.path / manifest.knowledge.name, str(error)) from error

    def read_state(self, manifest: Manifest, *, check: bool = True) -> State:
        """Read a state."""
        return State(
            self.read_hasher(manifest), manifest.keep_vectors, self.read_segments(manifest, check=check),
            manifest.next_id, manifest, manifest.partitions, manifest.id_kind, manifest.metric,
            self.read_knowledge(manifest), manifest.n_changed,
        )  # fmt: skip

    def read_segments(self, manifest: Manifest, *, check: bool = True) -> tuple[Segment, ...]:
        """Map the segments of a state."""
        about = manifest.n_bits, manifest.n_features, manifest.keep_vectors, manifest.id_kind
        return tuple(open_segment(self.store.files, record, *about, check=check) for record in manifest.segments)

    def verify(self, manifest: Manifest) -> None:
        """Read every byte of a state, compare it with its checksum, and compare the files with each other."""
        self._checked_content(manifest.hasher)
        self.read_knowledge(manifest)
        segments = self.read_segments(manifest)
        for segment in segments:
            segment.verify_files(self.store.files)
        check_ids(segments, manifest.next_id, self.path / MANIFEST_NAME)

    def write_hasher(self, hasher: Hasher) -> ArrayFile:
        """Write a hasher's file."""
        return self.store.add_file("hasher", "safetensors", hasher.to_bytes())

    def write_knowledge(self, knowledge: Knowledge | None) -> ArrayFile | None:
        """Write what the index knows about itself."""
        if knowledge is None:
            return None
        return self.store.add_file("knowledge", "safetensors", knowledge.to_bytes())

    def commit(self, manifest: Manifest) -> None:
        """Make ``manifest`` the state of the index, if the folder is still the one that was locked."""
        self.store.commit(manifest.to_bytes(), self._check_place)

    def sweep(self, manifest: Manifest) -> None:
        """Delete what a committed manifest does not name; what cannot be deleted waits for the next time."""
        with suppress(OSError):
            self._check_place()
            self.store.sweep(manifest.names())

    def write_whole(self, make: Callable[[], Manifest]) -> Manifest:
        """Write a whole state and commit it; if that fails, delete what was written."""
        self.settled = False
        try:
            manifest = make()
            self.commit(manifest)
            self.sweep(manifest)
            with suppress(OSError):
                self.store.files.sync_folder()  # or the mark of an unfinished index could return after a power cut
            self.settled = True
        except BaseException:
            with suppress(OSError):
                self.settle()
            raise
        return manifest

    def check_writable(self) -> None:
        """Refuse to write if the folder was moved or replaced, or its lock deleted, since it was locked."""
        with clear_os_errors(self.path, "write to"):
            self._check_place()

    def _check_place(self) -> None:
        try:
            seen = self.store.files.status(LOCK_NAME)
        except FileNotFoundError:
            seen = os.stat_result([0] * 10)  # that of no file
        self.lock.check(seen)

    def _checked_content(self, file: ArrayFile) -> bytes:
        content = self.store.files.read(file.name)
        if len(content) != file.size or xxhash.xxh64_hexdigest(content) != file.checksum:
            raise damaged(self.path / file.name, "content that does not match its checksum")
        return content

    def _check_file(self) -> None:
        if self.path.exists() and not self.path.is_dir():
            raise StorageError(f"{self.path} is a file, expected the folder of an index; give the path of a folder")

    def _check_content(self) -> None:
        foreign = self.store.foreign()
        if foreign and self.store.read_manifest() is None:
            raise StorageError(
                f"cannot make the index {self.path}: the folder holds {foreign[0]}, which is no part of an index, "
                "expected an empty folder or a new path; give another path"
            )
        self._check_lost()

    def _check_lost(self) -> None:
        lost = self.store.may_be_lost()
        if lost:
            raise StorageError(
                f"{self.path} has lost its {MANIFEST_NAME}, but holds {lost[0]} and other parts of an index; restore "
                f"{MANIFEST_NAME} from a copy, or save the vectors with: "
                f"autojacobin index repair {self.path} NEW_FOLDER"
            )


def index_files(path: str | os.PathLike[str]) -> set[str] | None:
    """Names of the files that an index consists of, or None if there is no index at the path."""
    home = IndexFolder(path)
    return None if home.store.read_manifest() is None else home.newest(Manifest.names)


@contextmanager
def locked_folder(path: str | os.PathLike[str]) -> Iterator[IndexFolder]:
    """Make the folder of a new index if it does not exist, and hold its lock within the block."""
    home = IndexFolder(path)
    try:
        home.prepare()
        yield home
    finally:
        home.release()


def adopt_segments(
    home: IndexFolder, source: Path, records: Sequence[SegmentRecord], hasher: Hasher, keep_vectors: bool
) -> None:
    """Make an index of segments whose files are in ``source`` and whose ids count up from 0.

    Where the file system has links, the files keep their names in ``source`` too, so that no crash loses one.
    """

    def write() -> Manifest:
        with clear_os_errors(home.path, "write to"):
            for file in (file for record in records for file in record.files.values()):
                _link(source / file.name, home.path / file.name)
        manifest = Manifest(
            1, int(hasher.n_bits), int(hasher.n_features_in_), keep_vectors, sum(record.n for record in records),
            home.write_hasher(hasher), tuple(records),
        )  # fmt: skip
        state = home.read_state(manifest)
        if is_outdated(state):
            manifest = replace(manifest, knowledge=home.write_knowledge(learn_again(state).knowledge))
        return manifest

    home.write_whole(write)


def _link(source: Path, target: Path) -> None:
    if not source.exists():
        raise StorageError(
            f"a worker wrote {source}, which cannot be found from here; give the index a path that every worker sees"
        )
    with suppress(OSError):
        os.link(source, target)
        return
    os.replace(source, target)  # on file systems without links
