"""Figure 4: pictures drawn at random from the set."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from autojacobin.figures._inputs import checked_patches, checked_seed
from autojacobin.figures._style import COLUMN, TITLE_SIZE, new_figure
from autojacobin.figures._tiles import draw_tiles

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["draw"]

_COLUMNS = 14
_ROWS = 14


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
    rng = checked_seed(seed)
    pictures = checked_patches(patches, "patches")
    chosen = rng.permutation(len(pictures))[: _ROWS * _COLUMNS]
    rows = -(-len(chosen) // _COLUMNS)
    height, width = pictures.shape[1:3]
    figure = new_figure(COLUMN, COLUMN * rows * height / (_COLUMNS * width) + (0.25 if title else 0.0))
    axes = figure.add_subplot()
    draw_tiles(axes, np.ascontiguousarray(pictures[chosen]), _COLUMNS)
    axes.set_title(title, fontsize=TITLE_SIZE)
    return figure
