"""Writes the golden files of a hasher format that are not there yet. It never changes a file.

    python -m tests.golden.make_hashers

Run it when the format is new, and when a class is new. The vectors are chosen so that no projection is near zero:
another BLAS may round the last digit differently. A new class is tried with the vectors that are there.
"""

from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

from autojacobin import (
    ITQ,
    LSH,
    SGH,
    AutoBin,
    AutoJacoBin,
    BinaryAutoencoder,
    CAutoBin,
    DAutoBin,
    Hasher,
    NeighbourHashing,
    NOKMeans,
    OKMeans,
    PartitionedAutoencoder,
    PartitionedHasher,
    PCARotation,
    Sign,
    SpectralHashing,
    SphericalHashing,
)  # fmt: skip
from autojacobin.hashers.persistence import FORMAT_VERSION

FOLDER = Path(__file__).parent / f"hashers-{FORMAT_VERSION}"


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
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
        Sign(12, centred=True, rotate=True, random_state=18),
        PCARotation(12, random_state=2),
        SphericalHashing(12, random_state=10),
        SGH(12, random_state=0),
        NeighbourHashing(12, n_steps=100, random_state=0),
        PartitionedHasher(LSH(12, random_state=0), n_lists=4, random_state=0),
    ]
    missing = [hasher.fit(X) for hasher in hashers if not path_of(hasher).exists()]
    if not (FOLDER / "vectors.npy").exists():
        candidates = load_digits().data[700:, 8:40].astype(np.float32)
        clear = np.all([is_clear(hasher, candidates) for hasher in missing], axis=0)
        np.save(FOLDER / "vectors.npy", candidates[clear][:50].astype(np.uint8))
    vectors = np.load(FOLDER / "vectors.npy")
    for hasher in missing:
        assert is_clear(hasher, vectors).all(), f"{hasher} has a projection near zero; give it another seed"
        hasher.save(path_of(hasher))
        hasher.encode(vectors).save(path_of(hasher).with_suffix(".npz"))


def path_of(hasher: Hasher) -> Path:
    return FOLDER / f"{type(hasher).__name__}.safetensors"


def is_clear(hasher: Hasher, vectors: np.ndarray) -> np.ndarray:
    projections = np.abs(getattr(hasher, "hasher_", hasher).project(vectors))
    return (projections > 1e-3 * projections.max()).all(axis=1)


if __name__ == "__main__":
    main()
