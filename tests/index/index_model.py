"""A plain dict of vectors by id, and what an index with the same content has to answer."""

import numpy as np

from autojacobin import LSH
from autojacobin.index.state import in_id_order

N_FEATURES = 4
N_BITS = 6


def small_hasher():
    """Few bits, so that distances are often equal."""
    sample = np.random.default_rng(0).normal(size=(50, N_FEATURES)).astype(np.float32)
    return LSH(N_BITS, random_state=0).fit(sample)


def vectors(n, seed=0):
    return np.random.default_rng(seed).integers(-2, 3, (n, N_FEATURES)).astype(np.float32)


def contents(index):
    """Vectors by id, read back from the index, after a check that the codes are theirs."""
    found = {}
    for segment in index._state.segments:
        for part in in_id_order([segment]):
            assert part.codes == index._state.hasher.encode(part.vectors)
            assert not found.keys() & set(part.ids.tolist()), "an id lives twice"
            found |= {i: vector.tobytes() for i, vector in zip(part.ids.tolist(), part.vectors, strict=True)}
    assert len(index) == len(found)
    assert index.ids.tolist() == sorted(found)
    return found


def as_bytes(model):
    return {i: np.asarray(vector).tobytes() for i, vector in model.items()}


def by_hamming(model, hasher, queries, k):
    """Brute force: all distances, ordered by distance and then by id."""
    ids = np.array(sorted(model), dtype=np.int64)
    base = hasher.encode(np.stack([model[i] for i in ids.tolist()])).to_bits()
    distances = (hasher.encode(queries).to_bits()[:, None, :] != base[None]).sum(axis=2)
    order = np.argsort(distances, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(distances, order, axis=1), ids[order]


def by_reranking(model, hasher, queries, k, candidates):
    """Brute force: the Euclidean order of the nearest codes."""
    _, ids = by_hamming(model, hasher, queries, min(candidates, len(model)))
    ids = np.sort(ids, axis=1)
    vectors = np.stack([[model[i] for i in row] for row in ids.tolist()]).astype(np.float64)
    distances = np.sqrt(((vectors - queries[:, None, :].astype(np.float64)) ** 2).sum(axis=2))
    order = np.argsort(distances, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(distances, order, axis=1), np.take_along_axis(ids, order, axis=1)
