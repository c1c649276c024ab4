"""Formats of the results: tables as text, Markdown, LaTeX, CSV and HTML, and ``report.html`` with all of them."""

import base64
import csv
import html
import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_LARGEST_DRAWING = 2_000_000  # bytes; a larger SVG is replaced by the PNG, which stays white on a dark page
_DOTS_PER_PIXEL = 300 / 96 / 1.35
_PHONE = 640  # pixels; a phone scrolls what is wider, since it would be too small to read
_FITTING = 4  # columns of a table that fit a phone
_FITTING_A_SCREEN = 13  # columns
_COMFORTABLE = 8  # columns that fit a wide screen in letters of the usual size

DEFINITIONS = {
    "code": "A vector as a short row of bits. The Hamming distance of two codes is the number of bits that differ.",
    "true neighbours": "The k points of the base that are nearest to a query by the Euclidean distance of the vectors.",
    "Recall@i": "The share of the k true neighbours among the i points whose codes are nearest to the query's code.",
    "m-Recall": "The mean of Recall@i over i = 1 … K, where K is the number of points retrieved. 1 is perfect.",
    "level, ≈": "The difference is not significant: a paired test over the queries finds none at 5 %, or it is within "
    "the spread of the seeds. “Ahead” and “behind” always mean a significant difference.",
    "Auto-JacoBin": "The method of the paper, with the settings that the paper fixes. With “(chosen)” it has the "
    "settings that it chose on held-out training points, which is the default of the library.",
    "α": "The weight of the term that moves features towards ±1 and keeps bits uncorrelated. The paper takes 0.1.",
    "asymmetric distance": "Compares the real values of a query, before they become bits, with the codes.",
    "decoded distance": "Compares a query with the vectors that the codes decode to.",
}
"""What a reader has to know for the tables and figures."""

_STYLE = Path(__file__).with_suffix(".css")
_HINT = '<p class="hint">Scroll sideways to see all of it →</p>'
_LATEX = {letter: f"\\{letter}" for letter in "&%_#${}"}
_LATEX |= {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
_LATEX |= {"±": r"$\pm$", "×": r"$\times$", "≈": r"$\approx$", "α": r"$\alpha$", "λ": r"$\lambda$", "≤": r"$\leq$"}
_LATEX |= {"<": "$<$", ">": "$>$", "|": "$|$", "−": "$-$", "–": "--", "—": "---", "…": r"\ldots{}", "≥": r"$\geq$"}
_LATEX |= {"[": "{[}", "*": "{*}"}  # at the start of a row, LaTeX would read them as an argument of \\

_NUMBER = re.compile(r"^Table [IVX]+: ")
_SPREAD = re.compile(r"^(\S+)( ± \S+)$")


@dataclass(frozen=True)
class Table:
    """Rows of text below a header.

    Its files have the ``name``; the ``title`` is above it, and the ``note`` below. ``bold`` holds (row, column) of the
    best cells, and ``level`` of cells that are level with them.
    """

    name: str
    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    bold: frozenset[tuple[int, int]] = frozenset()
    note: str = ""
    level: frozenset[tuple[int, int]] = frozenset()

    def _marked(self, bold: str, level: str, escape: Callable[[str], str] = str) -> list[list[str]]:
        """Escape the texts of the cells, and mark those that are bold or level."""
        patterns = dict.fromkeys(self.level, level) | dict.fromkeys(self.bold, bold)
        return [
            [patterns.get((r, c), "{}").format(escape(text)) for c, text in enumerate(row)]
            for r, row in enumerate(self.rows)
        ]

    def to_text(self) -> str:
        """Format as plain text. Bold cells have a star, and cells level with them ≈."""
        marked = {column for _, column in self.bold | self.level}
        rows = [list(self.header)]
        for row in self._marked("{}*", "{}≈"):
            rows.append([f"{text} " if c in marked and text[-1:] not in "*≈" else text for c, text in enumerate(row)])
        first, *others = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join([row[0].ljust(first), *map(str.rjust, row[1:], others)]).rstrip() for row in rows]
        lines.insert(1, "  ".join("-" * width for width in (first, *others)))
        return "\n".join([self.title, "", *lines, *(["", self.note] if self.note else [])]) + "\n"

    def to_markdown(self) -> str:
        """Format as a Markdown table."""
        rows = [[text.replace("|", r"\|") for text in row] for row in (self.header, *self._marked("**{}**", "{} ≈"))]
        lines = ["| " + " | ".join(row) + " |" for row in rows]
        lines[:1] = [f"**{self.title}**", "", lines[0], "|---" + "|---:" * (len(self.header) - 1) + "|"]
        return "\n".join([*lines, *(["", self.note] if self.note else [])]) + "\n"

    def to_latex(self) -> str:
        """Format as a LaTeX table, which needs the package booktabs and is numbered by LaTeX."""
        rows = [list(map(_latex, self.header)), *self._marked(r"\textbf{{{}}}", r"{} $\approx$", _latex)]
        lines = [f"  {' & '.join(row)} \\\\\n" for row in rows]
        title = _NUMBER.sub("", self.title)
        return (
            "\\begin{table}\n\\centering\n"
            f"\\begin{{tabular}}{{l{'r' * (len(self.header) - 1)}}}\n\\toprule\n"
            f"{lines[0]}\\midrule\n{''.join(lines[1:])}\\bottomrule\n\\end{{tabular}}\n"
            f"\\caption{{{_latex(title)}{'. ' + _latex(self.note) if self.note else ''}}}\n"
            f"\\label{{table:{self.name}}}\n\\end{{table}}\n"
        )

    def to_csv(self) -> str:
        """Format as CSV, without marks."""
        stream = io.StringIO()
        csv.writer(stream, lineterminator="\n").writerows([self.header, *self.rows])
        return stream.getvalue()

    def to_html(self, heading: str = "") -> str:
        """Format as an HTML table with a caption, unless the heading above says the same. Spreads are below numbers."""
        head = "".join(f'<th scope="col">{html.escape(name)}</th>' for name in self.header)
        body = "".join(
            f'<tr><th scope="row">{first}</th>{"".join(f"<td>{text}</td>" for text in others)}</tr>'
            for first, *others in self._marked("<b>{}</b>", "<i>≈ </i>{}", _html_cell)
        )
        hint = _HINT if len(self.header) > _FITTING else ""
        if len(self.header) > _FITTING_A_SCREEN:
            hint = _HINT.replace("hint", "hint always", 1)
        many = ' class="many"' if len(self.header) > _COMFORTABLE else ""
        note = f'<p class="note">{html.escape(self.note)}</p>' if self.note else ""
        caption = "" if self.title == heading else f"<caption>{html.escape(self.title)}</caption>"
        return (
            f'{hint}<div class="table"><table{many}>{caption}'
            f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>{note}"
        )


