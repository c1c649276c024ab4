"""An index: vectors in, neighbours out, in memory or on disk."""

from __future__ import annotations

import copy
import math
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, SupportsIndex

import numpy as np
import numpy.typing as npt
from sklearn.base import clone

from autojacobin.codes import BitOrder, Codes
from autojacobin.core.arrays import to_host
from autojacobin.core.vectors import as_floats, as_matrix
from autojacobin.errors import AutoJacobinError, DataError, DataTypeError, StorageError
from autojacobin.hashers import Hasher, OwnCodes, PartitionedAutoencoder
from autojacobin.hashers.base import as_vectors, check_fitted
from autojacobin.hashers.parameters import check_parameters
from autojacobin.index.calibration import Calibration, Calibrator, as_recall
from autojacobin.index.changes import (
    Change,
    NewIds,
    State,
    add_parts,
    check_vectors,
    compact_segments,
    encoded_parts,
    numbers_of,
    remove_ids,
    shown_ids,
    stored_parts,
)
from autojacobin.index.files import clear_os_errors
from autojacobin.index.filters import filters_of_queries, restricted, widened
from autojacobin.index.folder import IndexFolder
from autojacobin.index.growth import as_partitions, encode_again, grown_hasher, has_drifted, retrained, training_sample
from autojacobin.index.manifest import Manifest
from autojacobin.index.metrics import Metric
from autojacobin.index.partitions import as_probes, choose_in_lists, search_lists
from autojacobin.index.payload import as_payload, from_frame, matching, neighbours_frame, replaced
from autojacobin.index.searching import (
    codes_at,
    fetch,
    in_id_order,
    nearest,
    nearest_vectors,
    payload_of,
    prepared_queries,
)
from autojacobin.index.segment import Part, Segment, write_segments
from autojacobin.index.storage import MANIFEST_NAME, MemoryStore, Store
from autojacobin.search.arguments import as_candidates, as_count, as_k
from autojacobin.search.distances import as_distance

__all__ = ["Index"]

Segments = tuple[Segment, ...]


