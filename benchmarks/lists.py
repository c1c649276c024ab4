"""Inverted lists: recall@10 after re-ranking against queries a second, beside FAISS.

    python benchmarks/lists.py [--data DIR] [--set sift] [--lists 512] [--bits 64 128] [--threads 1] [--clock cpu]
                               [--quick] [--json PATH]

Ours: k-means, codes of the residuals by a binary auto-encoder, lists, exact re-ranking. FAISS: IVF with PQ fast-scan
and exact re-ranking (``IndexRefineFlat``), left out if it is not installed (pip install faiss-cpu). Both are swept over
probes and candidates, in turns. Of each, the fastest setting that reaches a recall is printed.
"""

from __future__ import annotations

import argparse
import itertools
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--data", metavar="DIR", help="folder of sets (default: AUTOJACOBIN_DATA)")
parser.add_argument("--set", default="sift")
parser.add_argument("--lists", type=int, default=512)
parser.add_argument("--bits", type=int, nargs="+", default=[64, 128])
parser.add_argument("--probes", type=int, nargs="+", default=[8, 12, 16, 24, 32, 48, 64])
parser.add_argument("--candidates", type=int, nargs="+", default=[20, 30, 40, 60, 80, 120, 200, 300])
parser.add_argument("--queries", type=int, default=1000, help="the most queries to use")
parser.add_argument("--threads", type=int, default=1)
parser.add_argument("--clock", choices=("wall", "cpu"), default="wall", help="on a busy machine: cpu, with one thread")
parser.add_argument("--peer-bits", type=int, nargs="+", default=[128, 256], help="of the codes of FAISS")
parser.add_argument("--rounds", type=int, default=3)
parser.add_argument("--quick", action="store_true", help="200 queries, 64 bits, a few settings, one round")
parser.add_argument("--json", metavar="PATH")
arguments = parser.parse_args()
if arguments.quick:
    arguments.queries, arguments.rounds, arguments.bits, arguments.peer_bits = 200, 1, [64], [128]
    arguments.probes, arguments.candidates = [16, 32], [40, 120]
os.environ["OMP_NUM_THREADS"] = str(arguments.threads)  # before any library reads it

import numpy as np  # noqa: E402
from timing import write_results  # noqa: E402

from autojacobin import BinaryAutoencoder  # noqa: E402
from autojacobin.datasets import VectorSet, load_set  # noqa: E402
from autojacobin.search.centres import Centres  # noqa: E402
from autojacobin.search.kmeans import kmeans  # noqa: E402
from autojacobin.search.lists import Lists, code_offsets  # noqa: E402
from autojacobin.search.prepared_search import ListSearch, ResidualWeights, Stored  # noqa: E402
from autojacobin.search.probing import Probing  # noqa: E402

try:
    import faiss
except ImportError:
    faiss = None

K = 10
RECALLS = (0.8, 0.9, 0.95, 0.97, 0.99)
NOW = time.perf_counter if arguments.clock == "wall" else time.process_time


@dataclass
class Contender:
    """One index: ``search(probes, candidates)`` gives the 10 nearest of each query."""

    name: str
    search: Callable[[int, int], Any]


class Ours:
    """Lists of the residuals of a set."""

    def __init__(self, data: VectorSet, centres: Centres, n_bits: int) -> None:
        self.centres, self.base = centres, np.ascontiguousarray(data.base)  # bvecs have gaps between rows
        learned, start = centres.assign(data.train), NOW()
        self.hasher = BinaryAutoencoder(n_bits, random_state=0).fit(data.train - centres.points[learned])
        fitted = NOW()
        labels = centres.assign(data.base)
        codes = self.hasher.encode(data.base - centres.points[labels])
        encoded = NOW()
        weights = self.hasher.distance_terms(centres.origin - centres.points).weights
        lists = Lists.build(codes, labels, len(centres), code_offsets(codes, labels, weights))
        print(
            f"{n_bits} bits: trained in {fitted - start:.1f} s, encoded in {encoded - fitted:.1f} s, grouped in "
            f"{NOW() - encoded:.2f} s"
        )
        self.index = ListSearch(
            Centres((centres.points + self.hasher.mean_).astype(np.float32)),
            [Stored(lists, vectors=self.base)],
            ResidualWeights(self.hasher.decoder_, centres.origin, lists.grid),
        )

    def search(self, Q: Any, probes: int, candidates: int) -> Any:
        """The 10 nearest of the candidates."""
        return self.index.search(Q, K, candidates, Probing(probes)).numbers


