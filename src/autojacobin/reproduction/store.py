"""Work that is done stays done: outcomes, ground truth and choices as files of the output folder."""

from __future__ import annotations

import hashlib
import io
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from autojacobin.core.files import write_atomically
from autojacobin.errors import StorageError
from autojacobin.reproduction.trials import Outcome

__all__ = ["Store"]

_SEAL_LENGTH = 65


class Store:
    """A folder of finished work. Each piece is a file, written whole or not at all, so a run can stop at any time."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self.work = self.folder / "work"
        try:
            self.work.mkdir(parents=True, exist_ok=True)
            # A folder that is there may still be one to read only, and an hour's work is too late to learn it.
            with tempfile.TemporaryFile(dir=self.work):
                pass
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
        if arrays is None:
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
        self._keep_arrays(key, arrays)

    def array(self, key: str, make: Callable[[], npt.NDArray[Any]]) -> npt.NDArray[Any]:
        """Give an array that is kept, or make and keep it."""
        arrays = self._arrays(key)
        if arrays is None:
            arrays = {"array": make()}
            self._keep_arrays(key, arrays)
        return arrays["array"]

    def record(self, key: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Give a record that is kept as JSON, or make and keep it."""
        content = self._kept(f"{key}.json")
        if content is not None:
            kept: dict[str, Any] = json.loads(content)
            return kept
        made = make()
        self._keep(f"{key}.json", json.dumps(made, indent=1).encode())
        return made

    def _keep_arrays(self, key: str, arrays: dict[str, Any]) -> None:
        stream = io.BytesIO()
        np.savez_compressed(stream, **arrays)
        self._keep(f"{key}.npz", stream.getvalue())

    def _arrays(self, key: str) -> dict[str, npt.NDArray[Any]] | None:
        content = self._kept(f"{key}.npz")
        if content is None:
            return None
        with np.load(io.BytesIO(content), allow_pickle=False) as file:
            return {name: file[name] for name in file.files}

    def _keep(self, name: str, content: bytes) -> None:
        self.write(f"work/{name}", content + _seal(content))

    def _kept(self, name: str) -> bytes | None:
        """Content of a file of finished work; None if there is none, or if it is not what was written."""
        try:
            sealed = (self.work / name).read_bytes()
        except OSError:
            return None
        content = sealed[:-_SEAL_LENGTH]
        return content if sealed == content + _seal(content) else None


def _seal(content: bytes) -> bytes:
    """Checksum that ends a file. The checks of the zip format leave names and sizes of arrays out."""
    return b"\n" + hashlib.sha256(content).hexdigest().encode()
