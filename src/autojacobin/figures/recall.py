"""Figure 8: Recall@i of several methods in one panel, and the curves of such panels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from autojacobin.figures.inputs import as_curves
from autojacobin.figures.style import COLUMN, format_axes, legend_below, new_figure, style_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw", "draw_curves", "simplify_curve"]

_TOLERANCE = 0.0005  # a tenth of a point in a panel three inches high
_LONG_LABEL = 13  # longest label with which three columns of the legend fit


def draw(curves: Mapping[str, npt.ArrayLike], title: str = "") -> Figure:
    """Draw Recall@i over the number i of retrieved points.

    Parameters
    ----------
    curves : dict of method to array
        Recall@1, Recall@2, … of each method, from ``evaluation.recall_curve``.
    title : str
        What was measured: data set, bits, k, seeds.
    """
    checked = as_curves(curves, "curves")
    columns = 2 if any(len(style_of(method).label) > _LONG_LABEL for method in checked) else 3
    figure = new_figure(COLUMN, 2.8 + 0.15 * -(-len(checked) // columns))
    axes = figure.add_subplot()
    lines = draw_curves(axes, checked, _TOLERANCE, n_markers=5)
    format_axes(axes, x="number of retrieved points, i", y="Recall@i", title=title)
    legend_below(figure, lines, columns=columns)
    return figure


def draw_curves(
    axes: Axes, curves: dict[str, npt.NDArray[np.float64]], tolerance: float, n_markers: int
) -> dict[str, Any]:
    """Draw Recall@i over i for each method, and give the lines by label, for a legend.

    Each curve has ``n_markers`` markers. They are shifted from curve to curve, so that none hides another.
    """
    lines = {}
    for number, (method, curve) in enumerate(curves.items()):
        style = style_of(method)
        shares = (np.arange(n_markers) + (number + 0.5) / len(curves)) / n_markers
        marked = np.unique((shares * len(curve)).astype(np.int64))
        shown = np.union1d(simplify_curve(curve, tolerance), marked)
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


def simplify_curve(curve: npt.NDArray[np.float64], tolerance: float) -> npt.NDArray[np.int64]:
    """Choose points of a curve so that the lines between them pass within ``tolerance`` of all its points.

    Distances are those in a square panel, 1 wide and 1 high. The algorithm is that of Ramer, Douglas and Peucker: keep
    the first and the last point; while a line passes too far from a point between its ends, keep the farthest such
    point too.
    """
    last = len(curve) - 1
    points = np.column_stack([np.linspace(0, 1, len(curve)), curve])
    kept = {0, last}
    open_spans = [(0, last)]
    while open_spans:
        start, end = open_spans.pop()
        if end - start < 2:
            continue
        distances = _distances(points[start + 1 : end], points[start], points[end])
        if distances.max() > tolerance:
            middle = start + 1 + int(distances.argmax())
            kept.add(middle)
            open_spans += [(start, middle), (middle, end)]
    return np.array(sorted(kept), dtype=np.int64)


def _distances(
    points: npt.NDArray[np.float64], start: npt.NDArray[np.float64], end: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """Distance of each point from the segment between ``start`` and ``end``."""
    along = end - start
    share = np.clip((points - start) @ along / (along @ along), 0, 1)
    distances: npt.NDArray[np.float64] = np.linalg.norm(points - start - share[:, None] * along, axis=1)
    return distances
