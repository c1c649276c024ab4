"""Figures as files: the same figure gives the same bytes, today and tomorrow."""

from __future__ import annotations

import io
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autojacobin.core.files import write_atomically
from autojacobin.errors import DataError, DataTypeError, StorageError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["save"]

_DOTS_PER_INCH = 300
_one_at_a_time = threading.Lock()


def save(figure: Figure, folder: str | os.PathLike[str], name: str) -> tuple[Path, Path]:
    """Write ``figure`` as ``name.png`` and ``name.svg`` into ``folder``, which is made where it is missing.

    Both are drawn before either is written, and each replaces an older file in one step. They carry no date and no
    version, so figures of the same data are the same bytes, and version control sees what has changed.

    Returns
    -------
    png, svg : Path
    """
    if not hasattr(figure, "savefig"):
        raise DataTypeError(
            f"only a matplotlib Figure can be saved, got {type(figure).__name__}; pass what draw() gave"
        )
    if not isinstance(folder, str | os.PathLike):
        raise DataTypeError(f"folder must be a path, got {type(folder).__name__}")
    if not isinstance(name, str) or "\0" in name or name != Path(name).name or name in ("", ".", ".."):
        raise DataError(
            f"name must be a plain file name without a folder or an ending, such as 'figure-8', got {name!r}"
        )
    contents = {
        "png": _rendered(figure, "png", {"Software": None}),
        "svg": _rendered(figure, "svg", {"Date": None, "Creator": None}),
    }
    paths = {ending: Path(folder) / f"{name}.{ending}" for ending in contents}
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        for ending, content in contents.items():
            write_atomically(paths[ending], content)
    except OSError as error:
        raise StorageError(
            f"the figure {name!r} cannot be written to {os.fspath(folder)!r}: {error.strerror or error}; "
            "choose a folder that can be written to"
        ) from error
    return paths["png"], paths["svg"]


def _rendered(figure: Figure, ending: str, metadata: dict[str, Any]) -> bytes:
    from matplotlib import rcParams

    stream = io.BytesIO()
    # The names inside an SVG are salted with a random number, unless this one setting, of the whole process, says
    # otherwise. It is put back, and held by one thread at a time meanwhile.
    with _one_at_a_time:
        salt = rcParams["svg.hashsalt"]
        rcParams["svg.hashsalt"] = "autojacobin"
        try:
            figure.savefig(stream, format=ending, dpi=_DOTS_PER_INCH, metadata=metadata)
        finally:
            rcParams["svg.hashsalt"] = salt
    return stream.getvalue()
