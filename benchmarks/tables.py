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
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
DOCS = HERE.parent / "docs"
TABLE = re.compile(r"(<!-- table ([a-z-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
RECALLS = (0.90, 0.95, 0.99)
KS = (1, 5, 10, 50, 100)


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
    for label, name in (("SIFT, 300,000 × 128", "frontier_sift"), ("text, 30,000 × 384", "frontier_text")):
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


LABELS = {"SpectralHashing": "SH", "start": "untrained start", "from ITQ": "`from_itq`"}  # others have their names
NAMES = {"sift": "SIFT", "gist": "GIST", "text": "text", "photos": "photos"}


def table_2(name: str) -> str:
    """Table II on a set: mean and deviation over the seeds; the best in bold, ≈ what is not behind it."""
    found = results_of("table2")["results"].get(name)
    if not found:
        return "(not measured yet)\n"
    methods, rows = list(found["counts"]), []
    for row in found["rows"]:
        cells = []
        for method in methods:
            spread = row["spread"][method]
            text = short(row["mean"][method]) + ("" if spread is None else f" ± {short(spread)}")
            text = f"**{text}**" if method == row["best"] else text
            cells.append(text + " ≈" * (method != row["best"] and method in row["not_behind"]))
        rows.append([f"({row['k']}, {row['bits']})", *cells])
    return table(["(k, bits)", *(LABELS.get(method, method) for method in methods)], rows)


def standing(field: str) -> str:
    """In how many rows of each set each method is best, and not behind the best."""
    found = results_of("table2")["results"]
    sets = [name for name in NAMES if name in found]
    methods = list(found[sets[0]][field])
    rows = []
    for name in sets:
        seeds = sorted({row["seeds"] for row in found[name]["rows"]})
        about = f"{NAMES[name]}, {len(found[name]['rows'])} rows, {' or '.join(map(str, seeds))} seeds"
        rows.append([about, *("{} / {}".format(*found[name][field][method]) for method in methods)])
    return table(["best / not behind", *(LABELS.get(method, method) for method in methods)], rows)


def jacobian_term() -> str:
    """What the Jacobian term adds to m-Recall: the mean difference, in bold if it is not zero by a test at 5 %."""
    found, rows = results_of("table2")["results"], []
    for name in (name for name in NAMES if name in found):
        by_row = {(row["bits"], row["k"]): row.get("term_adds") for row in found[name]["rows"]}
        for bits in sorted({bits for bits, _ in by_row}):
            cells = []
            for k in KS:
                difference, p = by_row[bits, k] or (0.0, None)
                text = "" if p is None else f"{difference:+.3f}".replace("0.", ".", 1)
                cells.append(f"**{text}**" if p is not None and p <= 0.05 else text)
            rows.append([f"{NAMES[name]}, {bits}", *cells])
    return table(["set, bits", *(f"k = {k}" for k in KS)], rows)


def peers() -> str:
    """Other indexes beside SymphonyQG, as shares of its rate; of a kind, the faster one."""
    best, *others = results_of("frontier_peers")["results"]
    rate = fastest(best["points"], 0.95)
    rows = [
        [one["name"], f"{fastest(one['points'], 0.95) / rate:.2f}", f"{one['bytes_per_vector']:,.0f}",
         f"{one['build_seconds']:.0f}"]
        for one in others if not one["name"].startswith(("ours", "FAISS IVF4096, PQ32", "rabitqlib IVF"))
    ]  # fmt: skip
    return table(["peer", "rate at .95", "bytes a vector", "build, s"], rows)


def tradeoff() -> str:
    """How many times the rate of FAISS's fast scan the fastest of ours has, at equal bytes."""
    rows: dict[int, list[str]] = {}
    for name in ("tradeoff_avx512", "tradeoff_arm"):
        for one in results_of(name)["results"]:
            for recall in RECALLS[1:]:
                speeds = {
                    contender["name"]: point["per_second"]
                    for contender in one["contenders"]
                    for point in contender["points"]
                    if point["wanted"] == recall
                }
                ours = max(speed for method, speed in speeds.items() if method.startswith("ours"))
                rows.setdefault(one["bytes"], []).append(f"{ours / speeds['PQ fast-scan']:.1f}")
    heads = ["bytes a vector", "AVX-512, .95", "AVX-512, .99", "ARM, .95", "ARM, .99"]
    return table(heads, [[str(size), *row, *[""] * (4 - len(row))] for size, row in rows.items()])


def filters() -> str:
    results = results_of("filtered")["results"]
    shares = list(dict.fromkeys(one["share"] for one in results))
    rows = [
        [name, *(f"{one['per_second']:,.0f} ({short(one['recall'])})" for one in results if one["name"] == name)]
        for name in dict.fromkeys(one["name"] for one in results)
    ]
    return table(["allowed", *(f"{100 * share:g} %" for share in shares)], rows)


def exact_search() -> str:
    """Exact Hamming search beside FAISS, one row for each processor."""
    sizes, rows = (10, 100, 1000, 10_000), []
    processors = {"AVX-512": "avx512", "AVX2": "avx2", "SSE2": "sse2", "ARM (Neoverse-N1)": "arm"}
    for label, name in processors.items():
        run = results_of(f"search_{name}")
        ratios = {one["what"]: one["ratio"] for one in run["results"]}
        shown = [f"{ratios[f'hamming 128 bits, k={k}, against FAISS']:.1f}" for k in sizes]
        rows.append([label, *shown, run["measured"]])
    return table(["128 bits", *(f"k = {k:,}" for k in sizes), "measured"], rows)


def growth() -> str:
    rows = [
        [f"{one['vectors']:,}", f"{one['lists']:,}", short(one["recall"]), f"{one['us']:.1f}"]
        for one in results_of("growth")["results"]
    ]
    return table(["vectors", "lists", "recall", "µs a query"], rows)


def start() -> str:
    labels = {
        "import": "`import autojacobin`",
        "search, one query, asymmetric": "first search of one query",
        "search, 1,000 queries, asymmetric": "first search of 1,000 queries",
        "fit, BinaryAutoencoder": "first fit of `BinaryAutoencoder`",
        "serve": "`autojacobin serve` until it is ready",
    }
    by_task = {one["task"]: one for one in results_of("start")["results"]}
    rows = [
        [label, *(f"{by_task[task][cache]['cpu']:.1f}" for cache in ("empty", "full"))]
        for task, label in labels.items()
    ]
    return table(["a new process, s", "nothing compiled yet", "later"], rows)


def gpu() -> str:
    labels = {
        "Hamming 128 bits, 1,000,000, k = 10": "Hamming, k = 10",
        "Hamming 128 bits, 1,000,000, k = 1000": "Hamming, k = 1,000",
        "Hamming 128 bits, 100,000,000, k = 10": "Hamming, 100 million codes, k = 10",
        "decoded, 100 candidates, re-ranked, 1000 queries": "decoded, 100 candidates, re-ranked",
        "true neighbours, 1,000,000 × 128, k = 100": "true neighbours, k = 100",
        "index on the GPU, recall 0.957": "`index.search`, recall .957",
        "index on the CPU, recall 0.957": "the same on 16 cores of a Xeon",
        "index on the GPU, one query": "`index.search` of one query",
        "encode 1,000,000 on the GPU": "`encode`, a million vectors on the GPU",
        "encode 1,000,000 from the host": "`encode`, a million vectors on the host",
        "encode 1,000,000 in 2 list(s) each": "`encode`, a million vectors on the GPU, each in two of 4,096 lists",
    }
    times = {one["what"]: one["best_ms"] for one in results_of("gpu")["results"]}
    rows = [[label, f"{times[what]:,.{0 if times[what] >= 100 else 2}f}"] for what, label in labels.items()]
    return table(["1,000 queries, if not said otherwise", "ms"], rows)


TABLES: dict[str, Callable[[], str]] = {
    "one-query": one_query,
    "million": million,
    "other-sets": other_sets,
    "peers": peers,
    "tradeoff": tradeoff,
    "filters": filters,
    "exact-search": exact_search,
    "growth": growth,
    "start": start,
    "neighbour-hashing": neighbour_hashing,
    "gpu": gpu,
    "sift-two": partial(table_2, "sift"),
    "gist-two": partial(table_2, "gist"),
    "text-two": partial(table_2, "text"),
    "photos-two": partial(table_2, "photos"),
    "standing": partial(standing, "counts"),
    "standing-paper": partial(standing, "counts_of_paper"),
    "jacobian-term": jacobian_term,
}


def main() -> None:
    check, stale = "--check" in sys.argv[1:], []
    for page in (*DOCS.parent.glob("README.md"), *sorted(DOCS.rglob("*.md"))):
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
