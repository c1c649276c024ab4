"""The frontier: recall@10 against queries a second of indexes that people use, by the protocol of ann-benchmarks.

    python benchmarks/frontier.py [--data DIR] [--set sift] [--threads 1] [--lists 1024] [--only ours hnswlib ...]
                                  [--single] [--disk] [--json PATH]

Each index lives in a process of its own. It answers all queries in one call, with every one of its settings; the
fastest setting that reaches a recall counts. All are built one after another and then timed in turns, best of several.
Settings that another one clearly beats in the first turn are not timed again. ``--single`` also times one query at a
time, with the fastest setting that reaches .95.

Build time counts training, assignment and encoding. Memory is how much the process grows by the build, in bytes a
vector. It contains the vectors, if the index keeps them in memory; pages of mapped files do not count. Ours re-ranks
with the vectors as they come (bytes for SIFT), in memory or, with ``--disk``, mapped from the folder of the index.

Peers that are not installed are left out: pip install faiss-cpu hnswlib ngt rabitqlib scalable-vs scann usearch.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import importlib.metadata
import importlib.util
import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from autojacobin.datasets import load_set

K = 10
RECALLS = (0.90, 0.95, 0.99)
PROBES = (4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192)
SEARCH_SIZES = (
    10,
    12,
    15,
    20,
    25,
    30,
    40,
    50,
    60,
    80,
    100,
    120,
    160,
    200,
    300,
    400,
)  # of the list of candidates of a graph
WARM_UP = 10_000  # vectors of a first build, which imports, compiles and starts threads


def as_floats(vectors: Any) -> Any:
    return np.ascontiguousarray(vectors, dtype=np.float32)


def as_signed(vectors: Any) -> Any:
    """Bytes from 0 to 255 as signed ones: all distances stay the same."""
    return (np.asarray(vectors).astype(np.int16) - 128).astype(np.int8)


@dataclass
class Contender:
    """How to build an index and search in it.

    ``build(base)`` gives an index; ``search(index, queries, setting)`` the ids of the 10 nearest of each query. Both
    get vectors that went through ``convert``.
    """

    name: str
    build: Callable[[Any], Any]
    search: Callable[[Any, Any, Any], Any]
    settings: list[Any]
    convert: Callable[[Any], Any] = as_floats


def sample(base: Any, size: int) -> Any:
    return base[np.sort(np.random.default_rng(0).permutation(len(base))[:size])]


def lists_for(base: Any, options: argparse.Namespace) -> int:
    """The lists asked for; fewer for the first small build."""
    return min(options.lists, 1 << (len(base) // 64).bit_length() - 1)


def ours(options: argparse.Namespace) -> list[Contender]:
    """Inverted lists of residual codes, with exact re-ranking."""

    def contender(bits: int) -> Contender:
        def build(base: Any) -> Any:
            from autojacobin import Index, PartitionedAutoencoder

            lists = lists_for(base, options)
            hasher = PartitionedAutoencoder(bits + (lists - 1).bit_length(), n_lists=lists, random_state=0)
            hasher.fit(sample(base, 64 * lists))
            if options.disk:
                folder = Path(tempfile.mkdtemp(dir=options.scratch)) / "index"
                Index.create(folder, hasher).add(base)
                index = Index.open(folder)
            else:
                index = Index(hasher)
                index.add(base)
            index.search(base[:1], K, probes=1)  # makes the lists
            return index

        def search(index: Any, queries: Any, setting: tuple[int, int]) -> Any:
            return index.search(queries, K, probes=setting[0], candidates=setting[1])[1]

        settings = [(probes, number) for probes in PROBES for number in (15, 20, 30, 40, 60, 80, 120, 200, 300)]
        return Contender(f"ours, {bits} bits", build, search, settings, np.asarray)

    return [contender(bits) for bits in options.bits]


def faiss_indexes(options: argparse.Namespace) -> list[Contender]:
    """IVF with PQ fast-scan and refinement, and HNSW over bytes."""

    def lists(codes: str) -> Contender:
        def build(base: Any) -> Any:
            import faiss

            faiss.omp_set_num_threads(options.threads)
            number = lists_for(base, options)
            index = faiss.index_factory(base.shape[1], f"IVF{number},{codes}")
            index.train(sample(base, 64 * number))
            refined = faiss.IndexRefineFlat(index)
            refined.add(base)
            return refined, index

        def search(both: Any, queries: Any, setting: tuple[int, int]) -> Any:
            refined, index = both
            index.nprobe, refined.k_factor = setting[0], setting[1] / K
            return refined.search(queries, K)[1]

        settings = [(probes, number) for probes in PROBES for number in (20, 40, 80, 160, 300)]
        return Contender(f"FAISS IVF{options.lists},{codes}, refined", build, search, settings)

    def build_graph(base: Any) -> Any:
        import faiss

        faiss.omp_set_num_threads(options.threads)
        graph = faiss.index_factory(base.shape[1], "HNSW16,SQ8")
        graph.train(base)
        graph.add(base)
        return graph

    def search_graph(graph: Any, queries: Any, size: int) -> Any:
        graph.hnsw.efSearch = size
        return graph.search(queries, K)[1]

    graph = Contender("FAISS HNSW16,SQ8", build_graph, search_graph, list(SEARCH_SIZES))
    return [*(lists(f"PQ{options.width // dimensions}x4fs") for dimensions in (4, 2)), graph]  # 4 bits for so many


def hnswlib_index(options: argparse.Namespace) -> list[Contender]:
    """The graph of its authors, over floats, with the parameters of its documentation."""

    def build(base: Any) -> Any:
        import hnswlib

        graph = hnswlib.Index(space="l2", dim=base.shape[1])
        graph.init_index(max_elements=len(base), M=16, ef_construction=200)
        graph.add_items(base, num_threads=options.threads)
        return graph

    def search(graph: Any, queries: Any, size: int) -> Any:
        graph.set_ef(size)
        return graph.knn_query(queries, K, num_threads=options.threads)[0]

    return [Contender("hnswlib, M 16, ef 200", build, search, list(SEARCH_SIZES))]


def usearch_index(options: argparse.Namespace) -> list[Contender]:
    """A graph over int8; the bytes of SIFT are shifted to its range."""
    if not options.are_bytes:
        return []

    def build(base: Any) -> Any:
        from usearch.index import Index as Graph

        graph = Graph(ndim=base.shape[1], metric="l2sq", dtype="i8", connectivity=16, expansion_add=200)
        graph.add(np.arange(len(base)), base, threads=options.threads)
        return graph

    def search(graph: Any, queries: Any, size: int) -> Any:
        graph.expansion_search = size
        return graph.search(queries, K, threads=options.threads).keys.reshape(len(queries), -1)

    return [Contender("usearch, i8", build, search, list(SEARCH_SIZES), as_signed)]


def rabitqlib_indexes(options: argparse.Namespace) -> list[Contender]:
    """IVF at 5 and 7 bits, and SymphonyQG."""

    def lists(bits: int) -> Contender:
        def build(base: Any) -> Any:
            import rabitqlib

            number = lists_for(base, options)
            exact = rabitqlib.FinalAssignmentMode.Exact
            means = rabitqlib.RaBitQKMeans(base.shape[1], number, num_threads=options.threads, final_assignment=exact)
            means.train(base)
            index = rabitqlib.IvfIndex(base.shape[1], len(base), number, bits, "l2")
            index.build(base, means.centroids, means.assignments, num_threads=options.threads)
            return index

        return Contender(f"rabitqlib IVF, {bits} bits", build, search, list(PROBES))

    def search(index: Any, queries: Any, setting: int) -> Any:
        return index.search(queries, K, setting, num_threads=options.threads)[0]

    def build_graph(base: Any) -> Any:
        import rabitqlib

        graph = rabitqlib.SymqgIndex(base.shape[1], 32)
        graph.build(base, 200, num_threads=options.threads)
        return graph

    return [lists(5), lists(7), Contender("rabitqlib SymQG, degree 32", build_graph, search, list(SEARCH_SIZES))]


def scann_index(options: argparse.Namespace) -> list[Contender]:
    """Partitions, asymmetric hashing with two dimensions a block, and re-scoring, as its guide recommends."""

    def contender(name: str, leaves_for: Callable[[Any], int]) -> Contender:
        def build(base: Any) -> Any:
            import scann

            leaves = leaves_for(base)
            trained_on = min(len(base), 256 * leaves)
            builder = scann.scann_ops_pybind.builder(base, K, "squared_l2").set_n_training_threads(options.threads)
            builder = builder.tree(leaves, 1, training_sample_size=trained_on, quantize_centroids=True)
            searcher = builder.score_ah(2).reorder(100).build()
            searcher.set_num_threads(options.threads)
            return searcher

        return Contender(name, build, search, settings)

    def search(searcher: Any, queries: Any, setting: tuple[int, int]) -> Any:
        if len(queries) == 1:
            return searcher.search(queries[0], K, setting[1], setting[0])[0][None]
        call = searcher.search_batched if options.threads == 1 else searcher.search_batched_parallel
        return call(queries, K, setting[1], setting[0])[0]

    settings = [(leaves, number) for leaves in PROBES for number in (20, 40, 80, 160, 300)]
    return [
        contender("ScaNN, √n leaves", lambda base: round(len(base) ** 0.5)),
        contender(f"ScaNN, {options.lists} leaves", lambda base: lists_for(base, options)),
    ]


def svs_indexes(options: argparse.Namespace) -> list[Contender]:
    """Vamana graphs over LVQ: one level of 8 bits, recommended below 200 dimensions, and two of 4 and 8."""

    def contender(primary: int, residual: int) -> Contender:
        def build(base: Any) -> Any:
            import svs

            svs.logging.set_level(svs.logging.level.warn)
            with tempfile.TemporaryDirectory(dir=options.scratch) as folder:
                svs.write_vecs(base, f"{folder}/base.fvecs")
                vectors = svs.VectorDataLoader(f"{folder}/base.fvecs", svs.DataType.float32, dims=base.shape[1])
                loader = svs.LVQLoader(vectors, primary=primary, residual=residual)
                parameters = svs.VamanaBuildParameters(alpha=1.2, graph_max_degree=64, window_size=128)
                return svs.Vamana.build(parameters, loader, svs.DistanceType.L2, num_threads=options.threads)

        def search(graph: Any, queries: Any, size: int) -> Any:
            graph.search_window_size = size
            return graph.search(queries, K)[0]

        name = f"svs LVQ{primary}x{residual}" if residual else f"svs LVQ{primary}"
        return Contender(f"{name}, degree 64", build, search, list(SEARCH_SIZES))

    return [contender(8, 0), contender(4, 8)]


FAMILIES: dict[str, tuple[str | None, Callable[[argparse.Namespace], list[Contender]]]] = {  # module, contenders
    "ours": (None, ours),
    "faiss": ("faiss", faiss_indexes),
    "hnswlib": ("hnswlib", hnswlib_index),
    "usearch": ("usearch", usearch_index),
    "rabitqlib": ("rabitqlib", rabitqlib_indexes),
    "scann": ("scann", scann_index),
    "svs": ("svs", svs_indexes),
}
PACKAGES = ("faiss-cpu", "hnswlib", "ngt", "rabitqlib", "scalable-vs", "scann", "usearch")


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    start = time.perf_counter()
    result = call()
    return result, time.perf_counter() - start


def memory() -> int:
    """Bytes of memory that this process holds, without pages of mapped files."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # hands freed memory back
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("RssAnon:"))


