"""Exact Hamming search."""

from __future__ import annotations

import operator
from typing import SupportsIndex

import numpy as np
import numpy.typing as npt

from autojacobin.codes import Codes
from autojacobin.errors import DataError, DataTypeError

__all__ = ["hamming_topk"]

_DISTANCES_PER_BLOCK = 2**24


def hamming_topk(queries: Codes, base: Codes, k: SupportsIndex) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
    """Find the ``k`` codes of ``base`` nearest to each query in Hamming distance.

    Parameters
    ----------
    queries, base : Codes
        Codes of the same length.
    k : int
        Neighbours a query, from 1 to ``len(base)``.

    Returns
    -------
    distances, ids : arrays of shape (len(queries), k)
        In order of distance; equal distances in order of id.

    Examples
    --------
    >>> from autojacobin import Codes
    >>> from autojacobin.search import hamming_topk
    >>> base = Codes.from_bits([[0, 0, 0], [1, 1, 1], [0, 1, 1]])
    >>> hamming_topk(Codes.from_bits([[0, 1, 0]]), base, k=2)
    (array([[1, 1]], dtype=int32), array([[0, 2]]))
    """
    wanted = _checked(queries, base, k)
    words, query_words = _words(base), _words(queries)
    distances = np.empty((len(queries), wanted), dtype=np.int32)
    ids = np.empty((len(queries), wanted), dtype=np.int64)
    block = max(1, _DISTANCES_PER_BLOCK // len(base))
    numbers = np.arange(len(base))
    for start in range(0, len(queries), block):
        rows = slice(start, start + block)
        found = np.zeros((len(query_words[rows]), len(base)), dtype=np.int64)
        for word in range(words.shape[1]):
            found += np.bitwise_count(query_words[rows, word, None] ^ words[None, :, word])
        # distance and id in one number: its order is the order wanted, ties included
        keys = found * len(base) + numbers
        if wanted < len(base):
            keys = np.partition(keys, wanted - 1, axis=1)[:, :wanted]
        keys.sort(axis=1)
        distances[rows], ids[rows] = np.divmod(keys, len(base))
    return distances, ids


def _checked(queries: Codes, base: Codes, k: SupportsIndex) -> int:
    for name, codes in (("queries", queries), ("base", base)):
        if not isinstance(codes, Codes):
            raise DataTypeError(f"{name} must be Codes, got {type(codes).__name__}; use hasher.encode(X)")
    if queries.n_bits != base.n_bits:
        raise DataError(
            f"queries and base must have codes of one length, got {queries.n_bits} and {base.n_bits} bits; "
            "encode both with the same hasher"
        )
    try:
        wanted = operator.index(k)
    except TypeError:
        raise DataTypeError(f"k must be an integer from 1 to {len(base)}, got {k!r}") from None
    if not 1 <= wanted <= len(base):
        raise DataError(f"k must be from 1 to {len(base)}, the number of codes in the base, got {wanted}")
    return wanted


def _words(codes: Codes) -> npt.NDArray[np.uint64]:
    """Packed bytes as 64-bit words; the bytes that fill up the last word are zero and never count."""
    padded = np.zeros((len(codes), -(-codes.packed.shape[1] // 8) * 8), dtype=np.uint8)
    padded[:, : codes.packed.shape[1]] = codes.packed
    return padded.view(np.uint64)
