"""A folder with real vectors, and the command line run in it, in this process."""

import io
import os
import shutil
import sys
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np
import pytest
from sklearn.datasets import load_digits

from autojacobin import ITQ, Index
from autojacobin.cli import main


@pytest.fixture(scope="session")
def digits():
    vectors = load_digits().data.astype(np.float32)
    return SimpleNamespace(base=vectors[:600], more=vectors[600:700], queries=vectors[1500:1540])


@pytest.fixture(scope="session")
def fitted(digits):
    return ITQ(16, random_state=0).fit(digits.base)


@pytest.fixture(scope="session")
def made_once(tmp_path_factory, digits, fitted):
    path = tmp_path_factory.mktemp("made-once")
    np.save(path / "base.npy", digits.base)
    np.save(path / "more.npy", digits.more)
    np.save(path / "queries.npy", digits.queries)
    fitted.save(path / "model.safetensors")
    with Index.create(path / "my-index", fitted) as index:
        index.add(digits.base)
    return path


@pytest.fixture(autouse=True)
def no_regular_lines(monkeypatch):
    """Let no line about progress come between those that a test expects, however busy the machine is."""
    monkeypatch.setattr("autojacobin.core.progress._SECONDS_BETWEEN_LINES", 3600)


@pytest.fixture
def folder(tmp_path, monkeypatch, made_once):
    """Vectors, a model and an index, in the folder that commands run in."""
    shutil.copytree(made_once, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def command(folder, monkeypatch, capfdbinary):
    """Give a function that runs ``autojacobin`` with arguments and perhaps bytes at its standard input."""

    monkeypatch.setattr(sys.modules["__main__"], "__package__", "")  # as in the installed command: no python -m pytest

    def run(*arguments, stdin=b"", has_stdout=True):
        """Run it; a standard input that is None is closed."""
        monkeypatch.setattr(sys, "argv", ["autojacobin", *map(str, arguments)])
        monkeypatch.setattr(sys, "stdin", None if stdin is None else io.TextIOWrapper(io.BytesIO(stdin)))
        capfdbinary.readouterr()
        with (
            pytest.raises(SystemExit) as end,
            patch.dict(os.environ),  # in which --threads leaves a variable
            patch.object(sys, "stdout", sys.stdout if has_stdout else None),
        ):
            main()
        sys.stdout.flush()
        printed = capfdbinary.readouterr()
        return SimpleNamespace(code=end.value.code or 0, out=printed.out.decode(), err=printed.err.decode())

    return run


@pytest.fixture
def done(command):
    """Give a function that runs a command that must not fail."""

    def run(*arguments, stdin=b""):
        result = command(*arguments, stdin=stdin)
        assert result.code == 0, result.err
        return result

    return run
