"""Figures 4 and 5: which pictures are shown where, and the borders around them."""

import numpy as np
from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle

from autojacobin.paper.figures import draw_patches, draw_retrieval
from autojacobin.paper.figures.patches import QUERY, TRUE_NEIGHBOUR, mosaic
from autojacobin.paper.reproduction.trials import SHOWN
from tests.paper.figures.looking import texts


def flat_patches(n, height=8, width=8):
    """Patches that are one grey each, so that a place in a figure tells which patch is there."""
    return np.repeat(np.arange(1, n + 1), height * width).reshape(n, height, width).astype(np.uint8)


def borders(axes, colour):
    return [
        patch
        for patch in axes.patches
        if isinstance(patch, Rectangle) and to_hex(patch.get_edgecolor()) == colour.lower()
    ]


def shade_inside(axes, border):
    """The one shade of the picture that a border is around."""
    (image,) = axes.images
    x, y = border.get_center()
    return int(np.asarray(image.get_array())[round(y), round(x), 0])


def test_a_mosaic_holds_every_picture_once_in_reading_order():
    colours = np.random.default_rng(0).integers(0, 255, (7, 4, 6, 3), dtype=np.uint8)
    whole = mosaic(colours, columns=3)
    gap = 1
    assert whole.shape == (3 * (4 + gap) + gap, 3 * (6 + gap) + gap, 4)
    for number, patch in enumerate(colours):
        y, x = gap + number // 3 * (4 + gap), gap + number % 3 * (6 + gap)
        assert np.array_equal(whole[y : y + 4, x : x + 6, :3], patch)
        assert (whole[y : y + 4, x : x + 6, 3] == 255).all()
    assert (whole[:, :, 3] == 0).sum() == whole.shape[0] * whole.shape[1] - 7 * 24  # the gaps are transparent


def test_figure_4_draws_without_repeats_and_by_the_seed():
    many = np.repeat(np.arange(1000), 36).reshape(1000, 6, 6) % 250
    pictures = np.stack([many, many // 2, np.repeat(np.arange(1000) // 4, 36).reshape(1000, 6, 6)], axis=3)
    shown = []
    for seed in (0, 0, 1):
        (image,) = draw_patches(pictures.astype(np.uint8), seed).axes[0].images
        colours = {tuple(pixel) for pixel in np.asarray(image.get_array()).reshape(-1, 4).tolist()} - {(0, 0, 0, 0)}
        assert len(colours) == 196
        shown.append(colours)
    assert shown[0] == shown[1] != shown[2]


def test_prepareder_patches_are_all_shown():
    (image,) = draw_patches(flat_patches(20)).axes[0].images
    assert set(np.unique(image.get_array()[:, :, 0])) == {*range(21)}


def test_fractions_and_bytes_give_the_same_picture():
    levels = np.random.default_rng(0).integers(0, 256, (5, 4, 4), dtype=np.uint8)
    from_bytes, from_fractions = (
        np.asarray(draw_patches(given).axes[0].images[0].get_array()) for given in (levels, levels / 255)
    )
    assert np.array_equal(from_bytes, from_fractions)


def test_figure_5_has_an_orange_border_for_each_true_neighbour_and_their_count_in_the_title():
    rng = np.random.default_rng(0)
    truth = flat_patches(99)
    found = {}
    for method, share in (("AutoJacoBin", 0.8), ("ITQ", 0.5), ("SpectralHashing", 0.0), ("LSH", 1.0)):
        found[method] = (flat_patches(99), rng.uniform(size=99) < share)
    figure = draw_retrieval(np.full((8, 8), 200, dtype=np.uint8), truth, found, "SIFT10M, 128 bits")
    top, *panels = figure.axes
    (query,) = borders(top, QUERY)
    assert shade_inside(top, query) == 200
    assert not borders(top, TRUE_NEIGHBOUR)
    assert top.get_title() == "query (red border) and its 99 true nearest neighbours"
    labels = {"LSH": "LSH", "SpectralHashing": "SH", "ITQ": "ITQ", "AutoJacoBin": "Auto-JacoBin"}
    for axes, (method, label) in zip(panels, labels.items(), strict=True):
        is_true = found[method][1]
        assert axes.get_title() == f"{label} ({is_true.sum()})"
        orange = borders(axes, TRUE_NEIGHBOUR)
        assert [shade_inside(axes, border) for border in orange] == (np.flatnonzero(is_true) + 1).tolist()
    assert "SIFT10M, 128 bits" in texts(figure)


def test_seven_methods_are_shown_in_two_rows():
    found = {method: (flat_patches(9), [False] * 9) for method in SHOWN}
    _, *panels = draw_retrieval(np.zeros((8, 8)), flat_patches(9), found).axes
    rows = [axes.get_subplotspec().rowspan.start for axes in panels]
    assert rows == [1, 1, 1, 1, 2, 2, 2]


def test_borders_touch_neither_their_picture_nor_the_next_one():
    figure = draw_retrieval(np.zeros((32, 32)), np.zeros((3, 32, 32)), {"ITQ": (np.zeros((12, 32, 32)), [True] * 12)})
    boxes = [border.get_bbox() for border in borders(figure.axes[1], TRUE_NEIGHBOUR)]
    assert len(boxes) == 12
    for number, box in enumerate(boxes):
        assert (box.width, box.height) > (32, 32)
        assert not any(box.overlaps(other) for other in boxes[number + 1 :])


GREY = np.zeros((4, 5, 5))
