"""An exported page over HTTP, for this machine alone; the standard library is enough for that."""

from __future__ import annotations

import os
import sys
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from autojacobin.errors import StorageError

__all__ = ["page_server"]


class _Quiet(SimpleHTTPRequestHandler):
    """Files of a folder, without a line for each request."""

    def log_message(self, *_: Any) -> None:
        pass

    def list_directory(self, path: Any) -> None:  # noqa: ARG002
        self.send_error(404)


class _Server(ThreadingHTTPServer):
    """A server to which a browser that leaves in the middle of an answer is no error."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


def page_server(folder: str | os.PathLike[str], port: int = 0) -> ThreadingHTTPServer:
    """Give a server of the files in ``folder`` that listens on 127.0.0.1; a port of 0 is any that is free.

    It answers once its ``serve_forever`` runs, and is to be closed with ``server_close``.
    """
    try:
        return _Server(("127.0.0.1", port), partial(_Quiet, directory=os.fspath(folder)))
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise StorageError(f"cannot listen on port {port} of this machine: {reason}; give another --port") from error
