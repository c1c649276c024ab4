"""The methods by the names they have at the command line, and their parameters as ``name=value``."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any

import typer

from autojacobin.errors import DataError

if TYPE_CHECKING:
    from autojacobin.hashers import Hasher

__all__ = ["Method", "make_hasher", "move_to", "settable"]

# set by options of their own, or by the program
_RESERVED = {"n_bits": "--bits", "random_state": "--seed", "device": "--device", "progress": "--quiet"}
_WORDS: dict[str, Any] = {"none": None, "true": True, "false": False}


class Method(str, Enum):
    """What learns the codes: the methods of the paper and those that it is measured against."""

    autojacobin = "autojacobin"
    autojacobin_published = "autojacobin-published"
    autobin = "autobin"
    autobin2 = "autobin2"
    dautobin = "dautobin"
    cautobin = "cautobin"
    itq = "itq"
    okmeans = "okmeans"
    nokmeans = "nokmeans"
    spectral = "spectral"
    lsh = "lsh"


def make_hasher(method: Method, bits: int, given: list[str], seed: int, device: str) -> Hasher:
    """Make an unfitted hasher; what its own limits refuse is wrong use of ``--set``."""
    from autojacobin.hashers._parameters import check_parameters

    hasher = _made(method, bits)
    known = settable(hasher)
    for name, value in map(_parsed, given):
        if name in _RESERVED:
            raise _wrong(f"{name} has an option of its own, {_RESERVED[name]}")
        if name not in known:
            raise _wrong(f"{method.value} has no parameter {name!r}; it has {', '.join(known) or 'none'}")
        hasher.set_params(**{name: value})
    if "random_state" in hasher.get_params():
        hasher.set_params(random_state=seed)
    move_to(hasher, device)
    try:
        check_parameters(hasher, hasher._limits)
    except DataError as error:
        raise _wrong(str(error).partition("; ")[0]) from None
    return hasher


def settable(hasher: Hasher) -> dict[str, Any]:
    """Parameters that ``--set`` takes, with their values."""
    return {name: value for name, value in hasher.get_params(deep=False).items() if name not in _RESERVED}


def move_to(hasher: Hasher, device: str) -> None:
    """Let a hasher compute on a device, if it is one that can."""
    if "device" in hasher.get_params():
        hasher.set_params(device=device)
    elif device != "cpu":
        name = type(hasher).__name__
        raise typer.BadParameter(f"{name} computes on the CPU alone; leave it out", param_hint="'--device'")


def _made(method: Method, bits: int) -> Hasher:
    from autojacobin import hashers

    if method is Method.autobin2:
        return hashers.AutoBin(bits, batch_size=None, n_epochs=50)  # the paper's steps over the whole training set
    if method is Method.autojacobin_published:
        return hashers.AutoJacoBin.as_published(bits)
    classes: dict[Method, Any] = {
        Method.autojacobin: hashers.AutoJacoBin,
        Method.autobin: hashers.AutoBin,
        Method.dautobin: hashers.DAutoBin,
        Method.cautobin: hashers.CAutoBin,
        Method.itq: hashers.ITQ,
        Method.okmeans: hashers.OKMeans,
        Method.nokmeans: hashers.NOKMeans,
        Method.spectral: hashers.SpectralHashing,
        Method.lsh: hashers.LSH,
    }
    chosen: Hasher = classes[method](bits)
    return chosen


def _parsed(setting: str) -> tuple[str, Any]:
    name, mark, text = setting.partition("=")
    if not mark or not name.strip() or not text.strip():
        raise _wrong(f"expected name=value, got {setting!r}")
    return name.strip(), _value(text.strip())


def _value(text: str) -> Any:
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _wrong(what: str) -> typer.BadParameter:
    return typer.BadParameter(what, param_hint="'--set'")
