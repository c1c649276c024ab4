"""Progress of commands: bars in a terminal, plain lines elsewhere, and never a long silence."""

import io
import re
import threading

import pytest
from rich.console import Console

from autojacobin.cli.console import count_of, progress_bar, single_bar
from autojacobin.core.progress import compilation_begins


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
    ("bar", "calls", "line"),
    [
        (progress_bar, [], r"^working, \d+ s$"),
        (progress_bar, [("compacting", 0, 0)], r"^compacting, \d+ s$"),
        (progress_bar, [("adding vectors", 450, 1000)], r"^adding vectors: 45 %, \d+ s$"),
        (single_bar, [("learning [a]", 9, 100)], r"^  9 %  learning \[a\], \d+ s$"),
    ],
)
def test_a_line_comes_from_time_to_time_where_there_is_no_terminal(monkeypatch, bar, calls, line):
    monkeypatch.setattr("autojacobin.core.progress._SECONDS_BETWEEN_LINES", 0.01)
    stream = Awaited(line)
    with bar(Console(file=stream, width=80)) as progress:
        for call in calls:
            progress(*call)
        assert stream.seen.wait(120), f"nothing like {line!r} in {stream.getvalue()!r}"


@pytest.mark.parametrize("bar", [progress_bar, single_bar])
def test_quiet_progress_prints_nothing(monkeypatch, capfd, bar):
    monkeypatch.setattr("autojacobin.core.progress._announced", False)
    monkeypatch.setattr("autojacobin.core.progress._SECONDS_BETWEEN_LINES", 0.001)
    console = Console(file=io.StringIO(), width=80)
    with bar(console, quiet=True) as progress:
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


def test_the_bar_takes_an_unknown_total_and_names_in_brackets(capsys):
    with single_bar() as progress:
        progress("[a] set", 0, 0)
        progress("[b] set", 1, 2)
    assert capsys.readouterr().err == "[a] set …\n 50 %  [b] set\n"


def test_one_thing_is_not_counted_in_the_plural():
    assert [count_of(n, "query", "queries") for n in (0, 1, 2000)] == ["0 queries", "1 query", "2,000 queries"]
    assert count_of(1, "vector") == "1 vector"