class Index:
    """Vectors that can be searched by their codes, and re-ranked by their Euclidean distance.

    ``Index(hasher)`` lives in memory and is written by :meth:`save`. An index from :meth:`create` or :meth:`open`
    lives in a folder: every ``add``, ``remove`` and ``compact`` is on the disk before the call returns, and a crash at
    any instant leaves the state of the last one that did. Many processes may read it while one writes.

    Several threads may share an index. Searches run side by side and see the state at their start; calls that change
    the index wait for each other. After an exception, Ctrl-C included, an index can be used on: it holds what the last
    finished change left, or what the interrupted one did if it came that far.

    An index in memory can be copied and pickled; one in a folder cannot, because its lock belongs to one object.

    Many small additions make many segments, over which a search takes longer; :meth:`compact` joins them.

    Parameters
    ----------
    hasher : Hasher
        A fitted hasher. The index keeps it as it is now, whatever is done to it later.
    keep_vectors : bool
        Whether to keep the vectors themselves, which re-ranking needs.
    partitions : int, "auto" or None, default=None
        Whether to put the codes of a BinaryAutoencoder into inverted lists, of which a search scans a few. ``"auto"``
        makes about 4 √n lists as soon as there are 65,536 vectors, and more as the index grows: the hasher is then
        trained anew on a sample of the vectors, and all are encoded again, within :meth:`add`. A number gives the
        lists by hand; they are made when there are 32 vectors for each.
    metric : {"euclidean", "cosine"} or Metric, default="euclidean"
        What neighbours are near by. With ``"cosine"``, the index keeps vectors divided by their lengths, and the hasher
        should be fitted on such; searches give similarities, the largest first. Inner products need a :class:`Metric`.
        :meth:`from_vectors` does all this.

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
        metric: str | Metric = "euclidean",
    ) -> None:
        if not isinstance(hasher, Hasher):
            raise DataTypeError(f"an index needs a fitted hasher, got {type(hasher).__name__}; pass for example an ITQ")
        check_fitted(hasher)
        lists = as_partitions(partitions, hasher, bool(keep_vectors))
        measure = metric if isinstance(metric, Metric) else Metric(metric)
        self._state = State(copy.copy(hasher), bool(keep_vectors), partitions=lists, metric=measure)
        self._folder: IndexFolder | None = None
        self._check = True
        self._closed = False
        self._calibrator = Calibrator()
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
        metric: str | Metric = "euclidean",
    ) -> Index:
        """Make an empty index in a new or empty folder.

        The parameters are those of the class. Give ``n_bits`` in place of a hasher to add codes that were made
        elsewhere, as packed bytes with the bits of each byte in ``bitorder``.
        """
        if (hasher is None) == (n_bits is None):
            raise DataError("an index has either a hasher or codes of your own; give a hasher, or n_bits")
        if n_bits is not None:
            hasher, keep_vectors = own_codes(n_bits, bitorder), False
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
        n_bits : int, optional
            Length of a code; by default eight times the number of bytes.
        bitorder : {"little", "big"}
            Order of the bits in each byte. ``np.packbits`` and sentence-transformers have ``"big"``.
        ids, payload
            As in :meth:`add`.

        Examples
        --------
        >>> import numpy as np
        >>> from autojacobin import Index
        >>> bits = np.random.default_rng(0).integers(0, 2, (100, 32))
        >>> index = Index.from_codes(np.packbits(bits, axis=1), bitorder="big")
        >>> distances, ids = index.search(np.packbits(bits[:2], axis=1), k=1)
        >>> ids.ravel(), distances.ravel()
        (array([0, 1]), array([0, 0], dtype=int32))
        """
        if isinstance(codes, Codes):
            n_bits, bitorder = codes.n_bits, "little"
        elif n_bits is None:
            n_bits = 8 * as_matrix(codes, "Index").shape[1]
        index = cls(own_codes(n_bits, bitorder), keep_vectors=False)
        index.add(codes, ids, payload)
        return index

    @classmethod
    def from_vectors(
        cls,
        vectors: Any,
        hasher: Hasher,
        *,
        path: str | os.PathLike[str] | None = None,
        ids: Any = None,
        payload: Any = None,
        metric: str = "euclidean",
        keep_vectors: bool = True,
        partitions: SupportsIndex | str | None = None,
    ) -> Index:
        """Fit a hasher to a sample of vectors and make an index of them all, in memory or in a new folder.

        Parameters
        ----------
        vectors : matrix of shape (n, n_features)
            Vectors.
        hasher : Hasher
            A hasher with its parameters. A copy of it is fitted to at most 20,000 of the vectors, prepared as the
            metric wants them.
        path : path, optional
            A new or empty folder.
        ids, payload
            As in :meth:`add`.
        metric : {"euclidean", "cosine", "inner_product"}
            What neighbours are near by.
        keep_vectors, partitions
            As in the class.

        Examples
        --------
        >>> import numpy as np
        >>> from autojacobin import ITQ, Index
        >>> X = np.random.default_rng(0).normal(size=(1000, 16)).astype(np.float32)
        >>> index = Index.from_vectors(X, ITQ(16, random_state=0), metric="cosine")
        >>> similarities, ids = index.search(X[:2], 3, recall=0.95)
        >>> ids[:, 0], similarities[:, 0].round(3)
        (array([0, 1]), array([1., 1.]))
        """
        vectors, ids, payload = from_frame(vectors, ids, payload)
        sample = training_sample(vectors)
        measure = Metric.of(metric, vectors)
        fitted = clone(hasher).fit(measure.prepare(sample))
        index = cls(fitted, keep_vectors=keep_vectors, partitions=partitions, metric=measure)
        if path is not None:
            index._placed(path, iter(()), 0)
        try:
            index.add(vectors, ids, payload)
        except BaseException:
            index.close()
            raise
        return index

    def _placed(
        self, path: str | os.PathLike[str], parts: Iterator[Part], next_id: int, id_kind: str | None = None
    ) -> Index:
        """Move an empty index into a folder, with parts that are encoded already, which ``repair`` has; or fail."""
        folder = IndexFolder(path)
        try:
            folder.prepare()
            if folder.store.read_manifest() is not None:
                raise StorageError(
                    f"{folder.path} holds an index already; open it with Index.open, or give another path"
                )
            self._state = _write_state(replace(self._state, next_id=next_id, id_kind=id_kind), folder, parts)
        except BaseException:
            folder.release()
            raise
        self._folder = folder
        return self

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, check: bool = True) -> Index:
        """Open an index in a folder. Codes and vectors are memory-mapped, and read when they are needed.

        Parameters
        ----------
        path : path
            Folder of the index.
        check : bool
            Whether to compare codes, ids and vectors with their checksums when they are first read, so that damage
            is an error and not a wrong answer. The first search then takes somewhat longer.

        Raises
        ------
        FormatError
            If a file is damaged or foreign, or needs a newer library.
        StorageError
            If there is no index, or it cannot be read.
        """
        folder = IndexFolder(path)
        state = folder.newest(
            lambda manifest: State(
                folder.read_hasher(manifest), manifest.keep_vectors, folder.read_segments(manifest, check=check),
                manifest.next_id, manifest, manifest.partitions, manifest.id_kind, manifest.metric,
            )
        )  # fmt: skip
        index = cls(state.hasher, keep_vectors=state.keep_vectors)
        index._folder, index._state, index._check = folder, state, bool(check)
        return index

    # What is in it

    @property
    def hasher(self) -> Hasher:
        """The hasher that makes the codes."""
        return self._state.hasher

    @property
    def path(self) -> Path | None:
        """Folder of the index, or nothing if it lives in memory."""
        return self._folder.path if self._folder is not None else None

    @property
    def ids(self) -> npt.NDArray[Any]:
        """All ids: integers ascending, names in the order in which they were added."""
        state = self._open_state()
        parts = [segment.ids_at(segment.live_positions()) for segment in state.segments]
        return shown_ids(state, np.sort(np.concatenate([np.empty(0, dtype=np.int64), *parts])))

    def codes(self, ids: Any) -> Codes:
        """Codes of some vectors, all of which must be in the index, in the order of ``ids``."""
        state, wanted = self._present(ids)
        return codes_at(state.segments, wanted, int(state.hasher.n_bits))

    def vectors(self, ids: Any) -> npt.NDArray[Any]:
        """Vectors with these ids, all of which must be in the index, in the order of ``ids``."""
        state, wanted = self._present(ids)
        if not state.keep_vectors:
            raise DataError("this index keeps no vectors to give back; build it with keep_vectors=True")
        if not state.segments:
            return state.metric.original(np.empty((0, state.hasher.n_features_in_), dtype=np.float32))
        return state.metric.original(fetch(state.segments, wanted))

    def get(self, ids: Any, columns: Sequence[str] | None = None) -> Any:
        """Payload of some vectors, all of which must be in the index, as an Arrow table in the order of ``ids``.

        ``columns`` are all by default.
        """
        state, wanted = self._present(ids)
        return self._columns(state, wanted, columns)

    def _columns(self, state: State, numbers: npt.NDArray[np.int64], columns: Sequence[str] | None) -> Any:
        table = payload_of(state.segments, numbers)
        if table is None:
            raise DataError("this index has no payload; give one with index.add(vectors, payload=...)")
        unknown = [name for name in columns or () if name not in table.column_names]
        if unknown:
            raise DataError(
                f"there is no column {unknown[0]!r} in this index, expected some of {', '.join(table.column_names)}"
            )
        return table if columns is None else table.select(list(columns))

    def parts(self) -> Iterator[Part]:
        """Walk over the index in blocks with ``ids``, ``codes`` and ``vectors``, in ascending order of id.

        The walk shows the state at its start, whatever is added or removed meanwhile. The vectors are None if the
        index keeps none. If ids are names, ``ids`` are numbers in the order in which they were added, and ``names``
        has the names as UTF-8, or the 16 bytes of UUIDs. ``payload`` is an Arrow table or None.
        """
        segments = self._open_state().segments
        return in_id_order(segments) if segments else iter(())

    def __len__(self) -> int:
        return self._open_state().n_live

    def __contains__(self, id: object) -> bool:
        state = self._open_state()
        try:
            numbers_of(state, [id], "found")
        except (DataError, OverflowError):
            return False
        return not isinstance(id, bool)

    def __repr__(self) -> str:
        if self._closed:
            return "Index(closed)"
        where = "in memory" if self._folder is None else f"in {self._folder.path}"
        return f"Index({len(self)} codes of {self.hasher.n_bits} bits by {type(self.hasher).__name__}, {where})"

    def info(self) -> dict[str, Any]:
        """Give the figures of the index: sizes, segments, what is dead, bytes on disk, the generation of its state."""
        state = self._open_state()
        files = [file for segment in state.segments for file in segment.files.values()]
        if state.manifest is not None:
            files.append(state.manifest.hasher)
        return {
            "vectors": state.n_live,
            "hasher": type(state.hasher).__name__,
            "bits": int(state.hasher.n_bits),
            "features": int(state.hasher.n_features_in_),
            "vectors_kept": state.keep_vectors,
            "metric": state.metric.name,
            "ids": state.id_kind or "integer",
            "columns": [] if state.schema is None else list(state.schema.names),
            "lists": len(state.hasher.centres_) if isinstance(state.hasher, PartitionedAutoencoder) else None,
            "segments": len(state.segments),
            "dead": sum(segment.n_dead for segment in state.segments),
            "files": len(files),
            "bytes": sum(file.size for file in files),
            "generation": state.manifest.generation if state.manifest is not None else None,
        }

    # Changes

    def add(self, vectors: Any, ids: Any = None, payload: Any = None) -> None:
        """Add vectors; those whose id is in the index already take its place.

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
        """
        vectors, ids, payload = from_frame(self._packed(vectors), ids, payload)
        chosen = NewIds.read(ids)
        streamed = isinstance(vectors, Iterator)
        if not streamed:
            before = self._open_state()
            check_vectors(before.hasher, vectors, before.metric)  # before lists are made for them
        columns = None if payload is None else as_payload(payload, chosen.number if streamed else len(vectors))
        if not streamed:
            self._grow(vectors)

        def change(state: State, store: Store) -> Change:
            chosen.check_kind(state)
            table = None if columns is None else matching(columns, state.schema)
            parts = encoded_parts(
                state.hasher,
                vectors,
                chosen.numbers,
                state.next_id,
                state.keep_vectors,
                chosen.names,
                table,
                state.metric,
            )
            return add_parts(state, store, parts, chosen)

        self._change(change)
        if streamed:
            self._grow()

    def update(self, ids: Any, vectors: Any = None, payload: Any = None) -> None:
        """Replace the vectors with some ids, columns of their payload, or both; all ids must be in the index.

        Columns that ``payload`` does not have stay as they are.
        """
        if vectors is None and payload is None:
            raise DataError("there is nothing to update, got neither vectors nor a payload; give either or both")
        chosen = NewIds.read(ids)
        new = None if payload is None else as_payload(payload, chosen.number)

        def change(state: State, store: Store) -> Change | None:
            numbers = numbers_of(state, ids, "updated")
            if not len(numbers):
                return None
            table = payload_of(state.segments, numbers)
            if new is not None:
                table = replaced(table, new)
            if vectors is None:
                parts = stored_parts(state, numbers, chosen.names, table)
            else:
                parts = encoded_parts(
                    state.hasher, vectors, chosen.numbers, state.next_id, state.keep_vectors, chosen.names, table,
                    state.metric,
                )  # fmt: skip
            return add_parts(state, store, parts, chosen)

        self._change(change)

    def _grow(self, incoming: Any = None) -> None:
        """Make lists, or more of them, if the index or what is about to be added calls for it."""
        if self._open_state().partitions is not None:

            def change(state: State, store: Store) -> Change | None:
                hasher = grown_hasher(state, incoming)
                return None if hasher is None else encode_again(state, store, hasher)

            self._change(change)

    def remove(self, ids: Any) -> None:
        """Remove the vectors with these ids, all of which must be in the index."""
        self._change(lambda state, store: remove_ids(state, store, ids))

    def compact(self) -> None:
        """Rewrite the index without its dead positions, in as few segments as can be.

        If the index makes its own lists, and their number or their codes no longer suit its vectors, they are made
        anew. Everything is compared with its checksums first, so that damage is not copied.
        """

        def change(state: State, store: Store) -> Change | None:
            hasher = grown_hasher(state, shrink=True)
            lists = state.hasher if isinstance(state.hasher, PartitionedAutoencoder) else None
            if hasher is None and lists and state.partitions is not None and has_drifted(lists, state.segments):
                hasher = retrained(state, len(lists.centres_))
            return compact_segments(state, store) if hasher is None else encode_again(state, store, hasher)

        self._change(change)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the index to a folder, in place of the index that may be there; at its own path it is already.

        Everything is compared with its checksums first, so that damage is not copied.
        """
        state = self._open_state()
        folder = IndexFolder(path)
        if self._folder is not None and folder.path.is_dir() and folder.path.samefile(self._folder.path):
            return
        try:
            folder.prepare()
            _write_state(state, folder, iter(()))
        finally:
            folder.release()

    # Search

    def search(
        self,
        queries: Any,
        k: SupportsIndex,
        *,
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
        """Find the ``k`` nearest vectors of each query.

        Parameters
        ----------
        queries : matrix of shape (n_queries, n_features)
            Query vectors.
        k : int
            Neighbours a query, from 1 to ``len(index)``.
        candidates : int, optional
            How many of the nearest codes to re-rank, at least k; by default ten times k and no fewer than 100.
        recall : float, optional
            Instead of ``candidates``, the mean share of the true neighbours to find, at most 0.999. The index chooses
            the candidates for it, once: see :meth:`calibrated`. With 1, all vectors are compared.
        distance : str, optional
            How codes are compared, one of ``index.hasher.distances``, the first of which is the default:
            ``"hamming"``, as bits; ``"asymmetric"``, with the real values of the query's projection, which finds as
            much with a third of the candidates; ``"decoded"``, for codes of a BinaryAutoencoder.
        rerank : bool, optional
            Whether to order the candidates by the distance of the vectors, which is the default if the index keeps
            them. If not, the distances are those of the codes.
        probes : int or "all", optional
            For codes of a PartitionedAutoencoder, how many lists to scan; by default one in 32 and at least 8, or what
            a wanted ``recall`` takes.
        among : ids, mask, or a list of these, optional
            Search among these vectors alone. Ids that are not in the index do not matter. A mask has an entry for each
            of :attr:`ids`. A list with one entry for each query gives each its own filter; None allows everything.
        where : str or expression of pyarrow.compute, optional
            Search among the vectors whose payload meets a condition, such as ``"price < 10 and lang == 'de'"``.
            A string is read by DuckDB.
        columns : list of str, optional
            Columns of the payload to return.
        as_table : bool
            Whether to return a data frame of pandas with a row for each neighbour: ``query``, ``rank``, ``id``,
            ``distance`` and the columns, of which one of these names gets the ending ``_payload``.

        Returns
        -------
        distances, ids : arrays of shape (n_queries, k)
            In order of distance; equal distances in order of id. A query whose lists hold fewer than k codes is
            searched for in all lists. Where a filter leaves fewer than k vectors, the last ids are -1, or None if ids
            are names, and their distances NaN.
        payload : Arrow table with n_queries * k rows
            If there are ``columns``: those of all neighbours, query by query.
        """
        state = self._open_state()
        wanted = as_k(k, state.n_live, "the index")
        as_probes(probes, state.hasher)
        distance = as_distance(distance, state.hasher.distances)
        if rerank is None:
            rerank = state.keep_vectors or not isinstance(state.hasher, OwnCodes)
        if rerank:
            _check_vectors_kept(state)
        elif candidates is not None:
            raise DataError(f"candidates are for re-ranking, got {candidates!r} with rerank=False; leave out either")
        if recall is not None and (candidates is not None or not rerank):
            other = "rerank=False" if candidates is None else f"candidates={candidates!r}"
            raise DataError(f"recall chooses how many candidates to re-rank, got {other} besides; leave out either")
        if recall is not None and probes is not None:
            raise DataError(f"recall chooses how many lists to scan, got probes={probes!r} besides; leave out either")
        queries = state.metric.queries(self._packed(queries))
        as_vectors(state.hasher, queries)
        how = _How(wanted, distance, rerank, candidates, recall, probes)
        filters = filters_of_queries(among, len(queries))
        if filters is None:
            distances, numbers = self._nearest(state, queries, how, among, where)
        else:
            matrix = as_matrix(queries, type(state.hasher).__name__)
            distances, numbers = np.empty((len(matrix), wanted)), np.empty((len(matrix), wanted), dtype=np.int64)
            for filter, rows in filters:
                distances[rows], numbers[rows] = self._nearest(state, matrix[rows], how, filter, where)
        if rerank:
            distances = state.metric.values(queries, distances)
        ids = shown_ids(state, numbers)
        table = None if columns is None else self._columns(state, numbers.ravel(), columns)
        if as_table:
            return neighbours_frame(distances, ids, numbers, table)
        return (distances, ids) if columns is None else (distances, ids, table)

    def _packed(self, vectors: Any) -> Any:
        """Codes as the bytes that an index of codes takes; anything else as it is."""
        hasher = self._open_state().hasher
        if not isinstance(vectors, Codes) or not isinstance(hasher, OwnCodes):
            return vectors
        if vectors.n_bits != hasher.n_bits:
            raise DataError(
                f"the codes of this index have {hasher.n_bits} bits, got codes of {vectors.n_bits}; pass others"
            )
        return vectors.to_packed(bitorder=hasher.bitorder)

    def _nearest(
        self, state: State, queries: Any, how: _How, among: Any, where: Any
    ) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
        """Distances and numbers of the nearest vectors that a filter allows; NaN and -1 where there are too few."""
        view, k, candidates, probes = state, how.k, how.candidates, how.probes
        if among is not None or where is not None:
            if isinstance(state.hasher, PartitionedAutoencoder):
                for segment in state.segments:
                    segment.lists(state.hasher)  # kept with the whole segment
            view = restricted(state, among, where)
            k = min(how.k, view.n_live)
        if not k:
            return _padded(np.empty((len(queries), 0)), np.empty((len(queries), 0), dtype=np.int64), how.k)
        lists = as_probes(probes, state.hasher)
        if how.recall is not None and view is state:
            chosen = self._chosen(state, k, how.recall, how.distance)
            candidates, lists = chosen.candidates, chosen.probes
        elif how.recall is not None or (view is not state and probes is None and lists is not None):
            candidates, lists = self._chosen_for(state, view, how, lists)
        number = min(as_candidates(candidates, k), view.n_live) if how.rerank else k
        floats = as_floats(to_host(as_matrix(queries, type(state.hasher).__name__))) if how.rerank or lists else queries
        if isinstance(state.hasher, PartitionedAutoencoder) and lists is not None:
            found = search_lists(state.hasher, floats, view.segments, k, number if how.rerank else None, lists)
        elif how.rerank:
            prepared = prepared_queries(state.hasher, queries, how.distance)
            found = nearest_vectors(floats, prepared, view.segments, number, k)
        else:
            found = nearest(prepared_queries(state.hasher, queries, how.distance), view.segments, number)
        return found if k == how.k else _padded(*found, how.k)

    def _chosen_for(
        self, state: State, view: State, how: _How, lists: int | None
    ) -> tuple[SupportsIndex | None, int | None]:
        """Candidates and probes among what a filter leaves.

        The k nearest of a share of the vectors are among the k / share nearest of all, if the filter does not depend on
        the vectors. So what these take is learned, and of its candidates the share is taken.
        """
        everything = view.n_live, as_probes("all", state.hasher) if lists is not None else None
        k = widened(how.k, state, view)
        if how.recall is None:  # only the lists are to be chosen: as many codes as without the filter
            assert lists is not None
            share = view.n_live / state.n_live
            most = everything[1] or lists
            return how.candidates, most if k is None else min(most, math.ceil(lists / share))
        if k is None or how.recall == 1:
            return everything
        chosen = self._chosen(state, k, how.recall, how.distance)
        expected = chosen.candidates * view.n_live / state.n_live
        return max(how.k, math.ceil(expected + 3 * math.sqrt(expected))), chosen.probes

    def calibrated(
        self, k: SupportsIndex, recall: float, *, distance: str | None = None, queries: Any = None
    ) -> Calibration:
        """Choose how many candidates a search for ``k`` neighbours needs to find a wanted share of them.

        Some stored vectors are looked for among the others, whose exact distances are taken for the purpose. The
        choice is the smallest number of candidates with which, at a confidence of 95 %, vectors like these find the
        wanted share. What was learned is kept until a tenth of the index has changed, and serves other recalls too.

        Parameters
        ----------
        k : int
            Neighbours a query.
        recall : float
            The mean share of the true neighbours to find, above 0 and at most 0.999, or 1.
        distance : str, optional
            How codes are compared, as in :meth:`search`.
        queries : matrix of shape (n_queries, n_features), optional
            Queries of your own to learn from, now and in later searches with ``recall``: some hundreds, and none of
            them in the index. Give them if your queries are not like the stored vectors.

        Returns
        -------
        calibration : Calibration
            What was chosen, and on which grounds. It passes as ``candidates``.

        Examples
        --------
        >>> import numpy as np
        >>> from autojacobin import LSH
        >>> from autojacobin import Index
        >>> X = np.random.default_rng(0).normal(size=(1000, 16)).astype(np.float32)
        >>> index = Index(LSH(32, random_state=0).fit(X))
        >>> index.add(X)
        >>> chosen = index.calibrated(k=10, recall=0.9)
        >>> chosen.at_least >= 0.9, 100 < chosen.candidates < 1000
        (True, True)
        """
        state = self._open_state()
        wanted = as_k(k, state.n_live, "the index")
        distance = as_distance(distance, state.hasher.distances)
        _check_vectors_kept(state)
        share = as_recall(recall)
        if queries is not None:
            matrix = to_host(as_vectors(state.hasher, state.metric.queries(queries)))
            as_floats(matrix)  # refuses what is not finite
            self._calibrator.ask_with(matrix, share)
        return self._chosen(state, wanted, share, distance)

    def _chosen(self, state: State, k: int, recall: float, distance: str) -> Calibration:
        wanted, segments = as_recall(recall), state.segments
        if wanted == 1:
            n_lists = as_probes("all", state.hasher) if isinstance(state.hasher, PartitionedAutoencoder) else None
            return Calibration(k, 1.0, distance, state.n_live, 1.0, 1.0, 0, n_lists)
        if isinstance(state.hasher, PartitionedAutoencoder):
            return choose_in_lists(self._calibrator, state.hasher, segments, k, wanted, distance, state.metric)

        def nearest_codes(queries: Any, number: int) -> tuple[Any, Any]:
            return nearest(prepared_queries(state.hasher, queries, distance), segments, number)

        chosen = self._calibrator.choose(segments, k, wanted, distance, nearest_codes, metric=state.metric)
        assert chosen is not None  # all candidates are enough
        return chosen

    # On disk

    def verify(self) -> None:
        """Read every byte of the newest state on disk, and raise a FormatError that names the first damaged file.

        Structure is checked too: ids ascend and live once, rows are within the vectors, sizes and counts agree.
        """
        self._check_open()
        if self._folder is not None:
            folder = IndexFolder(
                self._folder.path
            )  # another one: this one's folder may be let go by another thread meanwhile
            folder.newest(folder.verify)

    def refresh(self) -> None:
        """Go to the newest state on disk; an index in memory has no other."""
        with self._mutex:
            self._check_open()
            if self._folder is not None:
                self._read_again(self._folder)

    def close(self) -> None:
        """Let go of files and of the right to write; the index cannot be used afterwards."""
        with self._mutex:
            try:
                self._closed = True  # first: who reads the empty state afterwards learns that it is none
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
            raise DataTypeError(
                f"an index in a folder cannot be copied or pickled, got {self!r}, because its lock belongs to one "
                "object; use Index.open(index.path) for another one, or Index.save for a copy"
            )
        return {name: value for name, value in self.__dict__.items() if name not in ("_mutex", "_calibrator")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._calibrator = Calibrator()
        self._new_mutex()

    # How it is done

    def _new_mutex(self) -> None:
        self._mutex = threading.RLock()
        self._changing = False
        _INDEXES.add(self)

    def _present(self, ids: Any) -> tuple[State, npt.NDArray[np.int64]]:
        """The state, and the ids as an array, all of which live in it."""
        state = self._open_state()
        return state, numbers_of(state, ids, "read")

    def _open_state(self) -> State:
        """The state now, after a check that it is not the empty one of a closed index."""
        state = self._state
        self._check_open()
        return state

    def _check_open(self) -> None:
        if self._closed:
            raise DataError("this index is closed; open it again with Index.open")

    def _change(self, change: Callable[[State, Store], Change | None]) -> None:
        """Replace the state by what ``change`` makes of it, one change at a time, all of it or nothing.

        The new state is adopted as soon as it is committed, before files of the old one are deleted. Whatever
        exception comes, from wherever, the state is then read again from the disk: at once, and if that fails too, at
        the beginning of the next change.
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
            self._calibrator.count_changes(made.n_changed)

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
                records = tuple(segment.record for segment in made.segments)
                manifest = state.manifest.followed_by(
                    segments=records, next_id=made.next_id, id_kind=made.id_kind or state.id_kind
                )
                if made.hasher is not None:
                    manifest = replace(
                        manifest, hasher=folder.write_hasher(made.hasher), n_bits=int(made.hasher.n_bits)
                    )
                new = replace(_following(state, made), manifest=manifest)
                folder.commit(manifest)
                self._state = new
                folder.sweep(manifest)
                self._calibrator.count_changes(made.n_changed)
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
            same = before.manifest is not None and before.manifest.hasher == manifest.hasher
            hasher = before.hasher if same else folder.read_hasher(manifest)
            segments = folder.read_segments(manifest, check=self._check)
            return State(
                hasher, manifest.keep_vectors, segments, manifest.next_id, manifest, manifest.partitions,
                manifest.id_kind, manifest.metric,
            )  # fmt: skip

        state = folder.newest(read)
        if state is not self._state:
            self._calibrator.forget()
        self._state = state


