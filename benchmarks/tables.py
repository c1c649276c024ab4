"""Write the tables of the documentation from the results of the programs, which are in the folder ``results``.

    python benchmarks/tables.py [--check]

A table stands between ``<!-- table NAME -->`` and ``<!-- end -->``. ``--check`` changes nothing, and fails if a table
is not the one of its results. To measure again, run a program with ``--json benchmarks/results/NAME.json``, then this.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
DOCS = HERE.parent / "docs"
TABLE = re.compile(r"(<!-- table ([a-z-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
RECALLS = (0.90, 0.95, 0.99)


def results_of(name: str) -> Any:
    return json.loads((HERE / "results" / f"{name}.json").read_text(encoding="utf-8"))


def table(heads: list[str], rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(line) + " |" for line in (heads, *rows)]
    lines.insert(1, "|---" + "|---:" * (len(heads) - 1) + "|")
    return "\n".join(lines) + "\n"


def short(share: float | None) -> str:
    return "" if share is None else f"{share:.3f}".removeprefix("0")


def one_query() -> str:
    rows = [
        [f"**{one['name']}**" if one["name"].startswith("ours") else one["name"], f"{one['median_us']:,.0f}",
         f"{one['p99_us']:,.0f}", short(one["recall"])]
        for one in results_of("one_query")["results"]
        if "PQ32" not in one["name"]  # slower than PQ64
    ]  # fmt: skip
    return table(["one query, one thread", "median, µs", "99 %, µs", "recall"], rows)


def fastest(points: list[Any], recall: float) -> float | None:
    """Queries a second of the fastest setting that reaches a recall."""
    return max((speed for found, speed, _ in points if found >= recall), default=None)


def million() -> str:
    rows = []
    for one in results_of("frontier_million")["results"]:
        speeds = [fastest(one["points"], recall) for recall in RECALLS]
        shown = ["–" if speed is None else f"{speed:,.0f}" for speed in speeds]
        single = "" if one["single_us"] is None else f"{one['single_us'][0]:,.0f}"
        label = f"**{one['name']}**" if one["name"].startswith("ours") else one["name"]
        rows.append([label, *shown, single, f"{one['bytes_per_vector']:,.0f}", f"{one['build_seconds']:.0f}"])
    return table(["index", ".90", ".95", ".99", "one query, µs", "bytes a vector", "build, s"], rows)


def other_sets() -> str:
    """The same on smaller sets, in few columns: ours / the peer."""
    rows = []
    for label, name in (("SIFT, 150,000 × 128", "frontier_sift"), ("text, 30,000 × 384", "frontier_text")):
        ours, peer = (
            [fastest([point for one in results_of(name)["results"] if one["name"].startswith("ours") == is_ours
                      for point in one["points"]], recall) for recall in RECALLS]
            for is_ours in (True, False)
        )  # fmt: skip
        rows.append([label, *(f"{a:,.0f} / {b:,.0f}" for a, b in zip(ours, peer, strict=True))])
    return table(["ours / SymphonyQG", ".90", ".95", ".99"], rows)


def neighbour_hashing() -> str:
    """m-Recall of the ten nearest, mean and deviation over the seeds."""
    cells: dict[tuple[str, int], dict[str, list[float]]] = {}
    for key, row in results_of("quality")["results"].items():
        name, bits, method, _ = key.split("/")
        cells.setdefault((name, int(bits)), {}).setdefault(method, []).append(row["symmetric"][1])
    rows = []
    for (name, bits), scores in cells.items():
        of_itq, ours = (scores[method] for method in ("ITQ", "NeighbourHashing"))
        shown = [f"{short(float(np.mean(one)))} ± {short(float(np.std(one, ddof=1)))}" for one in (of_itq, ours)]
        rows.append([f"{name}, {bits}", *shown, f"{np.mean(ours) - np.mean(of_itq):+.3f}".replace("0.", ".", 1)])
    return table(["set, bits", "ITQ", "`NeighbourHashing`", "gain"], rows)


def gpu() -> str:
    """What users call; the kernels by other ways are left out."""
    left_out = ("the same by", "weighted", "re-ranking")
    rows = [
        [one["what"], f"{one['best_ms']:,.2f}"]
        for one in results_of("gpu")["results"]
        if not one["what"].strip().startswith(left_out)
    ]
    return table(["1,000 queries unless it says otherwise", "ms"], rows)


TABLES: dict[str, Callable[[], str]] = {
    "one-query": one_query,
    "million": million,
    "other-sets": other_sets,
    "neighbour-hashing": neighbour_hashing,
    "gpu": gpu,
}


def main() -> None:
    check, stale = "--check" in sys.argv[1:], []
    for page in sorted(DOCS.rglob("*.md")):
        text = page.read_text(encoding="utf-8")
        written = TABLE.sub(lambda found: found[1] + TABLES[found[2]]() + found[3], text)
        if written != text:
            stale.append(str(page.relative_to(DOCS.parent)))
            if not check:
                page.write_text(written, encoding="utf-8")
    if check and stale:
        raise SystemExit(f"tables differ from their results in {', '.join(stale)}; run python benchmarks/tables.py")


if __name__ == "__main__":
    main()
