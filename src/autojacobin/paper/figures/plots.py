"""Plots of what was measured: figures 6 to 10."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from autojacobin.paper.figures.style import (
    COLUMN,
    INK,
    LABEL_SIZE,
    PAGE,
    SMALL_SIZE,
    TITLE_SIZE,
    format_axes,
    legend_below,
    legend_order,
    new_figure,
    style_of,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# name in the history: formula, colour, dashes, marker
_TERMS: dict[str, tuple[str, str, str, str]] = {
    "reconstruction": (r"reconstruction  $\Sigma\,\|z-x\|^2$", "#0072B2", "solid", "s"),
    "jacobian": (r"Jacobian  $\Sigma\,\|J-TT'\|^2$", "#D55E00", "dashed", "o"),
    "binary": (r"binary  $\alpha\,\|YY'-nI\|_1$", "#009E73", "dashdot", "^"),
    "contraction": (r"contraction  $\lambda\,\Sigma\,\|\partial y/\partial x\|^2$", "#882255", "dotted", "D"),
}
_MARKERS_PER_LINE = 6
_MOST_EPOCHS = 10  # whose starts are marked; the lines of more would hide the curves


def draw_cost(history: Mapping[str, npt.ArrayLike], title: str = "") -> Figure:
    """Draw the cost of the batch after each step, and below it the terms that add up to it.

    ``history`` is the ``history_`` of a fitted auto-encoder hasher, and ``title`` says what was trained.
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
    starts = np.flatnonzero(np.diff(epoch)) + 1
    for axes in (whole, parts):
        for start in starts if len(starts) < _MOST_EPOCHS else ():
            lines["start of an epoch"] = axes.axvline(
                start + 0.5, color="#8A8A8A", linewidth=0.7, linestyle="dotted", zorder=0
            )
        axes.margins(x=0.02)
        axes.xaxis.get_major_locator().set_params(integer=True)
    legend_below(figure, lines, columns=2)
    return figure


_BAR_WIDTH = 0.17
_PALEST = 0.75  # share of white in the bar of the smallest α


def draw_alpha(values: Mapping[int, Mapping[float, float]], reference: Mapping[int, float], title: str = "") -> Figure:
    """Draw a group of bars for each code length: one bar for each α, and NOKMeans.

    ``values`` is the m-Recall of Auto-JacoBin by code length and α, the same α for each length, and ``reference`` that
    of NOKMeans by code length. ``title`` says what was measured.
    """
    heights = {bits: values[bits] for bits in sorted(values)}
    weights = sorted(next(iter(heights.values())))
    compared = [reference[bits] for bits in heights]
    other = style_of("NOKMeans")
    figure = new_figure(COLUMN * 1.35, 2.9)
    axes = figure.add_subplot()
    centres = np.arange(len(heights)) * (len(weights) + 2) * _BAR_WIDTH
    bars: dict[str, Any] = {}
    for place, weight in enumerate(weights):
        bars[rf"Auto-JacoBin, $\alpha$ = {weight:g}"] = _bars(
            axes,
            centres + place * _BAR_WIDTH,
            [row[weight] for row in heights.values()],
            colour=_shade(style_of("AutoJacoBin").colour, place, len(weights)),
        )
    bars[other.label] = _bars(
        axes, centres + (len(weights) + 0.25) * _BAR_WIDTH, compared, colour=other.colour, hatch="////"
    )
    format_axes(axes, y="m-Recall", title=title, grid="y")
    axes.set_xticks(centres + len(weights) / 2 * _BAR_WIDTH, [f"{bits} bits" for bits in heights], fontsize=SMALL_SIZE)
    tallest = max(*compared, *(value for row in heights.values() for value in row.values()))
    axes.set_ylim(0, 1.14 * max(tallest, 1e-3))  # leaves room for the numbers above the bars
    legend_below(figure, bars, columns=3)
    return figure


def _bars(axes: Any, centres: Any, values: list[float], *, colour: str, hatch: str = "") -> Any:
    bars = axes.bar(centres, values, _BAR_WIDTH, color=colour, edgecolor=INK, linewidth=0.5, hatch=hatch)
    axes.bar_label(bars, [f"{value:.3f}".removeprefix("0") for value in values], padding=3, fontsize=5.5, rotation=90)
    return bars


def _shade(colour: str, place: int, n: int) -> str:
    """Mix the colour with white: the larger α, the less white."""
    from matplotlib.colors import to_hex, to_rgb

    white = _PALEST * (1 - place / max(1, n - 1))
    red, green, blue = (part + (1 - part) * white for part in to_rgb(colour))
    return to_hex((red, green, blue))


_POINTS = 100  # of a curve, evenly spread over the axis, which keeps files small
_LOWEST = -0.15  # the difference at the bottom of a panel; what is lower would squeeze the curves that are close
_LONG_LABEL = 13  # longest label with which three columns of the legend fit
_LEGEND_COLUMNS = 6  # of the legend of a grid
_RECALL_HEIGHT, _DIFFERENCE_HEIGHT = 1.4, 0.85  # of the panels of a grid


