"""What the guides of FAISS, PostgreSQL and SQLite show runs as it stands, one block after the other in one folder."""

import os
import re
import shlex
from pathlib import Path

import psycopg
import pytest

from autojacobin.cli import app

DOCS = Path(__file__).parent.parent.parent / "docs"


def blocks(page):
    return re.findall(
        r"^```(\w+)[^\n]*\n(.*?)^```", (DOCS / page).read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )


def run_program(code):
    exec(compile(code, "guide", "exec"), {"__name__": "__main__"})
    return re.findall(r"print\(.*\)\s+# (.*)", code)


def run_commands(code):
    lines = [shlex.split(os.path.expandvars(line)) for line in code.splitlines()]
    for name, *arguments in lines:
        assert name == "autojacobin"
        app([*arguments, "--quiet"], standalone_mode=False)
    return []


def run_statement(code):
    with psycopg.connect(os.environ["AUTOJACOBIN_DSN"]) as connection:
        rows = connection.execute(code).fetchall()
    promised = re.findall(r"^-- (.*)$", code, re.MULTILINE)
    assert promised
    assert [" | ".join(map(str, row)) for row in rows[: len(promised)]] == promised
    return []


@pytest.mark.parametrize(
    ("page", "fewest"), [("engine-faiss.md", 5), ("engine-postgresql.md", 7), ("engine-sqlite.md", 2)]
)
def test_the_guide_runs(page, fewest, tmp_path, dsn, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AUTOJACOBIN_DSN", dsn)
    found = blocks(page)
    assert len(found) >= fewest
    run = {"python": run_program, "bash": run_commands, "sql": run_statement}
    for language, code in found:
        promised = run[language](code)
        assert capsys.readouterr().out.splitlines() == promised
