"""The holder of an index's state: it decides who may change the state, and writes each change to disk."""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy.typing as npt

from autojacobin.errors import AutoJacobinError, DataError, DataTypeError, FormatError, StorageError
from autojacobin.index.changes import Change, State, live_numbers, n_changed
from autojacobin.index.files import clear_os_errors
from autojacobin.index.folder import IndexFolder
from autojacobin.index.knowledge import CHANGED_SHARE, Knowledge, is_outdated, learn, learn_again
from autojacobin.index.manifest import Manifest
from autojacobin.index.segment import Part, Segment
from autojacobin.index.segment_writer import write_segments
from autojacobin.index.storage import MANIFEST_NAME, MemoryStore, Store

__all__ = ["StateHolder", "write_state"]

_log = logging.getLogger("autojacobin.index")

Held = TypeVar("Held", bound="StateHolder")


class StateHolder:
    """A state in memory, or the newest one of a folder, and its changes, one at a time."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._folder: IndexFolder | None = None
        self._check = True
        self._closed = False
        self._new_mutex()

    @property
    def path(self) -> Path | None:
        """Folder of the index, or None if it is in memory."""
        return self._folder.path if self._folder is not None else None

    def verify(self) -> None:
        """Read every byte of the newest state on disk, and raise a FormatError that names the first damaged file.

        Structure is checked too: ids ascend, live ids and names are unique, rows are within the vectors, and sizes
        agree.
        """
        self._check_open()
        if self._folder is not None:
            folder = IndexFolder(self._folder.path)  # a new object: another thread may close self._folder meanwhile
            folder.newest(folder.verify)

    def refresh(self) -> None:
        """Switch to the newest state on disk. This does nothing for an index in memory."""
        with self._mutex:
            self._check_open()
            if self._folder is not None:
                self._read_again(self._folder)

    @property
    def next_id(self) -> int:
        """The id that the next vector gets if none is given for it."""
        return int(self._open_state().next_id)

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Let no other thread change the index while the block runs."""
        with self._mutex:
            yield

    def release(self) -> None:
        """Let other processes write to the folder until the next change of this index, which takes the lock again."""
        with self._mutex:
            if self._folder is not None:
                self._folder.release()

    def close(self) -> None:
        """Close the files and release the lock; the index cannot be used afterwards."""
        with self._mutex:
            try:
                self._closed = True  # set first, so that whoever reads the empty state sees that the index is closed
                self._state = replace(self._state, segments=())
            finally:
                if self._folder is not None:
                    self._folder.release()

    def __enter__(self: Held) -> Held:
        self._check_open()
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        if self._folder is not None:
            raise DataTypeError(
                f"an index in a folder cannot be copied or pickled, got {self!r}, because its lock belongs to one "
                "object; use Index.open(index.path) for another one, or Index.save for a copy"
            )
        return {name: value for name, value in self.__dict__.items() if name not in ("_mutex", "_learning", "_learned")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._new_mutex()

    def _new_mutex(self) -> None:
        self._mutex = threading.RLock()
        self._learning = threading.RLock()
        self._learned: dict[str, tuple[Any, dict[Any, int], Any]] = {}
        self._changing = False
        _INDEXES.add(self)

    def _placed(
        self: Held, path: str | os.PathLike[str], parts: Iterator[Part], next_id: int, id_kind: str | None = None
    ) -> Held:
        """Move an empty index into a folder, with parts that are encoded already, as in ``repair``; or fail."""
        folder = IndexFolder(path)
        try:
            folder.prepare()
            folder.check_vacant("open it with Index.open")
            self._state = write_state(replace(self._state, next_id=next_id, id_kind=id_kind), folder, parts)
        except BaseException:
            folder.release()
            raise
        self._folder = folder
        return self

    def _open_state(self) -> State:
        """The state now, after a check that it is not the empty one of a closed index."""
        state = self._state
        self._check_open()
        return state

    def _know(self, state: State, distance: str) -> Knowledge:
        """What a state knows about itself for a distance.

        What is stored is for the default distance. What others need is learned now and kept in memory.
        """
        if distance == state.hasher.distances[0] and state.knowledge is not None:
            known: Knowledge = state.knowledge
            return known
        with self._learning:
            live = live_numbers(state.segments)
            hasher, before, known = self._learned.get(distance, (None, {}, None))
            if hasher is not state.hasher or n_changed(before, live) > CHANGED_SHARE * known.n:
                known = learn(state, distance, None if state.knowledge is None else state.knowledge.own_queries)
                self._learned[distance] = state.hasher, live, known
            return known

    def _learn_from(self, queries: npt.NDArray[Any]) -> None:
        """Learn from the user's queries, and store what was learned if the folder can be written to."""

        def change(state: State, _: Store) -> Change:
            return Change(state.segments, state.next_id, 0, learns=True, queries=queries)

        try:
            self._change(change)
        except (StorageError, OSError):
            state = self._open_state()
            known = learn(state, state.hasher.distances[0], queries)
            self._state = replace(state, knowledge=known, n_changed=0)

    def _check_open(self) -> None:
        if self._closed:
            raise DataError("this index is closed; open it again with Index.open")

    def _change(self, change: Callable[[State, Store], Change | None]) -> None:
        """Replace the state by the outcome of ``change``, atomically and one change at a time.

        The new state is adopted as soon as it is committed, before files of the old one are deleted. After any
        exception, the state is read from disk again: at once or, if that fails too, at the beginning of the next
        change.
        """
        with self._mutex:
            self._check_open()
            if self._changing:
                raise DataError(
                    "an index cannot be changed while the same thread changes it, got a change by a signal handler or "
                    "by the iterator that add reads from; make one change after the other"
                )
            try:
                self._changing = True
                if self._folder is None:
                    self._change_in_memory(change)
                else:
                    self._change_on_disk(self._folder, change)
            finally:
                self._changing = False

    def _change_in_memory(self, change: Callable[[State, Store], Change | None]) -> None:
        made = change(self._state, MemoryStore())
        if made is not None:
            self._state = _following(self._state, made)

    def _change_on_disk(self, folder: IndexFolder, change: Callable[[State, Store], Change | None]) -> None:
        if not folder.lock.held:
            folder.take_lock()
        folder.check_writable()
        if not folder.settled:
            self._settle(folder)
        try:
            folder.settled = False
            state = self._state
            assert state.manifest is not None
            made = change(state, folder.store)
            if made is not None:
                new = _following(state, made)
                records = tuple(segment.record for segment in new.segments)
                knowledge = state.manifest.knowledge
                if new.knowledge is not state.knowledge:
                    knowledge = folder.write_knowledge(new.knowledge)
                manifest = state.manifest.followed_by(
                    segments=records, next_id=new.next_id, id_kind=new.id_kind, knowledge=knowledge,
                    n_changed=new.n_changed,
                )  # fmt: skip
                if made.hasher is not None:
                    manifest = replace(
                        manifest, hasher=folder.write_hasher(made.hasher), n_bits=int(made.hasher.n_bits)
                    )
                folder.commit(manifest)
                self._state = replace(new, manifest=manifest)
                folder.sweep(manifest)
            folder.settled = True
        except BaseException:
            with suppress(OSError, AutoJacobinError):  # then the next change begins with it
                self._settle(folder)
            raise

    def _settle(self, folder: IndexFolder) -> None:
        """Adopt the state on the disk, after a change that ended in an exception or when the lock was just taken."""
        with clear_os_errors(folder.path, "write to"):
            folder.store.files.sync_folder()
            self._read_again(folder)
            folder.settle()

    def _read_again(self, folder: IndexFolder) -> None:
        """Adopt the newest state on the disk."""

        def read(manifest: Manifest) -> State:
            before = self._state
            if manifest == before.manifest:
                return before
            state = folder.read_state(manifest, check=self._check)
            same = before.manifest is not None and before.manifest.hasher == manifest.hasher
            return replace(state, hasher=before.hasher) if same else state

        self._state = folder.newest(read)


_INDEXES: weakref.WeakSet[StateHolder] = weakref.WeakSet()


def _renew_mutexes() -> None:
    """Give a forked child mutexes of its own; another thread of the parent may have held the old ones."""
    for index in list(_INDEXES):
        index._new_mutex()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_mutexes)


