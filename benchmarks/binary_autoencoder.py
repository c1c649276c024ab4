"""How well codes of BinaryAutoencoder rank, and what they cost, over efforts and seeds.

    python benchmarks/binary_autoencoder.py --data DIR --sets sift --bits 64 --efforts 1 4 16 --seeds 5

Each row gives the bits that the levels of the offsets take, the reconstruction error of the base as a share of its
variance, m-Recall over the best 1 % of the base (k = 10), and how many candidates have to be re-ranked for recall@10 of
.90, .95 and .99: by the real weights, and with the whole weights of the search. Seconds and microseconds are of
processor time, summed over the threads.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from vectors import real_sets

from autojacobin import ITQ, BinaryAutoencoder
from autojacobin.evaluation import m_recall
from autojacobin.search import asymmetric_topk, decoded_topk

SHARES = (0.90, 0.95, 0.99)
K = 10


def summary(ids, truth, n):
    """m-Recall over the best 1 % and the candidates for each recall; – where more than were retrieved are needed."""
    found = np.cumsum((ids[:, :, None] == truth[:, None, :K]).any(axis=2).mean(axis=0)) / K
    needed = [int(np.searchsorted(found, share - 1e-9)) + 1 for share in SHARES]
    shown = " ".join(f"{number:5d}" if number <= ids.shape[1] else "    –" for number in needed)
    return f"{m_recall(ids, truth, K, n // 100):.4f} {shown}"


def timed(call):
    began = time.process_time()
    result = call()
    return result, time.process_time() - began


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="folder of sets, such as sift, gist, text")
    parser.add_argument("--sets", nargs="*", help="only these")
    parser.add_argument("--bits", type=int, nargs="*", default=[64])
    parser.add_argument("--efforts", type=int, nargs="*", default=[1, 4, 16])
    parser.add_argument("--iterations", type=int, default=30)
    parser.add_argument("--ridge", type=float, default=1e-3)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--training-points", type=int, default=10_000)
    parser.add_argument("--queries", type=int, default=500)
    arguments = parser.parse_args()
    for data, all_truth in real_sets(arguments.data):
        if arguments.sets and data.name not in arguments.sets:
            continue
        train, queries = data.train[: arguments.training_points], data.queries[: arguments.queries]
        base, truth = np.asarray(data.base), np.asarray(all_truth)[: arguments.queries]
        floats, depth = base[:30_000].astype(np.float32), min(len(base), max(2000, len(base) // 100))
        print(f"{data.name}: {len(train)} training points, base {base.shape}, {len(queries)} queries")
        print("| bits + level bits, effort, seed | training s | µs | error | real weights | whole weights |")
        print("|---|---|---|---|---|---|")
        for bits in arguments.bits:
            if bits <= base.shape[1]:
                itq = ITQ(bits, random_state=0).fit(train)
                _, ids = asymmetric_topk(itq.project(queries), itq.encode(base), depth)
                print(f"| {bits}, ITQ asymmetric | | | | | {summary(ids, truth, len(base))} |")
            for seed in range(arguments.seeds):
                hasher = BinaryAutoencoder(
                    bits, n_iterations=arguments.iterations, ridge=arguments.ridge, random_state=seed
                )
                _, training = timed(lambda hasher=hasher, train=train: hasher.fit(train))
                for effort in arguments.efforts:
                    hasher.set_params(effort=effort)
                    codes, seconds = timed(lambda hasher=hasher, base=base: hasher.encode(base))
                    left = ((floats - hasher.decode(codes[: len(floats)])) ** 2).sum()
                    error = left / ((floats - floats.mean(axis=0)) ** 2).sum()
                    terms = hasher.distance_terms(queries)
                    cells = [
                        summary(decoded_topk(terms, codes, depth, exact=exact)[1], truth, len(base))
                        for exact in (True, False)
                    ]
                    d = len(hasher.decoder_)
                    name = f"{d} + {bits - d}, {effort}, {seed}"
                    microseconds = 1e6 * seconds / len(base)
                    print(
                        f"| {name} | {training:.1f} | {microseconds:.1f} | {error:.4f} | {' | '.join(cells)} |",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
