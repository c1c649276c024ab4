"""``autojacobin cluster --cluster local:N`` in a process of its own, with workers that it starts, and with Ctrl-C."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress

import numpy as np
import psutil
import pytest

from autojacobin import LSH, AutoJacobinError, Index
from autojacobin.jobs import build_index, connect
from tests import waiting
from tests.jobs.cut_files import cut_into_files
from tests.jobs.in_process import InProcess
from tests.waiting import SECONDS, joined, until

BLOCK = 2**16
CHUNKS = 16
COMMAND = [sys.executable, "-c", "from autojacobin.cli import main; main()", "cluster"]


def interrupted(folder, X):
    """Start to build an index and press Ctrl-C in the middle; gives the pattern of its files, and the hasher.

    None if the machine let the command finish before this process came to interrupt it.
    """
    pattern = cut_into_files(folder / "files", X, [9 * BLOCK + 7], ("u8bin",))
    hasher = LSH(24, random_state=0).fit(X[:500])
    hasher.save(folder / "model.safetensors")
    arguments = ["build", "model.safetensors", "files/part-*", "index", "--rows", "1", "--cluster", "local:2"]
    with waiting.process(
        [*COMMAND, *arguments], cwd=folder, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        until(
            lambda: list(folder.glob("index.building/chunk-*.json")) or process.poll() is not None,
            "a chunk is written",
            pause=0.01,
        )
        if process.poll() is not None:
            assert process.returncode == 0, process.stderr.read()
            return None
        family = psutil.Process(process.pid).children(recursive=True)
        os.killpg(process.pid, signal.SIGINT)  # a terminal sends it to the workers too
        _, said = process.communicate(timeout=SECONDS)
    if process.returncode == 0 or (folder / "index" / "MANIFEST.json").exists():
        return None
    assert len(family) >= 2
    assert process.returncode == 130, said
    assert "what was computed is kept in index.building, and the same command continues from there" in said
    assert "Traceback" not in said
    assert "Port" not in said
    psutil.wait_procs(family)
    assert set(os.listdir(folder / "index")) == {"LOCK", "UNFINISHED"}  # no segment yet; the job may continue
    return pattern, hasher


def starting_worker(process):
    """The first process of a worker, as soon as there is one."""
    for child in process.children(recursive=True):
        with suppress(psutil.Error):  # it has just ended
            if "spawn_main" in str(child.cmdline()):
                return child
    return None


@pytest.mark.rare  # starts a cluster
@pytest.mark.parametrize("seconds", [0, 0.3, 1])
def test_ctrl_c_while_the_workers_start_is_one_sentence(tmp_path, seconds):
    X = np.random.default_rng(0).integers(0, 6, size=(BLOCK, 16)).astype(np.uint8)
    cut_into_files(tmp_path / "files", X, [], ("u8bin",))
    LSH(24, random_state=0).fit(X[:500]).save(tmp_path / "model.safetensors")
    arguments = ["build", "model.safetensors", "files/part-*", "index", "--cluster", "local:2", "--quiet"]
    with waiting.process(
        [*COMMAND, *arguments], cwd=tmp_path, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        until(lambda: starting_worker(psutil.Process(process.pid)), "a worker starts", pause=0.01)
        time.sleep(seconds)
        family = psutil.Process(process.pid).children(recursive=True)
        os.killpg(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=SECONDS)
    assert process.returncode == 130, said
    expected = "what was computed is kept in index.building, and the same command continues from there"
    assert said == f"autojacobin: stopped; {expected}\n"
    assert not psutil.wait_procs(family, SECONDS)[1]


@pytest.mark.rare  # starts a cluster
def test_a_worker_that_is_killed_while_it_starts_is_reported():
    def kill():
        until(lambda: starting_worker(psutil.Process()), "a worker starts", pause=0.01).kill()

    killer = threading.Thread(target=kill)
    killer.start()
    expected = "the workers of local:1 could not be started: .*; begin again"
    with pytest.raises(AutoJacobinError, match=expected), connect("local:1"):
        pass
    joined(killer)
    assert starting_worker(psutil.Process()) is None


@pytest.mark.rare
def test_ctrl_c_ends_the_workers_too_and_the_job_continues_later(tmp_path):
    taken = socket.socket()
    with suppress(OSError):  # if somebody else has it, that will do as well
        taken.bind(("127.0.0.1", 8787))  # Dask's usual port, which an earlier job would have taken
        taken.listen()
    stopped, chunks = None, CHUNKS
    with taken:
        while stopped is None:
            X = np.random.default_rng(0).integers(0, 6, size=(chunks * BLOCK, 16)).astype(np.uint8)
            folder = tmp_path / str(chunks)
            folder.mkdir()
            stopped = interrupted(folder, X)
            chunks *= 2
    pattern, hasher = stopped
    chunks = len(X) // BLOCK
    done = len(list(folder.glob("index.building/chunk-*.json")))
    assert 1 <= done <= chunks
    reported = []
    build_index(
        pattern, hasher, folder / "index", InProcess(), rows_per_chunk=1, progress=lambda *t: reported.append(t)
    )
    assert reported == [("building", number, chunks) for number in range(done + 1, chunks + 1)]
    single = Index(hasher)
    single.add(X)
    with Index.open(folder / "index") as index:
        index.verify()
        assert index.codes(np.arange(len(X))) == single.codes(np.arange(len(X)))
