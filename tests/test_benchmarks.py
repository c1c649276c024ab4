"""The benchmarks that make data or compare with others, run on little data."""

import ast
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from autojacobin.datasets import load_set, write_vectors
from autojacobin.evaluation import ground_truth

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


def run(program, *arguments):
    command = [sys.executable, str(BENCHMARKS / program), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, encoding="utf-8", check=False, timeout=1200)


@pytest.fixture(scope="module")
def photographs(tmp_path_factory):
    """Pictures of blurred noise, a corner of which has no contrast."""
    cv2 = pytest.importorskip("cv2")
    folder = tmp_path_factory.mktemp("photographs")
    rng = np.random.default_rng(0)
    for number in range(24):
        noise = cv2.GaussianBlur(rng.normal(size=(200, 260)), (0, 0), 3)
        picture = np.clip(128 + 60 * noise / noise.std(), 0, 255).astype(np.uint8)
        picture[:60, :60] = 128
        assert cv2.imwrite(str(folder / f"{number}.png"), picture)
    return folder


def test_dense_sift_makes_a_set_of_different_descriptors(photographs, tmp_path):
    done = run("dense_sift.py", photographs, tmp_path / "dense", "--base", 2_000, "--learn", 300, "--queries", 20)
    assert done.returncode == 0, done.stderr
    made = load_set("dense", tmp_path)
    parts = [np.asarray(part) for part in (made.train, made.base, made.queries)]
    assert [part.shape for part in parts] == [(300, 128), (2_000, 128), (20, 128)]
    assert {part.dtype for part in parts} == {np.dtype(np.uint8)}
    assert len(np.unique(parts[1], axis=0)) == 2_000
    np.testing.assert_array_equal(made.truth, ground_truth(parts[1], parts[2], 100))


def test_dense_sift_asks_for_photographs_when_they_do_not_suffice(photographs, tmp_path):
    done = run("dense_sift.py", photographs, tmp_path / "dense", "--base", 10_000_000)
    assert done.returncode == 1
    assert "expected 100,000; add photographs, or pass a --step smaller than 8" in done.stderr
    assert not (tmp_path / "dense").exists()


def test_dense_sift_leaves_a_folder_that_exists_alone(photographs, tmp_path):
    done = run("dense_sift.py", photographs, tmp_path)
    assert done.returncode == 1
    assert "exists already; name a folder that is not there yet" in done.stderr
    assert not list(tmp_path.iterdir())


def write_little_set(folder):
    """3,000 vectors of bytes and 50 queries, as the set "little"."""
    rng = np.random.default_rng(0)
    base, queries = (rng.integers(0, 256, (size, 16), dtype=np.uint8) for size in (3_000, 50))
    (folder / "little").mkdir()
    for name, part in {"base": base, "query": queries, "groundtruth": ground_truth(base, queries, 10)}.items():
        write_vectors(folder / "little" / f"{name}.npy", part)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is read from /proc")
@pytest.mark.rare
@pytest.mark.parametrize("place", [[], ["--disk"]])
def test_the_frontier_runs_without_peers(tmp_path, place):
    write_little_set(tmp_path)
    out = tmp_path / "out.json"
    options = ["--data", tmp_path, "--set", "little", "--lists", 16, "--bits", 32, "--rounds", 1, "--only", "ours"]
    done = run("frontier.py", *options, "--single", "--json", out, *place)
    assert done.returncode == 0, done.stderr
    results = json.loads(out.read_text())["results"]
    assert [result["name"] for result in results] == ["ours, 32 bits", "ours, 32 bits, two lists"]
    for result in results:
        assert result["name"] in done.stdout
        given = {asked: recall for recall, _, asked in result["points"] if isinstance(asked, float)}
        assert given[0.7] < given[0.99]
        assert given[0.99] > 0.98
        median, p99 = result["single_us"]
        assert 0 < median <= p99


@pytest.mark.rare
def test_one_query_is_timed_with_and_without_a_condition(tmp_path):
    write_little_set(tmp_path)
    out = tmp_path / "out.json"
    options = ["--data", tmp_path, "--set", "little", "--queries", 5, "--rounds", 1, "--json", out]
    done = run("one_query.py", *options, "--only", "ours, lists, .95", "ours, 6 %")
    assert done.returncode == 0, done.stderr
    results = json.loads(out.read_text())["results"]
    assert [result["name"] for result in results] == ["ours, lists, .95", "ours, 6 % by a condition, .95"]
    assert all(result["recall"] > 0.9 and 0 < result["median_us"] <= result["p99_us"] for result in results)


