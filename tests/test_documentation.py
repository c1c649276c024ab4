"""The documentation as a site: it builds without a warning, and loads nothing from elsewhere."""

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = (
    "hashers", "search", "index", "datasets", "evaluation", "reproduction", "engines", "jobs", "service",
    "explorer", "errors",
)  # fmt: skip
NOT_LISTED = {  # shown elsewhere, or no more than a table
    "LinearHasher", "NotFittedError", "CATALOGUE", "Entry", "ARTEFACTS", "autojacobin",
}  # fmt: skip


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return folder


def test_every_page_is_built(site):
    pages = {path.relative_to(ROOT / "docs").with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")}
    assert {page for page in pages if not (site / page).exists()} == set()


def test_nothing_is_loaded_from_elsewhere(site):
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        for tag in re.findall(r"<(?:script|link|img|iframe|source)\b[^>]*>", text):
            if 'rel="canonical"' not in tag:
                assert not re.search(r'(?:src|href)="?(?:https?:)?//', tag), f"{page.name}: {tag}"
    for sheet in site.rglob("*.css"):
        loaded = re.findall(r"(?:@import|url\()\s*[\"']?(https?:)?//", sheet.read_text(encoding="utf-8"))
        assert not loaded, sheet.name


def test_every_public_name_is_in_the_reference(site):
    shown = set()
    for page in (site / "api").glob("*.html"):
        shown |= set(re.findall(r'id="(autojacobin[\w.]*)"', page.read_text(encoding="utf-8")))
    missing = []
    for package in PACKAGES:
        module = importlib.import_module(f"autojacobin.{package}")
        names = {name.rpartition(".")[2] for name in shown}
        missing += [f"{package}.{name}" for name in module.__all__ if name not in names | NOT_LISTED]
    assert missing == []


def test_docstrings_show_no_markup_of_another_language(site):
    for page in (site / "api").glob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert not re.findall(r":(?:func|class|meth|attr|mod):", text), page.name
        assert "Examples" in text or page.name in (
            "index.html",
            "errors.html",
            "figures.html",
            "service.html",
            "engines.html",
        )


def test_make_quick_runs_tests_that_exist():
    root = Path(__file__).parents[1]
    listed = re.search(r"^QUICK := ((?:.*\\\n)*.*)", (root / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    paths = listed[1].replace("\\\n", " ").split()
    assert len(paths) > 5
    assert all((root / path).exists() for path in paths)
    assert "make quick" in (root / "CONTRIBUTING.md").read_text(encoding="utf-8")
