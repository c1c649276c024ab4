"""Search vectors in two stages: by codes that fit into memory, then by the vectors themselves, read from a file.

python examples/larger_than_memory.py --points 20_000_000    # 10 GB of vectors, 320 MB of codes
python examples/larger_than_memory.py --vectors base.npy     # a file of your own

Of the vectors only a sample is read to learn from, each once to be encoded, and the candidates of each query.
"""

import argparse
from pathlib import Path

import numpy as np

from autojacobin import ITQ
from autojacobin.search import asymmetric_topk, rerank

parser = argparse.ArgumentParser(description="Two-stage search over a memory map.")
parser.add_argument("--vectors", type=Path, default=Path("large.npy"))
parser.add_argument("--points", type=int, default=100_000, help="Points to make if the file is not there.")
parser.add_argument("--candidates", type=int, default=200)
arguments = parser.parse_args()


def make(path, n, dimension=128, block=50_000):
    """Write points near a curved surface, block by block, as a stand-in for features of pictures or texts."""
    random = np.random.default_rng(0)
    lifted = random.normal(size=(16, dimension)).astype(np.float32)
    file = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(n, dimension))
    for start in range(0, n, block):
        rows = min(block, n - start)
        on_surface = np.tanh(random.normal(size=(rows, 16)).astype(np.float32) @ lifted / 2)
        file[start : start + rows] = on_surface + 0.05 * random.normal(size=(rows, dimension))
    file.flush()


if not arguments.vectors.exists():
    make(arguments.vectors, arguments.points)
vectors = np.load(arguments.vectors, mmap_mode="r")

random = np.random.default_rng(1)
hasher = ITQ(n_bits=128, random_state=0).fit(vectors)  # of a memory map, 10,000 rows are drawn and read
codes = hasher.encode(vectors)
print(f"{vectors.nbytes / 1e6:,.0f} MB of vectors in a file, {codes.packed.nbytes / 1e6:,.1f} MB of codes in memory")

near = vectors[np.sort(random.choice(len(vectors), min(len(vectors), 100), replace=False))]
queries = near + random.normal(scale=0.05, size=near.shape).astype(np.float32)
_, candidates = asymmetric_topk(hasher.project(queries), codes, k=arguments.candidates)
distances, ids = rerank(queries, candidates, vectors, k=10)
np.savez("found.npz", queries=queries, distances=distances, ids=ids)
print(f"the 10 nearest of {len(queries)} queries are in found.npz; the first query's: {ids[0, :5]} …")
