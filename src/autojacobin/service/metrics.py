"""What the service counts, written as Prometheus reads it (text format 0.0.4)."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterable, Iterator

__all__ = ["MEDIA_TYPE", "Metrics", "Sample"]

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_VECTORS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)

Labels = tuple[tuple[str, str], ...]
Sample = tuple[str, str, str, Labels, float]  # name, kind, help, labels, value


class _Histogram:
    def __init__(self, edges: tuple[float, ...]) -> None:
        self._edges = edges
        self._counts = [0] * (len(edges) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._edges, value)] += 1
        self._sum += value

    def lines(self, name: str, labels: Labels) -> Iterator[str]:
        total = 0
        for edge, count in zip((*self._edges, float("inf")), self._counts, strict=True):
            total += count
            limit = "+Inf" if edge == float("inf") else f"{edge:g}"
            yield f"{name}_bucket{_written((*labels, ('le', limit)))} {total}"
        yield f"{name}_sum{_written(labels)} {self._sum:.9g}"
        yield f"{name}_count{_written(labels)} {total}"


class Metrics:
    """Counters and histograms; requests are counted by endpoint, so that no client can make up labels."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: dict[Labels, int] = {}
        self._seconds: dict[Labels, _Histogram] = {}
        self._batch_vectors = _Histogram(_VECTORS)
        self._batch_seconds = _Histogram(_SECONDS)

    def request(self, endpoint: str, status: int, seconds: float) -> None:
        """Count an answered request."""
        with self._lock:
            labels = (("endpoint", endpoint), ("status", str(status)))
            self._requests[labels] = self._requests.get(labels, 0) + 1
            where = (("endpoint", endpoint),)
            if where not in self._seconds:
                self._seconds[where] = _Histogram(_SECONDS)
            self._seconds[where].observe(seconds)

    def batch(self, n_vectors: int, seconds: float) -> None:
        """Count a batch that was worked off."""
        with self._lock:
            self._batch_vectors.observe(n_vectors)
            self._batch_seconds.observe(seconds)

    def text(self, samples: Iterable[Sample]) -> str:
        """Write all there is, and ``samples`` of what is true at this moment."""
        lines: list[str] = []
        with self._lock:
            lines += _head("autojacobin_requests_total", "counter", "Answered requests.")
            lines += [f"autojacobin_requests_total{_written(to)} {n}" for to, n in sorted(self._requests.items())]
            name = "autojacobin_request_seconds"
            lines += _head(name, "histogram", "Time from the head of a request to the last byte of its answer.")
            for labels, histogram in sorted(self._seconds.items()):
                lines += histogram.lines(name, labels)
            name = "autojacobin_batch_vectors"
            lines += _head(name, "histogram", "Vectors that were searched for or encoded together.")
            lines += self._batch_vectors.lines(name, ())
            name = "autojacobin_batch_seconds"
            lines += _head(name, "histogram", "Time that such a batch took.")
            lines += self._batch_seconds.lines(name, ())
        told = set()
        for name, kind, description, labels, value in samples:
            if name not in told:
                lines += _head(name, kind, description)
                told.add(name)
            lines.append(f"{name}{_written(labels)} {value:.15g}")
        return "\n".join(lines) + "\n"


def _head(name: str, kind: str, description: str) -> list[str]:
    return [f"# HELP {name} {description}", f"# TYPE {name} {kind}"]


def _written(labels: Labels) -> str:
    return "{" + ",".join(f'{name}="{value}"' for name, value in labels) + "}" if labels else ""
