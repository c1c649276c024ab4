"""The picture of a choice, against the results it shows."""

import pytest

from autojacobin import AutoJacoBin
from autojacobin.figures import draw_choice
from tests.figures.looking import laid_out, legend_of
from tests.hashers.methods import digits


@pytest.fixture(scope="module")
def results():
    hasher = AutoJacoBin(12, n_neighbors=30, n_epochs=2, batch_size=200, random_state=0)
    return hasher.fit(digits()[:600]).search_results_


def test_every_row_is_drawn_and_the_chosen_one_ringed(results):
    figure = draw_choice(results, title="digits, 12 bits")
    axes = figure.axes[0]
    drawn = {(x, y) for line in axes.lines for x, y in zip(line.get_xdata(), line.get_ydata(), strict=True)}
    rows = set(zip(results["n_epochs"].astype(float), results["m_recall"], strict=True))
    assert drawn == rows
    best = int(results["chosen"].argmax())
    ring = axes.lines[-1]
    assert (ring.get_xdata()[0], ring.get_ydata()[0]) == (results["n_epochs"][best], results["m_recall"][best])
    assert ring.get_markerfacecolor() == "none"
    labels = legend_of(figure)
    assert {"from ITQ", "from OKMeans", "from NOKMeans", "from random rotation"} <= set(labels)
    assert "dashed: with the Jacobian term" in labels
    laid_out(figure)


def test_starting_points_alone_can_be_drawn(results):
    starts = {name: column[results["n_epochs"] == 0] for name, column in results.items()}
    starts["chosen"] = (starts["m_recall"] == starts["m_recall"].max()).astype(int)
    figure = draw_choice(starts)
    assert any(label.startswith("chosen: the start, ") for label in legend_of(figure))
