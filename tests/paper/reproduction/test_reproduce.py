"""The whole run on a small set: everything is made, nothing is done twice, and an interruption costs nothing."""

import html
import html.parser
import json
import shutil
import sys
from dataclasses import replace

import numpy as np
import pytest

from autojacobin import DataError, MissingExtraError
from autojacobin.paper.reproduction import ARTEFACTS, Settings, Table, reproduce
from autojacobin.paper.reproduction.measured import stretched, typical
from autojacobin.paper.reproduction.report import DEFINITIONS
from autojacobin.paper.reproduction.run import grid
from autojacobin.paper.reproduction.trials import cost_trial, cut, make_hasher, run_trial
from tests.paper.reproduction.small import SETTINGS, small_set

run_module = "autojacobin.paper.reproduction.run"


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


def record_of(made):
    return json.loads((made[0].folder / "results.json").read_text(encoding="utf-8"))


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
    page = made[0].report.read_text()
    for name, artefact in ARTEFACTS.items():
        assert html.escape(artefact.claim) in page
        assert name in made[0].left_out or html.escape(artefact.caption) in page


def test_the_report_begins_with_the_verdict_and_the_definitions(made):
    page = made[0].report.read_text()
    tables = {table.name: [list(table.header), *map(list, table.rows)] for table in made[0].verdict}
    assert record_of(made)["verdict"] == tables
    assert list(tables) == ["standing-table2", "standing-quality", "standing-distances"]
    for name, table in zip(("table2", "quality", "distances"), made[0].verdict, strict=True):
        compared = made[0].tables[name]
        for column, (_, *counts) in enumerate(table.rows, 1):
            ahead, level, behind = map(int, counts)
            assert ahead + level + behind == len(compared.rows)
            marked = compared.bold | compared.level
            assert ahead + level == sum((row, column) in marked for row in range(len(compared.rows)))
            alone = [r for r, c in compared.bold if c == column and r not in {row for row, _ in compared.level}]
            assert ahead == len(alone)
    texts = (*(table.title for table in made[0].verdict), *DEFINITIONS.values())
    places = [page.index(html.escape(text)) for text in texts]
    places += [page.index(f'<section id="{name}">') for name in ARTEFACTS]
    assert places == sorted(places)


def test_a_table_of_ones_own_joins_the_report(tmp_path):
    first = reproduce(small_set(), tmp_path, SETTINGS, only=["table1"])
    table = Table("searches", "Searches & times", ("search", "recall"), (("codes alone", "0.5"),))
    made = first.add_table(table)
    assert set(made.tables) == {"table1", "searches"}
    assert (tmp_path / "tables" / "searches.csv").read_text() == table.to_csv()
    page = made.report.read_text()
    assert page.index('<section id="table1">') < page.index('<section id="searches"><h2>Searches &amp; times</h2>')


def test_figure_10_is_another_name_of_figure_9(tmp_path):
    settings = Settings(bits=(8,), ks=(1,), depth=100, seeds=1, training_points=100, queries=5)
    made = reproduce(small_set(), tmp_path, settings, only="fig10")
    assert made.verdict == []
    assert (tmp_path / "figures" / "fig9.svg").exists()


def test_the_record_says_what_was_found_and_which_files_are_of_this_run(made):
    reproduction, _ = made
    record = record_of(made)
    listed = {name for names in record["files"].values() for name in names}
    assert listed == {
        path.relative_to(reproduction.folder).as_posix()
        for folder in ("tables", "figures")
        for path in (reproduction.folder / folder).iterdir()
    }
    assert record["files"]["recall1000"] == []


def test_the_record_agrees_with_the_table(made):
    reproduction, _ = made
    record = record_of(made)
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
            assert text == f"{np.mean(values):.3f} ± {np.std(values, ddof=1):.3f}"
    best = [max(range(1, 7), key=lambda c, row=row: float(row[c][:5])) for row in table.rows]
    for number, column in table.bold:
        assert table.rows[number][column][:5] == table.rows[number][best[number]][:5]
    assert len(table.bold) == len(table.rows)
    assert record["settings"]["depth"] == SETTINGS.depth


