"""Figures 4 and 5: random pictures of the set, and those that each method finds for a query."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from autojacobin.paper.figures.style import COLUMN, PAGE, TITLE_SIZE, legend_order, new_figure, style_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_RANDOM_COLUMNS, _RANDOM_ROWS = 14, 14
_GAP = 0.25  # between pictures, as a share of their height: room for two borders with white between them


def draw_patches(patches: npt.ArrayLike, seed: int = 0, title: str = "") -> Figure:
    """Draw 196 of the patches, chosen at random without repeats, or all of them when there are fewer.

    They are an array of shape (n, height, width) or (n, height, width, 3), of bytes or of fractions from 0 to 1.
    """
    pictures = _as_patches(patches)
    chosen = np.random.RandomState(seed).permutation(len(pictures))[: _RANDOM_ROWS * _RANDOM_COLUMNS]
    rows = -(-len(chosen) // _RANDOM_COLUMNS)
    height, width = pictures.shape[1:3]
    figure = new_figure(COLUMN, COLUMN * rows * height / (_RANDOM_COLUMNS * width) + (0.25 if title else 0.0))
    axes = figure.add_subplot()
    _draw_tiles(axes, np.ascontiguousarray(pictures[chosen]), _RANDOM_COLUMNS)
    axes.set_title(title, fontsize=TITLE_SIZE)
    return figure


def _as_patches(pictures: npt.ArrayLike) -> npt.NDArray[np.uint8]:
    """Give pictures as bytes with three channels: fractions from 0 to 1 become 0 to 255, and grey becomes three."""
    array = np.asarray(pictures)
    levels = np.rint(array * (255 if array.dtype.kind == "f" else 1)).astype(np.uint8)
    return levels if levels.ndim == 4 else np.repeat(levels[..., None], 3, axis=-1)


def mosaic(patches: npt.NDArray[np.uint8], columns: int) -> npt.NDArray[np.uint8]:
    """Arrange pictures (n, height, width, 3) row by row in one picture, with transparent gaps around them."""
    opaque = np.pad(patches, ((0, 0), (0, 0), (0, 0), (0, 1)), constant_values=255)
    gap = _gap(patches.shape[1])
    tiles = np.pad(opaque, ((0, -len(patches) % columns), (gap, 0), (gap, 0), (0, 0)))
    grid = tiles.reshape(-1, columns, *tiles.shape[1:])
    rows, _, height, width, _ = grid.shape
    whole = grid.swapaxes(1, 2).reshape(rows * height, columns * width, 4)
    return np.pad(whole, ((0, gap), (0, gap), (0, 0)))


def _draw_tiles(axes: Axes, patches: npt.NDArray[np.uint8], columns: int) -> None:
    """Show pictures row by row, without axes."""
    # One image per panel, not interpolated. Many images, or one that is scaled up, would make large files.
    axes.imshow(mosaic(patches, columns), interpolation="none")
    axes.set_axis_off()


def _draw_border(axes: Axes, number: int, columns: int, size: tuple[int, int], colour: str) -> None:
    """Draw a border around the picture ``number``; ``size`` is the height and width of the pictures."""
    from matplotlib.patches import Rectangle

    gap = _gap(size[0])
    y, x = (gap + place * (length + gap) - 0.5 for place, length in zip(divmod(number, columns), size, strict=True))
    margin = gap / 6
    corner, (height, width) = (x - margin, y - margin), (length + 2 * margin for length in size)
    axes.add_patch(Rectangle(corner, width, height, fill=False, edgecolor=colour, linewidth=1.2, clip_on=False))


def _gap(height: int) -> int:
    return max(1, round(_GAP * height))


QUERY, TRUE_NEIGHBOUR = "#CC0000", "#E69F00"  # colours of the borders, red and orange as in the paper
_TOP_COLUMNS = 25  # four full rows for the query and its 99 neighbours
_COLUMNS = 11  # nine full rows for 99 retrieved points
_MOST_ROWS = 2  # of panels; with more methods the panels become narrower
_FEWEST_PER_ROW = 3
_TITLE_HEIGHT = 0.24


def draw_retrieval(
    query_patch: npt.ArrayLike,
    true_patches: npt.ArrayLike,
    retrieved: Mapping[str, tuple[npt.ArrayLike, npt.ArrayLike]],
    title: str = "",
) -> Figure:
    """Draw the query with a red border, and an orange border around every true neighbour that a method found.

    Patches are as in :func:`draw_patches`, the nearest first. ``retrieved`` holds for each method what it retrieved,
    and which of these are true neighbours; their number is in the title of its panel. ``title`` says what was searched.
    """
    query = _as_patches(np.asarray(query_patch)[None])
    truth = _as_patches(true_patches)
    found = {method: (_as_patches(retrieved[method][0]), retrieved[method][1]) for method in legend_order(retrieved)}
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
    _draw_tiles(top, np.concatenate([query, truth]), _TOP_COLUMNS)
    _draw_border(top, 0, _TOP_COLUMNS, (height, width), QUERY)
    top.set_title(f"query (red border) and its {len(truth)} true nearest neighbours", fontsize=TITLE_SIZE)
    for panel, (method, (pictures, is_true)) in enumerate(found.items()):
        axes = figure.add_subplot(grid[1 + panel // per_row, panel % per_row])
        _draw_tiles(axes, pictures, _COLUMNS)
        for number in np.flatnonzero(is_true):
            _draw_border(axes, int(number), _COLUMNS, (height, width), TRUE_NEIGHBOUR)
        axes.set_title(f"{style_of(method).label} ({np.count_nonzero(is_true)})", fontsize=TITLE_SIZE)
    if title:
        figure.suptitle(title, fontsize=TITLE_SIZE + 1)
    return figure


def _height(n: int, columns: int, width: float, aspect: float) -> float:
    """Height in inches of n pictures of this aspect (height by width) with a title above them."""
    return -(-n // columns) * aspect * width / columns + _TITLE_HEIGHT
