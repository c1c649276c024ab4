"""The frontier: recall@10 against queries a second of indexes that people use, by the protocol of ann-benchmarks.

    python benchmarks/frontier.py [--data DIR] [--set sift] [--threads 1] [--lists 1024] [--only ours faiss ...]
                                  [--json PATH]

Every index answers all queries in one call, with every one of its settings; the fastest setting that reaches a recall
counts. Indexes are built one after another and then timed in turns, best of several. Ours re-ranks with the vectors as
they come (bytes for SIFT), as FAISS does with ``IndexRefineFlat`` over float32. Build time counts training, assignment
and encoding. "Memory" is what an index keeps beside the vectors that it re-ranks by, as far as it can be read off.
Peers that are not installed are left out: pip install faiss-cpu usearch rabitqlib.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--data", metavar="DIR", help="folder of sets (default: AUTOJACOBIN_DATA)")
parser.add_argument("--set", default="sift")
parser.add_argument("--queries", type=int, default=2000, help="the most queries to use")
parser.add_argument("--lists", type=int, default=1024)
parser.add_argument("--bits", type=int, nargs="+", default=[64, 128], help="of our residual codes")
parser.add_argument("--threads", type=int, default=1)
parser.add_argument("--rounds", type=int, default=3)
parser.add_argument("--only", nargs="+", metavar="NAME", help="ours, faiss, usearch, rabitqlib")
parser.add_argument("--json", metavar="PATH")
arguments = parser.parse_args()
os.environ["OMP_NUM_THREADS"] = str(arguments.threads)  # before any library reads it

import numpy as np  # noqa: E402

from autojacobin import Index, PartitionedAutoencoder  # noqa: E402
from autojacobin.datasets import load_set  # noqa: E402

K = 10
RECALLS = (0.90, 0.95, 0.99)
PROBES = (4, 8, 12, 16, 24, 32, 48, 64, 96, 128)


@dataclass
class Contender:
    """An index and its settings: ``search(setting)`` gives the ids of the 10 nearest of each query."""

    name: str
    build_seconds: float
    bytes_per_vector: float | None
    settings: list[Any]
    search: Callable[[Any], Any]
    points: list[tuple[float, float, Any]] = field(default_factory=list)


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    start = time.perf_counter()
    result = call()
    return result, time.perf_counter() - start


def ours(base: Any, Q: Any) -> Iterator[Contender]:
    """Inverted lists of residual codes, with exact re-ranking."""
    for bits in arguments.bits:
        n_bits = bits + (arguments.lists - 1).bit_length()

        def build(n_bits: int = n_bits) -> Index:
            sample = base[np.sort(np.random.default_rng(0).permutation(len(base))[: 64 * arguments.lists])]
            index = Index(PartitionedAutoencoder(n_bits, n_lists=arguments.lists, random_state=0).fit(sample))
            index.add(base)
            index.search(Q[:1], K, probes=1)  # makes the lists
            return index

        build()  # compiles
        index, seconds = timed(build)
        settings = [(probes, c) for probes in PROBES for c in (15, 20, 30, 40, 60, 80, 120, 200, 300)]
        yield Contender(
            f"ours, {bits} bits",
            seconds,
            bits / 8 + 5,  # the offset and the position
            settings,
            lambda setting, index=index: index.search(Q, K, probes=setting[0], candidates=setting[1])[1],
        )


def faiss_indexes(base: Any, Q: Any) -> Iterator[Contender]:
    """IVF with PQ fast-scan and refinement, and HNSW over bytes."""
    import faiss

    faiss.omp_set_num_threads(arguments.threads)
    floats = base.astype(np.float32)
    for codes, size in (("PQ32x4fs", 16), ("PQ64x4fs", 32)):
        index = faiss.index_factory(base.shape[1], f"IVF{arguments.lists},{codes}")

        def build(index: Any = index) -> Any:
            index.train(floats[np.random.default_rng(0).permutation(len(base))[: 64 * arguments.lists]])
            refined = faiss.IndexRefineFlat(index)
            refined.add(floats)
            return refined

        refined, seconds = timed(build)

        def search(setting: Any, index: Any = index, refined: Any = refined) -> Any:
            index.nprobe, refined.k_factor = setting[0], setting[1] / K
            return refined.search(Q, K)[1]

        settings = [(probes, c) for probes in PROBES for c in (20, 40, 80, 160, 300)]
        yield Contender(f"FAISS IVF{arguments.lists},{codes}, refined", seconds, size + 8, settings, search)
    graph = faiss.index_factory(base.shape[1], "HNSW16,SQ8")

    def build_graph() -> None:
        graph.train(floats)
        graph.add(floats)

    _, seconds = timed(build_graph)

    def search_graph(ef: int) -> Any:
        graph.hnsw.efSearch = ef
        return graph.search(Q, K)[1]

    settings = [10, 15, 20, 30, 40, 60, 80, 120, 200, 400]
    yield Contender("FAISS HNSW16,SQ8", seconds, base.shape[1] + 16 * 2 * 4, settings, search_graph)


def usearch_index(base: Any, Q: Any) -> Iterator[Contender]:
    """A graph over int8; SIFT's bytes are shifted to its range."""
    from usearch.index import Index as Graph

    if base.dtype != np.uint8:
        return
    small, asked = ((array.astype(np.int16) - 128).astype(np.int8) for array in (base, Q))
    graph = Graph(ndim=base.shape[1], metric="l2sq", dtype="i8", connectivity=16, expansion_add=200)
    _, seconds = timed(lambda: graph.add(np.arange(len(base)), small, threads=arguments.threads))

    def search(ef: int) -> Any:
        graph.expansion_search = ef
        return graph.search(asked, K, threads=arguments.threads).keys

    yield Contender("usearch, i8", seconds, base.shape[1] + 16 * 2 * 4, [10, 20, 30, 40, 60, 80, 120, 200, 400], search)


