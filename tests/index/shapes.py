"""Shapes of data on which the recall that is asked for must be found: functions of a generator, a size and a width.

Each gives ``n`` vectors. The last of them serve as fresh queries, which have the same distribution as the data.
"""

import numpy as np


def clusters(rng, n, width, *, count=50, spread=0.05, power=0.0, offset=0.0):
    """Normal clusters around normal centres; the i-th has i^-power of the vectors, in proportion."""
    share = np.arange(1, count + 1.0) ** -power
    centres = rng.normal(size=(count, width))
    chosen = centres[rng.choice(count, n, p=share / share.sum())]
    return chosen + spread * rng.normal(size=(n, width)) + offset


def normal(rng, n, width, *, offset=0.0, scale=1.0):
    return offset + scale * rng.normal(size=(n, width))


def groups(rng, n, width, *, size=10, spread=1e-3):
    """Groups of near duplicates."""
    centres = rng.normal(size=(-(-n // size), width))
    return centres[rng.integers(0, len(centres), n)] + spread * rng.normal(size=(n, width))


def uniform(rng, n, width):
    return rng.random((n, width))


def towns(rng, n, width):
    """Places on a map: most of them in a few hundred towns of very different sizes."""
    return clusters(rng, n, width, count=300, spread=0.01, power=1.0)


def outliers(rng, n, width):
    """One vector in a thousand is a thousand times as long."""
    vectors = rng.normal(size=(n, width))
    vectors[rng.random(n) < 1e-3] *= 1e3
    return vectors


def integers(rng, n, width):
    return rng.integers(0, 4, (n, width))


def counts(rng, n, width):
    """Counts of words with a few frequent ones."""
    return rng.poisson(8.0 / np.arange(1, width + 1), (n, width))


def one_hot(rng, n, width):
    """A one somewhere, and a little noise."""
    return np.eye(width)[rng.integers(0, width, n)] + 0.05 * rng.normal(size=(n, width))


def sparse(rng, n, width):
    return rng.normal(size=(n, width)) * (rng.random((n, width)) < 0.1)


def low_rank(rng, n, width):
    """A plane of five dimensions, bent, with a little noise."""
    hidden = rng.normal(size=(n, 5))
    first, second = rng.normal(size=(2, 5, width))
    return np.tanh(hidden @ first) + hidden @ second + 0.01 * rng.normal(size=(n, width))


def decaying(rng, n, width):
    """Components whose sizes fall as those of embeddings do."""
    rotation = np.linalg.qr(rng.normal(size=(width, width)))[0]
    return (rng.normal(size=(n, width)) / np.sqrt(np.arange(1, width + 1))) @ rotation


def heavy_tails(rng, n, width):
    return rng.standard_t(3, (n, width))


def lengths(rng, n, width):
    """Directions in clusters with very different lengths."""
    return clusters(rng, n, width, count=30, spread=0.3) * np.exp(rng.normal(size=(n, 1)))


def line(rng, n, width):
    """All on one line, with hardly anything beside it."""
    return rng.normal(size=(n, 1)) * np.ones(width) + 1e-3 * rng.normal(size=(n, width))
