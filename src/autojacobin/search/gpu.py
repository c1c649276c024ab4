"""Search on a GPU: codes and vectors that are CuPy arrays; ``docs/gpu.md`` describes the steps.

A sample gives each query a *limit*, and one pass over all codes or vectors appends those within it to the *hits* of the
query. A query that may lack some gets a second turn, in which all its distances are stored. So the answers are exact.
Weighted distances are sums of whole weights, which products of matrices in fp16 with sums in float32 add up without
error.

Arrays of NumPy pass through the same steps if something else runs the kernels (``kernels/gpu.cu``), as the tests do.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from autojacobin.codes import Codes
from autojacobin.core.arrays import namespace, on_device, to_host
from autojacobin.core.parallel import slices
from autojacobin.errors import DataError
from autojacobin.search.queries import Projection

_LONGEST = 1_024  # bits
_THREADS, _MOST_THREADS = 256, 1024
_SAMPLE, _LARGEST_SAMPLE, _CODES_PER_SAMPLED = 2**14, 2**18, 256
_FEWEST_HITS, _MOST_SORTED, _MOST_HITS = 2**12, 2**14, 2**17  # room for hits; the second fits shared memory
_NUMBERS_AT_ONCE = 2**27
_PRODUCTS_AT_ONCE, _DOUBLES_AT_ONCE = 2**26, 2**24
_FEW, _MOST_RECORDED = 8, 16  # queries that are recorded, and kinds of such searches
_CODE_BITS, _SCORE_BITS = 16, 32  # of a distance, and of a score of a vector
_UNIT = 2.0**-24  # the largest relative error of rounding to float32
_TYPES = {"uint8": "u8", "float16": "u16", "float32": "float", "float64": "double"}


class Sampling(NamedTuple):
    """How many codes to sample, which rank in the sample is the limit, and for how many hits there is room."""

    size: int
    rank: int
    capacity: int

    @classmethod
    def of(cls, n: int, k: int, largest: int = _MOST_HITS) -> Sampling | None:
        """For the ``k`` nearest of ``n``; None if sampling does not pay.

        About λ = k · size / n of the sample are among the k nearest. That more are than the rank allows for, so that
        hits are missing, happens to about one query in a million.
        """
        size = min(max(_SAMPLE, n // _CODES_PER_SAMPLED), _LARGEST_SAMPLE, max(1, n // 4))
        expected = k * size / n
        rank = math.ceil(expected + 4.8 * math.sqrt(expected) + 3)
        hits = rank * n / size
        capacity = max(_FEWEST_HITS, 1 << math.ceil(math.log2(3 * hits)))
        if capacity > _MOST_SORTED and 1.5 * hits <= _MOST_SORTED:
            capacity = _MOST_SORTED
        return None if n <= _MOST_SORTED or 16 * k > n or capacity > largest else cls(size, rank, capacity)


def takes(dtype: Any) -> bool:
    """Return whether vectors of a type can be compared on a GPU as they are."""
    return np.dtype(dtype).name in _TYPES


@dataclass(frozen=True)
class DeviceQueries:
    """Queries on a GPU: codes for the Hamming distance, or whole weights.

    The distance to a code is start + Σ weight · bit, and a real distance is scale · distance + constant.
    """

    words: Any = None  # codes of uint8, shape (n_queries, 4 words)
    fragments: Any = None  # weights of float16 as :func:`_fragments` orders them
    starts: Any = None  # of float32, shape (n_queries,)
    scales: Any = None  # of float64
    constants: Any = None

    @classmethod
    def of_codes(cls, codes: Codes) -> DeviceQueries:
        """All bits have the weight 1."""
        return cls(words=_padded(codes))

    @classmethod
    def weighted(cls, bits: Any, weights: Any, scales: Any, constants: Any = None) -> DeviceQueries:
        """Each bit that differs from ``bits`` counts its weight, a whole number from 0 to 255."""
        xp = namespace(weights)
        whole = weights.astype(xp.float32)
        signed = xp.where(bits, -whole, whole).astype(xp.float16)
        starts = (whole * bits).sum(axis=1, dtype=xp.float32)
        return cls(None, _fragments(signed), starts, scales, constants)

    def __len__(self) -> int:
        return len(self.words if self.fragments is None else self.starts)

    def __getitem__(self, rows: Any) -> DeviceQueries:
        fields = (self.words, self.starts, self.scales, self.constants)
        words, *others = (None if part is None else part[rows] for part in fields)
        some = None if self.fragments is None else _fragments(_rows_of(self.fragments)[: len(self)][rows])
        return DeviceQueries(words, some, *others)

    def real(self, distances: Any) -> Any:
        """Convert whole distances to real ones, one row per query."""
        if self.scales is None:
            return distances
        real = distances * self.scales[:, np.newaxis]
        return (real if self.constants is None else real + self.constants[:, np.newaxis]).astype(np.float32)


class DeviceProjection:
    """A :class:`~autojacobin.search.queries.Projection` on a GPU, which makes queries for a distance of vectors."""

    def __init__(self, projection: Projection, largest: int, decoded: bool) -> None:
        self._columns, self._start, self._shift = (
            on_device(np.ascontiguousarray(part, dtype=np.float64), "cuda")
            for part in (projection.matrix.T, projection.start, projection.shift)
        )
        self._numbers = (
            np.int32(len(projection.shift)), np.int32(projection.n_level_bits), np.float64(projection.offset),
            np.float64(largest), np.int32(decoded),
        )  # fmt: skip

    def queries(self, vectors: Any) -> DeviceQueries:
        """Queries of vectors of float64 on the GPU."""
        xp, (n, width), n_bits = namespace(vectors), vectors.shape, int(self._numbers[0])
        words = -(-n_bits // 32)
        fragments = xp.empty((-(-n // 16), words, 2, 8, 4, 2, 2, 2), dtype=xp.float16)
        starts, scales, constants = xp.empty(n, dtype=xp.float32), xp.empty(n), xp.empty(n)
        launch(
            "weigh", (f"-DWORDS={words}",), (16 * len(fragments),), _THREADS,
            (vectors, np.int32(n), np.int32(width), self._columns, np.int32(self._columns.shape[1]), self._start,
             self._shift, *self._numbers, fragments, starts, scales, constants), 8 * (width + n_bits),
        )  # fmt: skip
        return DeviceQueries(None, fragments, starts, scales, constants)


class DeviceCodes:
    """Codes on a GPU, which :class:`DeviceQueries` search."""

    def __init__(self, codes: Codes) -> None:
        if codes.n_bits > _LONGEST:
            raise DataError(
                f"a search on a GPU takes codes of at most {_LONGEST:,} bits, got {codes.n_bits:,}; move them with "
                "codes.to_device('cpu')"
            )
        self.n, self.n_bits = len(codes), codes.n_bits
        self._bytes = _padded(codes)
        self._samples: dict[int, Any] = {}

    def nearest(self, queries: DeviceQueries, k: int) -> tuple[Any, Any]:
        """Find the ``k`` nearest codes; see :meth:`autojacobin.search.tiles.Tiles.nearest`."""
        keys = self.lowest(queries, min(k, self.n))
        return (keys >> np.uint64(32)).astype(np.int32), _positions(keys)

    def lowest(self, queries: DeviceQueries, k: int) -> Any:
        """Find the ``k`` nearest codes as sorted hits, of uint64: the distance, and the position in the lower half."""
        xp = namespace(self._bytes)
        if not (k and len(queries)):
            return xp.empty((len(queries), k), dtype=xp.uint64)
        keys, counts = self.hits(queries, k)
        again = np.flatnonzero(to_host(counts) == 0)
        if len(again):
            rows = xp.asarray(again)
            keys[rows] = self._lowest_of_all(queries[rows], k)
        return keys

    def hits(self, queries: DeviceQueries, k: int) -> tuple[Any, Any]:
        """The ``k`` nearest codes as sorted hits, and their number: 0 for queries that need a second turn."""
        xp = namespace(self._bytes)
        sampling = Sampling.of(self.n, k)
        if sampling is None:
            return self._lowest_of_all(queries, k), xp.full(len(queries), k, dtype=xp.uint32)
        step = max(1, 2 * _NUMBERS_AT_ONCE // max(sampling.size, 2 * sampling.capacity))
        if len(queries) <= step:
            return self._hits(queries, k, sampling)
        return _joined(xp, [self._hits(queries[rows], k, sampling) for rows in slices(len(queries), step)])

    def is_recordable(self, k: int) -> bool:
        """Return whether :meth:`hits` of a few queries is a chain of kernels, without a look at what they find."""
        sampling = Sampling.of(self.n, k)
        return sampling is not None and sampling.capacity <= _MOST_SORTED and hasattr(sys.modules["cupy"].cuda, "Graph")

    def _hits(self, queries: DeviceQueries, k: int, sampling: Sampling) -> tuple[Any, Any]:
        xp = namespace(self._bytes)
        if sampling.size not in self._samples:
            self._samples[sampling.size] = self._taken(_sample(xp, self.n, sampling.size))
        limits = _ranked(self._samples[sampling.size]._distances(queries), sampling.rank, _CODE_BITS)
        hits, counts = _no_hits(xp, len(queries), sampling.capacity)
        self._scan("hits", queries, (limits, counts, hits, np.uint32(sampling.capacity)))
        if sampling.capacity > _MOST_SORTED:
            hits[xp.arange(sampling.capacity) >= counts[:, np.newaxis]] = xp.uint64(2**64 - 1)
            keys = xp.ascontiguousarray(xp.sort(hits, axis=1)[:, :k])
            return keys, xp.where((counts < k) | (counts > sampling.capacity), 0, k).astype(xp.uint32)
        keys, found = xp.empty((len(queries), k), dtype=xp.uint64), xp.empty(len(queries), dtype=xp.uint32)
        launch(
            "lowest_hits", (), (len(queries),), min(_MOST_THREADS, sampling.capacity // 8),
            (hits, counts, np.uint32(sampling.capacity), np.uint32(k), keys, found), 8 * sampling.capacity,
        )  # fmt: skip
        return keys, found

    def _lowest_of_all(self, queries: DeviceQueries, k: int) -> Any:
        blocks = [queries[rows] for rows in slices(len(queries), max(1, _NUMBERS_AT_ONCE // self.n))]
        return namespace(self._bytes).concatenate([_lowest_of_rows(self._distances(block), k) for block in blocks])

    def _distances(self, queries: DeviceQueries) -> Any:
        out = namespace(self._bytes).empty((len(queries), self.n), dtype=np.uint32)
        self._scan("all", queries, (out,))
        return out

    def _scan(self, what: str, queries: DeviceQueries, results: tuple[Any, ...]) -> None:
        """Pass over all codes. The numbers of codes and queries of a block are those of the kernels."""
        words, n_queries = self._bytes.shape[1] // 4, len(queries)
        per_block = _THREADS * (4 if words <= 4 else 2 if words <= 8 else 1)
        name, rows = f"hamming_{what}", 128
        asked: tuple[Any, ...] = (queries.words,)
        if queries.fragments is not None:
            name, rows = f"weighted_{what}", 16 * min(8, max(1, 32 // words))
            asked = queries.fragments, queries.starts
        grid = (-(-self.n // per_block), -(-n_queries // rows))
        arguments = (self._bytes, np.uint32(self.n), *asked, np.int32(n_queries), *results)
        launch(name, (f"-DWORDS={words}",), grid, _THREADS, arguments)

    def _taken(self, positions: Any) -> DeviceCodes:
        part = object.__new__(DeviceCodes)
        part.n, part.n_bits, part._bytes, part._samples = len(positions), self.n_bits, self._bytes[positions], {}
        return part


class DeviceVectors:
    """Vectors on a GPU, of uint8 or floats, that are compared by their Euclidean distance in float64."""

    def __init__(self, vectors: Any) -> None:
        xp = namespace(vectors)
        self.vectors, (self.n, self.width) = vectors, vectors.shape
        self._kind = xp.float64 if vectors.dtype == xp.float64 else xp.float32
        some = vectors[_sample(xp, self.n, min(self.n, _SAMPLE))]
        self._origin = some.mean(axis=0, dtype=xp.float64).astype(self._kind)
        self._halves = xp.empty(self.n, dtype=xp.float32)  # |x|² / 2
        for rows in slices(self.n, max(1, _DOUBLES_AT_ONCE // max(1, self.width))):
            placed = self._placed(vectors[rows])
            self._halves[rows] = xp.einsum("ij,ij->i", placed, placed) / 2
        self._largest = 2 * float(self._halves.max())
        self._samples: dict[int, Any] = {}

    def nearest(self, queries: Any, k: int, positions: Any = None) -> tuple[Any, Any]:
        """Distances of float64 and positions of the ``k`` nearest vectors, or of those at some ascending positions."""
        if positions is not None:
            distances, found = DeviceVectors(self.vectors[positions]).nearest(queries, k)
            return distances, positions[found]
        asked = namespace(self.vectors).asarray(queries, dtype=np.float64)
        sampling = Sampling.of(self.n, k, _MOST_SORTED)
        if sampling is None:
            return self._ordered_among(asked, None, k)
        step = max(1, 2 * _DOUBLES_AT_ONCE // sampling.capacity)
        found = [self._nearest(asked[rows], k, sampling) for rows in slices(len(asked), step)]
        return _joined(namespace(self.vectors), found)

    def among(self, queries: Any, positions: Any, k: int) -> tuple[Any, Any]:
        """Distances and positions of the ``k`` nearest of some candidates of each query, which are positions."""
        return self._ordered_among(namespace(self.vectors).asarray(queries, dtype=np.float64), positions, k)

    def _nearest(self, queries: Any, k: int, sampling: Sampling) -> tuple[Any, Any]:
        xp = namespace(self.vectors)
        placed = self._placed(queries)
        norms = (placed.astype(xp.float64) ** 2).sum(axis=1)
        # each of the products and sums is rounded once, and so is each number that the origin is subtracted from
        error = 1.1 * (self.width + 16) * _UNIT * (self._largest + norms)
        if sampling.size not in self._samples:
            self._samples[sampling.size] = _sample(xp, self.n, sampling.size)
        sample = self._samples[sampling.size]
        scores = self._halves[sample] - placed @ self._placed(self.vectors[sample]).T
        limits = _scores(_ranked(_ordered(scores), sampling.rank, _SCORE_BITS)).astype(xp.float64) + 2 * error
        hits, counts = _no_hits(xp, len(queries), sampling.capacity)
        bounds = _ordered(limits.astype(xp.float32))
        for rows in slices(self.n, max(1, _PRODUCTS_AT_ONCE // len(queries))):
            products = placed @ self._placed(self.vectors[rows]).T
            n = products.shape[1]
            grid = (min(64, -(-n // _THREADS)), len(queries))
            room = np.uint32(sampling.capacity)
            near = (products, self._halves[rows], np.uint32(n), np.uint32(rows.start), bounds, counts, hits, room)
            launch("product_hits", (), grid, _THREADS, near)
        squared, positions = _parts(self._sorted(queries, hits, counts, k))
        farthest = (squared[:, -1] - norms) / 2 + error
        # what float32 rounds the limit by is less than half the error, which is relative to the norms
        unproven = np.flatnonzero(to_host((positions[:, 0] < 0) | ~(farthest + error / 2 <= limits)))
        if len(unproven):
            rows = xp.asarray(unproven)
            squared[rows], positions[rows] = self._by_argsort(queries[rows], None, k)
        return xp.sqrt(squared), positions

    def _ordered_among(self, queries: Any, positions: Any, k: int) -> tuple[Any, Any]:
        xp = namespace(self.vectors)
        number = self.n if positions is None else positions.shape[1]
        if number > _MOST_SORTED:
            squared, found = self._by_argsort(queries, positions, k)
            return xp.sqrt(squared), found
        parts = []
        for rows in slices(len(queries), max(1, _NUMBERS_AT_ONCE // number)):
            some, shape = queries[rows], (len(queries[rows]), number)
            chosen = xp.broadcast_to(xp.arange(number), shape) if positions is None else positions[rows]
            counts = xp.full(len(some), number, dtype=xp.uint32)
            hits = xp.ascontiguousarray(chosen).astype(xp.uint64)
            squared, found = _parts(self._sorted(some, hits, counts, k))
            parts.append((xp.sqrt(squared), found))
        return _joined(xp, parts)

    def _sorted(self, queries: Any, hits: Any, counts: Any, k: int) -> Any:
        """Squared distances of the ``k`` nearest hits, and positions in the same bytes: -1 for too few or too many."""
        both, capacity = namespace(self.vectors).empty((2, len(queries), k)), hits.shape[1]
        numbers = np.uint32(capacity), np.uint32(k)
        launch(
            "nearest_vectors", (f"-DVECTOR={_TYPES[self.vectors.dtype.name]}",), (len(queries),), _THREADS,
            (self.vectors, np.int32(self.width), queries, hits, counts, *numbers, *_parts(both)),
            12 << (capacity - 1).bit_length(),
        )  # fmt: skip
        return both

    def _by_argsort(self, queries: Any, positions: Any, k: int) -> tuple[Any, Any]:
        """Squared distances and positions of the ``k`` nearest, one query after another."""
        xp = namespace(self.vectors)
        step = max(1, _DOUBLES_AT_ONCE // max(1, self.width))
        squared, found = xp.empty((len(queries), k)), xp.empty((len(queries), k), dtype=xp.int64)
        for row, query in enumerate(queries):
            among = xp.arange(self.n) if positions is None else xp.sort(positions[row])
            gaps = [self.vectors[among[rows]].astype(xp.float64) - query for rows in slices(len(among), step)]
            all_squared = xp.concatenate([xp.einsum("ij,ij->i", gap, gap) for gap in gaps])
            order = xp.argsort(all_squared, kind="stable")[:k]
            squared[row], found[row] = all_squared[order], among[order]
        return squared, found

    def _placed(self, vectors: Any) -> Any:
        """Vectors as float32, less the origin."""
        return (vectors.astype(self._kind, copy=False) - self._origin).astype(np.float32, copy=False)


class RerankedSearch:
    """A search by codes whose candidates are ordered by their vectors, with results on the host.

    A few queries are one launch: the kernels that they need are recorded as a graph at the first of them.
    """

    def __init__(self, codes: DeviceCodes, vectors: DeviceVectors, projection: DeviceProjection) -> None:
        self._codes, self._vectors, self._projection = codes, vectors, projection
        self._recorded: dict[tuple[int, int, int], _Recording] = {}
        self._mutex = Lock()

    def nearest(self, queries: npt.NDArray[Any], candidates: int, k: int) -> tuple[Any, Any]:
        """Distances and positions of the ``k`` nearest of the ``candidates`` nearest codes."""
        if candidates > _MOST_SORTED:
            return self._in_two_steps(queries, candidates, k)
        both = self._first_turn(queries, candidates, k)
        distances, positions = np.sqrt(both[0]), both[1].view(np.int64)
        again = np.flatnonzero(positions[:, 0] < 0)
        if len(again):
            distances[again], positions[again] = self._in_two_steps(queries[again], candidates, k)
        return distances, positions

    def _in_two_steps(self, queries: npt.NDArray[Any], candidates: int, k: int) -> tuple[Any, Any]:
        """Find the candidates of all queries before any vector is read."""
        exact = on_device(queries.astype(np.float64), "cuda")
        keys = self._codes.lowest(self._projection.queries(exact), candidates)
        distances, positions = self._vectors.among(exact, _positions(keys), k)
        return to_host(distances), to_host(positions)

    def _first_turn(self, queries: npt.NDArray[Any], candidates: int, k: int) -> npt.NDArray[np.float64]:
        """What ``DeviceVectors._sorted`` gives."""
        if len(queries) > _FEW or not self._codes.is_recordable(candidates):
            exact = on_device(queries.astype(np.float64), "cuda")
            return np.asarray(to_host(self._launches(exact, candidates, k)))
        asked = len(queries), candidates, k
        with self._mutex:
            if asked not in self._recorded:
                if len(self._recorded) == _MOST_RECORDED:
                    self._recorded.pop(next(iter(self._recorded)))
                self._recorded[asked] = _Recording(lambda exact: self._launches(exact, candidates, k), queries.shape)
            return self._recorded[asked].run(queries)

    def _launches(self, exact: Any, candidates: int, k: int) -> Any:
        hits = self._codes.hits(self._projection.queries(exact), candidates)
        return self._vectors._sorted(exact, *hits, k)


class _Recording:
    """A function of an array of float64 on a GPU, recorded as a graph, that is one launch.

    What the function allocates comes from a pool of its own, so that nobody else writes to it.
    """

    def __init__(self, function: Callable[[Any], Any], shape: tuple[int, ...]) -> None:
        cupy: Any = sys.modules["cupy"]
        given = cupy.zeros(shape)
        result = function(given)  # which compiles
        self._here = tuple(import_module("cupyx").empty_pinned(one.shape) for one in (given, result))
        cupy.cuda.Device().synchronize()
        self._stream, self._pool = cupy.cuda.Stream(non_blocking=True), cupy.cuda.MemoryPool()
        with cupy.cuda.using_allocator(self._pool.malloc), self._stream:
            function(given)  # which allocates, as is not allowed later
            self._stream.synchronize()
            self._stream.begin_capture()
            self._there = given, function(given)
            self._graph = self._stream.end_capture()

    def run(self, values: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        """Give the result for some values."""
        (given, result), (here, found) = self._there, self._here
        here[:] = values
        given.data.copy_from_host_async(here.ctypes.data, here.nbytes, self._stream)
        self._graph.launch(self._stream)
        result.data.copy_to_host_async(found.ctypes.data, found.nbytes, self._stream)
        self._stream.synchronize()
        return np.array(found)


def _parts(both: Any) -> tuple[Any, Any]:
    """Squared distances and positions."""
    return both[0], both[1].view(np.int64)


def _positions(hits: Any) -> Any:
    return (hits & np.uint64(0xFFFFFFFF)).astype(np.int64)


def _lowest_of_rows(rows: Any, k: int) -> Any:
    """The ``k`` smallest of each row of uint32 as sorted hits."""
    xp = namespace(rows)
    radius = _ranked(rows, k, _CODE_BITS)[:, np.newaxis]
    below, at = rows < radius, rows == radius
    room = k - below.sum(axis=1, keepdims=True)
    columns = xp.nonzero(below | (at & (xp.cumsum(at, axis=1, dtype=xp.int64) <= room)))[1].reshape(len(rows), k)
    keys = xp.take_along_axis(rows, columns, axis=1).astype(xp.uint64) << np.uint64(32) | columns.astype(xp.uint64)
    return xp.sort(keys, axis=1)


def _ranked(rows: Any, rank: int, n_bits: int) -> Any:
    """Give the number with a rank, from 1 on, in each row of uint32 with numbers of ``n_bits`` bits."""
    out = namespace(rows).empty(len(rows), dtype=np.uint32)
    launch("ranked", (), (len(rows),), _MOST_THREADS, (rows, np.uint32(rows.shape[1]), np.uint32(rank),
                                                       np.int32(n_bits), out))  # fmt: skip
    return out


def _no_hits(xp: Any, n_queries: int, capacity: int) -> tuple[Any, Any]:
    return xp.empty((n_queries, capacity), dtype=xp.uint64), xp.zeros(n_queries, dtype=xp.uint32)


def _sample(xp: Any, n: int, size: int) -> Any:
    """Positions of a sample, one in each of ``size`` equal parts, the same at each call."""
    places = (np.arange(size) + np.random.default_rng(0).random(size)) * (n / size)
    return xp.asarray(np.minimum(places.astype(np.int64), n - 1))


def _padded(codes: Codes) -> Any:
    """Bytes of codes, filled up with zeros to a multiple of four."""
    xp, (n, width) = namespace(codes.packed), codes.packed.shape
    if width % 4 == 0:
        return xp.ascontiguousarray(codes.packed)
    padded = xp.zeros((n, -(-width // 4) * 4), dtype=xp.uint8)
    padded[:, :width] = codes.packed
    return padded


def _fragments(weights: Any) -> Any:
    """Weights in the order in which the lanes of a warp read them: see ``kernels/gpu.cu``.

    Row 16 m + 8 u + g and bit 8 words · t + 8 i + 4 s + 2 r + h are half h of register 2 r + u of lane 4 g + t, in
    step 2 i + s of tile m.
    """
    xp, (n, n_bits) = namespace(weights), weights.shape
    words = -(-n_bits // 32)
    padded = xp.zeros((-(-n // 16) * 16, 32 * words), dtype=xp.float16)
    padded[:n, :n_bits] = weights
    return xp.ascontiguousarray(padded.reshape(-1, 2, 8, 4, words, 2, 2, 2).transpose(0, 4, 5, 2, 3, 6, 1, 7))


def _rows_of(fragments: Any) -> Any:
    """Weights, one row per query, from what :func:`_fragments` made of them."""
    return fragments.transpose(0, 6, 3, 4, 1, 2, 5, 7).reshape(-1, 32 * fragments.shape[1])


def _ordered(scores: Any) -> Any:
    """Numbers of float32 as uint32 in the same order; NaN comes last."""
    xp = namespace(scores)
    words = xp.ascontiguousarray(scores, dtype=xp.float32).view(xp.uint32)
    flipped = xp.where(words >> np.uint32(31) != 0, ~words, words | np.uint32(2**31))
    return xp.where(xp.isnan(scores), np.uint32(2**32 - 1), flipped)


def _scores(ordered: Any) -> Any:
    """Numbers of float32 from what :func:`_ordered` made of them."""
    xp = namespace(ordered)
    words = xp.where(ordered >> np.uint32(31) != 0, ordered & np.uint32(2**31 - 1), ~ordered)
    return words.astype(xp.uint32).view(xp.float32)


def _joined(xp: Any, parts: list[tuple[Any, Any]]) -> tuple[Any, Any]:
    return xp.concatenate([part[0] for part in parts]), xp.concatenate([part[1] for part in parts])


def launch(
    name: str, options: tuple[str, ...], grid: tuple[int, ...], threads: int, arguments: Any, shared: int = 0
) -> None:
    """Run a kernel of ``kernels/gpu.cu``, compiled with some options, on the current GPU."""
    cupy: Any = sys.modules["cupy"]
    kernel = _kernel(name, options, int(cupy.cuda.Device().id))
    if shared > 48 * 1024:
        kernel.max_dynamic_shared_size_bytes = shared
    kernel(grid, (threads,), arguments, shared_mem=shared)


@cache
def _kernel(name: str, options: tuple[str, ...], device: int) -> Any:
    """A kernel, compiled with some options. CuPy keeps what it compiled, also on the disk."""
    cupy: Any = sys.modules["cupy"]
    capability = int(cupy.cuda.Device(device).compute_capability)
    if capability < 80 and options:  # every search runs a kernel with options
        raise DataError(
            f"a search on a GPU needs compute capability 8.0, got {capability / 10:.1f}; use device='cpu' instead"
        )
    source = (Path(__file__).parent / "kernels" / "gpu.cu").read_text(encoding="utf-8")
    return cupy.RawModule(code=source, options=options).get_function(name)
