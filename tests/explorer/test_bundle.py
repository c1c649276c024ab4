"""What the explorer page is made of, against searches by hand."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autojacobin import ITQ, Index
from autojacobin.datasets import load_set
from autojacobin.errors import DataError, FormatError, StorageError
from autojacobin.evaluation import ground_truth, recall_curve
from autojacobin.explorer import build_bundle, explorer_settings, export_page, open_run, page
from autojacobin.explorer import bundle as bundle_module
from autojacobin.explorer.retrieved import make_sprite
from autojacobin.paper.reproduction import Settings, reproduce
from autojacobin.paper.reproduction.trials import Trial, cut, make_hasher, run_trial
from autojacobin.search import asymmetric_topk
from autojacobin.search import distances as distances_module
from autojacobin.search.distances import DISTANCES
from tests.explorer.browser import BITS, DEPTH, METHODS, WALL, ByHand, K, small_bundle, unpacked
from tests.paper.reproduction.small import small_set


@pytest.fixture(scope="module")
def bundle():
    return small_bundle()


@pytest.fixture(scope="module")
def by_hand():
    return ByHand()


def shown(record, method, bits, distance, candidates, k):
    """As the page does it."""
    ranks = record["methods"][method][str(bits)]["ranks"][distance]
    return [id for id, rank in zip(record["ids"], ranks, strict=True) if 0 < rank <= candidates][:k]


def test_the_first_points_of_a_query_are_its_true_neighbours(bundle, by_hand):
    for place, record in enumerate(bundle.queries):
        assert record["row"] == by_hand.rows[place]
        assert record["ids"][:K] == by_hand.truth(place, K).tolist()
        distances = by_hand.euclidean(place)[record["ids"]]
        np.testing.assert_allclose(record["distances"], distances, rtol=1e-4)
        assert np.all(np.diff(distances) >= 0)


@given(data=st.data())
def test_every_setting_shows_what_a_search_by_hand_finds(bundle, by_hand, data):
    place = data.draw(st.integers(0, WALL - 1))
    method, bits = data.draw(st.sampled_from(METHODS)), data.draw(st.sampled_from(BITS))
    candidates, k = data.draw(st.sampled_from(bundle.about["stops"])), data.draw(st.integers(1, K))
    found = shown(bundle.queries[place], method, bits, "hamming", candidates, k)
    assert found == by_hand.shown(place, method, bits, candidates, k).tolist()


def test_asymmetric_answers_are_those_of_an_index(bundle, by_hand):
    data = small_set()
    for (method, bits), hasher in by_hand.hashers.items():
        index = Index(hasher)
        index.add(data.base)
        for candidates in (20, 50, DEPTH):
            _, ids = index.search(data.queries[by_hand.rows], K, candidates=candidates, distance="asymmetric")
            for place, record in enumerate(bundle.queries):
                assert shown(record, method, bits, "asymmetric", candidates, K) == ids[place].tolist()


def test_codes_and_weights_are_those_of_the_hasher(bundle, by_hand):
    for place, record in enumerate(bundle.queries):
        query = small_set().queries[[by_hand.rows[place]]]
        for (method, bits), hasher in by_hand.hashers.items():
            entry = record["methods"][method][str(bits)]
            assert np.array_equal(unpacked(entry["query"], bits), hasher.transform(query))
            assert np.array_equal(unpacked(entry["codes"], bits), by_hand.codes[method, bits][record["ids"]])
            np.testing.assert_allclose(entry["weights"], np.abs(hasher.project(query)[0]), rtol=1e-4)


def test_the_page_gets_every_distance_its_summary_and_how_far_each_code_is(bundle, by_hand):
    common = [name for name in DISTANCES if all(name in h.distances for h in by_hand.hashers.values())]
    assert bundle.about["distances"] == {name: DISTANCES[name].summary for name in common}
    data = small_set()
    for place, record in enumerate(bundle.queries):
        query = data.queries[[by_hand.rows[place]]]
        for (method, bits), hasher in by_hand.hashers.items():
            given = record["methods"][method][str(bits)]["distances"]
            assert list(given) == list(hasher.distances)
            assert given["hamming"] == by_hand.hamming(place, method, bits)[record["ids"]].tolist()
            distances, ids = asymmetric_topk(hasher.project(query), hasher.encode(data.base), len(data.base))
            expected = distances[0][np.argsort(ids[0])][record["ids"]]
            np.testing.assert_allclose(given["asymmetric"], expected, rtol=1e-4, atol=1e-6)


def test_the_page_names_no_distance_by_itself():
    scripts = {path.name: path.read_text() for path in page.ASSETS.glob("*.js")}
    assert [(script, name) for script, text in scripts.items() for name in DISTANCES if name in text.lower()] == []


def test_distances_that_a_method_lacks_are_not_offered(monkeypatch):
    other = replace(DISTANCES["hamming"], name="other")
    for module in (bundle_module, distances_module):
        monkeypatch.setattr(module, "DISTANCES", {**DISTANCES, "other": other})
    monkeypatch.setattr(ITQ, "distances", (*ITQ.distances, "other"))
    made = small_bundle(pictures=False)
    assert "other" not in made.about["distances"]
    assert "other" in made.queries[0]["methods"]["ITQ"]["8"]["ranks"]


def test_counts_over_all_queries_are_the_recall_curve(bundle, by_hand):
    data, stops = small_set(), bundle.about["stops"]
    truth = ground_truth(data.base, data.queries, K)
    for (method, bits), hasher in by_hand.hashers.items():
        codes = hasher.transform(data.queries)
        distances = (codes[:, None, :] != by_hand.codes[method, bits][None]).sum(axis=2)
        ids = np.argsort(distances, axis=1, kind="stable")[:, :DEPTH]
        found = np.array(bundle.about["found"][method][str(bits)]["hamming"])
        for k in (1, 5, K):
            curve = recall_curve(ids, truth, k, DEPTH)
            expected = curve[np.array(stops) - 1]
            np.testing.assert_allclose(found[:k].sum(axis=0) / (len(data.queries) * k), expected)


def test_all_of_it_is_json_and_deep_settings_stay_whole(bundle):
    json.dumps(bundle.about, allow_nan=False)
    json.dumps(bundle.queries, allow_nan=False)
    assert bundle.about["stops"][-1] == DEPTH
    assert bundle.about["wall"] == [record["row"] for record in bundle.queries]


@pytest.mark.parametrize(("side", "kept", "ending"), [(7, 7, "png"), (32, 32, "jpg"), (150, 64, "jpg")])
def test_each_tile_is_where_the_layout_says(side, kept, ending):
    cv2 = pytest.importorskip("cv2")
    ramp = np.linspace(0, 255, side).astype(np.uint8)
    across, down = np.tile(ramp, (side, 1)), np.tile(ramp[:, None], (1, side))
    patches = np.stack([across if number % 3 else down for number in range(40)])
    sprite = make_sprite(patches)
    columns, rows, width, height = (sprite.layout[name] for name in ("columns", "rows", "width", "height"))
    assert (sprite.ending, width, height) == (ending, kept, kept)
    whole = cv2.imdecode(np.frombuffer(sprite.content, np.uint8), cv2.IMREAD_GRAYSCALE).astype(float)
    assert whole.shape == (rows * kept, columns * kept)
    for number in range(40):
        y, x = number // columns * kept, number % columns * kept
        tile = whole[y : y + kept, x : x + kept]
        along, other = (np.ptp(tile.mean(axis=axis)) for axis in ((0, 1) if number % 3 else (1, 0)))
        assert along > 200 > 20 > other


@pytest.mark.parametrize("side", [6, 16])
def test_colours_stay_what_they_are(side):
    cv2 = pytest.importorskip("cv2")
    colours = np.array([[255, 0, 0], [0, 255, 0], [0, 0, 255]], dtype=np.uint8)
    sprite = make_sprite(np.tile(colours[:, None, None, :], (1, side, side, 1)))
    whole = cv2.imdecode(np.frombuffer(sprite.content, np.uint8), cv2.IMREAD_COLOR)[..., ::-1].astype(int)
    for number, colour in enumerate(colours):
        middle = whole[side // 2, number * side + side // 2]
        assert np.abs(middle - colour).max() < 20


def test_a_set_without_pictures_has_none():
    bundle = small_bundle(pictures=False)
    assert bundle.wall is None
    assert bundle.pictures == []
    assert bundle.about["sprite"] is None
    assert len(bundle.queries) == WALL


def test_a_finished_run_is_shown_with_its_own_settings(tmp_path):
    settings = Settings(bits=(16,), ks=(1, 10), depth=100, seeds=2, training_points=300, queries=60)
    reproduce(load_set("digits"), tmp_path, settings, only=["table1"])
    data, found = open_run(tmp_path)
    assert (data.name, found.bits, found.ks, found.depth) == ("digits", (16,), (1, 10), 100)
    bundle = build_bundle(data, found, methods=["itq"], wall=3, toy=False)
    small = cut(data, found)
    outcome = run_trial(Trial("ITQ", 16, 0), small, ground_truth(small.base, small.queries, 10), 100)
    counts = np.array(bundle.about["found"]["ITQ"]["16"]["hamming"]).sum(axis=0)
    np.testing.assert_allclose(counts / (60 * 10), outcome.recall_curve(10)[np.array(bundle.about["stops"]) - 1])


def test_a_folder_without_a_run_or_with_a_damaged_one_is_reported(tmp_path):
    with pytest.raises(StorageError, match="holds no finished run: results.json cannot be read"):
        open_run(tmp_path)
    for content in ("{", "[]", '{"set": {}}', '{"set": {"name": "digits", "source": ""}, "settings": {"bits": [0]}}'):
        (tmp_path / "results.json").write_text(content)
        with pytest.raises(FormatError, match="is damaged or was not written by autojacobin reproduce"):
            open_run(tmp_path)


@pytest.mark.parametrize(
    ("settings", "options", "message"),
    [
        ({}, {"methods": ["ITQQ"]}, "there is no method 'ITQQ', expected one of: LSH, "),
        ({}, {"methods": []}, "there are no methods to compare, expected at least one"),
        ({}, {"methods": ["LSH"], "wall": 0}, "wall must be an integer of at least 1, got 0"),
        ({"bits": (65,)}, {"methods": ["LSH"]}, "bits must be an integer from 1 to 64"),
        ({"ks": (2000,)}, {"methods": ["LSH"]}, "every k must be an integer from 1 to 1000"),
        ({"depth": 2000}, {"methods": ["LSH"]}, "depth must be an integer from 1 to 1000"),
    ],
)
def test_wrong_use_is_reported_before_any_work(settings, options, message):
    data = small_set()
    with pytest.raises(DataError, match=message):
        build_bundle(data, replace(explorer_settings(data), **settings), toy=False, **options)


def test_a_set_without_queries_is_reported():
    data = replace(small_set(), queries=small_set().queries[:0], query_patches=None)
    with pytest.raises(DataError, match="there are no queries of small to choose from"):
        build_bundle(data, methods=["LSH"], toy=False)


def test_an_earlier_page_is_replaced_and_nothing_else_is(bundle, tmp_path):
    page = export_page(bundle, tmp_path / "new" / "page")
    (page.parent / "data" / "query-99.js").write_text("old")
    assert export_page(bundle, page.parent) == page
    assert not (page.parent / "data" / "query-99.js").exists()
    (tmp_path / "index.html").write_text("<p>a page of somebody else</p>")
    with pytest.raises(StorageError, match="holds other files, such as index.html"):
        export_page(bundle, tmp_path)
    assert (tmp_path / "index.html").read_text() == "<p>a page of somebody else</p>"
    with pytest.raises(StorageError, match="cannot write the page to .*index.html"):
        export_page(bundle, tmp_path / "index.html")


def test_a_binary_auto_encoder_alone_is_shown_by_its_own_distance():
    data = small_set()
    settings = replace(explorer_settings(data, bits=(8,), k=K, training_points=300), depth=DEPTH)
    made = build_bundle(data, settings, methods=["binaryautoencoder"], wall=WALL, toy=False)
    assert list(made.about["distances"]) == ["decoded", "asymmetric", "hamming"]
    given = made.queries[0]["methods"]["BinaryAutoencoder"]["8"]["distances"]
    hasher = make_hasher("BinaryAutoencoder", 8, 0, {}).fit(
        data.train[np.sort(np.random.default_rng(0).choice(len(data.train), 300, replace=False))]
    )
    terms = hasher.distance_terms(data.queries[:1])
    expected = terms.constants[0] - hasher.encode(data.base).to_signs() @ terms.weights[0]
    near = expected[made.queries[0]["ids"]]
    assert np.abs(np.array(given["decoded"]) - near).max() < 0.1 * np.ptp(expected)
