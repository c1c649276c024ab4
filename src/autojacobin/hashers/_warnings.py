"""Warnings that point to the line that asked for a fit."""

from __future__ import annotations

import sys
import warnings

__all__ = ["warn_caller"]

_BETWEEN = ("autojacobin", "sklearn", "joblib")


def warn_caller(message: str) -> None:
    """Warn at the nearest line outside of this library, and of scikit-learn, whose pipelines and searches fit too.

    A number of calls to go back would be right for ``fit`` alone.
    """
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _BETWEEN:
        level, frame = level + 1, frame.f_back
    warnings.warn(message, stacklevel=level)
