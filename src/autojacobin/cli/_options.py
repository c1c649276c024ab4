"""Options that several commands have, each said once."""

from __future__ import annotations

import os
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer
from threadpoolctl import threadpool_limits

from autojacobin.cli._failures import want_tracebacks
from autojacobin.cli._settings import use_settings

__all__ = ["AsJson", "Config", "Debug", "Device", "Format", "OnDevice", "Quiet", "Seed", "Threads"]

_GRANTED = "OMP_NUM_THREADS"


class Device(str, Enum):
    """Where a hasher computes."""

    cpu = "cpu"
    cuda = "cuda"


def _limit_threads(context: typer.Context, threads: int | None) -> int | None:
    """Grant the library, and the BLAS library that is loaded already, so many cores until the command ends."""
    if threads is None or context.resilient_parsing:
        return threads
    before = os.environ.get(_GRANTED)
    os.environ[_GRANTED] = str(threads)
    limit = threadpool_limits(threads)

    def restore() -> None:
        limit.restore_original_limits()
        os.environ.pop(_GRANTED)
        if before is not None:
            os.environ[_GRANTED] = before

    context.call_on_close(restore)
    return threads


def _show_tracebacks(context: typer.Context, wanted: bool) -> bool:
    if wanted and not context.resilient_parsing:
        want_tracebacks()
    return wanted


Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress and no summary.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the outcome as JSON, and no progress.")]
Seed = Annotated[int, typer.Option("--seed", min=0, max=2**32 - 1, help="Seed of all that is drawn at random.")]
OnDevice = Annotated[Device, typer.Option("--device", help="Where to compute; cuda is for the auto-encoders.")]
Threads = Annotated[
    int | None, typer.Option("--threads", min=1, callback=_limit_threads, help="Cores to use; all by default.")
]
Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        exists=True,
        dir_okay=False,
        is_eager=True,
        callback=use_settings,
        help="TOML file of settings; options given here win.",
    ),
]
Debug = Annotated[
    bool, typer.Option("--debug", is_eager=True, callback=_show_tracebacks, help="Show the traceback of an error.")
]
Format = Annotated[
    str | None,
    typer.Option("--format", metavar="NAME", help="Format of the vectors where the name does not tell, such as fvecs."),
]
