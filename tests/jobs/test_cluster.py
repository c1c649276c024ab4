"""A real Dask cluster: a scheduler and workers in processes of their own, one of which is killed."""

import gc
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import zipfile
from contextlib import contextmanager

import dask
import distributed
import numpy as np
import pytest
from typer.testing import CliRunner

from autojacobin import LSH, Codes, DataError, Index
from autojacobin.cli import app
from autojacobin.datasets import open_vectors, write_vectors
from autojacobin.errors import AutoJacobinError, MissingExtraError, StorageError
from autojacobin.evaluation import ground_truth
from autojacobin.jobs import build_index, connect, encode_files, search_index, true_neighbours
from autojacobin.jobs.workers import Workers
from autojacobin.search.kernels.selection import merge_topk
from tests.engines.printed import printed
from tests.jobs.cut_files import cut_into_files
from tests.jobs.in_process import InProcess
from tests.waiting import SECONDS, joined, until, with_signals

BLOCK = 2**16
N = 7 * BLOCK + 1000
LEARNS_FROM = 20  # queries; see tests/conftest.py
# on a busy machine an answer may take longer than Dask waits for one
PATIENCE = {"distributed.comm.timeouts.connect": "1 day", "distributed.comm.timeouts.tcp": "1 day"}
ENVIRONMENT = {
    **os.environ,
    **{f"DASK_{name.replace('.', '__').upper()}": value for name, value in PATIENCE.items()},
    "OMP_NUM_THREADS": "1",
    "PYTHONWARNINGS": "ignore",
}


def start(module, *options):
    command = [sys.executable, "-m", f"distributed.cli.{module}", *options, "--no-dashboard"]
    nothing = subprocess.DEVNULL
    return subprocess.Popen(command, env=ENVIRONMENT, stdout=nothing, stderr=nothing, **with_signals())


def start_worker(address):
    return start("dask_worker", address, "--nthreads", "1", "--no-nanny")


def wait_until(there, what, *processes):
    """Wait for something that these processes bring about, as long as they live."""

    def is_there():
        assert all(process.poll() is None for process in processes), f"a process ended before {what}"
        return there()

    until(is_there, what)


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    note = tmp_path_factory.mktemp("scheduler") / "scheduler.json"
    processes = [start("dask_scheduler", "--host", "127.0.0.1", "--port", "0", "--scheduler-file", str(note))]
    try:
        wait_until(
            lambda: note.exists() and note.read_text().strip().endswith("}"), "the scheduler has started", *processes
        )
        place = json.loads(note.read_text())["address"]
        processes += [start_worker(place), start_worker(place)]
        yield place
    finally:
        for process in processes:
            process.kill()
            process.wait(SECONDS)


@pytest.fixture(scope="module", autouse=True)
def _patient():
    with dask.config.set(PATIENCE), pytest.MonkeyPatch.context() as patch:
        patch.setattr("autojacobin.jobs.workers._SECONDS_TO_CONNECT", 24 * 3600)
        yield


@pytest.fixture(scope="module")
def cluster(address):
    with connect(address) as connected:
        connected.client.wait_for_workers(2)
        yield connected


@pytest.fixture(scope="module")
def X():
    return np.random.default_rng(0).integers(0, 6, size=(N, 8)).astype(np.uint8)


@pytest.fixture(scope="module")
def pattern(X, tmp_path_factory):
    cuts = [10, BLOCK - 3, 3 * BLOCK + 1, 5 * BLOCK]
    return cut_into_files(tmp_path_factory.mktemp("files"), X, cuts, ("npy", "u8bin", "bvecs", "parquet", "fbin"))


@pytest.fixture(scope="module")
def hasher(X):
    return LSH(24, random_state=0).fit(X[:500])


@pytest.fixture(scope="module")
def single(X, hasher):
    index = Index(hasher)
    index.add(X.astype(np.float32))
    return index


