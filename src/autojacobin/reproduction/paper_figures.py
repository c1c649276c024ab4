"""The figures of the paper that show results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from autojacobin import figures
from autojacobin.reproduction.cells import PAPER_ALPHA, alpha_cell, longest_bits, variant_cells
from autojacobin.reproduction.results import Results
from autojacobin.reproduction.settings import COMPARED
from autojacobin.reproduction.trials import N_PICTURED, Outcome, n_looked_at

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "alpha_m_recall", "alphas", "cost", "k_of_figure_8", "models", "patches", "pictured", "recall_grid", "retrieval",
    "stretched", "typical", "variants",
]  # fmt: skip

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
    data, settings = results.data, results.settings
    if data.base_patches is None or data.query_patches is None:
        return "the set has no pictures"
    if min(settings.depth, results.truth.shape[1]) < N_PICTURED:
        return f"fewer than {N_PICTURED} points were retrieved"
    found, hits = pictured(results)
    query, truth = typical([mask.sum(axis=1) for mask in hits.values()]), results.truth[:, :N_PICTURED]
    shown = {method: (stretched(data.base_patches[ids[query]]), hits[method][query]) for method, ids in found.items()}
    looked_at = n_looked_at(len(data.base), settings.depth)
    return figures.retrieval.draw(
        stretched(data.query_patches[query][None])[0],
        stretched(data.base_patches[truth[query]]),
        shown,
        title=f"{data.name}, {longest_bits(settings)} bits, query {query}: "
        f"the nearest {N_PICTURED} of {looked_at:,} retrieved",
    )


def pictured(results: Results) -> tuple[dict[str, Any], dict[str, Any]]:
    """What each method shows for each query, and which of it is among the true neighbours."""
    truth, bits = results.truth[:, :N_PICTURED], longest_bits(results.settings)
    outcomes = {method: results.of(method, bits)[0] for method in COMPARED}
    found: dict[str, Any] = {method: outcome.pictured for method, outcome in outcomes.items()}
    return found, {method: (ids[:, :, None] == truth[:, None, :]).any(axis=2) for method, ids in found.items()}


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
        bits: {alpha: (alpha_m_recall(results, bits, alpha, k), 0.0) for alpha in settings.alphas}
        for bits in settings.bits
    }
    reference = {bits: (float(results.of("NOKMeans", bits)[0].m_recall(k).mean()), 0.0) for bits in settings.bits}
    return figures.alpha.draw(values, reference, title=f"{results.data.name}, k = {k}, seed 0")


def alpha_m_recall(results: Results, bits: int, alpha: float, k: int) -> float:
    """m-Recall of Auto-JacoBin with a weight α and seed 0."""
    return float(results.outcomes[alpha_cell(bits, alpha, results.settings)].m_recall(k).mean())


def variants(results: Results) -> Figure:
    """Figure 8."""
    bits, k = longest_bits(results.settings), k_of_figure_8(results)
    curves = {method: outcome.recall_curve(k) for method, outcome in models(results).items()}
    return figures.recall.draw(curves, title=f"{results.data.name}, {bits} bits, k = {k}, seed 0")


def k_of_figure_8(results: Results) -> int:
    """The paper's 100, or the largest k that there is up to it."""
    return max((k for k in results.settings.ks if k <= _K_OF_FIGURE_8), default=results.settings.ks[0])


def models(results: Results) -> dict[str, Outcome]:
    """Outcomes of the auto-encoder models with seed 0."""
    own = {"AutoJacoBin": results.of("AutoJacoBin", longest_bits(results.settings))[0]}
    return own | {cell.method: results.outcomes[cell] for cell in variant_cells(results.settings, results.chosen)}


def recall_grid(results: Results) -> Figure:
    """Figures 9 and 10."""
    settings = results.settings
    curves = {
        (k, bits): {method: results.curve(method, bits, k) for method in COMPARED}
        for k in settings.ks
        for bits in settings.bits
    }
    return figures.recall_grid.draw(curves, title=f"{results.data.name}: mean over {results.averaged_over}")


def _some(patches: Any) -> Any:
    return patches[np.sort(np.random.default_rng(0).permutation(len(patches))[:1000])]


def stretched(patches: Any) -> Any:
    """Let the brightness of each patch run from black to white; the descriptors do not see its contrast either."""
    floats = np.asarray(patches, dtype=np.float32)
    axes = tuple(range(1, floats.ndim))
    low, high = floats.min(axis=axes, keepdims=True), floats.max(axis=axes, keepdims=True)
    return (255 * (floats - low) / np.where(high > low, high - low, 1)).astype(np.uint8)


def typical(counts: Sequence[Any]) -> int:
    """Query in the middle of the order by hits over all methods, so that the picture favours none."""
    total = np.sum(counts, axis=0)
    return int(np.argsort(total, kind="stable")[len(total) // 2])
