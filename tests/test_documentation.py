"""The documentation as a site: it builds without a warning, and loads nothing from elsewhere."""

import html
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
    "autoencoder", "hashers", "search", "index", "datasets", "evaluation", "paper.reproduction", "engines", "jobs",
    "service", "explorer", "errors",
)  # fmt: skip
NOT_LISTED = {  # shown elsewhere, or no more than a table
    "LinearHasher", "NotFittedError", "CATALOGUE", "Entry", "ARTEFACTS", "autojacobin",
}  # fmt: skip


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    result = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=1200
    )
    assert result.returncode == 0, result.stderr
    return folder


@pytest.fixture(scope="module")
def browser():
    with chromium() as found:
        yield found


def test_every_page_is_built(site):
    pages = {path.relative_to(ROOT / "docs").with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")}
    assert {page for page in pages if not (site / page).exists()} == set()


def test_pages_are_short():
    """Notes are for those who carry on the work, and the reference is made from docstrings: these may be longer."""
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *ROOT.glob("*/README.md")]
    words = {page.relative_to(ROOT).as_posix(): len(page.read_text(encoding="utf-8").split()) for page in pages}
    assert len(words) > 30
    assert {page: number for page, number in words.items() if number > 1_500} == {}
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 120


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


def test_the_reference_lists_the_parameters_of_methods(site):
    page = html.unescape(re.sub(r"<[^>]+>", "", (site / "api" / "hashers.html").read_text(encoding="utf-8")))
    text = " ".join(page.split())
    assert "ITQ(n_bits=64, *, random_state=None, n_iter=50)" in text
    assert re.search(r"n_iter \(int, default: 50 ?\) – Iterations", text)


def test_docstrings_show_no_markup_of_another_language(site):
    for page in (site / "api").glob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert not re.findall(r":(?:func|class|meth|attr|mod):", text), page.name
        assert "Examples" in text or page.name in (
            "index.html",
            "errors.html",
            "service.html",
            "engines.html",
        )


