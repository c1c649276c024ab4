"""Figure 7: m-Recall by the weight α of the binary term, and of a method without it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from autojacobin.figures.style import COLUMN, INK, SMALL_SIZE, format_axes, legend_below, new_figure, style_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Measurement = tuple[float, float]

_BAR_WIDTH = 0.17
_ERROR_BAR = {"elinewidth": 0.7, "capthick": 0.7, "capsize": 2, "ecolor": INK}
_NUMBER = {"textcoords": "offset points", "ha": "center", "va": "bottom", "fontsize": 5.5, "rotation": 90}
_PALEST = 0.75  # share of white in the bar of the smallest α


def draw(
    values: Mapping[int, Mapping[float, Measurement]],
    reference: Mapping[int, Measurement],
    title: str = "",
    reference_method: str = "NOKMeans",
) -> Figure:
    """Draw a group of bars for each code length: one bar for each α, and the reference.

    Parameters
    ----------
    values : dict of bits to dict of α to (mean, spread)
        m-Recall of Auto-JacoBin. Every length must have the same values of α.
    reference : dict of bits to (mean, spread)
        m-Recall of the reference method at the same lengths.
    title : str
        What was measured: data set, k, seeds.
    reference_method : str
    """
    heights = {bits: values[bits] for bits in sorted(values)}
    weights = sorted(next(iter(heights.values())))
    compared = [reference[bits] for bits in heights]
    other = style_of(reference_method)
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
    pairs = [*compared, *(pair for row in heights.values() for pair in row.values())]
    tallest = max(mean + spread for mean, spread in pairs)
    axes.set_ylim(0, 1.14 * max(tallest, 1e-3))  # leaves room for the numbers above the bars
    legend_below(figure, bars, columns=3)
    return figure


def _bars(axes: Any, centres: Any, pairs: list[Measurement], *, colour: str, hatch: str = "") -> Any:
    means, spreads = zip(*pairs, strict=True)
    look = {"color": colour, "edgecolor": INK, "linewidth": 0.5, "hatch": hatch, "error_kw": _ERROR_BAR}
    bars = axes.bar(centres, means, _BAR_WIDTH, yerr=spreads if any(spreads) else None, **look)
    for centre, mean, spread in zip(centres, means, spreads, strict=True):
        axes.annotate(f"{mean:.3f}".removeprefix("0"), (centre, mean + spread), xytext=(0, 3), **_NUMBER)
    return bars


def _shade(colour: str, place: int, n: int) -> str:
    """Mix the colour with white: the larger α, the less white."""
    white = _PALEST * (1 - place / max(1, n - 1))
    parts = (int(colour[start : start + 2], 16) for start in (1, 3, 5))
    return "#" + "".join(f"{round(part + (255 - part) * white):02X}" for part in parts)
