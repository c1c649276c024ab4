"""The table of distances: what prepares queries and what searches codes give the same, for any object that encodes."""

from typing import get_args

import numpy as np
import pytest

from autojacobin import Codes, DataError, search
from autojacobin.cli.options import Distance
from autojacobin.hashers.persistence import classes
from autojacobin.search.distances import DISTANCES, as_distance
from autojacobin.search.queries import DistanceTerms
from autojacobin.search.tiles import tiles_of


class Signs:
    """Codes that are the signs of the vectors themselves. The table needs no more of a hasher."""

    def encode(self, X):
        return Codes.from_bits(X >= 0)

    def project(self, X):
        return X

    def distance_terms(self, X):
        return DistanceTerms(X, (X**2).sum(axis=1), 0)


def test_every_entry_says_what_it_is():
    assert tuple(DISTANCES) == ("hamming", "asymmetric", "decoded", "spherical")
    assert all(entry.name == name and entry.summary and entry.unit for name, entry in DISTANCES.items())


def test_the_command_line_offers_the_same():
    assert get_args(Distance) == tuple(DISTANCES)


def test_functions_of_the_package_are_found_by_name():
    assert all(callable(getattr(search, name)) and name in dir(search) for name in search.__all__)
    assert not hasattr(search, "nearest")


@pytest.mark.parametrize("name", DISTANCES)
def test_prepared_queries_find_what_the_search_over_codes_finds(name):
    rng = np.random.default_rng(0)
    base, queries = Codes.from_bits(rng.normal(size=(3000, 50)) >= 0), rng.normal(size=(40, 50))
    entry = DISTANCES[name]
    expected = entry.topk(entry.encode(Signs(), queries), base, 30)
    prepared = entry.queries(Signs(), queries)
    whole, ids = tiles_of(base).nearest(prepared, 30)
    assert len(prepared) == 40
    assert np.array_equal(ids, expected[1])
    assert np.array_equal(prepared.real(whole), expected[0])
    halves = type(prepared).concatenate([prepared[:15], prepared[15:]])
    assert np.array_equal(halves.real(tiles_of(base).nearest(halves, 30)[0]), expected[0])


def test_the_first_allowed_distance_is_the_default():
    assert as_distance(None, ("decoded", "hamming")) == "decoded"
    assert as_distance("hamming", ("decoded", "hamming")) == "hamming"


@pytest.mark.parametrize("name", ["euclidean", "", 3, ["hamming"], "Hamming", "decoded"])
def test_another_name_is_refused(name):
    with pytest.raises(DataError, match="distance must be 'hamming' or 'asymmetric', got "):
        as_distance(name, ("hamming", "asymmetric"))
    with pytest.raises(DataError, match="distance must be 'a', 'b' or 'c', got "):
        as_distance(name, ("a", "b", "c"))


@pytest.mark.parametrize(
    "method",
    sorted((one for one in classes().values() if not one._wraps_hasher), key=lambda one: one.__name__),
    ids=lambda one: one.__name__,
)
def test_every_method_names_distances_that_exist(method):
    assert set(method.distances) <= set(DISTANCES)
    assert len(set(method.distances)) == len(method.distances) >= 1