def load(options: argparse.Namespace) -> tuple[Any, Any, Any]:
    data = load_set(options.set, options.data)
    truth = np.asarray(data.truth)[: options.queries, :K]
    return np.ascontiguousarray(data.base), np.asarray(data.queries[: options.queries]), truth


def serve(pipe: Any, family: str, name: str, options: argparse.Namespace) -> None:
    """Build an index in this process, then answer what the parent asks for."""
    base, queries, _ = load(options)
    contender = next(one for one in FAMILIES[family][1](options) if one.name == name)
    queries = contender.convert(queries)
    warm = contender.build(contender.convert(base[:WARM_UP]))
    contender.search(warm, queries, contender.settings[0])
    del warm
    before = memory()
    converted = [contender.convert(base)]
    index, seconds = timed(lambda: contender.build(converted.pop()))  # the index alone decides what stays in memory
    contender.search(index, queries, contender.settings[0])
    pipe.send((seconds, (memory() - before) / len(base)))
    while (asked := pipe.recv()) is not None:
        what, setting = asked
        if what == "all":
            pipe.send(timed(lambda setting=setting: contender.search(index, queries, setting)))
        else:
            singles = [queries[number : number + 1] for number in range(len(queries))]
            pipe.send([timed(lambda one=one: contender.search(index, one, setting))[1] for one in singles])  # noqa: B023


