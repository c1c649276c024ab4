"""What the site does to its pages: it adds those from elsewhere in the repository, and writes formulas as MathML."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
ELSEWHERE = {
    "benchmark-programs.md": "benchmarks/README.md",
    "changes.md": "CHANGELOG.md",
    "contributing.md": "CONTRIBUTING.md",
    "examples.md": "examples/README.md",
}
_FORMULA = re.compile(r"^```math\n(.*?)\n```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(\]\()([^)\s#:]+)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages."""
    for page, source in ELSEWHERE.items():
        content = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=content))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Write formulas as MathML, and let links that are right in the repository be right on the site."""
    markdown = _FORMULA.sub(lambda formula: f'<div class="formula">{_mathml(formula[1])}</div>', markdown)
    here = page.file.src_uri
    source = ELSEWHERE.get(here, f"docs/{here}")
    return _LINK.sub(lambda link: link[1] + _on_the_site(link[2], source, here), markdown)


def _mathml(tex: str) -> str:
    """Convert a formula. Browsers draw MathML by themselves, so nothing has to be loaded."""
    return convert(tex, display="block").replace("\n", " ")


def _on_the_site(target: str, source: str, here: str) -> str:
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
    pages = {in_repository: page for page, in_repository in ELSEWHERE.items()}
    if path in pages:
        return posixpath.relpath(pages[path], posixpath.dirname(here) or ".")
    if here in ELSEWHERE and path.startswith("docs/"):
        return path.removeprefix("docs/")
    return target
