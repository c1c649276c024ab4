"""What a run found: a verdict of a few sentences, and a sentence or two for each table and figure.

Every judgement is computed from the results, and nothing within the noise is called a difference.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

import numpy as np
import numpy.typing as npt

from autojacobin.reproduction import paper, trials
from autojacobin.reproduction.paper import BY_DISTANCE, PAPER_SECONDS, label
from autojacobin.reproduction.results import ASYMMETRICALLY, Results, count_of, surely_better
from autojacobin.reproduction.settings import ASYMMETRIC, AUTOENCODER, CHOSEN, COMPARED, every_method
from autojacobin.reproduction.trials import N_PICTURED, alpha_trial

__all__ = [
    "alphas", "cost", "depth_for_90", "distance_m_recalls", "every_m_recall", "m_recalls", "recall_at_1000",
    "recall_grid", "retrieval", "training_times", "variant_m_recalls", "variants", "verdict",
]  # fmt: skip

_OWN, _OTHERS = COMPARED[-1], COMPARED[:-1]
_SETTLED = 20  # steps after which the paper sees hardly any change of the cost


def verdict(results: Results, names: Collection[str]) -> list[str]:
    """Judge the claims of the paper on this set, in at most five sentences.

    ``names`` are the tables and figures that the run has made; a sentence without its table is left out.
    """
    sentences = []
    if {"table2", "quality"} & set(names):
        rows, ahead, behind = _standing(results)
        level = rows - ahead - behind.total()
        sentences.append(
            f"The paper claims that Auto-JacoBin has the highest m-Recall; on {results.data.name} it is significantly "
            f"ahead of the five other methods in {ahead} of {count_of(rows, 'row')}, level with the best in {level}, "
            f"and behind in {behind.total()}."
        )
    if "fig9" in names:
        sentences.append(_highest_throughout(results))
    if "fig8" in names:
        sentences.append(_first_model(results))
    if "quality" in names:
        rows, lost = _chosen_standing(results)
        sentences.append(
            f"{label(CHOSEN)}, the library's default, is best or level with the best of all methods in "
            f"{rows - len(lost)} of {count_of(rows, 'row')}{_became(results)}."
        )
    if "distances" in names:
        sentences.append(_autoencoder_standing(results))
    return sentences


def m_recalls(results: Results) -> str:
    """Table II: in how many rows which method is best."""
    rows, ahead, behind = _standing(results)
    not_behind = rows - behind.total()
    sentence = f"Auto-JacoBin is best or level with the best in {not_behind} of {count_of(rows, 'row')}"
    sentence += f", and significantly ahead of all others in {ahead}." if not_behind else "."
    return f"{sentence} Where it is behind, the best is {_counts(behind)}." if behind else sentence


def _standing(results: Results) -> tuple[int, int, Counter[str]]:
    """Rows of Table II, how often Auto-JacoBin is ahead of all others, and how often each other is ahead of it."""
    rows = [results.level_with_best(COMPARED, bits, k) for k, bits in _rows(results)]
    ahead = sum(winner == _OWN and not near for winner, near in rows)
    return len(rows), ahead, Counter(winner for winner, near in rows if _OWN not in (winner, *near))


def every_m_recall(results: Results) -> str:
    """In how many rows Auto-JacoBin with chosen settings is best or better than with the paper's, and where not."""
    rows, lost = _chosen_standing(results)
    pairs = [results.level_with_best((_OWN, CHOSEN), bits, k) for k, bits in _rows(results)]
    better = sum(best == CHOSEN and not near for best, near in pairs)
    worse = sum(best == _OWN and not near for best, near in pairs)
    sentence = (
        f"{label(CHOSEN)} is best or level with the best of all methods in {rows - len(lost)} of "
        f"{count_of(rows, 'row')}. Compared with the paper's settings, it is significantly better in {better} and "
        f"significantly worse in {worse}."
    )
    if lost:
        where = "; ".join(f"{label(best)} at k = {k}, {bits} bits" for (k, bits), best in lost.items())
        sentence += f" Where it is behind, the best is: {where}."
    return sentence


