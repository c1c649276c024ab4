"""Not in the paper: the settings that Auto-JacoBin tried when it chose some, and their scores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from autojacobin.figures.style import COLUMN, INK, format_axes, legend_below, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# initialisation: label, colour, marker
_INITS: dict[str, tuple[str, str, str]] = {
    "random": ("random rotation", "#000000", "v"),
    "itq": ("ITQ", "#0072B2", "s"),
    "okmeans": ("OKMeans", "#009E73", "D"),
    "nokmeans": ("NOKMeans", "#CC79A7", "P"),
}


def draw(results: Mapping[str, npt.ArrayLike], title: str = "") -> Figure:
    """Draw the held-out m-Recall of every candidate over the epochs of its training, with a ring around the chosen one.

    Parameters
    ----------
    results : dict of arrays
        ``search_results_`` of a fitted :class:`AutoJacoBin`.
    title : str
        What was trained: data set, bits.
    """
    table = {name: np.asarray(column) for name, column in results.items()}
    figure = new_figure(COLUMN * 1.35, 3.2)
    axes = figure.add_subplot()
    lines: dict[str, Any] = {}
    for init, weight, rows in _candidates(table):
        label, colour, marker = _INITS.get(init, (init, INK, "o"))
        look: dict[str, Any] = {"color": colour, "marker": marker, "markersize": 4, "linewidth": 1.0, "alpha": 0.85}
        dashes = "dashed" if weight > 0 else "solid"
        (line,) = axes.plot(table["n_epochs"][rows], table["m_recall"][rows], linestyle=dashes, **look)
        lines.setdefault(f"from {label}", line)
        if weight > 0:
            lines["dashed: with the Jacobian term"] = axes.plot([], [], color=INK, linestyle="dashed", linewidth=1.0)[0]
    best = int(np.argmax(table["chosen"]))
    (lines[f"chosen: {_words(table, best)}"],) = axes.plot(
        table["n_epochs"][best],
        table["m_recall"][best],
        linestyle="none",
        marker="o",
        markersize=12,
        markerfacecolor="none",
        markeredgecolor="#D55E00",
        markeredgewidth=1.6,
        zorder=5,
    )
    format_axes(axes, x="epochs of training", y="m-Recall of held-out training points", title=title)
    axes.set_xscale("symlog", linthresh=1)
    ticks = sorted({int(epochs) for epochs in table["n_epochs"]})
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.minorticks_off()
    legend_below(figure, lines, columns=2)
    return figure


def _candidates(table: dict[str, Any]) -> list[tuple[str, float, Any]]:
    """Rows of each candidate in the order of its training, beginning with its initialisation."""
    starts = {table["init"][row]: row for row in np.flatnonzero(table["n_epochs"] == 0)}
    found: dict[Any, list[Any]] = {}
    for row in np.flatnonzero(table["n_epochs"] > 0):
        key = tuple(str(table[name][row]) for name in ("init", "alpha", "jacobian_weight", "energy"))
        found.setdefault(key, [starts[table["init"][row]]] if table["init"][row] in starts else []).append(int(row))
    alone: list[list[Any]] = [
        [row] for init, row in starts.items() if not any(rows[0] == row for rows in found.values())
    ]
    return [
        (str(table["init"][rows[-1]]), float(table["jacobian_weight"][rows[-1]]), rows)
        for rows in (*found.values(), *alone)
    ]


def _words(table: dict[str, Any], row: int) -> str:
    start = _INITS.get(table["init"][row], (table["init"][row],))[0]
    if not table["n_epochs"][row]:
        return f"the start, {start}"
    weight = table["jacobian_weight"][row]
    jacobian = f", w = {weight:g}, energy {table['energy'][row]:g}" if weight else ", w = 0"
    return rf"{start}, $\alpha$ = {table['alpha'][row]:g}{jacobian}"
