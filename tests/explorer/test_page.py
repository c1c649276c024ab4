"""The explorer page in a real browser, from disk: chosen, slid, looked at, against searches by hand."""

import shutil
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from autojacobin.datasets import load_set
from autojacobin.datasets.pictures import read_photograph
from autojacobin.evaluation import ground_truth
from autojacobin.explorer import build_bundle, explorer_settings, export_page
from autojacobin.explorer.page import page_app
from autojacobin.paper.reproduction.trials import Settings, cut
from autojacobin.service.access import Limits
from autojacobin.service.server import HttpServer
from tests.explorer.browser import BITS, METHODS, ByHand, K, chromium, small_bundle, watched
from tests.paper.reproduction.small import small_set

TOY = {
    "points": np.random.RandomState(0).dirichlet([1, 1, 1], 50).round(3).tolist(),
    "hidden": np.random.RandomState(1).uniform(-1, 1, (50, 3)).round(3).tolist(),
    "codes": [number % 7 for number in range(50)],
}
COST = {"cost": [9.0, 5.0, 4.0], "reconstruction": [1.0, 2.0, 1.5], "jacobian": [8.0, 3.0, 2.5], "epoch": [0, 0, 0]}


@pytest.fixture(scope="module")
def by_hand():
    return ByHand()


@pytest.fixture(scope="module")
def browser():
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    bundle = small_bundle()
    training = [{"method": "ITQ", "bits": bits, "history": COST} for bits in BITS]
    about = {**bundle.about, "toy": TOY, "training": training}
    about["methods"][-1]["label"] = "Auto-JacoBin (chosen)"  # as long as names get
    return export_page(replace(bundle, about=about), tmp_path_factory.mktemp("page")).parent


@pytest.fixture
def page(browser, folder):
    with watched(browser, folder.as_uri()) as found:
        open_page(found, folder)
        yield found


def open_page(page, folder, fragment=""):
    page.goto(f"{folder.as_uri()}/index.html{fragment}")
    page.wait_for_selector("#methods .panel")


def assert_shown(page, by_hand, place, bits, candidates, k):
    """What every panel shows, borders and counts, is what a search by hand finds."""
    page.wait_for_selector("#results[aria-busy=false]")
    assert page.locator("#truth .tiles .tile").count() == k
    for method in METHODS:
        panel = page.locator(f'[data-method="{method}"]')
        shown = by_hand.shown(place, method, bits, candidates, k)
        hits = by_hand.hits(place, method, bits, candidates, k)
        labels = panel.locator(".tile").evaluate_all("all => all.map((one) => one.getAttribute('aria-label'))")
        assert [int(label.split("point ")[1].split(";")[0]) for label in labels] == shown.tolist()
        assert panel.locator(".tile.true").count() == hits
        assert panel.locator(".hits").inner_text() == f"{hits} of {k}"


def slide(page, id, value, values):
    page.focus(f"#{id}")
    page.keyboard.press("Home")
    for _ in range(list(values).index(value)):
        page.keyboard.press("ArrowRight")


STOPS = (1, 2, 3, 5, 7, 10, 15, 20, 30, 50, 70, 100)


def test_it_begins_with_the_right_borders(page, by_hand):
    assert_shown(page, by_hand, 0, 8, 100, K)
    border = page.locator(".tile.true").first.evaluate("one => getComputedStyle(one).outlineColor")
    assert border == "rgb(230, 159, 0)"


def test_choosing_and_sliding_show_the_right_borders(page, by_hand):
    for place, bits, candidates, k in ((3, 16, 30, 5), (1, 8, 7, 12), (4, 16, 100, 1)):
        page.locator("#wall .tile").nth(place).click()
        slide(page, "bits", bits, BITS)
        slide(page, "candidates", candidates, STOPS)
        slide(page, "k", k, range(1, K + 1))
        assert_shown(page, by_hand, place, bits, candidates, k)
        pressed = page.locator("#wall .tile[aria-pressed=true]")
        assert pressed.get_attribute("aria-label") == f"Query {by_hand.rows[place]}"


