"""``autojacobin reproduce`` at the command line."""

import pytest

from autojacobin.cli import main


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
    assert "AutoJacoBin, 16 bits, seed 0" in told
    assert (out / "tables" / "table-1.csv").exists()


def test_wrong_use_is_told_in_one_sentence(tmp_path, monkeypatch, capsys):
    for arguments, message in (
        (("--set", "no-such-set"), "no data set is called 'no-such-set'"),
        (("--set", "digits", "--only", "fig99"), "there is no table or figure 'fig99'"),
        (("--set", "digits", "--bits", "65"), "bits must be from 1 to 64"),
    ):
        code, _, told = run(monkeypatch, capsys, *arguments, "--out", str(tmp_path / "never"))
        assert code == 1
        assert message in told
        assert len(told.strip().splitlines()) == 1
    assert not (tmp_path / "never").exists()
