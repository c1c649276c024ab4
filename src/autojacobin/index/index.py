"""An index: vectors in, neighbours out, in memory or on disk."""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from html import escape
from pathlib import Path
from timeit import timeit
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt

from autojacobin.codes import BitOrder, Codes
from autojacobin.core.files import whole_folder
from autojacobin.core.parallel import Progress
from autojacobin.core.progress import printed_progress
from autojacobin.core.vectors import as_matrix
from autojacobin.errors import AutoJacobinError, DataError, DataTypeError, StorageError
from autojacobin.hashers import Hasher, OwnCodes, PartitionedHasher
from autojacobin.hashers.base import check_fitted, for_index
from autojacobin.hashers.list_hasher import ListHasher
from autojacobin.hashers.parameters import check_parameters
from autojacobin.index import changes, growth
from autojacobin.index.calibration import is_outdated, learn
from autojacobin.index.execution import DeviceStore, in_kind
from autojacobin.index.filters import Allowed, allowed_by
from autojacobin.index.folder import Folder, clear_os_errors
from autojacobin.index.knowledge import EXACT_UP_TO, Knowledge
from autojacobin.index.manifest import Manifest
from autojacobin.index.metric import Metric
from autojacobin.index.payload import as_payload, empty_like, from_frame, matching, neighbours_frame, replaced
from autojacobin.index.plan import Plan, checked_queries, make_plan, packed
from autojacobin.index.segment import Part
from autojacobin.index.state import NewIds, State, codes_at, drawn, fetch, in_id_order, live_ids, payload_of
from autojacobin.search.arguments import as_count

_log = logging.getLogger("autojacobin.index")

_MOST_KEPT = 1_000  # plans of a state
_FEWEST_TO_LEARN = 100  # queries of the user


