"""One matrix cut into several files, of several formats."""

import gzip
from itertools import pairwise

from autojacobin.datasets import write_vectors

# More rows than three blocks of an index, in files that end anywhere but at the end of one.
BLOCK = 2**16
N = 3 * BLOCK + 1000
CUTS = [10, BLOCK - 3, BLOCK + 1, 2 * BLOCK + 77]
ENDINGS = ("npy", "u8bin", "bvecs", "parquet", "u8bin")


def cut_into_files(folder, X, cuts, endings=("npy",)):
    """Write X[0:cuts[0]], X[cuts[0]:cuts[1]], … and give a pattern for all of them."""
    folder.mkdir(parents=True, exist_ok=True)
    edges = [0, *cuts, len(X)]
    parts = [(start, stop) for start, stop in pairwise(edges) if stop > start]
    for number, (start, stop) in enumerate(parts):
        path = folder / f"part-{number:03d}.{endings[number % len(endings)]}"
        write_vectors(path.with_name(path.name.removesuffix(".gz")), X[start:stop])
        if path.suffix == ".gz":
            path.write_bytes(gzip.compress(path.with_suffix("").read_bytes()))
            path.with_suffix("").unlink()
    return str(folder / "part-*")
