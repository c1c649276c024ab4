"""A short run of the stress program, so that it stays able to run; `make stress` runs it for minutes."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.rare
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_nothing_is_lost_in_a_round_of_every_kind_of_fault():
    command = [sys.executable, "-m", "tests.stress", "--rounds", "1", "--short", "--seed", "3"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    result = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=1200
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert re.search(r"losses +0\n", result.stdout)
    assert int(re.search(r"changes of an index with lists +(\d+)\n", result.stdout)[1]) > 0
    for fault in ("interrupt", "kill", "power cut", "full disk", "under a writer", "close while", "flipped bit"):
        assert fault in result.stdout
    assert re.search(r"that makes lists +\d+\n", result.stdout)


def test_a_loss_is_an_error_and_says_how_to_repeat_it(tmp_path):
    """With a library that does not sync the folder, power cuts lose what was written."""
    program = (
        "from tests.stress import __main__, power_cuts\n"
        "power_cuts.RecordingFolder.sync_names = lambda self: None\n"
        "raise SystemExit(__main__.main(['--rounds', '1', '--short', '--only', 'power-cuts']))\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False, timeout=1200
    )
    assert result.returncode == 1, result.stderr
    assert re.search(r"losses +1\n", result.stdout)
    assert "repeat with --only power-cuts --seed 1 --first 0 --rounds 1" in result.stdout
