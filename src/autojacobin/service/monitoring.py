"""Metrics of a service for Prometheus, which prometheus-client counts and writes as text (format 0.0.4)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

if TYPE_CHECKING:
    from autojacobin.service.served import ServedIndex

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_CREATED = re.compile(rb"^(?:# (?:HELP|TYPE) )?\w+_created[ {].*\n", re.MULTILINE)
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_VECTORS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class Metrics:
    """Metrics of one service. Each has its own registry, so that several can run in one process."""

    def __init__(
        self, indexes: Mapping[str, ServedIndex], n_waiting: Callable[[], int], n_inside: Callable[[], int]
    ) -> None:
        self._registry = registry = CollectorRegistry()
        self._indexes = indexes
        registry.register(self)
        counter, histogram = partial(Counter, registry=registry), partial(Histogram, registry=registry)
        self._requests = counter("autojacobin_requests_total", "Answered requests.", ["endpoint", "status"])
        what = "Time from the head of a request to the last byte of its answer."
        self._request_seconds = histogram("autojacobin_request_seconds", what, ["endpoint"], buckets=_SECONDS)
        what = "Vectors that were searched for or encoded together."
        self._batch_vectors = histogram("autojacobin_batch_vectors", what, buckets=_VECTORS)
        what = "Time that such a batch took."
        self._batch_seconds = histogram("autojacobin_batch_seconds", what, buckets=_SECONDS)
        change = ["index", "change"]
        self._written = counter("autojacobin_written_vectors_total", "Vectors added, replaced or removed.", change)
        self._writes = counter("autojacobin_writes_total", "Finished writes.", change)
        gauge = partial(Gauge, registry=registry)
        gauge("autojacobin_waiting_vectors", "Vectors that wait for their turn.").set_function(n_waiting)
        gauge("autojacobin_requests_inside", "Requests under way that need an index.").set_function(n_inside)

    def count_request(self, endpoint: str, status: int, seconds: float) -> None:
        """Count a request that has its response, by endpoint and not by path, so that no client can add labels."""
        self._requests.labels(endpoint, str(status)).inc()
        self._request_seconds.labels(endpoint).observe(seconds)

    def count_batch(self, n_vectors: int, seconds: float) -> None:
        """Count a batch that was searched for or encoded."""
        self._batch_vectors.observe(n_vectors)
        self._batch_seconds.observe(seconds)

    def count_write(self, index: str, change: str, n_vectors: int) -> None:
        """Count a write that is on the disk; ``change`` is "add", "upsert" or "remove"."""
        self._writes.labels(index, change).inc()
        self._written.labels(index, change).inc(n_vectors)

    def text(self) -> bytes:
        """Write all metrics, without the time when each was created."""
        return _CREATED.sub(b"", generate_latest(self._registry))

    def collect(self) -> Iterator[Metric]:
        """Give the metrics of the indexes, which prometheus-client asks for."""
        vectors = GaugeMetricFamily("autojacobin_index_vectors", "Vectors in an index.", labels=["index"])
        generations = GaugeMetricFamily("autojacobin_index_generation", "State of an index.", labels=["index"])
        refreshes = CounterMetricFamily("autojacobin_index_refreshes", "New versions picked up.", labels=["index"])
        what = "New versions that could not be opened."
        failed = CounterMetricFamily("autojacobin_index_failed_refreshes", what, labels=["index"])
        for name, served in self._indexes.items():
            vectors.add_metric([name], len(served.index))
            if served.index.generation is not None:
                generations.add_metric([name], served.index.generation)
            refreshes.add_metric([name], served.refreshes)
            failed.add_metric([name], served.failed_refreshes)
        yield from (vectors, generations, refreshes, failed)
