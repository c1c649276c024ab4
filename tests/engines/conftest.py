"""What several files of tests share: one PostgreSQL a process, and vectors in many files with their index."""

import numpy as np
import pytest

from autojacobin import LSH, Index
from autojacobin.engines._executor import InProcess
from autojacobin.engines.cluster import build_index
from tests.engines import postgres
from tests.engines.cut_files import CUTS, ENDINGS, N, cut_into_files


@pytest.fixture(scope="session")
def dsn():
    with postgres.server() as dsn:
        yield dsn


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