def same_as_single(path, single, queries, cluster):
    with Index.open(path) as index:
        index.verify()
        assert index.codes(np.arange(N)) == single.codes(np.arange(N))
        named = index._state.manifest.names() | {"MANIFEST.json", "LOCK"}
    assert set(os.listdir(path)) == named
    assert not os.path.exists(f"{path}.building")
    for options in ({}, {"distance": "asymmetric"}, {"rerank": False}):
        found = search_index(path, queries, 12, cluster, **options)
        assert all(map(np.array_equal, found, single.search(queries, 12, **options)))


def test_a_cluster_gives_what_a_single_machine_gives(cluster, tmp_path, X, pattern, hasher, single):
    reported = []
    build_index(pattern, hasher, tmp_path / "index", cluster, rows_per_chunk=1, progress=lambda *t: reported.append(t))
    assert reported == [("building", done, 8) for done in range(1, 9)]
    same_as_single(tmp_path / "index", single, X[5:25], cluster)
    truth = true_neighbours(pattern, X[:9], 30, cluster, rows_per_chunk=1)
    assert np.array_equal(truth, ground_truth(X, X[:9], 30))
    paths = encode_files(pattern, hasher, tmp_path / "codes", cluster, rows_per_chunk=2 * BLOCK)
    assert Codes.concatenate(map(Codes.load, paths)) == single.codes(np.arange(N))


@contextmanager
def killed_in_the_middle(cluster, address):
    """Kill one more worker with signal 9 during the block, when it has tasks and has not finished them.

    Gives the list of these tasks, which is filled during the block. The scheduler may have none for it.
    """
    client = cluster.client
    known = set(client.scheduler_info(n_workers=-1)["workers"])
    victim = start_worker(address)
    wait_until(
        lambda: len(client.scheduler_info(n_workers=-1)["workers"]) == len(known) + 1, "the worker has come", victim
    )
    (place,) = set(client.scheduler_info(n_workers=-1)["workers"]) - known
    os.kill(victim.pid, signal.SIGSTOP)  # or else it might be done with its tasks before it is killed
    over, unfinished = threading.Event(), []

    def kill():
        while not unfinished and not over.is_set():  # asked once: another worker may take the tasks over meanwhile
            unfinished.extend(client.processing([place])[place])
            time.sleep(0.02)
        os.kill(victim.pid, signal.SIGCONT)
        time.sleep(random.random() / 10)  # somewhere in the middle of a task
        os.kill(victim.pid, signal.SIGKILL)

    watcher = threading.Thread(target=kill)
    watcher.start()
    try:
        yield unfinished
    finally:
        over.set()
        joined(watcher)
        victim.wait(SECONDS)
    assert victim.returncode == -signal.SIGKILL
    wait_until(lambda: set(client.scheduler_info(n_workers=-1)["workers"]) == known, "the killed worker is forgotten")


def with_a_kill(cluster, address, work):
    """Do the work, again if the worker that was killed had nothing to do."""
    for attempt in range(5):
        with killed_in_the_middle(cluster, address) as unfinished:
            result = work(attempt)
        if unfinished:
            return result
    pytest.fail("no worker had a task when it was killed, in five attempts")


def test_a_worker_killed_in_the_middle_of_a_build_changes_nothing(
    cluster, address, tmp_path, X, pattern, hasher, single
):
    def build(attempt):
        build_index(pattern, hasher, tmp_path / f"index-{attempt}", cluster, rows_per_chunk=1)
        return tmp_path / f"index-{attempt}"

    same_as_single(with_a_kill(cluster, address, build), single, X[5:15], cluster)


@pytest.mark.rare
def test_a_worker_killed_in_the_middle_of_a_tree_of_answers_changes_nothing(cluster, address, X, pattern):
    truth = with_a_kill(cluster, address, lambda _: true_neighbours(pattern, X[:50], 20, cluster, rows_per_chunk=1))
    assert np.array_equal(truth, ground_truth(X, X[:50], 20))


