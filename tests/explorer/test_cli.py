"""``autojacobin explore`` at the command line."""

import json
import os
import signal
import subprocess
import sys
import urllib.request

import pytest

from autojacobin.cli import main
from tests import waiting
from tests.waiting import SECONDS, line_from

SMALL = ["--set", "digits", "--methods", "lsh,ITQ", "--bits", "8", "--train", "300", "--neighbours", "5", "--wall", "3"]


def run(monkeypatch, capsys, *arguments):
    monkeypatch.setattr("sys.argv", ["autojacobin", "explore", *arguments])
    with pytest.raises(SystemExit) as stopped:
        main()
    printed = capsys.readouterr()
    return stopped.value.code or 0, printed.out, printed.err


def test_a_page_to_open_from_disk(tmp_path, monkeypatch, capsys):
    code, printed, told = run(monkeypatch, capsys, *SMALL, "--static", str(tmp_path / "page"))
    assert code == 0
    assert f"The page is {tmp_path / 'page' / 'index.html'}" in printed
    assert "ITQ, 8 bits" in told
    text = (tmp_path / "page" / "data" / "about.js").read_text()
    about = json.loads(text.removeprefix('autojacobinReceive("about",').strip().removesuffix(");"))
    assert [method["name"] for method in about["methods"]] == ["LSH", "ITQ"]
    assert (about["bits"], about["k"], len(about["wall"])) == ([8], 5, 3)
    assert len(about["toy"]["points"]) == 1000
    names = sorted(path.name for path in (tmp_path / "page" / "data").iterdir())
    assert names == ["about.js", "query-0.js", "query-1.js", "query-2.js"]
    html = (tmp_path / "page" / "index.html").read_text()
    assert "http" not in html.replace("http://www.w3.org/", "")  # nothing is loaded from elsewhere


def test_wrong_use_is_reported_in_one_sentence(tmp_path, monkeypatch, capsys):
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "notes.txt").write_text("mine")
    for arguments, message in (
        (["--set", "no-such-set"], "no data set is called 'no-such-set'"),
        (["--set", "digits", "--methods", "itq,nothing"], "there is no method 'nothing'"),
        (["--set", "digits", "--static", str(tmp_path / "taken")], "holds other files, such as notes.txt"),
        ([str(tmp_path)], "holds no finished run"),
        ([str(tmp_path), "--bits", "8", "--train", "9"], "a finished run has its own settings, got"),
        ([str(tmp_path), "--set", "digits"], "and --set; leave out either"),
    ):
        code, _, told = run(monkeypatch, capsys, *arguments, *(["--port", "0"] * ("--static" not in arguments)))
        assert code == 1
        assert message in told
        assert len(told.strip().splitlines()) == 1


@pytest.mark.parametrize("package", ["uvicorn", "starlette.routing"])
def test_a_missing_package_is_reported_before_the_training(package, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, package, None)
    code, _, told = run(monkeypatch, capsys, *SMALL, "--port", "0")
    assert code == 1
    assert "serving the page (--static OUT writes it to disk instead) needs the package" in told
    assert "pip install 'autojacobin[web]'" in told
    assert len(told.strip().splitlines()) == 1  # no progress of a training before it


def test_it_is_served_until_it_is_stopped():
    program = [sys.executable, "-c", "from autojacobin.cli import main; main()", "explore", *SMALL, "--port", "0"]
    quiet = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with waiting.process(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=quiet) as process:
        address = line_from(process.stdout, "the page is served").split()[4]
        with urllib.request.urlopen(address, timeout=10) as answer:
            assert b"autojacobin-explorer" in answer.read()
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=SECONDS)
    assert process.returncode == 130
    assert "stopped; --static OUT keeps a page" in told
    assert "Traceback" not in told
