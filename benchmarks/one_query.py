"""One query at a time, as users call it: median microseconds of a search, with peers in turns in one process.

    OMP_NUM_THREADS=1 python benchmarks/one_query.py [--data DIR] [--set sift] [--bits 128] [--queries 1000]
                                                     [--rounds 3] [--json PATH]

Each index is searched for the 10 nearest of one query after another, in one thread. Ours is called as ``Index.search``
with a ``recall``, also within a condition that allows a share of the vectors. Peers get the fastest of their settings
that reaches the recall. Peers that are not installed are left out: pip install faiss-cpu hnswlib rabitqlib.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from contenders import K, as_floats, faiss_indexes, hnswlib_index, rabitqlib_indexes

from autojacobin import BinaryAutoencoder, Index
from autojacobin.datasets import load_set
from autojacobin.evaluation import ground_truth

RECALLS = (0.95, 0.99)
SHARES = (0.06, 0.01)

Search = Callable[[Any], Any]


def recall_of(search: Search, queries: Any, truth: Any) -> float:
    hits = [np.isin(search(queries[row : row + 1])[0], truth[row]).mean() for row in range(len(queries))]
    return float(np.mean(hits))


def our_searches(base: Any, queries: Any, truth: Any, options: argparse.Namespace) -> dict[str, tuple[Search, Any]]:
    """Searches by name, and the true neighbours."""
    shares = np.random.default_rng(0).random(len(base))
    payload = {"share": shares}
    lists = Index.from_vectors(
        base, BinaryAutoencoder(options.bits, random_state=0), partitions="auto", payload=payload
    )
    flat = Index.from_vectors(base, BinaryAutoencoder(options.bits, random_state=0))
    searches: dict[str, tuple[Search, Any]] = {}
    for recall in RECALLS:
        searches[f"ours, lists, {recall}"] = (lambda q, r=recall: lists.search(q, K, recall=r)[1], truth)
    for share in SHARES:
        allowed = np.flatnonzero(shares < share)
        here = allowed[ground_truth(base[allowed], queries, K)]
        condition = f"share < {share}"
        searches[f"ours, lists, {condition}, 0.95"] = (lambda q, c=condition: lists.search(q, K, where=c)[1], here)
    searches["ours, exhaustive, decoded, 0.95"] = (lambda q: flat.search(q, K, recall=0.95)[1], truth)
    searches["ours, exhaustive, hamming, 0.95"] = (
        lambda q: flat.search(q, K, recall=0.95, distance="hamming")[1],
        truth,
    )
    return searches


def peer_searches(base: Any, queries: Any, truth: Any) -> dict[str, tuple[Search, Any]]:
    """The fastest setting of each peer that reaches a recall."""
    about = argparse.Namespace(threads=1, lists=512, width=base.shape[1], are_bytes=base.dtype == np.uint8)
    families = {"faiss": faiss_indexes, "hnswlib": hnswlib_index, "rabitqlib": rabitqlib_indexes}
    searches: dict[str, tuple[Search, Any]] = {}
    for module, family in families.items():
        if importlib.util.find_spec(module) is None:
            continue
        for contender in family(about):
            index, asked = contender.build(contender.convert(base)), contender.convert(queries)
            wanted = list(RECALLS)
            for setting in contender.settings:

                def search(q: Any, index: Any = index, contender: Any = contender, setting: Any = setting) -> Any:
                    return contender.search(index, q, setting)

                while wanted and recall_of(search, asked[:500], truth[:500]) >= wanted[0]:
                    searches[f"{contender.name}, {wanted.pop(0)}"] = search, truth
                if not wanted:
                    break
    return searches


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data")
    parser.add_argument("--set", default="sift")
    parser.add_argument("--bits", type=int, default=128)
    parser.add_argument("--queries", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    data = load_set(options.set, options.data)
    base, queries = np.asarray(data.base), as_floats(np.asarray(data.queries)[: options.queries])
    truth = ground_truth(base, queries, K)
    searches = our_searches(base, queries, truth, options) | peer_searches(base, queries, truth)
    best = dict.fromkeys(searches, float("inf"))
    for _ in range(options.rounds):  # in turns: the machine may be slower for a while
        for name, (search, _) in searches.items():
            times = []
            for row in range(len(queries)):
                start = time.perf_counter()
                search(queries[row : row + 1])
                times.append(time.perf_counter() - start)
            best[name] = min(best[name], float(np.median(times)))
    results = []
    print(f"{data.name}, {len(base):,} vectors, {len(queries)} queries one by one, one thread")
    for name, (search, true) in searches.items():
        recall = recall_of(search, queries, true)
        results.append({"search": name, "microseconds": 1e6 * best[name], "recall": recall})
        print(f"{name:45}{1e6 * best[name]:10.0f} µs  recall {recall:.3f}")
    if options.json is not None:
        options.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
