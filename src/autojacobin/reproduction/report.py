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

_STYLE = """
:root { --paper: #ffffff; --ink: #1f2328; --faint: #59636e; --line: #d1d9e0; --mark: #fff3e0;
  color-scheme: light dark; }
@media (prefers-color-scheme: dark) {
  :root { --paper: #0f1419; --ink: #e6edf3; --faint: #9aa7b2; --line: #30363d; --mark: #3a2a10; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 62rem; padding: 1.5rem 1rem 4rem; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.7rem; margin: 0 0 .3rem; } h2 { font-size: 1.2rem; margin: 2.6rem 0 .4rem; }
p { margin: .4rem 0; } .lead, .note, figcaption, footer { color: var(--faint); }
.claim { border-left: 3px solid #d55e00; padding-left: .7rem; margin: .5rem 0; }
.table { overflow-x: auto; margin: .6rem 0; } table { border-collapse: collapse; font-size: .9rem; }
caption { text-align: left; font-weight: 600; padding: .2rem 0; }
th, td { padding: .22rem .7rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; }
th:first-child { text-align: left; } thead th { border-bottom: 2px solid var(--ink); }
tbody th { font-weight: 400; } td b { background: var(--mark); padding: 0 .2rem; border-radius: 3px; }
img { max-width: 100%; height: auto; background: #fff; border-radius: 4px; } figure { margin: .6rem 0; }
nav ul { columns: 2; padding-left: 1.1rem; } nav a { color: inherit; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1rem; }
dt { color: var(--faint); } dd { margin: 0; }
"""


@dataclass(frozen=True)
class Section:
    """A table, a figure (as the paths of its PNG and SVG files), or the reason why there is none."""

    name: str
    title: str
    claim: str
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
    claim = f'<p class="claim">The paper: {html.escape(section.claim)}</p>' if section.claim else ""
    if isinstance(section.content, Table):
        inside = section.content.to_html()
    elif isinstance(section.content, str):
        inside = f'<p class="note">Not made: {html.escape(section.content)}.</p>'
    else:
        inside = f'<figure><img alt="{html.escape(section.title)}" src="{_embedded(*section.content)}"></figure>'
    return f'<section id="{section.name}"><h2>{html.escape(section.title)}</h2>{claim}{inside}</section>'


def _embedded(png: Path, svg: Path) -> str:
    small = svg.stat().st_size <= _LARGEST_DRAWING
    kind, path = ("svg+xml", svg) if small else ("png", png)
    return f"data:image/{kind};base64,{base64.b64encode(path.read_bytes()).decode()}"
