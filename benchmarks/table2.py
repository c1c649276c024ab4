"""Table II of the paper on other data: m-Recall of its methods over seeds, and in how many rows each is the best.

    python benchmarks/table2.py --data DIR --cells FOLDER --jobs 16 --json benchmarks/results/table2.json
    python benchmarks/table2.py --data DIR --cells FOLDER --sets sift --bits 64 --seeds 2 --methods ITQ start

A row is a number k of true neighbours and a length of codes: k = 1, 5, 10, 50, 100, and 64, 96, 128 bits, or 64, 128,
256 from 256 dimensions on. Methods learn from 10,000 training points, or from all of a smaller set, and m-Recall
averages Recall@i over i = 1 … K. K is one in a hundred of the base, as 10,000 are of the paper's million.

A cell is a set, a length, a method and a seed. Each writes one file to FOLDER, so a run that was stopped goes on,
several machines can share the cells, and the results are made of all cells that are there. A row counts once every
method has it, by the seeds that all of them have.

*Best* is the highest mean, as in the paper. *Not behind*: a paired test of the difference to the best does not reject
that it is zero, at 5 % after Holm's correction for the rows of the set. The variance of the mean difference is the one
over queries plus the one over seeds less that of single differences, which is in both; degrees of freedom are
Satterthwaite's.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import os
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy
from timing import write_results

from autojacobin import AutoBin, AutoJacoBin
from autojacobin.core.files import write_atomically
from autojacobin.datasets import load_set
from autojacobin.evaluation import ground_truth, measure
from autojacobin.hashers import Hasher, find_method
from autojacobin.search import hamming_topk

KS = (1, 5, 10, 50, 100)
SETS = ("sift", "gist", "text", "photos")
TRAINED, RETRIEVED = 10_000, 100  # most training points; one in 100 of the base is retrieved
PUBLISHED, OURS, ABLATION = "as published", "from ITQ", "from ITQ, w = 0"
PAPERS = ("LSH", "SpectralHashing", "ITQ", "OKMeans", "NOKMeans")
METHODS = (*PAPERS, "start", "AutoBin1", PUBLISHED, OURS, ABLATION)
COMPARED = METHODS[:-1]  # the last one only says what the Jacobian term adds
LEVEL = 0.05
COST = {PUBLISHED: 20, OURS: 10}  # rough, beside 1 for the others: the longest cells begin first


class Cell(NamedTuple):
    """What is run at once."""

    data: str
    bits: int
    method: str
    seed: int

    @property
    def file(self) -> str:
        return "-".join(map(str, self)).replace(" ", "_") + ".npz"


def hasher_for(method: str, bits: int, seed: int) -> Hasher:
    if method == "start":  # of the method as published: with the same seed, the same rotation
        return AutoBin(bits, n_epochs=0, random_state=seed)
    if method == PUBLISHED:
        return AutoJacoBin.as_published(bits, random_state=seed)
    if method in (OURS, ABLATION):
        given = {"jacobian_weight": 0.0} if method == ABLATION else {}
        return AutoJacoBin.from_itq(bits, random_state=seed, **given)
    return find_method(method).make(bits, seed=seed)


@cache
def loaded(name: str, folder: str | None) -> tuple[Any, Any, Any, Any]:
    """Training points, base, queries and their true neighbours."""
    data = load_set(name, folder if folder and (Path(folder) / name).is_dir() else None)
    train, base, queries = (np.asarray(part) for part in (data.train, data.base, data.queries))
    if len(train) > TRAINED:
        train = train[np.sort(np.random.default_rng(0).choice(len(train), TRAINED, replace=False))]
    truth = data.truth
    if truth is None or truth.shape[1] < max(KS):
        truth = ground_truth(base, queries, max(KS))
    return train, base, queries, np.asarray(truth)[:, : max(KS)]


def run(cell: Cell, folder: str | None, cells: Path) -> float:
    """Run a cell, and write the m-Recall of each query for each k; give the seconds of the processor that it took."""
    train, base, queries, truth = loaded(cell.data, folder)
    began, of_processor = time.perf_counter(), time.process_time()
    hasher = hasher_for(cell.method, cell.bits, cell.seed).fit(train, training_points=None)
    fit = [time.perf_counter() - began, time.process_time() - of_processor]
    depth = len(base) // RETRIEVED
    _, ids = hamming_topk(hasher.encode(queries), hasher.encode(base), depth)
    recalls = [measure(f"m-recall@{depth}", ids, truth, k).values for k in KS]
    stream = BytesIO()
    np.savez(stream, m_recall=np.array(recalls, dtype=np.float32), fit=fit, depth=depth, n_train=len(train))
    write_atomically(cells / cell.file, stream.getvalue())
    return time.process_time() - of_processor


def run_all(wanted: list[Cell], options: argparse.Namespace) -> None:
    """Run the cells that are missing, on several processes, the longest first."""
    missing = [cell for cell in wanted if not (options.cells / cell.file).exists()]
    missing.sort(key=lambda cell: -cell.bits * COST.get(cell.method, 1) * (5 if cell.data == "gist" else 1))
    print(f"{len(missing)} of {len(wanted)} cells are missing", flush=True)
    threads = max(1, len(os.sched_getaffinity(0)) // options.jobs)
    os.environ.update({name: str(threads) for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")})  # of the processes
    with ProcessPoolExecutor(options.jobs, multiprocessing.get_context("spawn")) as pool:
        running = {pool.submit(run, cell, options.data, options.cells): cell for cell in missing}
        for number, done in enumerate(as_completed(running), 1):
            print(f"{number}/{len(missing)} {' '.join(map(str, running[done]))}: {done.result():.0f} s", flush=True)


def p_value(differences: Any) -> float:
    """Probability of a mean as far from zero as that of ``differences`` (queries, seeds), by Student's t."""
    n, seeds = differences.shape
    per_query, per_seed = differences.mean(axis=1), differences.mean(axis=0)
    of_queries = per_query.var(ddof=1) / n
    of_seeds = per_seed.var(ddof=1) / seeds if seeds > 1 else 0.0
    both = (differences - per_query[:, None] - per_seed + per_query.mean()).var() / differences.size
    variance = max(of_queries + of_seeds - both, of_queries, of_seeds)
    if variance == 0:
        return float(per_query.mean() == 0)
    freedom = (of_queries + of_seeds) ** 2 / (of_queries**2 / (n - 1) + of_seeds**2 / max(seeds - 1, 1))
    return float(2 * scipy.special.stdtr(freedom, -abs(per_query.mean()) / variance**0.5))


