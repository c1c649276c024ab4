"""The tables and figures by name: what each shows, what the paper says about it, what it needs, how it is made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from autojacobin.paper import figures
from autojacobin.paper.reproduction import measured, trials
from autojacobin.paper.reproduction.report import Table
from autojacobin.paper.reproduction.results import Results
from autojacobin.paper.reproduction.trials import VARIANTS, Settings, Trial, default_trials

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Artefact:
    """A table or a figure of the paper.

    ``title`` says what it shows, ``claim`` what the paper says about it, ``caption`` what is below a figure; tables
    have none. ``make`` gives a Table, a Figure, or a sentence that says why there is none. ``trials`` gives the trials
    that it needs, and ``searches_grids`` says whether the grids of the variants have to be searched.
    """

    title: str
    claim: str
    make: Callable[[Results], Table | Figure | str]
    caption: str = ""
    trials: Callable[[Settings], list[Trial]] = lambda _: []
    searches_grids: bool = False

    def among(self, settings: Settings) -> Artefact:
        """Give this one, or one that says why it is left out if it needs other methods than those that are given."""
        needed = dict.fromkeys(trial.method for trial in self.trials(settings))
        needed |= dict.fromkeys(VARIANTS) if self.searches_grids else {}
        missing = ", ".join(measured.label(name) for name in needed if name not in settings.methods)
        if not (settings.methods and missing):
            return self
        return replace(self, make=lambda _: f"it needs {missing} too", trials=lambda _: [], searches_grids=False)


def _compared(settings: Settings) -> list[Trial]:
    return default_trials(settings.compared, settings)


def _shown(settings: Settings) -> list[Trial]:
    return default_trials(settings.shown, settings)


def _first_of(method: str, settings: Settings) -> list[Trial]:
    return [trial for trial in default_trials((method,), settings) if trial.seed == 0]


def _longest_of_own(settings: Settings) -> list[Trial]:
    return [trials.own_trial(trials.longest_bits(settings), settings)]


def _over_alpha(settings: Settings) -> list[Trial]:
    own = [trials.own_trial(bits, settings, alpha=alpha) for alpha in settings.alphas for bits in settings.bits]
    return own + _first_of("NOKMeans", settings)


ARTEFACTS: dict[str, Artefact] = {
    "fig1": Artefact(
        "Figure 1: the network",
        "",
        lambda _: figures.draw_network(),
        caption="D inputs, d filled hidden units whose signs are the code, D outputs, and the biases in purple.",
    ),
    "fig2": Artefact(
        "Figure 2: noisy points around a curve, and where f sends them",
        "f sends a noisy point to the nearest point of the manifold, and its Jacobian there is TT'.",
        lambda _: figures.draw_denoising(),
        caption="Stars are where points come from, circles where they go. The right panel is not in the paper: a "
        "network trained on the curve with the Jacobian term.",
    ),
    "fig3": Artefact(
        "Figure 3: the toy plane and its hidden features, coloured by code",
        "The plane is warped onto the surface of the cube, its features spread towards the vertices, and all the seven "
        "codes that are possible are used.",
        lambda _: figures.draw_toy(),
        caption="1,000 points of the plane x1 + x2 + x3 = 1, and what the three hidden units make of them; the "
        "number of codes is in the title. The paper does not give its settings. Here: α = 0.01, the points scaled to a "
        "largest norm of 8, 50 steps on all points, seed 2, else as published. With α = 0.1 and a norm of 0.8, as in "
        "the paper's experiments, there are four to six codes.",
    ),
    "fig4": Artefact(
        "Figure 4: random patches of the set",
        "Most patches show boundaries or corners (SIFT10M).",
        measured.patches,
        caption="Patches of the base, drawn at random. Each is stretched from black to white.",
    ),
    "table1": Artefact("Table I: the data sets", "Four sets, 10,000 training points each.", measured.data_sets),
    "fig5": Artefact(
        "Figure 5: a query and what each method retrieves for it",
        "Auto-JacoBin retrieves the most true neighbours for the query that is shown (SIFT10M, 128 bits).",
        measured.retrieval,
        "Each method retrieves the points nearest in Hamming distance, 0.01 % of the base but at least 99; shown are "
        "the 99 of them nearest in Euclidean distance. The paper retrieves 1,000 of 10,000,000. Where the title says "
        "99 of 99, the base is so small that all retrieved are shown. Orange border: one of the 99 true neighbours; "
        "their number is in brackets. Seed 0; Auto-JacoBin has the paper's settings, (chosen) those that it chose, the "
        "others their defaults. The query is the one for which each method finds about as many as on average. Each "
        "patch is stretched from black to white.",
        lambda settings: [trial for trial in _shown(settings) if trial.pictured],
    ),
    "fig6": Artefact(
        "Figure 6: the cost over the optimisation",
        "The cost decreases monotonically, though the batch is another at each iteration, and hardly changes after the "
        "first 20 iterations (NUS-WIDE, 64 bits, α = 0.1).",
        measured.cost,
        "Cost of each batch after the step on it, and the terms that add up to it. A small set is gone over more often "
        "than the paper's five times, until 50 steps are made.",
        lambda settings: [trials.cost_trial(settings)],
    ),
    "fig7": Artefact(
        "Figure 7: m-Recall by the weight α",
        "Performance is stable for α from 0.01 to 10, and always better than that of NOKMeans (NUS-WIDE, k = 1).",
        measured.alphas,
        "m-Recall for the smallest k, with the same seed for all bars.",
        _over_alpha,
    ),
    "fig8": Artefact(
        "Figure 8: Recall@i of the auto-encoder models",
        "Auto-JacoBin is consistently better; AutoBin1, DAutoBin and CAutoBin are comparable; AutoBin2 is last "
        "(NUS-WIDE, 128 bits, k = 100).",
        measured.variants,
        "Above, Recall@i as in the paper; i is on a logarithmic axis. Below, the difference to Auto-JacoBin: above 0, "
        "a model finds more. Auto-JacoBin has the paper's α = 0.1; the others have what was best on held-out training "
        "points.",
        _longest_of_own,
        searches_grids=True,
    ),
    "variants": Artefact(
        "Beside figure 8: m-Recall of the auto-encoder models and the parameters chosen for them",
        "DAutoBin is slightly better than AutoBin1, and AutoBin1 slightly better than CAutoBin.",
        measured.variant_m_recalls,
        trials=_longest_of_own,
        searches_grids=True,
    ),
    "fig9": Artefact(
        "Figures 9 and 10: Recall@i of every method",
        "On NUS-WIDE and GIST1M Auto-JacoBin performs much better than previous techniques. More bits help all "
        "methods, and performance decreases as k increases.",
        measured.recall_grid,
        "In the higher panels, Recall@i as in the paper, mean over queries and seeds; i is on a logarithmic axis. "
        "Below each, the difference to ITQ: above 0, a method finds more. A curve that leaves a panel at the bottom is "
        "lower still.",
        _shown,
    ),
    "recall1000": Artefact(
        "Recall@1000",
        "With 64 bits on NUS-WIDE, Recall@1000 is 0.92, and the previous best is NOKMeans at 0.81; for which k is not "
        "said.",
        measured.recall_at_1000,
        trials=_compared,
    ),
    "depth90": Artefact(
        "Points to retrieve for a recall of 0.9",
        "With 256 bits on GIST1M, 2,000 points give a recall of 0.9; the other methods need more than 6,000. For "
        "which k is not said.",
        measured.depth_for_90,
        trials=_compared,
    ),
    "table2": Artefact(
        "Table II: m-Recall of every method",
        "Auto-JacoBin has the highest m-Recall in 13 of the 15 rows on SIFT1M, and OKMeans in the other two; the text "
        "calls it comparable to the state of the art there, and better with more bits.",
        lambda results: measured.m_recalls(
            results, "table-2", "Table II: m-Recall", measured.labelled(results.settings.compared)
        ),
        trials=_compared,
    ),
    "times": Artefact(
        "Training time",
        "Auto-JacoBin takes about 8 minutes on SIFT1M with 64 bits; NOKMeans, OKMeans, ITQ and Spectral Hashing take "
        "15, 4, 2 and 1 seconds.",
        measured.training_times,
        trials=_compared,
    ),
    "appendix": Artefact(
        "Figure of appendix I: the positions in the proof",
        "",
        lambda _: figures.draw_proof(),
        caption="B is the point of the manifold nearest to A; C and D lie below A and B in the tangent space at O.",
    ),
    "quality": Artefact(
        "Beyond the paper: all methods, and Auto-JacoBin with settings that it chooses itself",
        "Not in the paper: its settings are fixed. By default the library chooses them on held-out training points.",
        lambda results: measured.m_recalls(
            results, "quality", "m-Recall of all methods", measured.labelled(results.settings.every)
        ),
        trials=lambda settings: default_trials(settings.every, settings),
    ),
    "distances": Artefact(
        "Beyond the paper: other distances, and the binary auto-encoder",
        "Not in the paper: it compares codes by the Hamming distance. The distances here keep the real values of the "
        "query and need no more memory. The binary auto-encoder is made for the distance to what its codes decode to.",
        lambda results: measured.m_recalls(results, "distances", "m-Recall by the distance", measured.BY_DISTANCE),
        trials=partial(default_trials, (*trials.ASYMMETRIC, trials.AUTOENCODER)),
    ),
}
"""By the names for ``--only``, in the order of the paper; what goes beyond the paper comes last."""

SAME = {"fig10": "fig9"}
"""Other names for ``--only``: figures 9 and 10 of the paper show the same for two data sets."""
