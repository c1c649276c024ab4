"""Search by the distance to what codes decode to.

With s ∈ {−1, 1} all bits of a code, this distance is constant − weights·s for each query, which is a weighted Hamming
distance:

    constant − Σ |weight| + 2 Σ |weight| over the bits where the code differs from the sign of the weight

A part of each code is the number of a level (``BinaryAutoencoder``), and its bits may weigh many times as much as the
others. So weights are whole numbers of up to 15 for most bits, and of up to 255 for those of the level. Codes of up to
64 bits have weights of up to 31, because they need more candidates, and rounding costs them more.
"""

from __future__ import annotations

from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt

from autojacobin.codes import Codes
from autojacobin.core.arrays import device_of, namespace, on_device, to_host
from autojacobin.errors import DataError, DataTypeError
from autojacobin.search.asymmetric import LARGEST_WEIGHT, lifted_magnitudes, weighted_queries, weighted_topk
from autojacobin.search.gpu import DeviceQueries
from autojacobin.search.queries import LARGEST_DISTANCE, DistanceTerms, Queries

_PLANES = 8
_LARGEST_OF_SHORT_CODES = 31
_SHORT = 64
_LARGEST_OF_LEVELS = 2**_PLANES - 1
_LARGEST_LEVEL_SUM = 2 * _LARGEST_OF_LEVELS + _PLANES // 2  # each bit weighs half of the next one, rounded
_LONGEST = (LARGEST_DISTANCE - _LARGEST_LEVEL_SUM) // 2


def decoded_queries(terms: DistanceTerms) -> Queries | DeviceQueries:
    """Prepare the terms of a distance as queries, with whole weights in units of their own for each query."""
    weights, constants, n_level_bits = terms
    xp = namespace(weights)
    n_bits = weights.shape[1] - n_level_bits
    if n_bits > _LONGEST:
        raise DataError(
            f"a search by decoded codes takes codes of at most {_LONGEST:,} bits, got {n_bits:,}; use shorter codes, "
            "or decoded_topk with exact=True"
        )
    largest = largest_weight(n_bits)
    magnitudes, lifts = lifted_magnitudes(weights)
    units = magnitudes[:, :n_bits].max(axis=1) / largest
    if n_level_bits:
        units = xp.maximum(units, magnitudes[:, n_bits:].max(axis=1) / _LARGEST_OF_LEVELS)
    units[units == 0] = 1.0
    whole = xp.rint(magnitudes / units[:, None])
    units = xp.ldexp(units, -lifts)
    return weighted_queries(
        weights >= 0,
        whole.astype(xp.uint8),
        _PLANES,
        largest * n_bits + _LARGEST_LEVEL_SUM,
        2 * units,
        on_device(constants, device_of(weights)) - units * whole.sum(axis=1),
    )


def largest_weight(n_bits: int, distance: str = "decoded") -> int:
    """The largest whole weight of a bit, for codes with ``n_bits`` bits beside those of the level."""
    wanted = _LARGEST_OF_SHORT_CODES if n_bits <= _SHORT and distance == "decoded" else LARGEST_WEIGHT
    return int(min(wanted, (LARGEST_DISTANCE - _LARGEST_LEVEL_SUM) // n_bits))


def decoded_topk(
    terms: DistanceTerms,
    base: Codes,
    k: SupportsIndex,
    *,
    exact: bool = False,
    subset: npt.ArrayLike | None = None,
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """Find the ``k`` codes of ``base`` that decode to the vectors nearest to each query.

    Parameters
    ----------
    terms : DistanceTerms
        What ``hasher.distance_terms`` gives for the queries.
    base : Codes
        Codes of the same hasher. If they are on a GPU, the result is in CuPy arrays, and the search runs there
        unless it is ``exact``.
    k : int
        Neighbours of each query, from 1 to ``len(base)``, or to the size of the subset.
    exact : bool, default=False
        Rank by the real weights. By default they are rounded to whole numbers first, which is many times faster.
    subset : array of int or mask, optional
        Rows of ``base`` to search among; the others do not count.

    Returns
    -------
    distances, ids : arrays of shape (n_queries, k)
        Distances in ascending order; equal distances in order of id.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from autojacobin import BinaryAutoencoder
    >>> from autojacobin.search import decoded_topk
    >>> X = load_digits().data
    >>> hasher = BinaryAutoencoder(32, random_state=0).fit(X)
    >>> distances, ids = decoded_topk(hasher.distance_terms(X[:3]), hasher.encode(X), k=1)
    >>> ids.ravel()
    array([0, 1, 2])
    """
    if not isinstance(terms, DistanceTerms):
        raise DataTypeError(f"terms must be DistanceTerms, got {type(terms).__name__}; use hasher.distance_terms(X)")
    if isinstance(base, Codes) and terms.weights.shape[1:] != (base.n_bits,):
        raise DataError(
            f"the terms are for codes of {terms.weights.shape[1]} bits, got a base of {base.n_bits} bits; encode the "
            "base with the hasher that gave the terms"
        )

    def prepare(weights: Any) -> Queries | DeviceQueries:
        return decoded_queries(terms._replace(weights=weights))

    found, ids = weighted_topk(terms.weights, base, k, prepare, exact, subset)
    if not exact:
        return found, ids
    xp = namespace(found)
    smallest = to_host(terms.constants) - np.abs(to_host(terms.weights).astype(np.float64)).sum(axis=1)
    return (xp.asarray(smallest)[:, None] + 2.0 * found).astype(xp.float32), ids
