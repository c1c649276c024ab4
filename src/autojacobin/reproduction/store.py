"""Work that is done stays done: outcomes, ground truth and choices as files of the output folder."""

from __future__ import annotations

import io
import json
import os
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from autojacobin._files import write_atomically
from autojacobin.errors import StorageError
from autojacobin.reproduction.trials import Outcome

__all__ = ["Store"]


class Store:
    """A folder of finished work. Each piece is a file, written whole or not at all, so a run can stop at any time."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self.work = self.folder / "work"
        try:
            self.work.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(
                f"cannot write results to {self.folder}: {error.strerror or error}; choose another folder with --out"
            ) from error

    def write(self, name: str, content: bytes | str) -> Path:
        """Put a file into the folder."""
        path = self.folder / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, content.encode() if isinstance(content, str) else content)
        except OSError as error:
            raise StorageError(
                f"{path} cannot be written: {error.strerror or error}; make room, or choose another folder with --out"
            ) from error
        return path

    def outcome(self, key: str) -> Outcome | None:
        """Look up a finished trial; a file that is damaged counts as none, and the trial is run again."""
        arrays = self._arrays(key)
        if arrays is None or "before" not in arrays:
            return None
        about = json.loads(str(arrays["about"]))
        return Outcome(
            before=arrays["before"],
            depth=int(about["depth"]),
            seconds=about["seconds"],
            pictured=arrays.get("pictured"),
            history={name.removeprefix("history."): a for name, a in arrays.items() if name.startswith("history.")},
            warned=tuple(about["warned"]),
        )

    def keep_outcome(self, key: str, outcome: Outcome) -> None:
        """Keep a finished trial."""
        about = {"depth": outcome.depth, "seconds": outcome.seconds, "warned": outcome.warned}
        arrays = {
            "before": outcome.before,
            "about": np.array(json.dumps(about)),
            **{f"history.{name}": column for name, column in outcome.history.items()},
        }
        if outcome.pictured is not None:
            arrays["pictured"] = outcome.pictured
        self._keep(key, arrays)

    def array(self, key: str, make: Callable[[], npt.NDArray[Any]]) -> npt.NDArray[Any]:
        """Give an array that is kept, or make and keep it."""
        arrays = self._arrays(key)
        if arrays is not None and "array" in arrays:
            return arrays["array"]
        made = make()
        self._keep(key, {"array": made})
        return made

    def record(self, key: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Give a record that is kept as JSON, or make and keep it."""
        path = self.work / f"{key}.json"
        try:
            kept: dict[str, Any] = json.loads(path.read_text())
            return kept
        except (OSError, ValueError):
            made = make()
            self.write(f"work/{key}.json", json.dumps(made, indent=1))
            return made

    def _keep(self, key: str, arrays: dict[str, Any]) -> None:
        stream = io.BytesIO()
        np.savez_compressed(stream, **arrays)
        self.write(f"work/{key}.npz", stream.getvalue())

    def _arrays(self, key: str) -> dict[str, npt.NDArray[Any]] | None:
        try:
            # opened here, because np.load leaves a damaged file open
            with open(self.work / f"{key}.npz", "rb") as stream, np.load(stream, allow_pickle=False) as file:
                return {name: file[name] for name in file.files}
        except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error):
            return None
