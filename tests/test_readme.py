"""What the README and the documentation show runs as it stands."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from autojacobin.cli import app
from autojacobin.hashers import registry

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SNIPPETS = list(
    dict.fromkeys(  # some pages show the same
        snippet
        for page in PAGES
        for snippet in re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    )
)


def commands_of(page):
    """Lines of the shell blocks of a page, without what is said of them."""
    blocks = re.findall(r"^```sh\n(.*?)^```", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    return [shlex.split(line, comments=True) for block in blocks for line in block.splitlines() if line.strip()]


def test_there_are_snippets():
    assert len(SNIPPETS) >= 3


@pytest.mark.parametrize("number", range(len(SNIPPETS)))
def test_snippet_runs(number, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "_METHODS", dict(registry._METHODS))  # a snippet registers a method
    code, printed = SNIPPETS[number], []

    def note(*values):  # and no capture of the standard output, which threads of an earlier snippet may put back
        printed.append(" ".join(map(str, values)))

    with warnings.catch_warnings():
        warnings.simplefilter("default")
        exec(compile(code, f"snippet {number}", "exec"), {"__name__": "__main__", "print": note})
    assert printed == re.findall(r"print\(.*\)\s+# (.*)", code)


@pytest.mark.parametrize("page", ["README.md", "docs/quickstart.md"])
def test_the_commands_run_one_after_the_other(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    vectors = load_digits().data.astype(np.float32)
    np.save("base.npy", vectors[:400])
    np.save("queries.npy", vectors[1500:1520])
    commands = [words for words in commands_of(ROOT / page) if words[0] == "autojacobin"]
    for words in commands_of(ROOT / page):
        if words[0] == "python":  # makes the same files
            subprocess.run([sys.executable, *words[1:]], check=True, timeout=1200)
            assert np.array_equal(np.load("base.npy"), vectors[:400])
            assert np.array_equal(np.load("queries.npy"), vectors[1500:1520])
    assert len(commands) == 3
    for words in commands:
        app(words[1:], standalone_mode=False)
    found = np.loadtxt("found.csv", delimiter=",", skiprows=1)
    assert found.shape == (200, 4)
    exact = np.sort(np.linalg.norm(vectors[1500] - vectors[:400], axis=1))
    assert found[0, 3] == pytest.approx(exact[0])


def test_commands_of_the_readme_are_there():
    known = {command.name or command.callback.__name__ for command in app.registered_commands}
    known |= {group.name for group in app.registered_groups}
    for words in commands_of(ROOT / "README.md"):
        assert words[0] in ("autojacobin", "make", "python") or words == [".", ".venv/bin/activate"]
        if words[0] == "autojacobin":
            assert words[1] in known


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_the_targets_it_names_do_what_it_says():
    targets = {words[1] for words in commands_of(ROOT / "README.md") if words[0] == "make"} | {"docs"}
    assert {"demo", "test"} <= targets
    ends = {"demo": "bin/autojacobin demo", "test": "pytest", "docs": "mkdocs build --strict"}
    for target in targets:
        environment = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL")}
        plan = subprocess.run(
            ["make", "--dry-run", "--no-print-directory", target],
            cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=1200,
        )  # fmt: skip
        assert plan.returncode == 0, plan.stderr
        assert ends[target] in plan.stdout


def test_every_file_that_the_readme_links_to_is_there():
    links = re.findall(r"\]\(([^)#:]+)\)", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert len(links) > 20
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_the_citation_names_the_paper_and_the_software():
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for part in ("Auto-JacoBin: Auto-encoder Jacobian Binary Hashing", "Szymanski", "McCane"):
        assert part in citation
        assert part in readme
    version = re.search(r'^version = "(.*)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)[1]
    assert f"\nversion: {version}\n" in citation
