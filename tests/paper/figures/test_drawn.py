"""Figures 1, 2, 3 and that of appendix I, whose data the library makes itself."""

import sys
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.patches import Circle
from scipy.optimize import minimize_scalar

from autojacobin import MissingExtraError
from autojacobin.paper.figures import (
    draw_alpha,
    draw_cost,
    draw_denoising,
    draw_network,
    draw_patches,
    draw_proof,
    draw_recall,
    draw_recall_grid,
    draw_retrieval,
    draw_toy,
    drawings,
)
from autojacobin.paper.figures.drawings import BIASES, CODE_COLOURS
from tests.paper.figures.looking import laid_out, legend_of, texts


def test_figure_1_names_the_layers_their_units_and_the_forward_pass():
    figure = draw_network()
    shown = set(texts(figure))
    assert {"input layer", "hidden layer", "output layer", "$W_1$", "$W_2$", "$b_1$", "$b_2$"} <= shown
    assert {"$x$", r"$y = \tanh(W_1 x + b_1)$", r"$z = \tanh(W_2\, y + b_2)$"} <= shown
    assert {"$x_{D}$", "$y_{d}$", "$z_{D}$"} <= shown
    fills = [to_hex(unit.get_facecolor()) for unit in figure.axes[0].patches if isinstance(unit, Circle)]
    assert fills.count("#000000") == 3  # the hidden units
    assert fills.count(BIASES.lower()) == 2
    assert fills.count("#ffffff") == 8


@cache
def denoised(seed):
    return drawings.denoise(seed)


def test_f_is_the_nearest_point_of_the_curve():
    noisy, _ = denoised(0)
    for point, image in zip(noisy[::12], drawings.nearest(noisy[::12]), strict=True):
        starts = np.linspace(-1.15, 1.15, 24)
        finds = [
            minimize_scalar(
                lambda t, at=point: np.sum((drawings.curve(t) - at) ** 2), bounds=(a, b), method="bounded"
            ).fun
            for a, b in pairwise(starts)
        ]
        assert np.linalg.norm(point - image) == pytest.approx(min(finds) ** 0.5, abs=1e-4)


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.rare)])
def test_the_network_of_figure_2_has_learned_to_remove_noise(seed):
    noisy, learned = denoised(seed)
    noise, rest = (np.linalg.norm(where - drawings.nearest(where), axis=1).mean() for where in (noisy, learned))
    assert rest < 0.5 * noise
    errors = [np.linalg.norm(where - drawings.nearest(noisy), axis=1).mean() for where in (noisy, learned)]
    assert errors[1] < 0.6 * errors[0]  # it sends them to the nearest point, not just anywhere on the curve


def test_figure_2_shows_where_points_come_from_and_go(monkeypatch):
    monkeypatch.setattr(drawings, "denoise", denoised)  # which was trained before
    figure = draw_denoising()
    before, after = denoised(0)
    noisy, ideal, learned = figure.axes
    for axes, where in ((noisy, before), (ideal, drawings.nearest(before)), (learned, after)):
        shown = axes.collections[-1]
        assert np.allclose(shown.get_offsets(), where)
        assert np.array_equal(shown.get_facecolor(), noisy.collections[0].get_facecolor())
    assert noisy.get_title().startswith("noisy points\nmean distance 0.0")
    assert ideal.get_title().endswith("mean distance 0")
    assert len(ideal.texts) == len(learned.texts) == len(before)  # an arrow each
    assert {"$x_1$", "$x_2$"} <= set(texts(figure))


def test_figure_3_colours_the_plane_and_its_hidden_features_by_code():
    figure, (points, hidden, codes) = draw_toy(), drawings.train_toy()
    assert np.allclose(points.sum(axis=1), 1)
    assert points.min() > 0
    assert np.array_equal(codes, hidden >= 0)
    plane, cube = figure.axes
    numbers = codes @ [4, 2, 1]
    used = np.unique(numbers)
    assert len(used) == 7
    assert cube.get_title() == "hidden features, 7 codes"
    for axes, where in ((plane, points), (cube, hidden)):
        clouds = [line for line in axes.lines if line.get_linestyle() == "None"]
        assert [cloud.get_color() for cloud in clouds] == [CODE_COLOURS[number] for number in used]
        assert len({cloud.get_marker() for cloud in clouds}) == 7
        for cloud, number in zip(clouds, used, strict=True):
            assert np.allclose(np.transpose(cloud.get_data_3d()), where[numbers == number])
    assert len([line for line in cube.lines if line.get_linestyle() != "None"]) == 12  # the edges of the cube
    signs = [" ".join("+" if number & bit else "−" for bit in (4, 2, 1)) for number in used]
    assert legend_of(figure) == signs
    panels, (legend,), _ = laid_out(figure)
    assert not any(legend.overlaps(panel) for panel in panels)


def test_the_points_of_the_proof_lie_as_the_proof_says():
    at = drawings.positions()
    origin, A, B, C, D, E = (at[name] for name in "OABCDE")
    x = np.linspace(-5, 5, 200_001)
    gaps = np.hypot(x - A[0], drawings.manifold(x) - A[1])
    assert np.linalg.norm(A - B) == pytest.approx(gaps.min(), abs=1e-8)  # B = f(A)
    assert B[1] == pytest.approx(drawings.manifold(B[0]))
    slope = (drawings.manifold(B[0] + 1e-6) - drawings.manifold(B[0] - 1e-6)) / 2e-6
    assert (A - B) @ [1, slope] == pytest.approx(0, abs=1e-8)  # AB is perpendicular to the tangent at B
    assert origin.tolist() == [0, 0]
    assert drawings.manifold(origin[0]) == 0
    assert C.tolist() == [A[0], 0]
    assert D.tolist() == [B[0], 0]
    assert np.allclose(B - E, D - C)
    assert pytest.approx(0) == (B - E) @ (A - E)
    assert np.linalg.norm(B - origin) <= 2 * np.linalg.norm(A - origin)
    assert min(np.linalg.norm(p - q) for p in at.values() for q in at.values() if p is not q) > 0.3  # to be told apart


def test_the_figure_of_the_proof_names_its_points():
    shown = texts(draw_proof())
    for name in "OABCDE":
        assert sum(text.startswith(f"${name}") for text in shown) == 1
    assert r"manifold $\mathcal{M}$" in shown
    assert "tangent space at $O$" in shown


GREY = np.zeros((2, 4, 4))
CURVES = {"LSH": [0.1, 0.2]}
DRAWINGS = {
    "architecture": draw_network,
    "denoising": draw_denoising,
    "toy": draw_toy,
    "patches": lambda: draw_patches(GREY),
    "retrieval": lambda: draw_retrieval(GREY[0], GREY, {"LSH": (GREY, [True, False])}),
    "cost": lambda: draw_cost({"cost": [1.0], "binary": [1.0]}),
    "alpha": lambda: draw_alpha({8: {1: 0.5}}, {8: 0.5}),
    "recall": lambda: draw_recall(CURVES),
    "recall_grid": lambda: draw_recall_grid({(1, 8): CURVES}),
    "proof": draw_proof,
}


@pytest.mark.parametrize("name", DRAWINGS)
def test_without_matplotlib_the_error_has_the_line_that_installs_it(name, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)  # which makes the import fail
    with pytest.raises(MissingExtraError, match=r"drawing figures needs .*'matplotlib'.*pip install 'autojacobin\[fig"):
        DRAWINGS[name]()
