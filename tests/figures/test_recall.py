"""Figures 8, 9 and 10: curves thinned without a visible change, and all that a reader needs to read them."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autojacobin.figures import METHOD_STYLES, recall, recall_grid, save
from autojacobin.figures.recall import simplify_curve
from tests.figures.looking import OF_THE_PAPER, curve, grid, laid_out, legend_of, texts


def distance_to_line(points, corners):
    """Smallest distance of each point to a line through corners, from many points along its segments."""
    shares = np.linspace(0, 1, 400)[:, None]
    dense = np.concatenate([a + shares * (b - a) for a, b in pairwise(corners)])
    return np.array([np.min(np.hypot(*(dense - point).T)) for point in points])


@given(st.integers(0, 2**32), st.integers(2, 60), st.booleans(), st.sampled_from([0.002, 0.02, 0.2]))
@settings(max_examples=50)
def test_every_point_of_a_curve_is_near_the_thinned_one(seed, n, rising, tolerance):
    values = np.random.default_rng(seed).uniform(size=n)
    values = np.sort(values) if rising else values
    kept = simplify_curve(values, tolerance)
    assert kept[0] == 0
    assert kept[-1] == n - 1
    assert np.all(np.diff(kept) > 0)
    seen = np.column_stack([np.log(np.arange(1, n + 1)) / np.log(n), values])
    assert distance_to_line(seen, seen[kept]).max() <= tolerance + 0.005  # the latter for the gaps between dense points


def test_a_long_smooth_curve_keeps_a_few_dozen_points_and_a_straight_one_its_ends():
    kept = simplify_curve(curve(3), 0.0005)
    assert len(kept) < 60
    assert simplify_curve(np.log10(np.arange(1, 10_001)) / 4, 1e-9).tolist() == [0, 9999]
    assert simplify_curve(np.array([0.3]), 0.1).tolist() == [0]
    assert np.array_equal(simplify_curve(np.array([0, 1, 0, 1.0]), 0.01), [0, 1, 2, 3])


def test_figure_8_shows_the_curves_as_they_are():
    curves = {m: curve(1 + place) for place, m in enumerate(["AutoJacoBin", "AutoBin1", "DAutoBin"])}
    figure = recall.draw(curves, "NUS-WIDE, 128 bits, k = 100")
    (axes,) = figure.axes
    assert legend_of(figure) == ["AutoBin1", "DAutoBin", "Auto-JacoBin"]
    assert axes.get_xlabel() == "number of retrieved points, i"
    assert axes.get_ylabel() == "Recall@i"
    assert axes.get_title() == "NUS-WIDE, 128 bits, k = 100"
    assert len(axes.lines) == 3
    for method, line in zip(["AutoBin1", "DAutoBin", "AutoJacoBin"], axes.lines, strict=True):
        i, shown = line.get_data()
        assert line.get_color() == METHOD_STYLES[method].colour
        assert np.array_equal(shown, curves[method][np.asarray(i, dtype=int) - 1])
        assert (i[0], i[-1]) == (1, 10_000)
        assert len(i) < 80
        every = np.arange(1, 10_001)
        assert np.abs(np.interp(np.log(every), np.log(i), shown) - curves[method]).max() < 0.002
    assert axes.get_xscale() == "log"
    markers = [set(line.get_xdata()[line.get_markevery()]) for line in axes.lines]
    assert all(len(places) == 5 for places in markers)
    assert not set.intersection(*markers)


def test_differences_to_a_reference_are_drawn_with_its_own_recalls():
    curves = {"ITQ": curve(2, 1000), "AutoJacoBin": curve(2, 1000) + 0.01, "LSH": curve(2, 1000) * 0.2}
    (axes,) = recall.draw(curves, reference="ITQ").axes
    by_colour = {line.get_color(): line for line in axes.lines}
    own, other, low = (by_colour[METHOD_STYLES[name].colour] for name in ("ITQ", "AutoJacoBin", "LSH"))
    assert set(own.get_ydata()) == {0.0}
    assert np.allclose(other.get_ydata(), 0.01)
    assert axes.get_ylim()[0] > low.get_ydata().min()  # a curve far below does not squeeze the others
    assert axes.get_ylabel() == "Recall@i − ITQ"
    numbers = [text.get_text() for text in axes.texts]
    assert numbers == [f"{curves['ITQ'][i - 1]:.2f}".removeprefix("0") for i in (1, 10, 100, 1000)]


def test_all_panels_of_a_grid_of_differences_share_limits_that_hold_them():
    figure = recall_grid.draw(grid((1, 5), (8, 16), ("ITQ", "AutoJacoBin"), K=500), reference="ITQ")
    limits = {axes.get_ylim() for axes in figure.axes}
    ((low, high),) = limits
    for axes in figure.axes:
        assert all(low <= line.get_ydata().min() <= line.get_ydata().max() <= high for line in axes.lines)
    assert figure.axes[0].get_ylabel() == "Recall@i − ITQ, k = 1"


def test_the_grid_has_a_row_for_each_k_and_a_column_for_each_length(tmp_path):
    figure = recall_grid.draw(grid(), "GIST1M")
    assert len(figure.axes) == 15
    assert [axes.get_title() for axes in figure.axes[:3]] == ["64 bits", "96 bits", "128 bits"]
    assert [axes.get_ylabel() for axes in figure.axes[::3]] == [f"Recall@i, k = {k}" for k in (1, 5, 10, 50, 100)]
    assert legend_of(figure) == [METHOD_STYLES[name].label for name in OF_THE_PAPER]
    assert "GIST1M" in texts(figure)
    _, svg = save(figure, tmp_path, "grid")
    assert svg.stat().st_size < 400_000


def test_a_method_looks_the_same_in_every_figure():
    one = recall.draw({"OKMeans": curve(1, 50)}).axes[0].lines[0]
    many = recall_grid.draw(grid((1, 2), (8,), ("LSH", "OKMeans"), K=50)).axes[1].lines[1]
    for look in ("get_color", "get_linestyle", "get_marker", "get_linewidth"):
        assert getattr(one, look)() == getattr(many, look)()


def test_a_method_may_be_missing_where_it_is_not_defined():
    cells = grid((1,), (64, 256), ("LSH", "ITQ"), K=100)
    del cells[1, 256]["ITQ"]
    figure = recall_grid.draw(cells)
    assert legend_of(figure) == ["LSH", "ITQ"]
    assert [len(axes.lines) for axes in figure.axes] == [2, 1]


@pytest.mark.parametrize(
    "draw", [lambda: recall.draw(grid((1,), (64,), K=300)[1, 64]), lambda: recall_grid.draw(grid(K=300))]
)
def test_the_legend_covers_no_panel(draw):
    panels, (legend,), page = laid_out(draw())
    assert not any(legend.overlaps(panel) for panel in panels)
    for box in (legend, *panels):
        assert page.x0 <= box.x0 < box.x1 <= page.x1
        assert page.y0 <= box.y0 < box.y1 <= page.y1


def test_a_single_recall_and_numpy_keys_work():
    assert len(recall.draw({"LSH": [0.5]}).axes[0].lines) == 1
    assert len(recall_grid.draw({(np.int64(1), np.int64(8)): {"LSH": [0.1, 0.2]}}).axes) == 1
