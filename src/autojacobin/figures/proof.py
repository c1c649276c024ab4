"""The figure of appendix I: the points O, A, B, C, D and E in the proof of Theorem 1."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from autojacobin.figures.style import COLUMN, INK, LABEL_SIZE, SMALL_SIZE, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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


def draw() -> Figure:
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