@dataclass
class Entrant:
    """A contender in its process, and what was measured."""

    name: str
    settings: list[Any]
    process: Any
    pipe: Any
    build_seconds: float = 0.0
    bytes_per_vector: float = 0.0
    points: dict[Any, tuple[float, float]] = field(default_factory=dict)  # of a setting: recall and seconds
    single: tuple[float, float] | None = None

    def ask(self, what: str, setting: Any) -> Any:
        self.pipe.send((what, setting))
        return self.pipe.recv()

    def fastest(self, recall: float) -> Any:
        reached = [setting for setting in self.points if self.points[setting][0] >= recall]
        return min(reached, key=lambda setting: self.points[setting][1], default=None)

    def promising(self) -> list[Any]:
        """Settings that no other beats by more than the noise of one measurement."""
        lowest = min(RECALLS)
        return [
            setting
            for setting, (recall, seconds) in self.points.items()
            if recall >= lowest and not any(r >= recall and s < 0.6 * seconds for r, s in self.points.values())
        ]


def enter(options: argparse.Namespace) -> list[Entrant]:
    """Build all indexes, one after another."""
    context = multiprocessing.get_context("spawn")
    entrants = []
    for family, (module, make) in FAMILIES.items():
        if (options.only and family not in options.only) or (module and not importlib.util.find_spec(module)):
            continue
        for contender in make(options):
            pipe, theirs = context.Pipe()
            process = context.Process(target=serve, args=(theirs, family, contender.name, options), daemon=True)
            process.start()
            theirs.close()
            entrant = Entrant(contender.name, contender.settings, process, pipe)
            try:
                entrant.build_seconds, entrant.bytes_per_vector = pipe.recv()
                entrants.append(entrant)
                print(f"built {contender.name} in {entrant.build_seconds:.1f} s", file=sys.stderr, flush=True)
            except EOFError:  # the process printed why
                print(f"{contender.name} could not be built and is left out", file=sys.stderr, flush=True)
    return entrants


