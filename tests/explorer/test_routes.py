"""The explorer page in the search service: what it shows of an index, and what its routes refuse."""

import http.client
import json
import uuid
from urllib.parse import urlencode

import numpy as np
import pytest

from autojacobin import ITQ, LSH, Index
from autojacobin.explorer import explorer_routes, page
from autojacobin.service import Limits, serving
from tests.explorer.browser import chromium, watched
from tests.paper.reproduction.small import small_set
from tests.service.service_process import eventually

ID = 417


@pytest.fixture(scope="module")
def vectors():
    return small_set().base.astype(np.float32)


@pytest.fixture(scope="module")
def index(vectors):
    made = Index(ITQ(32, random_state=0).fit(vectors[:300]))
    made.add(vectors)
    return made


@pytest.fixture(scope="module")
def address(index, vectors):
    codes_only = Index(index.hasher, keep_vectors=False)
    codes_only.add(vectors[:10])
    two = Index(index.hasher)
    two.add(vectors[:2], ids=[5, 9])
    with serving({"digits": index, "codes": codes_only, "two": two}, pages=explorer_routes) as found:
        assert eventually(lambda: get(found, "/readyz")[0] == 200)  # until then, a request of the page may be refused
        yield found


@pytest.fixture(scope="module")
def browser():
    with chromium() as found:
        yield found


def get(address, path):
    connection = http.client.HTTPConnection(address.removeprefix("http://").rstrip("/"), timeout=120)
    connection.request("GET", path)
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer.status, answer.headers["content-type"].partition(";")[0], content


def test_the_table_is_what_the_index_finds(browser, address, index, vectors):
    distances = np.sqrt(((vectors.astype(float) - vectors[ID]) ** 2).sum(axis=1))
    truth = set(np.argsort(distances, kind="stable")[1:6].tolist())
    bits = index.hasher.transform(vectors)
    apart = (bits != bits[ID]).sum(axis=1)
    order = [id for id in np.argsort(apart, kind="stable").tolist() if id != ID]
    expected = sorted(order[:10], key=lambda id: (distances[id], id))[:5]
    with watched(browser, address) as page:
        page.goto(address)
        page.wait_for_selector(".some-ids .tile")
        assert page.locator("#index option").all_inner_texts() == ["digits", "two"]
        page.wait_for_selector("#found[aria-busy=false] tbody tr")  # one is answered from the start
        assert page.inner_text("#subtitle").endswith(f"bits by {index.hasher.trained_as}")
        page.set_viewport_size({"width": 390, "height": 800})  # the table fits a phone
        assert page.locator("#found .scroll").evaluate("frame => frame.scrollWidth <= frame.clientWidth")
        page.set_viewport_size({"width": 1440, "height": 900})
        assert page.inner_text("#found-title") == "The 10 neighbours of vector 0 that the index finds"
        page.check("#distance-hamming")
        page.fill("#id", str(ID))
        page.press("#id", "Enter")
        page.wait_for_selector(f"#found-title:has-text('vector {ID}')")
        page.wait_for_selector("#found[aria-busy=false]")
        assert page.locator("#found thead th").all_inner_texts()[3:5] == ["Euclidean distance", "Hamming distance"]
        page.focus("#candidates")
        page.keyboard.press("Home")  # 10
        page.focus("#k")
        page.keyboard.press("ArrowLeft")  # 5
        page.wait_for_selector("#found[aria-busy=false]")
        rows = [row.locator("td").all_inner_texts() for row in page.locator("#found tbody tr").all()]
        assert [int(row[2]) for row in rows] == expected
        assert [float(row[3]) for row in rows] == pytest.approx(distances[expected], abs=0.01)
        assert [int(row[4]) for row in rows] == apart[expected].tolist()
        assert [int(row[5]) for row in rows] == [order.index(id) + 1 for id in expected]
        assert [row[0] != "" for row in rows] == [id in truth for id in expected]
        assert page.locator("#found tr.true").count() == len(truth & set(expected))
        assert "nearest by exact search" in page.inner_text("#found")
        page.locator("#found tbody tr").nth(1).locator("td").last.click()  # anywhere in the row
        page.wait_for_selector("#service-detail .code-strip")
        assert page.locator("#service-detail .mark").count() == apart[expected[1]]
        page.fill("#id", "5000")
        page.press("#id", "Enter")
        page.wait_for_selector("#trouble:visible")
        assert "5000" in page.inner_text("#trouble")
        assert all("404" in told for told in page.wrong)  # which the browser tells itself
        page.wrong.clear()
        page.select_option("#index", "two")
        page.wait_for_selector(".some-ids .tile:nth-child(2):last-child")
        page.locator(".some-ids .tile").first.click()
        page.wait_for_selector("#found[aria-busy=false] tbody tr:only-child")
        assert page.locator("#found .row-button").inner_text() == "9"


