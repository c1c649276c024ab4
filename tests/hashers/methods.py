"""The registered methods, and real data to try them on."""

from functools import cache

import numpy as np
import pytest
from sklearn.datasets import load_digits

from autojacobin.hashers import LinearHasher, methods

CHOSEN = "AutoJacoBin (chosen)"  # has tests of its own
FEWER = {
    "AutoJacoBin": {"n_neighbors": 40},
    "AutoBin2": {"n_epochs": 20},
    "NeighbourHashing": {"decorrelation": 0.03, "pull": 0.3, "n_steps": 60},  # nothing to choose
}


def maker(method):
    return lambda n_bits=16: method.make(n_bits, FEWER.get(method.name), seed=0)


METHODS = {method.name: maker(method) for method in methods() if method.name != CHOSEN}
ONE_POINT = ["LSH", "Sign"]  # learn at most a mean
LEARNED = [name for name in METHODS if name not in ONE_POINT]
AUTO_ENCODERS = ["AutoJacoBin", "AutoBin1", "AutoBin2", "DAutoBin", "CAutoBin"]
USUAL = ["LSH", "ITQ", "OKMeans", "AutoBin1", "BinaryAutoencoder"]
LINEAR = [name for name in METHODS if isinstance(METHODS[name](), LinearHasher)]


@cache
def digits():
    """Real vectors, shuffled: (1797, 64), whole numbers from 0 to 16, some columns constant."""
    X = load_digits().data.astype(np.float32)
    X = X[np.random.RandomState(0).permutation(len(X))]
    X.flags.writeable = False
    return X


@cache
def fitted(name):
    return METHODS[name]().fit(digits()[:300])


def some(names):
    """Methods of each kind that every run tries; the others are tried with what rarely breaks."""
    return [name if name in USUAL else pytest.param(name, marks=pytest.mark.rare) for name in names]
