"""The module for ann-benchmarks, driven as the runner of that project drives it."""

import importlib.util
import sys
from itertools import chain
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from autojacobin.evaluation import ground_truth

yaml = pytest.importorskip("yaml")

FOLDER = Path(__file__).parents[1] / "benchmarks" / "ann_benchmarks"
PACKAGE = "ann_benchmarks.algorithms.autojacobin"
K = 10


class BaseANN:
    """What the base class of ann-benchmarks gives to a module."""

    def get_batch_results(self):
        return self.res

    def __str__(self):
        return self.name


@pytest.fixture
def algorithm(monkeypatch):
    """The module, as if its folder had been copied into ann-benchmarks."""
    if importlib.util.find_spec("ann_benchmarks") is None:
        for name in ("ann_benchmarks", "ann_benchmarks.algorithms", "ann_benchmarks.algorithms.base"):
            monkeypatch.setitem(sys.modules, name, ModuleType(name))
        base = ModuleType("ann_benchmarks.algorithms.base.module")
        base.BaseANN = BaseANN
        monkeypatch.setitem(sys.modules, base.__name__, base)
    package = ModuleType(PACKAGE)
    package.__path__ = [str(FOLDER)]
    monkeypatch.setitem(sys.modules, PACKAGE, package)
    spec = importlib.util.spec_from_file_location(f"{PACKAGE}.module", FOLDER / "module.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.AutoJacobin


@pytest.fixture(scope="module")
def vectors():
    centres = np.random.default_rng(0).normal(size=(30, 24))
    rng = np.random.default_rng(1)
    return (centres[rng.integers(0, 30, 2_500)] + 0.5 * rng.normal(size=(2_500, 24))).astype(np.float32)


def unit(X):
    return X / np.linalg.norm(X, axis=1, keepdims=True)


def recall(found, truth):
    return np.mean([np.isin(row, true).mean() for row, true in zip(found, truth, strict=True)])


@pytest.mark.parametrize("metric", ["euclidean", "angular"])
def test_queries_find_the_neighbours_in_the_metric_of_the_data(algorithm, vectors, metric):
    scales = np.random.default_rng(2).uniform(0.2, 5, size=(len(vectors), 1)).astype(np.float32)
    base, queries = (vectors * scales)[:2_400], vectors[2_400:]
    tried = algorithm(metric, {"lists": 16, "bits": 64})
    tried.fit(base)
    tried.set_query_arguments([16, 200])
    found = [tried.query(query, K) for query in queries]
    truth = ground_truth(base, queries, K) if metric == "euclidean" else ground_truth(unit(base), unit(queries), K)
    assert recall(found, truth) >= 0.99


def test_a_batch_finds_what_single_queries_find(algorithm, vectors):
    tried = algorithm("euclidean", {"lists": 16, "bits": 32})
    tried.fit(vectors[:2_400])
    tried.set_query_arguments([4, 30])
    tried.batch_query(vectors[2_400:], K)
    np.testing.assert_array_equal(tried.get_batch_results(), [tried.query(query, K) for query in vectors[2_400:]])


def test_more_probes_and_candidates_find_more(algorithm, vectors):
    base, queries = vectors[:2_400], vectors[2_400:]
    tried = algorithm("euclidean", {"lists": 16, "bits": 32})
    tried.fit(base)
    reached = []
    for setting in ([1, 10], [16, 300]):
        tried.set_query_arguments(setting)
        tried.batch_query(queries, K)
        reached.append(recall(tried.get_batch_results(), ground_truth(base, queries, K)))
    assert reached[0] < reached[1]


def test_whole_numbers_are_kept_as_bytes(algorithm, vectors):
    base = np.clip(np.round(40 * vectors + 120), 0, 255)
    tried = algorithm("euclidean", {"lists": 16, "bits": 32})
    tried.fit(base)
    assert tried.index.vectors([0]).dtype == np.uint8


def test_the_name_shows_the_settings_that_were_used(algorithm, vectors):
    tried = algorithm("euclidean", {"lists": 4096, "bits": 32})
    tried.fit(vectors)
    tried.set_query_arguments([8, 40])
    assert str(tried) == "autojacobin(lists=39, bits=32, probes=8, candidates=40)"


def test_other_metrics_are_refused(algorithm):
    with pytest.raises(ValueError, match="metric must be euclidean or angular, got 'jaccard'"):
        algorithm("jaccard", {"lists": 16, "bits": 32})


def test_the_configuration_names_what_the_module_has(algorithm, vectors):
    (entry,) = yaml.safe_load((FOLDER / "config.yml").read_text(encoding="utf-8"))["float"]["any"]
    assert entry["module"] == PACKAGE
    assert entry["constructor"] == algorithm.__name__
    for group in entry["run_groups"].values():
        (choices,) = group["arg_groups"]
        tried = algorithm("euclidean", {"lists": max(choices["lists"]), "bits": choices["bits"]})
        tried.fit(vectors[:400])
        for setting in chain(*group["query_args"]):
            tried.set_query_arguments(setting)
            assert tried.query(vectors[0], K)[0] == 0