def _following(state: State, made: Change) -> State:
    """The state that a change makes, with what it has learned about itself."""
    new = made.applied_to(state)
    if not made.learns and not is_outdated(new):
        return new
    try:
        return learn_again(new, made.queries)
    except FormatError as error:  # a search that needs the damaged vectors will say so
        _log.warning("the index did not learn about itself: %s", error)
        return new


def write_state(state: State, folder: IndexFolder, parts: Iterator[Part]) -> State:
    """Write a whole state and more parts into a folder whose lock is held, and return the state as it is there."""
    segments: tuple[Segment, ...] = ()

    def write() -> Manifest:
        nonlocal segments
        content = folder.store.read_manifest()
        before = 0 if content is None else Manifest.from_bytes(content, folder.path / MANIFEST_NAME).generation
        hasher = folder.write_hasher(state.hasher)
        copies = tuple(segment.copied_to(folder.store) for segment in state.segments)
        segments = copies + tuple(write_segments(parts, folder.store, state.hasher))
        return Manifest(
            before + 1, int(state.hasher.n_bits), int(state.hasher.n_features_in_), state.keep_vectors,
            state.next_id, hasher, tuple(segment.record for segment in segments), state.partitions, state.id_kind,
            state.metric, folder.write_knowledge(state.knowledge), state.n_changed,
        )  # fmt: skip

    manifest = folder.write_whole(write)
    return replace(state, segments=segments, manifest=manifest)
