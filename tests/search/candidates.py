"""Candidates for re-ranking, and what becomes of them by definition."""

import numpy as np


def drawn(rng, n, c, queries):
    """Ids of c of n vectors for each query, each once, in any order."""
    return np.array([rng.permutation(n)[:c] for _ in range(queries)])


def by_sorting(queries, candidates, vectors, k):
    rows = []
    for query, ids in zip(queries, candidates, strict=True):
        gaps = [(float(np.sum((query.astype(float) - vectors[i].astype(float)) ** 2)) ** 0.5, i) for i in ids]
        rows.append(sorted(gaps)[:k])
    return np.array([[d for d, _ in row] for row in rows]), np.array([[i for _, i in row] for row in rows])