_INDEXES: weakref.WeakSet[Index] = weakref.WeakSet()


def _renew_mutexes() -> None:
    """Give a forked child mutexes of its own; another thread of the parent may have held the old ones."""
    for index in list(_INDEXES):
        index._new_mutex()
        index._calibrator.renew_lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_mutexes)


def own_codes(n_bits: SupportsIndex, bitorder: BitOrder) -> OwnCodes:
    """The hasher of codes that were made elsewhere, after a check of its parameters."""
    hasher = OwnCodes(as_count("n_bits", n_bits), bitorder=bitorder)
    check_parameters(hasher, hasher._limits)
    return hasher


class _How(NamedTuple):
    """How to search: the checked arguments of ``Index.search``."""

    k: int
    distance: str
    rerank: bool
    candidates: SupportsIndex | None
    recall: float | None
    probes: SupportsIndex | str | None


def _padded(
    distances: npt.NDArray[Any], numbers: npt.NDArray[np.int64], k: int
) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
    """Fill up to ``k`` columns with NaN and -1."""
    missing = ((0, 0), (0, k - distances.shape[1]))
    floats = distances.astype(np.float64, copy=False)
    return np.pad(floats, missing, constant_values=np.nan), np.pad(numbers, missing, constant_values=-1)


def _following(state: State, made: Change) -> State:
    """The state that a change makes."""
    return replace(
        state, segments=made.segments, next_id=made.next_id, hasher=made.hasher or state.hasher,
        id_kind=made.id_kind or state.id_kind,
    )  # fmt: skip


def _write_state(state: State, folder: IndexFolder, parts: Iterator[Part]) -> State:
    """Write a whole state and more parts into a folder of which the lock is held, and give it as it is there."""
    segments: Segments = ()

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
            state.metric,
        )  # fmt: skip

    manifest = folder.write_whole(write)
    return replace(state, segments=segments, manifest=manifest)


def _check_vectors_kept(state: State) -> None:
    if not state.keep_vectors:
        raise DataError(
            "this index keeps no vectors to re-rank by; pass rerank=False, or build it with keep_vectors=True"
        )