def test_routes_give_codes_and_ids_and_refuse_the_rest(address, index):
    status, kind, content = get(address, "/explorer/codes?index=digits&id=7&id=3")
    assert (status, kind) == (200, "application/json")
    assert json.loads(content) == {"bits": 32, "codes": [row.tobytes().hex() for row in index.codes([7, 3]).packed]}
    _, _, content = get(address, "/explorer/ids?index=digits")
    ids = json.loads(content)["ids"]
    assert 20 <= len(ids) <= 24
    assert all(id in index for id in ids)
    for path, part in (
        ("codes?index=none&id=1", "there is no index 'none', expected one of: digits"),
        ("codes?index=digits&id=1,2", "id must be of the kind integer, got '1,2'"),
        ("codes?index=digits&id=-1", "id must be of the kind integer, got '-1'"),
        ("codes?index=digits&id=99999999999999999999", "id must be of the kind integer"),
        ("codes?index=digits" + "&id=1" * 1001, "id must be given 1 to 1000 times"),
        ("codes?index=digits", "id must be given 1 to 1000 times"),
        ("ids", "there is no index ''"),
    ):
        status, kind, content = get(address, f"/explorer/{path}")
        assert (status, kind) == (400, "application/problem+json")
        assert part in json.loads(content)["detail"]
    status, _, content = get(address, "/explorer/codes?index=digits&id=1000")
    assert status == 404
    assert "only ids in the index can be read, got 1000" in json.loads(content)["detail"]


NAMES = ["a, b & c", "ü/1", "7", "d=e"]


@pytest.fixture(scope="module")
def named(index, vectors):
    """Address of a service of an index with strings as ids, and one with UUIDs."""
    by_name, by_uuid = Index(index.hasher), Index(index.hasher)
    by_name.add(vectors[:4], ids=NAMES)
    by_uuid.add(vectors[:4], ids=[uuid.UUID(int=number) for number in range(4)])
    with serving({"names": by_name, "uuids": by_uuid}, pages=explorer_routes) as found:
        yield found


def test_routes_take_names(named, index, vectors, monkeypatch):
    expected = [row.tobytes().hex() for row in index.hasher.encode(vectors[[1, 0]]).packed]
    for kind, ids in (("names", NAMES), ("uuids", [str(uuid.UUID(int=number)) for number in range(4)])):
        for most in (10, 3):  # an index with more ids is not sorted
            monkeypatch.setattr(page, "_QUICK_TO_LIST", most)
            assert page._some_ids(Index(index.hasher), None) == {"ids": []}
            assert json.loads(get(named, f"/explorer/ids?index={kind}")[2])["ids"] == ids
        query = urlencode([("index", kind), ("id", ids[1]), ("id", ids[0])])
        status, _, content = get(named, f"/explorer/codes?{query}")
        assert (status, json.loads(content)["codes"]) == (200, expected)
    status, _, content = get(named, "/explorer/codes?index=uuids&id=7")
    assert (status, json.loads(content)["detail"]) == (
        400,
        "id must be UUIDs, got something else; write them in full",
    )


def test_the_page_searches_by_name(browser, named):
    with watched(browser, named) as page:
        page.goto(named)
        page.wait_for_selector(".some-ids .tile")
        assert page.locator(".some-ids .tile").all_inner_texts() == NAMES
        page.locator(".some-ids .tile").first.click()
        page.wait_for_selector("#found[aria-busy=false] tbody tr")
        assert sorted(page.locator("#found .row-button").all_inner_texts()) == sorted(NAMES[1:])
        page.locator("#found .row-button").first.click()
        page.wait_for_selector("#service-detail .code-strip")
        page.select_option("#index", "uuids")
        page.wait_for_selector(".some-ids .tile:first-child:has-text('0000')")
        page.fill("#id", str(uuid.UUID(int=2)))
        page.press("#id", "Enter")
        page.wait_for_selector("#found[aria-busy=false] tbody tr")
        assert page.locator("#found .row-button").count() == 3


def test_only_the_files_of_the_page_are_given(address):
    for name, expected in (("main.js", "text/javascript"), ("explorer.css", "text/css"), ("icon.svg", "image/svg+xml")):
        status, kind, content = get(address, f"/explorer/{name}")
        assert (status, kind) == (200, expected)
        assert content
    for name in ("page.py", "..%2fpage.py", "%2e%2e/page.py", "main.js%00", "no.js"):
        assert get(address, f"/explorer/{name}")[0] == 404