class Index:
    """Vectors that can be searched by their codes, and re-ranked by their Euclidean distance.

    ``Index(hasher)`` lives in memory and is written by :meth:`save`. An index from :meth:`create` or :meth:`open`
    lives in a folder: every change is on the disk before the call returns, and a crash at any instant leaves the state
    of the last one that did. Many processes may read it while one writes.

    Several threads may share an index. Searches run side by side and see the state at their start; calls that change
    the index wait for each other. After an exception, even Ctrl-C, you can go on using the index: an interrupted change
    is in it either as a whole or not at all. An index in memory can be copied and pickled; one in a folder cannot.

    Parameters
    ----------
    hasher : Hasher
        A fitted hasher. The index keeps a copy, so later changes of the hasher have no effect.
    keep_vectors : bool
        Whether to keep the vectors themselves, which re-ranking needs.
    partitions : int, "auto" or None, default=None
        Whether to put the codes into inverted lists, of which a search scans a few. ``"auto"`` makes about 4 √n lists
        as soon as there are 65,536 vectors, and more as the index grows; a number of lists is made when there are 32
        vectors for each. :meth:`add` then learns the lists and rewrites the index. Needs ``keep_vectors``, and codes of
        any method but SphericalHashing.
    metric : {"euclidean", "cosine", "inner_product"} or Metric, optional
        How the distance of vectors is measured; by default as the hasher was trained for, or Euclidean. With
        ``"cosine"``, the index keeps vectors divided by their lengths, and searches return similarities, the largest
        first. :meth:`Metric.fit` trains a hasher for a metric, and :meth:`from_vectors` does all of it.

    Examples
    --------
    >>> import numpy as np
    >>> from autojacobin import LSH
    >>> from autojacobin.index.index import Index
    >>> X = np.random.default_rng(0).normal(size=(1000, 16)).astype(np.float32)
    >>> index = Index(LSH(32, random_state=0).fit(X))
    >>> index.add(X)
    >>> distances, ids = index.search(X[:2], k=3)
    >>> ids[:, 0]
    array([0, 1])
    >>> index.remove([0])
    >>> len(index), 0 in index
    (999, False)
    """

    def __init__(
        self,
        hasher: Hasher,
        *,
        keep_vectors: bool = True,
        partitions: SupportsIndex | str | None = None,
        metric: str | Metric | None = None,
    ) -> None:
        if not isinstance(hasher, Hasher):
            raise DataTypeError(f"an index needs a fitted hasher, got {type(hasher).__name__}; pass for example an ITQ")
        check_fitted(hasher)
        if isinstance(hasher, OwnCodes):
            check_parameters(hasher, hasher._limits)
        lists = growth.as_partitions(partitions, hasher, bool(keep_vectors))
        measure, kept = Metric.for_hasher(hasher, metric), for_index(hasher)
        kept.metric_, kept.radius_ = measure.name, measure.radius
        self._state = State(kept, bool(keep_vectors), partitions=lists, metric=measure)
        self._folder: Folder | None = None
        self._check = True
        self._closed = False
        self._new_mutex()

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        hasher: Hasher | None = None,
        *,
        n_bits: SupportsIndex | None = None,
        bitorder: BitOrder = "little",
        keep_vectors: bool = True,
        partitions: SupportsIndex | str | None = None,
        metric: str | Metric | None = None,
    ) -> Index:
        """Make an empty index in a new or empty folder.

        The parameters are those of the class. Give ``n_bits`` in place of a hasher to add codes that were made
        elsewhere, as packed bytes with the bits of each byte in ``bitorder``.
        """
        if (hasher is None) == (n_bits is None):
            raise DataError("an index has either a hasher or codes of your own; give a hasher, or n_bits")
        if n_bits is not None:
            hasher, keep_vectors = OwnCodes(as_count("n_bits", n_bits), bitorder=bitorder), False
        assert hasher is not None
        index = cls(hasher, keep_vectors=keep_vectors, partitions=partitions, metric=metric)
        return index._placed(path, iter(()), 0)

    @classmethod
    def from_codes(
        cls,
        codes: Any,
        *,
        n_bits: SupportsIndex | None = None,
        bitorder: BitOrder = "little",
        ids: Any = None,
        payload: Any = None,
    ) -> Index:
        """Make an index in memory of codes that were made elsewhere.

        Such an index keeps no vectors. Its queries are packed codes too, or, with ``distance="asymmetric"``, real
        values with a column for each bit. :meth:`add` takes packed codes.

        Parameters
        ----------
        codes : Codes, or array of uint8 of shape (n, bytes)
            Codes, packed into bytes.
        n_bits, bitorder
            As in :meth:`Codes.from_packed`.
        ids, payload
            As in :meth:`add`.
        """
        if isinstance(codes, Codes):
            n_bits, bitorder = codes.n_bits, "little"
        elif n_bits is None:
            n_bits = 8 * as_matrix(codes, "Index").shape[1]
        index = cls(OwnCodes(as_count("n_bits", n_bits), bitorder=bitorder), keep_vectors=False)
        index.add(codes, ids, payload)
        return index

    @classmethod
    def from_vectors(
        cls,
        vectors: Any,
        hasher: Hasher | None = None,
        *,
        path: str | os.PathLike[str] | None = None,
        ids: Any = None,
        payload: Any = None,
        metric: str = "euclidean",
        keep_vectors: bool = True,
        partitions: SupportsIndex | str | None = None,
        verbose: bool = False,
    ) -> Index:
        """Fit a hasher to a sample of vectors and make an index of them all, in memory or in a new folder.

        Without a hasher there is nothing to choose: the index takes a BinaryAutoencoder with two to four bits for each
        number of a vector, at most 384, and makes lists where they pay. It takes the fewest bits by which 100
        candidates hold 95 % of the 10 nearest neighbours of held-out vectors.

        Parameters
        ----------
        vectors : matrix of shape (n, n_features)
            Vectors.
        hasher : Hasher, optional
            A hasher with its parameters. A copy of it is fitted to at most 20,000 of the vectors, or to what
            ``default_training_points`` says if that is more.
        path : path, optional
            A new or empty folder.
        ids, payload, verbose
            As in :meth:`add`.
        metric, keep_vectors, partitions
            As in the class. Without a hasher, ``partitions`` is ``"auto"`` by default.

        Examples
        --------
        >>> import numpy as np
        >>> from autojacobin import Index
        >>> X = np.random.default_rng(0).normal(size=(1000, 16)).astype(np.float32)
        >>> index = Index.from_vectors(X, metric="cosine")
        >>> index
        Index(1000 codes of 32 bits by BinaryAutoencoder, in memory)
        >>> similarities, ids = index.search(X[:2], 3, recall=0.95)
        >>> ids[:, 0], similarities[:, 0].round(3)
        (array([0, 1]), array([1., 1.]))
        """
        if not isinstance(hasher, Hasher | None):
            raise DataTypeError(f"hasher must be a hasher, got {hasher!r:.60}; pass one such as ITQ(64)")
        home = None if path is None else Folder(path)
        if home is not None:
            home.check_new("open it with Index.open")
        vectors, ids, payload = from_frame(vectors, ids, payload)
        chosen = NewIds.read(ids)
        if isinstance(vectors, Iterator):
            wrong = "from_vectors reads the vectors several times, got an iterator"
            raise DataTypeError(f"{wrong}; pass a matrix, or add blocks to an index of a fitted hasher")
        chosen.check_number(len(vectors))
        if payload is not None:
            as_payload(payload, len(vectors))
        measure = Metric.of(metric, vectors)
        changes.check_rows(vectors, measure)  # before the training, which may take minutes
        if hasher is None:
            with printed_progress("choosing the codes", verbose=verbose) as progress:
                hasher = growth.chosen_hasher(vectors, measure, progress)
            partitions = "auto" if partitions is None and keep_vectors else partitions
        sample, rows = growth.training_sample(vectors, hasher, partitions)
        fitted = measure.fit(hasher.unfitted(), sample, rows=rows, training_points=None, verbose=verbose)
        options: dict[str, Any] = {"keep_vectors": keep_vectors, "partitions": partitions}
        if home is None:
            index = cls(fitted, **options)
            index.add(vectors, ids, payload, verbose=verbose)
            return index
        with (
            whole_folder(home.path, "free some space, or give another path") as folder,
            cls.create(folder, fitted, **options) as index,
        ):
            index.add(vectors, ids, payload, verbose=verbose)
        return cls.open(home.path)

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, check: bool = True) -> Index:
        """Open an index in a folder. Codes and vectors are memory-mapped, and read when they are needed.

        Unless ``check`` is False, they are compared with their checksums when they are first read, so that damage is an
        error and not a wrong answer. The first search then takes somewhat longer.
        """
        folder = Folder(path)
        state = folder.newest(partial(changes.read_state, folder, check=check))
        index = cls(state.hasher, keep_vectors=state.keep_vectors)
        index._folder, index._state, index._check = folder, state, bool(check)
        return index

    # Content

    @property
    def hasher(self) -> Hasher:
        """The hasher that makes the codes, without the lists that a PartitionedHasher adds to it."""
        hasher = self._state.hasher
        return hasher.hasher_ if isinstance(hasher, PartitionedHasher) else hasher

    @property
    def metric(self) -> Metric:
        """How vectors are compared."""
        return self._open_state().metric

    @property
    def ids(self) -> npt.NDArray[Any]:
        """All ids: integers ascending, names in the order in which they were added."""
        state = self._open_state()
        return state.shown_ids(live_ids(state.segments))

    @property
    def id_kind(self) -> str:
        """Which ids the vectors have: ``"integer"``, ``"string"`` or ``"uuid"``."""
        return self._open_state().id_kind or "integer"

    @property
    def generation(self) -> int | None:
        """The number of the state in its folder, which grows with every change; None in memory."""
        manifest = self._open_state().manifest
        return None if manifest is None else manifest.generation

    @property
    def next_id(self) -> int:
        """The id that the next vector gets if none is given for it."""
        return int(self._open_state().next_id)

    def codes(self, ids: Any) -> Codes:
        """Codes of the vectors with these ids, all of which must be in the index, in the order of ``ids``."""
        state = self._open_state()
        codes = codes_at(state.segments, state.numbers(ids, "read"), int(state.hasher.n_bits))
        return _without_lists(codes, state.hasher)

    def vectors(self, ids: Any) -> npt.NDArray[Any]:
        """Vectors with these ids, all of which must be in the index, in the order of ``ids``."""
        state = self._open_state()
        return state.vectors(state.numbers(ids, "read"))

    def queries(self, ids: Any, distance: str | None = None) -> npt.NDArray[Any]:
        """What :meth:`search` takes as queries for stored vectors: vectors, or codes that were made elsewhere."""
        state = self._open_state()
        return state.queries(state.numbers(ids, "read"), distance)

    def get(self, ids: Any, columns: Sequence[str] | None = None) -> Any:
        """Payload of some vectors in the order of ``ids``, as an Arrow table with some columns or all."""
        state = self._open_state()
        return self._columns(state, state.numbers(ids, "read"), columns)

    def _columns(self, state: State, numbers: npt.NDArray[np.int64], columns: Sequence[str] | None) -> Any:
        table = payload_of(state.segments, numbers)
        if table is None and state.schema is not None:  # all that had columns were removed
            table = empty_like(state.schema, len(numbers))
        if table is None:
            raise DataError("this index has no payload; give one with index.add(…, payload=…) or --payload")
        if isinstance(columns, str):
            raise DataTypeError(f"columns must be a list of names, got {columns!r}; pass [{columns!r}]")
        unknown = [name for name in columns or () if name not in table.column_names]
        if unknown:
            known = repr(", ".join(table.column_names))[1:-1]  # on one line, whatever they are called
            raise DataError(f"there is no column {unknown[0]!r} in this index, expected some of {known}")
        return table if columns is None else table.select(list(columns))

    def parts(self) -> Iterator[Part]:
        """Walk over the index in blocks with ``ids``, ``codes`` and ``vectors``, in ascending order of id.

        The walk shows the state at its start, whatever is added or removed meanwhile. If ids are names, ``ids`` are
        numbers in the order in which they were added, and ``names`` has the names as UTF-8, or the bytes of UUIDs.
        """
        state = self._open_state()
        parts = in_id_order(state.segments) if state.segments else iter(())
        return (replace(part, codes=_without_lists(part.codes, state.hasher)) for part in parts)

    def __len__(self) -> int:
        return self._open_state().n_live

    def __contains__(self, id: object) -> bool:
        state = self._open_state()
        try:
            state.numbers([id], "found")
        except (DataError, OverflowError):
            return False
        return not isinstance(id, bool)

    def __repr__(self) -> str:
        if self._closed:
            return "Index(closed)"
        where = "in memory" if self._folder is None else f"in {self._folder.path}"
        where = where if self._state.device is None else "on a GPU"
        return f"Index({len(self)} codes of {self.hasher.n_bits} bits by {self.hasher.trained_name}, {where})"

    def _repr_html_(self) -> str:
        """The figures of the index as a table, for notebooks. A few stored vectors show how long a query takes."""
        if self._closed:
            return "<div><b>Index</b>, closed</div>"
        state, figures = self._open_state(), {"folder": self.path or "in memory", **self.info()}
        figures["bytes on disk"] = figures.pop("bytes")
        figures["bytes in memory"] = sum(
            array.array.nbytes  # vectors of a folder are read when they are needed
            for segment in state.segments
            for kind, array in segment.arrays.items()
            if self._folder is None or kind != "vectors"
        )
        if state.keep_vectors and state.n_live and (state.n_live <= EXACT_UP_TO or state.knowledge is not None):
            plan = self.plan(10)
            effort = "all vectors are compared" if plan.compares_all else f"{plan.candidates:,} candidates"
            figures[f"recall of {plan.k} neighbours"] = f"{plan.seen:.3f}, {effort}"
            figures["one query"] = f"{_microseconds(state, plan):,.0f} µs"
        cells = {name: f"{value:,}" if type(value) is int else str(value) for name, value in figures.items()}
        rows = "".join(f"<tr><th>{escape(name)}</th><td>{escape(text)}</td></tr>" for name, text in cells.items())
        return f"<div><b>Index</b><table>{rows}</table></div>"

    def info(self) -> dict[str, Any]:
        """Give the figures of the index: sizes, segments, what is dead, bytes on disk, the generation of its state."""
        state = self._open_state()
        files = [file for segment in state.segments for file in segment.files.values()]
        if state.manifest is not None:
            files.append(state.manifest.hasher)
        return {
            "vectors": state.n_live,
            "hasher": type(self.hasher).__name__,
            "bits": int(self.hasher.n_bits),
            "features": state.metric.width(int(state.hasher.n_features_in_)),
            "vectors_kept": state.keep_vectors,
            "metric": state.metric.name,
            "ids": state.id_kind or "integer",
            "columns": _column_names(state),
            "lists": state.n_lists or None,
            "segments": len(state.segments),
            "dead": sum(segment.n_dead for segment in state.segments),
            "files": len(files),
            "bytes": sum(file.size for file in files),
            "generation": None if state.manifest is None else state.manifest.generation,
        }

    # Changes

    def add(self, vectors: Any, ids: Any = None, payload: Any = None, *, verbose: bool = False) -> None:
        """Add vectors with new ids. :meth:`upsert` also takes ids that are in the index.

        Parameters
        ----------
        vectors : matrix of shape (n, n_features), or an iterator of such blocks
            Anything the hasher takes. A memory map or an iterator passes through in blocks, so that it need not
            fit into memory. The vectors are kept in the type in which they come.
        ids : array of int, list of str or list of UUID, optional
            An id for each vector, unique, integers not negative; for an iterator, those of the whole stream. The first
            vectors decide which kind the index has. By default ids are integers that count on from the largest id that
            the index ever had. For a data frame, the name of the column that holds the ids; a column ``vector`` then
            holds the vectors and the others the payload, or all others are numbers of the vectors.
        payload : Arrow table, data frame, dict of columns or list of dicts, optional
            Columns that belong to the vectors, a row for each. The first payload decides which columns the index has.
            Needs pyarrow.
        verbose : bool
            Whether to print what is done to the standard error.
        """
        with printed_progress("adding vectors", verbose=verbose) as progress:
            self._add(vectors, ids, payload, progress)

    def upsert(self, vectors: Any, ids: Any, payload: Any = None, *, verbose: bool = False) -> None:
        """Add vectors, or replace the vectors that have the same ids.

        The parameters are those of :meth:`add`. Columns that ``payload`` does not have stay as they are, or null.
        """
        if ids is None:
            raise DataError("upsert replaces vectors by their ids, got no ids; give them, or use add")
        with printed_progress("writing vectors", verbose=verbose) as progress:
            self._add(vectors, ids, payload, progress, replace=True)

    def _add(self, vectors: Any, ids: Any, payload: Any, progress: Progress, *, replace: bool = False) -> None:
        before = self._open_state()
        vectors, ids, payload = from_frame(packed(vectors, before.hasher), ids, payload)
        chosen = NewIds.read(ids)
        streamed = isinstance(vectors, Iterator)
        if not replace:
            chosen.check_new(before)
        if not streamed:
            changes.check_vectors(before.hasher, vectors, before.metric)  # before lists are made for them
        columns = None if payload is None else as_payload(payload, chosen.number if streamed else len(vectors))
        if not streamed:
            chosen.check_number(len(vectors))
            chosen.check_kind(before)
            if columns is not None:
                matching(columns, before.schema)
            self._grow(vectors, progress)

        def change(state: State, folder: Folder | None) -> State:
            chosen.check_kind(state)
            if replace:
                old = payload_of(state.segments, chosen.found(state))
                table = old if columns is None else replaced(old, columns)
            else:
                chosen.check_new(state)
                table = None if columns is None else matching(columns, state.schema)
            parts = changes.encoded_parts(state, vectors, chosen, table, progress)
            return changes.add_parts(state, folder, parts, chosen)

        self._change(change)
        if streamed:
            try:
                self._grow(progress=progress)
            except (AutoJacobinError, OSError) as error:  # to add the vectors again would be wrong
                _log.warning("the vectors were added, but no lists could be made of them yet: %s", error)

    def update(self, ids: Any, vectors: Any = None, payload: Any = None) -> None:
        """Replace the vectors with some ids, columns of their payload, or both; all ids must be in the index.

        Columns that the index does not have yet are made, with nulls for all other vectors.
        """
        if vectors is None and payload is None:
            raise DataError("there is nothing to update, got neither vectors nor a payload; give either or both")
        chosen = NewIds.read(ids)
        new = None if payload is None else as_payload(payload, chosen.number)
        if vectors is not None:
            vectors = packed(vectors, self._open_state().hasher)

        def change(state: State, folder: Folder | None) -> State:
            numbers = state.numbers(ids, "updated")
            if not len(numbers):
                return state
            if new is not None:
                state = changes.with_columns(state, folder, new)
            table = payload_of(state.segments, numbers)
            if new is not None:
                table = replaced(table, new)
            if vectors is None:
                parts = changes.stored_parts(state, numbers, chosen.names, table)
            else:
                parts = changes.encoded_parts(state, vectors, chosen, table)
            return changes.add_parts(state, folder, parts, chosen)

        self._change(change)

    def _grow(self, incoming: Any = None, progress: Progress | None = None) -> None:
        """Make lists, or more of them, if the index or what is about to be added calls for it."""
        if self._open_state().partitions is not None:

            def change(state: State, folder: Folder | None) -> State:
                hasher = growth.grown_hasher(state, incoming, progress=progress)
                return state if hasher is None else growth.encode_again(state, folder, hasher)

            self._change(change)

    def remove(self, ids: Any, *, missing_ok: bool = False) -> None:
        """Remove the vectors with these ids, all of which must be in the index, unless ``missing_ok``.

        An index that becomes empty keeps its columns.
        """
        self._change(lambda state, folder: changes.remove_ids(state, folder, ids, missing_ok=missing_ok))

    def compact(self) -> None:
        """Rewrite the index without its dead positions, in as few segments as possible.

        If the index makes its own lists, and their number or their codes no longer suit its vectors, they are made
        again. Everything is compared with its checksums first, so that damage is not copied.
        """

        def change(state: State, folder: Folder | None) -> State:
            hasher = growth.grown_hasher(state, shrink=True)
            lists = state.hasher if isinstance(state.hasher, ListHasher) else None
            if hasher is None and lists and state.partitions is not None and growth.has_drifted(lists, state.segments):
                hasher = growth.retrained(state, len(lists.centres_))
            encode = changes.compact_segments if hasher is None else partial(growth.encode_again, hasher=hasher)
            new = encode(state, folder)
            learns = new is not state or state.knowledge is None or state.n_changed
            return changes.learned(new) if learns and state.keep_vectors and state.n_live > EXACT_UP_TO else new

        self._change(change)

    # The folder

    @property
    def path(self) -> Path | None:
        """Folder of the index, or None if it is in memory."""
        return self._folder.path if self._folder is not None else None

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the index to a new or empty folder; an index that lives there is saved already.

        Everything is compared with its checksums first, so that damage is not copied. A folder that holds an index is a
        StorageError, unless ``overwrite`` says that it may be replaced.
        """
        state = self._open_state()
        folder = Folder(path)
        if self._folder is not None and folder.path.is_dir() and folder.path.samefile(self._folder.path):
            return
        with folder.locked():
            if not overwrite:
                folder.check_vacant("pass overwrite=True to replace it")
            changes.write_state(state, folder, iter(()))

    def verify(self) -> None:
        """Read every byte of the newest state on disk, and raise a FormatError that names the first damaged file."""
        self._check_open()
        if self._folder is not None:
            folder = Folder(self._folder.path)  # a new object: another thread may close self._folder meanwhile
            folder.newest(partial(changes.verify_state, folder))

    def refresh(self) -> None:
        """Switch to the newest state on disk. This does nothing for an index in memory."""
        with self._mutex:
            self._check_open()
            if self._folder is not None:
                self._read_again(self._folder)

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

    def __enter__(self) -> Index:
        self._check_open()
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        if self._folder is not None:
            raise DataTypeError(f"{self!r} cannot be copied or pickled, because of its lock; use Index.open or save")
        own = ("_mutex", "_learning", "_learned")
        state = {name: value for name, value in self.__dict__.items() if name not in own}
        return state | {"_state": replace(self._state)}  # without what searches keep, such as addresses of arrays

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._new_mutex()

    def _new_mutex(self) -> None:
        self._mutex = threading.RLock()
        self._learning = threading.RLock()
        self._learned: dict[str, tuple[Any, Any, Any]] = {}
        self._changing = False
        _INDEXES.add(self)

    def _placed(
        self, path: str | os.PathLike[str], parts: Iterator[Part], next_id: int, id_kind: str | None = None
    ) -> Index:
        """Move this index, which is empty, into a new folder, and write ``parts`` there; ``repair`` has some."""
        folder = Folder(path)
        try:
            folder.prepare()
            folder.check_vacant("open it with Index.open")
            self._state = changes.write_state(replace(self._state, next_id=next_id, id_kind=id_kind), folder, parts)
        except BaseException:
            folder.release()
            raise
        self._folder = folder
        return self

    def _frozen(self) -> Index:
        """Give the index as it is now, which no change reaches; what searches derive from its state is shared."""
        frozen = object.__new__(type(self))
        frozen.__setstate__({**self.__dict__, "_state": self._open_state(), "_folder": None})
        frozen._learned = self._learned
        return frozen

    def _open_state(self) -> State:
        """The state now, after a check that it is not the empty one of a closed index."""
        state = self._state
        self._check_open()
        return state

    def _check_open(self) -> None:
        if self._closed:
            raise DataError("this index is closed; open it again with Index.open")

    def _change(self, change: Callable[[State, Folder | None], State]) -> None:
        """Replace the state by that which ``change`` gives, atomically and one change at a time."""

        def made(state: State, folder: Folder | None) -> State:
            new = change(state, folder)
            return changes.learned(new) if new is not state and is_outdated(new) else new

        with self._mutex:
            self._check_open()
            if self._state.device is not None:
                raise DataError("an index on a GPU can only be searched; change the index itself, and copy it again")
            if self._changing:
                raise DataError("an index cannot be changed while the same thread changes it; do one after the other")
            try:
                self._changing = True
                if self._folder is not None:
                    self._change_on_disk(self._folder, made)
                else:
                    self._state = made(self._state, None)
            finally:
                self._changing = False

    def _change_on_disk(self, folder: Folder, change: Callable[[State, Folder | None], State]) -> None:
        """Adopt the new state as soon as it is committed, before files of the old one are deleted."""
        if not folder.lock.held:
            folder.take_lock()
        folder.check_writable()
        if not folder.settled:
            self._settle(folder)
        try:
            folder.settled = False
            new = change(self._state, folder)
            if new is not self._state:
                self._state = changes.commit_change(folder, self._state, new)
                assert self._state.manifest is not None
                folder.sweep(self._state.manifest)
            folder.settled = True
        except BaseException:
            with suppress(OSError, AutoJacobinError):  # if that fails too, the next change begins with it
                self._settle(folder)
            raise

    def _settle(self, folder: Folder) -> None:
        """Adopt the state on the disk, after a change that ended in an exception or when the lock was just taken."""
        with clear_os_errors(folder.path, "write to"):
            folder.sync_names()
            self._read_again(folder)
            folder.settle()

    def _read_again(self, folder: Folder) -> None:
        """Adopt the newest state on the disk."""

        def read(manifest: Manifest) -> State:
            before = self._state
            if manifest == before.manifest:
                return before
            state = changes.read_state(folder, manifest, check=self._check)
            if before.manifest is not None and before.manifest.hasher == manifest.hasher:
                same = before.manifest.knowledge == manifest.knowledge
                state = replace(state, hasher=before.hasher, knowledge=before.knowledge if same else state.knowledge)
            return state

        self._state = folder.newest(read)

    def to(self, device: str) -> Index:
        """Copy the index to a GPU, and give an index that searches there with the same arguments.

        The copy shows the state of now, and cannot be changed. Plans are those of the index, but all codes are read,
        and an index with lists compares all vectors. If vectors do not fit into the memory of the GPU, candidates are
        re-ranked on the CPU. Answers are arrays of the kind that queries are: NumPy, CuPy, or tensors of PyTorch.
        ``device`` is ``"cuda"``, which needs CuPy and an NVIDIA GPU of compute capability 8.0, or ``"cpu"``.
        """
        if device not in ("cpu", "cuda"):
            raise DataError(f"device must be 'cpu' or 'cuda', got {device!r}")
        state = self._open_state()
        if device == "cuda":
            state = replace(state, device=DeviceStore.copy(state))
        elif state.device is not None:
            state = replace(state, device=None)
        index = object.__new__(Index)
        index.__dict__.update(self.__dict__ | {"_state": state, "_folder": None})
        index._new_mutex()
        index._learning, index._learned = (
            self._learning,
            self._learned,
        )  # a copy costs nothing, and learns nothing twice
        return index

    # Search

    def search(
        self,
        queries: Any = None,
        k: SupportsIndex = 10,
        *,
        ids: Any = None,
        candidates: SupportsIndex | None = None,
        recall: float | None = None,
        distance: str | None = None,
        rerank: bool | None = None,
        probes: SupportsIndex | str | None = None,
        among: Any = None,
        where: Any = None,
        columns: Sequence[str] | None = None,
        as_table: bool = False,
    ) -> Any:
        """Find the ``k`` nearest vectors of each query, or of stored vectors.

        Parameters
        ----------
        queries : matrix of shape (n_queries, n_features), or one vector of length n_features
            Query vectors.
        k : int
            Neighbours per query. An index with fewer vectors gives all of them.
        ids : ids, optional
            Instead of queries, vectors of the index. A vector is not among its own neighbours.
        candidates : int, optional
            How many of the nearest codes to re-rank, at least k, instead of a ``recall``.
        recall : float, optional
            The mean share of the true neighbours to find, at most 0.999; by default 0.95. The index has learned from
            its own vectors how much effort that takes: see :meth:`plan`. With 1, all vectors are compared, and in an
            index of up to 2,000 they are by default.
        distance : str, optional
            How codes are compared, one of ``index.hasher.distances``, the first of which is the default:
            ``"asymmetric"``, with the real values of the query's projection; ``"hamming"``, bit by bit, which needs
            three times the candidates for the same recall; ``"decoded"``, for codes of a BinaryAutoencoder.
        rerank : bool, optional
            Whether to order the candidates by the distance of the vectors. If not, the distances are those of the
            codes. By default they are ordered if the index keeps vectors.
        probes : int or "all", optional
            For an index with inverted lists, how many of them to scan, instead of what the ``recall`` takes. Then
            ten times k candidates are re-ranked, at least 100, unless ``candidates`` says otherwise.
        among : ids, mask, or a list of these, optional
            Search among these vectors alone. Ids that are not in the index do not matter. A mask has an entry for each
            of :attr:`ids`. A list with one entry for each query gives each its own filter; None allows everything.
        where : str or expression of pyarrow.compute, optional
            Search among the vectors whose payload meets a condition, such as ``"price < 10 and lang == 'de'"``.
            Conditions are a small part of SQL.
        columns : list of str, optional
            Columns of the payload to return.
        as_table : bool
            Whether to return a data frame of pandas with a row for each neighbour: ``query``, ``rank``, ``id``,
            ``distance`` and the columns.

        Returns
        -------
        distances, ids : arrays of shape (n_queries, min(k, len(index)))
            In order of distance; equal distances in order of id. There are k columns, or one for each vector of the
            index if it has fewer; in a search for ``ids``, one for each other vector. Where a filter leaves fewer, the
            last ids are -1, or None if ids are names, and their distances NaN. Hamming distances are integers, but
            floats if there is a filter.
        payload : Arrow table
            If there are ``columns``: those of all neighbours, query by query.
        """
        state = self._open_state()
        if (queries is None) == (ids is None):
            got = "neither" if ids is None else "both"
            raise DataError(f"a search takes queries, or ids of stored vectors, got {got}; give one of the two")
        own = None if ids is None else state.numbers(ids, "searched for")
        if own is not None:  # each finds itself, too
            queries, k = state.queries(own, distance), as_count("k", k) + 1
            candidates = None if candidates is None else as_count("candidates", candidates) + 1
        options, given = (candidates, recall, distance, rerank, probes), queries
        queries, asked = checked_queries(state, queries)
        if among is None and where is None:
            plan = self._plan(state, k, options)
            distances, numbers = plan.run(state, asked)
        else:
            found = []
            for rows, allowed in allowed_by(state, among, where, len(asked)):
                plan = self._plan(state, k, options, allowed)
                found.append((rows, *plan.run(state, asked[rows], allowed)))
            rows, distances, numbers = (np.concatenate(part) for part in zip(*found, strict=True))
            distances = distances.astype(np.float64)  # since a filter may leave too few, and NaN then
            distances[rows], numbers[rows] = distances.copy(), numbers.copy()
        if plan.rerank:
            distances = state.metric.values(queries, distances)
        if own is not None:
            others = numbers != own[:, np.newaxis]
            others[others.all(axis=1), -1] = False
            distances, numbers = (array[others].reshape(len(own), -1) for array in (distances, numbers))
        ids = state.shown_ids(numbers)
        table = None if columns is None else self._columns(state, numbers.ravel(), columns)
        if as_table:
            return neighbours_frame(distances, ids, numbers, table)
        if state.device is not None:
            distances, ids = in_kind(distances, given), in_kind(ids, given)
        return (distances, ids) if columns is None else (distances, ids, table)

    def plan(
        self,
        k: SupportsIndex,
        *,
        candidates: SupportsIndex | None = None,
        recall: float | None = None,
        distance: str | None = None,
        rerank: bool | None = None,
        probes: SupportsIndex | str | None = None,
        among: Any = None,
        where: Any = None,
    ) -> Plan:
        """Give the plan by which :meth:`search` would search with these arguments; ``among`` is one filter."""
        state = self._open_state()
        allowed = None if among is None and where is None else allowed_by(state, among, where)[0][1]
        return self._plan(state, k, (candidates, recall, distance, rerank, probes), allowed)

    def learn(self, queries: Any) -> None:
        """Learn from queries of your own how much effort a recall takes, instead of from stored vectors.

        This helps if your queries are not like the stored vectors. Give some hundred, at least 100, none of them in the
        index. What is learned is stored with the index, and the index learns from the same queries again when it has
        changed. :meth:`plan` shows what it then does.
        """
        state = self._open_state()
        matrix = checked_queries(state, queries)[1]
        if not state.keep_vectors or not state.n_live:
            raise DataError("an index learns by its vectors, and this one has none; add vectors, and keep them")
        if len(matrix) < _FEWEST_TO_LEARN:
            raise DataError(f"an index learns from at least {_FEWEST_TO_LEARN} queries, got {len(matrix)}; pass more")

        try:
            self._change(lambda state, _: changes.learned(state, matrix))
        except (StorageError, OSError):  # the folder cannot be written to, so that it is known to this object alone
            known = learn(state, state.hasher.distances[0], matrix)
            self._state = replace(state, knowledge=known, n_changed=0)

    def _know(self, state: State, distance: str) -> Knowledge:
        """What a state knows about itself: stored for the default distance, learned now for others and kept here."""
        stored: Knowledge | None = state.knowledge
        if distance == state.hasher.distances[0] and stored is not None:
            return stored
        with self._learning:
            hasher, before, known = self._learned.get(distance, (None, None, None))
            if hasher is not state.hasher or before is not stored:  # which is learned again when a tenth has changed
                known = learn(state, distance, None if stored is None else stored.own_queries)
                self._learned[distance] = state.hasher, stored, known
            return known

    def _plan(
        self, state: State, k: Any, options: tuple[Any, Any, Any, Any, Any], allowed: Allowed | None = None
    ) -> Plan:
        """Find or make the plan for some arguments. A state keeps its plans."""
        n_allowed = None if allowed is None else allowed.n
        # with the types, because True and 3.0, which make_plan refuses, are equal to 1 and 3
        key = "plan", k, type(k), n_allowed, options, *map(type, options)
        try:
            plan: Plan | None = state.kept.get(key)
        except TypeError:  # an argument of a wrong type, which make_plan refuses, or a plan as candidates
            return make_plan(state, partial(self._know, state), k, *options, n_allowed)
        if plan is None:
            plan = make_plan(state, partial(self._know, state), k, *options, n_allowed)
            if len(state.kept) > _MOST_KEPT:
                state.kept.clear()
            state.kept[key] = plan
        return plan


_INDEXES: weakref.WeakSet[Index] = weakref.WeakSet()


def _renew_mutexes() -> None:
    """Give a forked child mutexes of its own; another thread of the parent may have held the old ones."""
    for index in list(_INDEXES):
        index._new_mutex()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_mutexes)


def _without_lists(codes: Codes, hasher: Hasher) -> Codes:
    """Codes as ``Index.hasher`` makes them."""
    return hasher.split(codes)[0] if isinstance(hasher, PartitionedHasher) else codes


def _microseconds(state: State, plan: Plan) -> float:
    """Median time of a query; the first ones of a process take longer, and do not count."""
    own = drawn(state.segments, min(state.n_live, 16), seed=0)
    asked = state.metric.stored_as_queries(fetch(state.segments, own))
    times = [timeit(partial(plan.run, state, asked[row : row + 1]), number=1) for row in range(len(asked))]
    return 1e6 * float(np.median(times[len(times) // 2 :]))


def _column_names(state: State) -> list[str] | None:
    """Names of the columns of the payload; None if it is damaged, which does not concern searches without columns."""
    try:
        return [] if state.schema is None else list(state.schema.names)
    except AutoJacobinError:
        return None
