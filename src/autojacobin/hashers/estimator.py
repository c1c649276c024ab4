"""What scikit-learn expects of an estimator, without loading scikit-learn, which takes longer than a search."""

from __future__ import annotations

import copy
import inspect
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from autojacobin.errors import DataError

if TYPE_CHECKING:
    from typing_extensions import Self  # typing has it from Python 3.11 on


class Estimator:
    """A transformer for scikit-learn's pipelines, searches and clones.

    Its parameters are those of ``__init__``, and what it learns has names that end with an underscore.
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
        for name in (name for name in params if "__" not in name):
            setattr(self, name, params[name])
        for name, value in params.items():
            outer, nested, inner = name.partition("__")
            if nested:
                getattr(self, outer).set_params(**{inner: value})
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

    def get_feature_names_out(self, input_features: Iterable[str] | None = None) -> npt.NDArray[np.object_]:  # noqa: ARG002
        """Names of the bits: the name of the class in small letters, and a number."""
        self._check_fitted()
        prefix = type(self).__name__.lower()
        return np.asarray([f"{prefix}{bit}" for bit in range(self._n_features_out)], dtype=object)

    def set_output(self, *, transform: str | None = None) -> Self:
        """Set what ``transform`` returns: ``"default"`` for an array, ``"pandas"`` or ``"polars"`` for a data frame."""
        if transform is not None:
            self._sklearn_output_config = {"transform": transform}  # scikit-learn's clone copies this attribute
        return self

    @property
    def _n_features_out(self) -> int:
        raise NotImplementedError

    def _as_configured(self, array: npt.NDArray[Any], X: Any) -> Any:
        """Give the result of ``transform`` as :meth:`set_output`, or else the settings of scikit-learn, ask for it."""
        kind = getattr(self, "_sklearn_output_config", {}).get("transform")
        if kind is None and "sklearn" in sys.modules:
            from sklearn import get_config

            kind = get_config()["transform_output"]
        if kind in (None, "default"):
            return array
        from sklearn.preprocessing import FunctionTransformer

        given = FunctionTransformer(lambda _: array, feature_names_out=lambda *_: self.get_feature_names_out())
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
        from sklearn.utils import InputTags, Tags, TargetTags, TransformerTags

        return Tags(
            estimator_type=None,
            target_tags=TargetTags(required=False),
            transformer_tags=TransformerTags(preserves_dtype=[]),
            input_tags=InputTags(sparse=False),
        )

    def __repr__(self) -> str:
        """Name the parameters that are not the default ones."""
        defaults = self._parameters()
        shown = {name: repr(value) for name, value in self.get_params(deep=False).items()}
        given = (f"{name}={text}" for name, text in shown.items() if text != repr(defaults[name]))
        return f"{type(self).__name__}({', '.join(given)})"

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        """Draw the estimator in a notebook as scikit-learn does."""
        from sklearn.utils import estimator_html_repr

        return {"text/plain": repr(self), "text/html": estimator_html_repr(self)}