def _chosen_standing(results: Results) -> tuple[int, dict[tuple[int, int], str]]:
    """Rows of the table of all methods, and which method is ahead of Auto-JacoBin (chosen) where one is."""
    rows = {(k, bits): results.level_with_best(every_method(), bits, k) for k, bits in _rows(results)}
    return len(rows), {row: best for row, (best, near) in rows.items() if CHOSEN not in (best, *near)}


def _became(results: Results) -> str:
    """Say which other method Auto-JacoBin (chosen) is, with seed 0, where it chose to leave its Jacobian term out."""
    names = {bits: results.of(CHOSEN, bits)[0].trained_as.partition(" (")[0] for bits in results.settings.bits}
    others = [f"{name} at {bits} bits" for bits, name in names.items() if name and label(_OWN) not in name]
    return f"; by its choice it is {', '.join(others)}" if others else ""


def distance_m_recalls(results: Results) -> str:
    """In how many rows the binary auto-encoder is best, and what the asymmetric distance gains over Hamming."""
    sentence = _autoencoder_standing(results)
    lost = Counter(best for best, near in _by_distance(results) if AUTOENCODER not in (best, *near))
    if lost:
        where = ", ".join(f"{BY_DISTANCE[name]} in {number}" for name, number in lost.most_common())
        sentence += f" Where it is behind, the best is {where}."
    for method in ASYMMETRIC:
        pairs = [results.level_with_best((method, method + ASYMMETRICALLY), bits, k) for k, bits in _rows(results)]
        gains = [best != method and not near for best, near in pairs]
        sentence += f" {label(method)} finds more by the asymmetric distance than by Hamming in {_of(gains)}."
    return sentence


def _autoencoder_standing(results: Results) -> str:
    rows = _by_distance(results)
    level = sum(AUTOENCODER in (best, *near) for best, near in rows)
    ahead = sum(best == AUTOENCODER and not near for best, near in rows)
    return (
        f"With its own distance the binary auto-encoder is best or level with the best in {level} of "
        f"{count_of(len(rows), 'row')}, and significantly ahead of all others in {ahead}."
    )


def _by_distance(results: Results) -> list[tuple[str, list[str]]]:
    return [results.level_with_best(BY_DISTANCE, bits, k) for k, bits in _rows(results)]


def recall_grid(results: Results) -> str:
    """Figures 9 and 10: the highest curve for most i, and whether bits and k have the effect that the paper reports."""
    highest: Counter[str] = Counter()
    for k, bits in _rows(results):
        top = _on_top(results, k, bits)
        alone = (top & (top.sum(axis=0) == 1)).sum(axis=1)  # where several reach the same, none is the highest
        if alone.any():
            highest[COMPARED[int(alone.argmax())]] += 1
    found = _highest_throughout(results)
    found += f" Over most i the highest curve is that of {_counts(highest)}." if highest else ""
    lengths, ks = results.settings.bits, results.settings.ks
    if len(lengths) > 1:
        gains = [
            results.m_recall(method, lengths[-1], k).mean > results.m_recall(method, lengths[0], k).mean
            for method in COMPARED
            for k in ks
        ]
        found += f" m-Recall is higher with {lengths[-1]} bits than with {lengths[0]} in {_of(gains)} cases."
    if len(ks) > 1:
        losses = [
            results.m_recall(method, bits, ks[-1]).mean < results.m_recall(method, bits, ks[0]).mean
            for method in COMPARED
            for bits in lengths
        ]
        found += f" It is lower for k = {ks[-1]} than for k = {ks[0]} in {_of(losses)} cases."
    return found


def _highest_throughout(results: Results) -> str:
    panels = [bool(_on_top(results, k, bits)[-1].all()) for k, bits in _rows(results)]
    return f"Auto-JacoBin's curve is highest throughout in {sum(panels)} of {count_of(len(panels), 'panel')}."


def _on_top(results: Results, k: int, bits: int) -> npt.NDArray[np.bool_]:
    """Which of the compared methods reach the highest Recall@i, one row per method."""
    curves = np.array([results.curve(method, bits, k) for method in COMPARED])
    top: npt.NDArray[np.bool_] = curves == curves.max(axis=0)
    return top


