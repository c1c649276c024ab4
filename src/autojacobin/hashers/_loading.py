"""Reading a hasher back: which classes a file may name."""

from __future__ import annotations

import os

from autojacobin.hashers._base import Hasher
from autojacobin.hashers._persistence import read_model
from autojacobin.hashers.autobin import AutoBin
from autojacobin.hashers.autojacobin import AutoJacoBin
from autojacobin.hashers.cautobin import CAutoBin
from autojacobin.hashers.dautobin import DAutoBin
from autojacobin.hashers.itq import ITQ
from autojacobin.hashers.lsh import LSH
from autojacobin.hashers.nokmeans import NOKMeans
from autojacobin.hashers.okmeans import OKMeans
from autojacobin.hashers.spectral import SpectralHashing

__all__ = ["load"]

# A table, not a search for subclasses: what a file loads as must not depend on what else was imported.
_CLASSES: dict[str, type[Hasher]] = {
    cls.__name__: cls
    for cls in (AutoBin, AutoJacoBin, CAutoBin, DAutoBin, ITQ, LSH, NOKMeans, OKMeans, SpectralHashing)
}


def load(path: str | os.PathLike[str]) -> Hasher:
    """Read a hasher that ``save`` wrote.

    The codes it gives are the same bit for bit. Nothing in the file is executed: it holds a JSON header and
    plain arrays. The hasher computes on the CPU until ``set_params(device="cuda")`` says otherwise.

    Raises
    ------
    FormatError
        If the file is damaged or foreign, or if it needs a newer library.
    """
    model: Hasher = read_model(path, _CLASSES)
    return model