def measure(entrants: list[Entrant], truth: Any, options: argparse.Namespace) -> None:
    """Time settings in turns, so that noise affects all of them alike."""
    for one in entrants:
        for setting in one.settings:
            ids, seconds = one.ask("all", setting)
            found = (np.asarray(ids)[:, :, None] == truth[:, None, :]).any(2).sum() / truth.size
            one.points[setting] = float(found), seconds
    for _ in range(options.rounds):
        for one in entrants:
            for setting in one.promising():
                _, seconds = one.ask("all", setting)
                recall, best = one.points[setting]
                one.points[setting] = recall, min(best, seconds)
    for one in entrants if options.single else ():
        if (setting := one.fastest(0.95)) is not None:
            times = np.array([one.ask("single", setting) for _ in range(options.rounds)]).min(axis=0)
            one.single = float(np.median(times) * 1e6), float(np.quantile(times, 0.99) * 1e6)


def report(entrants: list[Entrant], n_queries: int, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Print the table, and give it as plain data."""
    single = f"{'median, µs':>12}{'p99, µs':>10}" if options.single else ""
    print(f"{'':34}{''.join(f'{recall:>22}' for recall in RECALLS)}{'build, s':>10}{'bytes':>8}{single}")
    results = []
    for one in entrants:
        cells = []
        for recall in RECALLS:
            setting = one.fastest(recall)
            cells.append("–" if setting is None else f"{n_queries / one.points[setting][1]:,.0f} {setting}")
        last = "".join(f"{value:{width},.0f}" for value, width in zip(one.single or (), (12, 10), strict=False))
        row = "".join(f"{cell:>22}" for cell in cells)
        print(f"{one.name:34}{row}{one.build_seconds:10.1f}{one.bytes_per_vector:8.0f}{last}")
        points = [(recall, n_queries / seconds, setting) for setting, (recall, seconds) in one.points.items()]
        results.append({
            "name": one.name, "build_seconds": one.build_seconds, "bytes_per_vector": one.bytes_per_vector,
            "points": points, "single_us": one.single,
        })  # fmt: skip
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", metavar="DIR", default=os.environ.get("AUTOJACOBIN_DATA"), help="folder of sets")
    parser.add_argument("--set", default="sift")
    parser.add_argument("--queries", type=int, default=2000, help="the most queries to use")
    parser.add_argument("--lists", type=int, default=1024)
    parser.add_argument("--bits", type=int, nargs="+", default=[64, 128], help="of our residual codes")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=FAMILIES)
    parser.add_argument("--single", action="store_true", help="time one query at a time as well")
    parser.add_argument("--disk", action="store_true", help="keep our index in a folder, with mapped vectors")
    parser.add_argument("--json", metavar="PATH")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(options.threads)  # for the processes of the indexes
    os.environ["OMP_WAIT_POLICY"] = "passive"  # an index that waits for its turn must not spin
    with tempfile.TemporaryDirectory() as options.scratch:
        base, queries, truth = load(options)
        options.width, options.are_bytes = base.shape[1], base.dtype == np.uint8
        entrants = enter(options)
        measure(entrants, truth, options)
        versions = {name: importlib.metadata.version(name) for name in PACKAGES if is_installed(name)}
        print(f"{options.set}, {len(base):,} vectors, {len(queries)} queries, {options.threads} thread(s)")
        print(", ".join(f"{name} {version}" for name, version in versions.items()))
        results = report(entrants, len(queries), options)
        for one in entrants:
            one.pipe.send(None)
            one.process.join()
    if options.json:
        del options.scratch
        content = {"settings": vars(options), "versions": versions, "results": results}
        Path(options.json).write_text(json.dumps(content, indent=1, default=str))


def is_installed(package: str) -> bool:
    try:
        importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


if __name__ == "__main__":
    main()
