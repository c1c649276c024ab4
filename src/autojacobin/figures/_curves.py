"""Curves of thousands of points, drawn with the few dozen that the eye can tell apart."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from autojacobin.figures._style import style_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw_curves", "kept_points"]


def kept_points(curve: npt.NDArray[np.float64], tolerance: float) -> npt.NDArray[np.int64]:
    """Positions whose straight connections pass within ``tolerance`` of every point of ``curve``.

    Distances are what the eye sees in a square panel, where the curve is 1 long and the range of recalls is 1 high.
    The first and the last point are kept; then, wherever a connection passes too far from a point between its ends, the
    farthest such point is kept as well (Ramer, Douglas and Peucker).
    """
    last = len(curve) - 1
    seen = np.column_stack([np.linspace(0, 1, len(curve)), curve])
    kept = {0, last}
    open_spans = [(0, last)]
    while open_spans:
        start, end = open_spans.pop()
        if end - start < 2:
            continue
        gaps = _distances(seen[start + 1 : end], seen[start], seen[end])
        if gaps.max() > tolerance:
            middle = start + 1 + int(gaps.argmax())
            kept.add(middle)
            open_spans += [(start, middle), (middle, end)]
    return np.array(sorted(kept), dtype=np.int64)


def _distances(
    points: npt.NDArray[np.float64], start: npt.NDArray[np.float64], end: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """Distance of each point from the segment between ``start`` and ``end``."""
    along = end - start
    share = np.clip((points - start) @ along / (along @ along), 0, 1)
    gaps: npt.NDArray[np.float64] = np.linalg.norm(points - start - share[:, None] * along, axis=1)
    return gaps


def draw_curves(
    axes: Axes, curves: dict[str, npt.NDArray[np.float64]], tolerance: float, n_markers: int
) -> dict[str, Any]:
    """Draw Recall@i over i for each method; gives the lines by label, for a legend.

    Each curve has ``n_markers`` markers, at places of its own, so that they do not hide each other where curves meet.
    """
    lines = {}
    for place, (method, curve) in enumerate(curves.items()):
        style = style_of(method)
        shares = (np.arange(n_markers) + (place + 0.5) / len(curves)) / n_markers
        marked = np.unique((shares * len(curve)).astype(np.int64))
        shown = np.union1d(kept_points(curve, tolerance), marked)
        (lines[style.label],) = axes.plot(
            shown + 1,
            curve[shown],
            **style.line(),
            markevery=np.searchsorted(shown, marked).tolist(),
            zorder=2 + style.width,  # the thicker lines of the paper's own method lie on top
        )
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.set_xlim(1, max(2, *map(len, curves.values())))
    axes.set_ylim(0, 1.02)
    return lines