def test_the_table_of_distances_agrees_with_the_record(made):
    trials, table = record_of(made)["trials"], made[0].tables["distances"]
    assert table.header == (
        "(k, bits)", "Binary auto-encoder, decoded", "Auto-JacoBin (chosen), asymmetric", "ITQ, asymmetric",
        "Auto-JacoBin (chosen), Hamming", "ITQ, Hamming",
    )  # fmt: skip
    columns = (
        ("BinaryAutoencoder", "m_recall"),
        ("AutoJacoBin (chosen)", "m_recall_asymmetric"),
        ("ITQ", "m_recall_asymmetric"),
        ("AutoJacoBin (chosen)", "m_recall"),
        ("ITQ", "m_recall"),
    )
    for row in table.rows:
        k, bits = row[0].strip("()").split(", ")
        for (method, kind), text in zip(columns, row[1:], strict=True):
            values = [one[kind][k] for one in trials if (one["method"], one["bits"]) == (method, int(bits))]
            assert len(values) == SETTINGS.seeds
            assert text == f"{np.mean(values):.3f} ± {np.std(values, ddof=1):.3f}"


def test_progress_goes_from_nothing_to_all(made):
    done = [step[1] for step in made[1]]
    assert done == sorted(done)
    assert done[0] == 0
    assert made[1][-1][1] == made[1][-1][2]


def test_progress_reaches_its_end_with_any_length_of_codes(tmp_path):
    settings = Settings(
        bits=(64,), ks=(1,), depth=20, seeds=1, training_points=200, queries=5, alphas=(0.1,), full_grids=False
    )
    told = []
    reproduce(small_set(), tmp_path, settings, only=["variants"], progress=lambda *what: told.append(what))
    assert told[-1] == ("tables and figures", told[0][2], told[0][2])
    stages = [stage for stage, *_ in told]
    assert stages.index("AutoBin1: search of its parameters on the training set") == 2  # said when it begins


def test_finished_trials_are_not_run_again(made, monkeypatch, tmp_path):
    def refuse(*_):
        raise AssertionError("a trial was run again")

    monkeypatch.setattr(f"{run_module}.run_trial", refuse)
    monkeypatch.setattr(f"{run_module}.ground_truth", refuse)
    shutil.copytree(made[0].folder / "work", tmp_path / "work")
    again = reproduce(small_set(), tmp_path, SETTINGS, only=[*made[0].tables, "fig5", "fig9"])
    assert again.tables == made[0].tables
    for name in ("fig5.png", "fig9.svg"):
        assert (tmp_path / "figures" / name).read_bytes() == (made[0].folder / "figures" / name).read_bytes()


def test_an_interrupted_run_continues_where_it_stopped(tmp_path, monkeypatch):
    settings = Settings(bits=(8,), ks=(1,), depth=50, seeds=1, training_points=200, queries=20)
    ran = []

    def interrupted(trial, *rest):
        if len(ran) == 3:
            raise KeyboardInterrupt
        ran.append(trial)
        return run_trial(trial, *rest)

    monkeypatch.setattr(f"{run_module}.run_trial", interrupted)
    with pytest.raises(KeyboardInterrupt):
        reproduce(small_set(), tmp_path, settings, only=["table2"])
    assert not (tmp_path / "report.html").exists()
    first, ran[:] = list(ran), []
    monkeypatch.setattr(f"{run_module}.run_trial", lambda trial, *rest: ran.append(trial) or run_trial(trial, *rest))
    resumed = reproduce(small_set(), tmp_path, settings, only=["table2"])
    assert len(first) == 3
    assert len(ran) == 3
    assert not set(first) & set(ran)
    fresh = reproduce(small_set(), tmp_path / "fresh", settings, only=["table2"])
    assert resumed.tables == fresh.tables


def test_other_k_and_methods_find_what_is_kept(tmp_path, monkeypatch):
    settings = Settings(bits=(8,), ks=(1, 10), depth=100, seeds=1, training_points=200, queries=20)
    whole = reproduce(small_set(), tmp_path, settings, only=["table2"])

    def refuse(*_):
        raise AssertionError("a trial was run again")

    monkeypatch.setattr(f"{run_module}.run_trial", refuse)
    for ks in ((10,), (100,)):
        some = replace(settings, ks=ks, methods=("OKMeans", "LSH"))
        table = reproduce(small_set(), tmp_path, some, only=["table2"]).tables["table2"]
        assert table.header == ("(k, bits)", "OKMeans", "LSH")
        assert [row[0] for row in table.rows] == [f"({ks[0]}, 8)"]
        if ks == (10,):
            columns = [whole.tables["table2"].header.index(name) for name in ("OKMeans", "LSH")]
            assert table.rows[0][1:] == tuple(whole.tables["table2"].rows[1][column] for column in columns)


