"""Draw the pictures of the documentation from the results of the programs, which are in the folder ``results``.

    python benchmarks/pictures.py [FOLDER]

It writes ``frontier.svg`` and ``tradeoff.svg`` into ``docs``, or into another folder.
"""

from __future__ import annotations

import math
import shutil
import sys
import tempfile
from typing import Any

from matplotlib.ticker import LogLocator
from tables import DOCS, RECALLS, results_of

from autojacobin.paper.figures.style import PAGE, MethodStyle, format_axes, legend_below, new_figure, save

LOWEST, HIGHEST = 0.8, 0.998
TICKS = (0.8, 0.9, 0.95, 0.98, 0.995)
SETS = {
    "1,000,000 SIFT descriptors": "frontier_million",
    "300,000 SIFT descriptors": "frontier_sift",
    "30,000 text embeddings": "frontier_text",
}
INDEXES = {  # colour, marker, dashes, width
    "ours": MethodStyle("autojacobin, lists", "#D55E00", "o", (), 2.0),
    "rabitqlib SymQG": MethodStyle("SymphonyQG, a graph", "#0072B2", "s", (5.0, 2.0)),
}
METHODS = {
    "ours, asymmetric": MethodStyle("ours, asymmetric", "#D55E00", "o", (), 1.8),
    "ours, symmetric": MethodStyle("ours, symmetric", "#E69F00", "*", (9.0, 2.0), 1.8),
    "PQ fast-scan": MethodStyle("PQ fast-scan", "#0072B2", "s"),
    "PQ": MethodStyle("PQ", "#56B4E9", "^", (5.0, 2.0)),
    "RaBitQ": MethodStyle("RaBitQ", "#777777", "v", (1.2, 1.5)),
    "RaBitQ, rotated": MethodStyle("RaBitQ, rotated", "#009E73", "D"),
    "RaBitQ fast-scan, rotated": MethodStyle("RaBitQ fast-scan, rotated", "#882255", "h", (5.0, 1.5, 1.2, 1.5)),
    "ITQ-LSH": MethodStyle("ITQ-LSH", "#CC79A7", "P", (5.0, 2.0)),
    "IndexBinaryFlat": MethodStyle("IndexBinaryFlat", "#332288", "X", (1.2, 1.5)),
}


def unbeaten(points: list[Any]) -> list[tuple[float, float]]:
    """Recall and speed of the settings that no other beats in both, by recall."""
    best: list[tuple[float, float]] = []
    for recall, speed, _ in sorted(points, key=lambda point: (-point[0], -point[1])):
        if not best or speed > best[-1][1]:
            best.append((recall, speed))
    return [point for point in reversed(best) if LOWEST <= point[0] <= HIGHEST]


def stretched(recall: float) -> float:
    """Recalls near 1 far apart."""
    return -math.log10(1 - recall)


def draw(panels: dict[str, dict[str, list[tuple[float, float]]]], styles: dict[str, MethodStyle], ticks: Any) -> Any:
    """Draw a panel for each title, with a line of recall and speed for each name."""
    figure = new_figure(PAGE, 3.3)
    handles: dict[str, Any] = {}
    all_axes = figure.subplots(1, len(panels), sharey=True)
    for axes, (title, lines) in zip(all_axes, panels.items(), strict=True):
        for name, points in lines.items():
            recalls, speeds = zip(*points, strict=True)
            handles[name] = axes.plot([stretched(recall) for recall in recalls], speeds, **styles[name].line())[0]
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter("{x:,.0f}")
        axes.yaxis.set_minor_formatter("")
        axes.set_xticks([stretched(recall) for recall in ticks], [f"{recall:g}" for recall in ticks])
        format_axes(axes, x="recall@10", y="queries a second" if axes is all_axes[0] else "", title=title)
    legend_below(figure, {styles[name].label: handles[name] for name in styles if name in handles}, 5)
    return figure


def frontier() -> Any:
    """The best of ours, whatever the number of bits and copies, and the graph."""
    panels: dict[str, Any] = {}
    for title, name in SETS.items():
        points: dict[str, list[Any]] = {}
        for one in results_of(name)["results"]:
            points.setdefault(one["name"].split(",")[0], []).extend(one["points"])
        panels[title] = {index: unbeaten(some) for index, some in points.items()}
    return draw(panels, INDEXES, TICKS)


def tradeoff() -> Any:
    panels = {
        f"{one['bytes']} bytes a vector": {
            contender["name"]: [(point["wanted"], point["per_second"]) for point in contender["points"]]
            for contender in one["contenders"]
        }
        for one in results_of("tradeoff_avx512")["results"]
    }
    return draw(panels, METHODS, RECALLS)


def main() -> None:
    folder = sys.argv[1] if len(sys.argv) > 1 else DOCS
    for make in (frontier, tradeoff):
        with tempfile.TemporaryDirectory() as scratch:
            shutil.copy(save(make(), scratch, make.__name__)[1], folder)


if __name__ == "__main__":
    main()