def test_a_damaged_file_ends_the_job_and_is_named_and_what_was_done_is_kept(cluster, tmp_path, X, hasher):
    files = cut_into_files(tmp_path / "files", X[: 3 * BLOCK], [BLOCK, 2 * BLOCK], ("fvecs",))
    damaged = tmp_path / "files" / "part-001.fvecs"
    whole = damaged.read_bytes()
    damaged.write_bytes(whole[: 36 * 777 + 4] + np.float32("nan").tobytes() + whole[36 * 777 + 8 :])
    with pytest.raises(DataError, match=r"part-001\.fvecs.* NaN in row 777"):
        build_index(files, hasher, tmp_path / "index", cluster, rows_per_chunk=1)
    with pytest.raises(DataError, match=r"part-001\.fvecs"):
        true_neighbours(files, X[:2], 3, cluster, rows_per_chunk=1)
    with pytest.raises(StorageError, match="there is no index"):
        Index.open(tmp_path / "index")
    records = tmp_path / "index.building"
    wait_until(lambda: len(list(records.glob("chunk-*.json"))) == 2, "two chunks are written")
    damaged.write_bytes(whole)
    reported = []
    build_index(files, hasher, tmp_path / "index", cluster, rows_per_chunk=1, progress=lambda *t: reported.append(t))
    assert reported == [("building", 3, 3)]
    with Index.open(tmp_path / "index") as index:
        assert np.array_equal(index.vectors(np.arange(3 * BLOCK)), X[: 3 * BLOCK])


def test_workers_read_remote_files_too(cluster, tmp_path, X, hasher):
    files = cut_into_files(tmp_path / "files", X[:5000], [2000], ("npy", "u8bin"))
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        for path in sorted((tmp_path / "files").iterdir()):
            archive.write(path, path.name)
    remote = true_neighbours(f"zip://part-*::{tmp_path}/all.zip", X[:4], 9, cluster)
    assert np.array_equal(remote, true_neighbours(files, X[:4], 9, InProcess()))


