"""Progress of commands: bars in a terminal, plain lines elsewhere, and never a long silence."""

import io
import re
import threading

import pytest
from rich.console import Console

from autojacobin.cli.console import output, progress_bar
from autojacobin.core.counts import count_of
from autojacobin.core.progress import compilation_begins


@pytest.fixture(autouse=True)
def nothing_is_asked_for(monkeypatch):
    """Forget the options of a command that another test has run."""
    for option in ("quiet", "as_json", "debug"):
        monkeypatch.setattr(output, option, False)


def test_progress_is_a_line_for_each_stage_where_there_is_no_terminal():
    console = Console(file=io.StringIO(), width=80)
    with progress_bar(console) as progress:
        for stage, done, total in (("fetching a", 0, 0), ("fetching a", 5, 0), ("unpacking", 1, 9)):
            progress(stage, done, total)
    assert console.file.getvalue() == "fetching a …\nunpacking: 11 %\n"


class Awaited(io.StringIO):
    """A stream that lets a test wait until a pattern was written."""

    def __init__(self, pattern):
        super().__init__()
        self.pattern, self.seen = pattern, threading.Event()

    def write(self, text):
        count = super().write(text)
        if re.search(self.pattern, self.getvalue(), re.MULTILINE):
            self.seen.set()
        return count


@pytest.mark.parametrize(
    ("calls", "line"),
    [
        ([], r"^working, \d+ s$"),
        ([("compacting", 0, 0)], r"^compacting, \d+ s$"),
        ([("adding [a]", 450, 1000)], r"^adding \[a\]: 45 %, \d+ s$"),
    ],
)
def test_a_line_comes_from_time_to_time_where_there_is_no_terminal(monkeypatch, calls, line):
    monkeypatch.setattr("autojacobin.core.progress._SECONDS_BETWEEN_LINES", 0.01)
    stream = Awaited(line)
    with progress_bar(Console(file=stream, width=80)) as progress:
        for call in calls:
            progress(*call)
        assert stream.seen.wait(120), f"nothing like {line!r} in {stream.getvalue()!r}"


@pytest.mark.parametrize("option", ["quiet", "as_json"])
def test_quiet_progress_prints_nothing(monkeypatch, capfd, option):
    monkeypatch.setattr(output, option, True)
    monkeypatch.setattr("autojacobin.core.progress._announced", False)
    monkeypatch.setattr("autojacobin.core.progress._SECONDS_BETWEEN_LINES", 0.001)
    console = Console(file=io.StringIO(), width=80)
    with progress_bar(console) as progress:
        progress("learning", 1, 2)
        compilation_begins()
        assert "autojacobin-progress" not in [thread.name for thread in threading.enumerate()]
    assert console.file.getvalue() == ""
    assert capfd.readouterr() == ("", "")


def test_progress_is_a_bar_in_a_terminal():
    console = Console(file=io.StringIO(), width=80, force_terminal=True)
    with progress_bar(console) as progress:
        progress("fetching [a]", 1, 2)
        progress("fetching [a]", 2, 2)
    shown = console.file.getvalue()
    assert "fetching [a]" in shown
    assert "100%" in shown
    assert "…\n" not in shown


def test_one_thing_is_not_counted_in_the_plural():
    assert [count_of(n, "query", "queries") for n in (0, 1, 2000)] == ["0 queries", "1 query", "2,000 queries"]
    assert count_of(1, "vector") == "1 vector"
