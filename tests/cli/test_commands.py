"""The command line as a user runs it: in a process of its own."""

import os
import re
import subprocess
import sys

import pytest

import autojacobin


def run(*arguments):
    command = [sys.executable, "-c", "from autojacobin.cli import main; main()", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def test_demo_prints_m_recall_of_both_methods():
    result = run("demo", "--bits", "16", "--seeds", "2")
    assert result.returncode == 0, result.stderr
    for method in ("ITQ", "Auto-JacoBin"):
        row = next(line for line in result.stdout.splitlines() if method in line and "16" in line)
        recalls = [float(value) for value in re.findall(r"(0\.\d+) ±", row)]
        assert len(recalls) == 3
        assert all(0.1 < recall < 1 for recall in recalls)
    assert "2 seeds" in result.stdout


def test_one_seed_has_no_spread_and_a_plain_terminal_no_traceback():
    command = [sys.executable, "-c", "from autojacobin.cli import main; main()", "demo"]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    arguments = ["--bits", "8", "--bits", "8", "--seeds", "1"]
    result = subprocess.run([*command, *arguments], capture_output=True, text=True, env=environment, check=False)
    assert result.returncode == 0, result.stderr
    assert "one seed" in result.stdout
    assert result.stdout.count("ITQ") == 1
    assert "0.000" not in result.stdout


def test_version():
    result = run("--version")
    assert result.stdout == f"autojacobin {autojacobin.__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["demo", "--bits", "0"], 2, "0 is not from 1 to 64"),
        (["demo", "--bits", "8", "--bits", "65"], 2, "65 is not from 1 to 64"),
        (["demo", "--seeds", "0"], 2, "seeds"),
        (["demo", "--bits", "many"], 2, "bits"),
        (["dance"], 2, "dance"),
    ],
)
def test_wrong_use_ends_in_a_sentence_and_not_in_a_traceback(arguments, code, message):
    result = run(*arguments)
    assert result.returncode == code
    assert message in result.stderr
    assert "Traceback" not in result.stderr


def test_help_shows_an_example():
    assert "autojacobin demo --bits 32" in run("demo", "--help").stdout


def test_importing_the_package_stays_light():
    heavy = ("numba", "cupy", "matplotlib", "faiss", "torch", "rich", "typer")
    code = f"import sys, autojacobin; print([name for name in {heavy} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
