"""The tables and figures by name: what each shows, what the paper says of it, what it needs, how it is made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autojacobin import figures
from autojacobin.reproduction import paper_figures, paper_tables
from autojacobin.reproduction.cells import alpha_cells, compared_cells, first_seed
from autojacobin.reproduction.results import Results
from autojacobin.reproduction.settings import Settings
from autojacobin.reproduction.tables import Table
from autojacobin.reproduction.trials import Cell

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["ARTEFACTS", "Artefact"]


@dataclass(frozen=True)
class Artefact:
    """A table or a figure of the paper.

    Attributes
    ----------
    title : str
        What it shows, in a line.
    claim : str
        What the paper says of it.
    cells : callable
        What must have been tried, from the settings.
    make : callable
        Gives a Table or a Figure, or a sentence that says why there is none.
    searches_grids : bool
        Whether the variants' grids have to be searched.
    """

    title: str
    claim: str
    make: Callable[[Results], Table | Figure | str]
    cells: Callable[[Settings], list[Cell]] = lambda _: []
    searches_grids: bool = False


ARTEFACTS: dict[str, Artefact] = {
    "table2": Artefact(
        "Table II: m-Recall of every method",
        "Auto-JacoBin has the highest m-Recall in 13 of the 15 rows on SIFT1M, OKMeans in the other two.",
        paper_tables.m_recalls,
        compared_cells,
    ),
    "fig9": Artefact(
        "Figures 9 and 10: Recall@i of every method",
        "On NUS-WIDE and GIST1M the proposed method performs much better than previous techniques.",
        paper_figures.recall_grid,
        compared_cells,
    ),
    "fig5": Artefact(
        "Figure 5: a query and what each method retrieves for it",
        "Auto-JacoBin retrieves the most true neighbours for the query that is shown.",
        paper_figures.retrieval,
        lambda settings: [cell for cell in first_seed(settings) if cell.pictured],
    ),
    "fig4": Artefact(
        "Figure 4: random patches of the set", "Most patches show boundaries or corners.", paper_figures.patches
    ),
    "fig6": Artefact(
        "Figure 6: the cost over the optimisation",
        "The cost decreases monotonically and hardly changes after the first 20 iterations.",
        paper_figures.cost,
        lambda settings: [c for c in first_seed(settings) if (c.method, c.bits) == ("AutoJacoBin", settings.bits[0])],
    ),
    "fig7": Artefact(
        "Figure 7: m-Recall by the weight α",
        "Performance is stable for α from 0.01 to 10, and always better than that of NOKMeans (NUS-WIDE, k = 1).",
        paper_figures.alphas,
        lambda settings: alpha_cells(settings) + [c for c in compared_cells(settings) if c.method == "NOKMeans"],
    ),
    "fig8": Artefact(
        "Figure 8: Recall@i of the auto-encoder models",
        "Auto-JacoBin is consistently better; AutoBin1, DAutoBin and CAutoBin are comparable; AutoBin2 is last.",
        paper_figures.variants,
        lambda settings: [c for c in first_seed(settings) if c.method == "AutoJacoBin"],
        searches_grids=True,
    ),
    "variants": Artefact(
        "Beside figure 8: m-Recall of the auto-encoder models and the parameters chosen for them",
        "DAutoBin is slightly better than AutoBin1, and AutoBin1 slightly better than CAutoBin.",
        paper_tables.variant_m_recalls,
        lambda settings: [c for c in first_seed(settings) if c.method == "AutoJacoBin"],
        searches_grids=True,
    ),
    "recall1000": Artefact(
        "Recall@1000",
        "With 64 bits on NUS-WIDE, Recall@1000 is 0.92, and the previous best is NOKMeans at 0.81.",
        paper_tables.recall_at_1000,
        compared_cells,
    ),
    "depth90": Artefact(
        "Points to retrieve for a recall of 0.9",
        "With 256 bits on GIST1M, 2,000 points give a recall of 0.9; the other methods need more than 6,000.",
        paper_tables.depth_for_90,
        compared_cells,
    ),
    "times": Artefact(
        "Training time",
        "Auto-JacoBin takes 8 minutes, the others 1 to 15 seconds.",
        paper_tables.training_times,
        compared_cells,
    ),
    "table1": Artefact("Table I: the data sets", "Four sets, 10,000 training points each.", paper_tables.data_sets),
    "fig1": Artefact("Figure 1: the network", "", lambda _: figures.network.draw()),
    "fig2": Artefact(
        "Figure 2: noisy points around a curve, and where f sends them",
        "f sends a noisy point to the nearest point of the manifold, and its Jacobian there is TT'.",
        lambda _: figures.denoising.draw(),
    ),
    "fig3": Artefact(
        "Figure 3: the toy plane and its hidden features, coloured by code",
        "The plane is warped so that its features reach the corners of the cube: seven codes are used.",
        lambda _: figures.toy.draw(),
    ),
    "appendix": Artefact("Figure of appendix I: the positions in the proof", "", lambda _: figures.proof.draw()),
}
"""By the name that ``--only`` takes, in the order of the report."""