def test_what_needs_other_methods_than_the_given_ones_is_left_out(tmp_path):
    settings = Settings(
        bits=(8,), ks=(1,), depth=100, seeds=1, training_points=200, queries=20, methods=("LSH", "OKMeans")
    )
    only = ["table2", "quality", "fig6", "fig7", "fig8", "variants", "distances"]
    made = reproduce(small_set(), tmp_path, settings, only=only)
    assert {trial["method"] for trial in record_of((made,))["trials"]} == {"LSH", "OKMeans"}
    assert made.left_out == {
        "fig6": "it needs Auto-JacoBin too",
        "fig7": "it needs Auto-JacoBin, NOKMeans too",
        "fig8": "it needs Auto-JacoBin, AutoBin1, AutoBin2, DAutoBin, CAutoBin too",
        "variants": "it needs Auto-JacoBin, AutoBin1, AutoBin2, DAutoBin, CAutoBin too",
        "distances": "it needs ITQ, Auto-JacoBin (chosen), Binary auto-encoder too",
    }
    assert [table.name for table in made.verdict] == ["standing-table2", "standing-quality"]
    assert made.tables["quality"].header[1:] == ("LSH", "OKMeans")
    with pytest.raises(DataError, match="there is no method 'nothing'"):
        Settings(methods=("nothing",))


def test_figure_6_takes_as_many_steps_as_the_paper(made, tmp_path):
    """The set has one batch an epoch, so that five epochs would show five steps."""
    trials = [trial for trial in record_of(made)["trials"] if "n_epochs" in trial["parameters"]]
    assert [(trial["method"], trial["bits"], trial["parameters"]) for trial in trials] == [
        ("AutoJacoBin", 8, {"n_epochs": 50})
    ]
    for points, parameters in ((10_000, ()), (2_000, (("n_epochs", 25),)), (100_000, ())):
        trial = cost_trial(replace(SETTINGS, training_points=points))
        assert (trial.bits, trial.seed, trial.parameters) == (8, 0, parameters)


def test_models_that_are_asked_for_are_kept_and_not_trained_again(tmp_path, monkeypatch):
    settings = Settings(bits=(8, 16), ks=(1,), depth=50, seeds=2, training_points=200, queries=20)
    ran = []
    monkeypatch.setattr(f"{run_module}.run_trial", lambda trial, *rest: ran.append(trial) or run_trial(trial, *rest))

    def models():
        made = reproduce(data, tmp_path, settings, only=["table2"], models=["ITQ", "LSH"])
        return {method: hasher.encode(data.base) for method, hasher in made.models.items()}

    data = small_set()
    assert reproduce(data, tmp_path, settings, only=["table2"]).models == {}
    ran.clear()
    expected = {
        method: make_hasher(method, 16, 0, {}).fit(cut(data, settings).train, training_points=None).encode(data.base)
        for method in ("LSH", "ITQ")
    }
    assert models() == expected
    assert [(trial.method, trial.bits, trial.seed) for trial in ran] == [("LSH", 16, 0), ("ITQ", 16, 0)]
    ran.clear()
    assert models() == expected
    assert ran == []
    [damaged] = tmp_path.glob("work/ITQ-16-0-*.safetensors")
    damaged.write_bytes(damaged.read_bytes()[:-1])
    assert models() == expected
    assert [trial.method for trial in ran] == ["ITQ"]


def test_only_the_needed_trials_are_run(tmp_path, monkeypatch):
    ran = []
    monkeypatch.setattr(f"{run_module}.run_trial", lambda trial, *rest: ran.append(trial) or run_trial(trial, *rest))
    made = reproduce(small_set(), tmp_path, SETTINGS, only=["fig6", "table1"])
    assert [(trial.method, trial.bits, trial.seed) for trial in ran] == [("AutoJacoBin", 8, 0)]
    assert set(made.tables) == {"table1"}
    assert set(reproduce(small_set(), tmp_path, SETTINGS, only="table1, fig1").tables) == {"table1"}
    made = reproduce(small_set(), tmp_path, SETTINGS, only="table1")
    assert "small (this run)" in made.tables["table1"].to_text()
    with pytest.raises(DataError, match="there is no table or figure 'fig99', expected some of: fig1, fig2"):
        reproduce(small_set(), tmp_path, SETTINGS, only=["fig99"])


def test_a_larger_k_is_measured_anew(tmp_path):
    data, tables = small_set(), []
    for ks in ((1,), (1, 200)):
        settings = Settings(bits=(8,), ks=ks, depth=300, seeds=1, training_points=200, queries=10)
        tables.append(reproduce(data, tmp_path, settings, only=["table2"]).tables["table2"])
        fresh = reproduce(data, tmp_path / f"fresh-{len(ks)}", settings, only=["table2"]).tables["table2"]
        assert tables[-1] == fresh
    assert tables[1].rows[0] == tables[0].rows[0]


