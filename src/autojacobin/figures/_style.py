"""How every figure looks: one style for each method, sizes for print, and empty figures to draw on.

The colours are those of Okabe and Ito where they reach, and were completed so that any two of the eleven stay apart for
readers with protanopia or deuteranopia. No two methods share a marker, so that a grey print can be read as well.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from autojacobin.errors import DataError, MissingExtraError
from autojacobin.hashers import find_method, methods

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "BIASES",
    "CODE_COLOURS",
    "COLUMN",
    "FAINT",
    "INK",
    "LABEL_SIZE",
    "METHOD_STYLES",
    "PAGE",
    "QUERY",
    "SMALL_SIZE",
    "TITLE_SIZE",
    "TRUE_NEIGHBOUR",
    "MethodStyle",
    "dress",
    "in_order",
    "legend_below",
    "new_figure",
    "require_matplotlib",
    "style_of",
]  # fmt: skip

# Widths of a column and of a page in inches, and sizes of letters in points, as journals print them.
COLUMN = 3.5
PAGE = 7.16
TITLE_SIZE = 9.0
LABEL_SIZE = 8.0
SMALL_SIZE = 7.0

INK = "#222222"
FAINT = "#B0B0B0"
TRUE_NEIGHBOUR = "#E69F00"  # the paper's orange border
QUERY = "#CC0000"  # the paper's red border
BIASES = "#8E44AD"  # the paper's purple
# Okabe and Ito, with wine for their yellow, which white paper swallows; for the eight codes of three bits.
CODE_COLOURS = ("#000000", "#E69F00", "#56B4E9", "#009E73", "#882255", "#0072B2", "#D55E00", "#CC79A7")

Grid = Literal["both", "x", "y", "none"]

_SOLID: tuple[float, ...] = ()
_DASHED = (5.0, 2.0)
_DOTTED = (1.2, 1.5)
_DASH_DOT = (5.0, 1.5, 1.2, 1.5)
_LONG = (9.0, 2.0)
# The other markers fill less of their square, and are drawn larger to be seen as well.
_FULL_MARKERS = "osDh"


@dataclass(frozen=True)
class MethodStyle:
    """How a method looks in every figure.

    Attributes
    ----------
    label : str
        Its name in legends and titles.
    colour : str
        Hexadecimal.
    marker : str
        As matplotlib calls it.
    dashes : tuple of float
        Lengths of dashes and gaps in line widths; empty for a solid line.
    width : float
        Of the line, in points.
    """

    label: str
    colour: str
    marker: str
    dashes: tuple[float, ...] = _SOLID
    width: float = 1.1

    def line(self) -> dict[str, Any]:
        """Arguments that draw a line of this style."""
        return {
            "color": self.colour,
            "linestyle": (0, self.dashes) if self.dashes else "solid",
            "linewidth": self.width,
            "marker": self.marker,
            "markersize": 4.0 if self.marker in _FULL_MARKERS else 5.2,
            "markeredgewidth": 0.4,
            "markeredgecolor": "white",
        }


_LOOKS: dict[str, tuple[Any, ...]] = {
    "LSH": ("#000000", "v", _DOTTED),
    "SpectralHashing": ("#56B4E9", "^", _DASH_DOT),
    "ITQ": ("#0072B2", "s", _DASHED),
    "OKMeans": ("#009E73", "D", _LONG),
    "NOKMeans": ("#CC79A7", "P", _SOLID),
    "AutoBin1": ("#332288", "<", _DASHED),
    "AutoBin2": ("#5A3A00", ">", _DOTTED),
    "DAutoBin": ("#7887FF", "X", _DASH_DOT),
    "CAutoBin": ("#882255", "h", _LONG),
    "AutoJacoBin": ("#D55E00", "o", _SOLID, 1.8),
    "AutoJacoBin (chosen)": ("#E69F00", "*", _LONG, 1.8),
}
METHOD_STYLES: dict[str, MethodStyle] = {
    name: MethodStyle(find_method(name).label, *look) for name, look in _LOOKS.items()
}
"""A style for each method of the library, in the order of legends.

A registered method without a style is drawn in grey, with a marker of its own; assign a style for another look.
"""
_SPARE_MARKERS = "dpH8"


def style_of(method: str) -> MethodStyle:
    """Look up a method by its name or by its label."""
    styles = _all_styles()
    if method in styles:
        return styles[method]
    for style in styles.values():
        if style.label == method:
            return style
    raise DataError(
        f"no style is known for the method {method!r}, expected one of: {', '.join(styles)}; for a method of your own "
        "set autojacobin.figures.METHOD_STYLES[name] = MethodStyle(label, colour, marker), or register it"
    )


def in_order(names: Iterable[str]) -> list[str]:
    """Sort methods as legends list them, whatever order they were measured in."""
    by_label: dict[str, str] = {}
    for method in names:
        other = by_label.setdefault(style_of(method).label, method)
        if other != method:
            raise DataError(f"{other!r} and {method!r} are names of one method, expected it once; leave one out")
    return [by_label[style.label] for style in _all_styles().values() if style.label in by_label]


def _all_styles() -> dict[str, MethodStyle]:
    others = [method for method in methods() if method.name not in METHOD_STYLES]
    markers = itertools.cycle(_SPARE_MARKERS)
    return METHOD_STYLES | {
        method.name: MethodStyle(method.label, "#707070", marker, _DASHED)
        for method, marker in zip(others, markers, strict=False)
    }


def require_matplotlib() -> None:
    """Say how to install matplotlib if it is missing."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("matplotlib", "figures", "drawing figures") from error


def new_figure(width: float, height: float) -> Figure:
    """Make an empty figure of so many inches, which lays itself out and needs no display."""
    require_matplotlib()
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained", facecolor="white")


def dress(axes: Axes, *, x: str = "", y: str = "", title: str = "", grid: Grid = "both") -> None:
    """Give a panel its labels, letters of print size, and the thin frame that all panels have."""
    axes.set_xlabel(x, fontsize=LABEL_SIZE)
    axes.set_ylabel(y, fontsize=LABEL_SIZE)
    axes.set_title(title, fontsize=TITLE_SIZE)
    axes.tick_params(labelsize=SMALL_SIZE, width=0.6, length=2.5)
    for spine in axes.spines.values():
        spine.set_linewidth(0.6)
    if grid != "none":
        axes.grid(axis=grid, color="#E4E4E4", linewidth=0.5)
        axes.set_axisbelow(True)


def legend_below(
    figure: Figure, handles: dict[str, Any], columns: int, *, title: str = "", handle: float = 3.2
) -> None:
    """Put one legend for all panels under them, where it covers nothing; ``handle`` is the length of its lines."""
    figure.legend(
        list(handles.values()),
        list(handles),
        loc="outside lower center",
        ncols=min(columns, len(handles)),
        title=title or None,
        fontsize=SMALL_SIZE,
        title_fontsize=SMALL_SIZE,
        frameon=False,
        handlelength=handle,
        columnspacing=1.4,
    )
