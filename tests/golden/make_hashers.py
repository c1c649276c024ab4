"""Writes the golden files of a hasher format. Run once, when the format is new; never again for that version.

    python -m tests.golden.make_hashers

The vectors are chosen so that no projection is near zero: another BLAS may round the last digit differently.
"""

from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

from autojacobin import (
    ITQ,
    LSH,
    AutoBin,
    AutoJacoBin,
    BinaryAutoencoder,
    CAutoBin,
    DAutoBin,
    NOKMeans,
    OKMeans,
    PartitionedAutoencoder,
    SpectralHashing,
)  # fmt: skip
from autojacobin.hashers.persistence import FORMAT_VERSION

FOLDER = Path(__file__).parent / f"hashers-{FORMAT_VERSION}"


def main() -> None:
    FOLDER.mkdir()
    X = load_digits().data[:700, 8:40].astype(np.float32)
    hashers = [
        LSH(12, random_state=0),
        SpectralHashing(12),
        ITQ(12, random_state=0),
        OKMeans(12, random_state=0),
        NOKMeans(12, random_state=0),
        AutoJacoBin(12, random_state=0),
        AutoBin(12, random_state=0),
        DAutoBin(12, random_state=0),
        CAutoBin(12, random_state=0),
        BinaryAutoencoder(12, random_state=0),
        PartitionedAutoencoder(12, n_lists=4, random_state=0),
    ]
    candidates = load_digits().data[700:, 8:40].astype(np.float32)
    clear = np.ones(len(candidates), dtype=bool)
    for hasher in hashers:
        projections = np.abs(hasher.fit(X).project(candidates))
        clear &= (projections > 1e-3 * projections.max()).all(axis=1)
    vectors = candidates[clear][:50].astype(np.uint8)
    np.save(FOLDER / "vectors.npy", vectors)
    for hasher in hashers:
        name = type(hasher).__name__
        hasher.save(FOLDER / f"{name}.safetensors")
        hasher.encode(vectors).save(FOLDER / f"{name}.npz")


if __name__ == "__main__":
    main()
