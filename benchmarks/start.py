"""How long a new process takes to its first answer, with an empty and with a full cache of compiled kernels.

    python benchmarks/start.py [--only search] [--rounds 3] [--quick] [--json PATH]

Each task is a process of its own: the import, the first search of an index on disk, the first fit of each method, and
the service until it is ready. Seconds begin with the process. CPU seconds stand beside those of the clock, because
they depend less on what else the machine does. Best of several rounds.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from timing import write_results

from autojacobin import ITQ, Index
from autojacobin.hashers import methods

WIDTH, BITS, POINTS = 64, 64, 100_000
WANTED_OF_IMPORT, WANTED = (0.5, 0.5), (5.0, 0.7)  # with an empty and with a full cache

SEARCH = """
import numpy as np
from autojacobin import Index
queries = np.load({folder!r} + "/queries.npy")[:{n}]
index = Index.open({folder!r} + "/index")
print(index.search(queries, 10, distance={distance!r})[1].shape)
"""
FIT = """
import numpy as np
from autojacobin.hashers import find_method
vectors = np.load({folder!r} + "/queries.npy")
print(find_method({method!r}).make({bits}, seed=0).fit(vectors[:1000]))
"""
SERVE = """
import sys
from autojacobin.cli import main
sys.argv = ["autojacobin", "serve", {folder!r} + "/index", "--port", "0"]
main()
"""


class Seconds(NamedTuple):
    """How long a process took, by the clock and on the CPU."""

    clock: float
    cpu: float


def tasks(folder: str, quick: bool) -> dict[str, str]:
    """Programs by name."""
    programs = {"import": "import autojacobin"}
    for name, n in (("one query", 1), ("1,000 queries", 1000)):
        for distance in ("hamming", "asymmetric"):
            programs[f"search, {name}, {distance}"] = SEARCH.format(folder=folder, n=n, distance=distance)
    named = [method.name for method in methods()]
    for method in named[:3] if quick else named:
        programs[f"fit, {method}"] = FIT.format(folder=folder, method=method, bits=BITS)
    programs["serve"] = SERVE.format(folder=folder)
    return programs


def prepare(folder: Path) -> None:
    """Write an index and vectors to fit, which serve as queries too."""
    vectors = np.random.default_rng(0).normal(size=(POINTS, WIDTH)).astype(np.float32)
    np.save(folder / "queries.npy", vectors[:2000])
    with Index.create(folder / "index", ITQ(BITS, random_state=0).fit(vectors[:2000])) as index:
        index.add(vectors)


def run(program: str, cache: Path) -> Seconds:
    """Run a program until it prints its first line, and to its end; a service until it is ready, and then stop it."""
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(cache)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package has its bytecode
    start = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE)
    assert process.stdout is not None
    line = process.stdout.readline().decode()
    served = re.search(r"serving .* at (\S+)", line)
    if served:
        wait_until_ready(served[1])
    clock = time.perf_counter() - start
    if served:
        process.send_signal(signal.SIGINT)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    process.stdout.close()
    if process.returncode:
        sys.exit(f"a program ended with the exit code {process.returncode}:\n{program}")
    return Seconds(clock, usage.ru_utime + usage.ru_stime)


def wait_until_ready(address: str) -> None:
    while True:
        try:
            with urllib.request.urlopen(f"{address}/readyz"):
                return
        except urllib.error.HTTPError as error:
            if error.code != 503:
                raise
        time.sleep(0.05)


def best(parts: list[Seconds]) -> Seconds:
    return Seconds(min(part.clock for part in parts), min(part.cpu for part in parts))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[""], metavar="TEXT", help="tasks whose name begins like one")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="one round, and three methods")
    parser.add_argument("--json", metavar="PATH")
    options = parser.parse_args()
    results: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        folder, cache = Path(name), Path(name) / "cache"
        prepare(folder)
        print(f"{'seconds: clock (CPU)':36} {'empty cache':>16} {'wanted':>8} {'full cache':>16} {'wanted':>8}")
        for task, program in tasks(name, options.quick).items():
            if not task.startswith(tuple(options.only)):
                continue
            empty, full = [], []
            for _ in range(1 if options.quick else options.rounds):
                shutil.rmtree(cache, ignore_errors=True)
                empty.append(run(program, cache))
                full.append(run(program, cache))
            first, later = best(empty), best(full)
            wanted = WANTED_OF_IMPORT if task == "import" else WANTED
            pairs = zip((first, later), wanted, strict=True)
            columns = [f"{part.clock:8.2f} ({part.cpu:5.2f}) {most:8.1f}" for part, most in pairs]
            print(f"{task:36} {'  '.join(columns)}", flush=True)
            results.append({"task": task, "empty": first._asdict(), "full": later._asdict(), "wanted": wanted})
    if options.json:
        write_results(options.json, results, options)


if __name__ == "__main__":
    main()
