"""What HTTP adds to the time of a search, and how the service behaves under twice the load that it can handle.

    python benchmarks/service.py [--quick] [--json PATH] [--threads 2] [--seconds 60]

The service runs in a process of its own, on an index of 1M vectors with 128 bits. Throughput and delay through HTTP and
in this process are taken in turns; delay is a median, throughput the best of several rounds. On a busy machine a
hand-over to another process and to a thread takes longer than HTTP, so the delay is also compared with that of a bare
socket, behind which a thread does the same search, and which is the least that any service costs. Then load comes at
twice the rate that was reached, from connections that do not wait for each other, and once more while the service is
killed and started again.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from multiprocessing import connection as bare
from pathlib import Path
from typing import Any

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--quick", action="store_true", help="200,000 vectors and short rounds: under a minute")
parser.add_argument("--json", metavar="PATH")
parser.add_argument("--threads", type=int, default=2)
parser.add_argument("--seconds", type=float, default=None, help="how long the load lasts; default: 60, quick: 6")
arguments = parser.parse_args()
os.environ["OMP_NUM_THREADS"] = str(arguments.threads)  # before any library reads it

import numpy as np  # noqa: E402
from timing import write_results  # noqa: E402
from vectors import surface  # noqa: E402

from autojacobin import ITQ, Index  # noqa: E402
from autojacobin.service import Client  # noqa: E402

N = 200_000 if arguments.quick else 1_000_000
ROUNDS = 3 if arguments.quick else 6
SECONDS = arguments.seconds or (6.0 if arguments.quick else 60.0)
RESTART_SECONDS = min(SECONDS, 20.0)
BATCH, K, WIDTH, CONNECTIONS = 64, 10, 128, 64
results: list[dict[str, Any]] = []


class Service:
    """The service as users run it, in a separate process."""

    def __init__(self, path: Path, port: int = 0) -> None:
        command = [sys.executable, "-c", "from autojacobin.cli import main; main()", "serve", f"points={path}"]
        self.process = subprocess.Popen([*command, "--port", str(port)], stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().split(" at ")[1].split()[0]
        self.port = int(self.address.rpartition(":")[2])
        while True:
            with socket.create_connection(("127.0.0.1", self.port)) as probe:
                probe.sendall(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                if probe.recv(100).startswith(b"HTTP/1.1 200"):
                    return
            time.sleep(0.05)

    def resident_mb(self) -> float:
        """Memory of the process without the mapped files of the index."""
        fields = Path(f"/proc/{self.process.pid}/status").read_text().split()
        return int(fields[fields.index("RssAnon:") + 1]) / 1024

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30)


_BARE = """
import queue, sys, threading
from multiprocessing.connection import Listener
import numpy as np
from autojacobin import Index

index, asked, found = Index.open(sys.argv[1]), queue.Queue(), queue.Queue()

def search():
    while True:
        found.put(index.search(asked.get(), int(sys.argv[2])))

threading.Thread(target=search, daemon=True).start()
with Listener(("127.0.0.1", 0)) as listener:
    print(listener.address[1], flush=True)
    with listener.accept() as connection:
        try:
            while True:
                asked.put(np.frombuffer(connection.recv_bytes(), dtype=np.float32)[np.newaxis])
                distances, ids = found.get()
                connection.send_bytes(distances.tobytes() + ids.tobytes())
        except EOFError:
            pass
