"""The figures of the paper, one per module: plain data in, a matplotlib ``Figure`` out; :func:`save` writes it.

The global state of matplotlib is not changed, so figures can be drawn from any thread and without a display.
matplotlib is imported when the first figure is drawn.

========================  ====================================================================
Figure of the paper       drawn by
========================  ====================================================================
1, the network            ``architecture.draw()``
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
    architecture,
    choice,
    cost,
    denoising,
    patches,
    proof,
    recall,
    recall_grid,
    retrieval,
    toy,
)
from autojacobin.figures.style import METHOD_STYLES, MethodStyle, require_matplotlib, save

__all__ = [
    "METHOD_STYLES", "MethodStyle", "alpha", "architecture", "choice", "cost", "denoising", "patches", "proof",
    "recall", "recall_grid", "require_matplotlib", "retrieval", "save", "toy",
]  # fmt: skip