def test_sliding_keeps_the_pictures_on_the_page_and_changes_what_they_show(page, by_hand):
    page.evaluate("globalThis.before = [...document.querySelectorAll('#methods .tile')]")
    slide(page, "k", 4, range(1, K + 1))
    slide(page, "k", K, range(1, K + 1))
    slide(page, "candidates", 50, STOPS)
    assert_shown(page, by_hand, 0, 8, 50, K)
    for method in METHODS:
        tiles = page.locator(f'[data-method="{method}"] .tile')
        assert tiles.evaluate_all("all => all.map((one) => globalThis.before.includes(one))")[:1] == [True]
        assert tiles.evaluate_all("all => all.filter((one) => one.tabIndex === 0).length") == 1
    # what a kept button shows is what a new one would
    drawn = "all => all.map((one) => getComputedStyle(one).backgroundPosition + one.title + one.dataset.place)"
    kept = page.locator("#methods .tile").evaluate_all(drawn)
    page.wait_for_url(lambda url: "candidates=50" in url)
    page.reload()
    page.wait_for_selector("#methods .panel")
    assert page.locator("#methods .tile").evaluate_all(drawn) == kept


def test_the_address_keeps_the_view(browser, folder, page, by_hand):
    slide(page, "candidates", 20, STOPS)
    page.check("#distance-asymmetric")
    page.wait_for_url(lambda url: "distance=asymmetric" in url)
    fragment = "#" + page.url.partition("#")[2]
    assert "candidates=20" in fragment
    with watched(browser, folder.as_uri()) as other:
        open_page(other, folder, fragment)
        assert other.is_checked("#distance-asymmetric")
        assert other.locator("#candidates").get_attribute("aria-valuetext").startswith("20 ")
    with watched(browser, folder.as_uri()) as other:
        open_page(other, folder, "#query=99&bits=7&candidates=-1&k=1e9&distance=<b>")
        assert_shown(other, by_hand, 0, 8, 100, K)


def test_the_detail_of_a_point_shows_distance_rank_and_code(page, by_hand):
    tile = page.locator('[data-method="ITQ"] .tile').nth(4)
    tile.hover()
    point = by_hand.shown(0, "ITQ", 8, 100, K)[4]
    assert f"point {point}" in page.locator("#detail .pair").inner_text()
    assert f"Euclidean distance {by_hand.euclidean(0)[point]:.4g}" in page.locator("#detail .verdict").inner_text()
    for row, method in enumerate(METHODS):
        cells = page.locator("#detail .ranks tbody tr").nth(row).locator("td").all_inner_texts()
        rank = by_hand.order(0, method, 8).tolist().index(point) + 1
        assert cells[0] == str(by_hand.hamming(0, method, 8)[point])
        assert cells[1] == (str(rank) if rank <= 100 else "> 100")
    assert page.locator("#detail .code-strip .mark").count() == by_hand.hamming(0, "ITQ", 8)[point]
    ones = by_hand.codes["ITQ", 8][point]
    drawn = page.locator("#detail .code-strip .bit").evaluate_all("all => all.map((one) => +one.matches('.one'))")
    assert drawn[1::2] == ones.tolist()
    assert page.locator(".tile.same").count() >= 1
    page.keyboard.press("Escape")
    assert page.locator("#detail .code-strip").count() == 0


def test_the_keyboard_reaches_everything(page, by_hand):
    page.focus("#theme")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == f"Query {by_hand.rows[0]}"
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    assert_shown(page, by_hand, 2, 8, 100, K)
    seen = []
    for _ in range(12):
        page.keyboard.press("Tab")
        here = "document.activeElement.closest('[data-method]')?.dataset.method ?? document.activeElement.id"
        seen.append(page.evaluate(here))
    for stop in ("bits", "candidates", "k", "distance-hamming", *METHODS):
        assert seen.count(stop) == 1  # each group of tiles is one stop
    page.locator('[data-method="ITQ"] .tile').first.focus()
    page.keyboard.press("End")
    last = by_hand.shown(2, "ITQ", 8, 100, K)[-1]
    assert f"point {last}" in page.locator("#detail .pair").inner_text()
    page.keyboard.press("ArrowUp")
    assert page.evaluate("document.activeElement.matches('[data-method=ITQ] .tile')")


def test_curves_follow_the_sliders(page, by_hand):
    slide(page, "k", 5, range(1, K + 1))
    slide(page, "candidates", 30, STOPS)
    cells = page.locator("#curves tbody tr td:last-child")
    for row, method in enumerate(METHODS):
        recalls = []
        for query in by_hand.queries:
            near = np.argsort(((by_hand.base - query) ** 2).sum(axis=1), kind="stable")[:5]
            code = by_hand.hashers[method, 8].transform(query[None].astype(np.uint8))
            found = np.argsort((by_hand.codes[method, 8] != code).sum(axis=1), kind="stable")[:30]
            recalls.append(len(set(near) & set(found)) / 5)
        assert cells.nth(row).inner_text() == f"{100 * np.mean(recalls):.0f} %"
    page.check("#scope-one")
    for row, method in enumerate(METHODS):
        assert cells.nth(row).inner_text() == f"{20 * by_hand.hits(0, method, 8, 30, 5)} %"
    assert page.locator("#curves path.line").count() == 2 * len(METHODS)


