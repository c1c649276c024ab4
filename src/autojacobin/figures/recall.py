"""Figure 8: Recall@i of several methods in one panel, and the curves of such panels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from autojacobin.figures.style import COLUMN, format_axes, legend_below, legend_order, new_figure, style_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_POINTS = 100  # of a curve, evenly spread over the axis, which keeps files small
_LOWEST = -0.15  # the difference at the bottom of a panel; what is lower would squeeze the curves that are close
_DIGITS = 5.5  # size of the numbers at the top of a panel, in points
_LONG_LABEL = 13  # longest label with which three columns of the legend fit


def draw(curves: Mapping[str, npt.ArrayLike], title: str = "", reference: str | None = None) -> Figure:
    """Draw Recall@i over the number i of retrieved points, which is on a logarithmic axis.

    Parameters
    ----------
    curves : dict of method to array
        Recall@1, Recall@2, … of each method, from ``evaluation.recall_curve``.
    title : str
        What was measured: data set, bits, k, seeds.
    reference : str, optional
        One of the methods. The figure then shows the differences to its Recall@i, which tell close curves apart, and
        its Recall@i as numbers at the top.
    """
    ordered = in_legend_order(curves)
    columns = 2 if any(len(style_of(method).label) > _LONG_LABEL for method in ordered) else 3
    figure = new_figure(COLUMN, 2.8 + 0.15 * -(-len(ordered) // columns))
    axes = figure.add_subplot()
    lines = draw_curves(axes, ordered, n_markers=5, reference=reference)
    format_axes(axes, x="number of retrieved points, i", y=recall_label(reference), title=title)
    legend_below(figure, lines, columns=columns)
    return figure


def in_legend_order(curves: Mapping[str, npt.ArrayLike]) -> dict[str, npt.NDArray[np.float64]]:
    """Give curves by method as arrays, in the order of legends."""
    return {method: np.asarray(curves[method], dtype=np.float64) for method in legend_order(curves)}


def recall_label(reference: str | None) -> str:
    """Give the label of an axis that shows Recall@i, or differences to that of a reference."""
    return "Recall@i" if reference is None else f"Recall@i − {style_of(reference).label}"


def draw_curves(
    axes: Axes,
    curves: dict[str, npt.NDArray[np.float64]],
    n_markers: int,
    reference: str | None = None,
) -> dict[str, Any]:
    """Draw Recall@i over i for each method, or its difference to a reference, and give the lines by label.

    Each curve has ``n_markers`` markers. They are shifted from curve to curve, so that none hides another.
    """
    lines = {}
    longest = max(map(len, curves.values()))
    for number, (method, recalls) in enumerate(curves.items()):
        style, curve = style_of(method), recalls
        if reference is not None:
            both = min(len(recalls), len(curves[reference]))
            curve = recalls[:both] - curves[reference][:both]
        shares = (np.arange(n_markers) + (number + 0.5) / len(curves)) / n_markers
        marked = np.unique((len(curve) ** shares).astype(np.int64)) - 1
        kept = np.union1d(np.geomspace(1, len(curve), _POINTS).astype(np.int64) - 1, marked)
        (lines[style.label],) = axes.plot(
            kept + 1,
            curve[kept],
            **style.line(),
            markevery=np.searchsorted(kept, marked).tolist(),
            zorder=2 + style.width,  # the thicker lines of the paper's own method lie on top
        )
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.set_xlim(1, max(2, longest))
    if reference is None:
        axes.set_ylim(0, 1.02)
    else:
        shown = np.concatenate([np.asarray(line.get_ydata()) for line in lines.values()])
        low, high = min(-0.01, max(_LOWEST, float(shown.min()))), max(0.01, float(shown.max()))
        axes.set_ylim(low - 0.05 * (high - low), high + 0.25 * (high - low))  # room for the numbers
        _write_recalls(axes, curves[reference])
    return lines


def _write_recalls(axes: Axes, curve: npt.NDArray[np.float64]) -> None:
    """Write the recalls of the reference at i = 1, 10, 100, … below the top of a panel."""
    places = 10 ** np.arange(int(np.log10(len(curve))) + 1)
    for place in places.tolist():
        align, moved = ("left", 2) if place == 1 else ("right", -2) if place == len(curve) else ("center", 0)
        axes.annotate(
            f"{curve[place - 1]:.2f}".removeprefix("0"),
            (place, 0.97),
            (moved, 0),
            xycoords=axes.get_xaxis_transform(),
            textcoords="offset points",
            ha=align,
            va="top",
            fontsize=_DIGITS,
            color="#707070",
        )
