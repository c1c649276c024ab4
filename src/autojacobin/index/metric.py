"""What "near" means to the user of an index: Euclidean distance, cosine, or inner product.

The index itself computes only Euclidean distances. Vectors are changed when they are added, so that these distances
give the wanted order:

- *cosine*: vectors are divided by their lengths, after which cos = 1 − ‖q − x‖² / 2.
- *inner product*: a vector gets one more number, √(r² − ‖x‖²), and a query gets a zero. With r at least as large as the
  longest vector, q·x = (‖q‖² + r² − ‖q − x‖²) / 2. (S. Bachrach et al., "Speeding up the Xbox recommender system using
  a Euclidean transformation for inner-product spaces", RecSys 2014.) A query is multiplied by the power of two that
  makes it about as long as r. Otherwise the products would be lost in the rounding of the distances.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from autojacobin.core.arrays import to_host
from autojacobin.core.vectors import LARGEST, as_floats, as_matrix, check_size, row_number
from autojacobin.errors import DataError
from autojacobin.hashers import Hasher
from autojacobin.search.distances import METRICS

H = TypeVar("H", bound=Hasher)

_ROOM = 2.0  # for vectors that are longer than those that the radius was taken from
_LONGEST_IN_FLOAT32 = 32.0  # radius, in lengths of the vector in the middle
_SHORTEST_IN_FLOAT32 = 1e-30
_LONGEST = 1e9  # vector, in the same lengths; float64 then leaves six digits of the products with the others
_LARGEST_EXPONENT = 900  # of a query's length; products are numbers of float64


@dataclass(frozen=True)
class Metric:
    """One of ``METRICS``, and the radius r of the inner product.

    Examples
    --------
    >>> import numpy as np
    >>> from autojacobin import ITQ, Index, Metric
    >>> X = np.random.default_rng(0).normal(size=(500, 8)).astype(np.float32)
    >>> metric = Metric.of("inner_product", X)
    >>> index = Index(metric.fit(ITQ(8, random_state=0), X))
    >>> index.add(X)
    >>> products, ids = index.search(X[:1], 3, recall=1)
    >>> bool(np.allclose(products[0], np.sort(X @ X[0])[::-1][:3], rtol=1e-4))
    True
    """

    name: str = "euclidean"
    radius: float = 0.0

    def __post_init__(self) -> None:
        if self.name not in METRICS:
            raise DataError(f"metric must be 'euclidean', 'cosine' or 'inner_product', got {self.name!r}")
        if self.name == "inner_product" and not self.radius > 0:
            raise DataError("inner products need the longest vector; use Index.from_vectors, or Metric.of(…, vectors)")
        if self.radius > LARGEST:
            most = f"vectors can have lengths up to {LARGEST / _ROOM:g}"
            raise DataError(f"{most}, got a radius of {self.radius!r:.20}; divide all vectors by the same number")

    @classmethod
    def of(cls, name: str, vectors: Any) -> Metric:
        """Give a metric for vectors like these; the radius of the inner product is twice the length of the longest."""
        if name != "inner_product":
            return cls(name)
        parts, row = [np.empty(0)], 0
        for block in vectors if isinstance(vectors, Iterator) else (vectors,):
            floats = as_floats(to_host(as_matrix(block, "Metric")), row)
            check_size(floats, row)
            parts.append(_lengths(floats))
            row += len(floats)
        norms = np.concatenate(parts)
        longest = float(norms.max(initial=0.0))
        if longest == 0:
            raise DataError("all vectors are zero, so their inner products are; pass others")
        middle = float(np.median(norms[norms > 0]))
        if longest > _LONGEST * middle:
            wrong = f"the vector in row {np.argmax(norms)} is {longest / middle:.1g} times as long as the median"
            raise DataError(f"{wrong}, beside which all products are lost, expected at most {_LONGEST:g}; leave it out")
        return cls(name, _ROOM * longest)

    @classmethod
    def for_hasher(cls, hasher: Hasher, metric: str | Metric | None = None) -> Metric:
        """Give the metric that a hasher was trained for, or the given one where that is not known."""
        if metric is None:
            return cls(hasher.metric_ or METRICS[0], hasher.radius_)
        name = metric.name if isinstance(metric, Metric) else metric
        if hasher.metric_ not in (None, name):
            raise DataError(
                f"this {type(hasher).__name__} was trained for the metric {hasher.metric_}, got {name}; leave the "
                "metric out, or train a model for the other one"
            )
        return metric if isinstance(metric, Metric) else cls(name, hasher.radius_)

    def fit(self, hasher: H, vectors: Any, *, rows: Any = 0, **options: Any) -> H:
        """Fit a hasher to vectors as this metric prepares them, with options of ``fit``; it remembers the metric."""
        hasher.fit(self.prepare(vectors, rows), **options)
        hasher.metric_, hasher.radius_ = self.name, self.radius
        return hasher

    def width(self, n_features: int) -> int:
        """Width of the vectors that come, for a hasher that takes ``n_features`` numbers."""
        return n_features - 1 if self.name == "inner_product" else n_features

    def prepare(self, vectors: Any, rows: Any = 0) -> Any:
        """Vectors as the index keeps and encodes them, after a check; ``rows`` are their row numbers for messages."""
        matrix = as_matrix(vectors, "Metric")
        if self.name == "euclidean":
            check_size(matrix, rows)
            return vectors
        floats = as_floats(to_host(matrix), rows)
        if self.name == "cosine" and floats.dtype == np.float64:  # whose squares may be too large or too small
            largest = np.abs(floats).max(axis=1, initial=0.0, keepdims=True)
            floats = floats / np.where(largest > 0, largest, 1)
        if self.name == "cosine":
            units = self._units(floats, rows)
            return units.astype(np.float16) if getattr(vectors, "dtype", None) == np.float16 else units
        norms = _lengths(floats)
        if norms.max(initial=0.0) > self.radius:
            row = int(np.argmax(norms > self.radius))
            raise DataError(
                f"the vector in row {row_number(rows, row)} has the length {norms[row]:.4g}, but this index by inner "
                f"product takes vectors of up to {self.radius:.4g}; build a new index with longer vectors among its "
                "first ones"
            )
        rest = np.sqrt(self.radius**2 - norms**2)
        # Distances are about as long as the radius, and products are what is left of them. Where most vectors are much
        # shorter, float32 would leave nothing, nor where the radius has few digits in float32.
        if len(norms) and _SHORTEST_IN_FLOAT32 < self.radius <= _LONGEST_IN_FLOAT32 * float(np.median(norms)):
            rest = rest.astype(floats.dtype)
        return np.column_stack([floats, rest])

    def queries(self, vectors: Any, rows: Any = 0) -> Any:
        """Queries as the index compares them, after a check that their numbers are finite and not too large."""
        matrix = as_matrix(vectors, "Metric", "queries")
        if self.name == "euclidean":
            check_size(matrix, rows, "queries")
            return vectors
        if self.name == "cosine":
            return self.prepare(vectors, rows)
        floats = as_floats(to_host(matrix), rows, "queries")
        if self.radius < _SHORTEST_IN_FLOAT32:
            floats = floats.astype(np.float64)
        exponents = self._exponents(floats)
        if exponents.min(initial=0) < -_LARGEST_EXPONENT:
            row = row_number(rows, int(np.argmin(exponents)))
            raise DataError(f"the query in row {row} is too long for inner products that float64 can hold; divide it")
        return np.column_stack([np.ldexp(floats, exponents), np.zeros(len(floats), dtype=floats.dtype)])

    def ready_queries(self, queries: npt.NDArray[np.float32]) -> Any:
        """The same for a matrix that was checked already."""
        if self.name == "euclidean":
            return queries
        return self._units(queries, 0) if self.name == "cosine" else self.queries(queries)

    def _units(self, floats: npt.NDArray[Any], rows: Any) -> npt.NDArray[Any]:
        """Vectors with the length 1."""
        norms = _lengths(floats)
        if len(norms) and not norms.min() > 0:
            row = row_number(rows, int(np.argmin(norms)))
            raise DataError(f"the vector in row {row} is zero, so it has no direction and no cosine; leave it out")
        return (floats / norms[:, np.newaxis]).astype(floats.dtype)

    def stored_as_queries(self, stored: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Stored vectors as the index would compare them as queries."""
        return self.queries(stored[:, :-1]) if self.name == "inner_product" else stored

    def original(self, stored: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Stored vectors as they were added. In an index by cosine, their lengths are lost."""
        return stored[:, :-1] if self.name == "inner_product" else stored

    def values(self, queries: Any, distances: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """What the user gets for Euclidean distances to queries as they came: distances, cosines or inner products."""
        if self.name == "euclidean":
            return distances
        if self.name == "cosine":
            return np.asarray(1 - distances**2 / 2)
        floats = as_floats(to_host(as_matrix(queries, "Metric", "queries")))
        exponents = self._exponents(floats)
        scaled = np.ldexp(floats.astype(np.float64), exponents)
        squares = np.einsum("ij,ij->i", scaled, scaled) + self.radius**2
        products: npt.NDArray[Any] = np.ldexp((squares[:, np.newaxis] - distances**2) / 2, -exponents)
        products[~floats.any(axis=1)] *= 0  # those of a query of zeros are only rounding errors
        return products

    def _exponents(self, floats: npt.NDArray[Any]) -> npt.NDArray[np.int32]:
        """Powers of two that make queries about as long as the radius, shape (n_queries, 1)."""
        largest = np.abs(floats).max(axis=1, initial=0.0, keepdims=True).astype(np.float64)
        largest[largest == 0] = 1
        parts = floats / largest
        lengths = np.sqrt(np.einsum("ij,ij->i", parts, parts))[:, np.newaxis]
        lengths[lengths == 0] = 1
        return np.rint(np.log2(self.radius / lengths) - np.log2(largest)).astype(np.int32)


EUCLIDEAN = Metric()


def _lengths(floats: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    return np.sqrt(np.einsum("ij,ij->i", floats, floats, dtype=np.float64))
