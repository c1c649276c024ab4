"""m-Recall and training time of every method, side by side: the table of the README.

    python benchmarks/methods.py --data DIR [--bits 64] [--seeds 1] [--quick] [--json PATH]

m-Recall is over the best 1 % of the base, symmetric Hamming, 10,000 training points, up to 500 queries.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import Any

import numpy as np
from vectors import real_sets

from autojacobin.datasets import VectorSet
from autojacobin.evaluation import m_recall
from autojacobin.hashers import Hasher, methods
from autojacobin.search import hamming_topk

KS = (1, 10, 100)


def run_trial(hasher: Hasher, data: VectorSet, truth: Any, depth: int) -> tuple[dict[int, float], float]:
    """Fit the hasher; return its m-Recall over the first ``depth`` points by k, and the seconds of the fit."""
    start = time.perf_counter()
    hasher.fit(data.train)
    seconds = time.perf_counter() - start
    _, ids = hamming_topk(hasher.encode(data.queries), hasher.encode(data.base), depth)
    return {k: m_recall(ids, truth, k, depth) for k in KS}, seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="folder of sets (default: AUTOJACOBIN_DATA, else digits)")
    parser.add_argument("--bits", type=int, default=64)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="2,000 training points, 100 queries, the narrowest set")
    parser.add_argument("--json", metavar="PATH")
    arguments = parser.parse_args()
    results = []
    sets = sorted(real_sets(arguments.data), key=lambda one: one[0].base.shape[1])
    for data, truth in sets[: 1 if arguments.quick else None]:
        points, queries = (2000, 100) if arguments.quick else (10_000, 500)
        chosen = np.random.RandomState(0).permutation(len(data.train))[:points]
        part = VectorSet(data.name, data.name, np.asarray(data.train[chosen]), data.base, data.queries[:queries])
        depth = max(100, len(data.base) // 100)
        print(f"\n{data.name}: {arguments.bits} bits, depth {depth}, seeds 0 to {arguments.seeds - 1}")
        for method in methods():
            hashers = [method.make(arguments.bits, seed=seed) for seed in range(arguments.seeds)]
            trials = [run_trial(hasher, part, truth[:queries], depth) for hasher in hashers]
            recalls = {k: [m_recalls[k] for m_recalls, _ in trials] for k in KS}
            seconds = [fit_seconds for _, fit_seconds in trials]
            results.append({"set": data.name, "method": method.label, "m_recall": recalls, "fit_seconds": seconds})
            cells = "  ".join(f"{statistics.mean(values):.3f}" for values in recalls.values())
            print(f"{method.label:24} {cells}   {min(seconds):7.2f} s", flush=True)
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as stream:
            json.dump({"settings": vars(arguments), "results": results}, stream, indent=1)


if __name__ == "__main__":
    main()
