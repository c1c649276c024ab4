"""autojacobin for ann-benchmarks: copy this folder to ann_benchmarks/algorithms/autojacobin of that project."""

import numpy as np

from autojacobin import Index, PartitionedAutoencoder

from ..base.module import BaseANN

TRAINING_VECTORS_PER_LIST = 64


class AutoJacobin(BaseANN):
    """Inverted lists of residual codes, with exact re-ranking.

    ``lists`` is the number of lists, fewer for small sets, and ``bits`` the length of the codes inside a list.
    """

    def __init__(self, metric, parameters):
        if metric not in ("euclidean", "angular"):
            raise ValueError(f"metric must be euclidean or angular, got {metric!r}; other metrics are not supported")
        self.angular = metric == "angular"
        self.lists, self.bits = parameters["lists"], parameters["bits"]
        self.name = f"autojacobin(lists={self.lists}, bits={self.bits})"

    def fit(self, X):
        X = self._prepared(X)
        self.lists = min(self.lists, max(1, len(X) // TRAINING_VECTORS_PER_LIST))
        sample = np.random.default_rng(0).permutation(len(X))[: TRAINING_VECTORS_PER_LIST * self.lists]
        n_bits = self.bits + (self.lists - 1).bit_length()  # the number of the list is a part of a code
        hasher = PartitionedAutoencoder(n_bits, n_lists=self.lists, random_state=0).fit(X[np.sort(sample)])
        whole = X.min() >= 0 and X.max() <= 255 and np.array_equal(X, X.astype(np.uint8))
        self.index = Index(hasher)
        self.index.add(X.astype(np.uint8) if whole else X)  # bytes take a quarter of the memory when they lose nothing
        self.index.search(X[:1], 1, probes=1)  # makes the lists, so that no query has to

    def set_query_arguments(self, setting):
        self.probes, self.candidates = min(setting[0], self.lists), setting[1]
        self.name = (
            f"autojacobin(lists={self.lists}, bits={self.bits}, probes={self.probes}, candidates={self.candidates})"
        )

    def query(self, q, n):
        return self._search(q[None], n)[0]

    def batch_query(self, X, n):
        self.res = self._search(X, n)

    def _search(self, X, n):
        candidates = max(n, self.candidates)
        return self.index.search(self._prepared(X), n, probes=self.probes, candidates=candidates)[1]

    def _prepared(self, X):
        X = np.asarray(X, dtype=np.float32)
        if not self.angular:
            return X
        lengths = np.linalg.norm(X, axis=1, keepdims=True)
        return X / np.where(lengths > 0, lengths, 1)  # for unit vectors, the nearest have the smallest angle
