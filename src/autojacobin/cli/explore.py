"""``autojacobin explore``: look at what each method retrieves, in a browser."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autojacobin.cli._progress import single_bar
from autojacobin.cli._stopping import stoppable
from autojacobin.errors import DataError

if TYPE_CHECKING:
    from autojacobin.explorer import Bundle

__all__ = ["explore"]


def explore(
    run: Annotated[
        Path | None, typer.Argument(help="Folder of a finished reproduce, to look at what it measured.")
    ] = None,
    name: Annotated[
        str | None,
        typer.Option("--set", help="A set of the catalogue, or the path of one's own; photos by default."),
    ] = None,
    data: Annotated[Path | None, typer.Option(help="Folder of data sets; AUTOJACOBIN_DATA by default.")] = None,
    static: Annotated[
        Path | None, typer.Option(metavar="OUT", help="Write the page into this folder, to open from disk, and end.")
    ] = None,
    methods: Annotated[
        str | None,
        typer.Option(help="Methods to compare, separated by commas; by default the paper's and Auto-JacoBin (chosen)."),
    ] = None,
    bits: Annotated[list[int] | None, typer.Option(help="Length of the codes; may be given several times.")] = None,
    neighbours: Annotated[int | None, typer.Option(min=1, help="Largest k on the page; 50 by default.")] = None,
    wall: Annotated[int, typer.Option(min=1, max=500, help="Queries to choose from.")] = 36,
    train: Annotated[int | None, typer.Option(min=2, help="Most training points; 4,000 by default.")] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Where to serve the page; 0 is any free port.")] = 8570,
) -> None:
    """Train the methods on a set and show, query by query, which of the true neighbours each of them finds.

    Without --static the page is served for this machine alone until Ctrl-C.

    Example: autojacobin explore --set photos --static page
    """
    from autojacobin.datasets import load_set  # here and not above: other commands should not wait for numba
    from autojacobin.explorer import build_bundle, explorer_settings, export_page, open_run
    from autojacobin.explorer.bundle import SHOWN
    from autojacobin.explorer.export import prepare_folder

    besides = {"--set": name, "--bits": bits, "--neighbours": neighbours, "--train": train}
    refused = [option for option, value in besides.items() if value is not None]
    if run is not None and refused:
        raise DataError(
            f"a finished run has its own set and settings, got {run} and {', '.join(refused)}; "
            "leave out one or the other"
        )
    chosen, settings = open_run(run, data) if run is not None else (load_set(name or "photos", data), None)
    settings = settings or explorer_settings(chosen, bits=bits, k=neighbours, training_points=train)
    named = [method.strip() for method in methods.split(",")] if methods is not None else list(SHOWN)

    def build() -> Bundle:
        with single_bar() as progress:
            return build_bundle(chosen, settings, methods=named, wall=wall, progress=progress)

    if static is None:
        _serve(build, port)
        return
    prepare_folder(static)  # and the port likewise: after a minute of training it would be too late to refuse them
    with stoppable(f"{static} holds no page"):
        page = export_page(build(), static)
    typer.echo(f"The page is {page}; open it in a browser, it needs no server and no network.")


def _serve(build: Callable[[], Bundle], port: int) -> None:
    from autojacobin.explorer import export_page
    from autojacobin.explorer.routes import WHAT, page_app
    from autojacobin.service.access import Limits
    from autojacobin.service.server import HttpServer

    with (
        stoppable("--static OUT keeps a page"),
        tempfile.TemporaryDirectory(prefix="autojacobin-") as folder,
        HttpServer(page_app(folder), "127.0.0.1", port, limits=Limits(), what=WHAT) as server,
    ):
        export_page(build(), folder)
        typer.echo(f"The page is at {server.address}/ until you press Ctrl-C.")
        server.run()
