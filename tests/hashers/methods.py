"""The ten methods, and real data to try them on."""

from functools import cache

import numpy as np
from sklearn.datasets import load_digits

from autojacobin import ITQ, LSH, AutoBin, AutoJacoBin, CAutoBin, DAutoBin, NOKMeans, OKMeans, SpectralHashing

METHODS = {
    "LSH": lambda n_bits=16: LSH(n_bits, random_state=0),
    "SpectralHashing": lambda n_bits=16: SpectralHashing(n_bits),
    "ITQ": lambda n_bits=16: ITQ(n_bits, random_state=0),
    "OKMeans": lambda n_bits=16: OKMeans(n_bits, random_state=0),
    "NOKMeans": lambda n_bits=16: NOKMeans(n_bits, random_state=0),
    "AutoJacoBin": lambda n_bits=16: AutoJacoBin.as_published(n_bits, n_neighbors=40, random_state=0),
    "AutoBin1": lambda n_bits=16: AutoBin(n_bits, random_state=0),
    "AutoBin2": lambda n_bits=16: AutoBin(n_bits, batch_size=None, n_epochs=20, random_state=0),
    "DAutoBin": lambda n_bits=16: DAutoBin(n_bits, random_state=0),
    "CAutoBin": lambda n_bits=16: CAutoBin(n_bits, random_state=0),
}
LEARNED = [name for name in METHODS if name != "LSH"]
AUTO_ENCODERS = ["AutoJacoBin", "AutoBin1", "AutoBin2", "DAutoBin", "CAutoBin"]
LINEAR = [name for name in METHODS if name != "SpectralHashing"]


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
