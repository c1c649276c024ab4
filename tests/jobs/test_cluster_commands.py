"""``autojacobin cluster --cluster local:N`` in a process of its own, with workers that it starts, and with Ctrl-C."""

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress

import numpy as np
import psutil

from autojacobin import LSH, Index
from autojacobin.jobs.cluster import build_index
from autojacobin.jobs.executor import InProcess

from .cut_files import cut_into_files

BLOCK = 2**16
CHUNKS = 16
N = CHUNKS * BLOCK
COMMAND = [sys.executable, "-c", "from autojacobin.cli import main; main()", "cluster"]


def test_ctrl_c_ends_the_workers_too_and_the_job_goes_on_later(tmp_path):
    X = np.random.default_rng(0).integers(0, 6, size=(N, 16)).astype(np.uint8)
    pattern = cut_into_files(tmp_path / "files", X, [9 * BLOCK + 7], ("u8bin",))
    hasher = LSH(24, random_state=0).fit(X[:500])
    hasher.save(tmp_path / "model.safetensors")
    arguments = ["build", "model.safetensors", "files/part-*", "index", "--rows", "1", "--cluster", "local:2"]
    taken = socket.socket()
    with suppress(OSError):  # if somebody else has it, that will do as well
        taken.bind(("127.0.0.1", 8787))  # Dask's usual port, which an earlier job would have taken
        taken.listen()
    process = subprocess.Popen(
        [*COMMAND, *arguments], cwd=tmp_path, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    end = time.monotonic() + 120
    while not list(tmp_path.glob("index.building/chunk-*.json")):
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < end
        time.sleep(0.01)
    family = psutil.Process(process.pid).children(recursive=True)
    assert len(family) >= 2
    os.killpg(process.pid, signal.SIGINT)  # a terminal sends it to the workers too
    _, said = process.communicate(timeout=120)
    taken.close()
    assert process.returncode == 130, said
    assert "what is done is kept in index.building, and the same command goes on" in said
    assert "Traceback" not in said
    assert "Port" not in said
    _, alive = psutil.wait_procs(family, timeout=20)
    assert not alive
    assert os.listdir(tmp_path / "index") == ["LOCK"]
    done = len(list(tmp_path.glob("index.building/chunk-*.json")))
    assert 1 <= done < CHUNKS
    told = []
    build_index(pattern, hasher, tmp_path / "index", InProcess(), rows_per_chunk=1, progress=lambda *t: told.append(t))
    assert told == [("building", number, CHUNKS) for number in range(done + 1, CHUNKS + 1)]
    single = Index(hasher)
    single.add(X)
    with Index.open(tmp_path / "index") as index:
        index.verify()
        assert index.codes(np.arange(N)) == single.codes(np.arange(N))
