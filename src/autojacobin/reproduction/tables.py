"""A table that prints as text, Markdown, LaTeX, CSV and HTML."""

from __future__ import annotations

import csv
import html
import io
import re
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Table"]

_LATEX = {letter: f"\\{letter}" for letter in "&%_#${}"}
_LATEX |= {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
_LATEX |= {"±": r"$\pm$", "×": r"$\times$", "≈": r"$\approx$", "α": r"$\alpha$", "λ": r"$\lambda$", "≤": r"$\leq$"}
_LATEX |= {"<": "$<$", ">": "$>$", "|": "$|$", "−": "$-$", "–": "--", "—": "---", "…": r"\ldots{}", "≥": r"$\geq$"}
_LATEX |= {"[": "{[}", "*": "{*}"}  # a row that begins with one would be read as an argument of the line break before

_NUMBER = re.compile(r"^Table [IVX]+: ")


@dataclass(frozen=True)
class Table:
    """Rows of text under a header.

    Attributes
    ----------
    name, title : str
        Name of its files, and what stands above it.
    header : tuple of str
        Names of the columns.
    rows : tuple of tuples of str
    bold, level : frozenset of (row, column)
        Cells that stand out, and cells that are as good as those.
    note : str
        What stands below it.
    """

    name: str
    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    bold: frozenset[tuple[int, int]] = frozenset()
    note: str = ""
    level: frozenset[tuple[int, int]] = frozenset()

    def _marked(self, bold: str, level: str, escaped: Callable[[str], str] = str) -> list[list[str]]:
        """Texts of the cells, escaped, and put into a pattern where they are bold or level."""
        patterns = dict.fromkeys(self.level, level) | dict.fromkeys(self.bold, bold)
        return [
            [patterns.get((r, c), "{}").format(escaped(text)) for c, text in enumerate(row)]
            for r, row in enumerate(self.rows)
        ]

    def to_text(self) -> str:
        """Columns of equal width; bold cells have a star, and those level with them ≈."""
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
        """GitHub's kind of table."""
        rows = [[text.replace("|", r"\|") for text in row] for row in (self.header, *self._marked("**{}**", "{} ≈"))]
        lines = ["| " + " | ".join(row) + " |" for row in rows]
        lines[:1] = [f"**{self.title}**", "", lines[0], "|---" + "|---:" * (len(self.header) - 1) + "|"]
        return "\n".join([*lines, *(["", self.note] if self.note else [])]) + "\n"

    def to_latex(self) -> str:
        """A table environment that needs no package but booktabs; its number is LaTeX's own."""
        rows = [list(map(_escaped, self.header)), *self._marked(r"\textbf{{{}}}", r"{} $\approx$", _escaped)]
        lines = [f"  {' & '.join(row)} \\\\\n" for row in rows]
        title = _NUMBER.sub("", self.title)
        return (
            "\\begin{table}\n\\centering\n"
            f"\\begin{{tabular}}{{l{'r' * (len(self.header) - 1)}}}\n\\toprule\n"
            f"{lines[0]}\\midrule\n{''.join(lines[1:])}\\bottomrule\n\\end{{tabular}}\n"
            f"\\caption{{{_escaped(title)}{'. ' + _escaped(self.note) if self.note else ''}}}\n"
            f"\\label{{table:{self.name}}}\n\\end{{table}}\n"
        )

    def to_csv(self) -> str:
        """Header and rows, without marks, for programs to read."""
        stream = io.StringIO()
        csv.writer(stream, lineterminator="\n").writerows([self.header, *self.rows])
        return stream.getvalue()

    def to_html(self) -> str:
        """A table element with its caption."""
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


def _escaped(text: str) -> str:
    return "".join(_LATEX.get(letter, letter) for letter in text)