def retrieval(results: Results) -> str:
    """Figure 5: how many true neighbours each method shows, for the query of the picture and on average."""
    _, hits = paper.pictured(results)
    counts = {method: mask.sum(axis=1) for method, mask in hits.items()}
    query = paper.typical(list(counts.values()))
    shown = _listed({method: values[query] for method, values in counts.items()}, "d")
    average = _listed({method: values.mean() for method, values in counts.items()}, ".1f")
    n = count_of(len(results.data.queries), "query", "queries")
    return (
        f"Retrieved of the {N_PICTURED} true neighbours of this query: {shown}. On average over {n}: {average}. "
        "Of all queries, the one shown is closest to these averages."
    )


def cost(results: Results) -> str:
    """Figure 6: whether the cost falls from batch to batch, and how much after step 20."""
    history = results.of(_OWN, results.settings.bits[0])[0].history
    # Batches differ by a point where their number does not divide that of the points.
    costs = history["cost"] / history["n_points"]
    n = len(costs)
    if n < 2:
        return "There was only one step, so nothing can be said about how the cost falls."
    rises = int(np.count_nonzero(np.diff(costs) > 0))
    steps = count_of(n - 1, "change", "changes")
    found = (
        f"The cost fell monotonically over {count_of(n, 'step')}."
        if not rises
        else f"The cost did not fall monotonically: from one batch to the next it rose in {rises} of {steps}."
    )
    fall = costs[0] - costs[-1]
    if n <= _SETTLED or fall <= 0:
        return f"{found} It went from {costs[0]:.4g} to {costs[-1]:.4g} per point."
    late = (costs[_SETTLED - 1] - costs[-1]) / fall
    if late < 0:
        return f"{found} After step {_SETTLED} it fell no further: the last cost is above that of this step."
    return f"{found} Of its fall from step 1 to step {n}, {100 * late:.1f} % came after step {_SETTLED}."


def alphas(results: Results) -> str:
    """Figure 7: how much α matters, and where Auto-JacoBin is above NOKMeans."""
    settings, k = results.settings, results.settings.ks[0]
    reach, above, below = 0.0, 0, 0
    for bits in settings.bits:
        means = [paper.alpha_m_recall(results, bits, alpha, k) for alpha in settings.alphas]
        reach = max(reach, max(means) - min(means))
        noise = _seed_noise(results, (_OWN, "NOKMeans"), bits, k)
        other = results.of("NOKMeans", bits)[0].m_recall(k)
        for alpha, mean in zip(settings.alphas, means, strict=True):
            values = results.outcomes[alpha_trial(bits, alpha, settings)].m_recall(k)
            above += mean - other.mean() > noise and surely_better(values, other)
            below += other.mean() - mean > noise and surely_better(other, values)
    n = count_of(len(settings.bits) * len(settings.alphas), "setting")
    differ = (
        f"Of the {n}, {above} {'is' if above == 1 else 'are'} significantly better than NOKMeans and {below} "
        f"{'is' if below == 1 else 'are'} significantly worse."
        if above or below
        else f"None of the {n} differs significantly from NOKMeans."
    )
    return f"m-Recall moves by at most {reach:.3f} over α. {differ}"


def variants(results: Results) -> str:
    """Figure 8: the ranking, and for which share of i Auto-JacoBin is highest."""
    k = paper.k_of_figure_8(results)
    means = {method: values.mean() for method, values in _by_model(results).items()}
    curves = np.array([outcome.recall_curve(k) for outcome in paper.models(results).values()])
    on_top = float((curves[0] >= curves.max(axis=0)).mean())
    return (
        f"{_first_model(results)} All by m-Recall: {_listed(means, '.3f')}. Auto-JacoBin's curve is highest at "
        f"{100 * on_top:.0f} % of the i."
    )


def _first_model(results: Results) -> str:
    values = _by_model(results)
    first, *others = sorted(values, key=lambda method: -values[method].mean())
    level = [label(method) for method in others if not surely_better(values[first], values[method])]
    where = f"at {trials.longest_bits(results.settings)} bits and k = {paper.k_of_figure_8(results)}"
    return (
        f"Of the {len(values)} auto-encoder models, {label(first)} has the highest m-Recall {where}, "
        f"{values[first].mean():.3f}"
        + (f", level with {' and '.join(level)}" if level else ", significantly ahead of all others")
        + (f"; Auto-JacoBin reaches {values[_OWN].mean():.3f}." if first != _OWN else ".")
    )


