"""Write the explorer page and its data into a folder that opens without a server."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from autojacobin.core.files import write_atomically
from autojacobin.errors import FormatError, StorageError
from autojacobin.explorer.bundle import Bundle

ASSETS = Path(__file__).parent / "assets"

_MODULE = '<script type="module" src="explorer/main.js"></script>'
_STYLES = '<link rel="stylesheet" href="explorer/explorer.css">'
_ICON = 'href="explorer/icon.svg"'
_MODE = 'data-mode="service"'
_PAGE, _DATA, _ABOUT = "index.html", "data", "about.js"
_MARK = b"autojacobin-explorer"
_IMPORT = re.compile(r'^import \{ ([\w, ]+) \} from "\./(\w+)\.js";$', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:function|const|class) (\w+))", re.MULTILINE)
_LEFT_OVER = re.compile(r"^(?:import|export)\b.*$", re.MULTILINE)


def export_page(bundle: Bundle, folder: str | os.PathLike[str]) -> Path:
    """Write the page and its data into ``folder``, and return the path of ``index.html``, which is written last.

    Parameters
    ----------
    bundle : Bundle
        From :func:`build_bundle`.
    folder : path
        A new or empty folder, or one that holds an earlier page, whose data are replaced.
    """
    target = prepare_folder(folder)
    page = target / _PAGE
    try:
        # an old page with new data, or the other way round, would show wrong numbers
        page.unlink(missing_ok=True)
        shutil.rmtree(target / _DATA, ignore_errors=True)
        (target / _DATA).mkdir()
        for name, content in _data_files(bundle):
            write_atomically(target / _DATA / name, content)
        write_atomically(page, _html().encode())
    except OSError as error:
        raise _cannot_write(target, error) from error
    return page


def prepare_folder(folder: str | os.PathLike[str]) -> Path:
    """Make the folder, or refuse one that holds anything but a page; call this before a long computation."""
    target = Path(folder)
    try:
        target.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=target):
            pass  # a folder that exists may be read-only
        others = sorted(path.name for path in target.iterdir() if not _belongs_to_page(path))
    except OSError as error:
        raise _cannot_write(target, error) from error
    if others:
        raise StorageError(
            f"{target} holds other files, such as {others[0]}, expected a new or empty folder or an earlier page; "
            "choose another one with --static"
        )
    return target


def as_one_script(first: str = "main") -> str:
    """Join the module ``first`` and all that it imports, each once and after what it needs itself."""
    done: dict[str, str] = {}
    _add_module(first, done, ())
    return '"use strict";\n(() => {\n' + "\n".join(done.values()) + "\n})();\n"


def script_hash() -> str:
    """Give the hash of the script in an exported page, as a Content-Security-Policy names it."""
    digest = hashlib.sha256(f"\n{as_one_script()}".encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _belongs_to_page(path: Path) -> bool:
    if path.name == _DATA:
        return (path / _ABOUT).exists() or not any(path.iterdir())
    return path.name == _PAGE and _MARK in path.read_bytes()[:400]


def _cannot_write(target: Path, error: OSError) -> StorageError:
    return StorageError(
        f"cannot write the page to {target}: {error.strerror or error}; choose another folder with --static"
    )


def _data_files(bundle: Bundle) -> Iterator[tuple[str, bytes]]:
    yield _ABOUT, _as_script("about", bundle.about)
    if bundle.wall is not None:
        yield f"wall.{bundle.wall.ending}", bundle.wall.content
    for number, record in enumerate(bundle.queries):
        yield f"query-{number}.js", _as_script(f"query-{number}", record)
    for number, sprite in enumerate(bundle.pictures):
        yield f"query-{number}.{sprite.ending}", sprite.content
    for number, sprite in enumerate(bundle.photographs):
        yield f"photograph-{number}.{sprite.ending}", sprite.content


def _as_script(name: str, content: Any) -> bytes:
    """Wrap JSON into a call: a page from a disk may load scripts but not fetch."""
    text = json.dumps(content, separators=(",", ":"), allow_nan=False)
    return f'autojacobinReceive("{name}",{text});\n'.encode()


def _html() -> str:
    html = (ASSETS / "index.html").read_text(encoding="utf-8")
    styles = (ASSETS / "explorer.css").read_text(encoding="utf-8")
    icon = base64.b64encode((ASSETS / "icon.svg").read_bytes()).decode()
    for part, instead in (
        (_ICON, f'href="data:image/svg+xml;base64,{icon}"'),
        (_STYLES, f"<style>\n{styles}</style>"),
        (_MODULE, f"<script>\n{as_one_script()}</script>"),
        (_MODE, 'data-mode="files"'),
    ):
        html = html.replace(part, instead)
    return html


def _add_module(name: str, done: dict[str, str], waiting: tuple[str, ...]) -> None:
    if name in done:
        return
    if name in waiting:
        raise FormatError(f"the modules {' → '.join((*waiting, name))} import each other in a circle; break it")
    source = (ASSETS / f"{name}.js").read_text(encoding="utf-8")
    for match in _IMPORT.finditer(source):
        _add_module(match[2], done, (*waiting, name))
    exported = [match[1] for match in _EXPORT.finditer(source)]
    body = _EXPORT.sub("", _IMPORT.sub(r"const { \1 } = module_\2;", source))
    if left_over := _LEFT_OVER.search(body):
        raise FormatError(f"{name}.js has a line that cannot be joined into one script: {left_over[0]}")
    done[name] = f"const module_{name} = (() => {{\n{body}\nreturn {{ {', '.join(exported)} }};\n}})();"
