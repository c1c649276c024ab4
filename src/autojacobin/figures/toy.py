"""Figure 3: a plane in three dimensions, and how the network maps it onto the faces of a cube."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from autojacobin.figures.style import FAINT, LABEL_SIZE, PAGE, SMALL_SIZE, TITLE_SIZE, legend_below, new_figure
from autojacobin.hashers import AutoJacoBin

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# for the eight codes of three bits: Okabe and Ito, with wine in place of their yellow, which is too pale on white paper
CODE_COLOURS = ("#000000", "#E69F00", "#56B4E9", "#009E73", "#882255", "#0072B2", "#D55E00", "#CC79A7")
_POINTS = 1000
_MARKERS = "ov^sDPX*"


@dataclass(frozen=True)
class Toy:
    """The points, their hidden features and their codes; arrays of shape (1000, 3), codes of 0 and 1."""

    points: npt.NDArray[np.float64]
    hidden: npt.NDArray[np.float64]
    codes: npt.NDArray[np.uint8]


def train_toy(seed: int = 2) -> Toy:
    """Train Auto-JacoBin with three bits on 1,000 points of x1 + x2 + x3 = 1, x > 0.

    The paper does not give the scale of its toy data. At the usual 0.8 the tanh is almost linear. At 8 the hidden
    features reach the faces of the cube, as in the paper's picture, and with most seeds all seven codes occur that
    three lines can separate in a plane.
    """
    rng = np.random.RandomState(seed)
    points = rng.dirichlet([1, 1, 1], _POINTS)
    hasher = AutoJacoBin.as_published(3, alpha=0.01, scale=8, batch_size=None, n_epochs=50, random_state=int(seed)).fit(
        points
    )
    return Toy(points, np.tanh(hasher.project(points)), hasher.transform(points))


def draw(seed: int = 2) -> Figure:
    """Draw the training points and their hidden features, both coloured by the code; the title counts the codes."""
    figure = new_figure(PAGE, 3.6)
    toy = train_toy(seed)
    numbers = toy.codes @ np.array([4, 2, 1])
    used = np.unique(numbers)
    plane = _panel(figure, 121, "x", "training points", (0, 1), [0.2, 0.5, 0.8])
    cube = _panel(figure, 122, "y", f"hidden features, {len(used)} codes", (-1, 1), [-0.5, 0, 0.5])
    for start, end in itertools.combinations(itertools.product((-1, 1), repeat=3), 2):
        if np.count_nonzero(np.subtract(start, end)) == 1:
            cube.plot(*zip(start, end, strict=True), color=FAINT, linewidth=0.7)
    handles: dict[str, Any] = {}
    for number in used:
        signs = " ".join("+" if number >> bit & 1 else "−" for bit in (2, 1, 0))
        look = {"marker": _MARKERS[number], "color": CODE_COLOURS[number], "markersize": 3.0, "markeredgewidth": 0}
        for axes, points in ((plane, toy.points), (cube, toy.hidden)):
            (handles[signs],) = axes.plot(*points[numbers == number].T, linestyle="none", **look)
    legend_below(figure, handles, columns=8, handle=1.0, title="code, the signs of $y_1\\,y_2\\,y_3$")
    return figure


def _panel(
    figure: Figure, position: int, letter: str, title: str, limits: tuple[float, float], ticks: list[float]
) -> Any:
    axes: Any = figure.add_subplot(position, projection="3d")
    axes.set_title(title, fontsize=TITLE_SIZE)
    for number, axis in enumerate("xyz", start=1):
        getattr(axes, f"set_{axis}label")(f"${letter}_{number}$", fontsize=LABEL_SIZE, labelpad=-5)
        getattr(axes, f"set_{axis}lim")(*limits)
        getattr(axes, f"set_{axis}ticks")(ticks)
        getattr(axes, f"{axis}axis").set_rotate_label(False)  # or the letters are upside down
        axes.tick_params(axis=axis, labelsize=SMALL_SIZE, pad=-2)
    axes.set_box_aspect((1, 1, 1))
    axes.view_init(elev=24, azim=28)  # shows the plane from the front; the default view is along it
    axes.grid(False)
    return axes
