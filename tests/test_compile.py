"""The cache of compiled kernels: it is used as long as no source changes, and no longer."""

import os
import subprocess
import sys

import pytest

from autojacobin.core import compilation
from tests.waiting import SECONDS

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


def test_another_process_compiles_meanwhile(folder, monkeypatch):
    monkeypatch.setattr(compilation, "usable_cores", lambda: 2)
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(folder / "cache"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    monkeypatch.chdir(folder)
    (folder / "callee.py").write_text(CALLEE.format(result="number * 10"))
    with compilation.compile_meanwhile("import caller; caller.main()") as process:
        assert process.wait(SECONDS) == 0
    assert run(folder, "number * 10") == "11 1\n"


def test_the_other_process_ends_with_the_block(monkeypatch):
    monkeypatch.setattr(compilation, "usable_cores", lambda: 2)
    with pytest.raises(KeyboardInterrupt), compilation.compile_meanwhile("while True: pass") as process:
        raise KeyboardInterrupt
    assert process.returncode is not None


def test_nothing_is_compiled_meanwhile_on_a_single_core(monkeypatch):
    monkeypatch.setattr(compilation, "usable_cores", lambda: 1)
    with compilation.compile_meanwhile("while True: pass") as process:
        assert process is None


def test_a_kernel_is_in_the_cache_once_it_was_called(monkeypatch, tmp_path):
    monkeypatch.setattr("numba.config.CACHE_DIR", str(tmp_path))

    def double(number):
        return 2 * number

    compiled = compilation.kernel(double)
    assert not compilation.is_cached(compiled)
    assert compiled(2) == 4
    assert compilation.is_cached(compiled)


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
from autojacobin.hashers import BinaryAutoencoder

rows = np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32)
BinaryAutoencoder(8, random_state=0).fit(rows).encode(rows)
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
    assert "autojacobin.hashers.autoencoders.tabu_kernels" in modules
    assert not {"numba.cpython.unicode", "numba.misc.quicksort"} & set(modules)
