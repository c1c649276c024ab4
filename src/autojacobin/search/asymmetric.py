"""Asymmetric search: the query keeps its real-valued projection, and the base has only bits.

With p the projection of a query and s ∈ {−1, 1} the bits of a code, the distance is the sum of |p_j| over the bits that
differ from the sign of the projection. This is a Hamming distance in which each bit has a weight of its own
for each query. It is (Σ|p_j| − p·s) / 2, so it ranks codes as ‖p − s‖² does. It finds more than the plain Hamming
distance does with codes of twice the length.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt

from autojacobin._native import kernels
from autojacobin.codes import Codes
from autojacobin.core.arrays import device_of, namespace, on_device, to_host
from autojacobin.core.parallel import run_tasks
from autojacobin.errors import DataError, DataTypeError
from autojacobin.search.arguments import search_rows
from autojacobin.search.gpu import DeviceQueries
from autojacobin.search.kernels.selection import smallest
from autojacobin.search.queries import LARGEST_DISTANCE, Queries
from autojacobin.search.tiles import code_words, tiles_of

_PLANES = 4
LARGEST_WEIGHT = 2**_PLANES - 1
_LONGEST = LARGEST_DISTANCE // LARGEST_WEIGHT
_SUBNORMAL_BELOW = 2.0**-1000  # a fraction of a smaller number may lose digits, or become zero
_LIFT = 200


def asymmetric_queries(projections: Any) -> Queries | DeviceQueries:
    """Prepare projections as queries: the |projections| of each query become weights, the largest of them 15."""
    xp = namespace(projections)
    values = xp.asarray(projections)
    if values.shape[1] > _LONGEST:
        raise DataError(
            f"an asymmetric search takes codes of at most {_LONGEST:,} bits, got {values.shape[1]:,}; use shorter "
            "codes, the Hamming distance, or asymmetric_topk with exact=True"
        )
    magnitudes, lifts = lifted_magnitudes(values)
    largest = magnitudes.max(axis=1)
    steps = xp.where(largest > 0, largest / LARGEST_WEIGHT, 1.0)
    scales = xp.where(largest > 0, xp.ldexp(steps, -lifts), 0.0)
    weights = xp.rint(magnitudes / steps[:, None]).astype(xp.uint8)
    return weighted_queries(values >= 0, weights, _PLANES, LARGEST_WEIGHT * values.shape[1], scales)


def lifted_magnitudes(values: Any) -> tuple[Any, Any]:
    """Give |values| in double precision, with rows of subnormal numbers times 2^lift, and the lift of each row.

    A fraction of a subnormal number has few digits or none, and whole weights made with it would be wrong.
    """
    xp = namespace(values)
    magnitudes = xp.abs(xp.asarray(values, dtype=xp.float64))
    lifts = xp.where(magnitudes.max(axis=1) < _SUBNORMAL_BELOW, _LIFT, 0)
    if xp is not np:  # where it costs less than to look whether there are any
        return xp.ldexp(magnitudes, lifts[:, None]), lifts
    tiny = np.flatnonzero(lifts)
    if len(tiny):
        magnitudes[tiny] = np.ldexp(magnitudes[tiny], _LIFT)
    return magnitudes, lifts


def weighted_queries(
    bits: Any, weights: Any, n_planes: int, largest: int, scales: Any, constants: Any = None
) -> Queries | DeviceQueries:
    """Queries of some bits with whole weights, of which no sum exceeds ``largest``; on a GPU if these arrays are."""
    if namespace(weights) is not np:
        return DeviceQueries.weighted(bits, weights, scales, constants)
    planes = [code_words(Codes.from_bits(weights >> plane & 1)) for plane in range(n_planes)]
    return Queries(
        words=np.array(code_words(Codes.from_bits(bits))),
        n_levels=largest + 1,
        planes=np.stack(planes, axis=1),
        scales=scales,
        constants=constants,
    )


def asymmetric_topk(
    projections: Any,
    base: Codes,
    k: SupportsIndex,
    *,
    exact: bool = False,
    subset: npt.ArrayLike | None = None,
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """Find the ``k`` codes of ``base`` nearest to each projection.

    Parameters
    ----------
    projections : matrix of shape (n_queries, n_bits)
        What ``hasher.project`` gives for the queries.
    base : Codes
        Codes of ``n_bits`` bits, at most 2,184 unless ``exact``. If they are on a GPU, the result is in CuPy arrays.
        The search runs there, with at most 1,024 bits, unless it is ``exact``.
    k : int
        Neighbours of each query, from 1 to ``len(base)``, or to the size of the subset.
    exact : bool, default=False
        Rank by the real numbers themselves. By default each query's projections are quantised to 16 steps first, which
        is many times faster and changes m-Recall by less than 0.002.
    subset : array of int or mask, optional
        Rows of ``base`` to search among; the others do not count.

    Returns
    -------
    distances, ids : arrays of shape (n_queries, k)
        Sum of |projection| over the bits that differ, in ascending order; equal distances in order of id.

    Examples
    --------
    >>> from autojacobin import Codes
    >>> from autojacobin.search import asymmetric_topk
    >>> base = Codes.from_bits([[1, 1], [1, 0], [0, 1]])
    >>> asymmetric_topk([[0.5, -1.5]], base, k=3)
    (array([[0. , 1.5, 2. ]], dtype=float32), array([[1, 0, 2]]))
    """
    return weighted_topk(projections, base, k, asymmetric_queries, exact, subset)


def weighted_topk(
    projections: Any,
    base: Codes,
    k: SupportsIndex,
    prepare: Callable[[Any], Any],
    exact: bool,
    subset: npt.ArrayLike | None,
) -> tuple[Any, Any]:
    """Search with queries that ``prepare`` makes of projections; by real numbers, the distances are sums of |p|."""
    values, device = _as_projections(projections, base), device_of(base.packed)

    def search(codes: Codes, wanted: int) -> tuple[Any, Any]:
        if exact:
            found = _exact_topk(to_host(values), codes.to_device("cpu"), wanted)
            return on_device(found[0], device), on_device(found[1], device)
        queries = prepare(on_device(values, device))
        steps, ids = tiles_of(codes).nearest(queries, wanted)
        return queries.real(steps), ids

    return search_rows(base, k, subset, search)


def _as_projections(projections: Any, base: Any) -> npt.NDArray[Any]:
    if not isinstance(base, Codes):
        raise DataTypeError(f"base must be Codes, got {type(base).__name__}; use hasher.encode(X)")
    values: npt.NDArray[Any] = namespace(projections).asarray(projections)
    if namespace(base.packed) is np:
        values = to_host(values)
    if values.ndim != 2 or values.shape[1] != base.n_bits or values.dtype.kind not in "fiu":
        raise DataError(
            f"projections must be a matrix of numbers with {base.n_bits} columns, one for each bit, got {values.dtype} "
            f"of shape {values.shape}; use hasher.project(X)"
        )
    finite = namespace(values).isfinite(values)
    if not finite.all():
        row, column = np.unravel_index(int(finite.argmin()), values.shape)
        raise DataError(f"projections must be finite, got {values[row, column]} in row {row}, column {column}")
    return values


def _exact_topk(projections: npt.NDArray[Any], base: Codes, k: int) -> tuple[Any, Any]:
    """Search by real numbers: sums over tables of the 256 values of each byte, always in the same order."""
    distances, ids = np.empty((len(projections), k), dtype=np.float32), np.empty((len(projections), k), dtype=np.int64)

    def search(q: int) -> None:
        sums = kernels.table_sums(base.packed, _tables(projections[q].astype(np.float64)))
        distances[q], ids[q] = smallest(sums, k)

    run_tasks(search, [(q,) for q in range(len(projections))])
    return distances, ids


def _tables(projection: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """For every byte of a code and each of its values, the sum of |p| over the bits that differ from the signs of p."""
    padded = np.zeros(-(-len(projection) // 8) * 8)
    padded[: len(projection)] = projection
    bits = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
    differs = bits[None] != (padded.reshape(-1, 1, 8) >= 0)
    return np.where(differs, np.abs(padded).reshape(-1, 1, 8), 0).sum(axis=2)
