"""Formats of the results: tables as text, Markdown, LaTeX, CSV and HTML, and ``report.html`` with all of them."""

from __future__ import annotations

import base64
import csv
import html
import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Section", "Table", "as_page"]

_LARGEST_DRAWING = 400_000  # bytes; a larger SVG is replaced by the PNG
_DOTS_PER_PIXEL = 300 / 96 / 1.35
_PHONE = 640  # pixels; a phone scrolls what is wider, since it would be too small to read

_STYLE = """
:root { --paper: #ffffff; --ink: #1f2328; --faint: #59636e; --line: #d1d9e0; --mark: #fff3e0; --panel: #f6f8fa;
  color-scheme: light dark; }
@media (prefers-color-scheme: dark) {
  :root { --paper: #0f1419; --ink: #e6edf3; --faint: #9aa7b2; --line: #30363d; --mark: #4a3512; --panel: #171d24; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 62rem; padding: 1.5rem 1rem 4rem; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif; overflow-wrap: break-word; }
h1 { font-size: 1.7rem; margin: 0 0 .3rem; } h2 { font-size: 1.2rem; margin: 2.8rem 0 .5rem; }
p { margin: .4rem 0; } .lead, .note, figcaption, footer { color: var(--faint); }
.note, figcaption { font-size: .9rem; max-width: 48rem; }
.said { background: var(--panel); border-left: 3px solid var(--line); padding: .5rem .8rem; margin: .5rem 0 .8rem;
  grid-template-columns: max-content 1fr; }
.said .here { border: 0; color: #bf5200; font-weight: 600; }
.table { position: relative; overflow-x: auto; margin: .6rem 0; } table { border-collapse: collapse; font-size: .9rem;
  font-variant-numeric: tabular-nums; }
caption { text-align: left; font-weight: 600; padding: .2rem 0; }
th, td { padding: .22rem 1rem .22rem .2rem; border-bottom: 1px solid var(--line); text-align: right;
  white-space: nowrap; }
th:first-child { text-align: left; } thead th { border-bottom: 2px solid var(--ink); white-space: normal;
  vertical-align: bottom; }
tbody th { font-weight: 400; } td b { background: var(--mark); padding: 0 .2rem; border-radius: 3px; }
td b { margin-right: -.2rem; } td i { position: absolute; font-style: normal; white-space: pre; }
img { display: block; max-width: 100%; height: auto; background: #fff; border-radius: 4px; }
figure { margin: .6rem 0; overflow-x: auto; } .wide { max-width: max(100%, 40rem); }
nav ul { columns: 2; column-gap: 2rem; padding-left: 1.1rem; } nav a { color: inherit; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1rem; }
dt { color: var(--faint); } dd { margin: 0; min-width: 0; }
@media (prefers-color-scheme: dark) { .said .here { color: #ff9a4d; } }
@media (max-width: 40rem) { nav ul { columns: 1; } dl, .said { grid-template-columns: 1fr; }
  dd { margin-bottom: .3rem; } }
@media print { section { break-inside: avoid; } nav { display: none; } }
"""
_LATEX = {letter: f"\\{letter}" for letter in "&%_#${}"}
_LATEX |= {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
_LATEX |= {"±": r"$\pm$", "×": r"$\times$", "≈": r"$\approx$", "α": r"$\alpha$", "λ": r"$\lambda$", "≤": r"$\leq$"}
_LATEX |= {"<": "$<$", ">": "$>$", "|": "$|$", "−": "$-$", "–": "--", "—": "---", "…": r"\ldots{}", "≥": r"$\geq$"}
_LATEX |= {"[": "{[}", "*": "{*}"}  # at the start of a row, LaTeX would read them as an argument of \\

_NUMBER = re.compile(r"^Table [IVX]+: ")


@dataclass(frozen=True)
class Table:
    """Rows of text below a header.

    Attributes
    ----------
    name, title : str
        Name of its files, and the text above it.
    header : tuple of str
        Names of the columns.
    rows : tuple of tuples of str
    bold, level : frozenset of (row, column)
        The best cells, and cells that are level with them.
    note : str
        Text below it.
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
        rows = [
            [f"{text} " if c in marked and text[-1:] not in "*≈" else text for c, text in enumerate(row)]
            for row in self._marked("{}*", "{}≈")
        ]
        widths = [max(len(row[c]) for row in [list(self.header), *rows]) for c in range(len(self.header))]
        lines = [
            "  ".join(
                text.ljust(width) if c == 0 else text.rjust(width) for c, (text, width) in enumerate(pairs)
            ).rstrip()
            for pairs in (list(zip(row, widths, strict=True)) for row in [list(self.header), *rows])
        ]
        lines.insert(1, "  ".join("-" * width for width in widths))
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

    def to_html(self) -> str:
        """Format as an HTML table with a caption."""
        head = "".join(f'<th scope="col">{html.escape(name)}</th>' for name in self.header)
        body = "".join(
            f'<tr><th scope="row">{first}</th>{"".join(f"<td>{text}</td>" for text in others)}</tr>'
            for first, *others in self._marked("<b>{}</b>", "{}<i> ≈</i>", html.escape)
        )
        note = f'<p class="note">{html.escape(self.note)}</p>' if self.note else ""
        return (
            f'<div class="table"><table><caption>{html.escape(self.title)}</caption><thead><tr>{head}</tr></thead>'
            f"<tbody>{body}</tbody></table></div>{note}"
        )


@dataclass(frozen=True)
class Section:
    """A table, a figure (the paths of its PNG and SVG files), or the reason why there is none.

    ``claim`` is what the paper says about it, ``found`` what the results say, ``caption`` the text below a figure.
    """

    name: str
    title: str
    claim: str
    found: str
    caption: str
    content: Table | tuple[Path, Path] | str


def as_page(title: str, lead: str, sections: Sequence[Section], about: dict[str, Any]) -> str:
    """Give the report as one HTML page."""
    listed = "".join(f'<li><a href="#{s.name}">{html.escape(s.title)}</a></li>' for s in sections)
    body = "".join(map(_section, sections))
    facts = "".join(f"<dt>{html.escape(name)}</dt><dd>{html.escape(str(value))}</dd>" for name, value in about.items())
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{_STYLE}</style></head><body>'
        f'<h1>{html.escape(title)}</h1><p class="lead">{html.escape(lead)}</p><nav><ul>{listed}</ul></nav>'
        f'<main>{body}<section id="about"><h2>What was run</h2><dl>{facts}</dl></section></main>'
        "<footer><p>Written by autojacobin. All files of this report are in its folder.</p></footer></body></html>\n"
    )


def _section(section: Section) -> str:
    said = "".join(
        f'<dt class="{name}">{head}</dt><dd>{html.escape(text)}</dd>'
        for name, head, text in (("paper", "The paper", section.claim), ("here", "Here", section.found))
        if text
    )
    said = f'<dl class="said">{said}</dl>' if said else ""
    if isinstance(section.content, Table):
        inside = section.content.to_html()
    elif isinstance(section.content, str):
        inside = f'<p class="note">Not made: {html.escape(section.content)}.</p>'
    else:
        caption = f"<figcaption>{html.escape(section.caption)}</figcaption>" if section.caption else ""
        inside = f"<figure>{_embedded(section.title, *section.content)}{caption}</figure>"
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
