"""An index: vectors in, neighbours out, in memory or on disk."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt
from sklearn.utils.validation import check_is_fitted

from autojacobin._arrays import to_host
from autojacobin.codes import Codes
from autojacobin.errors import DataError, DataTypeError, StorageError
from autojacobin.hashers import Hasher
from autojacobin.hashers._vectors import as_floats, as_matrix
from autojacobin.search._arguments import checked_candidates, checked_k
from autojacobin.search._calibration import Calibration, Calibrator, checked_recall
from autojacobin.search._home import Home
from autojacobin.search._manifest import Manifest
from autojacobin.search._many_segments import (
    codes_at,
    fetch,
    in_id_order,
    nearest,
    nearest_vectors,
    prepared_queries,
)
from autojacobin.search._segment import Part, Segment, most_rows, write_segments
from autojacobin.search._stream import checked_ids, checked_new_ids, encoded_parts
from autojacobin.search.distances import DistanceName, check_distance
from autojacobin.search.storage import MemoryStore, Store

__all__ = ["Index"]

Segments = tuple[Segment, ...]


class Index:
    """Vectors that can be searched by their codes, and re-ranked by their Euclidean distance.

    ``Index(hasher)`` lives in memory and is written by :meth:`save`. An index from :meth:`create` or :meth:`open`
    lives in a folder: every ``add``, ``remove`` and ``compact`` is on the disk before the call returns, and a crash at
    any instant leaves the state of the last one that did. Many processes may read it while one writes.

    Many small additions make many segments, over which a search takes longer; :meth:`compact` joins them.

    Parameters
    ----------
    hasher : Hasher
        A fitted hasher. The index keeps it as it is now, whatever is done to it later.
    keep_vectors : bool
        Whether to keep the vectors themselves, which re-ranking needs.

    Examples
    --------
    >>> import numpy as np
    >>> from autojacobin import LSH
    >>> from autojacobin.search.index import Index
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

    def __init__(self, hasher: Hasher, *, keep_vectors: bool = True) -> None:
        if not isinstance(hasher, Hasher):
            raise DataTypeError(f"an index needs a fitted hasher, got {type(hasher).__name__}; pass for example an ITQ")
        check_is_fitted(hasher)
        hasher._refuse_changes_after_fit()
        self._hasher = copy.copy(hasher)
        self._keep_vectors = bool(keep_vectors)
        self._segments: Segments = ()
        self._next_id = 0
        self._home: Home | None = None
        self._manifest: Manifest | None = None
        self._closed = False
        self._calibrator = Calibrator()

    @classmethod
    def create(cls, path: str | os.PathLike[str], hasher: Hasher, *, keep_vectors: bool = True) -> Index:
        """Make an empty index in a new or empty folder; the parameters are those of the class."""
        index = cls(hasher, keep_vectors=keep_vectors)
        home = Home(path)
        home.prepare()
        try:
            if home.folder.read_manifest() is not None:
                raise StorageError(f"{home.path} holds an index already; open it with Index.open, or give another path")
            index._adopt(*index._written_to(home))
        except BaseException:
            home.lock.release()
            raise
        index._home = home
        return index

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Index:
        """Open an index in a folder. Codes and vectors are memory-mapped, and read when they are needed.

        Raises
        ------
        FormatError
            If a file is damaged or foreign, or needs a newer library.
        StorageError
            If there is no index, or it cannot be read.
        """
        home = Home(path)
        manifest, hasher, segments = home.newest(
            lambda state: (state, home.read_hasher(state), home.read_segments(state))
        )
        index = cls(hasher, keep_vectors=manifest.keep_vectors)
        index._home = home
        index._adopt(manifest, segments)
        return index

    # What is in it

    @property
    def hasher(self) -> Hasher:
        """The hasher that makes the codes."""
        return self._hasher

    @property
    def path(self) -> Path | None:
        """Folder of the index, or nothing if it lives in memory."""
        return self._home.path if self._home is not None else None

    @property
    def ids(self) -> npt.NDArray[np.int64]:
        """All ids, ascending."""
        self._refuse_closed()
        parts = [segment.ids_at(segment.live_positions()) for segment in self._segments]
        return np.sort(np.concatenate([np.empty(0, dtype=np.int64), *parts]))

    def codes(self, ids: npt.ArrayLike) -> Codes:
        """Codes of some vectors, all of which must be in the index, in the order of ``ids``."""
        return codes_at(*self._present(ids), int(self._hasher.n_bits))

    def vectors(self, ids: npt.ArrayLike) -> npt.NDArray[Any]:
        """Vectors with these ids, all of which must be in the index, in the order of ``ids``."""
        if not self._keep_vectors:
            raise DataError("this index keeps no vectors to give back; build it with keep_vectors=True")
        segments, wanted = self._present(ids)
        return fetch(segments, wanted) if segments else np.empty((0, self._hasher.n_features_in_), dtype=np.float32)

    def parts(self) -> Iterator[Part]:
        """Walk over the index in blocks with ``ids``, ``codes`` and ``vectors``, in ascending order of id.

        The walk shows the state at its start, whatever is added or removed meanwhile. The vectors are None if the
        index keeps none.
        """
        self._refuse_closed()
        return in_id_order(self._segments) if self._segments else iter(())

    def __len__(self) -> int:
        self._refuse_closed()
        return sum(segment.n_live for segment in self._segments)

    def __contains__(self, id: object) -> bool:
        self._refuse_closed()
        if not isinstance(id, int | np.integer) or not 0 <= int(id) < 2**63:
            return False
        wanted = np.array([id], dtype=np.int64)
        return any(len(segment.find(wanted)[0]) for segment in self._segments)

    def __repr__(self) -> str:
        if self._closed:
            return "Index(closed)"
        where = "in memory" if self._home is None else f"in {self._home.path}"
        return f"Index({len(self)} codes of {self._hasher.n_bits} bits by {type(self._hasher).__name__}, {where})"

    def info(self) -> dict[str, Any]:
        """Give the figures of the index: sizes, segments, what is dead, bytes on disk, the generation of its state."""
        self._refuse_closed()
        files = [file for segment in self._segments for file in segment.files.values()]
        if self._manifest is not None:
            files.append(self._manifest.hasher)
        return {
            "vectors": len(self),
            "hasher": type(self._hasher).__name__,
            "bits": int(self._hasher.n_bits),
            "features": int(self._hasher.n_features_in_),
            "vectors_kept": self._keep_vectors,
            "segments": len(self._segments),
            "dead": sum(segment.n_dead for segment in self._segments),
            "files": len(files),
            "bytes": sum(file.size for file in files),
            "generation": self._manifest.generation if self._manifest is not None else None,
        }

    # Changes

    def add(self, vectors: Any, ids: npt.ArrayLike | None = None) -> None:
        """Add vectors; those whose id is in the index already take its place.

        Parameters
        ----------
        vectors : matrix of shape (n, n_features), or an iterator of such blocks
            Anything the hasher takes. A memory map or an iterator passes through in blocks, so that it need not
            fit into memory. The vectors are kept in the type in which they come.
        ids : array of int, optional
            An id for each vector, unique and not negative; for an iterator, those of the whole stream. By default
            they count on from the largest id that the index ever had.
        """
        chosen = None if ids is None else checked_new_ids(ids)
        with self._writing() as store:
            parts = encoded_parts(self._hasher, vectors, chosen, self._next_id, self._keep_vectors)
            new = tuple(write_segments(parts, store, most_rows(self._hasher.n_bits)))
            if chosen is None:
                kept, next_id = self._segments, self._next_id + sum(segment.tiles.n for segment in new)
            else:
                kept = self._without(self._find(np.sort(chosen)), store)
                next_id = max(self._next_id, int(chosen.max()) + 1)
            self._commit(kept + new, next_id, changed=sum(segment.tiles.n for segment in new))

    def remove(self, ids: npt.ArrayLike) -> None:
        """Remove the vectors with these ids, all of which must be in the index."""
        wanted = np.unique(checked_ids(ids))
        with self._writing() as store:
            found = self._find(wanted)
            _refuse_unknown(wanted, found, "removed")
            if len(wanted):
                self._commit(self._without(found, store), self._next_id, changed=len(wanted))

    def compact(self) -> None:
        """Rewrite the index without its dead positions, in as few segments as can be."""
        limit = most_rows(self._hasher.n_bits)
        with self._writing() as store:
            by_dtype: dict[Any, list[Segment]] = {}
            for segment in self._segments:
                by_dtype.setdefault(None if segment.vectors is None else segment.vectors.dtype.str, []).append(segment)
            fewest = sum(-(-sum(segment.n_live for segment in group) // limit) for group in by_dtype.values())
            if len(self._segments) > fewest or any(segment.n_dead for segment in self._segments):
                new = [s for group in by_dtype.values() for s in write_segments(in_id_order(group), store, limit)]
                self._commit(tuple(new), self._next_id, changed=0)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the index to a folder, in place of the index that may be there; at its own path it is already."""
        self._refuse_closed()
        home = Home(path)
        if self._home is not None and home.path.is_dir() and home.path.samefile(self._home.path):
            return
        home.prepare()
        try:
            self._written_to(home)
        finally:
            home.lock.release()

    # Search

    def search(
        self,
        queries: Any,
        k: SupportsIndex,
        *,
        candidates: SupportsIndex | None = None,
        recall: float | None = None,
        distance: DistanceName = "hamming",
        rerank: bool = True,
    ) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
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
            the candidates for it, once: see :meth:`calibrated`.
        distance : {"hamming", "asymmetric"}
            How codes are compared: as bits, or with the real values of the query's projection. The latter finds as
            much with a third of the candidates, and is the faster way to a recall with short codes.
        rerank : bool
            Whether to order the candidates by the Euclidean distance of the vectors. If not, the distances are
            those of the codes.

        Returns
        -------
        distances, ids : arrays of shape (n_queries, k)
            In order of distance; equal distances in order of id.
        """
        self._refuse_closed()
        segments = self._segments
        n = sum(segment.n_live for segment in segments)
        wanted = checked_k(k, n, "the index")
        check_distance(distance)
        if rerank:
            self._refuse_without_vectors()
        elif candidates is not None:
            raise DataError(f"candidates are for re-ranking, got {candidates!r} with rerank=False; leave out either")
        if recall is not None and (candidates is not None or not rerank):
            other = "rerank=False" if candidates is None else f"candidates={candidates!r}"
            raise DataError(f"recall chooses how many candidates to re-rank, got {other} besides; leave out either")
        if recall is not None:
            candidates = self._chosen(segments, wanted, recall, distance)
        number = min(checked_candidates(candidates, wanted), n) if rerank else wanted
        floats = as_floats(to_host(as_matrix(queries, type(self._hasher).__name__)))
        prepared = prepared_queries(self._hasher, queries, distance)
        if rerank:
            return nearest_vectors(floats, prepared, segments, number, wanted)
        return nearest(prepared, segments, number)

    def calibrated(
        self, k: SupportsIndex, recall: float, *, distance: DistanceName = "hamming", queries: Any = None
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
            The mean share of the true neighbours to find, above 0 and at most 0.999.
        distance : {"hamming", "asymmetric"}
            How codes are compared.
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
        >>> from autojacobin.search import Index
        >>> X = np.random.default_rng(0).normal(size=(1000, 16)).astype(np.float32)
        >>> index = Index(LSH(32, random_state=0).fit(X))
        >>> index.add(X)
        >>> chosen = index.calibrated(k=10, recall=0.9)
        >>> chosen.at_least >= 0.9, 100 < chosen.candidates < 1000
        (True, True)
        """
        self._refuse_closed()
        segments = self._segments
        wanted = checked_k(k, sum(segment.n_live for segment in segments), "the index")
        check_distance(distance)
        self._refuse_without_vectors()
        share = checked_recall(recall)
        if queries is not None:
            matrix = to_host(self._hasher._checked(queries))
            as_floats(matrix)  # refuses what is not finite
            self._calibrator.ask_with(matrix, share)
        return self._chosen(segments, wanted, share, distance)

    def _chosen(self, segments: Segments, k: int, recall: float, distance: DistanceName) -> Calibration:
        def nearest_codes(queries: Any, number: int) -> tuple[Any, Any]:
            return nearest(prepared_queries(self._hasher, queries, distance), segments, number)

        return self._calibrator.choose(segments, k, checked_recall(recall), distance, nearest_codes)

    def _refuse_without_vectors(self) -> None:
        if not self._keep_vectors:
            raise DataError(
                "this index keeps no vectors to re-rank by; pass rerank=False, or build it with keep_vectors=True"
            )

    # On disk

    def verify(self) -> None:
        """Read every byte of the newest state on disk, and raise a FormatError that names the first damaged file."""
        self._refuse_closed()
        if self._home is not None:
            self._home.newest(self._home.verify)

    def refresh(self) -> None:
        """Go to the newest state on disk; an index in memory has no other."""
        self._refuse_closed()
        if self._home is not None:
            home = self._home
            self._adopt(*home.newest(lambda state: (state, home.read_segments(state))))

    def close(self) -> None:
        """Let go of files and of the right to write; the index cannot be used afterwards."""
        self._closed = True
        self._segments = ()
        if self._home is not None:
            self._home.lock.release()

    def __enter__(self) -> Index:
        self._refuse_closed()
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # How it is done

    def _present(self, ids: npt.ArrayLike) -> tuple[Segments, npt.NDArray[np.int64]]:
        """Segments, and the ids as an array, all of which live in them."""
        self._refuse_closed()
        segments, wanted = self._segments, checked_ids(ids)
        _refuse_unknown(wanted, [segment.find(wanted) for segment in segments], "read")
        return segments, wanted

    def _refuse_closed(self) -> None:
        if self._closed:
            raise DataError("this index is closed; open it again with Index.open")

    @contextmanager
    def _writing(self) -> Iterator[Store]:
        """Give the store for new arrays: memory, or the folder with the right to write in it."""
        self._refuse_closed()
        if self._home is None:
            yield MemoryStore()
            return
        if not self._home.lock.held:
            self._home.take_lock()
            self.refresh()
        elif not self._home.folder.settled:
            self.refresh()
        with self._home.all_or_nothing():
            yield self._home.folder

    def _commit(self, segments: Segments, next_id: int, changed: int) -> None:
        if self._home is not None and self._manifest is not None:
            manifest = self._manifest.followed_by(tuple(segment.record for segment in segments), next_id)
            self._home.commit(manifest)
            self._manifest = manifest
        self._segments, self._next_id = segments, next_id
        self._calibrator.count_changes(changed)

    def _adopt(self, manifest: Manifest, segments: Segments) -> None:
        if self._manifest is None or self._manifest.generation != manifest.generation:
            self._calibrator.forget()
        self._manifest, self._segments, self._next_id = manifest, segments, manifest.next_id

    def _written_to(self, home: Home) -> tuple[Manifest, Segments]:
        """Write the whole state into a folder of which the lock is held, and give it as it is there."""
        with home.all_or_nothing():
            before = home.newest(lambda state: state.generation) if home.folder.read_manifest() is not None else 0
            hasher = home.write_hasher(self._hasher)
            segments = tuple(segment.copied_to(home.folder) for segment in self._segments)
            manifest = Manifest(
                before + 1, int(self._hasher.n_bits), int(self._hasher.n_features_in_), self._keep_vectors,
                self._next_id, hasher, tuple(segment.record for segment in segments),
            )  # fmt: skip
            home.commit(manifest)
        return manifest, segments

    def _find(self, ids: npt.NDArray[np.int64]) -> list[tuple[Any, Any]]:
        """For each segment, which of ``ids`` live there and at which positions."""
        return [segment.find(ids) for segment in self._segments]

    def _without(self, found: list[tuple[Any, Any]], store: Store) -> Segments:
        """Segments with some positions marked as dead; those that nothing is left of are dropped."""
        pairs = zip(self._segments, found, strict=True)
        return tuple(
            segment.without(positions, store) for segment, (_, positions) in pairs if len(positions) < segment.n_live
        )


def _refuse_unknown(wanted: npt.NDArray[np.int64], found: list[tuple[Any, Any]], done: str) -> None:
    known = np.zeros(len(wanted), dtype=bool)
    for places, _ in found:
        known[places] = True
    if not known.all():
        raise DataError(
            f"only ids in the index can be {done}, got {wanted[~known][0]}, which is not; "
            "leave it out, or ask with `id in index`"
        )
