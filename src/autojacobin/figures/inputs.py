"""Checks of the data that figures are drawn from, and their conversion to arrays."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Real
from typing import Any

import numpy as np
import numpy.typing as npt

from autojacobin.core.counts import as_count
from autojacobin.errors import DataError, DataTypeError
from autojacobin.figures.style import legend_order

__all__ = ["as_curves", "as_dict", "as_measurement", "as_numbers", "as_patches", "as_random_state", "sorted_keys"]


def as_dict(value: Any, name: str, holds: str) -> dict[Any, Any]:
    """Give ``value`` as a dict that is not empty. ``holds`` says in messages what it should contain."""
    if not isinstance(value, Mapping):
        raise DataTypeError(f"{name} must be a dict of {holds}, got {type(value).__name__}")
    if not value:
        raise DataError(f"{name} must be a dict of {holds}, got an empty one; measure something first")
    return dict(value)


def sorted_keys(value: dict[Any, Any], name: str, of: str) -> list[Any]:
    """Give the keys of a dict in ascending order. They must be numbers of at least 0."""
    for key in value:
        if isinstance(key, bool) or not isinstance(key, Real) or not 0 <= float(key) < math.inf:
            raise DataError(f"the keys of {name} must be {of}, got {key!r}")
    return sorted(value)


def as_numbers(value: Any, name: str) -> npt.NDArray[np.float64]:
    """Give ``value`` as a row of at least one finite number."""
    try:
        row = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise DataTypeError(f"{name} must be a row of numbers, got {type(value).__name__}") from None
    if row.ndim != 1 or not row.size:
        raise DataError(f"{name} must be a row of at least one number, got shape {row.shape}")
    wrong = ~np.isfinite(row)
    if wrong.any():
        place = int(wrong.argmax())
        raise DataError(f"{name} must be finite numbers, got {row[place]} at position {place}")
    return row


def as_curves(curves: Any, name: str) -> dict[str, npt.NDArray[np.float64]]:
    """Give curves of Recall@1, Recall@2, … by method, in the order of legends."""
    by_method = as_dict(curves, name, "methods to arrays of Recall@1, Recall@2, …")
    checked = {}
    for method in legend_order(by_method):
        curve = as_numbers(by_method[method], f"{name}[{method!r}]")
        if curve.min() < 0 or curve.max() > 1:
            worst = curve[np.abs(curve - 0.5).argmax()]
            raise DataError(
                f"{name}[{method!r}] must hold recalls from 0 to 1, got {worst:g}; pass shares, not percent"
            )
        checked[method] = curve
    return checked


def as_measurement(value: Any, name: str) -> tuple[float, float]:
    """Give a pair of a mean from 0 to 1 and its spread, which must not be negative."""
    pair = as_numbers(value, name)
    if len(pair) != 2:
        raise DataError(f"{name} must be a pair of a mean and its spread, got {len(pair)} numbers")
    if not 0 <= pair[0] <= 1 or pair[1] < 0:
        raise DataError(
            f"{name} must be a mean from 0 to 1 and a spread of at least 0, got {pair[0]:g} and {pair[1]:g}"
        )
    return float(pair[0]), float(pair[1])


def as_patches(pictures: Any, name: str, *, single: bool = False) -> npt.NDArray[np.uint8]:
    """Give pictures of one size, or a ``single`` one, as bytes with three channels; grey ones get three equal channels.

    Whole numbers must be from 0 to 255, fractions from 0 to 1.
    """
    if single:
        grey, expected = 2, "a picture of shape (height, width) or (height, width, 3)"
    else:
        grey, expected = 3, "pictures of one size, of shape (n, height, width) or (n, height, width, 3)"
    try:
        array = np.asarray(pictures)
    except (TypeError, ValueError):
        raise DataTypeError(f"{name} must be {expected}, got {type(pictures).__name__} of uneven parts") from None
    if array.dtype.kind not in "uif":
        raise DataTypeError(f"{name} must be {expected}, got dtype {array.dtype}")
    coloured = array.ndim == grey + 1 and array.shape[-1] == 3
    if not (array.ndim == grey or coloured) or not array.size:
        raise DataError(f"{name} must be {expected}, got shape {array.shape}")
    most = 1 if array.dtype.kind == "f" else 255
    if not (array.min() >= 0 and array.max() <= most):  # NaN fails this test too
        raise DataError(
            f"{name} must hold fractions from 0 to 1 or whole numbers from 0 to 255, "
            f"got {array.dtype} from {array.min():g} to {array.max():g}; rescale them"
        )
    levels = np.rint(array * (255 / most)).astype(np.uint8)
    return levels if coloured else np.repeat(levels[..., None], 3, axis=-1)


def as_random_state(seed: Any) -> np.random.RandomState:
    """Give the random number generator for ``seed``."""
    return np.random.RandomState(as_count("seed", seed, 2**32 - 1, least=0))
