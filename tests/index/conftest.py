"""A small hasher, and an index of twenty vectors in memory."""

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
