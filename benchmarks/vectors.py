"""Vectors for the benchmarks: the real sets of a folder, and synthetic points."""

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
        return [_with_truth(load_set("digits"))]
    names = sorted(path.name for path in Path(folder).iterdir() if path.is_dir() and not path.name.startswith("."))
    return [_with_truth(load_set(name, folder)) for name in names]


def surface(n: int, width: int, seed: int) -> np.ndarray:
    """Make points near a curved surface of 12 dimensions, so that the bits of their codes depend on each other."""
    inner = np.random.default_rng(seed).normal(size=(n, 12)).astype(np.float32)
    mixing = np.random.default_rng(99).normal(size=(2, 12, width)).astype(np.float32)
    return np.tanh(inner @ mixing[0]) + 0.3 * inner @ mixing[1]


def _with_truth(data: VectorSet) -> tuple[VectorSet, np.ndarray]:
    truth = data.truth if data.truth is not None else ground_truth(data.base, data.queries, 100)
    return data, truth
