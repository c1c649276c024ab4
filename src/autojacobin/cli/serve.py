"""``autojacobin serve``: the search service."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from autojacobin.cli._options import Config, Debug, Threads
from autojacobin.service.access import TOKEN_VARIABLE, Access, Limits, read_token
from autojacobin.service.server import DEFAULT_PORT

__all__ = ["serve"]

_DEFAULTS = Limits()


def serve(
    indexes: Annotated[list[str], typer.Argument(metavar="INDEX", help="Folders of indexes, as PATH or NAME=PATH.")],
    host: Annotated[str, typer.Option(help="Address to listen on; beyond this machine, a token is required.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 is any that is free.")] = DEFAULT_PORT,
    token_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help=f"File with the token; default: ${TOKEN_VARIABLE}."),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Name by which to answer without a token, besides this machine's own."),
    ] = None,
    cors: Annotated[
        list[str] | None,
        typer.Option(metavar="ORIGIN", help="Origin whose pages may ask, such as https://example.org."),
    ] = None,
    queue: Annotated[int, typer.Option(min=1, help="Requests that wait or are answered at once.")] = _DEFAULTS.requests,
    queue_vectors: Annotated[int, typer.Option(min=1, help="Vectors that wait at once.")] = _DEFAULTS.waiting_vectors,
    max_vectors: Annotated[int, typer.Option(min=1, help="Vectors in a request.")] = _DEFAULTS.vectors,
    max_k: Annotated[int, typer.Option(min=1, help="Neighbours a query.")] = _DEFAULTS.k,
    max_candidates: Annotated[int, typer.Option(min=1, help="Candidates a query.")] = _DEFAULTS.candidates,
    max_work: Annotated[int, typer.Option(min=1, help="Vectors times candidates of a request.")] = _DEFAULTS.work,
    max_body: Annotated[int, typer.Option(min=1, help="Bytes of a request.")] = _DEFAULTS.body_bytes,
    max_connections: Annotated[int, typer.Option(min=1, help="Open connections.")] = _DEFAULTS.connections,
    request_seconds: Annotated[float, typer.Option(min=0.01, help="Time for an answer.")] = _DEFAULTS.request_seconds,
    body_seconds: Annotated[
        float, typer.Option(min=0.01, help="Time for a request to arrive.")
    ] = _DEFAULTS.body_seconds,
    poll_seconds: Annotated[float, typer.Option(min=0.01, help="How often to look for new versions.")] = 1.0,
    _threads: Threads = None,
    _config: Config = None,
    _debug: Debug = False,
) -> None:
    """Serve indexes over HTTP: a JSON API and a page to look at.

    Programs ask POST /v1/search; GET /openapi.json describes all there is, and / is the page.

    Example: autojacobin serve my-index photos=other/index --port 8571
    """
    from autojacobin.explorer import explorer_routes
    from autojacobin.service.recalls import any_unfinished
    from autojacobin.service.registry import named_paths
    from autojacobin.service.server import serve as run

    limits = Limits(
        body_bytes=max_body,
        vectors=max_vectors,
        k=max_k,
        candidates=max_candidates,
        work=max_work,
        requests=queue,
        waiting_vectors=queue_vectors,
        request_seconds=request_seconds,
        body_seconds=body_seconds,
        connections=max_connections,
    )
    access = Access(read_token(token_file), tuple(allow_host or ()), tuple(cors or ()))
    paths = named_paths(indexes)
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("autojacobin.service").setLevel(logging.INFO)

    def announce(address: str) -> None:
        typer.echo(f"serving {', '.join(paths)} at {address} (Ctrl-C stops)")
        sys.stdout.flush()  # whoever started the service may be waiting for this line in a pipe

    run(
        paths,
        host=host,
        port=port,
        access=access,
        limits=limits,
        poll_seconds=poll_seconds,
        pages=explorer_routes,
        announce=announce,
    )
    typer.echo("stopped; every request that was accepted has been answered", err=True)
    if any_unfinished():  # the interpreter would wait for the threads that share out the work
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
