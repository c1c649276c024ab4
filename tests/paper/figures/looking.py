"""What a reader would look for in a figure, found without looking."""

import numpy as np

from autojacobin.paper.figures import METHOD_STYLES

OF_THE_PAPER = tuple(name for name in METHOD_STYLES if name not in ("BinaryAutoencoder", "Sign"))


def texts(figure):
    """All text that is shown, as one list."""
    import matplotlib.text

    return [t.get_text() for t in figure.findobj(matplotlib.text.Text) if t.get_visible() and t.get_text()]


def legend_of(figure):
    (legend,) = figure.legends
    return [text.get_text() for text in legend.get_texts()]


def laid_out(figure):
    """Boxes of the panels with their labels and of the legend, in pixels, after the layout."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    renderer = canvas.get_renderer()
    panels = [axes.get_tightbbox(renderer) for axes in figure.axes]
    return panels, [legend.get_window_extent(renderer) for legend in figure.legends], figure.bbox


def curve(goodness, K=10_000, queries=None):
    """A plausible Recall@1…K; from so many queries it is a staircase."""
    recalls = 1 - (1 + np.arange(1, K + 1) * goodness / 60) ** -0.6
    return recalls if queries is None else np.floor(recalls * queries) / queries


def grid(ks=(1, 5, 10, 50, 100), lengths=(64, 96, 128), methods=OF_THE_PAPER, K=10_000):
    return {
        (k, bits): {m: curve((place + 1) * bits / 200 / k**0.3, K, 1000) for place, m in enumerate(methods)}
        for k in ks
        for bits in lengths
    }
