"""The set and the settings of a finished ``autojacobin reproduce``, so that one can look at what it measured."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

from autojacobin.datasets import VectorSet, load_set
from autojacobin.errors import DataError, FormatError, StorageError
from autojacobin.reproduction import Settings

__all__ = ["open_run"]


def open_run(folder: str | os.PathLike[str], data: str | os.PathLike[str] | None = None) -> tuple[VectorSet, Settings]:
    """Give the set and the settings that a run in ``folder`` had.

    A run keeps measures and not models. Fits are repeatable, so training again with these settings and seed 0 gives
    the models that were measured.

    Parameters
    ----------
    folder : path
        What ``autojacobin reproduce --out`` wrote.
    data : path, optional
        The folder of data sets, as for :func:`autojacobin.datasets.load_set`.
    """
    path = Path(folder) / "results.json"
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        name, source = str(record["set"]["name"]), str(record["set"]["source"])
        settings = replace(Settings(**record["settings"]), seeds=1)
    except OSError as error:
        raise StorageError(
            f"{folder} holds no finished run: {path.name} cannot be read ({error.strerror or error}); "
            "give the folder that autojacobin reproduce wrote"
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise FormatError(
            f"{path} is damaged or was not written by autojacobin reproduce, got: {error}; run it again"
        ) from error
    try:
        return load_set(name, data), settings
    except DataError:
        if not Path(source).exists():
            raise
        return load_set(source, data), settings  # a set of one's own is not known by its name
