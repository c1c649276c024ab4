"""Figure 2: noisy points around a curve, mapped by f and by a trained network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from autojacobin.autoencoder import Network, Objective, tangent_spaces, train
from autojacobin.figures.style import INK, LABEL_SIZE, PAGE, format_axes, new_figure

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


def draw(seed: int = 0) -> Figure:
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
