"""The command line as a user runs it: in a process of its own."""

import subprocess
import sys

import pytest

import autojacobin


def run(*arguments):
    command = [sys.executable, "-c", "from autojacobin.cli import main; main()", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def test_version():
    result = run("--version")
    assert result.stdout == f"autojacobin {autojacobin.__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
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
