"""What an index knows about itself: how well a search finds the true neighbours, for every effort it may make.

It is learned when vectors come in (``calibration.py``), stored with the index, and read by plans (``plan.py``).
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

EXACT_UP_TO = 2_000
"""Up to this many vectors, an index learns nothing, and a search compares all of them unless it says otherwise."""

Ids = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Knowledge:
    """What was learned, for levels L, thresholds T for lists (one, minus infinity, without lists) and candidates C."""

    n: int  # vectors in the index when it was learned
    n_queries: int
    levels: Ids  # (L,)
    candidates: Ids  # (C,), ascending
    seen: npt.NDArray[np.float32]  # (L, T, C): mean recall of the queries
    at_least: npt.NDArray[np.float32]  # (L, T, C): its lower confidence bound (95 %)
    weights: Floats  # (L, 4), of the regression
    thresholds: Floats  # (L, T), for log λ, falling
    lists: Floats  # (L, T): lists that a query scans on average
    codes: Floats  # (L, T): codes that it scans on average
    most: Floats  # (L, T): lists that it scans at most
    far: Floats  # (2,): how far the nearest neighbour is for one in two hundred of the queries, and how far at most
    middle: npt.NDArray[np.float32]  # mean of the queries; codes tell least about what is near it
    central: Floats  # (2,): squared distance to the mean that one in two hundred is within, and the smallest
    queries: npt.NDArray[np.float32]  # the user's own, if it was learned from these, or none

    def to_bytes(self) -> bytes:
        """Give the content of a safetensors file."""
        from safetensors.numpy import save

        return save({field.name: np.ascontiguousarray(getattr(self, field.name)) for field in fields(self)})

    @classmethod
    def from_bytes(cls, content: bytes) -> Knowledge:
        """Read what ``to_bytes`` wrote; a ValueError says what is wrong with it."""
        from safetensors import SafetensorError
        from safetensors.numpy import load

        try:
            arrays: dict[str, Any] = load(content)
            numbers = {name: arrays.pop(name).item() for name in ("n", "n_queries")}
            known = cls(**numbers, **arrays)
        except (SafetensorError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"tables that cannot be read ({error})") from error
        of_lists = n_levels, _ = known.thresholds.shape
        expected = {
            "levels": (n_levels,), "weights": (n_levels, 4), "far": (2,), "central": (2,),
            **dict.fromkeys(("lists", "codes", "most"), of_lists),
            **dict.fromkeys(("seen", "at_least"), (*of_lists, len(known.candidates))),
        }  # fmt: skip
        if any(getattr(known, name).shape != shape for name, shape in expected.items()) or (known.candidates < 1).any():
            raise ValueError("tables of different sizes")
        return known

    @property
    def own_queries(self) -> npt.NDArray[np.float32] | None:
        """The user's own queries, if it was learned from these."""
        return self.queries if len(self.queries) else None

    def level(self, k: float) -> int | None:
        """Place of the level for ``k`` neighbours; None if that is more than any."""
        place = int(np.searchsorted(self.levels, k))
        return place if place < len(self.levels) else None
