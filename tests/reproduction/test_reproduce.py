"""The whole run on a small set: everything is made, nothing is done twice, and an interruption costs nothing."""

import html.parser
import json

import numpy as np
import pytest

from autojacobin import DataError
from autojacobin.reproduction import ARTEFACTS, Settings, reproduce
from autojacobin.reproduction.choosing import grid
from autojacobin.reproduction.paper_figures import stretched, typical
from autojacobin.reproduction.trials import run_cell
from tests.reproduction.small import SETTINGS, small_set

run_module = "autojacobin.reproduction.run"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    told = []
    return reproduce(small_set(), folder, SETTINGS, progress=lambda *what: told.append(what)), told


class _Links(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.links, self.ids, self.images = [], [], 0

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.ids += [attributes["id"]] if "id" in attributes else []
        self.links += [attributes[name] for name in ("href", "src") if name in attributes]
        self.images += tag == "img" and bool(attributes.get("alt"))


def test_every_table_and_figure_is_made(made):
    reproduction, _ = made
    folder = reproduction.folder
    assert reproduction.left_out == {"recall1000": "only 120 points were retrieved"}
    drawn = {path.name for path in (folder / "figures").iterdir()}
    assert drawn == {
        f"{name}.{ending}"
        for name in ("fig1", "fig2", "fig3", "fig4", "fig5", "fig6", "fig7", "fig8", "fig9", "appendix")
        for ending in ("png", "svg")
    }
    for table in reproduction.tables.values():
        for ending, text in (("txt", table.to_text()), ("md", table.to_markdown()), ("csv", table.to_csv())):
            assert (folder / "tables" / f"{table.name}.{ending}").read_text() == text
        assert (folder / "tables" / f"{table.name}.tex").read_text() == table.to_latex()


def test_the_report_holds_all_of_it_and_loads_nothing(made):
    parser = _Links()
    parser.feed(made[0].report.read_text())
    assert set(ARTEFACTS) <= set(parser.ids)
    assert parser.images == 10
    assert all(link.startswith(("#", "data:image/")) for link in parser.links)


def test_the_record_agrees_with_the_table(made):
    reproduction, _ = made
    record = json.loads((reproduction.folder / "results.json").read_text())
    table = reproduction.tables["table2"]
    assert table.header[0] == "(k, bits)"
    assert [row[0] for row in table.rows] == ["(1, 8)", "(1, 16)", "(10, 8)", "(10, 16)"]
    for row in table.rows:
        k, bits = row[0].strip("()").split(", ")
        for name, text in zip(table.header[1:], row[1:], strict=True):
            method = {"SH": "SpectralHashing", "Auto-JacoBin": "AutoJacoBin"}.get(name, name)
            values = [
                trial["m_recall"][k]
                for trial in record["trials"]
                if (trial["method"], trial["bits"], trial["parameters"]) == (method, int(bits), {})
            ]
            assert len(values) == SETTINGS.seeds
            assert text.removesuffix(" ≈") == f"{np.mean(values):.3f} ± {np.std(values, ddof=1):.3f}"
    best = [max(range(1, 7), key=lambda c, row=row: float(row[c][:5])) for row in table.rows]
    for number, column in table.bold:
        assert table.rows[number][column][:5] == table.rows[number][best[number]][:5]
    assert len(table.bold) == len(table.rows)
    assert record["settings"]["depth"] == SETTINGS.depth


def test_progress_goes_from_nothing_to_all(made):
    done = [step[1] for step in made[1]]
    assert done == sorted(done)
    assert done[0] == 0
    assert made[1][-1][1] == made[1][-1][2]


def test_work_that_is_done_is_not_done_again(made, monkeypatch):
    def refuse(*_):
        raise AssertionError("a trial was run again")

    monkeypatch.setattr(f"{run_module}.run_cell", refuse)
    monkeypatch.setattr(f"{run_module}.ground_truth", refuse)
    monkeypatch.setattr("autojacobin.reproduction.choosing.make_hasher", refuse)
    before = (made[0].folder / "figures" / "fig9.svg").read_bytes()
    again = reproduce(small_set(), made[0].folder, SETTINGS)
    assert again.tables == made[0].tables
    assert (made[0].folder / "figures" / "fig9.svg").read_bytes() == before


def test_an_interrupted_run_goes_on_where_it_was(tmp_path, monkeypatch):
    settings = Settings(bits=(8,), ks=(1,), depth=50, seeds=1, training_points=200, queries=20)
    ran = []

    def interrupted(cell, *rest):
        if len(ran) == 3:
            raise KeyboardInterrupt
        ran.append(cell)
        return run_cell(cell, *rest)

    monkeypatch.setattr(f"{run_module}.run_cell", interrupted)
    with pytest.raises(KeyboardInterrupt):
        reproduce(small_set(), tmp_path, settings, only=["table2"])
    assert not (tmp_path / "report.html").exists()
    first, ran[:] = list(ran), []
    monkeypatch.setattr(f"{run_module}.run_cell", lambda cell, *rest: ran.append(cell) or run_cell(cell, *rest))
    resumed = reproduce(small_set(), tmp_path, settings, only=["table2"])
    assert len(first) == 3
    assert len(ran) == 3
    assert not set(first) & set(ran)
    fresh = reproduce(small_set(), tmp_path / "fresh", settings, only=["table2"])
    assert resumed.tables == fresh.tables


def test_only_what_is_asked_for_is_run(tmp_path, monkeypatch):
    ran = []
    monkeypatch.setattr(f"{run_module}.run_cell", lambda cell, *rest: ran.append(cell) or run_cell(cell, *rest))
    made = reproduce(small_set(), tmp_path, SETTINGS, only=["fig6", "table1"])
    assert [(cell.method, cell.bits, cell.seed) for cell in ran] == [("AutoJacoBin", 8, 0)]
    assert set(made.tables) == {"table1"}
    assert "small (this run)" in made.tables["table1"].to_text()
    with pytest.raises(DataError, match="there is no table or figure 'fig99', expected some of: table2"):
        reproduce(small_set(), tmp_path, SETTINGS, only=["fig99"])


def test_a_set_without_pictures_says_so(tmp_path):
    made = reproduce(small_set(pictures=False), tmp_path, SETTINGS, only=["fig4"])
    assert made.left_out == {"fig4": "the set has no pictures"}
    assert "Not made: the set has no pictures." in made.report.read_text()


def test_the_query_that_is_pictured_is_in_the_middle_over_all_methods():
    assert typical([np.array([0, 5, 9]), np.array([1, 6, 9])]) == 1
    assert typical([np.array([7, 1, 3, 2, 0])]) == 3


def test_a_stretched_patch_runs_from_black_to_white_and_a_flat_one_stays_flat():
    patches = np.stack([np.arange(16).reshape(4, 4) + 100, np.full((4, 4), 7)]).astype(np.uint8)
    shown = stretched(patches)
    assert (shown[0].min(), shown[0].max()) == (0, 255)
    assert np.array_equal(np.argsort(shown[0].ravel()), np.arange(16))
    assert len(np.unique(shown[1])) == 1


def test_the_grids_of_the_variants_are_those_of_the_paper():
    full = Settings(full_grids=True)
    assert [len(grid(method, full)) for method in ("AutoBin1", "AutoBin2", "DAutoBin", "CAutoBin")] == [4, 4, 16, 16]
    assert {"alpha": 0.1, "corruption": 0.05} in grid("DAutoBin", full)
    assert grid("CAutoBin", SETTINGS) == [{"alpha": alpha} for alpha in (0.01, 0.1, 1.0, 10.0)]
