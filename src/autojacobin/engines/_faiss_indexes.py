"""FAISS indexes made of codes and of hashers, for programs that use FAISS and nothing of this library."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal

import numpy as np
from sklearn.utils.validation import check_is_fitted

from autojacobin.codes import Codes
from autojacobin.core.arrays import to_host
from autojacobin.engines._contract import Ids
from autojacobin.errors import DataError, DataTypeError, MissingExtraError
from autojacobin.hashers import Hasher
from autojacobin.hashers.base import LinearHasher
from autojacobin.index.index import Index
from autojacobin.search._arguments import checked_count

__all__ = ["faiss_package", "hasher_to_faiss", "to_faiss"]

_MOST_LINKS = 2**11  # that other engines take too; the memory of a graph is in proportion
_MOST_IN_VIEW = 2**20  # FAISS sets aside room for as many in every search
_OPTIONS: dict[str, dict[str, int | None]] = {  # and the largest value of each
    "flat": {},
    "ivf": {"nlist": None, "nprobe": None},
    "hnsw": {"M": _MOST_LINKS, "ef_construction": _MOST_IN_VIEW, "ef_search": _MOST_IN_VIEW},
}
_ROWS_PER_BLOCK = 2**16
_TRAINING_CODES_PER_LIST = 64


def faiss_package() -> Any:
    """Give the package ``faiss``, or say how to install it."""
    try:
        import faiss
    except ImportError as error:
        raise MissingExtraError("faiss", "faiss", "an index of FAISS") from error
    return faiss


def to_faiss(
    source: Index | Codes,
    kind: Literal["flat", "ivf", "hnsw"] = "flat",
    *,
    progress: Callable[[str, int, int], None] | None = None,
    **options: int,
) -> Any:
    """Make a binary FAISS index with the codes and ids of an index, or with codes whose ids are their row numbers.

    ``flat`` is exact, up to the order of equal distances; the other two trade recall for speed. FAISS wants whole
    bytes: a code of 20 bits becomes one of 24 with zeros at its end, which changes no distance.

    Parameters
    ----------
    source : Index or Codes
        An index passes through in blocks.
    kind : {"flat", "ivf", "hnsw"}
        An ``IndexBinaryIDMap2`` of an ``IndexBinaryFlat``, an ``IndexBinaryIVF``, or an ``IndexBinaryIDMap2`` of an
        ``IndexBinaryHNSW``.
    progress : callable, optional
        ``progress(stage, done, total)``, called after each block of codes.
    **options : int
        For ``ivf``: ``nlist``, the number of lists (by default the root of the number of codes), and ``nprobe``, how
        many of them a search looks at (by default a sixteenth of them). For ``hnsw``: ``M``, links a code, from 2
        to 2048 (32), ``ef_construction`` (40) and ``ef_search`` (64), how many codes are kept in view.

    Returns
    -------
    faiss.IndexBinary
        Search it with packed codes, ``index.search(codes.packed, k)``; write it with ``faiss.write_index_binary``.

    Examples
    --------
    >>> from autojacobin import Codes
    >>> from autojacobin.engines import to_faiss
    >>> codes = Codes.from_bits([[0, 0, 0, 0], [0, 1, 1, 1], [1, 1, 1, 1]])
    >>> distances, ids = to_faiss(codes).search(codes[2].packed, 2)
    >>> distances, ids
    (array([[0, 1]], dtype=int32), array([[2, 1]]))
    """
    faiss = faiss_package()
    chosen = _checked_options(kind, options)
    n, width = _size_of(source)
    if kind == "ivf":
        index = _inverted_lists(faiss, source, n, width, chosen)
    else:
        inner = faiss.IndexBinaryFlat(8 * width) if kind == "flat" else _graph(faiss, width, chosen)
        index = faiss.IndexBinaryIDMap2(inner)
    for ids, codes in _blocks(source):
        index.add_with_ids(codes.packed, ids)
        if progress is not None:
            progress("adding codes", int(index.ntotal), n)
    return index


def hasher_to_faiss(hasher: Hasher, source: Index | Codes | None = None) -> Any:
    """Make a FAISS index that hashes by itself: vectors go in, and are searched by their codes.

    It is an ``IndexPreTransform`` of a ``LinearTransform`` with the hyperplanes of the hasher and an ``IndexLSH`` that
    takes their signs. Saved with ``faiss.write_index``, it encodes (``index.sa_encode``), adds and searches with no
    code of this library. Its bits are those of ``hasher.encode``: both are 1 where the projection is not negative.
    FAISS computes in single precision and adds in another order, so a bit may differ where the projection is zero up
    to rounding.

    Parameters
    ----------
    hasher : Hasher
        A fitted hasher with hyperplanes, which is all of them but ``SpectralHashing``.
    source : Index or Codes, optional
        Codes to fill the index with, made by this hasher. For an ``Index`` the result is wrapped into an
        ``IndexIDMap2`` with its ids.

    Examples
    --------
    >>> import numpy as np
    >>> from autojacobin import ITQ
    >>> from autojacobin.engines import hasher_to_faiss
    >>> X = np.random.default_rng(0).normal(size=(500, 16)).astype(np.float32)
    >>> hasher = ITQ(n_bits=12, random_state=0).fit(X)
    >>> index = hasher_to_faiss(hasher)
    >>> index.add(X)
    >>> bool((index.sa_encode(X) == hasher.encode(X).packed).all())
    True
    """
    faiss = faiss_package()
    transform = _hyperplanes(faiss, hasher)
    signs = faiss.IndexLSH(transform.d_out, transform.d_out, False, False)
    index = faiss.IndexPreTransform(transform, signs)
    if source is None:
        return index
    _size_of(source)
    n_bits = source.n_bits if isinstance(source, Codes) else int(source.hasher.n_bits)
    if n_bits != transform.d_out:
        raise DataError(
            f"the codes must have the {transform.d_out} bits of the hasher, got {n_bits} bits; "
            "pass codes that this hasher made"
        )
    named = faiss.IndexIDMap2(index) if isinstance(source, Index) else None  # which takes only an empty one
    all_ids = []
    for ids, codes in _blocks(source):
        signs.add_sa_codes(codes.packed)
        all_ids.append(ids)
    index.ntotal = signs.ntotal
    if named is None:
        return index
    faiss.copy_array_to_vector(np.concatenate([np.empty(0, dtype=np.int64), *all_ids]), named.id_map)
    named.ntotal = signs.ntotal
    named.construct_rev_map()
    return named


def _checked_options(kind: Any, options: dict[str, Any]) -> dict[str, int]:
    if not isinstance(kind, str) or kind not in _OPTIONS:
        raise DataError(f"kind must be 'flat', 'ivf' or 'hnsw', got {kind!r}")
    limits = _OPTIONS[kind]
    for name in options:
        if name not in limits:
            known = ", ".join(limits) or "none"
            raise DataError(f"{name} is no option of a FAISS index of kind {kind!r}, expected: {known}; leave it out")
    links = options.get("M", 2)
    if isinstance(links, int) and links < 2:  # FAISS divides by the logarithm of 1, and the process ends
        raise DataError(f"M must be an integer from 2 to {_MOST_LINKS}, got {links!r}; ask for more links")
    return {
        name: checked_count(name, value, limits[name], "the most that an index of FAISS is made with")
        for name, value in options.items()
    }


def _hyperplanes(faiss: Any, hasher: Any) -> Any:
    if not isinstance(hasher, Hasher):
        raise DataTypeError(f"a fitted hasher is needed, got {type(hasher).__name__}; pass for example an ITQ")
    check_is_fitted(hasher)
    hasher._refuse_changes_after_fit()
    if not isinstance(hasher, LinearHasher):
        raise DataError(
            f"FAISS can only hash by hyperplanes, and {type(hasher).__name__} has none; export its codes with "
            "to_faiss, or use another method, such as ITQ"
        )
    with np.errstate(over="ignore"):
        weights, offsets = (np.ascontiguousarray(to_host(part), dtype=np.float32) for part in hasher.hyperplanes())
    if not (np.isfinite(weights).all() and np.isfinite(offsets).all()):
        raise DataError(
            f"FAISS hashes in single precision, which cannot hold the hyperplanes of this {type(hasher).__name__}; fit "
            "it on vectors of smaller numbers, or export its codes with to_faiss"
        )
    transform = faiss.LinearTransform(weights.shape[1], weights.shape[0], True)
    faiss.copy_array_to_vector(weights.ravel(), transform.A)
    faiss.copy_array_to_vector(offsets, transform.b)
    transform.is_trained = True
    return transform


def _inverted_lists(faiss: Any, source: Index | Codes, n: int, width: int, chosen: dict[str, int]) -> Any:
    nlist = chosen.get("nlist", max(1, round(n**0.5)))
    if not n:
        raise DataError("inverted lists are learned from the codes, got none; use kind='flat', or add codes first")
    if n < nlist:
        raise DataError(f"{nlist} lists need at least as many codes to be learned from, got {n}; ask for fewer lists")
    coarse = faiss.IndexBinaryFlat(8 * width)
    index = faiss.IndexBinaryIVF(coarse, 8 * width, nlist)
    coarse.this.disown()
    index.own_fields = True
    index.cp.min_points_per_centroid = 1  # or FAISS prints a warning, and then goes on all the same
    index.nprobe = min(nlist, chosen.get("nprobe", max(1, nlist // 16)))
    rows = np.linspace(0, n - 1, min(n, _TRAINING_CODES_PER_LIST * nlist)).astype(np.int64)
    sample = source[rows].to_device("cpu") if isinstance(source, Codes) else source.codes(source.ids[rows])
    index.train(sample.packed)
    return index


def _graph(faiss: Any, width: int, chosen: dict[str, int]) -> Any:
    index = faiss.IndexBinaryHNSW(8 * width, chosen.get("M", 32))
    index.hnsw.efConstruction = chosen.get("ef_construction", 40)
    index.hnsw.efSearch = chosen.get("ef_search", 64)
    return index


def _size_of(source: Any) -> tuple[int, int]:
    """Number of codes, and bytes of one."""
    if isinstance(source, Codes):
        return len(source), source.packed.shape[1]
    if isinstance(source, Index):
        return len(source), -(-int(source.hasher.n_bits) // 8)
    raise DataTypeError(f"an Index or Codes are needed, got {type(source).__name__}; use hasher.encode(X)")


def _blocks(source: Index | Codes) -> Iterator[tuple[Ids, Codes]]:
    if isinstance(source, Index):
        yield from ((part.ids, part.codes) for part in source.parts())
        return
    for start in range(0, len(source), _ROWS_PER_BLOCK):
        block = source[start : start + _ROWS_PER_BLOCK].to_device("cpu")
        yield np.arange(start, start + len(block), dtype=np.int64), block
