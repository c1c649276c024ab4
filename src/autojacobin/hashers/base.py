"""The contract of every method: vectors in, codes out, as a scikit-learn estimator."""

from __future__ import annotations

import math
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, ClassVar, SupportsIndex

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from autojacobin.codes import Codes
from autojacobin.core.arrays import give_back, namespace, on_device, to_host
from autojacobin.core.files import write_atomically
from autojacobin.core.progress import printed_progress
from autojacobin.core.sampling import Moments, sample_of_blocks, sampled_rows
from autojacobin.core.vectors import as_floats, as_matrix, check_finite, float_blocks
from autojacobin.errors import DataError, DataTypeError
from autojacobin.hashers.parameters import Limit, Whole, check_parameters
from autojacobin.hashers.persistence import Tensor, model_bytes
from autojacobin.search.arguments import as_count
from autojacobin.search.distances import DISTANCES, DistanceTerms

__all__ = ["TRAINING_POINTS", "Hasher", "LinearHasher", "as_vectors", "check_fitted", "non_empty", "warn_caller"]

TRAINING_POINTS = 10_000
"""Rows that ``fit`` draws by default."""

# The squares of numbers between these limits neither overflow nor underflow.
_LARGEST = {np.dtype(np.float32): 1e15, np.dtype(np.float64): 1e145}
_SMALLEST = {np.dtype(np.float32): 1e-15, np.dtype(np.float64): 1e-145}
_CODES_PER_BLOCK = 2**11  # unpacked at once
_NO_BLOCK = "X is an iterator without a block, expected at least one matrix; pass some vectors"
_BETWEEN = ("autojacobin", "sklearn", "joblib")  # packages that can lie between the caller and a warning


