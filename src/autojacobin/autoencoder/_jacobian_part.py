"""What both parts of the Jacobian term, and the trace along a line, hand back for a group of points."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from autojacobin._arrays import namespace

__all__ = ["JacobianPart", "points_per_task", "total"]

_POINTS_PER_TASK = 125


@dataclass(frozen=True)
class JacobianPart:
    """Value of a part of the Jacobian term over a group of points, and its derivatives.

    Attributes
    ----------
    value : float
    g, a : arrays of shape (s, d) and (s, D)
        Derivatives with respect to the slopes of tanh.
    W1, W2 : arrays of shape (d, D) and (D, d), optional
        Derivatives with respect to the weights; None where only their product with a direction is known.
    slope : float
        That product.
    """

    value: float
    g: Any
    a: Any
    W1: Any = None
    W2: Any = None
    slope: float = 0.0


def points_per_task(array: Any) -> int:
    """How many rows of ``array`` make a task for a core; all of them on a GPU, which wants few large steps."""
    return _POINTS_PER_TASK if namespace(array) is np else max(1, len(array))


def total(values: Any) -> float:
    """Sum in double precision: the line search compares costs that differ in the last digits of a float32."""
    return float(values.sum(dtype="float64"))
