"""What all methods share: what scikit-learn expects of an estimator, and how to learn from a matrix or a stream."""

from __future__ import annotations

import copy
import inspect
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import Field, dataclass
from typing import TYPE_CHECKING, Any, ClassVar, SupportsIndex

import numpy as np
import numpy.typing as npt

from autojacobin.core.arrays import namespace, on_device, to_host
from autojacobin.core.progress import printed_progress
from autojacobin.core.sampling import as_random_state, sample_of_blocks, sampled_rows
from autojacobin.core.vectors import as_floats, as_matrix, check_size, float_blocks
from autojacobin.errors import DataError
from autojacobin.hashers.parameters import Bits, Limit, check_parameters, parameter, with_sections
from autojacobin.hashers.persistence import Tensor
from autojacobin.search.arguments import as_count

if TYPE_CHECKING:
    from typing_extensions import Self  # typing has it from Python 3.11 on

TRAINING_POINTS = 10_000
"""Rows that ``fit`` draws by default."""
SMALLEST_SPREAD = 1e-15
"""Smallest difference, in some coordinate, of points to learn from. Squares of smaller numbers underflow in float32."""
NO_BLOCK = "X is an iterator without a block, expected at least one matrix; pass some vectors"
_BETWEEN = ("autojacobin", "sklearn", "joblib")  # packages that can lie between the caller and a warning