def test_the_commands_write_what_they_say(cluster, address, tmp_path, X, single):
    files = cut_into_files(tmp_path / "files", X[:3000], [1000], ("npy", "bvecs"))
    single.hasher.save(tmp_path / "model.safetensors")
    write_vectors(tmp_path / "q.npy", X[:4])
    names = {
        name: str(tmp_path / name) for name in ("model.safetensors", "q.npy", "index", "codes", "t.ivecs", "f.npz")
    }

    def run(*arguments):
        line = [names.get(argument, argument) for argument in arguments]
        result = CliRunner().invoke(app, ["cluster", *line, "--cluster", address], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.output

    assert "Made" in run("build", "model.safetensors", files, "index")
    assert "3,000 vectors" in CliRunner().invoke(app, ["index", "verify", names["index"]]).output
    assert "Wrote 1 files" in run("encode", "model.safetensors", files, "codes")
    assert "7 neighbours of each of 4 queries" in run("truth", files, "q.npy", "t.ivecs", "-k", "7")
    assert np.array_equal(open_vectors(names["t.ivecs"]), ground_truth(X[:3000], X[:4], 7))
    run("search", "index", "q.npy", "f.npz", "-k", "6", "--distance", "asymmetric", "--candidates", "80")
    with np.load(names["f.npz"]) as found, Index.open(names["index"]) as index:
        distances, ids = index.search(X[:4], 6, distance="asymmetric", candidates=80)
        assert np.array_equal(found["ids"], ids)
        assert np.array_equal(found["distances"], distances)


def raise_one(file, kind, message):
    raise kind(message)


def need_something(file):
    raise MissingExtraError("pyarrow", "data", "reading Parquet")


def test_errors_of_workers_become_errors_of_this_library(cluster):
    for kind, expected in ((DataError, "just so"), (ZeroDivisionError, "on x.npy failed: ZeroDivisionError: just so")):
        with pytest.raises(AutoJacobinError, match=expected):
            list(cluster.each("test", raise_one, [("x.npy", kind, "just so")]))
    with pytest.raises(AutoJacobinError, match=r"pip install 'autojacobin\[data\]'"):
        list(cluster.each("test", need_something, [("x.npy",)]))


def answer_of(number, base):
    return np.array([[(number * 7) % 5 + base]]), np.array([[number]])


@pytest.mark.parametrize("n", [1, 2, 8, 9, 70])
def test_the_tree_of_answers_has_all_leaves(cluster, n):
    shared = cluster.share(3)
    calls = [(number, shared) for number in range(n)]
    distances, ids = cluster.merged("test", answer_of, calls, merge_topk, 20)
    order = sorted(range(n), key=lambda number: ((number * 7) % 5, number))[:20]
    assert ids[0].tolist() == order
    assert distances[0].tolist() == [(number * 7) % 5 + 3 for number in order]


@pytest.mark.parametrize(
    "wrong",
    [
        "local", "local:0", "local:-2", "localhost:8786", "http://x:1", "", None, "tcp://127.0.0.1", "tcp://host:port",
        "tcp://me:sesame@127.0.0.1:9", "tls://me:open/sesame@127.0.0.1:9", "ws://me:open@sesame@127.0.0.1:9",
        "tcp://me:open#sesame@127.0.0.1:9", "tcp://me:open sesame@127.0.0.1:9", "wss://127.0.0.1:9/x?token=sesame",
        "tcp://127.0.0.1:9?sig=sesame", "me:sesame@127.0.0.1:9", "ucx://me:sesame",
    ],
)  # fmt: skip
def test_addresses_that_are_none_are_shown_without_their_password_and_never_reach_dask(wrong, monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    expected = "with its port and without a password, got .*give for example local:4 or tcp://scheduler:8786"
    with pytest.raises(DataError, match=expected) as caught, connect(wrong):
        pass
    assert "sesame" not in printed(caught.value)


def test_a_scheduler_that_does_not_answer_is_reported(monkeypatch):
    monkeypatch.setattr("autojacobin.jobs.workers._SECONDS_TO_CONNECT", 1)
    reported = "no scheduler answers at tcp://127.0.0.1:9 within 1 s"
    with pytest.raises(StorageError, match=reported), connect("tcp://127.0.0.1:9"):
        pass


def test_certificates_that_are_missing_are_reported():
    expected = "cannot be used as the address of a scheduler: .*name certificates for TLS in Dask's"
    with pytest.raises(DataError, match=expected), connect("tls://127.0.0.1:9"):
        pass


def test_a_client_that_cannot_connect_is_closed_at_once(monkeypatch):
    monkeypatch.setattr("autojacobin.jobs.workers._SECONDS_TO_CONNECT", 1)
    for address in ("tcp://127.0.0.1:9", "tls://127.0.0.1:9"):
        with pytest.raises((DataError, StorageError)), connect(address):
            pass
        clients = [each for each in gc.get_objects() if type(each) is distributed.Client]
        assert {each.status for each in clients} <= {"running", "closed"}


def test_threads_of_one_worker_do_not_disturb_each_other(tmp_path, X, pattern, hasher, single):
    options = {"processes": False, "n_workers": 1, "threads_per_worker": 3, "dashboard_address": "127.0.0.1:0"}
    with distributed.Client(**options) as client:
        threaded = Workers(client)
        build_index(pattern, hasher, tmp_path / "index", threaded, rows_per_chunk=1)
        same_as_single(tmp_path / "index", single, X[5:15], threaded)
        truth = true_neighbours(pattern, X[:9], 30, threaded, rows_per_chunk=1)
    assert np.array_equal(truth, ground_truth(X, X[:9], 30))


def test_without_dask_the_line_to_install_it_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'autojacobin\[cluster\]'"), connect("local:1"):
        pass
