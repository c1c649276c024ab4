"""m-Recall, candidates and training time of every method, side by side: the tables of the README and of choosing.md.

    python benchmarks/methods.py --data DIR [--bits 64] [--seeds 1] [--methods itq sign] [--quick] [--json PATH]

m-Recall is over the best 1 % of the base, symmetric Hamming, 10,000 training points, up to 500 queries. Candidates are
how many of the nearest codes hold 95 % of the 10 nearest vectors on average, by each distance that the method has. Sign
is there with its options as well.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from typing import Any

import numpy as np
from timing import write_results
from vectors import real_sets

from autojacobin.datasets import VectorSet
from autojacobin.evaluation import m_recall, recall_curve
from autojacobin.hashers import Hasher, Sign, find_command, methods
from autojacobin.search.distances import distances_of

KS = (1, 10, 100)
NEIGHBOURS, RECALL = 10, 0.95
OPTIONS = {"Sign, centred": {"centred": True}, "Sign, centred, rotated": {"centred": True, "rotate": True}}


def run_trial(hasher: Hasher, data: VectorSet, truth: Any, depth: int) -> tuple[dict[int, float], Any, float]:
    """Fit the hasher; return its m-Recall over the first ``depth`` points by k, candidates, and seconds of the fit."""
    start = time.perf_counter()
    hasher.fit(data.train)
    seconds = time.perf_counter() - start
    codes, needed, recalls = hasher.encode(data.base), {}, {}
    deep = len(data.base) // 5
    for name, distance in distances_of(hasher).items():
        _, ids = distance.topk(distance.encode(hasher, data.queries), codes, deep)
        enough = np.flatnonzero(recall_curve(ids, truth, NEIGHBOURS, deep) >= RECALL)
        needed[name] = int(enough[0]) + 1 if len(enough) else None
        if name == "hamming":
            recalls = {k: m_recall(ids[:, :depth], truth, k, depth) for k in KS}
    return recalls, needed, seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="folder of sets (default: AUTOJACOBIN_DATA, else digits)")
    parser.add_argument("--bits", type=int, default=64)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--methods", nargs="*", help="only these, by their names on the command line")
    parser.add_argument("--sets", nargs="*", help="only these")
    parser.add_argument("--quick", action="store_true", help="2,000 training points, 100 queries, the narrowest set")
    parser.add_argument("--json", metavar="PATH")
    arguments = parser.parse_args()
    results = []
    sets = sorted(real_sets(arguments.data), key=lambda one: one[0].base.shape[1])
    sets = [one for one in sets if not arguments.sets or one[0].name in arguments.sets]
    for data, truth in sets[: 1 if arguments.quick else None]:
        points, queries = (2000, 100) if arguments.quick else (10_000, 500)
        chosen = np.random.RandomState(0).permutation(len(data.train))[:points]
        part = VectorSet(data.name, data.name, np.asarray(data.train[chosen]), data.base, data.queries[:queries])
        depth = max(100, len(data.base) // 100)
        print(f"\n{data.name}: {arguments.bits} bits, depth {depth}, seeds 0 to {arguments.seeds - 1}")
        searchable = [method for method in methods() if method.name != "PartitionedAutoencoder"]  # it needs an index
        chosen_methods = [find_command(name) for name in arguments.methods] if arguments.methods else searchable
        makers = {method.label: method.make for method in chosen_methods}
        if "Sign" in makers:
            makers |= {
                name: lambda bits, seed, given=given: Sign(bits, random_state=seed, **given)
                for name, given in OPTIONS.items()
            }
        for label, make in makers.items():
            hashers = [make(arguments.bits, seed=seed) for seed in range(arguments.seeds)]
            trials = [run_trial(hasher, part, truth[:queries], depth) for hasher in hashers]
            recalls = {k: [m_recalls[k] for m_recalls, *_ in trials] for k in KS}
            seconds = [fit_seconds for *_, fit_seconds in trials]
            needed = [candidates for _, candidates, _ in trials]
            results.append(
                {"set": data.name, "method": label, "m_recall": recalls, "candidates": needed, "fit_seconds": seconds}
            )
            cells = "  ".join(f"{statistics.mean(values):.3f}" for values in recalls.values())
            means = {
                name: statistics.mean(one[name] if one[name] is not None else math.inf for one in needed)
                for name in needed[0]
            }
            asked = ", ".join(f"{name} {number:,.0f}" for name, number in means.items())
            print(f"{label:24} {cells}   {min(seconds):7.2f} s   {asked}", flush=True)
    if arguments.json:
        write_results(arguments.json, results, arguments)


if __name__ == "__main__":
    main()
