"""Figures 8, 9 and 10: all that a reader needs to read them."""

import numpy as np
import pytest

from autojacobin.paper.figures import METHOD_STYLES, draw_recall, draw_recall_grid, save
from tests.paper.figures.looking import OF_THE_PAPER, curve, grid, laid_out, legend_of, texts


def test_figure_8_shows_the_curves_as_they_are():
    curves = {m: curve(1 + place) for place, m in enumerate(["AutoJacoBin", "AutoBin1", "DAutoBin"])}
    figure = draw_recall(curves, "NUS-WIDE, 128 bits, k = 100")
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
        every = np.arange(1, 10_001)
        assert np.abs(np.interp(np.log(every), np.log(i), shown) - curves[method]).max() < 0.002
    assert axes.get_xscale() == "log"
    markers = [set(line.get_xdata()[line.get_markevery()]) for line in axes.lines]
    assert all(len(places) == 5 for places in markers)
    assert not set.intersection(*markers)


def test_differences_to_a_reference_are_a_second_panel_below_the_curves():
    curves = {"ITQ": curve(2, 1000), "AutoJacoBin": curve(2, 1000) + 0.01, "LSH": curve(2, 1000) * 0.2}
    whole, axes = draw_recall(curves, reference="ITQ").axes
    assert whole.get_ylabel() == "Recall@i"
    for line in whole.lines:
        (method,) = (name for name in curves if METHOD_STYLES[name].colour == line.get_color())
        assert np.array_equal(line.get_ydata(), curves[method][line.get_xdata().astype(int) - 1])
    by_colour = {line.get_color(): line for line in axes.lines}
    own, other, low = (by_colour[METHOD_STYLES[name].colour] for name in ("ITQ", "AutoJacoBin", "LSH"))
    assert set(own.get_ydata()) == {0.0}
    assert np.allclose(other.get_ydata(), 0.01)
    assert axes.get_ylim()[0] > low.get_ydata().min()  # a curve far below does not squeeze the others
    assert axes.get_ylabel() == "minus ITQ"
    assert axes.get_xlabel() == "number of retrieved points, i"


def test_all_panels_of_a_grid_of_differences_share_limits_that_hold_them():
    figure = draw_recall_grid(grid((1, 5), (8, 16), ("ITQ", "AutoJacoBin"), K=500), reference="ITQ")
    rows = np.reshape(figure.axes, (4, 2))
    for kind, label in ((rows[::2], "Recall@i, k = 1"), (rows[1::2], "minus ITQ")):
        ((low, high),) = {axes.get_ylim() for axes in kind.flat}
        for axes in kind.flat:
            assert all(low <= line.get_ydata().min() <= line.get_ydata().max() <= high for line in axes.lines)
        assert kind[0, 0].get_ylabel() == label
    for recalls, differences in zip(rows[::2].flat, rows[1::2].flat, strict=True):
        (itq, own), (zero, difference) = recalls.lines, differences.lines
        assert set(zero.get_ydata()) == {0.0}
        assert np.allclose(own.get_ydata()[0] - itq.get_ydata()[0], difference.get_ydata()[0])


def test_the_grid_has_a_row_for_each_k_and_a_column_for_each_length():
    figure = draw_recall_grid(grid(), "GIST1M")
    assert len(figure.axes) == 15
    assert [axes.get_title() for axes in figure.axes[:3]] == ["64 bits", "96 bits", "128 bits"]
    assert [axes.get_ylabel() for axes in figure.axes[::3]] == [f"Recall@i, k = {k}" for k in (1, 5, 10, 50, 100)]
    assert legend_of(figure) == [METHOD_STYLES[name].label for name in OF_THE_PAPER]
    assert "GIST1M" in texts(figure)


@pytest.mark.rare
def test_the_largest_grid_is_a_small_file(tmp_path):
    _, svg = save(draw_recall_grid(grid(), "GIST1M"), tmp_path, "grid")
    assert svg.stat().st_size < 700_000


def test_a_method_looks_the_same_in_every_figure():
    one = draw_recall({"OKMeans": curve(1, 50)}).axes[0].lines[0]
    many = draw_recall_grid(grid((1, 2), (8,), ("LSH", "OKMeans"), K=50)).axes[1].lines[1]
    for look in ("get_color", "get_linestyle", "get_marker", "get_linewidth"):
        assert getattr(one, look)() == getattr(many, look)()


def test_a_method_may_be_missing_where_it_is_not_defined():
    cells = grid((1,), (64, 256), ("LSH", "ITQ"), K=100)
    del cells[1, 256]["ITQ"]
    figure = draw_recall_grid(cells)
    assert legend_of(figure) == ["LSH", "ITQ"]
    assert [len(axes.lines) for axes in figure.axes] == [2, 1]


@pytest.mark.parametrize(
    "draw",
    [
        lambda: draw_recall(grid((1,), (64,), K=300)[1, 64]),
        lambda: draw_recall(grid((1,), (64,), K=300)[1, 64], "GIST1M", "ITQ"),
        lambda: draw_recall_grid(grid(K=300)),
        lambda: draw_recall_grid(grid((1, 5), K=300), "GIST1M", "ITQ"),
    ],
)
def test_the_legend_covers_no_panel(draw):
    panels, (legend,), page = laid_out(draw())
    assert not any(legend.overlaps(panel) for panel in panels)
    for box in (legend, *panels):
        assert page.x0 <= box.x0 < box.x1 <= page.x1
        assert page.y0 <= box.y0 < box.y1 <= page.y1


def test_a_single_recall_and_numpy_keys_work():
    assert len(draw_recall({"LSH": [0.5]}).axes[0].lines) == 1
    assert len(draw_recall_grid({(np.int64(1), np.int64(8)): {"LSH": [0.1, 0.2]}}).axes) == 1
