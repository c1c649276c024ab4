"""The contract of every method: vectors in, codes out, as a scikit-learn estimator."""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from autojacobin.codes import Codes
from autojacobin.core.arrays import give_back, namespace, on_device, to_host
from autojacobin.core.files import write_atomically
from autojacobin.core.parallel import slices
from autojacobin.core.vectors import as_floats, check_finite, float_blocks
from autojacobin.errors import DataError, DataTypeError
from autojacobin.hashers.learning import NO_BLOCK, Learner, non_empty
from autojacobin.hashers.parameters import check_parameters
from autojacobin.hashers.persistence import model_bytes
from autojacobin.search.distances import DISTANCES
from autojacobin.search.queries import DistanceTerms, Projection

_CODES_PER_BLOCK = 2**11  # unpacked at once


class Hasher(Learner):
    """Base of all methods: turns vectors into binary codes of ``n_bits`` bits.

    A method defines ``_fit`` and ``_projector``, declares its parameters as fields of a dataclass and the shapes of
    what it learns in ``_tensors``, and inherits everything else from this class. ``X`` is a matrix with one vector per
    row: an array of any real dtype, a memory map, a data frame, a CuPy array, a PyTorch tensor, or an iterator of such
    blocks. All computation is in float32, or in float64 if ``X`` is float64.
    """

    codes_are_signs: ClassVar[bool] = True
    """Whether the bits are the signs of what ``project`` gives. A method that searches for its codes has other bits."""
    distances: ClassVar[tuple[str, ...]] = ("asymmetric", "hamming")
    """The distances by which codes of this method can be compared, the best first, which is the default of searches."""
    metric_: str | None = None
    """What it was trained for, one of ``METRICS``; None if it is not known, as after a plain :meth:`fit`."""
    radius_: float = 0.0
    """The radius of that metric, if it is the inner product."""
    _wraps_hasher: ClassVar[bool] = False  # as the parameter ``hasher``, fitted as ``hasher_``

    # What a method has to define

    def _projector(self, xp: Any) -> Callable[[Any], Any]:
        """Return the function from floats (n, D) to the real values (n, n_bits) whose signs are the bits."""
        raise NotImplementedError

    def _decoder(self) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Return C, shape (n_bits, n_features), and m: a code s of −1 and 1 is decoded to m + C's."""
        raise DataError(
            f"{type(self).__name__} has no decoder, so its codes cannot be turned back into vectors; "
            "use a method that has one, such as BinaryAutoencoder"
        )

    def _check_learned(self) -> None:
        """Raise a ValueError if what a file gave for the learned arrays, each as declared, cannot encode anything."""

    # What every method can do

    @property
    def trained_name(self) -> str:
        """The name of what was trained, for tables and cards; it depends on the settings if a method chooses them."""
        return type(self).__name__

    @property
    def trained_as(self) -> str:
        """That name, and the settings if the method chose them."""
        return self.trained_name

    @property
    def score_distance(self) -> str:
        """The distance by which :meth:`score` and the paper's measures order codes: the best that is not asymmetric."""
        return next(name for name in self.distances if name != "asymmetric")

    def project(self, X: Any) -> Any:
        """Real values whose signs are the bits, shape (n, n_bits), as asymmetric search uses them.

        A PyTorch tensor or CuPy array gives an array of the same kind.
        """
        self._check_fitted()
        parts = list(self._projections(X))
        return give_back(parts[0] if len(parts) == 1 else namespace(parts[0]).concatenate(parts), X)

    def encode(self, X: Any) -> Codes:
        """Binary codes of the rows of ``X``: bit j is 1 where ``project(X)[:, j] >= 0``."""
        self._check_fitted()
        return Codes.concatenate(Codes.from_bits(block).to_device("cpu") for block in self._bits(X))

    def transform(self, X: Any) -> Any:
        """The codes of ``encode`` as a matrix of 0 and 1, shape (n, n_bits), for scikit-learn's pipelines.

        It is an array of uint8, or a data frame if :meth:`set_output` asks for one.
        """
        return self._as_configured(self.encode(X).to_bits(), X, lambda *_: self.get_feature_names_out())

    def get_feature_names_out(self, input_features: Any = None) -> npt.NDArray[np.object_]:  # noqa: ARG002
        """Names of the bits: the name of the class in small letters, and a number."""
        check_fitted(self)
        return np.asarray([f"{type(self).__name__.lower()}{bit}" for bit in range(self.n_bits)], dtype=object)

    def decode(self, codes: Codes) -> npt.NDArray[Any]:
        """Reconstruct vectors from their codes, shape (n, n_features), where the method has a decoder."""
        check_fitted(self)
        edges, middle = self._decoder()
        out = np.empty((len(codes), self.n_features_in_), dtype=edges.dtype)
        for rows, signs in self._sign_blocks(codes, edges.dtype):
            out[rows] = signs[:, : len(edges)] @ edges + middle
        return out

    def distance_terms(self, X: Any) -> DistanceTerms:  # noqa: ARG002
        """Terms of the distance ``"decoded"`` to codes, where the method has this distance."""
        self._check_fitted()
        raise DataError(
            f"{type(self).__name__} has no distance 'decoded', which is made for codes of BinaryAutoencoder; "
            "use 'asymmetric'"
        )

    def projection(self, distance: str) -> Projection | None:  # noqa: ARG002
        """Give how compiled code makes a query of a vector for a distance; None if only the method itself can."""
        return None

    def score(self, X: Any, y: Any = None, *, k: int = 10, depth: int | None = None) -> float:  # noqa: ARG002
        """m-Recall of held-out points: how well the codes of ``X`` find the true neighbours within ``X``.

        Each point (or 1,000 of them, evenly spaced) is a query against all the others. Its ``k`` nearest Euclidean
        neighbours are the truth, and Recall@i is averaged over i = 1…``depth`` points in the order of
        ``score_distance``; ``depth`` is ten times k by default. Both are limited to the number of other points, and
        ``y`` is ignored. Higher is better, as ``GridSearchCV`` expects.
        """
        from autojacobin.evaluation import leave_one_out_m_recall  # only here: loading numba takes a second

        self._check_fitted()
        vectors = to_host(self._checked(X))
        codes = self.encode(vectors)
        return leave_one_out_m_recall(as_floats(vectors), codes, k=k, depth=depth, topk=self._searcher(vectors, codes))

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the fitted hasher to one safetensors file, which :func:`load` reads.

        The file is written completely or not at all. A file that exists is a StorageError, unless ``overwrite`` says
        that it may be replaced. The class must be one of this library, or registered with :func:`register`.
        """
        write_atomically(path, self.to_bytes(), overwrite=overwrite)

    def to_bytes(self) -> bytes:
        """Give the content of the file that :meth:`save` writes."""
        self._check_fitted()
        self._check_unchanged()
        return model_bytes(self)

    def _searcher(self, vectors: Any, codes: Codes) -> Callable[[npt.NDArray[np.int64], int], tuple[Any, Any]]:
        """Give the function that finds the codes nearest to some of the vectors, as :meth:`score` orders them."""
        distance = DISTANCES[self.score_distance]
        return lambda rows, k: distance.topk(distance.encode(self, vectors[rows]), codes, k)

    def _check_unchanged(self) -> None:
        """Raise a DataError if a parameter was set after the fit that contradicts what was learned."""
        check_parameters(self, self._limits)
        for name, tensor in self._tensors.items():
            if "n_bits" in tensor.shape and not tensor.optional:
                length = getattr(self, name).shape[tensor.shape.index("n_bits")]
                if length != self.n_bits:
                    raise DataError(
                        f"n_bits of {type(self).__name__} was set to {self.n_bits} after it was fitted with {length}; "
                        f"fit it again, or set n_bits={length}"
                    )

    def _sign_blocks(self, codes: Codes, dtype: Any) -> Iterator[tuple[slice, npt.NDArray[Any]]]:
        """Unpack codes to −1 and 1, block by block, or raise a DataError if they are not codes of this method."""
        if not isinstance(codes, Codes):
            raise DataTypeError(f"expected Codes, got {type(codes).__name__}; use Codes.from_bits for a 0/1 matrix")
        if codes.n_bits != self.n_bits:
            raise DataError(
                f"the codes have {codes.n_bits} bits, but this {type(self).__name__} gives codes of {self.n_bits}; "
                "pass codes that it has encoded"
            )
        for rows in slices(len(codes), _CODES_PER_BLOCK):
            yield rows, codes[rows].to_signs().astype(dtype)

    def _projections(self, X: Any) -> Iterator[Any]:
        return self._walk(X, self._projector)

    def _bits(self, X: Any) -> Iterator[Any]:
        return (projections >= 0 for projections in self._projections(X))

    def _walk(self, X: Any, make: Callable[[Any], Callable[[Any], Any]]) -> Iterator[Any]:
        """Project a matrix, or an iterator of them, in blocks; ``make`` gives the projection for an array library."""
        self._check_unchanged()
        row, library, project = 0, None, None
        for part in non_empty(X) if isinstance(X, Iterator) else (X,):
            array = self._checked(part)
            for floats in float_blocks(array, self._device()):
                block = on_device(floats, self._device())
                if project is None or namespace(block) is not library:
                    library = namespace(block)
                    project = make(library)
                with np.errstate(over="ignore", invalid="ignore"):  # reported as an error below
                    projections = project(block)
                    finite = array.dtype.kind in "bu" or math.isfinite(float(projections.sum()))
                if not finite:  # NaN or Inf in X, or an overflow
                    check_finite(block, row)
                    raise DataError(
                        f"the vectors from row {row} on are too large to project in {block.dtype}, expected numbers "
                        f"like those that {type(self).__name__} was fitted on; scale them as before, or pass float64"
                    )
                yield projections
                row += len(block)
        if project is None:
            raise DataError(NO_BLOCK)


class LinearHasher(Hasher):
    """A method whose bits say on which side of a hyperplane a vector lies: project(x) = A x + c."""

    weights_: npt.NDArray[Any]
    offsets_: npt.NDArray[Any]
    mean_: npt.NDArray[Any]

    def hyperplanes(self) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Return A, shape (n_bits, n_features), and c, shape (n_bits,): bit j is 1 where A[j] @ x + c[j] >= 0.

        By default A is ``weights_``, and c is ``offsets_`` or else such that they pass through ``mean_``.
        """
        return self.weights_, self.offsets_ if "offsets_" in self._tensors else -self.weights_ @ self.mean_

    def projection(self, distance: str) -> Projection | None:  # noqa: D102
        if distance not in ("asymmetric", "hamming") or (distance == "hamming" and not self.codes_are_signs):
            return None
        weights, offsets = self.hyperplanes()
        return Projection(weights / 2, np.zeros(weights.shape[1]), offsets)

    def _check_learned(self) -> None:
        with np.errstate(over="ignore", invalid="ignore"):
            weights, offsets = self.hyperplanes()
        if weights.dtype != offsets.dtype or not (np.isfinite(weights).all() and np.isfinite(offsets).all()):
            raise ValueError(f"hyperplanes of {weights.dtype} and {offsets.dtype}, expected finite ones of one type")

    def _projector(self, xp: Any) -> Callable[[Any], Any]:
        weights, offsets = (xp.asarray(part) for part in self.hyperplanes())

        def project(X: Any) -> Any:
            projections = X @ weights.T
            projections += offsets
            return projections

        return project


def check_fitted(hasher: Hasher) -> None:
    """Raise a NotFittedError if the hasher is not fitted, or a DataError if a parameter was set after the fit."""
    hasher._check_fitted()
    hasher._check_unchanged()


def for_index(hasher: Hasher) -> Hasher:
    """Give a copy for an index, whose stored vectors have no names of features: it takes arrays without a warning."""
    kept = copy.copy(hasher)
    kept._takes_unnamed = True
    if kept._wraps_hasher:
        kept.__dict__["hasher_"] = for_index(kept.__dict__["hasher_"])
    return kept


def as_vectors(hasher: Hasher, X: Any) -> Any:
    """Give ``X`` as an array; raise a DataError if its shape is not the one that the hasher was fitted to."""
    return hasher._checked(X)
