"""Many small pictures in one panel, and borders around some of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw_border", "draw_tiles", "mosaic"]

_GAP = 0.25  # between pictures, as a share of their height: two borders and white between them


def mosaic(patches: npt.NDArray[np.uint8], columns: int) -> npt.NDArray[np.uint8]:
    """Lay pictures (n, height, width, 3) out row by row in one white picture, with gaps between and around them."""
    n, height, width, _ = patches.shape
    gap = _gap(height)
    rows = -(-n // columns)
    whole = np.full((rows * (height + gap) + gap, columns * (width + gap) + gap, 3), 255, dtype=np.uint8)
    for number, patch in enumerate(patches):
        y, x = _corner(number, columns, height, width)
        whole[y : y + height, x : x + width] = patch
    return whole


def draw_tiles(axes: Axes, patches: npt.NDArray[np.uint8], columns: int) -> None:
    """Show pictures row by row, without axes."""
    # One image a panel, kept at its own pixels: many small ones, or one that is scaled up, would make large files.
    axes.imshow(mosaic(patches, columns), interpolation="none")
    axes.set_axis_off()


def draw_border(axes: Axes, number: int, columns: int, size: tuple[int, int], colour: str) -> None:
    """Draw a border around the picture at place ``number``; ``size`` is the height and width of the pictures."""
    from matplotlib.patches import Rectangle

    y, x = _corner(number, columns, *size)
    margin = _gap(size[0]) / 6
    axes.add_patch(
        Rectangle(
            (x - 0.5 - margin, y - 0.5 - margin),
            size[1] + 2 * margin,
            size[0] + 2 * margin,
            fill=False,
            edgecolor=colour,
            linewidth=1.2,
            clip_on=False,
        )
    )


def _gap(height: int) -> int:
    return max(1, round(_GAP * height))


def _corner(number: int, columns: int, height: int, width: int) -> tuple[int, int]:
    row, column = divmod(number, columns)
    gap = _gap(height)
    return gap + row * (height + gap), gap + column * (width + gap)
