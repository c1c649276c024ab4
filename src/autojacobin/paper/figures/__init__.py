"""The figures of the paper: plain data in, a matplotlib ``Figure`` out; :func:`save` writes it.

The global state of matplotlib is not changed, so figures can be drawn from any thread and without a display.
matplotlib is imported when the first figure is drawn.
"""

from autojacobin.paper.figures.drawings import draw_denoising, draw_network, draw_proof, draw_toy
from autojacobin.paper.figures.patches import draw_patches, draw_retrieval
from autojacobin.paper.figures.plots import draw_alpha, draw_cost, draw_recall, draw_recall_grid
from autojacobin.paper.figures.style import METHOD_STYLES, MethodStyle, require_matplotlib, save

__all__ = [
    "METHOD_STYLES", "MethodStyle", "draw_alpha", "draw_cost", "draw_denoising", "draw_network",
    "draw_patches", "draw_proof", "draw_recall", "draw_recall_grid", "draw_retrieval", "draw_toy",
    "require_matplotlib", "save",
]  # fmt: skip
