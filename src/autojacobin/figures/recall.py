"""Figure 8: Recall@i of several methods in one panel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy.typing as npt

from autojacobin.figures._curves import draw_curves
from autojacobin.figures._inputs import checked_curves
from autojacobin.figures._style import COLUMN, dress, legend_below, new_figure, style_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["draw"]

_TOLERANCE = 0.0005  # a tenth of a point in a panel three inches high
_LONG_LABEL = 13  # letters of which three columns of the legend still fit


def draw(curves: Mapping[str, npt.ArrayLike], title: str = "") -> Figure:
    """Draw Recall@i over the number i of retrieved points.

    Parameters
    ----------
    curves : dict of method to array
        Recall@1, Recall@2, … of each method, from ``evaluation.recall_curve``.
    title : str
        What was measured: data set, bits, k, seeds.
    """
    checked = checked_curves(curves, "curves")
    columns = 2 if any(len(style_of(method).label) > _LONG_LABEL for method in checked) else 3
    figure = new_figure(COLUMN, 2.8 + 0.15 * -(-len(checked) // columns))
    axes = figure.add_subplot()
    lines = draw_curves(axes, checked, _TOLERANCE, n_markers=5)
    dress(axes, x="number of retrieved points, i", y="Recall@i", title=title)
    legend_below(figure, lines, columns=columns)
    return figure
