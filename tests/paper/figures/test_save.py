"""Files: both kinds, whole or not at all, the same bytes every time, and nothing of matplotlib's own state changed."""

import re
import struct
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from autojacobin import StorageError
from autojacobin.paper.figures import METHOD_STYLES, draw_alpha, draw_proof, draw_recall, save
from tests.paper.figures.looking import curve

PROGRAM = """
import sys
import autojacobin.paper.figures as figures
assert "matplotlib" not in sys.modules, "import autojacobin.paper.figures is to stay light"
import numpy as np
curves = {m: np.linspace(0.1 * place, 1, 200) for place, m in enumerate(["ITQ", "AutoJacoBin"])}
figures.save(figures.draw_recall(curves, "digits"), sys.argv[1], "recall")
assert "matplotlib.pyplot" not in sys.modules, "pyplot keeps figures alive and needs one thread"
"""


def png_chunks(content):
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    place, kinds = 8, []
    while place < len(content):
        (length,) = struct.unpack(">I", content[place : place + 4])
        kinds.append(content[place + 4 : place + 8])
        place += 12 + length
    return kinds


def test_a_figure_is_written_as_png_and_svg(tmp_path):
    png, svg = save(draw_proof(), tmp_path / "new" / "folder", "appendix")
    assert (png.name, svg.name) == ("appendix.png", "appendix.svg")
    assert sorted(path.name for path in png.parent.iterdir()) == ["appendix.png", "appendix.svg"]
    chunks = png_chunks(png.read_bytes())
    assert chunks[-1] == b"IEND"
    assert b"tEXt" not in chunks  # where the version and the date would stand
    root = ElementTree.parse(svg).getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert b"dc:date" not in svg.read_bytes()
    width, height = struct.unpack(">II", png.read_bytes()[16:24])
    assert (width, height) == (round(3.5 * 300), round(2.3 * 300))  # a column of print at 300 dots an inch


def test_an_svg_takes_other_colours_on_a_dark_page(tmp_path):
    """The filter of a dark page gives every method enough contrast with the dark ground."""
    _, svg = save(draw_proof(), tmp_path, "f")
    (share, degrees) = re.search(
        r"dark\) { svg { filter: invert\((\S+)\) hue-rotate\((\d+)deg\)", svg.read_text()
    ).groups()
    assert degrees == "180"
    ground = luminance(on_dark("#ffffff", float(share)))
    assert ground < 0.02
    for style in METHOD_STYLES.values():
        assert (luminance(on_dark(style.colour, float(share))) + 0.05) / (ground + 0.05) > 3, style


def on_dark(colour, share):
    """What the filters make of a colour, by the W3C's Filter Effects."""
    parts = np.array([int(colour[start : start + 2], 16) for start in (1, 3, 5)]) / 255
    weights = np.array([0.213, 0.715, 0.072])
    half_turn = 2 * np.tile(weights, (3, 1)) - np.eye(3)
    return np.clip(half_turn @ (parts * (1 - share) + (1 - parts) * share), 0, 1)


def luminance(parts):
    """Of WCAG 2."""
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4) @ [0.2126, 0.7152, 0.0722]


def test_another_process_writes_the_same_bytes(tmp_path):
    subprocess.run([sys.executable, "-W", "error", "-c", PROGRAM, tmp_path / "there"], check=True, timeout=1200)
    curves = {m: np.linspace(0.1 * place, 1, 200) for place, m in enumerate(["ITQ", "AutoJacoBin"])}
    for path in save(draw_recall(curves, "digits"), tmp_path / "here", "recall"):
        assert path.read_bytes() == (tmp_path / "there" / path.name).read_bytes()


def test_threads_write_what_one_thread_writes(tmp_path):
    from matplotlib import rcParams

    before = dict(rcParams)
    makers = {
        "recall": lambda: draw_recall({"ITQ": curve(1), "LSH": curve(2)}),
        "alpha": lambda: draw_alpha({64: {0.1: 0.5}}, {64: 0.4}),
    }

    def write(job):
        folder, name = job
        return save(makers[name](), tmp_path / folder, name)

    for name in makers:
        write(("alone", name))
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(write, [("together", name) for name in makers]))
    for path in (tmp_path / "alone").iterdir():
        assert path.read_bytes() == (tmp_path / "together" / path.name).read_bytes(), path.name
    assert dict(rcParams) == before


def test_a_failed_drawing_leaves_the_old_files(tmp_path):
    figure = draw_proof()
    for ending in ("png", "svg"):
        (tmp_path / f"f.{ending}").write_bytes(b"old")
    figure.axes[0].set_title(r"$\nosuchcommand$")
    with pytest.raises(ValueError, match="nosuchcommand"):
        save(figure, tmp_path, "f")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"f.png": b"old", "f.svg": b"old"}


def test_a_folder_that_cannot_be_is_named(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StorageError, match=r"cannot write the figure 'f' to '.*file': .*; choose another folder"):
        save(draw_proof(), tmp_path / "file", "f")
