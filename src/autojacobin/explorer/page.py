"""The explorer page: written into a folder that opens without a server, served alone, or served with indexes."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autojacobin.core.files import as_path, clear_os_errors, write_atomically
from autojacobin.errors import DataError, StorageError, import_extra
from autojacobin.explorer.bundle import Bundle
from autojacobin.index.names import from_names
from autojacobin.service.access import Access
from autojacobin.service.middleware import SecurityMiddleware, page_policy, problem_app
from autojacobin.service.responses import Problem

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from autojacobin.index.index import Index
    from autojacobin.service.served import ServedIndex

ASSETS = Path(__file__).parent / "assets"

_PAGE, _DATA, _ABOUT = "index.html", "data", "about.js"
_MARK = b"autojacobin-explorer"
_IMPORT = re.compile(r'^import \{ ([\w, ]+) \} from "\./(\w+)\.js";$', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:function|const|class) (\w+))", re.MULTILINE)
WHAT = "serving the page (--static OUT writes it to disk instead)"
_MOST_CODES = 1000
_SAMPLE = 24
_QUICK_TO_LIST = 100_000  # ids that are quick to list
_TYPES = {".css": "text/css", ".html": "text/html", ".js": "text/javascript", ".svg": "image/svg+xml"}


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
    with _writing(target):
        # an old page with new data, or the other way round, would show wrong numbers
        page.unlink(missing_ok=True)
        shutil.rmtree(target / _DATA, ignore_errors=True)
        (target / _DATA).mkdir()
        for name, content in _data_files(bundle):
            write_atomically(target / _DATA / name, content)
        write_atomically(page, _html().encode())
    return page


def prepare_folder(folder: str | os.PathLike[str]) -> Path:
    """Make the folder, or refuse one that holds anything but a page; call this before a long computation."""
    target = as_path(folder)
    with _writing(target):
        target.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=target):
            pass  # a folder that exists may be read-only
        others = sorted(path.name for path in target.iterdir() if not _belongs_to_page(path))
    if others:
        raise StorageError(
            f"{target} holds other files, such as {others[0]}, expected a new or empty folder or an earlier page; "
            "choose another one with --static"
        )
    return target


def as_one_script() -> str:
    """Join all modules, each once and after what it imports."""
    done: dict[str, str] = {}
    _add_module("main", done)
    return '"use strict";\n(() => {\n' + "\n".join(done.values()) + "\n})();\n"


def script_hash() -> str:
    """Give the hash of the script in an exported page, as a Content-Security-Policy names it."""
    digest = hashlib.sha256(f"\n{as_one_script()}".encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _belongs_to_page(path: Path) -> bool:
    if path.name == _DATA:
        return (path / _ABOUT).exists() or not any(path.iterdir())
    return path.name == _PAGE and _MARK in path.read_bytes()[:400]


def _writing(target: Path) -> AbstractContextManager[None]:
    return clear_os_errors(f"write the page to {target}", "choose another folder with --static")


def _data_files(bundle: Bundle) -> Iterator[tuple[str, bytes]]:
    yield _ABOUT, _as_script("about", bundle.about)
    if bundle.wall is not None:
        yield f"wall.{bundle.wall.ending}", bundle.wall.content
    for number, record in enumerate(bundle.queries):
        yield f"query-{number}.js", _as_script(f"query-{number}", record)
    for number, sprite in enumerate(bundle.pictures):
        yield f"query-{number}.{sprite.ending}", sprite.content
    for number, photograph in enumerate(bundle.photographs):
        yield f"photograph-{number}.jpg", photograph


def _as_script(name: str, content: Any) -> bytes:
    """Wrap JSON into a call: a page from a disk may load scripts but not fetch."""
    text = json.dumps(content, separators=(",", ":"), allow_nan=False)
    return f'autojacobinReceive("{name}",{text});\n'.encode()


def _html() -> str:
    html = (ASSETS / "index.html").read_text(encoding="utf-8")
    styles = (ASSETS / "explorer.css").read_text(encoding="utf-8")
    icon = base64.b64encode((ASSETS / "icon.svg").read_bytes()).decode()
    for part, instead in (
        ('href="explorer/icon.svg"', f'href="data:image/svg+xml;base64,{icon}"'),
        ('<link rel="stylesheet" href="explorer/explorer.css">', f"<style>\n{styles}</style>"),
        ('<script type="module" src="explorer/main.js"></script>', f"<script>\n{as_one_script()}</script>"),
        ('data-mode="service"', 'data-mode="files"'),
    ):
        html = html.replace(part, instead)
    return html


def _add_module(name: str, done: dict[str, str]) -> None:
    if name in done:
        return
    source = (ASSETS / f"{name}.js").read_text(encoding="utf-8")
    for match in _IMPORT.finditer(source):
        _add_module(match[2], done)
    exported = [match[1] for match in _EXPORT.finditer(source)]
    body = _EXPORT.sub("", _IMPORT.sub(r"const { \1 } = module_\2;", source))
    done[name] = f"const module_{name} = (() => {{\n{body}\nreturn {{ {', '.join(exported)} }};\n}})();"


def explorer_routes(indexes: Mapping[str, ServedIndex]) -> list[Any]:
    """Give Starlette routes for the page at ``/``, its files under ``/explorer/`` and what it asks of the indexes.

    The page searches through the service's ``POST /v1/search``. Besides, ``GET /explorer/ids?index=NAME`` gives some
    ids to start from, and ``GET /explorer/codes?index=NAME&id=1&id=2`` codes as hexadecimal digits. ``indexes`` are
    those of a service.
    """
    import_extra("starlette.routing", "web", "the explorer page in a service")
    from starlette.concurrency import run_in_threadpool
    from starlette.responses import JSONResponse, Response
    from starlette.routing import Route

    files = {path.name: path for path in ASSETS.iterdir() if path.suffix in _TYPES}
    headers = {"Content-Security-Policy": page_policy(), "Cache-Control": "no-cache"}

    async def file(request: Any) -> Any:
        path = files.get(request.path_params.get("name", _PAGE))  # from a dictionary, so that no path reaches the disk
        if path is None:
            raise Problem(404, "not-found", "there is no such file")
        return Response(path.read_bytes(), media_type=_TYPES[path.suffix], headers=headers)

    def endpoint_of(read: Callable[[Index, Any], dict[str, Any]]) -> Callable[[Any], Awaitable[Any]]:
        async def endpoint(request: Any) -> Any:
            name = request.query_params.get("index", "")
            if name not in indexes:
                expected = f"expected one of: {', '.join(indexes)}; see /v1/indexes"
                raise DataError(f"there is no index {name[:80]!r}, {expected}")
            return JSONResponse(await run_in_threadpool(read, indexes[name].index, request.query_params))

        return endpoint

    return [
        Route("/", file),
        Route("/explorer/ids", endpoint_of(_some_ids)),
        Route("/explorer/codes", endpoint_of(_codes)),
        Route("/explorer/{name}", file),
    ]


def page_app(folder: str | os.PathLike[str]) -> ASGIApp:
    """Make an ASGI application that serves the files in ``folder`` to this machine, and follows no link out of it."""
    import_extra("starlette.routing", "web", WHAT)
    from starlette.routing import Mount
    from starlette.staticfiles import StaticFiles

    headers = {"Content-Security-Policy": page_policy(script_hash()), "Cache-Control": "no-cache"}

    class Files(StaticFiles):
        def file_response(self, *args: Any, **kwargs: Any) -> Any:
            response = super().file_response(*args, **kwargs)
            response.headers.update(headers)
            return response

    files = Files(directory=folder, html=True, follow_symlink=False)
    return SecurityMiddleware(problem_app([Mount("/", files)], hint="the page is at /"), Access())


def _some_ids(index: Index, _: Any) -> dict[str, Any]:
    """Give evenly spread ids, names as text; of a large index those of 0, 1, 2, … that it has, or first names."""
    kind = index.id_kind
    if len(index) <= _QUICK_TO_LIST:
        ids = index.ids.tolist()
    elif kind == "integer":
        ids = [id for id in range(0, len(index), len(index) // _SAMPLE) if id in index]
    else:
        ids = from_names(next(index.parts()).names or (), kind).tolist()
    return {"ids": [id if kind == "integer" else str(id) for id in ids[:: -(-len(ids) // _SAMPLE) or 1]]}


def _codes(index: Index, query: Any) -> dict[str, Any]:
    """Give the codes of ids, which are text in a query string."""
    from autojacobin.service.requests import as_ids

    words, kind = query.getlist("id"), index.id_kind
    if kind == "integer":
        words = [int(word) if word.isascii() and word.isdigit() and len(word) < 19 else word for word in words]
    if not 1 <= len(words) <= _MOST_CODES:
        raise DataError(f"id must be given 1 to {_MOST_CODES} times, got {len(words)}")
    found = index.codes(as_ids("id", words, kind))
    return {"bits": found.n_bits, "codes": [row.tobytes().hex() for row in found.packed]}