def test_the_toy_turns_and_the_cost_is_drawn(page):
    canvas = page.locator("#toy canvas").first
    canvas.scroll_into_view_if_needed()
    looks = [canvas.screenshot()]
    canvas.focus()
    page.keyboard.press("ArrowRight")
    looks.append(canvas.screenshot())
    canvas.hover()
    page.mouse.down()
    page.mouse.move(900, 300)
    page.mouse.up()
    looks.append(canvas.screenshot())
    assert len(set(looks)) == 3
    assert "7 of the 8 codes are used" in page.inner_text("#toy")
    assert page.locator("#cost path.line").count() == 6  # three lines and their samples in the legend
    assert "3 steps took the cost from 9 to 4" in page.inner_text("#cost")


SPILLED = """() => [...document.querySelectorAll(".panel h3, .hits, .ranks, .ranks td")].filter((one) => {
  const card = one.closest(".card").getBoundingClientRect();
  const next = one.closest(".ranks") && document.querySelector("#detail .code-strip").getBoundingClientRect();
  const right = one.getBoundingClientRect().right;
  return right > card.right || (next && next.left > card.left + 100 && right > next.left);
}).map((one) => one.textContent)"""


def test_it_fits_every_width_in_both_themes(page):
    for width in (380, 900, 1440):
        page.set_viewport_size({"width": width, "height": 800})
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            page.locator("#methods .tile").first.click()
            assert page.locator("#detail .code-strip").is_visible()
            assert page.evaluate(SPILLED) == []
            page.keyboard.press("Escape")
            assert is_dark(page) == (scheme == "dark")


def test_the_recommended_method_comes_first_and_no_card_is_alone_in_a_row(browser, tmp_path):
    data = small_set()
    settings = replace(explorer_settings(data, bits=(8,), k=5, training_points=100), depth=20)
    bundle = build_bundle(data, settings, wall=40, toy=False)
    folder = export_page(bundle, tmp_path).parent
    with watched(browser, folder.as_uri()) as page:
        open_page(page, folder)
        first = page.locator("#methods .panel").first
        assert first.get_attribute("data-method") == "AutoJacoBin (chosen)"
        assert "Recommended" in first.inner_text()
        for width in (380, 700, 1000, 1280, 1500):
            page.set_viewport_size({"width": width, "height": 700})
            boxes = [card.bounding_box() for card in page.locator("#methods .panel").all()]
            rows = Counter(box["y"] for box in boxes)
            whole = page.locator("#methods").bounding_box()["width"]
            alone = [box for box in boxes if rows[box["y"]] == 1]
            assert all(abs(box["width"] - whole) < 1 for box in alone), width
        # a length of one value is said, and is no slider
        assert page.locator("#controls .slider-head").first.inner_text().split() == [
            "Length",
            "of",
            "a",
            "code",
            "8",
            "bits",
        ]
        assert page.locator("input#bits").count() == 0


def test_the_wall_shows_that_it_scrolls(browser, tmp_path):
    data = small_set()
    settings = replace(explorer_settings(data, bits=(8,), k=5, training_points=100), depth=20)
    folder = export_page(build_bundle(data, settings, methods=["LSH"], wall=80, toy=False), tmp_path).parent
    with watched(browser, folder.as_uri()) as page:
        open_page(page, folder)
        wall = page.locator("#wall")
        assert page.inner_text("#wall-count") == "80 queries"
        page.wait_for_selector("#wall.more-below")
        assert "gradient" in wall.evaluate("one => getComputedStyle(one).maskImage")
        wall.evaluate("one => one.scrollTo(0, one.scrollHeight)")
        page.wait_for_selector("#wall:not(.more-below)")
        assert wall.evaluate("one => getComputedStyle(one).maskImage") == "none"


def test_the_axis_of_the_curves_names_k(page):
    slide(page, "k", 5, range(1, K + 1))
    assert "share of the 5 true neighbours (k = 5)" in page.locator("#curves svg.plot").text_content()


