"""The command line as a user runs it: in a process of its own."""

import json
import re
import subprocess
import sys

import pytest
import typer

import autojacobin
from autojacobin.cli import app


def run(*arguments):
    command = [sys.executable, "-c", "from autojacobin.cli import main; main()", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def test_version():
    result = run("--version")
    assert result.stdout == f"autojacobin {autojacobin.__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["demo", "--seeds", "0"], "seeds"), (["demo", "--bits", "many"], "bits"), (["dance"], "dance")],
)
def test_wrong_use_ends_in_a_sentence_and_not_in_a_traceback(command, arguments, message):
    result = command(*arguments)
    assert result.code == 2
    assert message in result.err
    assert "Traceback" not in result.err


def test_options_of_the_program_stand_before_or_after_the_command(done, command):
    shown = json.loads(done("--json", "--threads", 1, "info", "my-index").out)
    assert json.loads(done("info", "my-index", "--json", "--threads=1").out) == shown
    assert shown["vectors"] == 600
    assert done("index", "verify", "--quiet", "my-index").out == ""
    assert "--json" in command("info", "--", "--json").err  # after --, it is the path of an index


def test_a_command_that_prints_no_json_says_so(command):
    result = command("demo", "--json")
    assert result.code == 2
    assert "demo prints no JSON; leave it out" in " ".join(result.err.split())


def test_help_shows_an_example(done):
    assert "autojacobin demo --bits 32" in done("demo", "--help").out


def every_command():
    """Names of all commands and groups, as they are typed."""
    root = typer.main.get_command(app)

    def below(command, names):
        yield names
        for name, inner in getattr(command, "commands", {}).items():
            yield from below(inner, (*names, name))

    return list(below(root, ()))


# An older typer prints types as INTEGER and TEXT, and cannot be taught otherwise.
words_for_types = pytest.mark.skipif(
    not hasattr(typer.core.TyperOption, "display_type_rich"), reason="this typer prints types in its own way"
)


@words_for_types
@pytest.mark.parametrize("names", every_command(), ids=" ".join)
def test_help_names_values_by_words_and_not_by_types(done, monkeypatch, names):
    monkeypatch.setenv("COLUMNS", "80")
    shown = done(*names, "--help").out
    assert "--help" in shown
    assert not re.search(r"<|bool|list\[|t range|\[x|=x|\{", shown.replace("< base.npy", "").replace("price < 10", ""))
    assert max(map(len, shown.splitlines())) <= 80
    assert not [line for line in shown.splitlines() if "…" in line and "s3://…" not in line]  # nothing is cut off


@words_for_types
def test_usage_shows_which_arguments_may_be_repeated_or_left_out(done):
    assert "train [OPTIONS] VECTORS... MODEL" in done("train", "--help").out
    assert "remove [OPTIONS] INDEX [ID...]" in done("index", "remove", "--help").out


def test_help_fills_its_lines(done, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    lines = [line.strip() for line in done("train", "--help").out.splitlines()]
    start = next(number for number, line in enumerate(lines) if line.startswith("The default method"))
    paragraph = lines[start : lines.index("", start)]
    words = [line.split()[0] for line in paragraph[1:]]
    assert len(paragraph) > 2
    assert all(len(line) + 1 + len(word) > 78 for line, word in zip(paragraph, words, strict=False))


def test_imports_stay_light():
    heavy = {
        "autojacobin": ("numba", "cupy", "matplotlib", "faiss", "torch", "rich", "typer"),
        "autojacobin.service": ("numba", "starlette", "uvicorn"),
        "autojacobin.cli": ("numba", "matplotlib", "dask", "starlette"),
    }
    code = "import sys\n"
    for module, names in heavy.items():
        code += f"import {module}; print([name for name in {names} if name in sys.modules])\n"
    printed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=1200
    ).stdout
    assert printed == "[]\n" * 3
