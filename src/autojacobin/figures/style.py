"""How figures look and how they are saved: one style for each method, sizes for print, labels, legends, files.

The first colours are those of Okabe and Ito. The others were chosen so that readers with protanopia or deuteranopia can
distinguish any two methods. No two methods share a marker, so that a grey print can be read as well.
"""

from __future__ import annotations

import io
import itertools
import os
import re
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from autojacobin.core.files import clear_os_errors, write_atomically
from autojacobin.errors import DataError, import_extra
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
_svg_salt = threading.Lock()
_DARK_PAPER, _DARK_INK = (0.08, 0.1, 0.12), (0.9, 0.92, 0.94)  # what white and black become on a dark page
_GREY = 0.06  # largest difference of red, green and blue in a grey
_LIGHT = 0.6  # brightness from which a colour is readable on a dark page as it is


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
    """Find the style of a method by its name or by its label."""
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


def legend_order(names: Iterable[str]) -> list[str]:
    """Sort methods into the order of legends."""
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


def save(figure: Figure, folder: str | os.PathLike[str], name: str) -> tuple[Path, Path]:
    """Write ``figure`` as ``name.png`` and ``name.svg`` into ``folder``, which is made if it does not exist.

    The SVG takes other colours on a dark page.

    Both are drawn before either is written, and each replaces an older file in one step. They contain no date and no
    version, so the same data give the same bytes, and version control shows only real changes.

    Returns
    -------
    png, svg : Path
    """
    contents = {
        "png": _rendered(figure, "png", {"Software": None}),
        "svg": with_dark_colours(_rendered(figure, "svg", {"Date": None, "Creator": None})),
    }
    paths = {ending: Path(folder) / f"{name}.{ending}" for ending in contents}
    with clear_os_errors(f"write the figure {name!r} to {os.fspath(folder)!r}", "choose another folder"):
        Path(folder).mkdir(parents=True, exist_ok=True)
        for ending, content in contents.items():
            write_atomically(paths[ending], content)
    return paths["png"], paths["svg"]


def with_dark_colours(svg: bytes) -> bytes:
    """Add rules to an SVG of matplotlib that replace its colours where the page around it is dark.

    White becomes nearly black and black nearly white, with all greys between them. Dark colours become lighter.
    """
    colours = sorted(set(re.findall(rb"(fill|stroke): (#[0-9a-f]{6})", svg)))
    rules = [b"svg { fill: %s }" % _on_dark(b"#000000")]  # matplotlib writes no colour for black letters
    rules += [
        b'[style*="%s: %s"] { %s: %s !important }' % (what, colour, what, _on_dark(colour)) for what, colour in colours
    ]
    style = b"<style>@media (prefers-color-scheme: dark) {\n%s\n}</style>\n" % b"\n".join(rules)
    return re.sub(rb"(<svg[^>]*>\n?)", lambda start: start[1] + style, svg, count=1)


def _on_dark(colour: bytes) -> bytes:
    red, green, blue = (int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5))
    if max(red, green, blue) - min(red, green, blue) < _GREY:
        parts = [light + (dark - light) * red for light, dark in zip(_DARK_INK, _DARK_PAPER, strict=True)]
    else:
        white = max(0.0, _LIGHT - (0.3 * red + 0.59 * green + 0.11 * blue))  # as the eye weighs them
        parts = [part + (1 - part) * white for part in (red, green, blue)]
    return b"#" + b"".join(b"%02x" % round(255 * part) for part in parts)


def _rendered(figure: Figure, ending: str, metadata: dict[str, Any]) -> bytes:
    from matplotlib import rcParams

    stream = io.BytesIO()
    # By default the ids inside an SVG depend on a random salt. The setting is global, so one thread at a time changes
    # it, and restores it afterwards.
    with _svg_salt:
        salt = rcParams["svg.hashsalt"]
        rcParams["svg.hashsalt"] = "autojacobin"
        try:
            figure.savefig(stream, format=ending, dpi=_DOTS_PER_INCH, metadata=metadata)
        finally:
            rcParams["svg.hashsalt"] = salt
    return stream.getvalue()
