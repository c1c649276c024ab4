"""The cache of compiled kernels: it is used as long as no source changes, and no longer."""

import os
import subprocess
import sys

import pytest

CALLER = """
from autojacobin.core.compilation import kernel
from callee import inner

@kernel
def outer(number):
    return inner(number) + 1

def main():
    print(outer(1), *outer.stats.cache_hits.values())
"""
CALLEE = """
from autojacobin.core.compilation import kernel

@kernel
def inner(number):
    return {result}
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "caller.py").write_text(CALLER)
    return tmp_path


def run(folder, result):
    """Output of the caller in a new process, with a callee that returns ``result``."""
    (folder / "callee.py").write_text(CALLEE.format(result=result))
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(folder / "cache"), "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(
        [sys.executable, "-c", "import caller; caller.main()"],
        cwd=folder, env=environment, capture_output=True, text=True, check=True, timeout=1200,
    ).stdout  # fmt: skip


def test_a_kernel_is_compiled_again_when_one_that_it_calls_has_changed(folder):
    assert run(folder, "number * 10") == "11\n"
    assert run(folder, "number * 20") == "21\n"


def test_a_kernel_is_loaded_from_the_cache_when_nothing_has_changed(folder):
    assert run(folder, "number * 10") == "11\n"
    assert run(folder, "number * 10") == "11 1\n"


COMPILED = """
import numpy as np
from numba.core import event

class Names(event.Listener):
    names = []

    def on_start(self, event):
        self.names.append(event.data["dispatcher"].__module__)

    def on_end(self, event):
        pass

event.register("numba:compile", Names())
from autojacobin.search.centres import Centres

rows = np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32)
Centres(rows[:8]).nearest(rows, 2)
print(*sorted(set(Names.names)))
"""


@pytest.mark.rare
def test_no_time_is_spent_on_compiling_texts_and_sorts(tmp_path):
    """Numba compiles the text of an error for an assignment between arrays, and a quicksort for np.partition."""
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    result = subprocess.run(
        [sys.executable, "-c", COMPILED], env=environment, capture_output=True, text=True, check=True, timeout=1200
    )
    modules = result.stdout.split()
    assert "autojacobin.search.kernels.coarse_quantiser" in modules
    assert not {"numba.cpython.unicode", "numba.misc.quicksort"} & set(modules)
