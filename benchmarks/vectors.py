"""Real sets for the benchmarks: folders with learn, base, query and groundtruth as .npy, .bvecs or .ivecs."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from autojacobin.datasets import VectorSet, load_set
from autojacobin.evaluation import ground_truth


def real_sets(folder: str | None) -> list[tuple[VectorSet, np.ndarray]]:
    """Give (set, true neighbours) of every set under ``folder`` or ``AUTOJACOBIN_DATA``, or of digits without one."""
    folder = folder or os.environ.get("AUTOJACOBIN_DATA")
    if folder is None:
        digits = load_set("digits")
        return [(digits, ground_truth(digits.base, digits.queries, 100))]
    found = []
    for path in sorted(Path(folder).iterdir()):
        if (path / "README.md").exists() or not path.is_dir():
            continue
        parts = [_read(path, name) for name in ("learn", "base", "query", "groundtruth")]
        found.append((VectorSet(path.name, path.name, *parts[:3]), parts[3]))
    return found


def _read(folder: Path, name: str) -> np.ndarray:
    path = next(folder.glob(f"{name}.*"))
    if path.suffix == ".npy":
        return np.load(path, mmap_mode="r")
    item = {".bvecs": np.uint8, ".ivecs": np.int32}[path.suffix]
    raw = np.fromfile(path, dtype=np.uint8)
    width = 4 + int(raw[:4].view(np.int32)[0]) * np.dtype(item).itemsize
    return np.ascontiguousarray(raw.reshape(-1, width)[:, 4:]).view(item)
