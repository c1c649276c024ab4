"""The indexes that ``frontier.py`` compares: how each is built and searched, and with what settings.

Ours is asked for a recall, as users ask, and with fixed numbers of probes and candidates. Of the others, these numbers
or the sizes of the search lists of graphs are swept. Parameters of the build are those
that the authors recommend: 16 links and a search list of 200 for HNSW, degree 32 and 200 for SymphonyQG, degree 64 and
128 for svs, two dimensions a block for ScaNN.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

K = 10
PROBES = (4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192)
RECALLS = (0.7, 0.75, 0.8, 0.84, 0.87, 0.88, 0.89, 0.9, 0.92, 0.93, 0.94, 0.95, 0.96, 0.97, 0.98, 0.985, 0.99, 0.995)
SEARCH_SIZES = (10, 12, 15, 20, 25, 30, 40, 50, 60, 80, 100, 120, 160, 200, 300, 400)  # of a graph


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


def probes_of(options: argparse.Namespace) -> list[int]:
    return [probes for probes in PROBES if probes <= options.lists]


def lists_for(base: Any, options: argparse.Namespace) -> int:
    """The lists asked for; fewer for the first small build."""
    return min(options.lists, 1 << (len(base) // 64).bit_length() - 1)


def ours(options: argparse.Namespace) -> list[Contender]:
    """Inverted lists of residual codes, with exact re-ranking."""

    def contender(bits: int, copies: int) -> Contender:
        def build(base: Any) -> Any:
            from autojacobin import Index, PartitionedAutoencoder

            lists = lists_for(base, options)
            n_bits = copies * (bits + (lists - 1).bit_length())
            hasher = PartitionedAutoencoder(n_bits, n_lists=lists, copies=copies, random_state=0)
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

        def search(index: Any, queries: Any, setting: float | tuple[int, int]) -> Any:
            if isinstance(setting, float):
                return index.search(queries, K, recall=setting)[1]
            return index.search(queries, K, probes=setting[0], candidates=setting[1])[1]

        name = f"ours, {bits} bits" + (", two lists" if copies == 2 else "")
        fixed = [(probes, number) for probes in probes_of(options) for number in (20, 30, 40, 60, 80, 120, 200, 300)]
        return Contender(name, build, search, [*RECALLS, *fixed], np.asarray)

    return [contender(bits, copies) for bits in options.bits for copies in options.copies]


def faiss_indexes(options: argparse.Namespace) -> list[Contender]:
    """IVF with PQ fast-scan and refinement, and HNSW over bytes; both keep vectors of bytes as they are."""

    def lists(codes: str) -> Contender:
        def build(base: Any) -> Any:
            import faiss

            faiss.omp_set_num_threads(options.threads)
            number = lists_for(base, options)
            index = faiss.index_factory(base.shape[1], f"IVF{number},{codes}")
            index.train(sample(base, 64 * number))
            kind = faiss.ScalarQuantizer.QT_8bit_direct
            vectors = faiss.IndexScalarQuantizer(base.shape[1], kind) if options.are_bytes else None
            refined = faiss.IndexRefine(index, vectors) if vectors else faiss.IndexRefineFlat(index)
            refined.add(base)
            return refined, index, vectors

        def search(parts: Any, queries: Any, setting: tuple[int, int]) -> Any:
            refined, index, _ = parts
            index.nprobe, refined.k_factor = setting[0], setting[1] / K
            return refined.search(queries, K)[1]

        settings = [(probes, number) for probes in probes_of(options) for number in (20, 40, 80, 160, 300)]
        return Contender(f"FAISS IVF{options.lists},{codes}, refined", build, search, settings)

    def build_graph(base: Any) -> Any:
        import faiss

        faiss.omp_set_num_threads(options.threads)
        kind = faiss.ScalarQuantizer.QT_8bit_direct if options.are_bytes else faiss.ScalarQuantizer.QT_8bit
        graph = faiss.IndexHNSWSQ(base.shape[1], kind, 16)
        graph.hnsw.efConstruction = 200
        graph.train(base)
        graph.add(base)
        return graph

    def search_graph(graph: Any, queries: Any, size: int) -> Any:
        graph.hnsw.efSearch = size
        return graph.search(queries, K)[1]

    graph = Contender("FAISS HNSW16,SQ8, ef 200", build_graph, search_graph, list(SEARCH_SIZES))
    return [
        *(lists(f"PQ{options.width // dimensions}x4fs") for dimensions in (4, 2)),
        graph,
    ]  # 4 bits for 4 or 2 numbers


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

        return Contender(f"rabitqlib IVF, {bits} bits", build, search, probes_of(options))

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

    settings = [(leaves, number) for leaves in probes_of(options) for number in (20, 40, 80, 160, 300)]
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


class Family(NamedTuple):
    """Indexes of one library; ``package`` is its name for pip, ``module`` for import."""

    package: str
    module: str
    contenders: Callable[[argparse.Namespace], list[Contender]]


FAMILIES = {
    "ours": Family("autojacobin", "autojacobin", ours),
    "faiss": Family("faiss-cpu", "faiss", faiss_indexes),
    "hnswlib": Family("hnswlib", "hnswlib", hnswlib_index),
    "usearch": Family("usearch", "usearch", usearch_index),
    "rabitqlib": Family("rabitqlib", "rabitqlib", rabitqlib_indexes),
    "scann": Family("scann", "scann", scann_index),
    "svs": Family("scalable-vs", "svs", svs_indexes),
}