def test_formulas_are_mathml(site):
    for page in ("method", "binary-autoencoder", "neighbour-hashing"):
        text = (site / f"{page}.html").read_text(encoding="utf-8")
        written = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8").count("```math")
        assert written == text.count('<math xmlns="http://www.w3.org/1998/Math/MathML" display="block">') > 0
        assert "\\frac" not in re.sub(r"<code>.*?</code>", "", text)


def test_pages_fit_a_phone_and_hide_the_search_when_opened_from_disk(site, browser):
    with browser.new_page(viewport={"width": 390, "height": 800}) as page:
        for name in ("index", "method", "reproduction", "search"):
            page.goto(f"{(site / name).as_uri()}.html")
            assert page.evaluate("document.documentElement.scrollWidth") <= 390, name
            assert not page.locator(".md-search").is_visible()
            assert not page.locator("label[for=__search]").first.is_visible()


def test_a_table_that_is_too_wide_scrolls_in_the_frame_that_shows_it(site, browser):
    """The frame has a shade at its edge; a table that scrolls by itself would cover it."""
    with browser.new_page(viewport={"width": 390, "height": 800}) as page:
        page.goto((site / "notes" / "hamming.html").as_uri())
        frames = page.locator(".md-typeset__table").all()
        widths = [frame.evaluate("frame => [frame.clientWidth, frame.scrollWidth]") for frame in frames]
        inner = [frame.evaluate("frame => getComputedStyle(frame.firstElementChild).overflowX") for frame in frames]
    assert any(whole > seen for seen, whole in widths)
    assert set(inner) == {"visible"}


def test_the_counts_of_table_2_are_those_of_its_rows():
    """The tables of the sets are counted again, and every page that has the counts must have these."""
    labels, rows_of = {"SIFT": "sift", "GIST": "gist", "text": "text", "photos": "photos"}, {}
    notes = (ROOT / "docs" / "notes" / "table-2.md").read_text(encoding="utf-8")
    for name, table in re.findall(r"<!-- table (\w+)-two -->\n((?:\|.*\n)+)", notes):
        rows_of[name] = [line.strip("| ").split(" | ")[1:] for line in table.splitlines()[2:]]
    assert rows_of
    for page in ("README.md", "docs/reproduction.md", "docs/quality.md"):
        text = (ROOT / page).read_text(encoding="utf-8")
        (table,) = re.findall(r"<!-- table standing -->\n((?:\|.*\n)+)", text)
        lines = [line.strip("| ").split(" | ") for line in table.splitlines()[2:]]
        assert len(lines) == len(rows_of)
        for about, *counts in lines:
            rows = rows_of[labels[about.split(",")[0]]]
            assert f" {len(rows)} rows" in about
            best = [sum("**" in row[column] for row in rows) for column in range(len(counts))]
            level = [sum("**" in row[column] or "≈" in row[column] for row in rows) for column in range(len(counts))]
            assert counts == [f"{a} / {b}" for a, b in zip(best, level, strict=True)], page


def quality_table():
    """Means by set, bits, k and method of the large table, with the methods that are marked as first or level."""
    text = (ROOT / "docs" / "notes" / "hamming.md").read_text(encoding="utf-8")
    header, rows = re.search(r"^\| set, bits, k \|(.*)\|\n\|[-|: ]+\n((?:\|.*\n)+)", text, flags=re.MULTILINE).groups()
    methods = [name.strip() for name in header.split("|")]
    means, marked = {}, {}
    for row in rows.splitlines():
        cell, *values = row.strip("| ").split(" | ")
        name, bits, k = cell.split(", ")
        at = (name, int(bits), int(k))
        means[at] = {
            method: float(value.strip("*").split(" ")[0]) for method, value in zip(methods, values, strict=True)
        }
        marked[at] = {method for method, value in zip(methods, values, strict=True) if "**" in value or "≈" in value}
    return means, marked


def test_what_is_said_of_the_quality_of_codes_is_what_its_table_shows():
    """The table is the one source of the count of cells and of the gains over ITQ, wherever they are stated."""
    means, marked = quality_table()
    ours = "Auto-JacoBin, chosen"
    assert len(set(next(iter(means.values()))) - {ours}) == 14
    lost = {at for at, methods in marked.items() if ours not in methods}
    assert lost == {("text", 128, 100)}
    names = ("docs/choosing.md", "docs/quality.md", "docs/notes/hamming.md")
    pages = {name: (ROOT / name).read_text(encoding="utf-8") for name in names}
    for name, text in pages.items():
        counts = set(re.findall(r"(\d+) of (\d+) cells", text))
        assert counts == {(str(len(marked) - len(lost)), str(len(marked)))}, name
        assert not re.search(r"all ten|of ten methods", text), name
    gains = {}
    for (name, _, k), row in means.items():
        if k == 10:
            gains.setdefault(name, []).append(round(row[ours] - row["ITQ"], 3))
    for name, stated in (("gist", "GIST, 960 numbers"), ("sift", "SIFT, 128 numbers")):
        low, high = (f"{gain:.3f}".lstrip("0") for gain in (min(gains[name]), max(gains[name])))
        assert f"| {stated} | {low} to {high}" in pages["docs/choosing.md"]
    table = pages["docs/notes/hamming.md"]
    best = re.findall(r"^\| (\w+), k = (\d+) \| [\d.]+ \| ([\d.]+) \(", table, flags=re.MULTILINE)
    assert len(best) == 12
    for name, k, stated in best:
        assert float(stated) == max(means[name, 128, int(k)].values())


def test_the_candidates_in_the_readme_are_those_of_the_tables():
    readme, quality, signs_page = (
        (ROOT / name).read_text(encoding="utf-8").replace("*", "")
        for name in ("README.md", "docs/quality.md", "docs/notes/signs.md")
    )
    sift = [re.search(rf"\| SIFT, [^|]*, {size} bytes \|(.*)\|", quality)[1].split("|") for size in (8, 16)]
    ours, _, exact, fast = ([cell.split("/")[0].strip() for cell in cells] for cells in zip(*sift, strict=True))
    assert f"| {' / '.join(fast)}; slower, exact tables: {' / '.join(exact)} | {' / '.join(ours)} |" in readme
    rows = {
        name: cells.split("|") for name, cells in re.findall(r"^\| `([^`|]+)`[^|]*\|(.*)\|$", signs_page, re.MULTILINE)
    }
    hamming = [rows["ITQ"][column].split(";")[1].split("/")[0].strip() for column in (0, 1)]
    decoded = [rows["BinaryAutoencoder"][column].strip() for column in (0, 1)]
    assert f"| {' / '.join(hamming)} | {' / '.join(decoded)} |" in readme
    signs = [rows["Sign()"][column].split(";")[1].split("/") for column in (3, 4)]
    by_hamming, by_values = (" / ".join(part.strip() for part in parts) for parts in zip(*signs, strict=True))
    assert f"| {by_hamming} by Hamming, {by_values} by real-valued queries |" in readme


def test_the_figures_of_the_paper_are_the_same_in_the_readme_and_the_reproduction():
    readme, reproduction = ((ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "docs/reproduction.md"))
    for stated in ("13 of 15 rows", "untrained start"):
        assert stated in readme, stated
        assert stated in reproduction, stated


def test_make_quick_runs_tests_that_exist():
    root = Path(__file__).parents[1]
    listed = re.search(r"^QUICK := ((?:.*\\\n)*.*)", (root / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    paths = listed[1].replace("\\\n", " ").split()
    assert len(paths) > 5
    assert all((root / path).exists() for path in paths)
    assert "make quick" in (root / "CONTRIBUTING.md").read_text(encoding="utf-8")
