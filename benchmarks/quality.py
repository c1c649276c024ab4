"""Quality of the codes: m-Recall of all methods of signs on every available set, five seeds, mean and spread.

    python benchmarks/quality.py --data DIR --json quality.json     # hours on two cores
    python benchmarks/quality.py --quick                            # minutes: photos, 64 bits, two seeds

Every cell is the Hamming m-Recall over the best 1 % of the base, or over --depth points. Other tables have the best of
the distances that keep the real values of a query, and the distance of spherical hashing. A method is level with the
first if its mean is within the spread: the two standard deviations over the seeds, put together as for a difference of
means. What is finished is kept in the --json file, and a second run goes on from there. NeighbourHashing is ours, not
the paper's.
"""

from __future__ import annotations

import argparse
import json
import os
import time
import warnings
from pathlib import Path

import numpy as np
from timing import write_results

from autojacobin import AutoJacoBin
from autojacobin.datasets import load_set
from autojacobin.evaluation import ground_truth, m_recall
from autojacobin.paper.reproduction.trials import NEIGHBOUR, every_method, make_hasher
from autojacobin.search.distances import distances_of

KS = (1, 10, 100)
OURS, PUBLISHED, SEARCHED = "Auto-JacoBin", "Auto-JacoBin as published", "BinaryAutoencoder"
NAMES = {"hamming": "symmetric"}  # of distances in the results
METHODS = {name: name for name in every_method() if not name.startswith("AutoJacoBin")}
MOST_VALUES = 10_000 * 128  # training points × dimensions: sets of more dimensions take fewer points


def hasher_for(method, bits, seed, device):
    if method == OURS:
        return AutoJacoBin(bits, random_state=seed, device=device)
    if method == PUBLISHED:
        return AutoJacoBin.as_published(bits, random_state=seed, device=device)
    return make_hasher(method, bits, seed, {"device": device} if method == NEIGHBOUR else {})


def measured(method, bits, seed, arguments, train, base, queries, truth):
    """m-Recall by k for each distance of the codes, and the seconds of the fit."""
    began = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        hasher = hasher_for(method, bits, seed, arguments.device).fit(train)
    seconds = time.perf_counter() - began
    depth = arguments.depth or len(base) // 100
    codes = hasher.encode(base)
    row = {"seconds": round(seconds, 2)}
    for name, distance in distances_of(hasher).items():
        _, ids = distance.topk(distance.encode(hasher, queries), codes, depth)
        row[NAMES.get(name, name)] = [round(float(m_recall(ids, truth, k, depth)), 5) for k in KS]
    if method in (OURS, NEIGHBOUR):
        row["chosen"] = {name: str(value) for name, value in hasher.chosen_.items()}
    return row


def sets(arguments):
    for name in arguments.sets.split(","):
        try:
            there = arguments.data and (Path(arguments.data) / name).is_dir()
            yield name, load_set(name, arguments.data if there else None)
        except Exception as error:  # a set that is not there is left out, and said so
            print(f"{name} is left out: {error}")


def lengths(dimension, wanted):
    usual = (64, 96, 128, 256) if dimension > 500 else (64, 96, 128)
    return [bits for bits in (wanted or usual) if bits <= dimension]


def table(results, sets_done):
    """Rows (set, bits, k); the first in bold, those within the spread of it marked, the rest plain."""
    methods = [*METHODS, PUBLISHED, OURS]
    lines = ["| set, bits, k | " + " | ".join(methods) + " |", "|---" + "|---:" * len(methods) + "|"]
    lost, behind, cells = [], [], 0
    for name, bits in sets_done:
        for place, k in enumerate(KS):
            scores = {}
            for method in methods:
                seeds = [
                    row["symmetric"][place]
                    for key, row in results.items()
                    if key.startswith(f"{name}/{bits}/{method}/")
                ]
                if seeds:
                    scores[method] = (np.mean(seeds), np.std(seeds, ddof=1) if len(seeds) > 1 else 0.0)
            if OURS not in scores:
                continue
            cells += 1
            first = max(scores, key=lambda method: scores[method][0])

            def level(method, other, scores=scores):
                (a, s), (b, t) = scores[method], scores[other]
                return a >= b - np.hypot(s, t)

            marks = []
            for method in methods:
                if method not in scores:
                    marks.append("")
                    continue
                text = f"{scores[method][0]:.3f} ± {scores[method][1]:.3f}"
                marks.append(f"**{text}**" if method == first else f"{text} ≈" if level(method, first) else text)
            lines.append(f"| {name}, {bits}, {k} | " + " | ".join(marks) + " |")
            if not level(OURS, first):
                lost.append(f"{name} {bits} bits k={k}: {first} by {scores[first][0] - scores[OURS][0]:.3f}")
            if PUBLISHED in scores and not level(OURS, PUBLISHED):
                behind.append(f"{name} {bits} bits k={k}")
    lines.append("")
    lines.append(
        f"First or within the spread of the first in {cells - len(lost)} of {cells} cells; "
        f"lost: {'; '.join(lost) or 'none'}."
    )
    lines.append(
        f"Below the published settings by more than the spread in {len(behind)} cells: {'; '.join(behind) or 'none'}."
    )
    return "\n".join(lines)


