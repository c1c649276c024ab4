"""Figure 1: the three-layer network, drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autojacobin.figures.style import COLUMN, FAINT, INK, LABEL_SIZE, SMALL_SIZE, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BIASES = "#8E44AD"  # purple as in the paper
_LAYERS_AT = (0.0, 2.0, 4.0)
_RADIUS = 0.2
# height of each unit and its index; dots fill the gap before the last one
_OUTER = ((1.6, "1"), (0.9, "2"), (0.2, "3"), (-1.2, "D"))
_HIDDEN = ((1.25, "1"), (0.55, "2"), (-0.85, "d"))
_BIAS_AT = 2.35
_CAPTION_AT = -1.85


def draw() -> Figure:
    """Draw D inputs, d hidden units in black, D outputs, the biases in purple, and the formulas below the layers."""
    figure = new_figure(COLUMN, 3.0)
    axes = figure.add_subplot()
    layers = (_OUTER, _HIDDEN, _OUTER)
    for number in (0, 1):
        for y, _ in layers[number]:
            for end, _ in layers[number + 1]:
                _edge(axes, (_LAYERS_AT[number], y), (_LAYERS_AT[number + 1], end), FAINT)
        bias = (_LAYERS_AT[number], _BIAS_AT)
        for end, _ in layers[number + 1]:
            _edge(axes, bias, (_LAYERS_AT[number + 1], end), BIASES)
        _unit(axes, bias, "1", fill=BIASES, ink="white")
        middle = (_LAYERS_AT[number] + _LAYERS_AT[number + 1]) / 2
        axes.text(middle, _BIAS_AT, f"$b_{number + 1}$", color=BIASES, fontsize=LABEL_SIZE, ha="center", va="center")
        axes.text(middle, -1.38, f"$W_{number + 1}$", color=INK, fontsize=LABEL_SIZE, ha="center", va="center")
    for x, layer, letter in zip(_LAYERS_AT, layers, "xyz", strict=True):
        hidden = layer is _HIDDEN
        for y, index in layer:
            text = f"${letter}_{{{index}}}$"
            _unit(axes, (x, y), text, fill="black" if hidden else "white", ink="white" if hidden else INK)
        gap = (layer[-2][0] + layer[-1][0]) / 2
        axes.text(x, gap, r"$\vdots$", fontsize=LABEL_SIZE + 3, ha="center", va="center")
    for x, name, formula in zip(
        _LAYERS_AT,
        ("input layer", "hidden layer", "output layer"),
        ("$x$", r"$y = \tanh(W_1 x + b_1)$", r"$z = \tanh(W_2\, y + b_2)$"),
        strict=True,
    ):
        axes.text(x, _CAPTION_AT, name, fontsize=SMALL_SIZE, ha="center", va="center")
        axes.text(x, _CAPTION_AT - 0.36, formula, fontsize=SMALL_SIZE, ha="center", va="center")
    axes.text(2.0, _CAPTION_AT - 0.72, r"code: sign of $y$", fontsize=SMALL_SIZE, ha="center", va="center")
    axes.set_xlim(-0.85, 4.85)
    axes.set_ylim(_CAPTION_AT - 0.95, _BIAS_AT + 0.3)
    axes.set_aspect("equal")
    axes.set_axis_off()
    return figure


def _unit(axes: Axes, centre: tuple[float, float], text: str, *, fill: str, ink: str) -> None:
    from matplotlib.patches import Circle

    axes.add_patch(Circle(centre, _RADIUS, facecolor=fill, edgecolor=INK, linewidth=0.8, zorder=3))
    axes.text(*centre, text, color=ink, fontsize=SMALL_SIZE, ha="center", va="center_baseline", zorder=4)


def _edge(axes: Axes, start: tuple[float, float], end: tuple[float, float], colour: str) -> None:
    axes.plot(*zip(start, end, strict=True), color=colour, linewidth=0.5, zorder=1)