def rabitqlib_indexes(base: Any, Q: Any) -> Iterator[Contender]:
    """IVF at 5 and 7 bits, and SymphonyQG."""
    import rabitqlib

    floats, threads = np.ascontiguousarray(base.astype(np.float32)), arguments.threads
    exact = rabitqlib.FinalAssignmentMode.Exact
    lists = rabitqlib.RaBitQKMeans(base.shape[1], arguments.lists, num_threads=threads, final_assignment=exact)
    _, clustering = timed(lambda: lists.train(floats))
    for bits in (5, 7):
        index = rabitqlib.IvfIndex(base.shape[1], len(base), arguments.lists, bits, "l2")
        _, seconds = timed(
            lambda index=index: index.build(floats, lists.centroids, lists.assignments, num_threads=threads)
        )
        yield Contender(
            f"rabitqlib IVF, {bits} bits",
            clustering + seconds,
            bits * base.shape[1] / 8 + 12,
            list(PROBES),
            lambda probes, index=index: index.search(Q, K, probes, num_threads=threads)[0],
        )
    graph = rabitqlib.SymqgIndex(base.shape[1], 32)
    _, seconds = timed(lambda: graph.build(floats, 200, num_threads=threads))
    yield Contender(
        "rabitqlib SymQG, degree 32",
        seconds,
        None,
        [10, 20, 30, 40, 60, 80, 120, 200, 400],
        lambda ef: graph.search(Q, K, ef, num_threads=threads)[0],
    )


def measure(contenders: list[Contender], truth: Any) -> None:
    """Time all settings in turns, so that noise affects all of them alike."""
    best: dict[tuple[str, str], float] = {}
    found: dict[tuple[str, str], float] = {}
    for turn in range(arguments.rounds + 1):
        for one in contenders:
            for setting in one.settings:
                key = one.name, str(setting)
                ids, seconds = timed(lambda one=one, setting=setting: one.search(setting))
                if turn:  # the first turn is for compilers, threads and caches
                    best[key] = min(best.get(key, float("inf")), seconds)
                else:
                    found[key] = float(np.mean([np.isin(row, t).mean() for row, t in zip(ids, truth, strict=True)]))
    for one in contenders:
        one.points = [(found[one.name, str(s)], len(truth) / best[one.name, str(s)], s) for s in one.settings]


def main() -> None:
    data = load_set(arguments.set, arguments.data or os.environ.get("AUTOJACOBIN_DATA"))
    base = np.ascontiguousarray(data.base)
    Q = np.ascontiguousarray(data.queries[: arguments.queries], dtype=np.float32)
    truth = np.asarray(data.truth)[: arguments.queries, :K]
    makers = {"ours": ours, "faiss": faiss_indexes, "usearch": usearch_index, "rabitqlib": rabitqlib_indexes}
    contenders: list[Contender] = []
    for name, make in makers.items():
        wanted = arguments.only is None or name in arguments.only
        if wanted and (name == "ours" or importlib.util.find_spec(name)):
            contenders += make(base, Q)
    measure(contenders, truth)
    print(f"{data.name}, {len(base):,} vectors, {len(Q)} queries, {arguments.threads} thread(s): queries a second")
    print(f"{'':32}{''.join(f'{recall:>22}' for recall in RECALLS)}{'build, s':>10}{'bytes':>8}")
    results = []
    for one in contenders:
        cells = []
        for recall in RECALLS:
            reached = max((point for point in one.points if point[0] >= recall), key=lambda p: p[1], default=None)
            cells.append("–" if reached is None else f"{reached[1]:,.0f} {reached[2]}")
        memory = "" if one.bytes_per_vector is None else f"{one.bytes_per_vector:.0f}"
        print(f"{one.name:32}{''.join(f'{cell:>22}' for cell in cells)}{one.build_seconds:10.1f}{memory:>8}")
        results.append({"name": one.name, "build_seconds": one.build_seconds, "points": one.points})
    if arguments.json:
        Path(arguments.json).write_text(json.dumps({"settings": vars(arguments), "results": results}, indent=1))


if __name__ == "__main__":
    main()
