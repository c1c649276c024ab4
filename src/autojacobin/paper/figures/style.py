"""How figures look and how they are saved: one style for each method, sizes for print, labels, legends, files.

The first colours are those of Okabe and Ito. The others were chosen so that readers with protanopia or deuteranopia can
distinguish any two methods. No two methods share a marker, so that a grey print can be read as well.
"""

from __future__ import annotations

import io
import os
import re
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from autojacobin.core.files import as_path, clear_os_errors, write_atomically
from autojacobin.errors import import_extra
from autojacobin.hashers import find_method, methods

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMN, PAGE = 3.5, 7.16  # widths in inches, as journals print them
TITLE_SIZE, LABEL_SIZE, SMALL_SIZE = 9.0, 8.0, 7.0  # of letters, in points
INK, FAINT = "#222222", "#B0B0B0"

Grid = Literal["both", "x", "y", "none"]

_SOLID: tuple[float, ...] = ()
_DASHED, _DOTTED = (5.0, 2.0), (1.2, 1.5)
_DASH_DOT, _LONG = (5.0, 1.5, 1.2, 1.5), (9.0, 2.0)
_FULL_MARKERS = "osDh"  # the other markers fill less of their square and are drawn larger
_SPARE_MARKERS = "H81"
_DOTS_PER_INCH = 300
_settings = threading.Lock()
# On a dark page an SVG shows white as nearly black and black as nearly white, and colours keep their hue.
_DARK = b"<style>@media (prefers-color-scheme: dark) { svg { filter: invert(.92) hue-rotate(180deg) } }</style>\n"


@dataclass(frozen=True)
class MethodStyle:
    """Style of a method in all figures: its name in legends, a hexadecimal colour, and a marker of matplotlib.

    ``dashes`` are the lengths of dashes and gaps in line widths, none for a solid line. ``width`` is in points.
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
    "Sign": ("#2211FF", "d", _DOTTED),
    "BinaryAutoencoder": ("#117733", "p", _SOLID, 1.8),
}
METHOD_STYLES: dict[str, MethodStyle] = {
    name: MethodStyle(find_method(name).label, *look) for name, look in _LOOKS.items()
}
"""A style for each method of the library, in the order of legends.

A registered method without a style is drawn in grey, with a marker of its own. Assign a style to change that.
"""


def style_of(method: str) -> MethodStyle:
    """Find the style of a method by its name."""
    if method in METHOD_STYLES:
        return METHOD_STYLES[method]
    others = [one.name for one in methods() if one.name not in METHOD_STYLES]
    label = find_method(method).label
    return MethodStyle(label, "#707070", _SPARE_MARKERS[others.index(method) % len(_SPARE_MARKERS)], _DASHED)


def legend_order(names: Iterable[str]) -> list[str]:
    """Sort methods into the order of legends; those without a style come last."""
    order = [*METHOD_STYLES, *(one.name for one in methods() if one.name not in METHOD_STYLES)]
    return sorted(names, key=order.index)


def require_matplotlib() -> None:
    """Raise MissingExtraError if matplotlib is not installed."""
    import_extra("matplotlib.figure", "figures", "drawing figures")


def new_figure(width: float, height: float) -> Figure:
    """Make an empty figure. Sizes are in inches; the layout is automatic and no display is needed."""
    require_matplotlib()
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained", facecolor="white")


def format_axes(axes: Axes, *, x: str = "", y: str = "", title: str = "", grid: Grid = "both") -> None:
    """Set the labels, letter sizes, frame and grid of a panel."""
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
    """Put one legend for all panels below them; ``handle`` is the length of its lines."""
    look: dict[str, Any] = {"fontsize": SMALL_SIZE, "title_fontsize": SMALL_SIZE, "frameon": False}
    look |= {"ncols": min(columns, len(handles)), "columnspacing": 1.4, "handlelength": handle}
    figure.legend(list(handles.values()), list(handles), loc="outside lower center", title=title or None, **look)


def save(figure: Figure, folder: str | os.PathLike[str], name: str) -> tuple[Path, Path]:
    """Write ``figure`` as ``name.png`` and ``name.svg`` into ``folder``, which is made if it does not exist.

    Both are drawn before either is written, and each replaces an older file in one step. Their paths are returned.
    They contain no date and no version, so the same data give the same bytes, and version control shows only real
    changes. The SVG takes other colours on a dark page, unless it holds pictures.
    """
    target = as_path(folder)
    engine = figure.get_layout_engine()
    figure.draw_without_rendering()
    figure.set_layout_engine(None)  # all of it has its place now, in both files; "none" would draw each one twice
    try:
        contents = {
            "png": _rendered(figure, "png", {"Software": None}),
            "svg": _rendered(figure, "svg", {"Date": None, "Creator": None}),
        }
    finally:
        figure.set_layout_engine(engine)
    if b"<image" not in contents["svg"]:
        contents["svg"] = re.sub(rb"(<svg[^>]*>\n?)", lambda start: start[1] + _DARK, contents["svg"], count=1)
    paths = {ending: target / f"{name}.{ending}" for ending in contents}
    with clear_os_errors(f"write the figure {name!r} to {str(target)!r}", "choose another folder"):
        target.mkdir(parents=True, exist_ok=True)
        for ending, content in contents.items():
            write_atomically(paths[ending], content)
    return paths["png"], paths["svg"]


def _rendered(figure: Figure, ending: str, metadata: dict[str, Any]) -> bytes:
    from matplotlib import rc_context

    stream = io.BytesIO()
    # By default the ids inside an SVG depend on a random salt. The setting is global, so one thread at a time changes
    # it, and restores it afterwards.
    with _settings, rc_context({"svg.hashsalt": "autojacobin"}):
        figure.savefig(stream, format=ending, dpi=_DOTS_PER_INCH, metadata=metadata)
    return stream.getvalue()