def test_a_k_beyond_the_base_is_refused_rather_than_cut(tmp_path):
    settings = Settings(bits=(8,), ks=(1001,), depth=10)
    with pytest.raises(DataError, match="every k must be an integer from 1 to 1000, the size of the base, got 1001"):
        reproduce(small_set(), tmp_path / "never", settings)
    with pytest.raises(DataError, match="depth must be an integer from 1 to 5, the size of the base, got 10"):
        reproduce(small_set(), tmp_path / "never", replace(settings, ks=(1,), base=5))
    assert not (tmp_path / "never").exists()


def test_a_folder_of_another_set_is_left_alone(tmp_path):
    made = reproduce(small_set(), tmp_path, SETTINGS, only=["table1"])
    before = made.report.read_bytes()
    with pytest.raises(DataError, match="holds the results of the set 'small', and those of 'other' cannot go beside"):
        reproduce(replace(small_set(), name="other"), tmp_path, SETTINGS, only=["table1"])
    assert made.report.read_bytes() == before


@pytest.mark.parametrize("kind", [np.float64, pytest.param(np.float16, marks=pytest.mark.rare)])
def test_one_query_and_few_points_of_any_kind_of_number(tmp_path, kind):
    whole = small_set()
    data = replace(
        whole,
        train=whole.train[:60].astype(kind),
        base=whole.base[:50].astype(kind),
        queries=whole.queries[:1].astype(kind),
        base_patches=whole.base_patches[:50],
        query_patches=whole.query_patches[:1],
    )
    settings = Settings.for_set(data, quick=True, bits=(8,))
    assert (settings.ks, settings.depth) == ((1, 5, 10, 50), 50)
    made = reproduce(data, tmp_path, settings, only=["table2", "fig9", "fig4", "fig5", "recall1000", "depth90"])
    assert made.left_out == {
        "fig5": "fewer than 99 points were retrieved",
        "recall1000": "only 50 points were retrieved",
    }
    assert "1 query." in made.tables["table2"].note
    assert made.verdict[0].rows[-1] == ("Auto-JacoBin", "0", "4", "0")


def test_too_few_training_points_for_the_grids_are_reported(tmp_path):
    data = replace(small_set(), train=small_set().train[:19])
    with pytest.raises(DataError, match="at least 20 training points, got 19; pass more, or leave fig8 and variants"):
        reproduce(data, tmp_path, SETTINGS, only=["variants"])


def test_a_missing_matplotlib_is_reported_before_the_work(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'autojacobin\[figures\]'"):
        reproduce(small_set(), tmp_path / "never", SETTINGS)
    assert not (tmp_path / "never").exists()
    assert reproduce(small_set(), tmp_path, SETTINGS, only=["table1"]).report.exists()


def test_what_has_a_caption_is_a_figure(made):
    drawn = {name for name, names in record_of(made)["files"].items() if any(path.endswith(".svg") for path in names)}
    assert drawn == {name for name, artefact in ARTEFACTS.items() if artefact.caption}


def test_a_set_without_pictures_says_so(tmp_path):
    made = reproduce(small_set(pictures=False), tmp_path, SETTINGS, only=["fig4"])
    assert made.left_out == {"fig4": "the set has no pictures"}
    assert "Not made: the set has no pictures." in made.report.read_text()


def test_the_query_that_is_pictured_is_closest_to_the_averages_of_all_methods():
    assert typical([np.array([0, 5, 9]), np.array([1, 6, 9])]) == 1
    assert typical([np.array([7, 1, 3, 2, 0])]) == 2
    # all queries have 8 hits in sum, but in the first two one method leads by chance
    assert typical([np.array([8, 0, 4]), np.array([0, 8, 4])]) == 2


def test_a_stretched_patch_runs_from_black_to_white_and_a_flat_one_stays_flat():
    patches = np.stack([np.arange(16).reshape(4, 4) + 100, np.full((4, 4), 7)]).astype(np.uint8)
    shown = stretched(patches)
    assert (shown[0].min(), shown[0].max()) == (0, 255)
    assert np.array_equal(np.argsort(shown[0].ravel()), np.arange(16))
    assert len(np.unique(shown[1])) == 1
    assert np.array_equal(stretched(patches / np.float32(255))[0], shown[0])


def test_the_grids_of_the_variants_are_those_of_the_paper():
    full = Settings(full_grids=True)
    assert [len(grid(method, full)) for method in ("AutoBin1", "AutoBin2", "DAutoBin", "CAutoBin")] == [4, 4, 16, 16]
    assert {"alpha": 0.1, "corruption": 0.05} in grid("DAutoBin", full)
    assert grid("CAutoBin", SETTINGS) == [{"alpha": alpha} for alpha in (0.01, 0.1, 1.0, 10.0)]
