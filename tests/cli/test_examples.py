"""Every example that a ``--help`` shows runs as it stands."""

import re
import shlex
from pathlib import Path

import cv2
import numpy as np
import pytest
import typer

from autojacobin.cli import app
from autojacobin.cli.program import _HELP, _program_options_first

# of other commands, which have tests of their own; of those that take long or fetch, see the last test here
MINE = ("train", "encode", "index", "search", "evaluate", "bench", "info", "data")
TOO_LONG = ("demo", "reproduce")


def walk(command, names=()):
    if hasattr(command, "commands"):
        for name, inner in command.commands.items():
            yield from walk(inner, (*names, name))
    else:
        yield names, command


COMMANDS = dict(walk(typer.main.get_command(app)))


def examples_of(command):
    lines = (line.strip() for line in command.help.splitlines())
    return [line.removeprefix("Example: autojacobin ") for line in lines if line.startswith("Example: autojacobin ")]


RUN = [
    example
    for names, command in COMMANDS.items()
    if names[0] in MINE and names != ("data", "fetch")
    for example in examples_of(command)
]


@pytest.mark.parametrize("names", [names for names in COMMANDS if names[0] in (*MINE, *TOO_LONG)], ids=" ".join)
def test_every_command_has_an_example_of_itself(names):
    examples = examples_of(COMMANDS[names])
    assert examples
    assert all(shlex.split(example)[: len(names)] == list(names) for example in examples)


@pytest.mark.parametrize("example", RUN)
def test_the_example_runs(done, folder, digits, example):
    np.save("part-0.npy", np.tile(digits.base, (2, 1)) + np.random.default_rng(0).normal(size=(1200, 64)))
    (folder / "names.txt").write_text("".join(f"digit {number}\n" for number in range(len(digits.base))))
    (folder / "facts.csv").write_text("size\n" + "".join(f"{number}\n" for number in range(len(digits.base))))
    (folder / "allowed.txt").write_text("1\n2\n3\n")
    np.save("codes.npy", np.packbits(digits.base > 8, axis=1))
    (folder / "my-photos").mkdir()
    for number in range(3):
        pixels = np.random.RandomState(number).randint(0, 256, (64, 64)).astype(np.uint8)
        cv2.imwrite(str(folder / "my-photos" / f"{number}.png"), pixels)
    if "index build" in example:
        (folder / "my-index").rename(folder / "old-index")
    if example.startswith("train"):
        (folder / "model.safetensors").unlink()
    words, stdin = shlex.split(example), b""
    if "<" in words:
        stdin = (folder / words[words.index("<") + 1]).read_bytes()
        words = words[: words.index("<")]
    assert done(*words, stdin=stdin).out


def test_the_first_steps_of_the_help_run_one_after_the_other(done, folder):
    (folder / "my-index").rename(folder / "old-index")
    steps = [line.strip().removeprefix("autojacobin ") for line in _HELP.splitlines() if line.startswith("  ")]
    assert len(steps) == 3
    for step in steps:
        assert done(*shlex.split(step)).out


def shown_in_the_documentation():
    docs = Path(__file__).parents[2] / "docs"
    pages = [(docs / name).read_text(encoding="utf-8") for name in ("command-line.md", "scripts.md")]
    blocks = [block for page in pages for block in re.findall(r"```sh\n(.*?)```", page, flags=re.DOTALL)]
    return [match for block in blocks for match in re.findall(r"autojacobin ([^\n#|>]+)", block)]


@pytest.mark.parametrize("shown", shown_in_the_documentation())
def test_what_the_documentation_shows_is_understood(shown):
    _, words = _program_options_first(shlex.split(shown))
    names = next(names for names in COMMANDS if list(names) == words[: len(names)])
    assert COMMANDS[names].make_context(names[-1], words[len(names) :], resilient_parsing=True).args == []


@pytest.mark.parametrize("names", [("demo",), ("reproduce",), ("data", "fetch")], ids=" ".join)
def test_examples_that_take_long_are_at_least_understood(names):
    command = COMMANDS[names]
    for example in examples_of(command):
        arguments = shlex.split(example)[len(names) :]
        assert command.make_context(names[-1], arguments).args == []
