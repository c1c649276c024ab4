"""A command that is stopped leaves nothing half-written."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from autojacobin.core.files import whole_folder
from autojacobin.errors import StorageError
from tests.waiting import SECONDS, line_from, process, until

PROGRAM = [sys.executable, "-c", "from autojacobin.cli import main; main()"]


def zeros(path, n, width):
    """An npy file of zeros that takes no room on the disk."""
    header = np.lib.format.header_data_from_array_1_0(np.zeros((1, width), np.float32)) | {"shape": (n, width)}
    with open(path, "wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        file.truncate(file.tell() + 4 * n * width)


def contents(folder):
    """Every file but the lock, in which a writer leaves its number, and the many zeros."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name not in ("LOCK", "large.npy"))
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def all_paths(folder):
    """Files and folders in a folder, of which some may come and go meanwhile."""
    return {Path(root, name) for root, folders, files in os.walk(folder) for name in [*folders, *files]}


@pytest.mark.parametrize(
    ("arguments", "number"),
    [
        (["index", "build", "model.safetensors", "large.npy", "new"], signal.SIGTERM),
        (["index", "build", "model.safetensors", "large.npy", "new"], signal.SIGINT),
        (["index", "add", "my-index", "large.npy"], signal.SIGTERM),
        pytest.param(
            ["index", "build", "model.safetensors", "large.npy", "new"],
            getattr(signal, "SIGHUP", None),
            marks=pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="Windows has no terminals that hang up"),
        ),
    ],
    ids=["build-SIGTERM", "build-SIGINT", "add-SIGTERM", "build-SIGHUP"],
)
def test_a_stopped_change_leaves_the_folder_as_it_was(folder, arguments, number):
    zeros(folder / "large.npy", 8_000_000, 64)  # it takes long enough to be stopped
    before, paths = contents(folder), all_paths(folder)
    # in a process of its own: in that of the tests, a signal during a collection of garbage is lost in a callback
    with process([*PROGRAM, *arguments, "--quiet"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        until(lambda: child.poll() is not None or all_paths(folder) - paths, "it writes", pause=0.001)
        child.send_signal(number)
        printed = child.communicate(timeout=SECONDS)
    assert child.returncode == 128 + number
    assert printed == ("", "autojacobin: stopped; nothing is left half-written\n")
    assert contents(folder) == before
    assert not (folder / "new").exists()


def test_a_stopped_training_leaves_the_folder_as_it_was(folder):
    np.save(folder / "wide.npy", np.random.default_rng(0).normal(size=(2000, 64)).astype(np.float32))
    before = contents(folder)
    arguments = ["train", "wide.npy", "new.safetensors", "-m", "okmeans", "--set", "n_iter=100000"]
    with process([*PROGRAM, *arguments], stderr=subprocess.PIPE, text=True, cwd=folder) as child:
        while "training okmeans …" not in (line := line_from(child.stderr, "the training begins")):
            assert line, "the command ended before the training began"
        child.send_signal(signal.SIGINT)
        _, printed = child.communicate(timeout=SECONDS)
    assert child.returncode == 130
    assert printed.splitlines()[-1] == "autojacobin: stopped; nothing is left half-written"
    assert contents(folder) == before


def make_half(target):
    with whole_folder(target, "try again") as folder:
        (folder / "half").write_text("half")
        raise KeyboardInterrupt


def test_a_folder_is_there_as_a_whole_or_not_at_all(tmp_path):
    target = tmp_path / "made"
    with pytest.raises(KeyboardInterrupt):
        make_half(target)
    assert list(tmp_path.iterdir()) == []
    target.mkdir()  # an empty one may be there
    with whole_folder(target, "try again") as folder:
        (folder / "whole").mkdir()
        (folder / "whole" / "file").write_text("whole")
        assert list(target.iterdir()) == []
    assert [path.name for path in target.iterdir()] == ["whole"]
    assert [path.name for path in tmp_path.iterdir()] == ["made"]
    usual = tmp_path / "usual"
    usual.mkdir()
    assert target.stat().st_mode == usual.stat().st_mode
    with pytest.raises(FileExistsError, match="something is there already"), whole_folder(target, "try again"):
        pass
    assert (target / "whole" / "file").read_text() == "whole"
    nowhere = tmp_path / "nowhere" / "made"
    with pytest.raises(StorageError, match=r"cannot write .*nowhere.*; try again"), whole_folder(nowhere, "try again"):
        pass


INTERRUPTED_IMPORT = """
import sys

class Interrupting:
    def find_spec(self, name, *_):
        if name == "autojacobin.cli.program":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupting())
from autojacobin.cli import main
"""


def test_an_interruption_while_the_commands_are_loaded_prints_nothing():
    process = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_IMPORT], capture_output=True, text=True, check=False, timeout=1200
    )
    assert (process.returncode, process.stdout, process.stderr) == (130, "", "")
