"""Figure 4: random pictures of the set, and panels of many small pictures."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from autojacobin.figures.style import COLUMN, TITLE_SIZE, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLUMNS, _ROWS = 14, 14
_GAP = 0.25  # between pictures, as a share of their height: room for two borders with white between them


def draw(patches: npt.ArrayLike, seed: int = 0, title: str = "") -> Figure:
    """Draw 196 of the patches, chosen at random without repeats, or all of them when there are fewer.

    Parameters
    ----------
    patches : array of shape (n, height, width) or (n, height, width, 3)
        Bytes, or fractions from 0 to 1.
    seed : int
        Chooses the patches.
    title : str
    """
    pictures = as_patches(patches)
    chosen = np.random.RandomState(seed).permutation(len(pictures))[: _ROWS * _COLUMNS]
    rows = -(-len(chosen) // _COLUMNS)
    height, width = pictures.shape[1:3]
    figure = new_figure(COLUMN, COLUMN * rows * height / (_COLUMNS * width) + (0.25 if title else 0.0))
    axes = figure.add_subplot()
    draw_tiles(axes, np.ascontiguousarray(pictures[chosen]), _COLUMNS)
    axes.set_title(title, fontsize=TITLE_SIZE)
    return figure


def as_patches(pictures: npt.ArrayLike) -> npt.NDArray[np.uint8]:
    """Give pictures as bytes with three channels: fractions from 0 to 1 become 0 to 255, and grey becomes three."""
    array = np.asarray(pictures)
    levels = np.rint(array * (255 if array.dtype.kind == "f" else 1)).astype(np.uint8)
    return levels if levels.ndim == 4 else np.repeat(levels[..., None], 3, axis=-1)


def mosaic(patches: npt.NDArray[np.uint8], columns: int) -> npt.NDArray[np.uint8]:
    """Arrange pictures (n, height, width, 3) row by row in one picture, with transparent gaps around them."""
    n, height, width, _ = patches.shape
    gap = _gap(height)
    rows = -(-n // columns)
    whole = np.zeros((rows * (height + gap) + gap, columns * (width + gap) + gap, 4), dtype=np.uint8)
    for number, patch in enumerate(patches):
        y, x = _corner(number, columns, height, width)
        whole[y : y + height, x : x + width, :3] = patch
        whole[y : y + height, x : x + width, 3] = 255
    return whole


def draw_tiles(axes: Axes, patches: npt.NDArray[np.uint8], columns: int) -> None:
    """Show pictures row by row, without axes."""
    # One image per panel, not interpolated. Many images, or one that is scaled up, would make large files.
    axes.imshow(mosaic(patches, columns), interpolation="none")
    axes.set_axis_off()


def draw_border(axes: Axes, number: int, columns: int, size: tuple[int, int], colour: str) -> None:
    """Draw a border around the picture ``number``; ``size`` is the height and width of the pictures."""
    from matplotlib.patches import Rectangle

    y, x = _corner(number, columns, *size)
    margin = _gap(size[0]) / 6
    corner, (height, width) = (x - 0.5 - margin, y - 0.5 - margin), (length + 2 * margin for length in size)
    axes.add_patch(Rectangle(corner, width, height, fill=False, edgecolor=colour, linewidth=1.2, clip_on=False))


def _gap(height: int) -> int:
    return max(1, round(_GAP * height))


def _corner(number: int, columns: int, height: int, width: int) -> tuple[int, int]:
    row, column = divmod(number, columns)
    gap = _gap(height)
    return gap + row * (height + gap), gap + column * (width + gap)