def test_the_page_names_the_measure_quotes_ids_shows_columns_and_filters(browser, vectors):
    words = [",", "the", "a", "of", "cat", "dog"]
    columns = {"lang": ["de", "en", "en", None, "de", "de"], "n": list(range(6))}
    index = Index.from_vectors(vectors[:6], LSH(16, random_state=0), metric="cosine", ids=words, payload=columns)
    with serving({"words": index}, pages=explorer_routes, limits=Limits(request_seconds=600)) as address:
        assert eventually(lambda: get(address, "/readyz")[0] == 200)
        with watched(browser, address) as page:
            page.goto(address)
            page.wait_for_selector("#found[aria-busy=false] tbody tr")
            assert page.inner_text("#found-title") == "The 5 neighbours of vector “,” that the index finds"
            heads = [head.lower() for head in page.locator("#found thead th").all_inner_texts()]
            assert heads[2:4] + heads[-2:] == ["id", "cosine similarity", "lang", "n"]
            rows = {cells[2]: cells for cells in map(_cells, page.locator("#found tbody tr").all())}
            similarities = dict(zip(words, (vectors[:6] @ vectors[0]).tolist(), strict=True))
            lengths = dict(zip(words, np.linalg.norm(vectors[:6], axis=1).tolist(), strict=True))
            assert rows.keys() == set(words[1:])
            for place, word in enumerate(words[1:], 1):
                expected = similarities[word] / lengths[word] / lengths[","]
                assert float(rows[word][3]) == pytest.approx(expected, abs=1e-3)
                assert rows[word][-2:] == [columns["lang"][place] or "–", str(place)]
            page.fill("#where", "lang = 'en'")
            page.press("#where", "Enter")
            page.wait_for_selector("#found-title:has-text('The 2 neighbours')")
            assert set(page.locator("#found .row-button").all_inner_texts()) == {"the", "a"}
            page.fill("#where", "nothing = 1")
            page.press("#where", "Enter")
            page.wait_for_selector("#trouble:not([hidden])")
            assert "nothing" in page.inner_text("#trouble")
            page.wrong.clear()  # the browser notes the answer 400


def _cells(row):
    return row.locator("td").all_inner_texts()


def test_ids_columns_and_values_that_look_like_scripts_are_text(browser, vectors):
    live = [
        "<script>window.broken = 1</script>",
        "<img src=x onerror='window.broken = 1'>",
        '"><svg onload=window.broken=1>',
        "javascript:window.broken=1",
        "</textarea></title></script><script>window.broken=1</script>",
        "{{constructor.constructor('window.broken=1')()}}",
        "__proto__",
    ]
    columns = dict.fromkeys((*live[:4], "__proto__", "constructor", "<b>bold</b>"), live[::-1])
    index = Index.from_vectors(vectors[: len(live)], LSH(16, random_state=0), ids=live, payload=columns)
    with serving({"live": index}, pages=explorer_routes, limits=Limits(request_seconds=600)) as address:
        assert eventually(lambda: get(address, "/readyz")[0] == 200)
        for path in ("/explorer/ids?index=live", "/v1/indexes", f"/explorer/ids?{urlencode({'index': live[0]})}"):
            assert get(address, path)[1] in ("application/json", "application/problem+json")
        with watched(browser, address) as page:
            page.goto(f"{address}/#{urlencode({'id': live[1], 'where': live[0]})}")
            page.wait_for_selector(".some-ids .tile")
            page.goto(address)
            page.reload()
            page.wait_for_selector("#found[aria-busy=false] tbody tr")
            assert page.locator(".some-ids .tile").all_inner_texts() == live
            for place in range(len(live)):
                page.locator(".some-ids .tile").nth(place).click()
                shows = "id => document.getElementById('found-title').textContent.includes(id)"
                page.wait_for_function(shows, arg=live[place])
                page.wait_for_selector("#found[aria-busy=false] tbody tr")
                rows = [row.split("\t") for row in page.locator("#found tbody tr").all_inner_texts()]
                assert {row[2] for row in rows} < set(live) - {live[place]}
                assert {text for row in rows for text in row[6:]} < set(live)
            page.locator("#found .row-button").first.click()
            page.wait_for_selector("#service-detail .code-strip")
            assert page.evaluate(
                "window.broken === undefined && document.querySelector('main script, main img') === null"
            )
            page.wrong.clear()  # the refused condition of the first address
