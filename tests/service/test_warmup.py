"""A service that says it is ready keeps nobody waiting for the compiler."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from numba.core.caching import NullCache
from typer.testing import CliRunner

from autojacobin import LSH, BinaryAutoencoder, Index
from autojacobin.cli import app
from autojacobin.errors import StorageError
from autojacobin.search.kernels.selection import select_smallest
from autojacobin.service import Client, ServiceError, served, serving
from autojacobin.service.app import WATCHER
from autojacobin.service.served import ServedIndex, compile_kernels, kind_of
from tests.service.service_process import asked
from tests.waiting import until


@pytest.fixture
def cold(monkeypatch):
    """A process that has warmed nothing up."""
    monkeypatch.setattr(served, "_warm", set())


def test_nothing_is_compiled_after_the_service_is_ready():
    assert compiled_late(2, "few") == []


@pytest.mark.rare
@pytest.mark.parametrize("cores", [1, 2])
def test_nothing_is_compiled_after_a_service_of_all_kinds_of_indexes_is_ready(cores):
    assert compiled_late(cores) == []


@pytest.mark.rare
def test_nothing_is_compiled_for_a_service_after_everything_was_compiled_ahead():
    assert compiled_late(2, "ahead") == []


def compiled_late(cores, *arguments):
    result = subprocess.run(
        [sys.executable, "-m", "tests.service.compiled_after_ready", *arguments],
        capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2],
        env={**os.environ, "OMP_NUM_THREADS": str(cores)}, timeout=1200,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


class Counting(Index):
    """Notes how many queries each search has."""

    asked: list[int]

    def search(self, queries, *arguments, **options):
        self.asked.append(len(queries))
        return super().search(queries, *arguments, **options)


def test_an_index_of_a_known_kind_is_only_read(points, cold):
    first = Counting(LSH(16, random_state=0).fit(points))
    first.asked = []
    first.add(points[:300])
    ServedIndex("points", first).warm()
    assert max(first.asked) == 1024  # as many as a request may have
    first.asked = []
    ServedIndex("again", first).warm()  # another service of the same process
    assert first.asked == [1] * len(first.hasher.distances)
    first.add(points[300:])  # a second segment, and half as many again but no power of two more
    first.asked = []
    ServedIndex("points", first).warm()
    assert max(first.asked) == 1024


def test_a_service_that_is_written_to_while_it_warms_up_becomes_ready(points, cold, monkeypatch, caplog):
    index = Index(LSH(16, random_state=0).fit(points))
    index.add(points[:300])
    search, n_writes = Index.search, 0

    def search_beside_a_writer(self, *arguments, **options):
        nonlocal n_writes
        if threading.current_thread().name == WATCHER:
            found = search(self, *arguments, **options)
            n_writes += 1
            index.remove([id for id in found[1][0, :1].tolist() if id in index])  # what is about to be read
            index.add(points[:3])
            return found
        return search(self, *arguments, **options)

    monkeypatch.setattr(Index, "search", search_beside_a_writer)
    with serving({"points": index}, poll_seconds=0.01) as address, Client(address) as client:
        until(lambda: caplog.records or is_ready(client), "the service is ready, or logs why not")
        assert not caplog.records
    assert n_writes > 10


def is_ready(client):
    try:
        return asked(client, "/readyz")
    except ServiceError:
        return None


def test_every_distance_of_the_hasher_is_warmed_up_and_no_other(points, cold, monkeypatch):
    searched = []
    search = Index.search

    def noted(self, *arguments, **options):
        searched.append(options.get("distance"))
        return search(self, *arguments, **options)

    monkeypatch.setattr(Index, "search", noted)
    for hasher in (LSH(16, random_state=0), BinaryAutoencoder(16, random_state=0)):
        searched.clear()
        index = Index(hasher.fit(points))
        index.add(points[:300])
        assert served.warm_up(index, 1)
        assert {name for name in searched if name is not None} == set(hasher.distances)


def test_kinds_differ_where_kernels_do(points):
    def made(rows, bits=16, **options):
        index = Index(LSH(bits, random_state=0).fit(points), **options)
        index.add(rows)
        return index

    base = kind_of(made(points[:200]))
    assert base == kind_of(made(points[200:400]))
    others = [
        made(points[:200], bits=24),
        made(points[:200].astype(np.float64)),
        made(points[:200], keep_vectors=False),
        made(points),
        made(points[:200], partitions=4),
    ]
    assert len({base, *map(kind_of, others)}) == 6


def test_compiling_ahead_needs_a_cache_that_can_be_written(monkeypatch):
    monkeypatch.setattr(select_smallest, "_cache", NullCache())
    with pytest.raises(StorageError, match="cannot be kept.* set NUMBA_CACHE_DIR to a folder that can"):
        compile_kernels()


def test_the_command_says_what_it_compiles_and_when_it_is_done(monkeypatch):
    done = []
    monkeypatch.setattr(served, "_tasks", lambda: iter([("compiling one thing", done.append)]))
    result = CliRunner().invoke(app, ["warm"])
    assert result.exit_code == 0
    assert "compiling one thing" in result.output
    assert result.output.endswith("Everything is compiled; later commands load it from the cache.\n")
    assert len(done) == 1
    assert CliRunner().invoke(app, ["warm", "--quiet"]).output == ""