class Hasher(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Base of all methods: turns vectors into binary codes of ``n_bits`` bits.

    A method defines ``_fit`` and ``_projector``, declares the limits of its parameters in ``_limits`` and the shapes of
    what it learns in ``_tensors``, and inherits everything else from this class. ``X`` is a matrix with one vector per
    row: an array of any real dtype, a memory map, a data frame, a CuPy array, a PyTorch tensor, or an iterator of such
    blocks. All computation is in float32, or in float64 if ``X`` is float64.
    """

    n_bits: int
    random_state: Any
    n_features_in_: int

    codes_are_signs: ClassVar[bool] = True
    """Whether the bits are the signs of what ``project`` gives. A method that searches for its codes has other bits."""
    distances: ClassVar[tuple[str, ...]] = ("asymmetric", "hamming")
    """The distances by which codes of this method can be compared, the best first, which is the default of searches."""
    _limits: ClassVar[dict[str, Limit]] = {"n_bits": Whole(1)}
    _tensors: ClassVar[dict[str, Tensor]] = {}
    _fewest_points: ClassVar[int] = 2
    _more_bits_than_features: ClassVar[bool] = True
    _needs_only_mean: ClassVar[bool] = False
    _uses_moments: ClassVar[bool] = False

    # What a method has to define

    def _fit(self, X: Any, rng: np.random.RandomState) -> None:
        """Learn from finite floats, shape (n, D), and set the attributes named in ``_tensors``."""
        raise NotImplementedError

    def _projector(self, xp: Any) -> Callable[[Any], Any]:
        """Return the function from floats (n, D) to the real values (n, n_bits) whose signs are the bits."""
        raise NotImplementedError

    def _decoder(self) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Return C, shape (n_bits, n_features), and m: a code s of −1 and 1 is decoded to m + C's."""
        raise DataError(
            f"{type(self).__name__} has no decoder, so its codes cannot be turned back into vectors; "
            "use a method that has one, such as BinaryAutoencoder"
        )

    def _fit_mean(self, mean: npt.NDArray[np.float64], dtype: Any, rng: np.random.RandomState) -> None:
        """Learn from the mean of floats of this type, where the method needs nothing else (``_needs_only_mean``)."""
        raise NotImplementedError

    def _fit_moments(self, X: Any, moments: Moments, rng: np.random.RandomState) -> None:
        """Learn from a sample of rows, and the mean and covariance of all (``_uses_moments``)."""
        raise NotImplementedError

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

    def fit(
        self,
        X: Any,
        y: Any = None,  # noqa: ARG002
        *,
        training_points: SupportsIndex | str | None = "auto",
        verbose: bool = False,
    ) -> Hasher:
        """Learn to hash from the rows of ``X``.

        Parameters
        ----------
        X : matrix of shape (n_samples, n_features), memory map, or iterator of matrices
            Training vectors. Methods that need only a mean take it over all rows. The others learn from a random
            sample, drawn in one pass, so that a memory map or an iterator may be larger than memory. ITQ and
            SpectralHashing take mean and covariance over all rows in the same pass.
        y : ignored
        training_points : int, "auto" or None
            Size of that sample. ``"auto"`` is 10,000, or what the method needs; if an array in memory has more rows, a
            warning says so. None takes all rows, which then have to fit into memory. Where there are no more rows than
            the size, all of them are used, in their order, and an iterator gives the same model as the whole matrix.
        verbose : bool
            Whether to print what is done to the standard error, a line at least every two seconds.

        Returns
        -------
        self
        """
        check_parameters(self, self._limits)
        wanted = self._sample_size(X, training_points)
        rng = check_random_state(getattr(self, "random_state", 0))  # without one, a sample is always the same
        with self._printed(verbose), self._all_or_nothing():
            if isinstance(X, Iterator) or (wanted is not None and _n_rows(X) > wanted):
                self._fit_stream(X, wanted, rng)
            else:
                floats = self._training_floats(self._checked(X, fitting=True))
                self._remember_features(X, floats)
                self._fit_floats(floats, rng)
        return self

    def default_training_points(self) -> int | None:
        """How many rows ``fit`` draws from a matrix by default; None for all of them."""
        return None if self._needs_only_mean else TRAINING_POINTS

    def project(self, X: Any) -> Any:
        """Real values whose signs are the bits, shape (n, n_bits), as asymmetric search uses them.

        A PyTorch tensor or CuPy array gives an array of the same kind.
        """
        check_is_fitted(self)
        parts = list(self._projections(X))
        return give_back(parts[0] if len(parts) == 1 else namespace(parts[0]).concatenate(parts), X)

    def encode(self, X: Any) -> Codes:
        """Binary codes of the rows of ``X``: bit j is 1 where ``project(X)[:, j] >= 0``."""
        check_is_fitted(self)
        return Codes.concatenate(Codes.from_bits(to_host(block)) for block in self._bits(X))

    def transform(self, X: Any) -> npt.NDArray[np.uint8]:
        """The codes of ``encode`` as a matrix of 0 and 1, shape (n, n_bits), for scikit-learn's pipelines."""
        return self.encode(X).to_bits()

    def decode(self, codes: Codes) -> npt.NDArray[Any]:
        """Reconstruct vectors from their codes, shape (n, n_features), where the method has a decoder."""
        check_fitted(self)
        edges, middle = self._decoder()
        out = np.empty((len(codes), self.n_features_in_), dtype=edges.dtype)
        for rows, signs in self._sign_blocks(codes, edges.dtype):
            out[rows] = signs[:, : len(edges)] @ edges + middle
        return out

    def distance_terms(self, X: Any) -> DistanceTerms:  # noqa: ARG002
        """Give what the distance ``"decoded"`` to codes is made of, where the method has this distance."""
        check_is_fitted(self)
        raise DataError(
            f"{type(self).__name__} has no distance 'decoded', which is made for codes of BinaryAutoencoder; "
            "use 'asymmetric'"
        )

    def score(self, X: Any, y: Any = None, *, k: int = 10, depth: int | None = None) -> float:  # noqa: ARG002
        """m-Recall of held-out points: how well the codes of ``X`` find the true neighbours within ``X``.

        Each point (or 1,000 of them, evenly spaced) is a query against all the others. Its ``k`` nearest Euclidean
        neighbours are the truth, and Recall@i is averaged over i = 1…depth points in the order of
        ``score_distance``. Higher is better, as ``GridSearchCV`` expects.

        Parameters
        ----------
        X : matrix of shape (n_samples, n_features)
            At least two points, which should not have been used to fit.
        y : ignored
        k : int
            True neighbours per query; at most n_samples - 1 are used.
        depth : int, optional
            Points retrieved; by default ten times k. At most n_samples - 1 are used.
        """
        from autojacobin.evaluation import leave_one_out_m_recall  # only here: loading numba takes a second

        check_is_fitted(self)
        vectors = to_host(self._checked(X))
        codes, distance = self.encode(vectors), DISTANCES[self.score_distance]
        return leave_one_out_m_recall(
            as_floats(vectors),
            codes,
            k=k,
            depth=depth,
            topk=lambda rows, number: distance.topk(distance.encode(self, vectors[rows]), codes, number),
        )

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the fitted hasher to one safetensors file, which :func:`load` reads.

        The file is written completely or not at all. A file that exists is a StorageError, unless ``overwrite`` says
        that it may be replaced. The class must be one of this library, or registered with :func:`register`.
        """
        write_atomically(path, self.to_bytes(), overwrite=overwrite)

    def to_bytes(self) -> bytes:
        """Give the content of the file that :meth:`save` writes."""
        from autojacobin.hashers.registry import check_registered  # the registry imports every method, and so this file

        check_is_fitted(self)
        check_registered(type(self))
        self._check_unchanged()
        return model_bytes(self, self._tensors)

    # How it is done

    def _sample_size(self, X: Any, training_points: SupportsIndex | str | None) -> int | None:
        """How many rows to learn from, None for all; warn if rows of an array in memory are left out unasked."""
        if training_points is None:
            return None
        streamed = isinstance(X, Iterator) or _is_memory_map(X)
        if training_points != "auto":
            wanted = as_count("training_points", training_points)  # type: ignore[arg-type]
            return wanted if streamed or not self._needs_only_mean else None
        usual = self.default_training_points()
        if streamed:
            return usual or TRAINING_POINTS
        if usual is not None and _n_rows(X) > usual:
            warn_caller(
                f"{type(self).__name__} learns from {usual:,} of {_n_rows(X):,} rows, drawn at random; pass "
                f"training_points=None to learn from all, or training_points={usual} if this is what you want"
            )
        return usual

    @contextmanager
    def _printed(self, verbose: bool) -> Iterator[None]:
        """Print the progress of a fit, which also goes to the caller's callback."""
        with printed_progress(f"fitting {type(self).__name__}", verbose=verbose) as printed:
            given = getattr(self, "progress", None)
            if not verbose or "progress" not in self.get_params(deep=False):
                yield
                return

            def progress(stage: str, done: int, total: int) -> None:
                printed(stage, done, total)
                if given is not None:
                    given(stage, done, total)

            try:
                self.__dict__["progress"] = progress
                yield
            finally:
                self.__dict__["progress"] = given

    @contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        """Restore the hasher if a fit fails or is interrupted."""
        before = dict(vars(self))
        try:
            yield
        except BaseException:
            self.__dict__.clear()
            self.__dict__.update(before)
            raise

    def _fit_floats(self, floats: Any, rng: np.random.RandomState, moments: Moments | None = None) -> None:
        self._check_training_data(floats)
        if moments is not None and moments.n > len(floats):
            self._fit_moments(floats, moments, rng)
        else:
            self._fit(floats, rng)

    def _fit_stream(self, X: Any, training_points: int | None, rng: np.random.RandomState) -> None:
        """Learn from an iterator of matrices, or from a memory map that is not read whole."""
        if self._needs_only_mean:
            self._fit_mean(*self._mean_and_dtype(self._training_blocks(X)), rng)
            return
        moments = Moments() if self._uses_moments and training_points is not None else None
        if moments is not None:
            sample = sample_of_blocks(moments.watch(self._training_blocks(X)), training_points, rng)
        elif isinstance(X, Iterator):
            sample = sample_of_blocks(self._training_blocks(X), training_points, rng)
        else:
            array = self._checked(X, fitting=True)
            self._remember_features(X, array)
            rows = sampled_rows(len(array), training_points or len(array), rng)
            sample = as_floats(array[namespace(array).asarray(rows)], rows)
        self._fit_floats(self._training_floats(self._checked(sample, fitting=True)), rng, moments)

    def _training_blocks(self, X: Any) -> Iterator[Any]:
        """Floats of a matrix or of an iterator of matrices in blocks; a DataError names the row of a bad block."""
        row = 0
        for block in non_empty(X) if isinstance(X, Iterator) else (X,):
            if row == 0:
                array = self._checked(block, fitting=True, fewest=1)
            else:
                array = as_matrix(block, type(self).__name__)
                if array.shape[1] != self.n_features_in_:
                    raise DataError(
                        f"the block of vectors from row {row} on has {array.shape[1]} features, expected "
                        f"{self.n_features_in_}, as in the blocks before it; pass blocks of one width"
                    )
            self._remember_features(block, array, reset=row == 0)
            for floats in float_blocks(to_host(array)):
                yield as_floats(floats, row)
                row += len(floats)
        if row == 0:
            raise DataError(_NO_BLOCK)

    def _mean_and_dtype(self, blocks: Iterator[Any]) -> tuple[npt.NDArray[np.float64], Any]:
        total, n, dtype = np.zeros(1), 0, np.dtype(np.float32)
        for floats in blocks:
            self._check_training_data(floats)
            total = total + floats.sum(axis=0, dtype=np.float64)
            n, dtype = n + len(floats), np.result_type(dtype, floats)
        return total / n, dtype

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

    @property
    def _n_features_out(self) -> int:
        self._check_unchanged()
        return int(self.n_bits)

    def _device(self) -> str:
        return getattr(self, "device", "cpu")

    def _checked(self, X: Any, *, fitting: bool = False, fewest: int | None = None) -> Any:
        """Return ``X`` as an array; raise a DataError if its shape cannot be fitted, or is not that of the fit.

        ``fewest`` is how many rows there must be: 1 in a block, and by default what a fit needs.
        """
        name = type(self).__name__
        array = as_matrix(X, name)
        n, D = array.shape
        if fewest is None:
            fewest = self._fewest_points if fitting else 1
        if n < fewest:
            raise DataError(
                f"Found array with {n} sample(s) (shape=({n}, {D})) while a minimum of {fewest} is required by {name}; "
                "pass more vectors"
            )
        if D < 1:
            raise DataError(
                f"Found array with {D} feature(s) (shape=({n}, {D})) while a minimum of 1 is required by {name}; "
                "pass vectors with at least one number each"
            )
        if fitting and not self._more_bits_than_features and self.n_bits > D:
            raise DataError(
                f"{name} is undefined for more bits than features, got n_bits={self.n_bits} for {D} feature(s) "
                f"(n_features = {D}); use n_bits={D} or fewer, or a method without that limit such as LSH"
            )
        if not fitting:
            if self.n_features_in_ != D:
                raise DataError(
                    f"X has {D} features, but {name} is expecting {self.n_features_in_} features as input; "
                    "pass vectors with as many features as it was fitted on"
                )
            self._remember_features(X, array, reset=False)
        return array

    def _remember_features(self, X: Any, array: Any, *, reset: bool = True) -> None:
        """Set the number and names of the features, as scikit-learn does, or compare them (``reset=False``)."""
        if not reset and not hasattr(X, "columns") and not hasattr(self, "feature_names_in_"):
            return  # there are no names to compare, and scikit-learn takes longer than a search
        validate_data(self, X if hasattr(X, "columns") else array, reset=reset, skip_check_array=True)

    def _training_floats(self, array: Any) -> Any:
        return as_floats(to_host(array))

    def _check_training_data(self, X: Any) -> None:
        """Raise a DataError if nothing can be learned from ``X``."""
        name, xp = type(self).__name__, namespace(X)
        low, high = X.min(axis=0), X.max(axis=0)
        largest = max(-float(low.min()), float(high.max()))
        if largest > _LARGEST[X.dtype]:
            raise DataError(
                f"the numbers in X are too large for {X.dtype}, got {largest:.3g} in absolute value, expected at most "
                f"{_LARGEST[X.dtype]:g}; divide X by {largest:.3g}"
            )
        if self._fewest_points > 1 and bool(xp.all(low == high)):
            raise DataError(
                f"all {len(X)} training points of {name} are equal, so there is nothing to learn from; "
                "pass points that differ"
            )
        spread = float((high - low).max())
        if self._fewest_points > 1 and spread < _SMALLEST[X.dtype]:
            raise DataError(
                f"the training points of {name} are too close together for {X.dtype}, got {spread:.3g} between them in "
                f"any coordinate, expected at least {_SMALLEST[X.dtype]:g}; multiply X by {1 / spread:.3g}"
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
        for start in range(0, len(codes), _CODES_PER_BLOCK):
            rows = slice(start, start + _CODES_PER_BLOCK)
            yield rows, codes[rows].to_signs().astype(dtype)

    def _learned_for_decoding(self, name: str) -> Any:
        """Give a learned attribute that files written before the method had a decoder lack."""
        if not hasattr(self, name):
            raise DataError(
                f"this {type(self).__name__} was saved by a version that stored no decoder, so it lacks {name}; "
                "fit it again"
            )
        return getattr(self, name)

    def _projections(self, X: Any) -> Iterator[Any]:
        return self._walk(X, self._projector)

    def _bits(self, X: Any) -> Iterator[Any]:
        return (projections >= 0 for projections in self._projections(X))

    def _walk(self, X: Any, make: Callable[[Any], Callable[[Any], Any]]) -> Iterator[Any]:
        """Project a matrix, or an iterator of matrices, block by block, so that memory stays bounded.

        ``make`` returns the projection for an array library.
        """
        self._check_unchanged()
        row, library, project = 0, None, None
        for part in non_empty(X) if isinstance(X, Iterator) else (X,):
            array = self._checked(part)
            for floats in float_blocks(array):
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
            raise DataError(_NO_BLOCK)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = False
        tags.transformer_tags.preserves_dtype = []
        return tags


class LinearHasher(Hasher):
    """A method whose bits say on which side of a hyperplane a vector lies: project(x) = A x + c."""

    def hyperplanes(self) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Return A, shape (n_bits, n_features), and c, shape (n_bits,): bit j is 1 where A[j] @ x + c[j] >= 0."""
        raise NotImplementedError

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

    def _bits(self, X: Any) -> Iterator[Any]:
        """Compare the products with thresholds, which saves the pass that adds the offsets.

        p ≥ −c and p + c ≥ 0 are equivalent in floating point too, because a sum is rounded to zero only if it is zero.
        """
        weights, offsets = self.hyperplanes()
        for products in self._walk(X, lambda xp: partial(_product, xp.asarray(weights.T))):
            yield products >= namespace(products).asarray(-offsets)


def _product(transposed: Any, X: Any) -> Any:
    return X @ transposed


def _n_rows(X: Any) -> int:
    shape = getattr(X, "shape", None)  # a sparse matrix has no length
    if shape is not None:
        return int(shape[0]) if shape else 0
    return len(X) if hasattr(X, "__len__") else 0


def _is_memory_map(X: Any) -> bool:
    return isinstance(X, np.memmap) and X.filename is not None  # what was copied out of a map has no file


def non_empty(blocks: Iterator[Any]) -> Iterator[Any]:
    """Leave out blocks without rows, which a filtered stream may contain."""
    return (block for block in blocks if not hasattr(block, "__len__") or len(block))


def warn_caller(message: str) -> None:
    """Warn at the nearest line outside this library and outside scikit-learn, whose pipelines and searches call fit.

    A fixed ``stacklevel`` would be right only for direct calls of ``fit``.
    """
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _BETWEEN:
        level, frame = level + 1, frame.f_back
    warnings.warn(message, stacklevel=level)


def check_fitted(hasher: Hasher) -> None:
    """Raise a NotFittedError if the hasher is not fitted, or a DataError if a parameter was set after the fit."""
    check_is_fitted(hasher)
    hasher._check_unchanged()


def as_vectors(hasher: Hasher, X: Any) -> Any:
    """Give ``X`` as an array; raise a DataError if its shape is not the one that the hasher was fitted to."""
    return hasher._checked(X)
