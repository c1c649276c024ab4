"""Figures 6 and 7: the cost with its terms, and m-Recall over α."""

import numpy as np
import pytest
from sklearn.datasets import load_digits

from autojacobin import AutoJacoBin, CAutoBin
from autojacobin.paper.figures import METHOD_STYLES, draw_alpha, draw_cost
from tests.paper.figures.looking import laid_out, legend_of, texts


def fitted(maker, **settings):
    return maker(16, batch_size=150, n_epochs=3, random_state=0, **settings).fit(load_digits().data[:300])


def test_figure_6_shows_the_history_of_a_real_training():
    history = fitted(AutoJacoBin, n_neighbors=40).history_
    figure = draw_cost(history, "digits, 16 bits, α = 0.1")
    whole, parts = figure.axes
    assert np.array_equal(whole.lines[0].get_xdata(), np.arange(1, 7))
    assert np.array_equal(whole.lines[0].get_ydata(), history["cost"])
    terms = [line.get_ydata() for line in parts.lines[:3]]
    assert [values.tolist() for values in terms] == [
        history[term].tolist() for term in ("reconstruction", "jacobian", "binary")
    ]
    assert np.allclose(sum(terms), history["cost"])
    assert parts.get_yscale() == "log"
    assert [line.get_xdata()[0] for line in whole.lines[1:]] == [2.5, 4.5]  # between epochs of two batches
    assert [label.split(" ")[0] for label in legend_of(figure)] == [
        "cost",
        "reconstruction",
        "Jacobian",
        "binary",
        "start",
    ]
    assert {"cost of the batch", "terms of the cost", "iteration", "digits, 16 bits, α = 0.1"} <= set(texts(figure))
    panels, (legend,), _ = laid_out(figure)
    assert not any(legend.overlaps(panel) for panel in panels)


def test_figure_6_knows_the_contraction_and_terms_that_are_zero():
    assert any(label.startswith("contraction") for label in legend_of(draw_cost(fitted(CAutoBin).history_)))
    figure = draw_cost({"cost": [1.0], "binary": [0.0], "reconstruction": [1.0]})
    assert figure.axes[1].get_yscale() == "linear"
    laid_out(figure)


VALUES = {bits: dict.fromkeys((10, 0.1, 0.01, 1), 0.5 + bits / 400) for bits in (128, 64)}
REFERENCE = {64: 0.6, 128: 0.7}


def test_figure_7_rounds_what_is_nearly_all_to_one_and_not_to_nothing():
    figure = draw_alpha({64: {0.1: 0.9996}}, {64: 0.25})
    assert {"1.000", ".250"} <= set(texts(figure))
    assert ".000" not in texts(figure)


def test_figure_7_has_a_bar_for_each_weight_and_length():
    figure = draw_alpha(VALUES, REFERENCE, "NUS-WIDE, k = 1, 5 seeds")
    (axes,) = figure.axes
    assert legend_of(figure) == [rf"Auto-JacoBin, $\alpha$ = {weight}" for weight in (0.01, 0.1, 1, 10)] + ["NOKMeans"]
    bars = sorted(axes.patches, key=lambda bar: bar.get_x())
    heights = [bar.get_height() for bar in bars]
    assert heights == pytest.approx([0.66] * 4 + [0.6] + [0.82] * 4 + [0.7])
    assert all(bar.get_y() == 0 for bar in bars)  # a bar that does not start at zero lies
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["64 bits", "128 bits"]
    assert {".660", ".600", ".820", ".700", "m-Recall", "NUS-WIDE, k = 1, 5 seeds"} <= set(texts(figure))
    top = axes.get_ylim()[1]
    assert all(value < top for row in VALUES.values() for value in row.values())
    panels, (legend,), _ = laid_out(figure)
    assert not legend.overlaps(panels[0])


def test_larger_weights_are_darker_up_to_the_colour_of_the_method():
    from matplotlib.colors import to_hex, to_rgb

    bars = sorted(draw_alpha(VALUES, REFERENCE).axes[0].patches, key=lambda bar: bar.get_x())[:5]
    shades = [sum(to_rgb(bar.get_facecolor())) for bar in bars[:4]]
    assert shades == sorted(shades, reverse=True)
    assert min(np.diff(shades[::-1])) > 0.2
    assert to_hex(bars[3].get_facecolor()).upper() == METHOD_STYLES["AutoJacoBin"].colour
    assert to_hex(bars[4].get_facecolor()).upper() == METHOD_STYLES["NOKMeans"].colour


def test_a_perfect_recall_and_one_weight_work():
    figure = draw_alpha({8: {1: 1.0}}, {8: 0.0})
    assert legend_of(figure) == [r"Auto-JacoBin, $\alpha$ = 1", "NOKMeans"]
    assert {"1.000", ".000"} <= set(texts(figure))
