"""Draw the frontier: recall against queries a second, from the files that ``frontier.py --json`` writes.

    python benchmarks/frontier_picture.py PICTURE RESULTS.json [RESULTS.json ...]

Each index is one line through its settings that no other of its settings beats.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

INK, OURS = "#333333", "#d1495b"
OTHERS = ["#00798c", "#edae49", "#1d3557", "#6a994e", "#8d6a9f", "#7f7f7f", "#b08968", "#2a9d8f", "#e76f51", "#a3b18a"]
LOWEST, HIGHEST = 0.8, 0.998
TICKS = (0.8, 0.9, 0.95, 0.98, 0.99, 0.995)


def frontier(points: list[Any]) -> list[tuple[float, float]]:
    """Recall and speed of the settings that no other beats in both, by recall."""
    best: list[tuple[float, float]] = []
    for recall, speed, _ in sorted(points, key=lambda point: (-point[0], -point[1])):
        if not best or speed > best[-1][1]:
            best.append((recall, speed))
    return [point for point in reversed(best) if LOWEST <= point[0] <= HIGHEST]


def stretched(recall: float) -> float:
    """Recalls near 1 far apart."""
    return -math.log10(1 - recall)


def main() -> None:
    picture, *files = sys.argv[1:]
    runs = [json.loads(Path(file).read_text()) for file in files]
    results = [result for run in runs for result in run["results"]]
    settings = runs[0]["settings"]
    figure = Figure(figsize=(7.2, 4.4), layout="constrained", facecolor="white")
    axes = figure.add_subplot()
    colours = iter(OTHERS * 3)
    for result in sorted(results, key=lambda one: not one["name"].startswith("ours")):
        line = frontier(result["points"])
        if not line:
            continue
        ours = result["name"].startswith("ours")
        style = {"color": OURS, "lw": 2.4, "zorder": 3} if ours else {"color": next(colours), "lw": 1.3}
        dashes = "--" if "64 bits" in result["name"] else "-"
        name = result["name"].replace("ours", "autojacobin, lists")
        recalls, speeds = zip(*line, strict=True)
        axes.plot([stretched(recall) for recall in recalls], speeds, dashes, marker="o", ms=3, label=name, **style)
    axes.set_yscale("log")
    axes.set_xticks([stretched(recall) for recall in TICKS], [f"{recall:g}" for recall in TICKS])
    axes.set_xlim(left=stretched(LOWEST))
    axes.set_xlabel("recall@10", color=INK)
    axes.set_ylabel(f"queries a second, {settings['threads']} threads", color=INK)
    axes.set_title(f"One million SIFT descriptors ({settings['set']}); higher is better", loc="left", fontsize=10)
    axes.grid(which="major", color="#e5e5e5", lw=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), fontsize=7.5, frameon=False)
    figure.savefig(picture, metadata={"Date": None} if picture.endswith(".svg") else None, dpi=150)


if __name__ == "__main__":
    main()
