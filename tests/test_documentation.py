"""The documentation as a site: it builds without a warning, and loads nothing from elsewhere."""

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.explorer.browser import chromium

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


def test_formulas_are_mathml(site):
    for page in ("method", "binary-autoencoder"):
        text = (site / f"{page}.html").read_text(encoding="utf-8")
        written = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8").count("```math")
        assert written == text.count('<math xmlns="http://www.w3.org/1998/Math/MathML" display="block">') > 0
        assert "\\frac" not in re.sub(r"<code>.*?</code>", "", text)


def test_pages_fit_a_phone_and_hide_the_search_when_opened_from_disk(site):
    with chromium() as browser:
        page = browser.new_page(viewport={"width": 390, "height": 800})
        for name in ("index", "method", "reproduction", "search"):
            page.goto(f"{(site / name).as_uri()}.html")
            assert page.evaluate("document.documentElement.scrollWidth") <= 390, name
            assert not page.locator(".md-search").is_visible()
            assert not page.locator("label[for=__search]").first.is_visible()


def test_what_is_said_of_table_2_is_what_the_table_shows():
    """The tables that a run wrote are the one source; each sentence about them has their numbers."""
    text = (ROOT / "docs" / "reproduction.md").read_text(encoding="utf-8")
    counted = set()
    for table in re.findall(r"^\| \(k, bits\) \|.*\n\|[-|:]+\n((?:\|.*\n)+)", text, flags=re.MULTILINE):
        rows = [line.strip("| ").split(" | ") for line in table.splitlines()]
        best = sum("**" in row[-1] or "≈" in row[-1] for row in rows)
        ahead = sum("**" in row[-1] and not any("≈" in cell for cell in row) for row in rows)
        counted.add((best, len(rows), ahead))
    assert counted == {(6, 15, 1), (10, 10, 1)}
    flat = " ".join(text.split())
    for best, rows, ahead in counted:
        assert re.search(
            rf"best or equal to the best in {best} of {rows} rows[^.;]*, and significantly ahead of all others in "
            rf"{ahead}\b",
            flat,
        )


def test_make_quick_runs_tests_that_exist():
    root = Path(__file__).parents[1]
    listed = re.search(r"^QUICK := ((?:.*\\\n)*.*)", (root / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    paths = listed[1].replace("\\\n", " ").split()
    assert len(paths) > 5
    assert all((root / path).exists() for path in paths)
    assert "make quick" in (root / "CONTRIBUTING.md").read_text(encoding="utf-8")
