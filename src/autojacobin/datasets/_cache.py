"""The folder where sets are kept that were built or fetched once."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from autojacobin.errors import StorageError

__all__ = ["cache_folder"]

VARIABLE = "AUTOJACOBIN_CACHE"


def cache_folder() -> Path:
    """Give the cache folder, made if it was not there.

    It is what the environment variable ``AUTOJACOBIN_CACHE`` names, or else ``autojacobin`` in the place where the
    platform keeps such things: ``$XDG_CACHE_HOME`` or ``~/.cache``, ``~/Library/Caches`` on macOS,
    ``%LOCALAPPDATA%`` on Windows.
    """
    chosen = os.environ.get(VARIABLE, "")
    try:
        folder = Path(chosen).expanduser().absolute() if chosen else _usual_place() / "autojacobin"
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError) as error:  # RuntimeError: nobody knows where the home folder is
        place = f"the cache folder {chosen}" if chosen else "the usual cache folder"
        reason = getattr(error, "strerror", None) or str(error)
        raise StorageError(
            f"cannot make {place}: {reason}; set {VARIABLE} to a folder that can be written to"
        ) from error
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        raise StorageError(
            f"cannot write to the cache folder {folder}: no permission; "
            f"set {VARIABLE} to a folder that can be written to"
        )
    return folder


def _usual_place() -> Path:
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA", "")
        return Path(local) if local else Path.home() / "AppData" / "Local"
    chosen = os.environ.get("XDG_CACHE_HOME", "")
    # the XDG specification asks that relative paths be ignored
    return Path(chosen) if os.path.isabs(chosen) else Path.home() / ".cache"
