"""Hash the vectors of a .npy file, keep the codes and what was learned, and look for neighbours.

python examples/hash_vectors.py vectors.npy --bits 64
python examples/hash_vectors.py                         # on the digits of scikit-learn
"""

import argparse
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

import autojacobin
from autojacobin import AutoJacoBin, Codes
from autojacobin.search import hamming_topk

parser = argparse.ArgumentParser(description="Hash the vectors of a .npy file.")
parser.add_argument("vectors", nargs="?", type=Path, default=Path("digits.npy"))
parser.add_argument("--bits", type=int, default=32)
arguments = parser.parse_args()

if not arguments.vectors.exists() and arguments.vectors.name == "digits.npy":
    np.save(arguments.vectors, load_digits().data.astype(np.float32))
vectors = np.load(arguments.vectors, mmap_mode="r")

# Learning needs some thousands of vectors, and encoding none in memory at all: it goes through the map in blocks.
sample = np.random.default_rng(0).choice(len(vectors), min(len(vectors), 4_000), replace=False)
hasher = AutoJacoBin(arguments.bits, random_state=0).fit(vectors[np.sort(sample)])
codes = hasher.encode(vectors)
print(f"{codes}: {codes.packed.nbytes:,} bytes instead of {vectors.nbytes:,}")

model = arguments.vectors.with_suffix(".safetensors")
hasher.save(model, overwrite=True)
codes.save(arguments.vectors.with_suffix(".codes.npz"), overwrite=True)

# Later, or elsewhere: the same codes again, and the five nearest to the first vector, itself among them.
again = autojacobin.load(model)
kept = Codes.load(arguments.vectors.with_suffix(".codes.npz"))
distances, ids = hamming_topk(again.encode(vectors[:1]), kept, k=5)
print("nearest to vector 0:", *(f"{i} ({d} bits differ)" for i, d in zip(ids[0], distances[0], strict=True)))
