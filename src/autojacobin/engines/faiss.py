"""FAISS: export of codes and hashers to FAISS indexes, and an engine on a file of FAISS."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar, Literal, SupportsIndex

import numpy as np
import numpy.typing as npt

from autojacobin.codes import BitOrder, Codes
from autojacobin.core.arrays import to_host
from autojacobin.core.files import as_path, atomic_writer
from autojacobin.core.parallel import Progress
from autojacobin.datasets.formats.source import clear_read_errors
from autojacobin.engines.contract import Engine, Floats, Hits, Ids
from autojacobin.errors import DataError, DataTypeError, FormatError, StorageError, import_extra, reason_of
from autojacobin.hashers import Hasher, LinearHasher, check_fitted
from autojacobin.index.index import Index
from autojacobin.search.arguments import as_count

_MOST_LINKS = 2**11  # as in other engines; the memory of a graph is proportional to it
_MOST_IN_VIEW = 2**20  # FAISS allocates memory for so many codes in every search
# The options of each kind, and their least and largest values. With an M of 1, FAISS would crash the process.
_OPTIONS: dict[str, dict[str, tuple[int, int | None]]] = {
    "flat": {},
    "ivf": {"nlist": (1, None), "nprobe": (1, None)},
    "hnsw": {"M": (2, _MOST_LINKS), "ef_construction": (1, _MOST_IN_VIEW), "ef_search": (1, _MOST_IN_VIEW)},
}
_TRAINING_CODES_PER_LIST = 64


def to_faiss(
    source: Index | Codes,
    kind: Literal["flat", "ivf", "hnsw"] = "flat",
    *,
    bitorder: BitOrder = "little",
    progress: Progress | None = None,
    **options: int,
) -> Any:
    """Make a binary FAISS index with the codes and ids of an index, or with codes whose ids are their row numbers.

    FAISS takes integers as ids. If those of the index are names, it gets their places in ``index.ids``. FAISS wants
    whole bytes: a code of 20 bits becomes one of 24 with zeros at its end, which changes no distance.

    Parameters
    ----------
    source : Index or Codes
    kind : {"flat", "ivf", "hnsw"}
        An ``IndexBinaryIDMap2`` of an ``IndexBinaryFlat``, which is exact up to the order of equal distances; an
        ``IndexBinaryIVF``; or an ``IndexBinaryIDMap2`` of an ``IndexBinaryHNSW``.
    bitorder : {"little", "big"}
        Order of the bits in the stored bytes: least or most significant first. Queries need the same one.
    progress : callable, optional
        ``progress(stage, done, total)``, called after each block of codes.
    **options : int
        For ``ivf``: ``nlist``, the number of lists (by default the root of the number of codes), and ``nprobe``, how
        many of them a search looks at (by default a sixteenth of them). For ``hnsw``: ``M``, links per code, from 2
        to 2048 (32), ``ef_construction`` (40) and ``ef_search`` (64), the lengths of the candidate lists.

    Returns
    -------
    faiss.IndexBinary
        Search it with packed codes, ``index.search(codes.to_packed(bitorder), k)``.

    Examples
    --------
    >>> from autojacobin import Codes
    >>> from autojacobin.engines import to_faiss
    >>> codes = Codes.from_bits([[0, 0, 0, 0], [0, 1, 1, 1], [1, 1, 1, 1]])
    >>> distances, ids = to_faiss(codes).search(codes[2].packed, 2)
    >>> distances, ids
    (array([[0, 1]], dtype=int32), array([[2, 1]]))
    """
    faiss = _faiss_package()
    chosen = _as_options(kind, options)
    origin = _as_index(source)
    bits = 8 * -(-int(origin.hasher.n_bits) // 8)
    if kind == "ivf":
        index = _inverted_lists(faiss, origin, bits, chosen, bitorder)
    else:
        inner = faiss.IndexBinaryFlat(bits) if kind == "flat" else _graph(faiss, bits, chosen)
        index = faiss.IndexBinaryIDMap2(inner)
    for ids, codes in _parts(origin):
        index.add_with_ids(codes.to_packed(bitorder), ids)
        if progress is not None:
            progress("adding codes", int(index.ntotal), len(origin))
    return index


def hasher_to_faiss(hasher: Hasher, source: Index | Codes | None = None) -> Any:
    """Make a FAISS index that hashes by itself: it takes vectors, and searches them by their codes.

    It is an ``IndexPreTransform`` of a ``LinearTransform`` with the hyperplanes of the hasher and an ``IndexLSH`` that
    takes their signs. Saved with ``faiss.write_index``, it encodes (``index.sa_encode``), adds and searches with no
    code of this library. Its bits are those of ``hasher.encode``: both are 1 where the projection is not negative.
    FAISS computes in single precision and adds in another order, so a bit may differ where the projection is zero up
    to rounding.

    Parameters
    ----------
    hasher : Hasher
        A fitted hasher whose bits are sides of hyperplanes: LSH, ITQ, PCARotation, OKMeans, NOKMeans, Sign,
        NeighbourHashing, AutoBin and its variants, or AutoJacoBin. For a hasher that was trained for the cosine, the
        index also divides vectors by their lengths; one for inner products is refused.
    source : Index or Codes, optional
        Codes to fill the index with, made by this hasher. The result is then wrapped into an ``IndexIDMap2`` with
        their ids.
    """
    faiss = _faiss_package()
    transform = _as_transform(faiss, hasher)
    signs = faiss.IndexLSH(transform.d_out, transform.d_out, False, False)
    index = faiss.IndexPreTransform(transform, signs)
    if hasher.metric_ == "cosine":
        index.prepend_transform(faiss.NormalizationTransform(transform.d_in))
    if source is None:
        return index
    origin = _as_index(source)
    n_bits = int(origin.hasher.n_bits)
    if n_bits != transform.d_out:
        raise DataError(f"the hasher has {transform.d_out} bits, got codes of {n_bits}; pass codes that it made")
    named = faiss.IndexIDMap2(index)  # it wraps only an empty index
    all_ids = [np.empty(0, dtype=np.int64)]
    for ids, codes in _parts(origin):
        signs.add_sa_codes(codes.packed)
        all_ids.append(ids)
    faiss.copy_array_to_vector(np.concatenate(all_ids), named.id_map)
    index.ntotal = named.ntotal = signs.ntotal
    named.construct_rev_map()
    return named


def write_faiss(index: Any, path: str | os.PathLike[str]) -> None:
    """Write a FAISS index, binary or not, to a file atomically."""
    faiss, target = _faiss_package(), as_path(path)
    if not isinstance(index, faiss.Index | faiss.IndexBinary):
        raise DataTypeError(f"an index of FAISS is needed, got {type(index).__name__}; make one with to_faiss")
    write = faiss.write_index_binary if isinstance(index, faiss.IndexBinary) else faiss.write_index
    try:
        with atomic_writer(target) as stream:
            write(index, stream.name)
    except (OSError, RuntimeError) as error:  # FAISS raises RuntimeError when the disk is full
        raise StorageError(f"{target} cannot be written: {reason_of(error)}") from error


class FaissEngine(Engine):
    """Codes in a file of FAISS that holds an ``IndexBinaryIDMap2`` of an ``IndexBinaryFlat``.

    FAISS works in memory. Changes are written to the file atomically by :meth:`save`, by :meth:`close` and at the end
    of a ``with`` block. A ``with`` block that ends in an error leaves the file as it was. Two processes that
    change one file do not see each other's changes, and the last to save wins. FAISS stores no vectors with the codes.

    Parameters
    ----------
    path : path
        The file; if it does not exist yet, the first :meth:`save` makes it.
    n_bits, bitorder
        As in :class:`Engine`; the file records neither.
    """

    _noun: ClassVar[str] = "the FAISS index"

    def __init__(self, path: str | os.PathLike[str], n_bits: SupportsIndex, bitorder: BitOrder = "little") -> None:
        super().__init__(n_bits, bitorder=bitorder)
        self._faiss = _faiss_package()
        self.path = as_path(path)
        self._changed = not self.path.exists()
        if self._changed:
            if not self.path.parent.is_dir():
                raise StorageError(f"{self.path} cannot be made: there is no folder {self.path.parent}; make it first")
            self._index = self._faiss.IndexBinaryIDMap2(self._faiss.IndexBinaryFlat(8 * self._n_bytes))
        else:
            with clear_read_errors(self.path):
                self.path.open("rb").close()
            try:
                self._index = self._faiss.read_index_binary(os.fspath(self.path))
            except Exception as error:  # FAISS raises RuntimeError, MemoryError and others for a damaged file
                what = f"{self.path} is damaged or holds no binary index of FAISS"
                raise FormatError(f"{what}; write it again") from error
            self._check_content(self._index)

    def save(self) -> None:
        """Write the index to its file, if it has changed since it was read or written."""
        self._check_open()
        if self._changed:
            write_faiss(self._index, self.path)
            self._changed = False

    def __exit__(self, *exception: object) -> None:
        self._changed = self._changed and exception[0] is None
        self.close()

    def _write(self, codes: Codes, ids: Ids, vectors: Floats | None) -> None:  # noqa: ARG002
        replaced = np.intersect1d(ids, self._all_ids())
        if len(replaced):
            self._index.remove_ids(replaced)
        self._index.add_with_ids(codes.to_packed(self.bitorder), ids)
        self._changed = True

    def _search(self, queries: Codes, k: int, effort: int | None) -> Iterable[Hits]:  # noqa: ARG002
        depth = min(k, self._count())
        found = self._index.search(queries.to_packed(self.bitorder), max(1, depth))  # of an empty one, the id -1
        return ((distances[:depth], ids[:depth]) for distances, ids in zip(*found, strict=True))

    def _delete(self, ids: Ids) -> None:
        self._index.remove_ids(ids)
        self._changed = True

    def _fetch(self, ids: Ids, column: str) -> tuple[Any, Any]:  # noqa: ARG002
        found, _, places = np.intersect1d(ids, self._all_ids(), assume_unique=True, return_indices=True)
        return found, self._packed()[places]

    def _count(self) -> int:
        return int(self._index.ntotal)

    def _close(self) -> None:
        self.save()

    def _all_ids(self) -> Ids:
        return self._faiss.vector_to_array(self._index.id_map)

    def _packed(self) -> npt.NDArray[np.uint8]:
        """The memory of FAISS with the codes; it is valid until the index changes."""
        flat = self._faiss.downcast_IndexBinary(self._index.index)
        if not self._count():
            return np.empty((0, self._n_bytes), dtype=np.uint8)
        memory: npt.NDArray[np.uint8] = self._faiss.rev_swig_ptr(flat.xb.data(), self._count() * self._n_bytes)
        return memory.reshape(-1, self._n_bytes)

    def _check_content(self, index: Any) -> None:
        faiss = self._faiss
        named = isinstance(index, faiss.IndexBinaryIDMap2)
        inner = faiss.downcast_IndexBinary(index.index) if named else index
        if not named or not isinstance(inner, faiss.IndexBinaryFlat):
            kinds = type(index).__name__ + (f" of an {type(inner).__name__}" if named else "")
            raise DataError(
                f"{self.path} holds an {kinds}, expected an IndexBinaryIDMap2 of an IndexBinaryFlat, as to_faiss makes "
                "it; search it with FAISS itself, or export the codes again with kind='flat'"
            )
        if index.d != 8 * self._n_bytes:
            raise DataError(f"{self.path} holds codes of {index.d} bits, expected {self.n_bits}; give their length")
        padding = 8 * self._n_bytes - self.n_bits
        unused = (2**padding - 1) << (8 - padding if self.bitorder == "little" else 0)
        if (self._packed()[:, -1] & unused).any():
            raise DataError(f"{self.path} holds codes of more than {self.n_bits} bits; give their length")
        ids = self._all_ids()
        if (ids < 0).any() or len(np.unique(ids)) < len(ids):
            raise DataError(f"{self.path} has ids that are negative or not unique; expected each once, from 0 on")


def _faiss_package() -> Any:
    """Import the package ``faiss``, or raise an error that says how to install it."""
    return import_extra("faiss", "faiss", "an index of FAISS")


def _as_options(kind: Any, options: dict[str, Any]) -> dict[str, int]:
    if not isinstance(kind, str) or kind not in _OPTIONS:
        raise DataError(f"kind must be 'flat', 'ivf' or 'hnsw', got {kind!r}")
    limits = _OPTIONS[kind]
    for name in options:
        if name not in limits:
            known = ", ".join(limits) or "none"
            raise DataError(f"{name} is no option of a FAISS index of kind {kind!r}, expected: {known}; leave it out")
    why = "the most that an index of FAISS is made with"
    return {name: as_count(name, value, limits[name][1], why, least=limits[name][0]) for name, value in options.items()}


def _as_transform(faiss: Any, hasher: Any) -> Any:
    if not isinstance(hasher, Hasher):
        raise DataTypeError(f"a fitted hasher is needed, got {type(hasher).__name__}; pass for example an ITQ")
    check_fitted(hasher)
    if not isinstance(hasher, LinearHasher):
        raise DataError(
            f"FAISS hashes by hyperplanes, and {type(hasher).__name__} has none; export its codes with to_faiss"
        )
    if hasher.metric_ == "inner_product":
        raise DataError(f"FAISS cannot hash for inner products, as this {type(hasher).__name__} does; use to_faiss")
    with np.errstate(over="ignore"):
        weights, offsets = (np.ascontiguousarray(to_host(part), dtype=np.float32) for part in hasher.hyperplanes())
    if not (np.isfinite(weights).all() and np.isfinite(offsets).all()):
        raise DataError("single precision cannot hold the hyperplanes of this hasher; export its codes with to_faiss")
    transform = faiss.LinearTransform(weights.shape[1], weights.shape[0], True)
    faiss.copy_array_to_vector(weights.ravel(), transform.A)
    faiss.copy_array_to_vector(offsets, transform.b)
    transform.is_trained = True
    return transform


def _inverted_lists(faiss: Any, source: Index, bits: int, chosen: dict[str, int], bitorder: BitOrder) -> Any:
    n = len(source)
    nlist = chosen.get("nlist", max(1, round(n**0.5)))
    if n < nlist:
        raise DataError(f"{nlist} lists need at least as many codes to be learned from, got {n}; use kind='flat'")
    index = faiss.index_binary_factory(bits, f"BIVF{nlist}")
    index.cp.min_points_per_centroid = 1  # FAISS would print a warning otherwise
    index.nprobe = min(nlist, chosen.get("nprobe", max(1, nlist // 16)))
    rows = np.linspace(0, n - 1, min(n, _TRAINING_CODES_PER_LIST * nlist)).astype(np.int64)
    index.train(source.codes(source.ids[rows]).to_packed(bitorder))
    return index


def _graph(faiss: Any, bits: int, chosen: dict[str, int]) -> Any:
    index = faiss.IndexBinaryHNSW(bits, chosen.get("M", 32))
    index.hnsw.efConstruction = chosen.get("ef_construction", 40)
    index.hnsw.efSearch = chosen.get("ef_search", 64)
    return index


def _as_index(source: Any) -> Index:
    if not isinstance(source, Index | Codes):
        raise DataTypeError(f"an Index or Codes are needed, got {type(source).__name__}; use hasher.encode(X)")
    return source if isinstance(source, Index) else Index.from_codes(source)


def _parts(source: Index) -> Iterator[tuple[Ids, Codes]]:
    """Blocks of ids and codes. FAISS takes integers alone, so an index with names gives places in ``index.ids``."""
    row = 0
    for part in source.parts():
        yield part.ids if part.names is None else np.arange(row, row + len(part.ids)), part.codes
        row += len(part.ids)
