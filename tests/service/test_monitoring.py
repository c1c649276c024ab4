"""Metrics: each service counts its own, also with others in the same process."""

import sys

import pytest

from autojacobin.errors import MissingExtraError
from autojacobin.service import serving
from autojacobin.service.monitoring import Metrics
from autojacobin.service.served import open_indexes


def lines(metrics):
    return metrics.text().decode().splitlines()


def test_services_in_one_process_count_apart(index):
    first, second = (Metrics(open_indexes({"points": index}), lambda: 3, lambda: 2) for _ in range(2))
    first.count_request("/v1/search", 200, 0.02)
    first.count_batch(3, 0.2)
    counted = 'autojacobin_requests_total{endpoint="/v1/search",status="200"} 1.0'
    assert counted in lines(first)
    assert counted not in lines(second)
    assert "autojacobin_batch_vectors_count 1.0" in lines(first)
    assert "autojacobin_batch_vectors_count 0.0" in lines(second)


def test_buckets_gauges_and_indexes_are_written(index):
    metrics = Metrics(open_indexes({"points": index}), lambda: 3, lambda: 2)
    metrics.count_request("/v1/search", 200, 0.02)
    metrics.count_batch(3, 0.2)
    written = lines(metrics)
    for line in (
        'autojacobin_request_seconds_bucket{endpoint="/v1/search",le="0.01"} 0.0',
        'autojacobin_request_seconds_bucket{endpoint="/v1/search",le="0.025"} 1.0',
        'autojacobin_request_seconds_sum{endpoint="/v1/search"} 0.02',
        'autojacobin_batch_vectors_bucket{le="2.0"} 0.0',
        'autojacobin_batch_vectors_bucket{le="4.0"} 1.0',
        'autojacobin_batch_vectors_bucket{le="+Inf"} 1.0',
        "autojacobin_batch_seconds_sum 0.2",
        "autojacobin_waiting_vectors 3.0",
        "autojacobin_requests_inside 2.0",
        f'autojacobin_index_vectors{{index="points"}} {float(len(index))}',
        f'autojacobin_index_generation{{index="points"}} {float(index.info()["generation"])}',
        'autojacobin_index_refreshes_total{index="points"} 0.0',
        'autojacobin_index_failed_refreshes_total{index="points"} 0.0',
    ):
        assert line in written
    assert not any("_created" in line for line in written)


def test_a_missing_package_is_named_with_its_extra(index, monkeypatch):
    for module in ("autojacobin.service.app", "autojacobin.service.monitoring"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    expected = r"the search service needs the package 'prometheus_client'.*pip install 'autojacobin\[web\]'"
    with pytest.raises(MissingExtraError, match=expected), serving({"points": index}):
        pass
