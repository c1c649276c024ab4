"""Figures 9 and 10: Recall@i of all methods, one row per k and one column per code length."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from autojacobin.figures.recall import draw_curves, in_legend_order, recall_label
from autojacobin.figures.style import PAGE, SMALL_SIZE, format_axes, legend_below, legend_order, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_PANEL_HEIGHT = 1.5
_COLUMNS = 6  # of the legend


def draw(
    curves: Mapping[tuple[int, int], Mapping[str, npt.ArrayLike]], title: str = "", reference: str | None = None
) -> Figure:
    """Draw a grid of panels, each like :func:`autojacobin.figures.recall.draw`.

    Parameters
    ----------
    curves : dict of (k, bits) to dict of method to array
        Recall@1, Recall@2, … of each method, for every k with every code length.
    title : str
        What was measured: data set, seeds.
    reference : str, optional
        A method of every panel, whose Recall@i is subtracted from that of all.
    """
    cells = {cell: in_legend_order(held) for cell, held in curves.items()}
    ks, lengths = (sorted({cell[part] for cell in cells}) for part in (0, 1))
    figure = new_figure(PAGE, _PANEL_HEIGHT * len(ks) + 0.9)
    panels = figure.subplots(len(ks), len(lengths), sharex=True, sharey=True, squeeze=False)
    lines: dict[str, Any] = {}
    limits: list[tuple[float, float]] = []
    for row, k in enumerate(ks):
        for column, bits in enumerate(lengths):
            axes = panels[row, column]
            lines.update(draw_curves(axes, cells[k, bits], n_markers=3, reference=reference))
            limits.append(axes.get_ylim())
            format_axes(
                axes,
                x="number of retrieved points, i" if row == len(ks) - 1 else "",
                y=f"{recall_label(reference)}, k = {k}" if column == 0 else "",
                title=f"{bits} bits" if row == 0 else "",
                grid="y",
            )
            if reference is None:
                axes.set_yticks([0, 0.25, 0.5, 0.75, 1])
            axes.label_outer(remove_inner_ticks=True)
    longest = max(len(curve) for cell in cells.values() for curve in cell.values())
    panels[0, 0].set_xlim(1, max(2, longest))
    panels[0, 0].set_ylim(min(low for low, _ in limits), max(high for _, high in limits))  # of all, which share it
    if title:
        figure.suptitle(title, fontsize=SMALL_SIZE + 3)
    legend_below(
        figure,
        {label: lines[label] for label in legend_order(lines)},
        columns=-(-len(lines) // 2) if len(lines) > _COLUMNS else _COLUMNS,
    )
    return figure
