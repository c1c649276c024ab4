"""An exported page over HTTP, behind the same middleware as the search service."""

from __future__ import annotations

import os
from typing import Any

from autojacobin.errors import MissingExtraError
from autojacobin.explorer.export import script_hash
from autojacobin.service.access import Access
from autojacobin.service.middleware import Asgi, SecurityMiddleware, page_policy, problem_app

__all__ = ["WHAT", "page_app"]

WHAT = "serving the page (--static OUT writes it to disk instead)"


def page_app(folder: str | os.PathLike[str]) -> Asgi:
    """Make an ASGI application that serves the files in ``folder`` to this machine alone.

    It looks for the files at each request, so the page may be written later. It does not follow symbolic links out of
    the folder.
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