def asymmetric_against_twice_the_bits(results, sets_done):
    """64 bits compared asymmetrically against the best method's 128 bits compared symmetrically."""
    lines = []
    for name in dict.fromkeys(name for name, _ in sets_done):
        ours = [row["asymmetric"] for key, row in results.items() if key.startswith(f"{name}/64/{OURS}/")]
        best = {}
        for method in (*METHODS, PUBLISHED, OURS):
            seeds = [row["symmetric"] for key, row in results.items() if key.startswith(f"{name}/128/{method}/")]
            if seeds:
                best[method] = np.mean(seeds, axis=0)
        if ours and best:
            mean = np.mean(ours, axis=0)
            for place, k in enumerate(KS):
                first = max(best, key=lambda method, place=place: best[method][place])
                lines.append(
                    f"{name}, k = {k}: 64 bits asymmetric {mean[place]:.3f}, "
                    f"128 bits symmetric {best[first][place]:.3f} ({first})"
                )
    return "\n".join(lines)


def by_real_weights(results, sets_done):
    """The binary auto-encoder by its own distance, and the best two of the others by the asymmetric one."""
    lines = ["| set, bits, k | BinaryAutoencoder, decoded | others, asymmetric |", "|---|---|---|"]
    for name, bits in sets_done:
        scores = {}
        for method in (SEARCHED, *METHODS, PUBLISHED, OURS):
            distance = "decoded" if method == SEARCHED else "asymmetric"
            of_method = [row for key, row in results.items() if key.startswith(f"{name}/{bits}/{method}/")]
            rows = [row[distance] for row in of_method if distance in row]
            if rows:
                scores[method] = np.mean(rows, axis=0), np.std(rows, axis=0)
        if SEARCHED not in scores:
            continue
        (mean, spread), others = scores.pop(SEARCHED), scores
        for place, k in enumerate(KS):
            best = sorted(others, key=lambda method, place=place: -others[method][0][place])[:2]
            shown = ", ".join(f"{method} {others[method][0][place]:.3f}" for method in best)
            lines.append(f"| {name}, {bits}, {k} | {mean[place]:.3f} ± {spread[place]:.3f} | {shown} |")
    return "\n".join(lines)


def by_spherical_distance(results, sets_done):
    """Spherical hashing by its own distance and by Hamming, beside Auto-JacoBin by Hamming, for each k."""
    lines = ["| set, bits | SpH, its own distance | SpH, Hamming | Auto-JacoBin, Hamming |", "|---|---|---|---|"]
    columns = (("SphericalHashing", "spherical"), ("SphericalHashing", "symmetric"), (OURS, "symmetric"))
    for name, bits in sets_done:
        cells = []
        for method, distance in columns:
            rows = [row[distance] for key, row in results.items() if key.startswith(f"{name}/{bits}/{method}/")]
            cells.append(" / ".join(f"{mean:.3f}" for mean in np.mean(rows, axis=0)) if rows else "")
        lines.append(f"| {name}, {bits} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="photos, 64 bits, two seeds, 2,000 training points")
    parser.add_argument("--json", type=Path, help="where results are kept, and taken up again")
    parser.add_argument(
        "--data", type=Path, default=os.environ.get("AUTOJACOBIN_DATA"), help="folder of sets, such as sift, gist, text"
    )
    parser.add_argument("--sets", default="photos,sift,text,gist")
    parser.add_argument("--bits", type=int, nargs="*")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--training-points", type=int, help="most; by default 10,000 of 128 dimensions, fewer of more")
    parser.add_argument("--depth", type=int, help="points that are retrieved for m-Recall; by default 1 %% of the base")
    parser.add_argument("--methods", nargs="*", help="only these")
    parser.add_argument("--device", default="cpu", help="cpu or cuda, for Auto-JacoBin and NeighbourHashing")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.sets, arguments.bits, arguments.seeds = "photos", [64], 2
        arguments.training_points = arguments.training_points or 2000
    results = json.loads(arguments.json.read_text())["results"] if arguments.json and arguments.json.exists() else {}
    done = []
    for name, data in sets(arguments):
        dimension = data.train.shape[1]
        most = arguments.training_points or max(2000, MOST_VALUES // dimension)
        order = np.random.default_rng(0).permutation(len(data.train))[:most]
        train, base, queries = np.asarray(data.train)[np.sort(order)], np.asarray(data.base), np.asarray(data.queries)
        truth = ground_truth(base, queries, max(KS))
        for bits in lengths(dimension, arguments.bits):
            done.append((name, bits))
            for seed in range(arguments.seeds):
                for method in arguments.methods or (*METHODS, PUBLISHED, OURS, SEARCHED):
                    key = f"{name}/{bits}/{method}/{seed}"
                    if key not in results:
                        results[key] = measured(method, bits, seed, arguments, train, base, queries, truth)
                        print(key, results[key], flush=True)
                        if arguments.json:
                            write_results(arguments.json, results, arguments)
    print(table(results, done))
    print(asymmetric_against_twice_the_bits(results, done))
    print(by_real_weights(results, done))
    print(by_spherical_distance(results, done))


if __name__ == "__main__":
    main()