def peers(data: VectorSet, Q: Any) -> Iterator[Contender]:
    """IVF with PQ fast-scan of the vectors ("fs") or their residuals ("fsr"), and exact re-ranking."""
    faiss.omp_set_num_threads(arguments.threads)
    for n_bits, kind in itertools.product(arguments.peer_bits, ("fs", "fsr")):
        codes = f"PQ{n_bits // 4}x4{kind}"
        index = faiss.index_factory(data.base.shape[1], f"IVF{arguments.lists},{codes}")
        start = NOW()
        index.train(data.base.astype(np.float32))
        refined = faiss.IndexRefineFlat(index)
        refined.add(data.base.astype(np.float32))
        print(f"FAISS IVF{arguments.lists},{codes}: built in {NOW() - start:.1f} s")

        def search(probes: int, candidates: int, index: Any = index, refined: Any = refined) -> Any:
            index.nprobe, refined.k_factor = probes, candidates / K
            return refined.search(Q, K)[1]

        yield Contender(f"FAISS {codes}, {n_bits} bits", search)


def sweep(contenders: list[Contender], truth: Any) -> dict[str, list[tuple[float, float, int, int]]]:
    """(recall, seconds, probes, candidates) of each contender and setting, timed in turns."""
    points: dict[str, list[tuple[float, float, int, int]]] = {one.name: [] for one in contenders}
    for probes in arguments.probes:
        for candidates in arguments.candidates:
            best = {one.name: float("inf") for one in contenders}
            for _ in range(arguments.rounds):
                for one in contenders:
                    start = NOW()
                    found = one.search(probes, candidates)
                    best[one.name] = min(best[one.name], NOW() - start)
                    recall = float((found[:, :, None] == truth[:, None, :K]).any(axis=1).mean())
                    if len(points[one.name]) and points[one.name][-1][2:] == (probes, candidates):
                        points[one.name].pop()
                    points[one.name].append((recall, best[one.name], probes, candidates))
    return points


def main() -> None:
    """Build, profile and sweep."""
    data = load_set(arguments.set, arguments.data or os.environ.get("AUTOJACOBIN_DATA"))
    assert data.truth is not None
    Q, truth = data.queries[: arguments.queries].astype(np.float32), data.truth[: arguments.queries]
    start = NOW()
    centres = kmeans(data.base, arguments.lists, random_state=0)
    print(f"{len(data.base):,} vectors, {arguments.lists} lists by k-means in {NOW() - start:.1f} s")
    ours = {n_bits: Ours(data, centres, n_bits) for n_bits in arguments.bits}
    for one in ours.values():
        one.search(Q[:10], 8, 20)
    contenders = [
        Contender(f"ours, {n_bits} bits", lambda probes, c, one=one: one.search(Q, probes, c))
        for n_bits, one in ours.items()
    ]
    if faiss is not None:
        contenders += peers(data, Q)
    points = sweep(contenders, truth)
    for name, settings in points.items():
        print(name)
        for recall in RECALLS:
            reached = [setting for setting in settings if setting[0] >= recall]
            if reached:
                got, seconds, probes, candidates = min(reached, key=lambda setting: setting[1])
                print(
                    f"  {recall:.2f}: {len(Q) / seconds:9,.0f} queries/s, {1e6 * seconds / len(Q):6.1f} µs a query "
                    f"({probes} probes, {candidates} candidates, recall {got:.4f})"
                )
    if arguments.json:
        keys = ("recall", "seconds", "probes", "candidates")
        named = {
            name: [dict(zip(keys, setting, strict=True)) for setting in settings] for name, settings in points.items()
        }
        write_results(arguments.json, named, arguments)


if __name__ == "__main__":
    main()
