"""No test can hang: every wait of a test has a limit, and says what it waited for."""

import ast
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests import waiting

TESTS = Path(__file__).parent
ENDLESS = {"wait", "join", "communicate", "result", "readline", "pause"}  # without a limit as the argument
WITH_LIMIT = {"run", "call", "check_call", "check_output", "HTTPConnection", "create_connection", "urlopen"}
ALLOWED = {  # in processes that are killed, or bounded by others
    ("index/test_threads.py", "pause"),
    ("waiting.py", "readline"),
}


def unlimited(tree):
    """Calls that may wait for ever."""
    for node in ast.walk(tree):
        if isinstance(node, ast.With):
            for item in node.items:
                if re.match(r"subprocess\.Popen\(", ast.unparse(item.context_expr)):
                    yield "Popen", node.lineno  # waits at the end of the block, also after an error
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        name = node.func.attr
        if name in ENDLESS and not node.args and not node.keywords:
            yield name, node.lineno
        elif name in WITH_LIMIT | {"wait", "waitpid"}:
            whole = ast.unparse(node)
            if name in WITH_LIMIT and re.match(r"(subprocess|http\.client|socket|urllib\.request)\.", whole):
                if "timeout" not in {keyword.arg for keyword in node.keywords}:
                    yield name, node.lineno
            elif re.match(r"os\.waitpid\(.*, 0\)|asyncio\.run\((?!asyncio\.wait_for)|os\.wait\(", whole):
                yield name, node.lineno


def test_every_wait_of_the_tests_has_a_limit():
    found = [
        (str(path.relative_to(TESTS)), name, line)
        for path in sorted(TESTS.rglob("*.py"))
        for name, line in unlimited(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert [one for one in found if one[:2] not in ALLOWED] == []


def test_a_wait_says_what_it_waited_for(monkeypatch):
    monkeypatch.setattr(waiting, "SECONDS", 0.05)
    stop, (reading, writing) = threading.Event(), os.pipe()
    thread = threading.Thread(target=stop.wait, args=(60,), name="the stubborn one")
    thread.start()
    with open(reading, "rb") as stream, open(writing, "wb"):
        for wait, words in (
            (lambda: waiting.until(lambda: False, "the moon is blue", 0.05), "until the moon is blue"),
            (lambda: waiting.happens(stop, "it stops"), "until it stops"),
            (lambda: waiting.joined(thread), "the end of the stubborn one"),
            (lambda: waiting.read_from(reading, 1, "a byte comes"), "until a byte comes"),
        ):
            with pytest.raises(AssertionError, match=words):
                wait()
        assert not stream.closed
    stop.set()
    monkeypatch.undo()
    waiting.joined(thread)


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_a_process_listens_to_signals_that_its_parent_ignores():
    """As after `nohup make test &`, where the shell ignores SIGINT for all."""
    program = """
import signal, subprocess, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
from tests.waiting import line_from, process
sleeper = "import time; print('there', flush=True); time.sleep(600)"
with process([sys.executable, "-c", sleeper], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as child:
    line_from(child.stdout)
    child.send_signal(signal.SIGINT)
    child.wait(300)
print(child.returncode)
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=TESTS.parent, capture_output=True, text=True, check=True, timeout=600)
    assert int(done.stdout) == -signal.SIGINT


def test_a_process_that_does_not_end_is_killed(monkeypatch):
    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    with pytest.raises(KeyError), waiting.process(command) as child:
        raise KeyError
    assert child.returncode == -signal.SIGKILL
    monkeypatch.setattr(waiting, "SECONDS", 0.2)
    with pytest.raises(subprocess.TimeoutExpired, match="time.sleep"), waiting.process(command) as child:
        pass
    assert child.wait(60) == -signal.SIGKILL
