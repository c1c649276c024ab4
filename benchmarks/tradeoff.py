"""Speed against recall: ours and its peers with 8, 16 and 24 bytes per vector in memory, each re-ranked exactly.

    python benchmarks/tradeoff.py [--data DIR] [--sets sift ...] [--method ITQ] [--peers PQ RQ ...] [--threads 2]
                                  [--clock cpu] [--quick] [--json PATH]

Every contender searches all its codes for some candidates, of which the vectors themselves choose the 10 nearest. How
many candidates a recall takes is read off one deep search; then all contenders are timed at these numbers in turns,
best of several. All learn from the same points and use the same number of threads. Where ours has been timed with fewer
bytes already, these shorter codes compete again beside the others. "alone" is the recall@10 of the codes without
re-ranking. The bytes are all that is held in memory for a vector, but for its id and the vector itself. Without
``--data`` or ``AUTOJACOBIN_DATA`` the built-in photos are searched. Install the peers with: pip install faiss-cpu
rabitqlib turbovec; the last two are left out where they are missing.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--data", metavar="DIR", help="folder of sets (default: AUTOJACOBIN_DATA, else the photos)")
parser.add_argument("--sets", nargs="+", metavar="NAME", help="only these of them")
parser.add_argument("--method", default="ITQ", help="the hasher of ours beside the binary auto-encoder, such as LSH")
parser.add_argument("--peers", nargs="*", metavar="NAME", help="only these of the peers, such as PQ and RQ")
parser.add_argument("--threads", type=int, default=2)
parser.add_argument(
    "--clock", choices=("wall", "cpu"), default="wall", help="on a busy machine: cpu, with --threads 1 for all"
)
parser.add_argument("--quick", action="store_true", help="200 queries, 8 bytes, one round: about a minute a set")
parser.add_argument("--rounds", type=int, default=3)
parser.add_argument("--bytes", type=int, nargs="+", default=[8, 16, 24])
parser.add_argument("--queries", type=int, default=1000, help="the most queries to use")
parser.add_argument("--json", metavar="PATH")
arguments = parser.parse_args()
os.environ["OMP_NUM_THREADS"] = str(arguments.threads)  # before any library reads it

import importlib.util  # noqa: E402

import faiss  # noqa: E402
import numpy as np  # noqa: E402
from timing import write_results  # noqa: E402
from vectors import real_sets  # noqa: E402

import autojacobin  # noqa: E402
from autojacobin import Index  # noqa: E402
from autojacobin.datasets import VectorSet, load_set  # noqa: E402
from autojacobin.evaluation import ground_truth  # noqa: E402
from autojacobin.search import rerank  # noqa: E402
from autojacobin.search.distances import DISTANCES  # noqa: E402

K = 10
BYTES = [8] if arguments.quick else arguments.bytes
RECALLS = (0.9, 0.95, 0.99)
NOW = time.perf_counter if arguments.clock == "wall" else time.process_time
ROUNDS = 1 if arguments.quick else arguments.rounds
MOST_QUERIES = 200 if arguments.quick else arguments.queries
MOST_TRAINING = 10_000
DEPTHS = (512, 2048, 8192)
OURS = ("ours, decoded", "ours, asymmetric", "ours, symmetric")
GOALS = {"PQ fast-scan": 4, "PQ": 15, "RQ": 15, "LSQ": 15}  # times as many queries a second, at 0.95 and 0.99

Ids = Any


@dataclass
class Contender:
    """One way to search: ``deep(c)`` gives the first c candidates, ``search(c)`` the 10 nearest of them."""

    name: str
    bytes: int
    train_seconds: float
    encoded_per_second: float
    deep: Callable[[int], Ids]
    search: Callable[[int], Ids]
    alone: float = 0.0
    points: list[dict[str, float]] = field(default_factory=list)


def ours(data: VectorSet, queries: Any, budget: int) -> Iterator[Contender]:
    """An index over codes of the binary auto-encoder; one over codes of the other method by both distances."""
    yield from indexed(autojacobin.BinaryAutoencoder, 8 * budget, data, queries, {"ours, decoded": "decoded"})
    kind = getattr(autojacobin, arguments.method)
    n_bits = 8 * budget if arguments.method == "LSH" else min(8 * budget, data.base.shape[1])
    distances = {"ours, asymmetric": "asymmetric", "ours, symmetric": "hamming"}
    yield from indexed(kind, n_bits, data, queries, distances)


def indexed(kind: Any, n_bits: int, data: VectorSet, queries: Any, distances: dict[str, str]) -> Iterator[Contender]:
    """One index, searched by some distances, and FAISS over the same codes where Hamming is one of them."""
    hasher, train_seconds = timed(lambda: kind(n_bits, random_state=0).fit(data.train))
    index = Index(hasher)
    _, seconds = timed(lambda: index.add(data.base))
    rate, used = len(data.base) / seconds, -(-n_bits // 8)
    base = hasher.encode(data.base)

    def deep(distance: str) -> Callable[[int], Ids]:
        entry = DISTANCES[distance]
        return lambda c: entry.topk(entry.encode(hasher, queries), base, c)[1]

    for name, distance in distances.items():
        yield Contender(name, used, train_seconds, rate, deep(distance), searcher(index, queries, distance))
    if "hamming" not in distances.values():
        return
    peer = faiss.IndexBinaryFlat(8 * used)
    peer.add(base.packed)

    def flat(c: int) -> Ids:
        return peer.search(hasher.encode(queries).packed, c)[1]

    # deep with ours, for the order is the same but for ties, and the heaps of FAISS are slow with thousands
    yield Contender(
        "IndexBinaryFlat",
        used,
        train_seconds,
        rate,
        deep("hamming"),
        lambda c: rerank(queries, flat(c), data.base, K)[1],
    )


def shorter(mine: list[Contender], budget: int) -> list[Contender]:
    """Ours with fewer bytes than the budget, to be timed again with the others of the budget."""
    named = {f"{one.name}, {one.bytes} bytes": one for one in mine if one.name in OURS and one.bytes < budget}
    return [replace(one, name=name, points=[]) for name, one in named.items()]


def searcher(index: Index, queries: Any, distance: Any) -> Callable[[int], Ids]:
    return lambda c: index.search(queries, K, candidates=c, distance=distance)[1]


def peers(data: VectorSet, queries: Any, budget: int) -> Iterator[Contender]:
    """The quantisers that fit the budget, each with its own refine stage over the same vectors where it has one."""
    width = data.base.shape[1]
    whole = -(-width // budget) * budget
    recipes = {
        # padded where the width cannot be divided; each group of numbers has a code of 8 or 4 bits
        "PQ": (f"PQ{budget}", whole),
        "PQ fast-scan": (f"PQ{2 * budget}x4fs", -(-width // (2 * budget)) * 2 * budget),
        "OPQ": (f"OPQ{budget},PQ{budget}", whole),
        "RQ": (f"RQ{budget}x8", width),
        "LSQ": (f"LSQ{budget}x8", width),
    }
    if 8 * budget <= width:
        recipes["ITQ-LSH"] = (f"ITQ{8 * budget},LSH", width)
    kept = 8 * (budget - 8)  # RaBitQ keeps a bit a number and two floats
    if 128 <= kept <= width:
        front = "" if kept == width else f"PCA{kept},"
        recipes["RaBitQ"] = (f"{front}RaBitQ", width)
        recipes["RaBitQ, rotated"] = (f"{front}RR{kept},RaBitQ", width)
        recipes["RaBitQ fast-scan, rotated"] = (f"{front}RR{kept},RaBitQfs", width)
    for name, (recipe, padded) in recipes.items():
        if arguments.peers is not None and name not in arguments.peers:
            continue
        print(f"{data.name}, {budget} bytes: {name}", file=sys.stderr, flush=True)
        base, asked, train = (
            np.pad(np.asarray(part, dtype=np.float32), ((0, 0), (0, padded - width)))
            for part in (data.base, queries, data.train)
        )
        exact = flat_bytes(base) if data.base.dtype == np.uint8 else None
        yield refined(name, faiss.index_factory(padded, recipe), budget, base, asked, train, exact)
    for name, peer in (("rabitqlib", rabitqlib_peer), ("turbovec", turbovec_peer)):
        if importlib.util.find_spec(name) and (arguments.peers is None or name in arguments.peers):
            print(f"{data.name}, {budget} bytes: {name}", file=sys.stderr, flush=True)
            yield from peer(data, queries, budget)


def reduced(data: VectorSet, queries: Any, width: int) -> tuple[Any, Any, float]:
    """Base and queries as float32 in the ``width`` principal directions, and the seconds that finding them took."""
    base, asked, train = (np.asarray(part, dtype=np.float32) for part in (data.base, queries, data.train))
    if width >= base.shape[1]:
        return base, asked, 0.0
    transform = faiss.PCAMatrix(base.shape[1], width)
    _, seconds = timed(lambda: transform.train(train))
    return transform.apply(base), transform.apply(asked), seconds


def rabitqlib_peer(data: VectorSet, queries: Any, budget: int) -> Iterator[Contender]:
    """RaBitQ by its authors: one list, a bit a number, and the factors of each code (12 bytes)."""
    import rabitqlib

    width = min(data.base.shape[1], 8 * (budget - 12)) // 64 * 64
    if width < 64:
        return
    base, asked, seconds = reduced(data, queries, width)
    centre, lists = base.mean(axis=0, keepdims=True), np.zeros(len(base), dtype=np.uint32)
    index = rabitqlib.IvfIndex(dim=width, max_elements=len(base), num_clusters=1, nbits=1, metric="l2")
    _, built = timed(lambda: index.build(base, centre, lists))

    def deep(c: int) -> Ids:
        return index.search(asked, k=c, nprobe=1)[0].astype(np.int64)

    yield Contender(
        "rabitqlib",
        width // 8 + 12,
        seconds,
        len(base) / built,
        deep,
        lambda c: rerank(queries, deep(c), data.base, K)[1],
    )


def turbovec_peer(data: VectorSet, queries: Any, budget: int) -> Iterator[Contender]:
    """Turbovec at two bits a number; by inner products, so only where all vectors are nearly of one length."""
    import turbovec

    width = min(data.base.shape[1], 4 * (budget - 4)) // 8 * 8  # and a float for the length
    lengths = np.linalg.norm(np.asarray(data.base[:1000], dtype=np.float32), axis=1)
    if width < 16 or lengths.std() > 0.05 * lengths.mean():
        return
    base, asked, seconds = reduced(data, queries, width)
    index = turbovec.TurboQuantIndex(dim=width, bit_width=2)
    _, added = timed(lambda: index.add(np.ascontiguousarray(base)))

    def deep(c: int) -> Ids:
        return index.search(np.ascontiguousarray(asked), k=c)[1]

    yield Contender(
        "turbovec",
        width // 4 + 4,
        seconds,
        len(base) / added,
        deep,
        lambda c: rerank(queries, deep(c), data.base, K)[1],
    )


def flat_bytes(base: Any) -> Any:
    """Vectors of bytes as they are, with which FAISS refines a little faster than with float32."""
    exact = faiss.IndexScalarQuantizer(base.shape[1], faiss.ScalarQuantizer.QT_8bit_direct)
    exact.train(base[:1])
    exact.add(base)
    return exact


def refined(name: str, index: Any, budget: int, base: Any, asked: Any, train: Any, exact: Any) -> Contender:
    _, train_seconds = timed(lambda: index.train(train))
    _, seconds = timed(lambda: index.add(base))
    whole = faiss.IndexRefine(index, exact) if exact else faiss.IndexRefineFlat(index, faiss.swig_ptr(base))

    def search(c: int) -> Ids:
        whole.k_factor = c / K
        return whole.search(asked, K)[1]

    return Contender(name, budget, train_seconds, len(base) / seconds, lambda c: index.search(asked, c)[1], search)


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    start = NOW()
    result = call()
    return result, NOW() - start


def candidates_for(contender: Contender, truth: Ids, n: int) -> dict[float, int]:
    """Fewest candidates with each recall, for as many recalls as the deepest search reaches."""
    found: dict[float, int] = {}
    for depth in DEPTHS:
        near = contender.deep(min(depth, n))
        contender.alone = float(np.mean([np.isin(row[:K], true).mean() for row, true in zip(near, truth, strict=True)]))
        rows = zip(near, truth, strict=True)
        places = np.sort(np.concatenate([np.flatnonzero(np.isin(row, true)) for row, true in rows]))
        for recall in RECALLS:
            rank = int(np.ceil(recall * truth.size)) - 1
            if rank < len(places):
                found.setdefault(recall, max(K, int(places[rank]) + 1))
        if len(found) == len(RECALLS) or depth >= n:
            break
    return found


def measure(contenders: list[Contender], truth: Ids, n: int) -> None:
    """Time every contender at every recall, in turns, so that noise affects all of them alike."""
    wanted = [(contender, *pair) for contender in contenders for pair in candidates_for(contender, truth, n).items()]
    best: dict[tuple[str, float], tuple[float, Ids]] = {}
    for contender, _, c in wanted:
        contender.search(c)  # kernels are loaded and threads started; which ones depends on the number
    for _ in range(ROUNDS):
        for contender, recall, c in wanted:
            ids, seconds = timed(lambda contender=contender, c=c: contender.search(c))
            key = (contender.name, recall)
            best[key] = min(best.get(key, (float("inf"), None)), (seconds, ids), key=lambda pair: pair[0])
    for contender, recall, c in wanted:
        seconds, ids = best[contender.name, recall]
        seen = np.mean([len(np.intersect1d(row, true)) / K for row, true in zip(ids, truth, strict=True)])
        rate = len(truth) / seconds
        contender.points.append({"wanted": recall, "recall": float(seen), "candidates": c, "per_second": rate})


def at(contender: Contender, recall: float) -> float:
    return next((point["per_second"] for point in contender.points if point["wanted"] == recall), 0.0)


def report(name: str, budget: int, contenders: list[Contender]) -> dict[str, Any]:
    print(f"\n{name}, {budget} bytes a vector: queries a second (candidates) at a recall@10 of")
    print(f"{'':28}{''.join(f'{recall:>18}' for recall in RECALLS)}{'alone':>8}{'training':>12}{'encoded/s':>12}")
    for contender in contenders:
        points = {point["wanted"]: point for point in contender.points}
        cells = [
            f"{points[r]['per_second']:,.0f} ({points[r]['candidates']:,.0f})" if r in points else "–" for r in RECALLS
        ]
        row = f"{contender.name:28}{''.join(f'{cell:>18}' for cell in cells)}"
        alone = f"{contender.alone:8.3f}"
        print(f"{row}{alone}{contender.train_seconds:10.2f} s{contender.encoded_per_second:12,.0f}")
    ratios = []
    for recall in (0.95, 0.99):
        mine = max((one for one in contenders if one.name in OURS), key=lambda one: at(one, recall))
        others = sorted((one for one in contenders if not one.name.startswith(OURS)), key=lambda one: -at(one, recall))
        for peer in [one for one in others if at(one, recall) and (one is others[0] or one.name in GOALS)]:
            ratio, training = at(mine, recall) / at(peer, recall), peer.train_seconds / mine.train_seconds
            wanted = GOALS.get(peer.name, 2)
            ratios.append({"recall": recall, "ours": mine.name, "peer": peer.name, "ratio": ratio, "wanted": wanted})
            times = f"{ratio:.1f} times {peer.name} (wanted {wanted})"
            print(f"at {recall}: {mine.name} {times}, training {training:.1f} times faster")
    return {"set": name, "bytes": budget, "ratios": ratios, "contenders": [as_plain(one) for one in contenders]}


def as_plain(contender: Contender) -> dict[str, Any]:
    return {
        "name": contender.name,
        "bytes": contender.bytes,
        "train_seconds": contender.train_seconds,
        "encoded_per_second": contender.encoded_per_second,
        "alone": contender.alone,
        "points": contender.points,
    }


def sets() -> Iterator[tuple[VectorSet, Ids]]:
    if arguments.data is None and "AUTOJACOBIN_DATA" not in os.environ:
        photos = load_set("photos")
        yield photos, ground_truth(photos.base, photos.queries, K)
        return
    for data, truth in real_sets(arguments.data):
        if not arguments.sets or data.name in arguments.sets:
            yield data, truth


def main() -> None:
    faiss.omp_set_num_threads(arguments.threads)
    results = []
    for data, all_truth in sets():
        chosen = np.sort(np.random.default_rng(0).permutation(len(data.queries))[:MOST_QUERIES])
        queries, truth = np.asarray(data.queries)[chosen], np.asarray(all_truth)[chosen, :K]
        train = np.asarray(data.train)[np.random.default_rng(0).permutation(len(data.train))[:MOST_TRAINING]]
        # float16 is no type of FAISS; all other vectors are kept as they come
        data = VectorSet(data.name, data.description, train, np.asarray(data.base), queries)
        mine: list[Contender] = []
        for budget in BYTES:
            new = list(ours(data, queries, budget))
            contenders = [*new, *shorter(mine, new[0].bytes), *peers(data, queries, budget)]
            mine += new
            measure(contenders, truth, len(data.base))
            results.append(report(data.name, budget, contenders))
            if arguments.json:  # after every part, for the whole takes long
                write_results(arguments.json, results, arguments, {"faiss": faiss.__version__})


if __name__ == "__main__":
    main()
