"""The figures of the paper, one a file: plain data in, a matplotlib ``Figure`` out, and :func:`save` writes it.

Nothing here touches matplotlib's global state, so figures may be drawn from any thread and without a display.
matplotlib itself is imported when the first figure is drawn.

========================  ====================================================================
Figure of the paper       drawn by
========================  ====================================================================
1, the network            ``network.draw()``
2, the function f         ``denoising.draw(seed)``
3, the toy plane          ``toy.draw(seed)``
4, random patches         ``patches.draw(patches, seed)``
5, a query                ``retrieval.draw(query_patch, true_patches, retrieved)``
6, the cost               ``cost.draw(history)``
7, the weight α           ``alpha.draw(values, reference)``
8, Recall@i               ``recall.draw(curves)``
9 and 10, Recall@i grids  ``recall_grid.draw(curves)``
of appendix I             ``proof.draw()``
none, the settings tried  ``choice.draw(search_results)``
========================  ====================================================================
"""

from autojacobin.figures import (
    alpha,
    choice,
    cost,
    denoising,
    network,
    patches,
    proof,
    recall,
    recall_grid,
    retrieval,
    toy,
)
from autojacobin.figures._save import save
from autojacobin.figures._style import METHOD_STYLES, MethodStyle, require_matplotlib

__all__ = [
    "METHOD_STYLES", "MethodStyle", "alpha", "choice", "cost", "denoising", "network", "patches", "proof", "recall",
    "recall_grid", "require_matplotlib", "retrieval", "save", "toy",
]  # fmt: skip
