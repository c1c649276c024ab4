"""Colours that colour-blind readers tell apart, styles that grey print keeps apart, and one style a method."""

from itertools import combinations

import numpy as np
import pytest

from autojacobin import DataError
from autojacobin.paper.figures import METHOD_STYLES, MethodStyle
from autojacobin.paper.figures.drawings import CODE_COLOURS
from autojacobin.paper.figures.style import legend_order, style_of

# Machado, Oliveira and Fernandes (2009), severity 1, on linear RGB
VISIONS = {
    "normal": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
}
LINEAR_TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


def linear(colour):
    values = np.array([int(colour[start : start + 2], 16) for start in (1, 3, 5)]) / 255
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def lab(colour, vision):
    xyz = LINEAR_TO_XYZ @ np.clip(VISIONS[vision] @ linear(colour), 0, 1) / [0.9505, 1, 1.089]
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def test_the_conversion_to_lab_is_right():
    assert np.allclose(lab("#FFFFFF", "normal"), [100, 0, 0], atol=0.05)
    assert np.allclose(lab("#FF0000", "normal"), [53.24, 80.09, 67.20], atol=0.1)
    # reds and greens of one lightness are what these readers confuse
    apart = np.linalg.norm(lab("#C06060", "normal") - lab("#758A3A", "normal"))
    assert np.linalg.norm(lab("#C06060", "deuteranopia") - lab("#758A3A", "deuteranopia")) < 0.4 * apart


@pytest.mark.parametrize("vision", VISIONS)
def test_any_two_methods_differ_in_colour_for_every_reader(vision):
    for a, b in combinations(METHOD_STYLES.values(), 2):
        gap = np.linalg.norm(lab(a.colour, vision) - lab(b.colour, vision))
        assert gap > 15, (a.label, b.label, gap)


@pytest.mark.parametrize("vision", VISIONS)
def test_any_two_codes_differ_in_colour_for_every_reader(vision):
    for a, b in combinations(CODE_COLOURS, 2):
        assert np.linalg.norm(lab(a, vision) - lab(b, vision)) > 15, (a, b)


def test_no_two_methods_look_alike_in_grey():
    looks = [(style.marker, style.dashes) for style in METHOD_STYLES.values()]
    assert len({marker for marker, _ in looks}) == len(looks)
    assert len({dashes for _, dashes in looks}) >= 4


def test_colours_stand_out_from_white_paper():
    for style in METHOD_STYLES.values():
        luminance = LINEAR_TO_XYZ[1] @ linear(style.colour)
        assert 1.05 / (luminance + 0.05) > 2, style.label


def test_every_method_of_the_paper_has_a_style():
    named = "LSH SpectralHashing ITQ OKMeans NOKMeans AutoBin1 AutoBin2 DAutoBin CAutoBin AutoJacoBin"
    assert set(named.split()) <= set(METHOD_STYLES)
    assert METHOD_STYLES["SpectralHashing"].label == "SH"
    assert METHOD_STYLES["AutoJacoBin"].label == "Auto-JacoBin"


def test_methods_come_in_the_order_of_legends():
    assert legend_order(["AutoJacoBin", "ITQ", "LSH"]) == ["LSH", "ITQ", "AutoJacoBin"]
    assert legend_order(reversed(METHOD_STYLES)) == list(METHOD_STYLES)


def test_an_unknown_method_is_refused_and_a_style_can_be_set(monkeypatch):
    with pytest.raises(DataError, match="there is no method 'Mine', expected one of: LSH, "):
        style_of("Mine")
    monkeypatch.setitem(METHOD_STYLES, "Mine", MethodStyle("my method", "#123456", "1"))
    assert style_of("Mine").label == "my method"
