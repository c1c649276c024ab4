"""The tables of the paper, and the figures in its text as tables."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from autojacobin import figures
from autojacobin.datasets import CATALOGUE
from autojacobin.reproduction.cells import longest_bits, variant_cells
from autojacobin.reproduction.results import Results
from autojacobin.reproduction.settings import COMPARED, VARIANTS
from autojacobin.reproduction.tables import Table

__all__ = ["data_sets", "depth_for_90", "m_recalls", "recall_at_1000", "training_times", "variant_m_recalls"]

# Seconds that the paper reports for SIFT1M, 10,000 points of 128 dimensions, 64 bits.
_PAPER_SECONDS = {"NOKMeans": 15.18, "OKMeans": 3.67, "ITQ": 1.79, "SpectralHashing": 1.229, "AutoJacoBin": 480.0}


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
    settings = results.settings
    rows: list[tuple[str, ...]] = []
    bold: set[tuple[int, int]] = set()
    for k in settings.ks:
        for bits in settings.bits:
            best, level = results.level_with_best(COMPARED, bits, k)
            cells = []
            for column, method in enumerate(COMPARED, 1):
                mark = " ≈" if method in level else ""
                cells.append(f"{results.m_recall(method, bits, k)}{mark}")
                if method == best:
                    bold.add((len(rows), column))
            rows.append((f"({k}, {bits})", *cells))
    return Table(
        "table-2",
        f"Table II: m-Recall on {results.data.name}, K = {settings.depth:,}",
        ("(k, bits)", *map(_label, COMPARED)),
        tuple(rows),
        frozenset(bold),
        note=f"{results.seeds_in_words.capitalize()}; {len(results.data.queries):,} queries. Best in bold. "
        "≈: level with the best, by a paired test over the queries at 5 %, or within the spread of the seeds.",
    )


def training_times(results: Results) -> Table:
    """Seconds of training, beside those in the text of the paper."""
    rows = []
    for method in COMPARED:
        times = [
            float(np.mean([outcome.seconds["fit"] for outcome in results.of(method, bits)]))
            for bits in results.settings.bits
        ]
        paper = _PAPER_SECONDS.get(method)
        rows.append((_label(method), *(f"{time:.2f}" for time in times), "–" if paper is None else f"{paper:g}"))
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
        return f"only {depth} points were retrieved"
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
        enough = results.curve(method, bits, k) >= 0.9
        return f"{int(enough.argmax()) + 1:,}" if enough.any() else f"> {depth:,}"

    title = f"Points to retrieve for a recall of 0.9 on {results.data.name}"
    return _by_k_and_bits(results, "depth-for-0.9", title, needed)


def variant_m_recalls(results: Results) -> Table:
    """m-Recall of the auto-encoder models of figure 8."""
    bits, rows = longest_bits(results.settings), []
    cells = {cell.method: cell for cell in variant_cells(results.settings, results.chosen)}
    for method in ("AutoJacoBin", *VARIANTS):
        outcome = results.outcomes[cells[method]] if method in cells else results.of(method, bits)[0]
        values = (f"{outcome.m_recall(k).mean():.3f}" for k in results.settings.ks)
        chosen = ", ".join(f"{name} = {value:g}" for name, value in results.chosen.get(method, {"alpha": 0.1}).items())
        rows.append((_label(method), *values, chosen))
    return Table(
        "figure-8",
        f"m-Recall of the auto-encoder models on {results.data.name}, {bits} bits, seed 0",
        ("method", *(f"k = {k}" for k in results.settings.ks), "parameters"),
        tuple(rows),
        note="Parameters of the variants chosen on the training set: a held-out tenth asks, the rest is searched.",
    )


def _by_k_and_bits(results: Results, name: str, title: str, text: Callable[[str, int, int], str]) -> Table:
    rows = [
        (f"({k}, {bits})", *(text(method, bits, k) for method in COMPARED))
        for k in results.settings.ks
        for bits in results.settings.bits
    ]
    note = f"Mean over {len(results.data.queries):,} queries and {results.settings.seeds} seed(s)."
    return Table(name, title, ("(k, bits)", *map(_label, COMPARED)), tuple(rows), note=note)


def _label(method: str) -> str:
    """Name of a method as tables and legends have it."""
    return figures.METHOD_STYLES[method].label
