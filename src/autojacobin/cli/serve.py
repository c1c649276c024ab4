"""``autojacobin serve``, ``warm``, ``explore``: the search service, and a page that compares what methods retrieve."""

import logging
import os
import sys
import tempfile
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from autojacobin.cli.console import output, progress_bar, stoppable, wrong
from autojacobin.cli.models import parse_setting
from autojacobin.cli.options import DataFolder, SearchDevice
from autojacobin.datasets import load_set
from autojacobin.errors import DataError
from autojacobin.service.access import TOKEN_VARIABLE, WRITE_TOKEN_VARIABLE, Access, Limits, read_token
from autojacobin.service.server import DEFAULT_PORT

_LIMITS = [limit.name for limit in fields(Limits)]


def serve(
    indexes: Annotated[list[str], Argument(metavar="INDEX", help="Folders of indexes, as PATH or NAME=PATH.")],
    host: Annotated[str, Option(metavar="ADDRESS", help="Address to listen on; others need a token.")] = "127.0.0.1",
    port: Annotated[int, Option(min=0, max=65535, help="Port; 0 takes any free one.")] = DEFAULT_PORT,
    token_file: Annotated[Path | None, Option(metavar="FILE", help=f"The token, else ${TOKEN_VARIABLE}.")] = None,
    writable: Annotated[bool, Option("--writable", help="Let requests with a token add and remove vectors.")] = False,
    write_token_file: Annotated[
        Path | None, Option(metavar="FILE", help=f"The token for writing, else ${WRITE_TOKEN_VARIABLE}.")
    ] = None,
    allow_host: Annotated[list[str] | None, Option(metavar="NAME", help="Host name to accept without a token.")] = None,
    cors: Annotated[list[str] | None, Option(metavar="ORIGIN", help="Origin whose pages may send requests.")] = None,
    device: SearchDevice = "cpu",
    limit: Annotated[list[str] | None, Option(metavar="NAME=NUMBER", help=f"Limit: {', '.join(_LIMITS)}.")] = None,
    poll_seconds: Annotated[float, Option(metavar="SECONDS", min=0.01, help="Look for new versions this often.")] = 1.0,
) -> None:
    """Serve indexes over HTTP: a JSON API and a page.

    Programs send POST /v1/search. GET /openapi.json describes all requests, and / is the page. The service only reads,
    unless --writable is given.

    Example: autojacobin serve my-index photos=other/index --port 8571
    """
    from autojacobin.explorer import explorer_routes
    from autojacobin.service.served import named_paths
    from autojacobin.service.server import any_unfinished
    from autojacobin.service.server import serve as run

    given = dict(parse_setting("--limit", setting) for setting in limit or [])
    if unknown := set(given) - set(_LIMITS):
        raise wrong("--limit", f"there is no limit {min(unknown)!r}; there are {', '.join(_LIMITS)}")
    limits = Limits(**given)
    if writable and device != "cpu":
        raise wrong("--device", "a copy on a GPU can only be searched; leave --writable out, or serve on the CPU")
    if write_token_file is not None and not writable:
        raise wrong("--write-token-file", "it is for a service that writes; add --writable")
    write_token = read_token(write_token_file, WRITE_TOKEN_VARIABLE) if writable else None
    if writable and write_token is None:
        raise DataError(
            "a writable service needs a token for writing, got none; put one into a file for --write-token-file or "
            f"into {WRITE_TOKEN_VARIABLE}"
        )
    access = Access(read_token(token_file), tuple(allow_host or ()), tuple(cors or ()), write_token)
    paths = named_paths(indexes)
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("autojacobin.service").setLevel(logging.INFO)

    def announce(address: str) -> None:
        typer.echo(f"serving {', '.join(paths)} at {address} (Ctrl-C stops)")
        if sys.stdout is not None:  # it may be closed
            sys.stdout.flush()  # another program may be waiting for this line

    address: dict[str, Any] = {"host": host, "port": port, "access": access, "limits": limits, "device": device}
    answered = run(paths, **address, poll_seconds=poll_seconds, pages=explorer_routes, announce=announce)
    outcome = "every request that was accepted has been answered" if answered else "requests under way got no answer"
    typer.echo(f"stopped; {outcome}", err=True)
    if any_unfinished():  # the interpreter would wait for their threads
        for stream in filter(None, (sys.stdout, sys.stderr)):
            stream.flush()
        os._exit(0)


