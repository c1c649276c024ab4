"""A small hasher, an index of twenty vectors in memory, and the choice between some instants of a work and all."""

import random

import pytest

from autojacobin.index import Index
from tests.index.index_model import small_hasher, vectors


@pytest.fixture
def hasher():
    return small_hasher()


@pytest.fixture
def index(hasher):
    index = Index(hasher)
    index.add(vectors(20))
    return index


class Instants:
    """Chooses among the numbers from 1 to ``count``: all of them, or a few."""

    def __init__(self, most):
        self.every, self.most = most is None, most

    def __call__(self, count, most=None):
        """Give the numbers; ``most`` is for works that take long."""
        numbers, most = range(1, count + 1), most or self.most
        if self.every or count <= most:
            return list(numbers)
        return sorted(random.Random(count).sample(numbers, most))


@pytest.fixture(params=[pytest.param(8, id="some"), pytest.param(None, id="every", marks=pytest.mark.rare)])
def instants(request):
    """For tests that let something go wrong at every instant of a work."""
    return Instants(request.param)
