"""The routes of the explorer page, and the server of the page alone."""

from __future__ import annotations

import os
import threading
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

from autojacobin.errors import DataError, MissingExtraError
from autojacobin.explorer.static_page import ASSETS, script_hash
from autojacobin.index.names import from_names
from autojacobin.service.access import Access
from autojacobin.service.middleware import Asgi, SecurityMiddleware, page_policy, problem_app
from autojacobin.service.responses import PROBLEM, Problem, invalid

if TYPE_CHECKING:
    from autojacobin.index.index import Index

WHAT = "serving the page (--static OUT writes it to disk instead)"

_MOST_CODES = 1000
_SAMPLE = 24
_QUICK_TO_LIST = 1_000_000  # ids that are quick to list
_TYPES = {".css": "text/css", ".html": "text/html", ".js": "text/javascript", ".svg": "image/svg+xml"}


def explorer_routes(indexes: Mapping[str, Index]) -> list[Any]:
    """Give Starlette routes for the page at ``/``, its files under ``/explorer/`` and what it asks of the indexes.

    The page searches through the service's ``POST /v1/search``. Besides, ``GET /explorer/ids?index=NAME`` gives some
    ids to start from, and ``GET /explorer/codes?index=NAME&id=1&id=2`` codes as hexadecimal digits.

    Parameters
    ----------
    indexes : mapping of name to Index
        Read at every request, so that an index may be replaced in it.
    """
    try:
        from starlette.concurrency import run_in_threadpool
        from starlette.responses import JSONResponse, Response
        from starlette.routing import Route
    except ImportError as error:
        raise MissingExtraError("starlette", "web", "the explorer page in a service") from error

    files = {path.name: path for path in ASSETS.iterdir() if path.suffix in _TYPES}
    headers = {"Content-Security-Policy": page_policy(), "Cache-Control": "no-cache"}

    def refusal(problem: Problem) -> Any:
        return Response(problem.body(), problem.status, media_type=PROBLEM)

    def file(name: str) -> Any:
        path = files.get(name)  # from a dictionary, so that no path of a request reaches the disk
        if path is None:
            return refusal(Problem(404, "not-found", "there is no such file"))
        return Response(path.read_bytes(), media_type=_TYPES[path.suffix], headers=headers)

    async def page(_: Any) -> Any:
        return file("index.html")

    async def asset(request: Any) -> Any:
        return file(request.path_params["name"])

    def endpoint_of(read: Callable[[Index, Any], dict[str, Any]]) -> Callable[[Any], Awaitable[Any]]:
        async def endpoint(request: Any) -> Any:
            query = request.query_params
            try:
                return JSONResponse(await run_in_threadpool(lambda: read(_find_index(indexes, query), query)))
            except Problem as problem:
                return refusal(problem)
            except DataError as error:
                return refusal(invalid(str(error)))

        return endpoint

    return [
        Route("/", page),
        Route("/explorer/ids", endpoint_of(_SomeIds())),
        Route("/explorer/codes", endpoint_of(_codes)),
        Route("/explorer/{name}", asset),
    ]


def page_app(folder: str | os.PathLike[str]) -> Asgi:
    """Make an ASGI application that serves the files in ``folder``, which may be written later, to this machine alone.

    It does not follow symbolic links out of the folder.
    """
    try:
        from starlette.routing import Mount
        from starlette.staticfiles import StaticFiles
    except ImportError as error:
        raise MissingExtraError("starlette", "web", WHAT) from error
    headers = {"Content-Security-Policy": page_policy(script_hash()), "Cache-Control": "no-cache"}

    class Files(StaticFiles):
        def file_response(self, *args: Any, **kwargs: Any) -> Any:
            response = super().file_response(*args, **kwargs)
            response.headers.update(headers)
            return response

    files = Files(directory=folder, html=True, follow_symlink=False)
    return SecurityMiddleware(problem_app([Mount("/", files)], hint="the page is at /"), Access())


def _find_index(indexes: Mapping[str, Index], query: Mapping[str, str]) -> Index:
    name = query.get("index", "")
    if name not in indexes:
        raise DataError(f"there is no index {name[:80]!r}, expected one of: {', '.join(indexes)}; see /v1/indexes")
    return indexes[name]


class _SomeIds:
    """Some ids of each index, read once for each of its versions, because that sorts all ids."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Index, tuple[int, int], list[int | str]]] = {}
        self._lock = threading.Lock()

    def __call__(self, index: Index, query: Mapping[str, str]) -> dict[str, Any]:
        name, version = query["index"], (len(index), index.next_id)  # new vectors raise the second
        with self._lock:  # a request for the same ids waits and finds them
            known = self._known.get(name)
            if known is None or known[0] is not index or known[1] != version:
                known = self._known[name] = (index, version, _some_ids(index))
        return {"ids": known[2]}


def _some_ids(index: Index) -> list[int | str]:
    """Give evenly spread ids, names as text.

    For a large index this needs no sorting: they are those of 0, 1, 2, … that it has, or names from its first block.
    """
    kind = index.id_kind
    if len(index) <= _QUICK_TO_LIST:
        ids = index.ids.tolist()
    elif kind == "integer":
        ids = [id for id in range(0, len(index), len(index) // _SAMPLE) if id in index]
    else:
        ids = from_names(next(index.parts()).names or (), kind).tolist()
    return [id if kind == "integer" else str(id) for id in ids[:: -(-len(ids) // _SAMPLE) or 1]]


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