def rejected(p_values: list[float]) -> list[bool]:
    """Which hypotheses Holm's procedure rejects: the smallest p-values while p ≤ 5 % / number that are left."""
    out = [False] * len(p_values)
    for left, place in zip(range(len(p_values), 0, -1), np.argsort(p_values, kind="stable"), strict=True):
        if p_values[place] > LEVEL / left:
            break
        out[place] = True
    return out


def standings(rows: list[dict[str, Any]], values: list[dict[str, Any]], methods: tuple[str, ...]) -> dict[str, Any]:
    """For each method the number of rows where it is best, and not behind the best; marks go to ``rows``."""
    means = [{method: float(found[method].mean()) for method in methods} for found in values]
    best = [max(one, key=one.__getitem__) for one in means]
    counts = {}
    for method in methods:
        tests = [1.0 if b == method else p_value(v[b] - v[method]) for b, v in zip(best, values, strict=True)]
        behind = rejected(tests)
        for row, b, is_behind in zip(rows, best, behind, strict=True):
            row.setdefault("best", b)
            row.setdefault("not_behind", [])
            row["not_behind"] += [] if is_behind else [method]
        counts[method] = [best.count(method), len(behind) - sum(behind)]
    return counts


def summary(cells: Path) -> dict[str, Any]:
    """All rows that are complete, and the standings, by set."""
    found: dict[str, dict[int, dict[str, dict[int, Any]]]] = {}
    for path in sorted(cells.glob("*.npz")):
        name, bits, method, seed = path.stem.replace("_", " ").split("-")
        with np.load(path) as held:
            found.setdefault(name, {}).setdefault(int(bits), {}).setdefault(method, {})[int(seed)] = dict(held)
    results: dict[str, Any] = {}
    for name, lengths in found.items():
        rows, values, seconds = [], [], {}
        for place, (bits, methods) in itertools.product(range(len(KS)), sorted(lengths.items())):
            seeds = sorted(set.intersection(*(set(methods.get(method, ())) for method in COMPARED)))
            if not seeds:
                continue
            there = [method for method in METHODS if set(seeds) <= set(methods.get(method, ()))]
            of_row = {
                method: np.array([methods[method][seed]["m_recall"][place] for seed in seeds], dtype=np.float64).T
                for method in there
            }
            per_seed = {method: one.mean(axis=0) for method, one in of_row.items()}
            spread = {method: float(one.std(ddof=1)) if len(seeds) > 1 else None for method, one in per_seed.items()}
            rows.append({
                "k": KS[place], "bits": bits, "seeds": len(seeds),
                "mean": {method: round(float(one.mean()), 5) for method, one in per_seed.items()},
                "spread": {method: one if one is None else round(one, 5) for method, one in spread.items()},
            })  # fmt: skip
            if ABLATION in there:
                difference = of_row[OURS] - of_row[ABLATION]
                rows[-1]["term_adds"] = [round(float(difference.mean()), 5), round(p_value(difference), 5)]
            values.append(of_row)
            seconds[str(bits)] = {
                method: round(float(np.median([methods[method][seed]["fit"][1] for seed in seeds])), 2)
                for method in there
            }
        if rows:
            one = next(iter(next(iter(next(iter(lengths.values())).values())).values()))
            of_paper = standings([{} for _ in rows], values, (*PAPERS, PUBLISHED))
            results[name] = {
                "depth": int(one["depth"]), "training_points": int(one["n_train"]), "rows": rows,
                "counts": standings(rows, values, COMPARED), "counts_of_paper": of_paper,
                "processor_seconds_of_fit": seconds,
            }  # fmt: skip
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default=os.environ.get("AUTOJACOBIN_DATA"), help="folder of sets; photos is built in")
    parser.add_argument("--cells", type=Path, required=True, help="folder for one file per cell")
    parser.add_argument("--sets", nargs="+", default=SETS)
    parser.add_argument("--bits", nargs="+", type=int, help="these lengths instead")
    parser.add_argument("--methods", nargs="+", default=METHODS, choices=METHODS)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=1, help="processes; they share the cores")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the results of all cells that are there")
    options = parser.parse_args()
    options.cells.mkdir(parents=True, exist_ok=True)
    wanted = []
    for name in options.sets:
        width = loaded(name, options.data)[0].shape[1]
        lengths = options.bits or ((64, 128, 256) if width >= 256 else (64, 96, 128))
        wanted += [Cell(name, *one) for one in itertools.product(lengths, options.methods, range(options.seeds))]
    run_all(wanted, options)
    results = summary(options.cells)
    for name, one in results.items():
        print(f"{name}: {len(one['rows'])} rows, K = {one['depth']:,}; best / not behind the best")
        for method, (best, not_behind) in one["counts"].items():
            print(f"  {method:16} {best:3} {not_behind:3}")
    if options.json:
        write_results(options.json, results, argparse.Namespace(level=LEVEL, retrieved=f"1 in {RETRIEVED}"))


if __name__ == "__main__":
    main()
