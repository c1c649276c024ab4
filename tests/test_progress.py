"""Lines about long work come while it runs, and compilation is announced once."""

import gc
import sys
import threading

import numpy as np
import pytest
from numba import types
from numba.core.errors import TypingError

from autojacobin import ITQ, LSH, AutoBin, Index
from autojacobin.core import compilation, progress
from autojacobin.core.compilation import intrinsic, kernel


class Lines:
    """A stream that keeps what is written to it, and lets a test wait for some text."""

    def __init__(self, awaited):
        self.text, self.awaited, self.seen = "", awaited, threading.Event()

    def write(self, text):
        self.text += text
        if self.awaited in self.text:
            self.seen.set()

    def flush(self):
        pass

    def isatty(self):
        return False


def test_a_line_comes_while_the_work_says_nothing(monkeypatch):
    stream = Lines("sorting: pages 3 of 1,000, 0 s\n")
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(progress, "_SECONDS_BETWEEN_LINES", 0.01)
    with progress.printed_progress("sorting", verbose=True) as report:
        report("pages", 3, 1000)
        assert stream.seen.wait(120), f"no such line in {stream.text!r}"
    lines = stream.text.splitlines()
    assert lines[0] == "sorting …"
    assert lines[-1].startswith("sorting: done in ")


def test_a_stage_without_a_total_is_printed_at_once_and_once(capsys):
    with progress.printed_progress("sorting", verbose=True) as report:
        for _ in range(3):
            report("about 40 s", 0, 0)
        report("pages", 3, 1000)
    assert capsys.readouterr().err.splitlines()[:-1] == ["sorting …", "sorting: about 40 s"]


def test_a_log_gets_a_line_every_30_seconds_and_a_terminal_one_that_is_rewritten(monkeypatch):
    assert progress._SECONDS_BETWEEN_LINES == 30
    stream = Lines("sorting: pages 3 of 1,000, 0 s")
    stream.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(progress, "_SECONDS_BETWEEN_UPDATES", 0.01)
    with progress.printed_progress("sorting", verbose=True) as report:
        report("pages", 3, 1000)
        assert stream.seen.wait(120), f"no such line in {stream.text!r}"
    assert stream.text.count("\n") == 1
    assert stream.text.startswith("\r\x1b[2Ksorting …\r\x1b[2K")
    assert stream.text.endswith(" s\n")
    with pytest.raises(KeyError), progress.printed_progress("sorting", verbose=True):
        raise KeyError
    assert stream.text.endswith("sorting …\n")


def test_nothing_is_printed_unless_asked(capsys):
    with progress.printed_progress("sorting", verbose=False) as report:
        report("pages", 3, 10)
    X = np.random.default_rng(0).normal(size=(60, 8))
    index = Index(ITQ(4, random_state=0).fit(X))
    index.add(X)
    assert capsys.readouterr() == ("", "")


def test_an_error_ends_the_lines(capsys):
    with pytest.raises(KeyError), progress.printed_progress("sorting", verbose=True):
        raise KeyError
    assert capsys.readouterr().err == "sorting …\n"
    assert "autojacobin-progress" not in [thread.name for thread in threading.enumerate()]


@pytest.mark.parametrize("method", [ITQ, LSH, AutoBin])
def test_every_fit_and_add_can_be_verbose(capsys, method):
    X = np.random.default_rng(0).normal(size=(60, 8))
    index = Index(method(4, random_state=0).fit(X, verbose=True))
    index.add(X, verbose=True)
    printed = capsys.readouterr().err
    for work in (f"fitting {method.__name__}", "adding vectors"):
        assert f"{work} …\n" in printed
        assert f"{work}: done in " in printed


def test_a_verbose_fit_still_calls_the_callers_progress_and_gives_it_back(capsys):
    calls = []
    hasher = AutoBin(4, n_epochs=1, random_state=0, progress=lambda *call: calls.append(call))
    given = hasher.progress
    hasher.fit(np.random.default_rng(0).normal(size=(60, 8)), verbose=True)
    assert calls
    assert hasher.progress is given
    assert "fitting AutoBin" in capsys.readouterr().err


def test_compilation_is_a_warning_in_the_log_where_nobody_listens(monkeypatch, caplog):
    caplog.set_level("INFO", logger="autojacobin")
    for listeners, level in (([], "WARNING"), ([lambda line: None], "INFO")):
        caplog.clear()
        monkeypatch.setattr(progress, "_announced", False)
        monkeypatch.setattr(progress, "_listeners", listeners)
        progress.compilation_begins()
        progress.compilation_begins()
        said = [(record.levelname, record.getMessage()) for record in caplog.records]
        assert said == [(level, f"autojacobin is {progress.COMPILING}")]


def test_compilation_is_announced_once_in_a_process(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr("numba.config.CACHE_DIR", str(tmp_path))  # nothing was compiled before

    def double(number):
        return 2 * number

    def triple(number):
        return 3 * number

    for function in (double, triple):
        function.__module__ = "autojacobin.of_this_test"
    monkeypatch.setattr(progress, "_announced", False)
    heard = []
    with progress.on_compilation(heard.append), progress.printed_progress("doubling", verbose=True):
        assert (kernel(double)(2), kernel(triple)(2)) == (4, 6)
    assert heard == [progress.COMPILING]
    assert capsys.readouterr().err.count(progress.COMPILING) == 1
    assert not progress._listeners


def test_without_a_cache_the_announcement_says_so(monkeypatch):
    def double(number):
        return 2 * number

    double.__module__ = "autojacobin.of_this_test"

    def no_folder(*_, **options):
        if options.pop("cache", False):
            raise RuntimeError("no locator available")
        return njit(**options)

    njit = compilation.numba.njit
    monkeypatch.setattr(compilation.numba, "njit", no_folder)
    monkeypatch.setattr(progress, "_announced", False)
    heard = []
    with progress.on_compilation(heard.append):
        assert kernel(double)(2) == 4
    assert heard == [progress.NOT_KEPT]


@pytest.mark.parametrize("collects", [True, False])
def test_no_garbage_is_collected_while_a_kernel_is_compiled(monkeypatch, tmp_path, collects):
    monkeypatch.setattr("numba.config.CACHE_DIR", str(tmp_path))
    seen = []

    @intrinsic
    def look(typing_context):
        def generate(context, builder, signature, arguments):
            seen.append(gc.isenabled())
            return context.get_dummy_value()

        return types.void(), generate

    def inner():
        look()

    def outer():
        kernel_inside()
        look()

    for function in (inner, outer):
        function.__module__ = "autojacobin.of_this_test"
    kernel_inside = kernel(inner)
    try:
        gc.enable() if collects else gc.disable()
        kernel(outer)()
        assert gc.isenabled() == collects
    finally:
        gc.enable()
    assert seen == [False, False]


def test_a_compilation_that_fails_leaves_the_collection_of_garbage_on(monkeypatch, tmp_path):
    monkeypatch.setattr("numba.config.CACHE_DIR", str(tmp_path))

    def wrong(number):
        return number.nothing_of_this_name

    wrong.__module__ = "autojacobin.of_this_test"
    with pytest.raises(TypingError):
        kernel(wrong)(1)
    assert gc.isenabled()
