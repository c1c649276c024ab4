"""``report.html``: one file that a person reads, with every table and figure inside it."""

from __future__ import annotations

import base64
import html
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autojacobin.reproduction.tables import Table

__all__ = ["Section", "write_report"]

_LARGEST_DRAWING = 400_000  # bytes; beyond it a drawing is sent as pixels
_DOTS_PER_PIXEL = 300 / 96 / 1.35
_PHONE = 640  # pixels; of what is wider a phone shows a part, to be pushed aside, rather than all too small to read

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


@dataclass(frozen=True)
class Section:
    """A table, a figure (the paths of its PNG and SVG files), or the reason why there is none; and what is said of it.

    ``claim`` is what the paper says, ``found`` what the results say, ``caption`` what stands below a figure.
    """

    name: str
    title: str
    claim: str
    found: str
    caption: str
    content: Table | tuple[Path, Path] | str


def write_report(title: str, lead: str, sections: Sequence[Section], about: dict[str, Any]) -> str:
    """Give the page."""
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
    # The size stands in the head of every PNG; figures are drawn for print, and larger letters suit a screen.
    width, height = (round(int.from_bytes(pixels[at : at + 4], "big") / _DOTS_PER_PIXEL) for at in (16, 20))
    wide = ' class="wide"' if width > _PHONE else ""
    small = svg.stat().st_size <= _LARGEST_DRAWING
    kind, content = ("svg+xml", svg.read_bytes()) if small else ("png", pixels)
    return (
        f'<img alt="{html.escape(title)}" width="{width}" height="{height}"{wide} '
        f'src="data:image/{kind};base64,{base64.b64encode(content).decode()}">'
    )
