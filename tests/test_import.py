"""What ``import autojacobin`` loads: no library that only a fit, a search or a figure needs."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize("module", ["numba", "matplotlib", "typer", "starlette", "faiss"])
def test_the_import_stays_light(module):
    program = f"import sys, autojacobin; sys.exit({module!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_the_names_of_the_distances_do_not_load_numba():
    program = "import sys; from autojacobin.search.distances import DISTANCES; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_a_search_does_load_numba():
    program = "import sys; from autojacobin.search import rerank; sys.exit(7 if 'numba' in sys.modules else 0)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 7
