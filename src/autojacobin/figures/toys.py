"""Figures 2 and 3: networks that are trained on noisy points of a curve, and on a plane in three dimensions."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from autojacobin.autoencoder import Network, Objective, tangent_spaces, train
from autojacobin.figures.style import (
    FAINT,
    INK,
    LABEL_SIZE,
    PAGE,
    SMALL_SIZE,
    TITLE_SIZE,
    format_axes,
    legend_below,
    new_figure,
)
from autojacobin.hashers import AutoJacoBin

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Points = npt.NDArray[np.float64]

_END = 1.15
_HIDDEN = 16
_GAIN = 3.0
_TRAINING_POINTS = 200
_TRAINING_NOISE = 0.01
_SHOWN = 40
_SHOWN_NOISE = 0.09
_ARROW = {"arrowstyle": "->", "linewidth": 0.9, "shrinkA": 0, "shrinkB": 1.5, "mutation_scale": 5}


@dataclass(frozen=True)
class Denoised:
    """Noisy points, and the same points mapped by f and by the network; arrays of shape (n, 2)."""

    noisy: Points
    ideal: Points
    learned: Points


def curve(t: npt.ArrayLike) -> Points:
    """Points of the curve for t from −1.15, its left end, to 1.15, its right end."""
    t = np.asarray(t, dtype=np.float64)
    return np.stack([0.7 * t, 0.35 * np.sin(np.pi * t)], axis=-1)


def nearest(points: Points) -> Points:
    """The function f: the nearest point of the curve, to a ten-thousandth of its length."""
    fine = curve(np.linspace(-_END, _END, 10_001))
    return fine[[int(((fine - point) ** 2).sum(axis=1).argmin()) for point in points]]


def denoise(seed: int = 0) -> Denoised:
    """Train a network on points of the curve with a little noise, then apply it to points with much noise.

    The cost is that of Auto-JacoBin without its binary term, since no codes are needed here. In two dimensions the
    paper's initialisation leaves all hidden units in the linear part of tanh. Here the hidden units begin with steep
    slopes at points spread along the curve, and the outputs with a least-squares fit.
    """
    rng = np.random.RandomState(seed)
    X = curve(np.linspace(-_END, _END, _TRAINING_POINTS)) + _TRAINING_NOISE * rng.normal(size=(_TRAINING_POINTS, 2))
    network, _ = train(
        _initial_network(X, rng),
        X,
        Objective(alpha=0.0, jacobian_weight=1.0),
        rng=rng,
        tangents=tangent_spaces(X, n_neighbors=12, max_rank=1, energy=1.0),
        batch_size=50,
        n_epochs=400,
    )
    t = np.linspace(-1, 1, _SHOWN)
    noisy = curve(t) + _SHOWN_NOISE * rng.normal(size=(_SHOWN, 2))
    return Denoised(noisy, nearest(noisy), network.forward(noisy).Z)


def _initial_network(X: Points, rng: np.random.RandomState) -> Network:
    W1 = _GAIN * rng.normal(size=(_HIDDEN, 2))
    centres = X[np.linspace(0, len(X) - 1, _HIDDEN).astype(int)]
    b1 = -(W1 * centres).sum(axis=1)
    features = np.column_stack([np.tanh(X @ W1.T + b1), np.ones(len(X))])
    ridge = np.eye(_HIDDEN + 1)  # keeps the weights small
    weights = np.linalg.solve(features.T @ features + ridge, features.T @ np.arctanh(X))
    return Network(W1, b1, np.ascontiguousarray(weights[:-1].T), weights[-1])


def draw_denoising(seed: int = 0) -> Figure:
    """Draw the noisy points, the points mapped by f, and the points mapped by a network that is trained here.

    A point has the same colour in all panels. Stars are the noisy points, circles the mapped ones. The titles give the
    mean distance from the curve.
    """
    figure = new_figure(PAGE, 1.95)
    points = denoise(seed)
    panels = figure.subplots(1, 3, sharex=True, sharey=True)
    colours = _colours(len(points.noisy))
    outcomes: tuple[tuple[str, Points | None], ...] = (
        ("noisy points", None),
        (r"$f$, the nearest point", points.ideal),
        ("a trained network", points.learned),
    )
    for axes, (title, moved) in zip(panels, outcomes, strict=True):
        axes.plot(*curve(np.linspace(-_END, _END, 200)).T, color="black", linewidth=1.4, zorder=2)
        where = points.noisy if moved is None else moved
        distance = np.linalg.norm(where - nearest(where), axis=1).mean()
        _draw_points(axes, points.noisy, moved, colours)
        shown = "0" if distance < 5e-4 else f"{distance:.3f}"
        format_axes(axes, x="$x_1$", title=f"{title}\nmean distance {shown}", grid="none")
        axes.set_aspect("equal")
    panels[0].set_ylabel("$x_2$", fontsize=LABEL_SIZE)
    return figure


def _draw_points(axes: Axes, noisy: Points, moved: Points | None, colours: Any) -> None:
    if moved is None:
        axes.scatter(noisy[:, 0], noisy[:, 1], c=colours, marker="*", s=36, linewidths=0.3, edgecolors=INK, zorder=3)
        return
    for start, end, colour in zip(noisy, moved, colours, strict=True):
        axes.annotate("", end, xytext=start, arrowprops={**_ARROW, "color": colour}, zorder=1)
    axes.scatter(noisy[:, 0], noisy[:, 1], c=colours, marker="*", s=7, linewidths=0, zorder=1)
    axes.scatter(moved[:, 0], moved[:, 1], c=colours, marker="o", s=11, linewidths=0.4, edgecolors=INK, zorder=3)


def _colours(n: int) -> Any:
    from matplotlib import colormaps

    # viridis suits any colour vision; its yellow end is too pale for arrows on white
    return colormaps["viridis"](np.linspace(0, 0.92, n))


# for the eight codes of three bits: Okabe and Ito, with wine in place of their yellow, which is too pale on white paper
CODE_COLOURS = ("#000000", "#E69F00", "#56B4E9", "#009E73", "#882255", "#0072B2", "#D55E00", "#CC79A7")
_PLANE_POINTS = 1000
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
    points = rng.dirichlet([1, 1, 1], _PLANE_POINTS)
    hasher = AutoJacoBin.as_published(3, alpha=0.01, scale=8, batch_size=None, n_epochs=50, random_state=int(seed)).fit(
        points
    )
    return Toy(points, np.tanh(hasher.project(points)), hasher.transform(points))


def draw_toy(seed: int = 2) -> Figure:
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
