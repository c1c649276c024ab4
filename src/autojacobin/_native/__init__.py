"""The kernels: compiled code, from the best library that this CPU can run.

There is one library for each level of CPU, built from the same sources (``native/``), and all give the same results.
``kernels`` is the one in use. The variable ``AUTOJACOBIN_LEVEL`` names another.
"""

from __future__ import annotations

import os
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

from autojacobin.errors import AutoJacobinError

try:
    from autojacobin._native import cpu
except ImportError as error:
    raise AutoJacobinError(
        f"the compiled part of autojacobin is missing or does not fit this Python ({error}); "
        "in its sources run: make native, otherwise install it again"
    ) from None

if TYPE_CHECKING:
    from types import ModuleType

    from autojacobin._native import kernels

__all__ = ["LEVEL", "kernels", "levels", "load"]

_VARIABLE = "AUTOJACOBIN_LEVEL"


def levels() -> list[str]:
    """The levels that are installed and that this CPU can run, lowest first."""
    return [level for level in cpu.levels() if _is_installed(level)]


def load(level: str) -> ModuleType:
    """Load the kernels of a level."""
    return import_module(_module_of(level))


def _module_of(level: str) -> str:
    return f"{__name__}.{level.replace('-', '_')}"


def _is_installed(level: str) -> bool:
    return find_spec(_module_of(level)) is not None


def _chosen_level() -> str:
    """The level that the environment names, or else the best."""
    named = os.environ.get(_VARIABLE)
    if not named:
        best = next((level for level in reversed(cpu.levels()) if _is_installed(level)), None)
        if best is None:
            raise AutoJacobinError(
                f"no installed library runs on this CPU, which can run {_listed(cpu.levels())}; "
                "build autojacobin on this machine: pip install --no-binary autojacobin autojacobin"
            )
        return best
    if named not in cpu.known_levels():
        raise AutoJacobinError(f"{_VARIABLE} must be one of {_listed(levels())} on this machine, got {named!r}")
    if named not in cpu.levels():
        raise AutoJacobinError(f"{_VARIABLE} is {named}, which this CPU cannot run; it runs {_listed(levels())}")
    if not _is_installed(named):
        raise AutoJacobinError(
            f"{_VARIABLE} is {named}, whose library is not installed; use {_listed(levels())}, or build all levels: "
            "AUTOJACOBIN_LEVELS=all pip install --no-binary autojacobin autojacobin"
        )
    return named


def _listed(names: list[str]) -> str:
    return ", ".join(names) or "none of the levels"


LEVEL = _chosen_level()
if not TYPE_CHECKING:
    kernels = load(LEVEL)
