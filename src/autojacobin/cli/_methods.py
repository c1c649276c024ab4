"""The methods by the names they have at the command line, and their parameters as ``name=value``."""

from __future__ import annotations

from typing import Any

import typer

from autojacobin.errors import DataError
from autojacobin.hashers import Hasher, methods
from autojacobin.hashers.parameters import check_parameters

__all__ = ["make_hasher", "method_names", "move_to", "settable"]

# set by options of their own, or by the program
_RESERVED = {"n_bits": "--bits", "random_state": "--seed", "device": "--device", "progress": "--quiet"}
_WORDS: dict[str, Any] = {"none": None, "true": True, "false": False}


def method_names() -> list[str]:
    """Names of the registered methods on the command line."""
    return [method.command for method in methods()]


def make_hasher(name: str, bits: int, given: list[str], seed: int, device: str) -> Hasher:
    """Make an unfitted hasher; what its own limits refuse is wrong use of ``--set``."""
    by_name = {method.command: method for method in methods()}
    if name not in by_name:
        raise typer.BadParameter(f"{name!r} is not one of {', '.join(by_name)}", param_hint="'--method'")
    hasher = by_name[name].make(bits, seed=seed)
    known = settable(hasher)
    for parameter, value in map(_parsed, given):
        if parameter in _RESERVED:
            raise _wrong(f"{parameter} has an option of its own, {_RESERVED[parameter]}")
        if parameter not in known:
            raise _wrong(f"{name} has no parameter {parameter!r}; it has {', '.join(known) or 'none'}")
        hasher.set_params(**{parameter: value})
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
