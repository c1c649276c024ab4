"""What ``import autojacobin`` loads: no library that only a fit, a search or a figure needs."""

import subprocess
import sys


def test_the_import_stays_light():
    heavy = "numba sklearn scipy matplotlib typer starlette faiss"
    program = f"import sys, autojacobin; print(*set({heavy!r}.split()) & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=1200)
    assert result.stdout.strip() == ""


def test_the_names_of_the_distances_do_not_load_numba():
    program = "import sys; from autojacobin.search.distances import DISTANCES; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=1200).returncode == 0


def test_a_search_does_load_numba():
    program = "import sys; from autojacobin.search import rerank; sys.exit(7 if 'numba' in sys.modules else 0)"
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=1200).returncode == 7


def test_every_public_name_can_be_imported():
    program = "import autojacobin as a; [getattr(a, name) for name in a.__all__]; assert set(a.__all__) <= set(dir(a))"
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=1200).returncode == 0


def test_a_search_over_codes_does_not_load_scikit_learn():
    program = """
import sys
from autojacobin import Codes
from autojacobin.search import hamming_topk
codes = Codes.from_bits([[0, 0, 1], [1, 1, 1]])
assert hamming_topk(codes, codes, 1)[1].tolist() == [[0], [1]]
sys.exit("sklearn" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=1200).returncode == 0


def test_an_index_is_searched_without_scikit_learn_scipy_and_pandas(tmp_path):
    program = """
import sys
import numpy as np
from autojacobin import ITQ, Index
points = np.random.default_rng(0).normal(size=(2100, 8)).astype(np.float32)
if len(sys.argv) > 2:
    Index.create(sys.argv[1], ITQ(8, random_state=0).fit(points)).add(points)
with Index.open(sys.argv[1]) as index:
    index.search(points[:2], 3)
    index.plan(3)
    index.search(points[:2], 3)
print(*sorted({"sklearn", "scipy.sparse", "scipy.stats", "pandas", "joblib"} & set(sys.modules)))
"""
    for arguments in ([tmp_path / "index", "make"], [tmp_path / "index"]):
        result = subprocess.run(
            [sys.executable, "-c", program, *arguments], check=True, capture_output=True, text=True, timeout=1200
        )
        assert result.stdout.strip() == ""


def test_an_unknown_name_is_an_attribute_error():
    program = "import autojacobin; autojacobin.nothing_of_this_name"
    result = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True, timeout=1200)
    assert "AttributeError: module 'autojacobin' has no attribute 'nothing_of_this_name'" in result.stderr
