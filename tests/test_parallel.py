"""Work over points: BLAS gets its threads back, whoever held them to one, and tasks keep their order."""

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from threadpoolctl import ThreadpoolController, threadpool_limits

from autojacobin.core import parallel as _parallel
from autojacobin.core.parallel import map_points, run_tasks


def test_blas_is_held_to_one_thread_and_has_its_threads_back(monkeypatch):
    libraries = ThreadpoolController().select(user_api="blas")  # to find them takes long, where many are loaded
    monkeypatch.setattr(_parallel, "usable_cores", lambda: 2)

    def blas_threads():
        return [library["num_threads"] for library in libraries.info()]

    X = np.zeros((40, 3))
    inside = []

    def work(rows):
        inside.append(blas_threads())
        return float(np.linalg.eigh(np.eye(30))[0].sum())

    with threadpool_limits(2, user_api="blas"):
        before = blas_threads()
        list(map_points(work, X, 3))
        assert inside
        assert all(count == 1 for counts in inside for count in counts)
        assert blas_threads() == before
        with ThreadPoolExecutor(4) as pool:  # several at once, as in a grid search over threads
            for _ in range(5):
                list(pool.map(lambda _: list(map_points(work, X, 3)), range(8)))
        assert blas_threads() == before


def test_a_blas_library_that_is_loaded_later_is_held_to_one_thread_too():
    program = """
from threadpoolctl import threadpool_info, threadpool_limits
import numpy as np
from autojacobin.core.parallel import one_blas_thread, scipy_linalg

def threads():
    return [library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"]

before = threads()
with one_blas_thread():
    numpys = threads()
    scipy_linalg().eigh(np.eye(3))
    inside = threads()
    with one_blas_thread():
        pass
    assert threads() == inside
after = threads()
with one_blas_thread():
    assert set(threads()) == {1}
assert threads() == after
print(set(numpys) == set(inside) == {1}, set(after) == set(before))
"""
    environment = {**os.environ, "OMP_NUM_THREADS": "2", "OPENBLAS_NUM_THREADS": "2"}
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True, env=environment, timeout=1200
    )
    assert done.stdout.split() == ["True", "True"]


WORKERS = """
import sys, threading
import numpy as np
from threadpoolctl import threadpool_info, threadpool_limits

def threads():
    return [library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"]

if {another_thread_came_first}:
    first, done = threading.Event(), threading.Event()

    def come_first():
        with threadpool_limits(2, user_api="blas"):
            first.set()
            done.wait(600)

    threading.Thread(target=come_first, daemon=True).start()
    assert first.wait(600)
from autojacobin.autoencoder import tangent
from autojacobin.core import parallel

assert "scipy.linalg" not in sys.modules
parallel.usable_cores = lambda: 2
seen, estimate = [], tangent.local_pca

def watched(*arguments):
    seen.append((threading.current_thread() is threading.main_thread(), threads()))
    found = estimate(*arguments)
    seen.append((threading.current_thread() is threading.main_thread(), threads()))
    return found

tangent.local_pca = watched
numpys = threads()
tangent.tangent_spaces(np.random.default_rng(0).normal(size=(150, 6)).astype(np.float32), 20, 3, 0.9)
of_workers = {{count for _, counts in seen for count in counts}}
print(numpys, {{main for main, _ in seen}}, of_workers, max(len(counts) for _, counts in seen))
print(set(threads()))
with parallel.one_blas_thread():
    print(set(threads()))
"""


@pytest.mark.parametrize("another_thread_came_first", [False, True])
def test_blas_has_one_thread_in_the_workers_of_a_new_process(another_thread_came_first):
    # threadpoolctl 3.8 obeys only the first thread that sets a limit, and SciPy has a BLAS library of its own.
    program = WORKERS.format(another_thread_came_first=another_thread_came_first)
    environment = {**os.environ, "OMP_NUM_THREADS": "2", "OPENBLAS_NUM_THREADS": "2"}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment, timeout=1200
    )
    assert done.returncode == 0, done.stderr
    numpys, *rest = done.stdout.split("\n")
    assert (numpys, rest) == ("[2] {False} {1} 2", ["{2}", "{1}", ""])


def test_results_come_in_the_order_of_the_tasks(monkeypatch):
    monkeypatch.setattr(_parallel, "usable_cores", lambda: 3)
    X = np.arange(100)
    assert np.concatenate(list(map_points(lambda rows: X[rows], X, 7))).tolist() == list(range(100))
    assert run_tasks(lambda a, b: a * b, [(i, 2) for i in range(20)]) == [2 * i for i in range(20)]
    with pytest.raises(ZeroDivisionError):
        run_tasks(lambda a: 1 // a, [(1,), (0,), (2,)])


def test_tasks_that_share_out_their_own_work_do_not_wait_for_one_another(monkeypatch):
    pool = ThreadPoolExecutor(1)  # its one thread is busy with an outer task when that asks for help
    monkeypatch.setattr(_parallel, "usable_cores", lambda: 2)
    monkeypatch.setattr(_parallel, "_pool", lambda: pool)
    both_begun = threading.Barrier(2)

    def outer(number):
        both_begun.wait(60)
        return run_tasks(lambda inner: 10 * number + inner, [(i,) for i in range(3)])

    answer = []
    caller = threading.Thread(target=lambda: answer.append(run_tasks(outer, [(1,), (2,)])), daemon=True)
    caller.start()
    caller.join(timeout=60)
    assert answer == [[[10, 11, 12], [20, 21, 22]]]
    pool.shutdown()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_has_a_lock_and_threads_of_its_own():
    program = """
import os, threading, time
import numpy as np
from threadpoolctl import threadpool_info
from autojacobin.core import parallel

def threads():
    return [library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"]

np.eye(3) @ np.eye(3)
before, held, done = threads(), threading.Event(), threading.Event()

def hold():
    with parallel.one_blas_thread(), parallel._blas_lock:  # at the moment of the fork, another thread has both
        held.set()
        done.wait(600)

threading.Thread(target=hold).start()
assert held.wait(600)
child = os.fork()
if child == 0:
    with parallel.one_blas_thread():
        pass
    os._exit(0 if threads() == before else 3)
for _ in range(600):
    ended, status = os.waitpid(child, os.WNOHANG)
    if ended:
        break
    time.sleep(0.1)
else:
    os.kill(child, 9)
    status = 1
done.set()
print("status", status)
"""
    result = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
        timeout=1200,
    )
    assert result.stdout == "status 0\n", result.stderr