def warm() -> None:
    """Compile everything now, so that later commands and the service start without waiting for the compiler.

    The compiled code goes to a cache beside the library, or in the folder that NUMBA_CACHE_DIR names. It is for one
    kind of CPU. To share it between machines, set NUMBA_CPU_NAME for this command and for later ones.

    Example: autojacobin warm
    """
    from autojacobin.service.served import compile_kernels

    with progress_bar() as progress:
        compile_kernels(progress)
    if not output.quiet:
        typer.echo("Everything is compiled; later commands load it from the cache.")


def explore(
    run: Annotated[Path | None, Argument(metavar="RUN", help="Folder of a finished demo or reproduce.")] = None,
    name: Annotated[str | None, Option("--set", help="Name or path of a data set; photos by default.")] = None,
    data: DataFolder = None,
    static: Annotated[Path | None, Option(metavar="OUT", help="Write the page to this folder, and exit.")] = None,
    methods: Annotated[str | None, Option(metavar="NAMES", help="Methods to compare, with commas between.")] = None,
    bits: Annotated[list[int] | None, Option(metavar="N", help="Length of the codes.")] = None,
    neighbours: Annotated[int | None, Option(min=1, help="Largest k on the page; 50 by default.")] = None,
    wall: Annotated[int, Option(min=1, max=500, help="Queries to choose from.")] = 36,
    train: Annotated[int | None, Option(min=2, help="Most training points; 4,000 by default.")] = None,
    port: Annotated[int, Option(min=0, max=65535, help="Port of the page; 0 takes any free one.")] = 8570,
) -> None:
    """Train the methods on a set and show for each query which of the true neighbours they find.

    Models that a run has kept, as the demo does, are not trained again.

    Without --static the page is served on this machine until Ctrl-C.

    Example: autojacobin explore --set photos --static page
    """
    from autojacobin.explorer import build_bundle, explorer_settings, export_page, open_run
    from autojacobin.explorer.bundle import kept_models
    from autojacobin.explorer.page import prepare_folder
    from autojacobin.paper.reproduction.trials import SHOWN

    options = {"--set": name, "--bits": bits, "--neighbours": neighbours, "--train": train}
    given = [option for option, value in options.items() if value is not None]
    if run is not None and given:
        raise DataError(f"a finished run has its own settings, got {run} and {', '.join(given)}; leave out either")
    chosen, settings = open_run(run, data) if run is not None else (load_set(name or "photos", data), None)
    settings = settings or explorer_settings(chosen, bits=bits, k=neighbours, training_points=train)
    models = {} if run is None else kept_models(run)
    named = [method.strip() for method in methods.split(",")] if methods is not None else list(SHOWN)

    def export(folder: str | Path) -> Path:
        with progress_bar() as progress:
            made = build_bundle(chosen, settings, methods=named, wall=wall, models=models, progress=progress)
        return export_page(made, folder)

    if static is not None:
        prepare_folder(static)  # before the training, as is the port
        with stoppable(f"{static} holds no page"):
            page = export(static)
        typer.echo(f"The page is {page}; open it in a browser, it needs no server and no network.")
        return
    from autojacobin.explorer.page import WHAT, page_app  # which need Starlette
    from autojacobin.service.server import HttpServer

    with (
        stoppable("--static OUT keeps a page"),
        tempfile.TemporaryDirectory(prefix="autojacobin-") as folder,
        HttpServer(page_app(folder), "127.0.0.1", port, limits=Limits(), what=WHAT) as server,
    ):
        export(folder)
        typer.echo(f"The page is at {server.address}/ until you press Ctrl-C.")
        server.run()
