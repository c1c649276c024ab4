"""The figures of the paper that show results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from autojacobin import figures
from autojacobin.reproduction.cells import PAPER_ALPHA, alpha_cell, longest_bits, variant_cells
from autojacobin.reproduction.results import Results
from autojacobin.reproduction.settings import COMPARED
from autojacobin.reproduction.trials import N_PICTURED

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["alphas", "cost", "patches", "recall_grid", "retrieval", "stretched", "typical", "variants"]

_K_OF_FIGURE_8 = 100


def patches(results: Results) -> Figure | str:
    """Figure 4."""
    if results.data.base_patches is None:
        return "the set has no pictures"
    return figures.patches.draw(
        stretched(_some(results.data.base_patches)), title=f"random patches of {results.data.name}"
    )


def retrieval(results: Results) -> Figure | str:
    """Figure 5."""
    data, bits = results.data, longest_bits(results.settings)
    if data.base_patches is None or data.query_patches is None:
        return "the set has no pictures"
    pictured = {method: results.of(method, bits)[0].pictured for method in COMPARED}
    found = {method: ids for method, ids in pictured.items() if ids is not None}
    if len(found) < len(pictured) or results.truth.shape[1] < N_PICTURED:
        return f"fewer than {N_PICTURED} points were retrieved"
    truth = results.truth[:, :N_PICTURED]
    hits = {method: (ids[:, :, None] == truth[:, None, :]).any(axis=2) for method, ids in found.items()}
    query = typical([mask.sum(axis=1) for mask in hits.values()])
    shown = {method: (stretched(data.base_patches[ids[query]]), hits[method][query]) for method, ids in found.items()}
    looked_at = max(N_PICTURED, len(data.base) // 10_000)
    return figures.retrieval.draw(
        stretched(data.query_patches[query][None])[0],
        stretched(data.base_patches[truth[query]]),
        shown,
        title=f"{data.name}, {bits} bits, query {query}: the best {N_PICTURED} of {looked_at:,} retrieved",
    )


def cost(results: Results) -> Figure:
    """Figure 6."""
    bits = results.settings.bits[0]
    return figures.cost.draw(
        results.of("AutoJacoBin", bits)[0].history, title=f"{results.data.name}, {bits} bits, α = {PAPER_ALPHA}"
    )


def alphas(results: Results) -> Figure:
    """Figure 7."""
    settings, k = results.settings, results.settings.ks[0]
    values = {
        bits: {
            alpha: (
                float(results.outcomes[alpha_cell(bits, alpha, settings)].m_recall(k).mean()),
                results.m_recall("AutoJacoBin", bits, k).spread or 0.0 if alpha == PAPER_ALPHA else 0.0,
            )
            for alpha in settings.alphas
        }
        for bits in settings.bits
    }
    reference = {}
    for bits in settings.bits:
        measured = results.m_recall("NOKMeans", bits, k)
        reference[bits] = (measured.mean, measured.spread or 0.0)
    return figures.alpha.draw(values, reference, title=f"{results.data.name}, k = {k}, seed 0")


def variants(results: Results) -> Figure:
    """Figure 8."""
    bits, k = longest_bits(results.settings), min(_K_OF_FIGURE_8, results.settings.ks[-1])
    curves = {"AutoJacoBin": results.of("AutoJacoBin", bits)[0].recall_curve(k)}
    for cell in variant_cells(results.settings, results.chosen):
        curves[cell.method] = results.outcomes[cell].recall_curve(k)
    return figures.recall.draw(curves, title=f"{results.data.name}, {bits} bits, k = {k}")


def recall_grid(results: Results) -> Figure:
    """Figures 9 and 10."""
    settings = results.settings
    curves = {
        (k, bits): {method: results.curve(method, bits, k) for method in COMPARED}
        for k in settings.ks
        for bits in settings.bits
    }
    return figures.recall_grid.draw(curves, title=f"{results.data.name}, {results.seeds_in_words}")


def _some(patches: Any) -> Any:
    return patches[np.sort(np.random.default_rng(0).permutation(len(patches))[:1000])]


def stretched(patches: Any) -> Any:
    """Let the brightness of each patch run from black to white; the descriptors do not see its contrast either."""
    floats = np.asarray(patches, dtype=np.float32)
    axes = tuple(range(1, floats.ndim))
    low, high = floats.min(axis=axes, keepdims=True), floats.max(axis=axes, keepdims=True)
    return (255 * (floats - low) / np.maximum(high - low, 1)).astype(np.uint8)


def typical(counts: Sequence[Any]) -> int:
    """Query in the middle of the order by hits over all methods, so that the picture favours none."""
    total = np.sum(counts, axis=0)
    return int(np.argsort(total, kind="stable")[len(total) // 2])
