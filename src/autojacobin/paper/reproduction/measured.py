"""The tables and figures of the paper that show results, made from the outcomes of a run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from autojacobin.core.counts import count_of
from autojacobin.datasets import CATALOGUE
from autojacobin.hashers import find_method
from autojacobin.paper import figures
from autojacobin.paper.reproduction import trials
from autojacobin.paper.reproduction.report import Table
from autojacobin.paper.reproduction.results import ASYMMETRICALLY, Results
from autojacobin.paper.reproduction.trials import ASYMMETRIC, AUTOENCODER, CHOSEN

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_K_OF_FIGURE_8 = 100
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


def standings(results: Results, names: Collection[str]) -> list[Table]:
    """How often each method is ahead, level with the best or behind, for each comparison that the run has made."""
    settings = results.settings
    compared = {"table2": labelled(settings.compared), "quality": labelled(settings.every), "distances": BY_DISTANCE}
    cases = [(bits, k) for k in settings.ks for bits in settings.bits]
    tables = []
    for name, labels in compared.items():
        if name not in names:
            continue
        found = [results.level_with_best(labels, bits, k) for bits, k in cases]
        rows = []
        for method, text in labels.items():
            ahead = sum(best == method and not level for best, level in found)
            level = sum(method in (best, *level) for best, level in found) - ahead
            rows.append((text, f"{ahead}", f"{level}", f"{len(cases) - ahead - level}"))
        title = f"In how many of {count_of(len(cases), 'row')} of {name} each method is ahead of all others, "
        title += "level with the best, or behind"
        tables.append(Table(f"standing-{name}", title, ("method", "ahead", "level", "behind"), tuple(rows)))
    return tables


def m_recalls(results: Results, name: str, title: str, labels: dict[str, str]) -> Table:
    """Compare methods, given with their labels, by m-Recall, as in Table II."""
    settings, methods = results.settings, tuple(labels)
    rows: list[tuple[str, ...]] = []
    bold: set[tuple[int, int]] = set()
    near: set[tuple[int, int]] = set()
    for k in settings.ks:
        for bits in settings.bits:
            best, level = results.level_with_best(methods, bits, k)
            bold.add((len(rows), 1 + methods.index(best)))
            near.update((len(rows), 1 + methods.index(method)) for method in level)
            rows.append((f"({k}, {bits})", *(str(results.m_recall(method, bits, k)) for method in methods)))
    means = "Seed 0" if settings.seeds == 1 else f"Mean ± deviation of {settings.seeds} seeds"
    chosen = {bits: results.of(CHOSEN, bits)[0].trained_as for bits in settings.bits if CHOSEN in methods}
    trained = "".join(f" {label(CHOSEN)} at {bits} bits is {text}." for bits, text in chosen.items() if text)
    return Table(
        name,
        f"{title} on {results.data.name}, K = {settings.depth:,}",
        ("(k, bits)", *labels.values()),
        tuple(rows),
        frozenset(bold),
        note=f"{means}; {count_of(len(results.data.queries), 'query', 'queries')}. "
        "The best is in bold. ≈: level with the best, by a paired test over the queries at 5 %, or within the spread "
        f"of the seeds.{trained}",
        level=frozenset(near),
    )


def training_times(results: Results) -> Table:
    """Training times, beside those in the text of the paper."""
    rows = []
    for method in results.settings.compared:
        fits = ([one.seconds["fit"] for one in results.of(method, bits)] for bits in results.settings.bits)
        paper = f"{_PAPER_SECONDS[method]:g}" if method in _PAPER_SECONDS else "–"
        rows.append((label(method), *(f"{np.mean(seconds):.2f}" for seconds in fits), paper))
    n, D = results.data.train.shape
    return Table(
        "times",
        f"Seconds to train on {n:,} × {D}",
        ("method", *(f"{bits} bits" for bits in results.settings.bits), "paper, 64 bits"),
        tuple(rows),
        note="The paper's times are for SIFT1M, 10,000 × 128, on the machine of its authors; tangent planes took 2 of "
        "Auto-JacoBin's 8 minutes.",
    )


def recall_at_1000(results: Results) -> Table | str:
    """Recall@1000, which the text of the paper quotes for NUS-WIDE."""
    depth = results.settings.depth
    if depth < 1000:
        return f"only {count_of(depth, 'point was', 'points were')} retrieved"
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
    return _by_k_and_bits(results, "depth-for-90", title, needed)


def variant_m_recalls(results: Results) -> Table:
    """m-Recall of the auto-encoder models of figure 8."""
    bits, rows = trials.longest_bits(results.settings), []
    for method, outcome in models(results).items():
        values = (f"{outcome.m_recall(k).mean():.3f}" for k in results.settings.ks)
        chosen = results.chosen.get(method, {"alpha": trials.PAPER_ALPHA})
        rows.append((label(method), *values, ", ".join(f"{name} = {value:g}" for name, value in chosen.items())))
    grids = "The grids are the paper's." if results.settings.full_grids else "Only α of the paper's grids was searched."
    return Table(
        "figure-8",
        f"m-Recall of the auto-encoder models on {results.data.name}, {bits} bits, seed 0",
        ("method", *(f"k = {k}" for k in results.settings.ks), "parameters"),
        tuple(rows),
        note="The parameters of the variants were chosen on the training set: a tenth of it served as queries, the "
        "rest as the base. " + grids,
    )


def _by_k_and_bits(results: Results, name: str, title: str, text: Callable[[str, int, int], str]) -> Table:
    methods = results.settings.compared
    rows = [
        (f"({k}, {bits})", *(text(method, bits, k) for method in methods))
        for k in results.settings.ks
        for bits in results.settings.bits
    ]
    note = f"Mean over {results.averaged_over}."
    return Table(name, title, ("(k, bits)", *map(label, methods)), tuple(rows), note=note)


def label(method: str) -> str:
    """Name of a method in tables and legends."""
    return find_method(method).label


def labelled(methods: Iterable[str]) -> dict[str, str]:
    """Methods and their labels."""
    return {method: label(method) for method in methods}


BY_DISTANCE: dict[str, str] = {
    AUTOENCODER: f"{label(AUTOENCODER)}, decoded",
    **{f"{method}{ASYMMETRICALLY}": f"{label(method)}, asymmetric" for method in reversed(ASYMMETRIC)},
    **{method: f"{label(method)}, Hamming" for method in reversed(ASYMMETRIC)},
}
"""What is compared by distance, and its name in tables."""


def patches(results: Results) -> Figure | str:
    """Figure 4."""
    pictures = results.data.base_patches
    if pictures is None:
        return "the set has no pictures"
    some = np.sort(np.random.default_rng(0).permutation(len(pictures))[:1000])
    return figures.draw_patches(stretched(pictures[some]), title=f"random patches of {results.data.name}")


def retrieval(results: Results) -> Figure | str:
    """Figure 5."""
    data, settings = results.data, results.settings
    if data.base_patches is None or data.query_patches is None:
        return "the set has no pictures"
    if min(settings.depth, results.truth.shape[1]) < trials.N_PICTURED:
        return f"fewer than {trials.N_PICTURED} points were retrieved"
    truth, bits = results.truth[:, : trials.N_PICTURED], trials.longest_bits(settings)
    found: dict[str, Any] = {method: results.of(method, bits)[0].pictured for method in settings.shown}
    hits = {method: (ids[:, :, None] == truth[:, None, :]).any(axis=2) for method, ids in found.items()}
    query = typical([mask.sum(axis=1) for mask in hits.values()])
    shown = {method: (stretched(data.base_patches[ids[query]]), hits[method][query]) for method, ids in found.items()}
    looked_at = trials.n_looked_at(len(data.base), settings.depth)
    of_all = f"the nearest {trials.N_PICTURED} of {looked_at:,} retrieved, {looked_at / len(data.base):.2%} of the base"
    return figures.draw_retrieval(
        stretched(data.query_patches[query][None])[0],
        stretched(data.base_patches[truth[query]]),
        shown,
        title=f"{data.name}, {bits} bits, query {query}: {of_all}",
    )


def cost(results: Results) -> Figure:
    """Figure 6."""
    trial = trials.cost_trial(results.settings)
    title = f"{results.data.name}, {trial.bits} bits, α = {trials.PAPER_ALPHA}"
    return figures.draw_cost(results.outcomes[trial].history, title=title)


def alphas(results: Results) -> Figure:
    """Figure 7."""
    settings, k = results.settings, results.settings.ks[0]

    def m_recall(bits: int, alpha: float) -> float:
        return float(results.outcomes[trials.own_trial(bits, settings, alpha=alpha)].m_recall(k).mean())

    values = {bits: {alpha: m_recall(bits, alpha) for alpha in settings.alphas} for bits in settings.bits}
    reference = {bits: float(results.of("NOKMeans", bits)[0].m_recall(k).mean()) for bits in settings.bits}
    return figures.draw_alpha(values, reference, title=f"{results.data.name}, k = {k}, seed 0")


def variants(results: Results) -> Figure:
    """Figure 8."""
    bits, ks = trials.longest_bits(results.settings), results.settings.ks
    k = max((k for k in ks if k <= _K_OF_FIGURE_8), default=ks[0])
    curves = {method: outcome.recall_curve(k) for method, outcome in models(results).items()}
    return figures.draw_recall(
        curves, title=f"{results.data.name}, {bits} bits, k = {k}, seed 0", reference="AutoJacoBin"
    )


def models(results: Results) -> dict[str, trials.Outcome]:
    """Outcomes of the auto-encoder models with seed 0."""
    own = {"AutoJacoBin": results.of("AutoJacoBin", trials.longest_bits(results.settings))[0]}
    return own | {
        trial.method: results.outcomes[trial] for trial in trials.variant_trials(results.settings, results.chosen)
    }


def recall_grid(results: Results) -> Figure:
    """Figures 9 and 10."""
    settings = results.settings
    curves = {
        (k, bits): {method: results.curve(method, bits, k) for method in settings.shown}
        for k in settings.ks
        for bits in settings.bits
    }
    title = f"{results.data.name}: mean over {results.averaged_over}"
    return figures.draw_recall_grid(curves, title=title, reference="ITQ" if "ITQ" in settings.shown else None)


def stretched(patches: Any) -> Any:
    """Stretch each patch from black to white; descriptors do not depend on contrast either."""
    floats = np.asarray(patches, dtype=np.float32)
    axes = tuple(range(1, floats.ndim))
    low, high = floats.min(axis=axes, keepdims=True), floats.max(axis=axes, keepdims=True)
    return (255 * (floats - low) / np.where(high > low, high - low, 1)).astype(np.uint8)


def typical(counts: Sequence[Any]) -> int:
    """Query whose hits are closest to the average of each method, so that the picture favours none of them."""
    hits = np.array(counts, dtype=np.float64)
    return int(((hits - hits.mean(axis=1, keepdims=True)) ** 2).sum(axis=0).argmin())
