"""Reading a hasher back: which classes a file may name."""

from __future__ import annotations

import os

from autojacobin.hashers._persistence import read_model
from autojacobin.hashers.base import Hasher
from autojacobin.hashers.registry import classes

__all__ = ["load"]


def load(path: str | os.PathLike[str]) -> Hasher:
    """Read a hasher that ``save`` wrote.

    The codes it gives are the same bit for bit. Nothing in the file is executed: it holds a JSON header and
    plain arrays. The hasher computes on the CPU until ``set_params(device="cuda")`` says otherwise.

    Raises
    ------
    FormatError
        If the file is damaged or foreign, or if it needs a newer library.
    """
    model: Hasher = read_model(path, classes())
    return model
