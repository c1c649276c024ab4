"""The page's modules as one classic script: browsers refuse to load modules from a disk.

Each module becomes a function that is called once and gives its exports, so that names never meet. This is no general
bundler: it knows the two forms that these modules keep to, ``import { a, b } from "./other.js";`` and ``export`` in
front of a declaration, and refuses any other.
"""

from __future__ import annotations

import re
from pathlib import Path

from autojacobin.errors import FormatError

__all__ = ["ASSETS", "as_one_script"]

ASSETS = Path(__file__).parent / "assets"

_IMPORT = re.compile(r'^import \{ ([\w, ]+) \} from "\./(\w+)\.js";$', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:function|const|class) (\w+))", re.MULTILINE)
_LEFT_OVER = re.compile(r"^(?:import|export)\b.*$", re.MULTILINE)


def as_one_script(first: str = "main") -> str:
    """Join the module ``first`` and all that it imports, each once and after what it needs itself."""
    done: dict[str, str] = {}
    _add(first, done, ())
    return '"use strict";\n(() => {\n' + "\n".join(done.values()) + "\n})();\n"


def _add(name: str, done: dict[str, str], waiting: tuple[str, ...]) -> None:
    if name in done:
        return
    if name in waiting:
        raise FormatError(f"the modules {' → '.join((*waiting, name))} import each other in a circle; break it")
    source = (ASSETS / f"{name}.js").read_text(encoding="utf-8")
    for match in _IMPORT.finditer(source):
        _add(match[2], done, (*waiting, name))
    exported = [match[1] for match in _EXPORT.finditer(source)]
    body = _EXPORT.sub("", _IMPORT.sub(r"const { \1 } = module_\2;", source))
    if left_over := _LEFT_OVER.search(body):
        raise FormatError(f"{name}.js has a line that cannot be joined into one script: {left_over[0]}")
    done[name] = f"const module_{name} = (() => {{\n{body}\nreturn {{ {', '.join(exported)} }};\n}})();"
