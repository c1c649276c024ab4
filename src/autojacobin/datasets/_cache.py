"""The folder where sets are kept that were built or fetched once."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from autojacobin.errors import StorageError

__all__ = ["cache_folder", "cache_place"]

VARIABLE = "AUTOJACOBIN_CACHE"
_REMEDY = f"set {VARIABLE} to a folder that can be written to"


def cache_folder() -> Path:
    """Give the cache folder, made if it was not there."""
    folder = cache_place()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"cannot make the cache folder {folder}: {error.strerror}; {_REMEDY}") from error
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        raise StorageError(f"cannot write to the cache folder {folder}: no permission; {_REMEDY}")
    return folder


def cache_place() -> Path:
    """Give the path of the cache folder, which need not be there.

    It is what the environment variable ``AUTOJACOBIN_CACHE`` names, or else ``autojacobin`` in the place where the
    platform keeps such things: ``$XDG_CACHE_HOME`` or ``~/.cache``, ``~/Library/Caches`` on macOS,
    ``%LOCALAPPDATA%`` on Windows.
    """
    chosen = os.environ.get(VARIABLE, "")
    try:
        return Path(chosen).expanduser().absolute() if chosen else _usual_place() / "autojacobin"
    except (OSError, RuntimeError) as error:  # nobody knows where the home folder is, or the one that we are in is gone
        raise StorageError(f"cannot tell where the cache folder is: {error}; {_REMEDY}") from error


def _usual_place() -> Path:
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA", "")
        return Path(local) if local else Path.home() / "AppData" / "Local"
    chosen = os.environ.get("XDG_CACHE_HOME", "")
    # the XDG specification asks that relative paths be ignored
    return Path(chosen) if os.path.isabs(chosen) else Path.home() / ".cache"
