"""Figures whose data the library makes: the network, points of a curve and of a plane, and the proof of Theorem 1."""

from __future__ import annotations

import itertools
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from autojacobin.autoencoder import Network, Objective, tangent_spaces, train
from autojacobin.hashers import AutoJacoBin
from autojacobin.paper.figures.style import (
    COLUMN,
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

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BIASES = "#8E44AD"  # purple as in the paper
# height of each unit by its index; dots fill the gap before the last one
_OUTER = {"1": 1.6, "2": 0.9, "3": 0.2, "D": -1.2}
_HIDDEN = {"1": 1.25, "2": 0.55, "d": -0.85}
_LAYERS = (
    (0.0, _OUTER, "x", "input layer", "$x$"),
    (2.0, _HIDDEN, "y", "hidden layer", r"$y = \tanh(W_1 x + b_1)$"),
    (4.0, _OUTER, "z", "output layer", r"$z = \tanh(W_2\, y + b_2)$"),
)
_BIAS_AT = 2.35
_CAPTION_AT = -1.85


def draw_network() -> Figure:
    """Draw D inputs, d hidden units in black, D outputs, the biases in purple, and the formulas below the layers."""
    figure = new_figure(COLUMN, 3.0)
    axes = figure.add_subplot()
    write = partial(axes.text, ha="center", va="center")
    for number, (layer, following) in enumerate(itertools.pairwise(_LAYERS), start=1):
        ends, middle = (layer[0], following[0]), (layer[0] + following[0]) / 2
        for heights, colour in ((layer[1].values(), FAINT), ([_BIAS_AT], BIASES)):
            pairs = np.transpose(list(itertools.product(heights, following[1].values())))
            axes.plot(ends, pairs, color=colour, linewidth=0.5, zorder=1)
        _unit(axes, (layer[0], _BIAS_AT), "1", fill=BIASES, ink="white")
        write(middle, _BIAS_AT, f"$b_{number}$", color=BIASES, fontsize=LABEL_SIZE)
        write(middle, -1.38, f"$W_{number}$", color=INK, fontsize=LABEL_SIZE)
    for x, units, letter, name, formula in _LAYERS:
        fill, ink = ("black", "white") if units is _HIDDEN else ("white", INK)
        for index, y in units.items():
            _unit(axes, (x, y), f"${letter}_{{{index}}}$", fill=fill, ink=ink)
        write(x, sum(list(units.values())[-2:]) / 2, r"$\vdots$", fontsize=LABEL_SIZE + 3)
        write(x, _CAPTION_AT, name, fontsize=SMALL_SIZE)
        write(x, _CAPTION_AT - 0.36, formula, fontsize=SMALL_SIZE)
    write(2.0, _CAPTION_AT - 0.72, r"code: sign of $y$", fontsize=SMALL_SIZE)
    axes.set(xlim=(-0.85, 4.85), ylim=(_CAPTION_AT - 0.95, _BIAS_AT + 0.3), aspect="equal")
    axes.set_axis_off()
    return figure


def _unit(axes: Axes, centre: tuple[float, float], text: str, *, fill: str, ink: str) -> None:
    from matplotlib.patches import Circle

    axes.add_patch(Circle(centre, 0.2, facecolor=fill, edgecolor=INK, linewidth=0.8, zorder=3))
    axes.text(*centre, text, color=ink, fontsize=SMALL_SIZE, ha="center", va="center_baseline", zorder=4)


_BEND = 0.35
_POINT = (1.15, 1.5)


def manifold(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Height of the curve that represents the manifold; its tangent at 0 is the x-axis."""
    return _BEND * x**2


def positions() -> dict[str, npt.NDArray[np.float64]]:
    """Coordinates of the points: O = m, A = m + t, B = f(A), C and D below A and B on the tangent, E with EB = CD."""
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
    for corner, side in (("C", 0.09), ("D", -0.09), ("E", 0.09)):  # their right angles
        x0, y0 = points[corner]
        axes.plot([x0 + side, x0 + side, x0], [y0, y0 + 0.09, y0 + 0.09], color=INK, linewidth=0.6)
    for name, (x_shift, y_shift, text) in _LABELS.items():
        axes.plot(*points[name], marker="o", markersize=4, color="#0072B2", markeredgecolor="white")
        look: dict[str, Any] = {"textcoords": "offset points", "fontsize": LABEL_SIZE, "ha": "center", "va": "center"}
        axes.annotate(text, tuple(points[name]), xytext=(x_shift, y_shift), **look)
    axes.text(2.3, float(manifold(np.array(2.3))) + 0.08, r"manifold $\mathcal{M}$", fontsize=SMALL_SIZE, ha="right")
    axes.text(3.1, -0.15, "tangent space at $O$", fontsize=SMALL_SIZE, ha="right", va="center")
    axes.set_aspect("equal")
    axes.set_axis_off()
    return figure


# shift of the label in points, and its text
_LABELS = {
    "O": (-4, -9, "$O = m$"),
    "A": (2, 9, "$A = m + t$"),
    "B": (33, -3, "$B = f(m+t)$"),
    "C": (0, -9, "$C$"),
    "D": (0, -9, "$D$"),
    "E": (-8, 3, "$E$"),
}


Points = npt.NDArray[np.float64]

_END = 1.15
_HIDDEN_UNITS = 16
_GAIN = 3.0
_TRAINING_POINTS = 200
_TRAINING_NOISE = 0.01
_SHOWN = 40
_SHOWN_NOISE = 0.09
_ARROW = {"arrowstyle": "->", "linewidth": 0.9, "shrinkA": 0, "shrinkB": 1.5, "mutation_scale": 5}


def curve(t: npt.ArrayLike) -> Points:
    """Points of the curve for t from −1.15, its left end, to 1.15, its right end."""
    t = np.asarray(t, dtype=np.float64)
    return np.stack([0.7 * t, 0.35 * np.sin(np.pi * t)], axis=-1)


def nearest(points: Points) -> Points:
    """The function f: the nearest point of the curve, to a ten-thousandth of its length."""
    fine = curve(np.linspace(-_END, _END, 10_001))
    return fine[[int(((fine - point) ** 2).sum(axis=1).argmin()) for point in points]]


def denoise(seed: int = 0) -> tuple[Points, Points]:
    """Train a network on points of the curve with a little noise; give points with much noise, before and after it.

    The cost is that of Auto-JacoBin without its binary term. In two dimensions the paper's initialisation leaves all
    hidden units in the linear part of tanh. Here they begin with steep slopes at points spread along the curve.
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
    return noisy, network.forward(noisy).Z


def _initial_network(X: Points, rng: np.random.RandomState) -> Network:
    W1 = _GAIN * rng.normal(size=(_HIDDEN_UNITS, 2))
    centres = X[np.linspace(0, len(X) - 1, _HIDDEN_UNITS).astype(int)]
    b1 = -(W1 * centres).sum(axis=1)
    features = np.column_stack([np.tanh(X @ W1.T + b1), np.ones(len(X))])
    ridge = np.eye(_HIDDEN_UNITS + 1)  # keeps the weights small
    weights = np.linalg.solve(features.T @ features + ridge, features.T @ np.arctanh(X))
    return Network(W1, b1, np.ascontiguousarray(weights[:-1].T), weights[-1])


def draw_denoising(seed: int = 0) -> Figure:
    """Draw the noisy points, the points mapped by f, and the points mapped by a network that is trained here.

    A point has the same colour in all panels. Stars are the noisy points, circles the mapped ones. The titles give the
    mean distance from the curve.
    """
    figure = new_figure(PAGE, 1.95)
    from matplotlib import colormaps

    noisy, learned = denoise(seed)
    panels = figure.subplots(1, 3, sharex=True, sharey=True)
    # viridis suits any colour vision; its yellow end is too pale for arrows on white
    colours = colormaps["viridis"](np.linspace(0, 0.92, len(noisy)))
    outcomes = {"noisy points": noisy, r"$f$, the nearest point": nearest(noisy), "a trained network": learned}
    for axes, (title, moved) in zip(panels, outcomes.items(), strict=True):
        axes.plot(*curve(np.linspace(-_END, _END, 200)).T, color="black", linewidth=1.4, zorder=2)
        distance = np.linalg.norm(moved - nearest(moved), axis=1).mean()
        if moved is noisy:
            axes.scatter(*noisy.T, c=colours, marker="*", s=36, linewidths=0.3, edgecolors=INK, zorder=3)
        else:
            for start, end, colour in zip(noisy, moved, colours, strict=True):
                axes.annotate("", end, xytext=start, arrowprops={**_ARROW, "color": colour}, zorder=1)
            axes.scatter(*noisy.T, c=colours, marker="*", s=7, linewidths=0, zorder=1)
            axes.scatter(*moved.T, c=colours, marker="o", s=11, linewidths=0.4, edgecolors=INK, zorder=3)
        shown = "0" if distance < 5e-4 else f"{distance:.3f}"
        format_axes(axes, x="$x_1$", title=f"{title}\nmean distance {shown}", grid="none")
        axes.set_aspect("equal")
    panels[0].set_ylabel("$x_2$", fontsize=LABEL_SIZE)
    return figure


# for the eight codes of three bits: Okabe and Ito, with wine in place of their yellow, which is too pale on white paper
CODE_COLOURS = ("#000000", "#E69F00", "#56B4E9", "#009E73", "#882255", "#0072B2", "#D55E00", "#CC79A7")
_PLANE_POINTS = 1000
_MARKERS = "ov^sDPX*"


def train_toy(seed: int = 2) -> tuple[Points, Points, npt.NDArray[np.uint8]]:
    """Train Auto-JacoBin with three bits on points of x1 + x2 + x3 = 1, x > 0; give these, their features and bits.

    The paper does not give the scale of its toy data. At 8 the hidden features reach the faces of the cube, as in the
    paper's picture, and with most seeds all seven codes occur that three lines can separate in a plane.
    """
    rng = np.random.RandomState(seed)
    points = rng.dirichlet([1, 1, 1], _PLANE_POINTS)
    hasher = AutoJacoBin.as_published(3, alpha=0.01, scale=8, batch_size=None, n_epochs=50, random_state=int(seed))
    hasher.fit(points)
    return points, np.tanh(hasher.project(points)), hasher.transform(points)


def draw_toy(seed: int = 2) -> Figure:
    """Draw the training points and their hidden features, both coloured by the code; the title counts the codes."""
    figure = new_figure(PAGE, 3.6)
    points, hidden, codes = train_toy(seed)
    numbers = codes @ np.array([4, 2, 1])
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
        for axes, where in ((plane, points), (cube, hidden)):
            (handles[signs],) = axes.plot(*where[numbers == number].T, linestyle="none", **look)
    legend_below(figure, handles, columns=8, handle=1.0, title="code, the signs of $y_1\\,y_2\\,y_3$")
    return figure


def _panel(
    figure: Figure, position: int, letter: str, title: str, limits: tuple[float, float], ticks: list[float]
) -> Any:
    axes: Any = figure.add_subplot(position, projection="3d")
    axes.set_title(title, fontsize=TITLE_SIZE)
    for number, axis in enumerate("xyz", start=1):
        getattr(axes, f"set_{axis}label")(f"${letter}_{number}$", fontsize=LABEL_SIZE, labelpad=-5)
        axes.set(**{f"{axis}lim": limits, f"{axis}ticks": ticks})
        getattr(axes, f"{axis}axis").set_rotate_label(False)  # or the letters are upside down
        axes.tick_params(axis=axis, labelsize=SMALL_SIZE, pad=-2)
    axes.set_box_aspect((1, 1, 1))
    axes.view_init(elev=24, azim=28)  # shows the plane from the front; the default view is along it
    axes.grid(False)
    return axes
