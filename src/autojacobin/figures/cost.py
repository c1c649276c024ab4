"""Figure 6: the cost during the optimisation, and its terms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from autojacobin.figures.style import COLUMN, INK, format_axes, legend_below, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# name in the history: formula, colour, dashes, marker
_TERMS: dict[str, tuple[str, str, str, str]] = {
    "reconstruction": (r"reconstruction  $\Sigma\,\|z-x\|^2$", "#0072B2", "solid", "s"),
    "jacobian": (r"Jacobian  $\Sigma\,\|J-TT'\|^2$", "#D55E00", "dashed", "o"),
    "binary": (r"binary  $\alpha\,\|YY'-nI\|_1$", "#009E73", "dashdot", "^"),
    "contraction": (r"contraction  $\lambda\,\Sigma\,\|\partial y/\partial x\|^2$", "#882255", "dotted", "D"),
}
_MARKERS_PER_LINE = 6


def draw(history: Mapping[str, npt.ArrayLike], title: str = "") -> Figure:
    """Draw the cost of the batch after each step, and below it the terms that add up to it.

    Parameters
    ----------
    history : dict of arrays
        ``history_`` of a fitted auto-encoder hasher.
    title : str
        What was trained: data set, bits, α.
    """
    cost = np.asarray(history["cost"])
    terms = {name: np.asarray(history[name]) for name in _TERMS if name in history}
    epoch = np.asarray(history.get("epoch", np.zeros(len(cost))))
    figure = new_figure(COLUMN, 4.0)
    whole, parts = figure.subplots(2, 1, sharex=True)
    steps = np.arange(1, len(cost) + 1)
    lines: dict[str, Any] = {}
    (lines["cost"],) = whole.plot(steps, cost, color=INK, linewidth=1.6)
    every = max(1, len(cost) // _MARKERS_PER_LINE)
    for number, (name, values) in enumerate(terms.items()):
        label, colour, dashes, marker = _TERMS[name]
        look: dict[str, Any] = {"color": colour, "linestyle": dashes, "linewidth": 1.2, "marker": marker}
        shift = (number * every // len(terms), every)
        (lines[label],) = parts.plot(steps, values, markersize=3.5, markevery=shift, **look)
    format_axes(whole, y="cost of the batch", title=title)
    format_axes(parts, x="iteration", y="terms of the cost")
    # The terms differ by orders of magnitude. A logarithmic axis shows how each of them falls.
    if all((values > 0).all() for values in terms.values()):
        parts.set_yscale("log")
    for axes in (whole, parts):
        for start in np.flatnonzero(np.diff(epoch)) + 1:
            lines["start of an epoch"] = axes.axvline(
                start + 0.5, color="#8A8A8A", linewidth=0.7, linestyle="dotted", zorder=0
            )
        axes.margins(x=0.02)
        axes.xaxis.get_major_locator().set_params(integer=True)
    legend_below(figure, lines, columns=2)
    return figure