def test_the_nearest_neighbour_is_looked_at_from_the_start(page, by_hand):
    assert f"point {by_hand.truth(0, 1)[0]}" in page.locator("#detail .pair").inner_text()
    assert "HAMMING DISTANCE" in page.locator("#detail .ranks thead").inner_text().upper()
    page.locator("#wall .tile").nth(2).click()
    page.wait_for_selector("#results[aria-busy=false]")
    assert f"point {by_hand.truth(2, 1)[0]}" in page.locator("#detail .pair").inner_text()


def test_frames_show_where_query_and_point_lie_in_their_photographs(browser, tmp_path):
    data = load_set("photos")
    settings = Settings(bits=(8,), ks=(5,), depth=20, seeds=1, training_points=100, queries=20, base=400)
    folder = export_page(build_bundle(data, settings, methods=["LSH"], wall=3, toy=False), tmp_path).parent
    seen = cut(data, settings)
    nearest = ground_truth(seen.base, seen.queries, 1)[0, 0]
    with watched(browser, folder.as_uri()) as page:
        open_page(page, folder)
        figures = page.locator("#detail .photographs figure").all()
        for figure, place in zip(figures, (seen.query_places[0], seen.base_places[nearest]), strict=True):
            assert place["picture"].partition(".")[0].replace("_", " ") in figure.inner_text()
            height, width = read_photograph(place["picture"]).shape[:2]
            page.wait_for_function(
                "one => one.complete && one.naturalWidth > 0", arg=figure.locator("img").element_handle()
            )
            whole, frame = (figure.locator(part).bounding_box() for part in ("img", ".frame"))
            across = (frame["x"] + frame["width"] / 2 - whole["x"]) / whole["width"]
            down = (frame["y"] + frame["height"] / 2 - whole["y"]) / whole["height"]
            assert (across, down) == pytest.approx((place["x"] / width, place["y"] / height), abs=0.02)


def test_a_theme_that_is_chosen_stays(page):
    page.emulate_media(color_scheme="light")
    page.click("#theme")
    assert is_dark(page)
    page.reload()
    assert is_dark(page)
    page.click("#theme")
    assert not is_dark(page)
    page.evaluate("localStorage.clear()")  # for other pages


def is_dark(page):
    colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
    return sum(int(part) for part in colour[4:-1].split(",")) < 3 * 128


def test_without_pictures_there_are_tables(browser, by_hand, tmp_path):
    folder = export_page(small_bundle(pictures=False), tmp_path).parent
    with watched(browser, folder.as_uri()) as page:
        open_page(page, folder)
        page.locator("#wall .tile").nth(2).click()
        page.wait_for_selector("#results[aria-busy=false]")
        for method in METHODS:
            rows = page.locator(f'[data-method="{method}"] tbody tr')
            shown = by_hand.shown(2, method, 8, 100, K)
            assert rows.locator("button").all_inner_texts() == [str(id) for id in shown]
            assert rows.locator("td:nth-child(4)").all_inner_texts() == [
                str(distance) for distance in by_hand.hamming(2, method, 8)[shown]
            ]
            assert page.locator(f'[data-method="{method}"] tr.true').count() == by_hand.hits(2, method, 8, 100, K)
        page.locator("#methods .row-button").first.click()
        assert page.locator("#detail .code-strip").is_visible()


def test_a_missing_file_is_reported(browser, folder, tmp_path):
    shutil.copytree(folder, tmp_path / "page")
    (tmp_path / "page" / "data" / "query-1.js").unlink()
    with watched(browser, tmp_path.as_uri()) as page:
        open_page(page, tmp_path / "page")
        page.locator("#wall .tile").nth(1).click()
        page.wait_for_selector("#trouble:visible")
        assert "data/query-1.js cannot be loaded" in page.inner_text("#trouble")
        assert len(page.wrong) == 1  # which the browser tells itself
        page.wrong.clear()
        page.locator("#wall .tile").nth(2).click()
        page.wait_for_selector("#trouble", state="hidden")


def test_the_same_page_over_http(browser, folder, by_hand):
    with HttpServer(page_app(folder), "127.0.0.1", 0, limits=Limits(), what="the page") as server, server.running():
        address = f"{server.address}/"
        with watched(browser, address) as page:  # which notes every breach of the Content-Security-Policy
            page.goto(address)
            page.wait_for_selector("#methods .panel")
            assert_shown(page, by_hand, 0, 8, 100, K)
