"""Cost of the checks at the first read of an index, compared with reading its files.

    python benchmarks/first_read.py [--n 1000000] [--cold] [--folder DIR] [--json PATH] [--quick]

An index with float32 vectors is opened again and again, with ``check=True`` and with ``check=False``, in turn. Two
questions are asked of each: a search for a few queries, which reads all codes and some vectors, and a walk over all
of it, which reads every byte. The difference of the two is what the checks cost; it is given as a share of the time
in which the same files are read. With ``--cold`` the caches of the system are emptied before each of them, which
needs root. Best of several.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

import numpy as np
from timing import fastest, write_results

from autojacobin import LSH, Index

N_FEATURES = 128
CHUNK = 2**20


def made(folder: Path, n: int, n_bits: int) -> Path:
    """Make the index to be read."""
    rng = np.random.default_rng(0)
    hasher = LSH(n_bits, random_state=0).fit(rng.normal(size=(1000, N_FEATURES)).astype(np.float32))
    blocks = (rng.standard_normal((min(65536, n - s), N_FEATURES), dtype=np.float32) for s in range(0, n, 65536))
    with Index.create(folder / "index", hasher) as index:
        index.add(blocks)
    return folder / "index"


def read_files(paths: list[Path]) -> None:
    """Read every byte of some files into one buffer."""
    buffer = bytearray(CHUNK)
    for path in paths:
        with open(path, "rb", buffering=0) as stream:
            while stream.readinto(buffer):
                pass


def search(path: Path, queries: np.ndarray, check: bool) -> None:
    """Search a freshly opened index."""
    with Index.open(path, check=check) as index:
        index.search(queries, 10, candidates=100)


def walk(path: Path, check: bool) -> None:
    """Read all of a freshly opened index."""
    with Index.open(path, check=check) as index:
        for _ in index.parts():
            pass


def drop_caches() -> None:
    """Make the system forget the files it has read."""
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("3")


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--n", type=int, default=1_000_000, help="vectors")
    parser.add_argument("--bits", type=int, default=128)
    parser.add_argument("--queries", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--cold", action="store_true", help="empty the caches before each task (needs root)")
    parser.add_argument("--folder", help="where to make the index; by default a temporary folder")
    parser.add_argument("--json", help="file for the figures")
    parser.add_argument("--quick", action="store_true", help="20,000 vectors, two rounds")
    options = parser.parse_args()
    if options.quick:
        options.n, options.rounds = 20_000, 2
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        path = made(Path(folder), options.n, options.bits)
        queries = np.random.default_rng(1).standard_normal((options.queries, N_FEATURES), dtype=np.float32)
        search(path, queries, True)  # compiles
        everything = sorted(path.glob("*-*"))
        tasks = {
            "read the files": lambda: read_files(everything),
            "search, checked": lambda: search(path, queries, True),
            "search, unchecked": lambda: search(path, queries, False),
            "walk, checked": lambda: walk(path, True),
            "walk, unchecked": lambda: walk(path, False),
        }
        times = fastest(tasks, options.rounds, drop_caches if options.cold else lambda: None)
        size = sum(file.stat().st_size for file in everything)
    read = times["read the files"]
    print(f"{options.n:,} vectors, {size / 1e6:,.0f} MB, caches {'empty' if options.cold else 'full'}")
    for name, seconds in times.items():
        print(f"{name:20s} {seconds * 1e3:9.1f} ms   {seconds / read:6.2f} of reading")
    shares = {what: (times[f"{what}, checked"] - times[f"{what}, unchecked"]) / read for what in ("search", "walk")}
    for what, share in shares.items():
        print(f"checks of a {what:8s} {share:9.1%} of reading the files")
    if options.json:
        write_results(options.json, {"bytes": size, "seconds": times, "shares": shares}, options)


if __name__ == "__main__":
    main()