def draw_recall(curves: Mapping[str, npt.ArrayLike], title: str = "", reference: str | None = None) -> Figure:
    """Draw Recall@i over the number i of retrieved points, which is on a logarithmic axis.

    ``curves`` holds Recall@1, Recall@2, … of each method, from ``evaluation.recall_curve``. With one of the methods as
    the ``reference``, a second panel shows the differences to its Recall@i, which tell close curves apart. ``title``
    says what was measured.
    """
    ordered = _in_legend_order(curves)
    columns = 2 if any(len(style_of(method).label) > _LONG_LABEL for method in ordered) else 3
    heights = [2.2] if reference is None else [2.2, 1.3]
    figure = new_figure(COLUMN, 0.6 + sum(heights) + 0.15 * -(-len(ordered) // columns))
    panels = figure.subplots(len(heights), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    lines = _draw_curves(panels[0], ordered, n_markers=5)
    format_axes(panels[0], y="Recall@i", title=title)
    if reference is not None:
        _draw_curves(panels[1], ordered, n_markers=5, reference=reference)
        format_axes(panels[1], y=_difference_label(reference))
    panels[-1].set_xlabel("number of retrieved points, i", fontsize=LABEL_SIZE)
    legend_below(figure, {style_of(method).label: line for method, line in lines.items()}, columns=columns)
    return figure


def draw_recall_grid(
    curves: Mapping[tuple[int, int], Mapping[str, npt.ArrayLike]], title: str = "", reference: str | None = None
) -> Figure:
    """Draw a grid of panels, each like that of :func:`draw_recall`: a row for each k, a column for each code length.

    ``curves`` holds the curves of a panel by ``(k, bits)``, for every k with every code length. With a ``reference``,
    which is a method of every panel, the differences to it are in a second panel below each.
    """
    cells = {cell: _in_legend_order(held) for cell, held in curves.items()}
    ks, lengths = (sorted({cell[part] for cell in cells}) for part in (0, 1))
    compared = (None,) if reference is None else (None, reference)
    heights = [_RECALL_HEIGHT, _DIFFERENCE_HEIGHT][: len(compared)] * len(ks)
    figure = new_figure(PAGE, sum(heights) + 0.9)
    panels = figure.subplots(len(heights), len(lengths), sharex=True, squeeze=False, height_ratios=heights)
    lines: dict[str, Any] = {}
    for first, other in enumerate(compared):
        rows = panels[first :: len(compared)]
        for (k, row), (column, bits) in itertools.product(zip(ks, rows, strict=True), enumerate(lengths)):
            lines.update(_draw_curves(row[column], cells[k, bits], n_markers=3, reference=other))
            format_axes(row[column], grid="y")
            if column == 0:
                label = f"Recall@i, k = {k}" if other is None else _difference_label(other)
                row[column].set_ylabel(label, fontsize=LABEL_SIZE)
            row[column].label_outer(remove_inner_ticks=True)
        low, high = zip(*(axes.get_ylim() for axes in rows.flat), strict=True)
        for axes in rows.flat:
            axes.set_ylim(min(low), max(high))  # of all, so that panels can be compared
    for axes, bits in zip(panels[0], lengths, strict=True):
        axes.set_title(f"{bits} bits", fontsize=TITLE_SIZE)
    for axes in panels[-1]:
        axes.set_xlabel("number of retrieved points, i", fontsize=LABEL_SIZE)
    panels[0, 0].set_xlim(1, max(2, *(len(curve) for cell in cells.values() for curve in cell.values())))
    if title:
        figure.suptitle(title, fontsize=SMALL_SIZE + 3)
    shown = {style_of(method).label: lines[method] for method in legend_order(lines)}
    legend_below(figure, shown, columns=-(-len(lines) // 2) if len(lines) > _LEGEND_COLUMNS else _LEGEND_COLUMNS)
    return figure


def _in_legend_order(curves: Mapping[str, npt.ArrayLike]) -> dict[str, npt.NDArray[np.float64]]:
    """Give curves by method as arrays, in the order of legends."""
    return {method: np.asarray(curves[method], dtype=np.float64) for method in legend_order(curves)}


def _difference_label(reference: str) -> str:
    return f"minus {style_of(reference).label}"


def _draw_curves(
    axes: Axes,
    curves: dict[str, npt.NDArray[np.float64]],
    n_markers: int,
    reference: str | None = None,
) -> dict[str, Any]:
    """Draw Recall@i over i for each method, or its difference to a reference, and give the lines by method.

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
        (lines[method],) = axes.plot(
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
        axes.set_yticks([0, 0.25, 0.5, 0.75, 1])
    else:
        shown = np.concatenate([np.asarray(line.get_ydata()) for line in lines.values()])
        low, high = min(-0.01, max(_LOWEST, float(shown.min()))), max(0.01, float(shown.max()))
        axes.set_ylim(low - 0.05 * (high - low), high + 0.05 * (high - low))
    return lines
