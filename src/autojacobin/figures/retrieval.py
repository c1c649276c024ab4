"""Figure 5: a query, its true neighbours, and what each method finds of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from autojacobin.errors import DataError
from autojacobin.figures._inputs import checked_patch, checked_patches, filled_dict
from autojacobin.figures._style import PAGE, QUERY, TITLE_SIZE, TRUE_NEIGHBOUR, in_order, new_figure, style_of
from autojacobin.figures._tiles import draw_border, draw_tiles

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["draw"]

_TOP_COLUMNS = 25  # the query and its 99 neighbours make four full rows
_COLUMNS = 11  # and 99 retrieved ones nine
_PANELS_A_ROW = 3
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
        Bytes, or fractions from 0 to 1; so are all patches.
    true_patches : array of shape (n, height, width) or (n, height, width, 3)
        The true neighbours, the nearest first.
    retrieved : dict of method to (patches, is_true)
        What the method retrieved, the nearest first, and which of it is among the true neighbours. The number
        of those stands in the title of the method's panel.
    title : str
        What was asked: data set, bits, share of the base that was looked at.
    """
    query = checked_patch(query_patch, "query_patch")[None]
    truth = checked_patches(true_patches, "true_patches")
    found = _checked_found(retrieved)
    height, width = query.shape[1:3]
    for name, pictures in (("true_patches", truth), *((f"retrieved[{m!r}]", found[m][0]) for m in found)):
        if pictures.shape[1:] != query.shape[1:]:
            raise DataError(
                f"all patches must have the size of the query, {height}×{width}, got "
                f"{pictures.shape[1]}×{pictures.shape[2]} in {name}; cut them alike"
            )
    top_height = _height(len(truth) + 1, _TOP_COLUMNS, PAGE, height / width)
    panel_rows = -(-len(found) // _PANELS_A_ROW)
    most = max(len(pictures) for pictures, _ in found.values())
    panel_height = _height(most, _COLUMNS, PAGE / _PANELS_A_ROW, height / width)
    heights = [top_height, *[panel_height] * panel_rows]
    figure = new_figure(PAGE, sum(heights) + (0.3 if title else 0.0))
    grid = figure.add_gridspec(len(heights), _PANELS_A_ROW, height_ratios=heights)

    top = figure.add_subplot(grid[0, :])
    draw_tiles(top, np.concatenate([query, truth]), _TOP_COLUMNS)
    draw_border(top, 0, _TOP_COLUMNS, (height, width), QUERY)
    top.set_title(f"query (red border) and its {len(truth)} true nearest neighbours", fontsize=TITLE_SIZE)
    for number, (method, (pictures, is_true)) in enumerate(found.items()):
        axes = figure.add_subplot(grid[1 + number // _PANELS_A_ROW, number % _PANELS_A_ROW])
        draw_tiles(axes, pictures, _COLUMNS)
        for place in np.flatnonzero(is_true):
            draw_border(axes, int(place), _COLUMNS, (height, width), TRUE_NEIGHBOUR)
        axes.set_title(f"{style_of(method).label} ({np.count_nonzero(is_true)})", fontsize=TITLE_SIZE)
    if title:
        figure.suptitle(title, fontsize=TITLE_SIZE + 1)
    return figure


def _checked_found(retrieved: Any) -> dict[str, tuple[npt.NDArray[np.uint8], npt.NDArray[np.bool_]]]:
    holds = "methods to pairs (patches, is_true)"
    given = filled_dict(retrieved, "retrieved", holds)
    found = {}
    for method in in_order(given):
        try:
            patches, is_true = given[method]
        except (TypeError, ValueError):
            raise DataError(f"retrieved must be a dict of {holds}, got no pair for {method!r}") from None
        pictures = checked_patches(patches, f"the patches of {method!r}")
        mask = _as_array(is_true)
        if mask.dtype != np.bool_ or mask.shape != (len(pictures),):
            raise DataError(
                f"is_true of {method!r} must be one truth value for each of its {len(pictures)} patches, "
                f"got {mask.dtype} of shape {mask.shape}"
            )
        found[method] = (pictures, mask)
    return found


def _as_array(value: Any) -> npt.NDArray[Any]:
    try:
        return np.asarray(value)
    except (TypeError, ValueError):  # rows of uneven length; an array without a shape is refused with the right words
        return np.empty(())


def _height(n: int, columns: int, width: float, aspect: float) -> float:
    """Inches that n pictures of this aspect (height by width) and the title over them take."""
    return -(-n // columns) * aspect * width / columns + _TITLE_HEIGHT
