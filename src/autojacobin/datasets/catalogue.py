"""The named sets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.datasets import load_digits
from sklearn.utils import check_random_state

from autojacobin.errors import DataError

__all__ = ["SETS", "VectorSet", "load_set"]


@dataclass(frozen=True)
class VectorSet:
    """Vectors split for an experiment: ``train`` to learn from, ``base`` to search in, ``queries`` to ask with."""

    name: str
    description: str
    train: Any
    base: Any
    queries: Any


def load_set(name: str) -> VectorSet:
    """Load a set of the catalogue by its name."""
    if name not in SETS:
        raise DataError(f"no data set is called {name!r}, expected one of: {', '.join(sorted(SETS))}")
    return SETS[name]()


def _digits() -> VectorSet:
    vectors = load_digits().data.astype(np.uint8)
    order = check_random_state(0).permutation(len(vectors))
    base = vectors[order[300:]]
    return VectorSet(
        name="digits",
        description="1,797 handwritten digits of 8×8 pixels that ship with scikit-learn; "
        "300 are queries, the others are the base and also what is learned from",
        train=base,
        base=base,
        queries=vectors[order[:300]],
    )


SETS: dict[str, Callable[[], VectorSet]] = {"digits": _digits}