class Estimator:
    """A transformer for scikit-learn's pipelines, searches and clones, whose parameters are those of ``__init__``.

    ``sklearn.base.BaseEstimator`` does the same, but loads SciPy's statistics and pandas with it. Here, scikit-learn is
    loaded by what only its users call.
    """

    n_features_in_: int
    feature_names_in_: npt.NDArray[np.object_]  # only if it was fitted to a data frame
    _takes_unnamed = False  # whether it takes arrays without a warning, though it was fitted to a data frame

    @classmethod
    def _parameters(cls) -> dict[str, Any]:
        """Names of the parameters in alphabetical order, with their default values."""
        given = inspect.signature(cls.__init__).parameters.values()
        return {each.name: each.default for each in sorted(given, key=lambda each: each.name) if each.name != "self"}

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Give the parameters by name; with ``deep`` also those of a parameter that is an estimator itself."""
        parameters: dict[str, Any] = {}
        for name in self._parameters():
            value = getattr(self, name)
            if deep and hasattr(value, "get_params") and not isinstance(value, type):
                parameters.update((f"{name}__{inner}", of) for inner, of in value.get_params().items())
            parameters[name] = value
        return parameters

    def set_params(self, **params: Any) -> Self:
        """Set parameters by name; ``hasher__n_bits`` is the parameter ``n_bits`` of the parameter ``hasher``."""
        known = self._parameters()
        for name in (name.partition("__")[0] for name in params):
            if name not in known:
                raise DataError(f"{type(self).__name__} has no parameter {name!r}, expected one of {', '.join(known)}")
        for name in sorted(params, key=lambda name: "__" in name):  # owners before what they own
            outer, nested, inner = name.partition("__")
            if nested:
                getattr(self, outer).set_params(**{inner: params[name]})
            else:
                setattr(self, name, params[name])
        return self

    def unfitted(self) -> Self:
        """Give an estimator with copies of the parameters that has learned nothing, as ``sklearn.base.clone`` does."""
        given = self.get_params(deep=False)
        for name, value in given.items():
            given[name] = value.unfitted() if isinstance(value, Estimator) else copy.deepcopy(value)
        return type(self)(**given)

    def fit_transform(self, X: Any, y: Any = None, **options: Any) -> Any:
        """Fit to ``X`` with the options of ``fit``, then transform it."""
        return self.fit(X, y, **options).transform(X)  # type: ignore[attr-defined]

    def set_output(self, *, transform: str | None = None) -> Self:
        """Set what ``transform`` returns: ``"default"`` for an array, ``"pandas"`` or ``"polars"`` for a data frame."""
        if transform is not None:
            self._sklearn_output_config = {"transform": transform}  # scikit-learn's clone copies this attribute
        return self

    def _as_configured(self, array: npt.NDArray[Any], X: Any, names: Callable[..., Any]) -> Any:
        """Give the result of ``transform`` as :meth:`set_output`, or else the settings of scikit-learn, ask for it."""
        kind = getattr(self, "_sklearn_output_config", {}).get("transform")
        if kind is None and "sklearn" in sys.modules:
            from sklearn import get_config

            kind = get_config()["transform_output"]
        if kind in (None, "default"):
            return array
        from sklearn.preprocessing import FunctionTransformer

        given = FunctionTransformer(lambda _: array, feature_names_out=names)
        return given.set_output(transform=kind).fit_transform(X)

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "n_features_in_")

    def _check_fitted(self) -> None:
        """Raise a NotFittedError if nothing was learned yet."""
        if not self.__sklearn_is_fitted__():
            from sklearn.exceptions import NotFittedError

            raise NotFittedError(
                f"This {type(self).__name__} instance is not fitted yet. Call 'fit' with appropriate arguments before "
                "using this estimator."
            )

    def _remember_features(self, X: Any, array: Any, *, reset: bool = True) -> None:
        """Set the number and names of the features, or compare them with those of the fit (``reset=False``)."""
        compared = not reset and hasattr(self, "feature_names_in_") and not self._takes_unnamed
        if hasattr(X, "columns") or compared:
            from sklearn.utils.validation import validate_data

            validate_data(self, X if hasattr(X, "columns") else array, reset=reset, skip_check_array=True)
        elif reset:
            self.n_features_in_ = array.shape[1]
            vars(self).pop("feature_names_in_", None)

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import Tags, TargetTags, TransformerTags

        return Tags(None, TargetTags(required=False), TransformerTags(preserves_dtype=[]))

    def __repr__(self) -> str:
        """Name the parameters that are not the default ones."""
        defaults = self._parameters()
        shown = {name: repr(value) for name, value in self.get_params(deep=False).items()}
        given = (f"{name}={text}" for name, text in shown.items() if text != repr(defaults[name]))
        return f"{type(self).__name__}({', '.join(given)})"


@dataclass(eq=False, repr=False)
class Learner(Estimator):
    """The part of a method that learns. A method defines ``_fit``."""

    n_bits: int = parameter(64, Bits(), "Length of the codes; may exceed the number of features.")

    _limits: ClassVar[dict[str, Limit]] = {"n_bits": Bits()}
    _tensors: ClassVar[dict[str, Tensor]] = {}
    _fewest_points: ClassVar[int] = 2
    _more_bits_than_features: ClassVar[bool] = True
    _training_points: ClassVar[int | None] = TRAINING_POINTS  # rows to draw by default; None for all of an array

    def __init_subclass__(cls, **options: Any) -> None:
        """Collect the limits of the parameters, and list parameters and learned attributes in the docstring."""
        super().__init_subclass__(**options)
        own = {name: of for name, of in vars(cls).items() if isinstance(of, Field)}
        if own:
            cls._limits = {**cls._limits, **{name: of.metadata["limit"] for name, of in own.items()}}
        if cls.__doc__ is None or "__init__" in vars(cls):
            return
        parameters = [
            (name, f"{of.metadata['limit'].kind}, default={of.default!r}", of.metadata["meaning"])
            for name, of in {**cls.__dataclass_fields__, **own}.items()
            if "limit" in of.metadata
        ]
        learned = [(name, str(tensor), tensor.meaning) for name, tensor in cls._tensors.items() if tensor.meaning]
        cls.__doc__ = with_sections(cls.__doc__, {"Parameters": parameters, "Attributes": learned})

    def _fit(self, X: Any, rng: np.random.RandomState) -> None:
        """Learn from finite floats, shape (n, D), and set the attributes named in ``_tensors``."""
        raise NotImplementedError

    def fit(
        self,
        X: Any,
        y: Any = None,  # noqa: ARG002
        *,
        training_points: SupportsIndex | str | None = "auto",
        verbose: bool = False,
    ) -> Self:
        """Learn to hash from the rows of ``X``.

        Parameters
        ----------
        X : matrix of shape (n_samples, n_features), memory map, or iterator of matrices
            Training vectors. Methods learn from a random sample, drawn in one pass, so that a memory map or an
            iterator may be larger than memory.
        y : ignored
        training_points : int, "auto" or None
            Size of that sample. ``"auto"`` is 10,000, or what the method needs; if an array in memory has more rows, a
            warning says so. None takes all rows, which then have to fit into memory. Where there are no more rows than
            the size, all of them are used, in their order, and an iterator gives the same model as the whole matrix.
        verbose : bool
            Whether to print what is done to the standard error: one line that changes in a terminal, elsewhere a line
            every 30 seconds.
        """
        check_parameters(self, self._limits)
        wanted = self._sample_size(X, training_points)
        rng = as_random_state(getattr(self, "random_state", 0))  # without one, a sample is always the same
        with self._fitting(verbose):
            for name in ("metric_", "radius_"):  # of an earlier fit
                self.__dict__.pop(name, None)
            sample = self._sample(X, wanted, rng)
            floats = self._training_floats(self._checked(sample, fitting=True))
            self._check_training_data(floats)
            self._fit(floats, rng)
        return self

    def default_training_points(self) -> int | None:
        """How many rows ``fit`` draws from a matrix by default; None for all of them."""
        return self._training_points

    def _sample_size(self, X: Any, training_points: SupportsIndex | str | None) -> int | None:
        """How many rows to learn from, None for all; warn if the default leaves out rows of an array in memory."""
        if training_points is None:
            return None
        if training_points != "auto":
            return as_count("training_points", training_points)  # type: ignore[arg-type]
        usual = self.default_training_points()
        if isinstance(X, Iterator) or (isinstance(X, np.memmap) and X.filename is not None):  # a copy has no file
            return usual or TRAINING_POINTS
        if usual is not None and _n_rows(X) > usual:
            warn_caller(
                f"{type(self).__name__} learns from {usual:,} of {_n_rows(X):,} rows, drawn at random; pass "
                f"training_points=None to learn from all, or training_points={usual} if this is what you want"
            )
        return usual

    @contextmanager
    def _fitting(self, verbose: bool) -> Iterator[None]:
        """Print the progress, which also goes to the caller's callback, and restore the hasher if the fit fails."""
        before = dict(vars(self))
        with printed_progress(f"fitting {type(self).__name__}", verbose=verbose) as printed:

            def progress(stage: str, done: int, total: int) -> None:
                printed(stage, done, total)
                if before["progress"] is not None:
                    before["progress"](stage, done, total)

            try:
                if verbose and "progress" in before:
                    self.__dict__["progress"] = progress
                yield
            except BaseException:
                self.__dict__.clear()
                self.__dict__.update(before)
                raise
            if "progress" in before:
                self.__dict__["progress"] = before["progress"]

    def _sample(self, X: Any, size: int | None, rng: np.random.RandomState) -> Any:
        """All rows of a matrix or of an iterator of matrices, or ``size`` that are drawn; a map is not read whole."""
        if isinstance(X, Iterator):
            return sample_of_blocks(self._training_blocks(X), size, rng)
        array = self._checked(X, fitting=True)
        self._remember_features(X, array)
        if size is None or len(array) <= size:
            return array
        rows = sampled_rows(len(array), size, rng)
        sample = as_floats(array[namespace(array).asarray(rows)], rows)
        check_size(sample, rows)
        return sample

    def _training_blocks(self, X: Iterator[Any]) -> Iterator[Any]:
        """Floats of matrices in blocks; a DataError names the row of a bad block."""
        row = 0
        for block in non_empty(X):
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
                check_size(floats, row)
                yield floats
                row += len(floats)
        if row == 0:
            raise DataError(NO_BLOCK)

    def _checked(self, X: Any, *, fitting: bool = False, fewest: int | None = None) -> Any:
        """Return ``X`` as an array; raise a DataError if its shape cannot be fitted, or is not that of the fit."""
        name = type(self).__name__
        array = as_matrix(X, name)
        n, D = array.shape
        if fewest is None:  # it is 1 in a block
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
                f"(n_features = {D}); use {D} bits or fewer, or a method without that limit such as BinaryAutoencoder"
            )
        if not fitting:
            if self.n_features_in_ != D:
                raise DataError(
                    f"X has {D} features, but {name} is expecting {self.n_features_in_} features as input; "
                    "pass vectors with as many features as it was fitted on"
                )
            self._remember_features(X, array, reset=False)
        return array

    def _training_floats(self, array: Any) -> Any:
        """Floats where the method trains: on the CPU, unless it has a parameter ``device``."""
        if "device" not in self._limits:
            return as_floats(to_host(array))
        return on_device(as_floats(array), self._device())

    def _device(self) -> str:
        return getattr(self, "device", "cpu")

    def _check_training_data(self, X: Any) -> None:
        """Raise a DataError if nothing can be learned from ``X``."""
        check_size(X)
        spread = float((X.max(axis=0) - X.min(axis=0)).max())
        name = type(self).__name__
        if self._fewest_points > 1 and not spread:
            raise DataError(f"all {len(X)} training points of {name} are equal; pass points that differ")
        if self._fewest_points > 1 and spread < SMALLEST_SPREAD:
            raise DataError(
                f"the training points of {name} are too close together, got {spread:.3g} between them in any "
                f"coordinate, expected at least {SMALLEST_SPREAD:g}; multiply X by {1 / spread:.3g}"
            )


def _n_rows(X: Any) -> int:
    shape = getattr(X, "shape", None)  # a sparse matrix has no length
    if shape is not None:
        return int(shape[0]) if shape else 0
    return len(X) if hasattr(X, "__len__") else 0


def non_empty(blocks: Iterator[Any]) -> Iterator[Any]:
    """Leave out blocks without rows, which a filtered stream may contain; a single vector is no block."""
    for block in blocks:
        if getattr(block, "ndim", 2) == 1 or (isinstance(block, list | tuple) and block and np.ndim(block[0]) == 0):
            raise DataError("an iterator must give matrices with one vector per row, got 1D array; stack some vectors")
        if not hasattr(block, "__len__") or len(block):
            yield block


def warn_caller(message: str) -> None:
    """Warn at the nearest line outside this library and outside scikit-learn, whose pipelines and searches call fit."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _BETWEEN:
        level, frame = level + 1, frame.f_back
    warnings.warn(message, stacklevel=level)
