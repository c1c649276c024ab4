"""A small hasher, an index of twenty vectors in memory, and both ways to look at a tile."""

import pytest

from autojacobin.index.index import Index
from tests.index.index_model import small_hasher, vectors


@pytest.fixture
def hasher():
    return small_hasher()


@pytest.fixture
def index(hasher):
    index = Index(hasher)
    index.add(vectors(20))
    return index


@pytest.fixture(params=["as they lie", "turned"])
def tiles_looked_at(request, monkeypatch):
    """Look at tiles as they lie, or turned into slices, however many queries there are."""
    fewest = 1 if request.param == "turned" else 10**9
    monkeypatch.setattr("autojacobin.search._topk._FEWEST_QUERIES_TO_SLICE", fewest)
