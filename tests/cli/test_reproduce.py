"""``autojacobin reproduce`` at the command line."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from autojacobin.cli import main
from autojacobin.cli.console import stoppable
from tests.waiting import SECONDS, line_from, process


def run(monkeypatch, capsys, *arguments):
    monkeypatch.setattr("sys.argv", ["autojacobin", "reproduce", *arguments])
    with pytest.raises(SystemExit) as stopped:
        main()
    printed = capsys.readouterr()
    return stopped.value.code or 0, printed.out, printed.err


def test_a_quick_look_writes_a_report_and_prints_the_table(tmp_path, monkeypatch, capsys):
    out = tmp_path / "look"
    arguments = ("--set", "digits", "--quick", "--bits", "16", "--train", "300", "--only", "table2,table1")
    code, printed, told = run(monkeypatch, capsys, *arguments, "--out", str(out))
    assert code == 0
    assert "Table II: m-Recall on digits" in printed
    assert "Auto-JacoBin" in printed
    assert f"The report is {out / 'report.html'}" in printed
    assert "rows of table2 each method is ahead of all others, level with the best, or behind" in printed
    assert "AutoJacoBin, 16 bits, seed 0" in told
    assert (out / "tables" / "table-1.csv").exists()


def test_k_methods_and_alpha_are_chosen(tmp_path, monkeypatch, capsys):
    arguments = ["--set", "digits", "--quick", "--bits", "16", "--train", "300", "--out", str(tmp_path / "look")]
    chosen = [*arguments, "--k", "3", "--k", "7", "--methods", "okmeans, lsh", "--only", "table2"]
    code, _, _ = run(monkeypatch, capsys, *chosen)
    assert code == 0
    table = (tmp_path / "look" / "tables" / "table-2.csv").read_text().splitlines()
    assert table[0] == '"(k, bits)",OKMeans,LSH'
    assert [line[:8] for line in table[1:]] == ['"(3, 16)', '"(7, 16)']
    code, _, _ = run(monkeypatch, capsys, *arguments, "--alpha", "0.2", "--alpha", "0.1", "--only", "fig7")
    assert code == 0
    record = json.loads((tmp_path / "look" / "results.json").read_text())
    assert record["settings"]["alphas"] == [0.1, 0.2]
    tried = [trial["parameters"] for trial in record["trials"] if trial["method"] == "AutoJacoBin"]
    assert tried == [{}, {"alpha": 0.2}]


def test_wrong_use_is_reported_in_one_sentence(tmp_path, monkeypatch, capsys):
    for arguments, message in (
        (("--set", "no-such-set"), "no data set is called 'no-such-set'"),
        (("--set", "digits", "--only", "fig99"), "there is no table or figure 'fig99'"),
        (("--set", "digits", "--only", ""), "there is no table or figure ''"),
        (("--set", "digits", "--bits", "65"), "bits must be an integer from 1 to 64"),
        (("--set", "digits", "--methods", "itq,nothing"), "there is no method 'nothing'"),
    ):
        code, _, told = run(monkeypatch, capsys, *arguments, "--out", str(tmp_path / "never"))
        assert code == 1
        assert message in told
        assert len(told.strip().splitlines()) == 1
    assert not (tmp_path / "never").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_in_a_sentence_and_handlers_are_put_back(number, capsys):
    before = signal.getsignal(number)
    with pytest.raises(typer.Exit) as stopped, stoppable("all is kept"):
        signal.raise_signal(number)
    assert stopped.value.exit_code == 128 + number
    assert capsys.readouterr().err == "autojacobin: stopped; all is kept\n"
    assert signal.getsignal(number) == before


@pytest.mark.rare
def test_a_killed_run_leaves_complete_files_and_continues(tmp_path, monkeypatch, capsys):
    arguments = ["--set", "digits", "--quick", "--bits", "16", "--only", "table2", "--out", str(tmp_path)]
    program = [sys.executable, "-c", "from autojacobin.cli import main; main()", "reproduce", *arguments]
    with process(program, stderr=subprocess.PIPE, text=True) as child:
        while "NOKMeans" not in (line := line_from(child.stderr, "four methods are done")):
            assert line, "the command ended before four methods were done"
        child.send_signal(signal.SIGTERM)
        _, told = child.communicate(timeout=SECONDS)
    assert child.returncode == 143
    assert f"stopped; what was computed is kept in {tmp_path}, and the same command continues from there" in told
    assert "Traceback" not in told
    kept = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "work").iterdir()}
    assert len(kept) >= 5
    assert not any(name.endswith(".part") for name in kept)
    assert not (tmp_path / "report.html").exists()
    assert Path(f"{tmp_path}.toml").exists()
    code, _, _ = run(monkeypatch, capsys, *arguments)
    assert code == 0
    assert {name: (tmp_path / "work" / name).stat().st_mtime_ns for name in kept} == kept
