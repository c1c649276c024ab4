"""The catalogue: the same vectors every time, and queries that are not in the base."""

import numpy as np
import pytest

from autojacobin import DataError
from autojacobin.datasets import load_set


def test_digits_are_split_and_always_the_same():
    data, again = load_set("digits"), load_set("digits")
    assert data.base.shape == (1497, 64)
    assert data.queries.shape == (300, 64)
    assert np.array_equal(data.queries, again.queries)
    assert data.base.dtype == np.uint8
    together = np.concatenate([data.base, data.queries])
    assert len(np.unique(together, axis=0)) == len(together)  # no query stands in the base


def test_an_unknown_set_is_named():
    with pytest.raises(DataError, match="no data set is called 'digit', expected one of: digits"):
        load_set("digit")
