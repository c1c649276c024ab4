"""The tables of the paper, and the figures in its text as tables."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from autojacobin.datasets import CATALOGUE
from autojacobin.hashers import find_method
from autojacobin.reproduction.cells import PAPER_ALPHA, longest_bits
from autojacobin.reproduction.paper_figures import models
from autojacobin.reproduction.results import Results, counted
from autojacobin.reproduction.settings import COMPARED, every_method
from autojacobin.reproduction.tables import Table

__all__ = [
    "PAPER_SECONDS", "data_sets", "depth_for_90", "every_m_recall", "label", "m_recalls", "points_for_90",
    "recall_at_1000", "training_times", "variant_m_recalls",
]  # fmt: skip

# Seconds that the paper reports for SIFT1M, 10,000 points of 128 dimensions, 64 bits.
PAPER_SECONDS = {"NOKMeans": 15.18, "OKMeans": 3.67, "ITQ": 1.79, "SpectralHashing": 1.229, "AutoJacoBin": 480.0}


def data_sets(results: Results) -> Table:
    """Table I."""
    rows = [
        (entry.name, entry.dimension, entry.split.base, entry.split.train, entry.split.queries)
        for entry in (CATALOGUE[name] for name in ("sift1m", "sift10m", "gist1m", "nus-wide"))
    ]
    data = results.data
    used = f"{data.name} (this run)"
    rows.append((used, data.base.shape[1], len(data.base), len(data.train), len(data.queries)))
    return Table(
        "table-1",
        "Table I: data sets",
        ("data set", "dimension", "base set", "training set", "query set"),
        tuple((name, *(f"{number:,}" for number in numbers)) for name, *numbers in rows),
        note="The paper prints 294,648 for the base of NUS-WIDE, which has 269,648 images in all.",
    )


def m_recalls(results: Results) -> Table:
    """Table II."""
    title = f"Table II: m-Recall on {results.data.name}, K = {results.settings.depth:,}"
    return _compared(results, "table-2", title, COMPARED)


def every_m_recall(results: Results) -> Table:
    """Table II with all ten methods, and with Auto-JacoBin that chooses its settings."""
    title = f"m-Recall of all methods on {results.data.name}, K = {results.settings.depth:,}"
    return _compared(results, "quality", title, every_method())


def _compared(results: Results, name: str, title: str, methods: tuple[str, ...]) -> Table:
    settings = results.settings
    rows: list[tuple[str, ...]] = []
    bold: set[tuple[int, int]] = set()
    near: set[tuple[int, int]] = set()
    for k in settings.ks:
        for bits in settings.bits:
            best, level = results.level_with_best(methods, bits, k)
            bold.add((len(rows), 1 + methods.index(best)))
            near.update((len(rows), 1 + methods.index(method)) for method in level)
            rows.append((f"({k}, {bits})", *(str(results.m_recall(method, bits, k)) for method in methods)))
    return Table(
        name,
        title,
        ("(k, bits)", *map(label, methods)),
        tuple(rows),
        frozenset(bold),
        note=f"{results.seeds_in_words.capitalize()}; {counted(len(results.data.queries), 'query', 'queries')}. "
        "Best in bold. ≈: level with it, by a paired test over the queries at 5 %, or within the spread of the seeds.",
        level=frozenset(near),
    )


def training_times(results: Results) -> Table:
    """Seconds of training, beside those in the text of the paper."""
    rows = []
    for method in COMPARED:
        times = [
            float(np.mean([outcome.seconds["fit"] for outcome in results.of(method, bits)]))
            for bits in results.settings.bits
        ]
        paper = PAPER_SECONDS.get(method)
        rows.append((label(method), *(f"{time:.2f}" for time in times), "–" if paper is None else f"{paper:g}"))
    n, D = results.data.train.shape
    return Table(
        "times",
        f"Seconds to train on {n:,} × {D}",
        ("method", *(f"{bits} bits" for bits in results.settings.bits), "paper, 64 bits"),
        tuple(rows),
        note="The paper: SIFT1M, 10,000 × 128, on the machine of its authors; 2 minutes of Auto-JacoBin's 8 went into "
        "tangent planes.",
    )


def recall_at_1000(results: Results) -> Table | str:
    """Recall@1000, which the text of the paper quotes for NUS-WIDE."""
    depth = results.settings.depth
    if depth < 1000:
        return f"only {counted(depth, 'point was', 'points were')} retrieved"
    return _by_k_and_bits(
        results,
        "recall-at-1000",
        f"Recall@1000 on {results.data.name}",
        lambda method, bits, k: f"{results.curve(method, bits, k)[999]:.3f}",
    )


def depth_for_90(results: Results) -> Table:
    """Points to retrieve for a recall of 0.9, which the text of the paper quotes for GIST1M."""
    depth = results.settings.depth

    def needed(method: str, bits: int, k: int) -> str:
        points = points_for_90(results, method, bits, k)
        return f"> {depth:,}" if points is None else f"{points:,}"

    title = f"Points to retrieve for a recall of 0.9 on {results.data.name}"
    return _by_k_and_bits(results, "depth-for-90", title, needed)


def points_for_90(results: Results, method: str, bits: int, k: int) -> int | None:
    """Points to retrieve for a recall of 0.9; None if all that were retrieved are too few."""
    enough = results.curve(method, bits, k) >= 0.9
    return int(enough.argmax()) + 1 if enough.any() else None


def variant_m_recalls(results: Results) -> Table:
    """m-Recall of the auto-encoder models of figure 8."""
    bits, rows = longest_bits(results.settings), []
    for method, outcome in models(results).items():
        values = (f"{outcome.m_recall(k).mean():.3f}" for k in results.settings.ks)
        chosen = results.chosen.get(method, {"alpha": PAPER_ALPHA})
        rows.append((label(method), *values, ", ".join(f"{name} = {value:g}" for name, value in chosen.items())))
    grids = "The grids are the paper's." if results.settings.full_grids else "Of the paper's grids only α was searched."
    return Table(
        "figure-8",
        f"m-Recall of the auto-encoder models on {results.data.name}, {bits} bits, seed 0",
        ("method", *(f"k = {k}" for k in results.settings.ks), "parameters"),
        tuple(rows),
        note="Parameters of the variants chosen on the training set: a held-out tenth asks, the rest is searched. "
        + grids,
    )


def _by_k_and_bits(results: Results, name: str, title: str, text: Callable[[str, int, int], str]) -> Table:
    rows = [
        (f"({k}, {bits})", *(text(method, bits, k) for method in COMPARED))
        for k in results.settings.ks
        for bits in results.settings.bits
    ]
    note = f"Mean over {results.averaged_over}."
    return Table(name, title, ("(k, bits)", *map(label, COMPARED)), tuple(rows), note=note)


def label(method: str) -> str:
    """Name of a method as tables and legends have it."""
    return find_method(method).label
