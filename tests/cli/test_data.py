"""``autojacobin data`` as a user runs it, from the arguments to the exit code."""

import re
import shlex
import sys
from types import SimpleNamespace

import cv2
import numpy as np
import pytest

from autojacobin.cli import main
from autojacobin.datasets import CATALOGUE, write_vectors


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("AUTOJACOBIN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("AUTOJACOBIN_DATA", "")
    monkeypatch.chdir(tmp_path)

    def run_here(*arguments):
        monkeypatch.setattr(sys, "argv", ["autojacobin", "data", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main()
        printed = capsys.readouterr()
        return SimpleNamespace(returncode=end.value.code or 0, stdout=printed.out, stderr=printed.err)

    return run_here


@pytest.fixture
def mine(tmp_path):
    folder = tmp_path / "sets" / "mine"
    folder.mkdir(parents=True)
    for name, n in (("learn", 20), ("base", 50), ("query", 6)):
        write_vectors(folder / f"{name}.bvecs", np.arange(n * 8, dtype=np.uint8).reshape(n, 8) % 99)
    return folder


def test_list_shows_every_set_its_sizes_and_whether_it_is_here(run, tmp_path):
    result = run("list")
    assert result.returncode == 0, result.stderr
    lines = {line.split()[0]: line for line in result.stdout.splitlines() if line.split()}
    assert set(CATALOGUE) <= set(lines)
    assert re.search(r"built in .*1,497 / 1,497 / 300 × 64 .*CC BY 4\.0 \(UCI\) +yes", lines["digits"])
    assert re.search(r"download .*10,000 / 1,000,000 / 10,000 × 128 +161 MB .* no", lines["sift1m"])
    assert re.search(r"by hand .*10,000 / 259,648 / 10,000 × 128 ", lines["nus-wide"])
    assert str(tmp_path / "cache" / "sets") in result.stdout


def test_info_of_a_named_set(run):
    result = run("info", "digits")
    assert result.returncode == 0, result.stderr
    assert "base          shape=[1497, 64], type=uint8, values=from 0 to 16 in the first 1,000" in result.stdout
    assert "licence       CC BY 4.0" in result.stdout


def test_info_of_a_folder_of_ones_own(run, mine, monkeypatch):
    for arguments in ([mine], ["mine", "--data", mine.parent]):
        result = run("info", *arguments)
        assert result.returncode == 0, result.stderr
        assert "train         shape=[20, 8], type=uint8, values=from 0 to 98 in the first 20" in result.stdout
        assert re.search("licence +none", result.stdout)
    monkeypatch.setenv("AUTOJACOBIN_DATA", str(mine.parent))
    assert "base          shape=[50, 8], type=uint8" in run("info", "mine").stdout


def test_fetch_of_what_is_here_fetches_nothing(run):
    result = run("fetch", "digits")
    assert result.returncode == 0, result.stderr
    assert result.stdout == ("digits is here: 1,497 to learn from, a base of 1,497, 300 queries, 64 values each\n")
    assert result.stderr == ""


def test_build_makes_a_set_that_info_shows(run, tmp_path):
    (tmp_path / "photos").mkdir()
    rng = np.random.RandomState(0)
    for number in range(6):
        pixels = rng.randint(0, 256, (64, 64)).astype(np.uint8)
        cv2.imwrite(str(tmp_path / "photos" / f"{number}.png"), pixels)
    result = run("build", "--descriptor", "gist", "photos", "made")
    assert result.returncode == 0, result.stderr
    assert result.stdout == (
        "Wrote made: gist vectors, learn 2 from 2, base 3 from 3, query 1 from 1 pictures.\n"
        f"Look at it with: autojacobin data info {tmp_path / 'made'}\n"
    )
    assert "describing pictures …" in result.stderr
    assert "\x1b" not in result.stdout + result.stderr
    shown = run("info", "made")
    assert shown.returncode == 0, shown.stderr
    assert re.search(r"base +shape=\[\d, 960\], type=float32", shown.stdout)
    assert re.search(r"base patches +shape=\[\d, 32, 32", shown.stdout)


def test_build_says_how_many_pictures_it_skipped(run, tmp_path, mine, monkeypatch):
    (tmp_path / "photos").mkdir()
    for number in range(3):
        cv2.imwrite(str(tmp_path / "photos" / f"{number}.png"), np.full((20, 20), number, np.uint8))
    for number in range(7):
        (tmp_path / "photos" / f"broken {number}.png").write_text("no picture")
    monkeypatch.setenv("AUTOJACOBIN_DATA", str(mine.parent.parent))
    (mine.parent.parent / "my set").symlink_to(mine)  # of the same name, and in the data folder
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    result = run("build", "--descriptor", "wavelet", "../photos", "my set")
    assert result.returncode == 0, result.stderr
    wrote, skipped, look = result.stdout.splitlines()
    assert wrote == "Wrote my set: wavelet vectors, learn 1 from 1, base 1 from 1, query 1 from 1 pictures."
    assert skipped == "7 were skipped; my set/build.json says why."
    assert (tmp_path / "elsewhere" / "my set" / "build.json").read_text().count("; convert it") == 7
    command = shlex.split(look.removeprefix("Look at it with: autojacobin data "))
    assert "shape=[1, 128], type=float32" in run(*command).stdout


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["info", "digit"], 1, "no data set is called 'digit', expected one of: digits, photos"),
        (["info", "sift1m"], 1, "fetch it with: autojacobin data fetch sift1m, which"),
        (["info", "sift1m", "--data", "my data"], 1, "autojacobin data fetch sift1m --data 'my data', which"),
        (["fetch", "digit"], 1, "no data set is called 'digit'"),
        (["fetch", "nus-wide"], 1, "cannot be fetched by a program; put there Normalized_WT.dat"),
        (["fetch", "mnist", "--data", "/dev/null/x"], 1, "in the folder /dev/null/x/mnist: not a directory"),
        (["build", "missing", "out"], 1, "missing"),
        (["build", "--descriptor", "surf", "in", "out"], 2, "surf"),
        (["fetch"], 2, "name"),
    ],
)
def test_wrong_use_ends_in_a_sentence_and_not_in_a_traceback(run, arguments, code, message):
    result = run(*arguments)
    assert result.returncode == code, result.stderr
    assert message.lower() in result.stderr.lower()
    assert "Traceback" not in result.stderr
    if code == 1:
        assert result.stderr.startswith("autojacobin: ")
        assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize("command", ["list", "fetch", "info", "build"])
def test_help_shows_an_example_that_is_a_command(run, command):
    text = " ".join(run(command, "--help").stdout.split())
    example = re.search(rf"Example: autojacobin (data {command}.*?) ╭", text)
    assert example is not None, text
    assert command in example[1]


def test_a_set_that_is_not_here_is_reported_in_one_sentence(command, monkeypatch, tmp_path):
    monkeypatch.setenv("AUTOJACOBIN_DATA", str(tmp_path))
    result = command("data", "info", "gist1m")
    assert (result.code, result.out) == (1, "")
    assert result.err.startswith(f"autojacobin: the set gist1m is not in {tmp_path / 'gist1m'}; fetch it with: ")
    assert len(result.err.splitlines()) == 1
