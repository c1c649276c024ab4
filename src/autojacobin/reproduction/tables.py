"""A table that prints as text, Markdown, LaTeX, CSV and HTML."""

from __future__ import annotations

import csv
import html
import io
from dataclasses import dataclass

__all__ = ["Table"]

_LATEX = {"&": r"\&", "%": r"\%", "_": r"\_", "#": r"\#", "±": r"$\pm$", "×": r"$\times$", "≈": r"$\approx$"}
_LATEX |= {"α": r"$\alpha$", "λ": r"$\lambda$", ">": r"$>$", "–": "--", "…": r"\ldots{}"}


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
    bold : frozenset of (row, column)
        Cells that stand out.
    note : str
        What stands below it.
    """

    name: str
    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    bold: frozenset[tuple[int, int]] = frozenset()
    note: str = ""

    def cell(self, row: int, column: int, mark: str = "{}") -> str:
        """Text of a cell, put into ``mark`` if it is bold."""
        text = self.rows[row][column]
        return mark.format(text) if (row, column) in self.bold else text

    def _marked(self, mark: str) -> list[list[str]]:
        return [[self.cell(r, c, mark) for c in range(len(self.header))] for r in range(len(self.rows))]

    def to_text(self) -> str:
        """Columns of equal width; bold cells have a star."""
        rows = self._marked("{}*")
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
        rows = [[text.replace("|", r"\|") for text in row] for row in self._marked("**{}**")]
        lines = [f"**{self.title}**", "", "| " + " | ".join(self.header) + " |"]
        lines.append("|---" + "|---:" * (len(self.header) - 1) + "|")
        lines += ["| " + " | ".join(row) + " |" for row in rows]
        return "\n".join([*lines, *(["", self.note] if self.note else [])]) + "\n"

    def to_latex(self) -> str:
        """A table environment that needs no package but booktabs."""
        latex = Table(
            self.name,
            _escaped(self.title),
            tuple(map(_escaped, self.header)),
            tuple(tuple(map(_escaped, row)) for row in self.rows),
            self.bold,
            _escaped(self.note),
        )
        body = " \\\\\n".join("  " + " & ".join(row) for row in latex._marked(r"\textbf{{{}}}"))
        return (
            "\\begin{table}\n\\centering\n"
            f"\\begin{{tabular}}{{l{'r' * (len(self.header) - 1)}}}\n\\toprule\n"
            f"  {' & '.join(latex.header)} \\\\\n\\midrule\n{body} \\\\\n\\bottomrule\n\\end{{tabular}}\n"
            f"\\caption{{{latex.title}{'. ' + latex.note if self.note else ''}}}\n"
            f"\\label{{table:{self.name}}}\n\\end{{table}}\n"
        )

    def to_csv(self) -> str:
        """Header and rows, without marks."""
        stream = io.StringIO()
        csv.writer(stream, lineterminator="\n").writerows([self.header, *self.rows])
        return stream.getvalue()

    def to_html(self) -> str:
        """A table element with its caption."""
        head = "".join(f'<th scope="col">{html.escape(name)}</th>' for name in self.header)
        body = []
        for r in range(len(self.rows)):
            cells = []
            for c in range(len(self.header)):
                text = html.escape(self.rows[r][c])
                text = f"<b>{text}</b>" if (r, c) in self.bold else text
                cells.append(f'<th scope="row">{text}</th>' if c == 0 else f"<td>{text}</td>")
            body.append(f"<tr>{''.join(cells)}</tr>")
        note = f'<p class="note">{html.escape(self.note)}</p>' if self.note else ""
        return (
            f'<div class="table"><table><caption>{html.escape(self.title)}</caption><thead><tr>{head}</tr></thead>'
            f"<tbody>{''.join(body)}</tbody></table></div>{note}"
        )


def _escaped(text: str) -> str:
    return "".join(_LATEX.get(letter, letter) for letter in text)
