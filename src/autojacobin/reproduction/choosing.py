"""Grids searched on the training set alone: a tenth asks, the rest is searched."""

from __future__ import annotations

import hashlib
import itertools
import json
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from autojacobin import __version__
from autojacobin.datasets import VectorSet
from autojacobin.errors import DataError
from autojacobin.evaluation import ground_truth, m_recall
from autojacobin.reproduction.settings import GRIDS, Settings, make_hasher
from autojacobin.reproduction.store import Store
from autojacobin.search import hamming_topk

__all__ = ["choose", "grid"]

_K, _SHARE = 10, 10
_DEPTH = 100
_FEWEST = 20


def grid(method: str, settings: Settings) -> list[dict[str, float]]:
    """All combinations that are tried for a variant; only its weight α unless the grids are full."""
    axes = {name: values for name, values in GRIDS[method].items() if settings.full_grids or name == "alpha"}
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


def choose(
    method: str,
    bits: int,
    data: VectorSet,
    fingerprint: str,
    settings: Settings,
    store: Store,
    tell: Callable[[], None],
) -> dict[str, float]:
    """Best combination of a variant's grid by m-Recall (k = 10, 100 retrieved) of a held-out tenth of the training set.

    ``tell`` is called after each combination.
    """
    if len(data.train) < _FEWEST:
        raise DataError(
            f"the parameters of {method} are searched on at least {_FEWEST} training points, got {len(data.train)}; "
            "pass more, or leave fig8 and variants out with --only"
        )
    order = np.random.default_rng(0).permutation(len(data.train))
    held_out, rest = (np.asarray(data.train)[part] for part in np.split(order, [len(order) // _SHARE]))
    k, depth = min(_K, len(rest)), min(_DEPTH, len(rest))
    truth: list[Any] = []

    def score(parameters: dict[str, float]) -> dict[str, Any]:
        if not truth:
            truth.append(ground_truth(rest, held_out, k))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a combination that collapses shows in its score
            hasher = make_hasher(method, bits, 0, parameters).fit(rest)
        _, ids = hamming_topk(hasher.encode(held_out), hasher.encode(rest), depth)
        return {"parameters": parameters, "m_recall": m_recall(ids, truth[0], k, depth)}

    tried = []
    for parameters in grid(method, settings):
        given = make_hasher(method, bits, 0, parameters).get_params()
        named = json.dumps([fingerprint, method, sorted(given.items()), __version__], default=str)
        key = f"choice-{method}-{bits}-{hashlib.sha256(named.encode()).hexdigest()[:16]}"
        tried.append(store.record(key, partial(score, parameters)))
        tell()
    best: dict[str, float] = max(tried, key=lambda one: one["m_recall"])["parameters"]
    return best
