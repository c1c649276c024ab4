"""A small hasher, an index of twenty vectors in memory, and both ways to scan a tile."""

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


@pytest.fixture(params=["words", "slices"])
def scanned_as(request, monkeypatch):
    """Scan the words of a tile or its slices, however many queries there are."""
    fewest = 1 if request.param == "slices" else 10**9
    monkeypatch.setattr("autojacobin.search.scan._FEWEST_QUERIES_TO_SLICE", fewest)
