"""What the Jacobian term is worth: m-Recall with it and without it, from two starts, on photos and SIFT.

    python benchmarks/jacobian_term.py --data DIR [--seeds 5] [--json PATH]     # a quarter of an hour on two cores

64 bits, 3,000 training points, the Hamming distance, the best 1 % of the base: the table of docs/notes/auto-jacobin.md.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from timing import write_results

from autojacobin import ITQ, AutoJacoBin
from autojacobin.datasets import load_set
from autojacobin.evaluation import ground_truth, m_recall
from autojacobin.search import hamming_topk

KS, BITS, MOST_TRAINED, MOST_SEARCHED, MOST_QUERIES = (1, 10, 100), 64, 3_000, 60_000, 1_000
TERM = {"init": "itq", "alpha": 0.1, "jacobian_weight": 1.0, "energy": 0.98, "n_epochs": 5}
ROWS = {
    "no training: ITQ": None,
    "no Jacobian term, α = 0.03, one epoch": {**TERM, "alpha": 0.03, "jacobian_weight": 0.0, "n_epochs": 1},
    "Jacobian term as in the paper (w = 1, D + d neighbours, energy 0.98), α = 0.1": TERM,
    "… for one epoch": {**TERM, "n_epochs": 1},
    "… with w = 0.1": {**TERM, "jacobian_weight": 0.1},
    "… with energy 0.8": {**TERM, "energy": 0.8},
    "… with tangent spaces from 64 neighbours": {**TERM, "n_neighbors": 64},
    "… from 32": {**TERM, "n_neighbors": 32},
    "… from 32, energy 0.8": {**TERM, "n_neighbors": 32, "energy": 0.8},
    "from a random rotation, as published": {**TERM, "init": "random"},
    "… without the Jacobian term": {**TERM, "init": "random", "jacobian_weight": 0.0},
}


def found(settings, seed, train, base, queries, truth):
    """m-Recall for each k of one fit."""
    hasher = ITQ(BITS, random_state=seed) if settings is None else AutoJacoBin(BITS, random_state=seed, **settings)
    hasher.fit(train)
    depth = len(base) // 100
    _, ids = hamming_topk(hasher.encode(queries), hasher.encode(base), depth)
    return [float(m_recall(ids, truth, k, depth)) for k in KS]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="folder of sets; photos alone without one")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    arguments = parser.parse_args()
    results: dict[str, dict[str, list]] = {}
    for name in ["photos", *(["sift"] if arguments.data else [])]:
        data = load_set(name, arguments.data if name != "photos" else None)
        train, queries = data.train[:MOST_TRAINED], data.queries[:MOST_QUERIES]
        base = data.base[:MOST_SEARCHED]
        truth = ground_truth(base, queries, max(KS))
        for row, settings in ROWS.items():
            figures = np.array([found(settings, s, train, base, queries, truth) for s in range(arguments.seeds)])
            results.setdefault(row, {})[name] = figures.tolist()
            cell = " / ".join(f"{m:.3f}±{d:.3f}" for m, d in zip(figures.mean(0), figures.std(0), strict=True))
            print(f"{name}: {row}: {cell}", flush=True)
    if arguments.json:
        write_results(arguments.json, results, arguments)


if __name__ == "__main__":
    main()
