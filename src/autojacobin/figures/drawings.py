"""Drawings: the network of figure 1, and the points in the proof of Theorem 1 in appendix I."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

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


def draw_network() -> Figure:
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


_BEND = 0.35
_POINT = (1.15, 1.5)


def manifold(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Height of the curve that represents the manifold; its tangent at 0 is the x-axis."""
    return _BEND * x**2


def positions() -> dict[str, npt.NDArray[np.float64]]:
    """Coordinates of the points: O = m, A = m + t, B = f(A), C and D below A and B on the tangent, E with EB = CD.

    Examples
    --------
    >>> points = positions()
    >>> bool(np.allclose(points["B"] - points["E"], points["D"] - points["C"]))
    True
    """
    A = np.array(_POINT)
    # d/dx ‖(x, bend x²) − A‖² = 0 is a cubic; f takes the nearest of its real roots
    roots = np.roots([2 * _BEND**2, 0.0, 1 - 2 * _BEND * A[1], -A[0]])
    candidates = roots[np.abs(roots.imag) < 1e-9].real
    feet = np.stack([candidates, manifold(candidates)], axis=1)
    B = feet[np.linalg.norm(feet - A, axis=1).argmin()]
    C, D = np.array([A[0], 0.0]), np.array([B[0], 0.0])
    return {"O": np.zeros(2), "A": A, "B": B, "C": C, "D": D, "E": C + (B - D)}


def draw_proof() -> Figure:
    """Draw the manifold as a curve, its tangent at O as the x-axis, and the points with the segments between them."""
    points = positions()
    figure = new_figure(COLUMN, 2.3)
    axes = figure.add_subplot()
    x = np.linspace(-0.75, 2.35, 120)
    axes.plot(x, manifold(x), color="#E6B400", linewidth=3.0)
    axes.plot([-0.8, 3.1], [0, 0], color=INK, linewidth=0.9)
    segments = {"OA": "solid", "AB": "solid", "OB": "dashed", "AC": "dashed", "BD": "dashed", "EB": "dashed"}
    for pair, dashes in {**segments, "CB": "dotted"}.items():
        start, end = points[pair[0]], points[pair[1]]
        axes.plot(*zip(start, end, strict=True), color=INK, linewidth=0.9, linestyle=dashes)
    for corner, x_side, y_side in (("C", 1, 1), ("D", -1, 1), ("E", 1, 1)):
        _right_angle(axes, points[corner], x_side, y_side)
    for name, (x_shift, y_shift, text) in _LABELS.items():
        axes.plot(*points[name], marker="o", markersize=4, color="#0072B2", markeredgecolor="white")
        look: dict[str, Any] = {"textcoords": "offset points", "fontsize": LABEL_SIZE, "ha": "center", "va": "center"}
        axes.annotate(text, tuple(points[name]), xytext=(x_shift, y_shift), **look)
    axes.text(2.3, float(manifold(np.array(2.3))) + 0.08, r"manifold $\mathcal{M}$", fontsize=SMALL_SIZE, ha="right")
    axes.text(3.1, -0.15, "tangent space at $O$", fontsize=SMALL_SIZE, ha="right", va="center")
    axes.set_aspect("equal")
    axes.set_axis_off()
    return figure


def _right_angle(axes: Axes, corner: npt.NDArray[np.float64], x_side: int, y_side: int) -> None:
    x, y = corner
    along, up = x + 0.09 * x_side, y + 0.09 * y_side
    axes.plot([along, along, x], [y, up, up], color=INK, linewidth=0.6)


# shift of the label in points, and its text
_LABELS = {
    "O": (-4, -9, "$O = m$"),
    "A": (2, 9, "$A = m + t$"),
    "B": (33, -3, "$B = f(m+t)$"),
    "C": (0, -9, "$C$"),
    "D": (0, -9, "$D$"),
    "E": (-8, 3, "$E$"),
}