def test_table_2_tests_differences_by_query_and_seed(monkeypatch):
    stats = pytest.importorskip("scipy.stats")
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import table2

    rng = np.random.default_rng(0)
    of_queries = rng.normal(0.1, 1, size=(200, 1))
    assert table2.p_value(of_queries) == pytest.approx(stats.ttest_1samp(of_queries[:, 0], 0).pvalue)
    assert table2.p_value(np.repeat(of_queries, 5, axis=1)) == pytest.approx(table2.p_value(of_queries))
    of_seeds = np.tile(rng.normal(0.1, 1, size=(1, 6)), (300, 1))
    assert table2.p_value(of_seeds) == pytest.approx(stats.ttest_1samp(of_seeds[0], 0).pvalue)
    # where nothing differs, 5 % are rejected, whatever the shares of queries and seeds in the noise
    drawn = (rng.normal(size=(50, 1)) + 0.3 * rng.normal(size=(1, 5)) + rng.normal(size=(50, 5)) for _ in range(2000))
    assert np.mean([table2.p_value(one) < 0.05 for one in drawn]) == pytest.approx(0.05, abs=0.02)
    assert table2.p_value(np.zeros((10, 2))) == 1
    assert table2.rejected([0.03, 0.001, 0.6, 0.013]) == [False, True, False, True]
    assert table2.rejected([0.2, 0.013, 0.6, 0.013]) == [False] * 4


@pytest.mark.rare
def test_table_2_goes_on_where_it_stopped(tmp_path):
    write_little_set(tmp_path)
    cells, out = tmp_path / "cells", tmp_path / "out.json"
    options = ["--data", tmp_path, "--cells", cells, "--sets", "little", "--bits", 16, "--seeds", 2, "--json", out]
    done = run("table2.py", *options, "--methods", "ITQ", "start", "--jobs", 2)
    assert done.returncode == 0, done.stderr
    assert "4 of 4 cells are missing" in done.stdout
    assert json.loads(out.read_text())["results"] == {}  # no row is complete
    done = run("table2.py", *options)
    assert done.returncode == 0, done.stderr
    assert "16 of 20 cells are missing" in done.stdout
    found = json.loads(out.read_text())["results"]["little"]
    assert [(row["k"], row["bits"], row["seeds"]) for row in found["rows"]] == [(k, 16, 2) for k in (1, 5, 10, 50, 100)]
    for row in found["rows"]:
        assert row["mean"][row["best"]] == max(mean for method, mean in row["mean"].items() if "w = 0" not in method)
        assert row["best"] in row["not_behind"]
    assert sum(best for best, _ in found["counts"].values()) == 5
    assert sum(best for best, _ in found["counts_of_paper"].values()) == 5


def test_the_tables_of_the_documentation_are_those_of_the_results():
    done = run("tables.py", "--check")
    assert done.returncode == 0, done.stderr


def test_a_table_that_differs_from_its_results_is_found(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import tables

    page = tmp_path / "docs" / "page.md"
    page.parent.mkdir()
    page.write_text("before\n<!-- table gpu -->\n| old |\n<!-- end -->\nafter\n", encoding="utf-8")
    monkeypatch.setattr(tables, "DOCS", page.parent)
    monkeypatch.setattr(sys, "argv", ["tables.py", "--check"])
    with pytest.raises(SystemExit, match="tables differ from their results in docs/page.md"):
        tables.main()
    monkeypatch.setattr(sys, "argv", ["tables.py"])
    tables.main()
    written = page.read_text(encoding="utf-8")
    assert written.startswith("before\n<!-- table gpu -->\n| 1,000 queries")
    assert written.endswith("|\n<!-- end -->\nafter\n")
    assert "| `index.search` of one query | 0.13 |" in written


def test_the_pictures_are_drawn_from_the_results(tmp_path):
    pytest.importorskip("matplotlib")
    done = run("pictures.py", tmp_path)
    assert done.returncode == 0, done.stderr
    for name, title in (("frontier", "SymphonyQG, a graph"), ("tradeoff", "PQ fast-scan")):
        assert f"<!-- {title} -->" in (tmp_path / f"{name}.svg").read_text(encoding="utf-8")


def names_from_the_library():
    """Each (program, module, name) that a program imports from the library, also those that no other test runs."""
    for path in sorted(BENCHMARKS.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module.startswith("autojacobin"):
                yield from ((path.name, node.module, alias.name) for alias in node.names)


def test_the_programs_import_what_the_library_has():
    missing = [
        (program, module, name)
        for program, module, name in names_from_the_library()
        if not hasattr(importlib.import_module(module), name) and not importlib.util.find_spec(f"{module}.{name}")
    ]
    assert not missing