"""


@contextmanager
def bare_socket(path: Path) -> Iterator[bare.Connection]:
    """The same search in another process, in a separate thread, with nothing around it."""
    process = subprocess.Popen([sys.executable, "-c", _BARE, str(path), str(K)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        with bare.Client(("127.0.0.1", int(process.stdout.readline()))) as connection:
            yield connection
        process.wait(30)
    finally:
        process.kill()


def report(what: str, value: float, wanted: str, **details: Any) -> None:
    results.append({"what": what, "value": value, "wanted": wanted, **details})
    print(f"{what:66} {value:9.3f}   ({wanted})   {details}", flush=True)


def throughput(index: Index, service: Service, queries: np.ndarray) -> float:
    """Compare batches through HTTP, from two connections, with a loop in this process; returns requests per second."""
    batches = [np.ascontiguousarray(queries[start : start + BATCH]) for start in range(0, len(queries), BATCH)]
    local, remote = [], []
    index.search(batches[0], K)
    for _ in range(ROUNDS):
        start = time.perf_counter()
        for batch in batches:
            index.search(batch, K)
        local.append(len(queries) / (time.perf_counter() - start))
        threads = [threading.Thread(target=_ask_all, args=(service, batches[part::2])) for part in range(2)]
        start = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        remote.append(len(queries) / (time.perf_counter() - start))
    rates = {"local_a_second": round(max(local)), "http_a_second": round(max(remote))}
    report(f"batches of {BATCH} raw queries, rate through HTTP over local", max(remote) / max(local), ">= 0.7", **rates)
    return max(remote) / BATCH


def _ask_all(service: Service, batches: list[np.ndarray]) -> None:
    with Client(service.address) as client:
        for batch in batches:
            client.search(batch, K)


def _post_json(connection: http.client.HTTPConnection, body: bytes) -> bytes:
    connection.request("POST", "/v1/search", body, {"Content-Type": "application/json"})
    return connection.getresponse().read()


def delay(index: Index, service: Service, path: Path, queries: np.ndarray) -> None:
    """Compare single queries, in turns."""
    taken: dict[str, list[float]] = {"local": [], "bare": [], "raw": [], "json": []}
    plain = http.client.HTTPConnection("127.0.0.1", service.port)
    with closing(plain), Client(service.address) as client, bare_socket(path) as other:
        for number in range(100 * ROUNDS):
            query = queries[number % len(queries)][np.newaxis]
            asked = json.dumps({"vectors": query.tolist(), "k": K}).encode()
            calls = {
                "local": lambda query=query: index.search(query, K),
                "bare": lambda query=query: (other.send_bytes(query.tobytes()), other.recv_bytes()),
                "raw": lambda query=query: client.search(query, K),
                "json": lambda asked=asked: _post_json(plain, asked),
            }
            for name, call in calls.items():
                start = time.perf_counter()
                call()
                taken[name].append(1000 * (time.perf_counter() - start))
    for share, wanted in ((50, "<= 2"), (10, "on a busy machine, what is left without the noise")):
        seen = {f"{name}_ms": round(float(np.percentile(values, share)), 2) for name, values in taken.items()}
        what = f"one raw query, p{share} over that of"
        report(f"{what} the library, ms", seen["raw_ms"] - seen["local_ms"], wanted, **seen)
        report(f"{what} a bare socket, ms", seen["raw_ms"] - seen["bare_ms"], wanted)


async def load(service: Service, path: Path, rate: float, body: bytes, n_vectors: int) -> Service:
    """Send requests at a rate, whether answers come or not; kill and restart the service in the middle."""
    head = f"POST /v1/search?k={K} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/octet-stream\r\n"
    head += f"Autojacobin-Shape: {n_vectors},{len(body) // (4 * n_vectors)}\r\n"
    head += f"Accept: application/octet-stream\r\nContent-Length: {len(body)}\r\n\r\n"
    request = head.encode() + body
    begin, end = time.perf_counter(), time.perf_counter() + SECONDS
    due = iter(range(10**9))
    statuses: Counter[str] = Counter()
    taken: list[float] = []
    memory: list[float] = []

    async def connection() -> None:
        streams: Any = None
        while (when := begin + next(due) / rate) < end:
            await asyncio.sleep(max(0.0, when - time.perf_counter()))
            start = time.perf_counter()
            try:
                streams = streams or await asyncio.open_connection("127.0.0.1", service.port)
                streams[1].write(request)
                answer = (await streams[0].readuntil(b"\r\n\r\n")).decode("latin-1").lower()
                await streams[0].readexactly(int(answer.split("content-length: ")[1].split("\r\n")[0]))
            except (OSError, asyncio.IncompleteReadError):
                statuses["down" if killed.is_set() and not back.is_set() else "broken"] += 1
                streams = None
                await asyncio.sleep(0.05)
                continue
            statuses[answer[9:12]] += 1
            if answer[9:12] == "200":
                taken.append(1000 * (time.perf_counter() - start))

    async def watch() -> None:
        nonlocal service
        while time.perf_counter() < end:
            await asyncio.sleep(SECONDS / 60)
            memory.append(service.resident_mb())

    killed, back = asyncio.Event(), asyncio.Event()
    await asyncio.gather(*(connection() for _ in range(CONNECTIONS)), watch())
    _report_load(f"load of {n_vectors} a request", statuses, taken, memory, rate)

    async def kill() -> None:
        nonlocal service
        await asyncio.sleep(RESTART_SECONDS / 5)
        killed.set()
        service.process.kill()
        service.process.wait()
        service = await asyncio.to_thread(Service, path, service.port)
        back.set()

    begin, due = time.perf_counter(), iter(range(10**9))
    end = begin + RESTART_SECONDS
    statuses.clear()
    taken.clear()
    await asyncio.gather(*(connection() for _ in range(CONNECTIONS)), kill())
    report("killed and restarted under load, broken requests while it was up", statuses["broken"], "0", **statuses)
    return service


def _report_load(what: str, statuses: Counter[str], taken: list[float], memory: list[float], rate: float) -> None:
    other = sum(count for status, count in statuses.items() if status not in ("200", "503"))
    report(f"{what}: answers other than 200 and 503", other, "0", asked_a_second=round(rate), **statuses)
    cuts = statistics.quantiles(taken, n=100)
    details = {"p50_ms": round(statistics.median(taken), 1), "served_a_second": round(statuses["200"] / SECONDS)}
    report(f"{what}: p99 of the accepted, ms", cuts[98], "docs/service.md", **details)
    early = statistics.median(memory[len(memory) // 6 : len(memory) // 3])
    late = statistics.median(memory[-len(memory) // 6 :])
    report(f"{what}: memory at the end over that near the beginning", late / early, "1", begin_mb=early, end_mb=late)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "index"
        base, queries = surface(N, WIDTH, 0), surface(2048 if arguments.quick else 4096, WIDTH, 1)
        with Index.create(path, ITQ(128, random_state=0).fit(base[:10_000])) as index:
            index.add(base)
        service = Service(path)
        try:
            with Index.open(path) as index:
                rate = throughput(index, service, queries)
                delay(index, service, path, queries)
            service = asyncio.run(load(service, path, 2 * rate, queries[:BATCH].tobytes(), BATCH))
            ended = service.stop()
            report("exit code of a service that is told to stop", ended, "0")
        finally:
            service.process.kill()
    if arguments.json:
        write_results(arguments.json, results, arguments)


if __name__ == "__main__":
    main()
