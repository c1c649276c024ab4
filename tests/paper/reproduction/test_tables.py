"""A table says the same in every form."""

import csv
import html.parser
import io
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autojacobin.hashers import find_method
from autojacobin.paper.reproduction import Table
from autojacobin.paper.reproduction.report import Report, Section
from autojacobin.paper.reproduction.trials import every_method
from tests.explorer.browser import chromium, watched

TABLE = Table("t", "A & B", ("name", "50 %"), (("a_1", "0.9 ± 0.1"), ("b|c", "> 10")), frozenset({(1, 1)}), "A note.")


def test_text_lines_up_and_stars_what_is_bold():
    assert TABLE.to_text() == (
        "A & B\n\nname        50 %\n----  ----------\na_1   0.9 ± 0.1\nb|c        > 10*\n\nA note.\n"
    )


def test_what_is_level_is_marked_everywhere_but_for_programs():
    table = replace(TABLE, level=frozenset({(0, 1)}))
    assert "a_1   0.9 ± 0.1≈\n" in table.to_text()
    assert "| a_1 | 0.9 ± 0.1 ≈ |" in table.to_markdown()
    assert r"a\_1 & 0.9 $\pm$ 0.1 $\approx$ \\" in table.to_latex()
    assert "<td><i>≈ </i>0.9<small> ± 0.1</small></td>" in table.to_html()
    assert table.to_csv() == TABLE.to_csv()
    assert "≈" not in table.to_csv()


def test_markdown_escapes_bars_and_marks_what_is_bold():
    assert TABLE.to_markdown().splitlines()[2:6] == [
        "| name | 50 % |",
        "|---|---:|",
        "| a_1 | 0.9 ± 0.1 |",
        r"| b\|c | **> 10** |",
    ]


def test_markdown_escapes_bars_in_the_header_too():
    assert Table("t", "T", ("|i|",), (("1",),)).to_markdown().splitlines()[2] == r"| \|i\| |"


def test_latex_escapes_what_latex_would_take_for_its_own():
    latex = TABLE.to_latex()
    assert r"name & 50 \% \\" in latex
    assert r"a\_1 & 0.9 $\pm$ 0.1 \\" in latex
    assert r"\textbf{$>$ 10}" in latex
    assert r"\caption{A \& B. A note.}" in latex


def test_latex_takes_the_number_of_the_paper_from_its_caption():
    assert r"\caption{m-Recall}" in Table("t", "Table II: m-Recall", ("a",), (("1",),)).to_latex()


def read_latex(text):
    """What LaTeX would print of a cell, read letter by letter; a letter that it would take for its own is an error."""
    printed = ""
    while text:
        for latex, letter in LATEX_LETTERS:
            if text.startswith(latex):
                printed, text = printed + letter, text[len(latex) :]
                break
        else:
            assert text[0] not in "\\&%$#_{}~^<>|[*", f"LaTeX would not print {text[0]!r} in {text!r}"
            printed, text = printed + text[0], text[1:]
    return printed


LATEX_LETTERS = [(f"\\{letter}", letter) for letter in "&%$#_{}"] + [
    (r"\textbackslash{}", "\\"), (r"\textasciitilde{}", "~"), (r"\textasciicircum{}", "^"),
    ("$<$", "<"), ("$>$", ">"), ("$|$", "|"), ("{[}", "["), ("{*}", "*"),
]  # fmt: skip


@given(st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=20))
def test_latex_prints_every_letter_of_a_keyboard_as_it_is(text):
    row = Table("t", "T", ("a",), ((text,),)).to_latex().split("\\midrule\n  ")[1].split(" \\\\\n\\bottomrule")[0]
    assert read_latex(row) == text


class _Cells(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.rows, self.bold = [], []

    def handle_starttag(self, tag, attrs):
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")
        elif tag == "b":
            self.bold.append((len(self.rows) - 2, len(self.rows[-1]) - 1))

    def handle_data(self, data):
        if self.rows and self.rows[-1]:
            self.rows[-1][-1] += data


words = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs", "Zl", "Zp"]), max_size=8)


@given(st.integers(1, 4), st.integers(1, 4), st.data())
def test_csv_and_html_give_the_cells_back(n_rows, n_columns, data):
    header = tuple(data.draw(words) for _ in range(n_columns))
    rows = tuple(tuple(data.draw(words) for _ in range(n_columns)) for _ in range(n_rows))
    bold = data.draw(st.frozensets(st.tuples(st.integers(0, n_rows - 1), st.integers(0, n_columns - 1))))
    table = Table("t", "", header, rows, bold)
    if n_columns > 1:  # a lone empty cell is a blank line to the csv module
        assert list(csv.reader(io.StringIO(table.to_csv(), newline=""))) == [list(row) for row in (header, *rows)]
    parser = _Cells()
    parser.feed(table.to_html())
    assert parser.rows == [list(row) for row in (header, *rows)]
    assert set(parser.bold) == set(bold)


@pytest.mark.parametrize("form", ["to_text", "to_markdown", "to_latex"])
def test_a_table_without_a_note_has_none(form):
    text = getattr(Table("t", "T", ("a",), (("1",),)), form)()
    assert "note" not in text
    assert text.endswith("\n")


def test_the_widest_table_scrolls_with_a_hint(tmp_path):
    names = [find_method(name).label for name in every_method()]
    row = ("(100, 128)", *["0.898 ± 0.003"] * len(names))
    every = frozenset((0, column) for column in range(1, len(row)))
    table = Table("t", "All methods", ("(k, bits)", *names), (row,), note="A note.", level=every)
    page_file = tmp_path / "report.html"
    page_file.write_text(Report("T", "", [], [Section("t", "T", "", "", table)], {}).to_html(), "utf-8")
    with chromium() as browser, watched(browser, page_file.as_uri()) as page:
        for width, scrolls in ((1280, True), (390, True)):
            page.set_viewport_size({"width": width, "height": 800})
            page.goto(page_file.as_uri())
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            box = "document.querySelector('.table')"
            assert page.evaluate(f"{box}.scrollWidth > {box}.clientWidth") == scrolls
            assert page.locator(".hint").is_visible() == scrolls
        cells = [cell.bounding_box() for cell in page.locator("td").all()]
        marks = [mark.bounding_box() for mark in page.locator("td i").all()]
        for cell, mark in zip(cells, marks, strict=True):  # no mark leaves its own cell
            assert cell["x"] <= mark["x"]
            assert mark["x"] + mark["width"] <= cell["x"] + cell["width"]
