"""Figure 5: a query, its true neighbours, and those that each method finds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from autojacobin.figures.patches import as_patches, draw_border, draw_tiles
from autojacobin.figures.style import PAGE, TITLE_SIZE, legend_order, new_figure, style_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

QUERY, TRUE_NEIGHBOUR = "#CC0000", "#E69F00"  # colours of the borders, red and orange as in the paper
_TOP_COLUMNS = 25  # four full rows for the query and its 99 neighbours
_COLUMNS = 11  # nine full rows for 99 retrieved points
_MOST_ROWS = 2  # of panels; with more methods the panels become narrower
_FEWEST_PER_ROW = 3
_TITLE_HEIGHT = 0.24


def draw(
    query_patch: npt.ArrayLike,
    true_patches: npt.ArrayLike,
    retrieved: Mapping[str, tuple[npt.ArrayLike, npt.ArrayLike]],
    title: str = "",
) -> Figure:
    """Draw the query with a red border, and an orange border around every true neighbour that a method found.

    Parameters
    ----------
    query_patch : array of shape (height, width) or (height, width, 3)
        Bytes, or fractions from 0 to 1, as in all patches.
    true_patches : array of shape (n, height, width) or (n, height, width, 3)
        The true neighbours, the nearest first.
    retrieved : dict of method to (patches, is_true)
        What the method retrieved, the nearest first, and which of these are true neighbours. Their number is shown
        in the title of the method's panel.
    title : str
        What was searched: data set, bits, share of the base that was retrieved.
    """
    query = as_patches(np.asarray(query_patch)[None])
    truth = as_patches(true_patches)
    found = {method: (as_patches(retrieved[method][0]), retrieved[method][1]) for method in legend_order(retrieved)}
    height, width = query.shape[1:3]
    top_height = _height(len(truth) + 1, _TOP_COLUMNS, PAGE, height / width)
    per_row = max(_FEWEST_PER_ROW, -(-len(found) // _MOST_ROWS))
    panel_rows = -(-len(found) // per_row)
    most = max(len(pictures) for pictures, _ in found.values())
    panel_height = _height(most, _COLUMNS, PAGE / per_row, height / width)
    heights = [top_height, *[panel_height] * panel_rows]
    figure = new_figure(PAGE, sum(heights) + (0.3 if title else 0.0))
    grid = figure.add_gridspec(len(heights), per_row, height_ratios=heights)

    top = figure.add_subplot(grid[0, :])
    draw_tiles(top, np.concatenate([query, truth]), _TOP_COLUMNS)
    draw_border(top, 0, _TOP_COLUMNS, (height, width), QUERY)
    top.set_title(f"query (red border) and its {len(truth)} true nearest neighbours", fontsize=TITLE_SIZE)
    for panel, (method, (pictures, is_true)) in enumerate(found.items()):
        axes = figure.add_subplot(grid[1 + panel // per_row, panel % per_row])
        draw_tiles(axes, pictures, _COLUMNS)
        for number in np.flatnonzero(is_true):
            draw_border(axes, int(number), _COLUMNS, (height, width), TRUE_NEIGHBOUR)
        axes.set_title(f"{style_of(method).label} ({np.count_nonzero(is_true)})", fontsize=TITLE_SIZE)
    if title:
        figure.suptitle(title, fontsize=TITLE_SIZE + 1)
    return figure


def _height(n: int, columns: int, width: float, aspect: float) -> float:
    """Height in inches of n pictures of this aspect (height by width) with a title above them."""
    return -(-n // columns) * aspect * width / columns + _TITLE_HEIGHT
