"""The frontier: recall@10 against queries a second of indexes that people use, by the protocol of ann-benchmarks.

    python benchmarks/frontier.py [--data DIR] [--set sift] [--threads 1] [--lists 1024] [--only ours hnswlib ...]
                                  [--match TEXT] [--single] [--disk] [--json PATH]

Each index lives in a process of its own. It answers all queries in one call, with every one of its settings; the
fastest setting that reaches a recall counts. All are built one after another and then timed in turns, best of several.
Settings that another one clearly beats in the first turn are not timed again. ``--single`` also times one query at a
time, with the fastest setting that reaches .95.

Build time counts training, assignment and encoding. Memory is how much the process grows by the build, in bytes a
vector. It contains the vectors, if the index keeps them in memory; pages of mapped files do not count. Ours re-ranks
with the vectors as they come (bytes for SIFT), in memory or, with ``--disk``, mapped from the folder of the index.

Peers that are not installed are left out: pip install faiss-cpu hnswlib rabitqlib scalable-vs scann usearch.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import importlib.metadata
import importlib.util
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
from contenders import FAMILIES, K
from timing import write_results

from autojacobin.datasets import load_set

RECALLS = (0.90, 0.95, 0.99)
WARM_UP = 10_000  # vectors of a first build, which imports, compiles and starts threads


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
    return np.ascontiguousarray(data.base), np.asarray(data.queries[: options.queries], dtype=np.float32), truth


def serve(pipe: Any, family: str, name: str, options: argparse.Namespace) -> None:
    """Build an index in this process, then answer what the parent asks for."""
    base, queries, _ = load(options)
    contender = next(one for one in FAMILIES[family].contenders(options) if one.name == name)
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


def chosen_families(options: argparse.Namespace) -> list[str]:
    wanted = options.only or FAMILIES
    return [family for family in wanted if importlib.util.find_spec(FAMILIES[family].module)]


def enter(options: argparse.Namespace) -> list[Entrant]:
    """Build all indexes, one after another."""
    context = multiprocessing.get_context("spawn")
    entrants = []
    for family in chosen_families(options):
        for contender in FAMILIES[family].contenders(options):
            if options.match not in contender.name:
                continue
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
            ids, first = one.ask("all", setting)
            seconds = min(first, one.ask("all", setting)[1])  # a first call may have to wake up threads
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
    parser.add_argument("--copies", type=int, nargs="+", default=[1, 2], help="lists of each of our vectors")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=FAMILIES)
    parser.add_argument("--match", default="", metavar="TEXT", help="only indexes whose names contain this")
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
        packages = [FAMILIES[family].package for family in chosen_families(options)]
        versions = {package: importlib.metadata.version(package) for package in packages}
        print(f"{options.set}, {len(base):,} vectors, {len(queries)} queries, {options.threads} thread(s)")
        print(", ".join(f"{name} {version}" for name, version in versions.items()))
        results = report(entrants, len(queries), options)
        for one in entrants:
            one.pipe.send(None)
            one.process.join()
    if options.json:
        write_results(options.json, results, options, versions)


if __name__ == "__main__":
    main()