@dataclass(frozen=True)
class Section:
    """A table, a figure (paths of its PNG and SVG), or why there is none; with the paper's claim and a caption."""

    name: str
    title: str
    claim: str
    caption: str
    content: Table | tuple[Path, Path] | str


@dataclass(frozen=True)
class Report:
    """The page: what was measured, how often each method is ahead, tables and figures, and how they were made."""

    title: str
    lead: str
    verdict: Sequence[Table]
    sections: Sequence[Section]
    about: dict[str, Any]

    def to_html(self) -> str:
        """Format as one HTML page that loads no other files."""
        judged = "".join(table.to_html() for table in self.verdict)
        judged = f'<section id="verdict"><h2>Verdict</h2>{judged}</section>' if judged else ""
        listed = "".join(f'<li><a href="#{s.name}">{html.escape(s.title)}</a></li>' for s in self.sections)
        body, style = "".join(map(_section, self.sections)), _STYLE.read_text(encoding="utf-8")
        return (
            f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{html.escape(self.title)}</title>'
            f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{style}</style></head><body>'
            f'<h1>{html.escape(self.title)}</h1><p class="lead">{html.escape(self.lead)}</p>{judged}'
            f'<section id="definitions"><h2>Definitions</h2>{_terms(DEFINITIONS)}</section>'
            f"<nav><h2>Contents</h2><ul>{listed}</ul></nav>"
            f'<main>{body}<section id="about"><h2>What was run</h2>{_terms(self.about)}</section></main>'
            "<footer><p>Written by autojacobin. All files of the report are in its folder.</p></footer></body></html>\n"
        )


def _terms(named: dict[str, Any]) -> str:
    pairs = (f"<dt>{html.escape(name)}</dt><dd>{html.escape(str(text))}</dd>" for name, text in named.items())
    return f"<dl>{''.join(pairs)}</dl>"


def _html_cell(text: str) -> str:
    return _SPREAD.sub(r"\1<small>\2</small>", html.escape(text))


def _section(section: Section) -> str:
    said = f'<dl class="said"><dt>The paper</dt><dd>{html.escape(section.claim)}</dd></dl>' if section.claim else ""
    if isinstance(section.content, Table):
        inside = section.content.to_html(section.title)
    elif isinstance(section.content, str):
        inside = f'<p class="note">Not made: {html.escape(section.content)}.</p>'
    else:
        caption = f"<figcaption>{html.escape(section.caption)}</figcaption>" if section.caption else ""
        picture = _embedded(section.title, *section.content)
        hint = _HINT if 'class="wide"' in picture else ""
        inside = f'<figure>{hint}<div class="scroll">{picture}</div>{caption}</figure>'
    return f'<section id="{section.name}"><h2>{html.escape(section.title)}</h2>{said}{inside}</section>'


def _embedded(title: str, png: Path, svg: Path) -> str:
    pixels = png.read_bytes()
    # The header of a PNG has its size. Figures are drawn for print; on a screen they are shown larger.
    width, height = (round(int.from_bytes(pixels[at : at + 4], "big") / _DOTS_PER_PIXEL) for at in (16, 20))
    wide = ' class="wide"' if width > _PHONE else ""
    small = svg.stat().st_size <= _LARGEST_DRAWING
    kind, content = ("svg+xml", svg.read_bytes()) if small else ("png", pixels)
    return (
        f'<img alt="{html.escape(title)}" width="{width}" height="{height}"{wide} '
        f'src="data:image/{kind};base64,{base64.b64encode(content).decode()}">'
    )


def _latex(text: str) -> str:
    return "".join(_LATEX.get(letter, letter) for letter in text)