def _by_model(results: Results) -> dict[str, npt.NDArray[np.float64]]:
    k = paper.k_of_figure_8(results)
    return {method: outcome.m_recall(k) for method, outcome in paper.models(results).items()}


def variant_m_recalls(results: Results) -> str:
    """The order of DAutoBin, AutoBin1 and CAutoBin."""
    tried = paper.models(results)
    names = ("DAutoBin", "AutoBin1", "CAutoBin")
    means = {method: [tried[method].m_recall(k).mean() for k in results.settings.ks] for method in names}
    first = [a > b for a, b in zip(means["DAutoBin"], means["AutoBin1"], strict=True)]
    second = [a > b for a, b in zip(means["AutoBin1"], means["CAutoBin"], strict=True)]
    apart = np.ptp(np.array(list(means.values())), axis=0).max()
    return (
        f"DAutoBin is above AutoBin1 for {_of(first)} k, and AutoBin1 above CAutoBin for {_of(second)}. The three are "
        f"at most {apart:.3f} apart."
    )


def recall_at_1000(results: Results) -> str:
    """Recall@1000 with the shortest codes, as the paper quotes it."""
    k, bits = results.settings.ks[0], results.settings.bits[0]
    values = {method: results.curve(method, bits, k)[999] for method in COMPARED}
    other = max(_OTHERS, key=lambda method: values[method])
    return (
        f"With {bits} bits and k = {k} Auto-JacoBin reaches {values[_OWN]:.3f}, and {label(other)}, the best of the "
        f"others, {values[other]:.3f}."
    )


def depth_for_90(results: Results) -> str:
    """Points for a recall of 0.9 with the longest codes, as the paper quotes them."""
    k, bits, depth = results.settings.ks[0], results.settings.bits[-1], results.settings.depth
    needed = {method: paper.points_for_90(results, method, bits, k) for method in COMPARED}
    other = min(_OTHERS, key=lambda method: needed[method] or depth + 1)
    own, best = (f"more than {depth:,}" if needed[m] is None else f"{needed[m]:,}" for m in (_OWN, other))
    return f"With {bits} bits and k = {k} Auto-JacoBin needs {own}, and {label(other)}, the best of the others, {best}."


def training_times(results: Results) -> str:
    """How much longer Auto-JacoBin trains than the slowest of the others."""
    bits = results.settings.bits[0]
    seconds = {method: np.mean([o.seconds["fit"] for o in results.of(method, bits)]) for method in COMPARED}
    slowest = max(_OTHERS, key=lambda method: seconds[method])
    ratio = PAPER_SECONDS[_OWN] / max(PAPER_SECONDS[method] for method in _OTHERS if method in PAPER_SECONDS)
    return (
        f"With {bits} bits Auto-JacoBin takes {seconds[_OWN]:.2f} s, {seconds[_OWN] / seconds[slowest]:.1f} times as "
        f"long as {label(slowest)}, the slowest of the others; in the paper it is {ratio:.0f} times."
    )


def _seed_noise(results: Results, methods: tuple[str, ...], bits: int, k: int) -> float:
    """Spread over seeds of the difference of two methods; 0 for a single seed."""
    spreads = [results.m_recall(method, bits, k).spread or 0.0 for method in methods if results.of(method, bits)]
    return float(np.linalg.norm(spreads))


def _rows(results: Results) -> list[tuple[int, int]]:
    return [(k, bits) for k in results.settings.ks for bits in results.settings.bits]


def _of(true: list[bool]) -> str:
    return f"{sum(map(bool, true))} of {len(true)}"


def _counts(counter: Counter[str]) -> str:
    return ", ".join(f"{label(method)} in {number}" for method, number in counter.most_common())


def _listed(values: dict[str, float], form: str) -> str:
    return ", ".join(f"{label(m)} {values[m]:{form}}" for m in sorted(values, key=lambda m: -values[m]))
