"""Vectors in many files, and the index that is built of them."""

import numpy as np
import pytest

from autojacobin import LSH, Index
from autojacobin.jobs import build_index
from tests.jobs.cut_files import CUTS, ENDINGS, N, cut_into_files
from tests.jobs.in_process import InProcess


@pytest.fixture(scope="module")
def X():
    return np.random.default_rng(0).integers(0, 6, size=(N, 8)).astype(np.uint8)


@pytest.fixture(scope="module")
def pattern(X, tmp_path_factory):
    return cut_into_files(tmp_path_factory.mktemp("files"), X, CUTS, ENDINGS)


@pytest.fixture(scope="module")
def hasher(X):
    return LSH(20, random_state=0).fit(X[:500])


@pytest.fixture(scope="module")
def single(X, hasher):
    index = Index(hasher)
    index.add(X)
    return index


@pytest.fixture(scope="module")
def built(pattern, hasher, tmp_path_factory):
    path = tmp_path_factory.mktemp("built") / "index"
    assert build_index(pattern, hasher, path, InProcess(), rows_per_chunk=1) == N
    return path
