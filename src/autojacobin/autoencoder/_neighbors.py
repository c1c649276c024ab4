"""Nearest neighbours by matrix products, for the tangent spaces; a few rows at a time, so that memory stays bounded."""

from __future__ import annotations

from typing import Any

from autojacobin._arrays import namespace
from autojacobin._frames import centre, principal_frame

__all__ = ["Candidates"]


class Candidates:
    """Points among which neighbours are looked for.

    Distances come from one matrix product a block, ‖x−y‖² = ‖x‖² − 2x'y + ‖y‖², of which ‖x‖² is the
    same for all candidates and left out.
    """

    def __init__(self, points: Any) -> None:
        self.points = points
        # distances stay as they are, while the cancellation between large norms goes
        self._mean, self._centred = centre(points)
        self._half_norms = 0.5 * (self._centred * self._centred).sum(axis=1)
        self._frame: Any = None

    def __len__(self) -> int:
        return len(self.points)

    def frame(self, n_directions: int) -> Any:
        """Leading principal directions of all candidates, as orthonormal rows; found once."""
        if self._frame is None or len(self._frame) != n_directions:
            self._frame = principal_frame(self.points, self._mean, n_directions)
        return self._frame

    def nearest(self, X: Any, n_neighbors: int, places: Any = None) -> Any:
        """Row numbers of the ``n_neighbors`` candidates nearest to each row of ``X``, in no order.

        ``places`` are the row numbers of ``X`` itself among the candidates, if it is there: rounding must not push
        a point out of its own neighbourhood.
        """
        xp = namespace(X)
        if n_neighbors >= len(self):
            return xp.broadcast_to(xp.arange(len(self)), (len(X), len(self)))
        order = (self._mean - X) @ self._centred.T
        order += self._half_norms
        if places is not None:
            order[xp.arange(len(X)), places] = -xp.inf
        return xp.argpartition(order, n_neighbors - 1, axis=1)[:, :n_neighbors]
