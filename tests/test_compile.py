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
        cwd=folder, env=environment, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip


def test_a_kernel_is_compiled_again_when_one_that_it_calls_has_changed(folder):
    assert run(folder, "number * 10") == "11\n"
    assert run(folder, "number * 20") == "21\n"


def test_a_kernel_is_loaded_from_the_cache_when_nothing_has_changed(folder):
    assert run(folder, "number * 10") == "11\n"
    assert run(folder, "number * 10") == "11 1\n"
