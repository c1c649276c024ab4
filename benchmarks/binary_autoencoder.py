"""How well codes of BinaryAutoencoder rank, and what they cost: effort, seeds and ways to store the norm.

    python benchmarks/binary_autoencoder.py --data DIR --sets sift --bits 64 --efforts 1 4 16
    python benchmarks/binary_autoencoder.py --data DIR --sets gist --bits 120 --norm-bits 8    # 16 bytes all told

Each row gives m-Recall over the best 1 % of the base (k = 10), and how many candidates have to be re-ranked for
recall@10 of .90, .95 and .99, three times: by the real numbers; with the norm in --norm-bits bits; on the grid of the
search kernels, where a query's weights are whole numbers from 0 to 15 and those of the norm's bits are rounded
to the same grid. Seconds and microseconds are of processor time, summed over the threads.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from vectors import real_sets

from autojacobin import ITQ, BinaryAutoencoder

SHARES = (0.90, 0.95, 0.99)
LARGEST_WEIGHT = 15
K = 10


def ranks(distances_of, n_queries, truth):
    """Rank of each true neighbour in the order of distance, equal distances by lower id."""
    found = []
    for start in range(0, n_queries, 50):
        rows = slice(start, start + 50)
        distances, neighbours = distances_of(rows), truth[rows, :K]
        ids = np.arange(distances.shape[1])
        for row, near in zip(distances, neighbours, strict=True):
            found.append([int((row < row[one]).sum() + ((row == row[one]) & (ids < one)).sum()) for one in near])
    return np.array(found)


def summary(found, n):
    depth = n // 100
    ordered = np.sort(found.ravel())
    candidates = [int(ordered[int(np.ceil(share * len(ordered))) - 1]) + 1 for share in SHARES]
    return f"{np.clip(1 - found / depth, 0, 1).mean():.4f} " + " ".join(f"{count:5d}" for count in candidates)


def real_distances(weights, signs, norms):
    return lambda rows: norms - weights[rows] @ signs.T


def grid_distances(weights, signs, levels, step, n_norm_bits):
    """Distances as whole numbers: a bit that differs from the query's sign weighs 0 to 15, and so on for the norm."""
    unit = np.abs(weights).max(axis=1, keepdims=True) / LARGEST_WEIGHT
    whole = np.rint(weights / unit)
    powers = np.rint(
        2.0 ** np.arange(n_norm_bits) * step / (2 * unit)
    )  # −w·s is twice the weight of the bits that differ
    norm_bits = (levels[:, None] >> np.arange(n_norm_bits) & 1).astype(np.float32)
    return lambda rows: (powers[rows].astype(np.float32) @ norm_bits.T) - whole[rows].astype(np.float32) @ signs.T / 2


def stored_norms(hasher, train, codes, n_norm_bits):
    """What a linear function of the bits leaves of the norm, in 2^n_norm_bits equal steps.

    Gives the part of the norm that the weights take over, the levels and the step.
    """
    known = hasher.encode(train)
    signs = known.to_signs().astype(np.float64)
    design = np.c_[signs, np.ones(len(signs))]
    ridge = 1e-3 * len(signs) * np.eye(design.shape[1])
    ridge[-1, -1] = 0
    solution = np.linalg.solve(design.T @ design + ridge, design.T @ hasher.squared_norms(known))
    low, high = np.quantile(hasher.squared_norms(known) - design @ solution, [0.005, 0.995])
    step = (high - low) / max(1, 2**n_norm_bits - 1)
    left = hasher.squared_norms(codes) - codes.to_signs() @ solution[:-1] - solution[-1]
    levels = np.clip(np.rint((left - low) / step), 0, 2**n_norm_bits - 1).astype(np.int64)
    return solution[:-1].astype(np.float32), levels, step


def row(name, hasher, train, base, queries, truth, n_norm_bits):
    began = time.process_time()
    codes = hasher.encode(base)
    seconds = time.process_time() - began
    signs = codes.to_signs().astype(np.float32)
    weights, norms = hasher.project(queries), hasher.squared_norms(codes)
    error = ((base - hasher.decode(codes)) ** 2).sum() / ((base - base.mean(axis=0)) ** 2).sum()
    shift, levels, step = stored_norms(hasher, train, codes, n_norm_bits)
    real = ranks(real_distances(weights, signs, norms), len(queries), truth)
    quantised = ranks(real_distances(weights - shift, signs, (levels * step).astype(np.float32)), len(queries), truth)
    grid = ranks(grid_distances(weights - shift, signs, levels, step, n_norm_bits), len(queries), truth)
    print(
        f"| {name} | {1e6 * seconds / len(base):.1f} | {error:.4f} | "
        + " | ".join(summary(found, len(base)) for found in (real, quantised, grid))
        + " |",
        flush=True,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="folder of sets, such as sift, gist, text")
    parser.add_argument("--sets", nargs="*", help="only these")
    parser.add_argument("--bits", type=int, nargs="*", default=[64])
    parser.add_argument("--norm-bits", type=int, default=4)
    parser.add_argument("--efforts", type=int, nargs="*", default=[1, 4, 16])
    parser.add_argument("--iterations", type=int, default=30)
    parser.add_argument("--ridge", type=float, default=1e-3)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--training-points", type=int, default=10_000)
    parser.add_argument("--queries", type=int, default=500)
    arguments = parser.parse_args()
    for data, truth in real_sets(arguments.data):
        if arguments.sets and data.name not in arguments.sets:
            continue
        train, base, queries = (
            np.asarray(part, dtype=np.float32)
            for part in (data.train[: arguments.training_points], data.base, data.queries[: arguments.queries])
        )
        print(f"{data.name}: {len(train)} training points, base {base.shape}, {len(queries)} queries")
        print("| bits, effort, seed | µs | error | real numbers | norm in bits | grid |\n|---|---|---|---|---|---|")
        for bits in arguments.bits:
            if bits <= base.shape[1]:
                itq = ITQ(bits, random_state=0).fit(train)
                found = ranks(
                    real_distances(itq.project(queries), itq.encode(base).to_signs().astype(np.float32), np.float32(0)),
                    len(queries),
                    truth,
                )
                print(f"| {bits}, ITQ asymmetric | | | {summary(found, len(base))} | | |")
            for seed in range(arguments.seeds):
                hasher = BinaryAutoencoder(
                    bits, n_iterations=arguments.iterations, ridge=arguments.ridge, random_state=seed
                )
                began = time.process_time()
                hasher.fit(train)
                print(f"trained in {time.process_time() - began:.2f} s, error {hasher.reconstruction_error_[-1]:.4f}")
                for effort in arguments.efforts:
                    hasher.set_params(effort=effort)
                    name = f"{bits} + {arguments.norm_bits}, {effort}, {seed}"
                    row(name, hasher, train, base, queries, truth, arguments.norm_bits)


if __name__ == "__main__":
    main()
