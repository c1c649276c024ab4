"""How many bits a vector needs: the length of the codes of a BinaryAutoencoder, chosen for some vectors.

Two to four bits a dimension are tried, up to 384 bits. The shortest codes win by which 100 candidates hold 95 % of the
10 nearest neighbours of held-out vectors. A model that is trained a little on a few vectors shows that about as well as
the one that is trained in the end. Few codes are made: those of the true neighbours, and of some other vectors, which
stand for all. If 3 of 2,000 others are nearer than a neighbour, about 90 of 60,000 are.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from autojacobin.core.linear_algebra import centre
from autojacobin.core.parallel import Progress
from autojacobin.core.vectors import as_floats
from autojacobin.errors import DataError
from autojacobin.hashers.autoencoders.binary_autoencoder import BinaryAutoencoder
from autojacobin.hashers.autoencoders.tabu_search import ERROR_SHARE

CANDIDATES, RECALL, NEIGHBOURS = 100, 0.95, 10
"""Codes are long enough if 100 candidates hold 95 % of the 10 nearest neighbours."""
_BITS_PER_DIMENSION, _MOST_BITS = (2, 3, 4), 384
_FEWEST_VECTORS = 2_000  # fewer are all compared by an index, whatever their codes
_MOST_VECTORS = 2**16  # among which neighbours are looked for; an index of more has lists
_QUERIES, _OTHERS, _TRAINING_POINTS, _TURNS = 100, 2_000, 2_000, 6


def sample_size(n_features: int) -> int:
    """How many vectors :func:`choose_n_bits` looks at: one if there is only one length to choose."""
    return _MOST_VECTORS if len(_lengths(n_features)) > 1 else 1


def choose_n_bits(X: Any, progress: Progress | None = None) -> tuple[int, float | None]:
    """Choose the length of codes for vectors like the rows of ``X``.

    The second result is the share of the neighbours that 100 candidates hold; None if nothing was measured.
    """
    from autojacobin.search.truth import ground_truth  # only here: loading numba takes a second

    lengths = _lengths(X.shape[1])
    if len(lengths) == 1 or len(X) <= _FEWEST_VECTORS:
        return lengths[0], None
    X = centre(as_floats(X)[np.random.default_rng(0).permutation(len(X))])[1]
    X /= np.abs(X).max() or 1
    queries, base = X[:_QUERIES], X[_QUERIES:]
    near = base[ground_truth(base, queries, NEIGHBOURS).ravel()]
    for n_bits in lengths:
        if progress is not None:
            progress(f"trying {n_bits} bits", 0, 0)
        hasher = BinaryAutoencoder(n_bits, n_iterations=_TURNS, random_state=0)
        try:
            hasher.fit(base[-_TRAINING_POINTS:], training_points=None)
        except DataError:  # most vectors are equal
            return n_bits, None
        own, others = _distances(hasher, queries, near), _distances(hasher, queries, base[:_OTHERS])
        own = np.sort(np.stack([own[i, i * NEIGHBOURS : (i + 1) * NEIGHBOURS] for i in range(len(own))]), axis=1)
        before = np.stack([np.searchsorted(np.sort(row), mine) for row, mine in zip(others, own, strict=True)])
        ranks = before * (len(base) / others.shape[1]) + np.arange(NEIGHBOURS)
        recall = float((ranks < CANDIDATES).mean())
        if recall >= RECALL:
            break
    return n_bits, recall


def _lengths(n_features: int) -> list[int]:
    """Lengths to choose from, in whole bytes, ascending."""
    return sorted({min(_MOST_BITS, 8 * -(-share * n_features // 8)) for share in _BITS_PER_DIMENSION})


def _distances(hasher: BinaryAutoencoder, queries: Any, vectors: Any) -> Any:
    """Distances ``"decoded"``, but for what is the same for all codes, and for the rounding of offsets."""
    decoded = hasher.decode(hasher.encode(vectors))
    offsets = (decoded**2).sum(axis=1) + ERROR_SHARE * ((vectors - decoded) ** 2).sum(axis=1)
    return offsets - 2 * queries @ decoded.T
