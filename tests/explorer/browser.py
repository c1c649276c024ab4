"""A small page of real data, what a search done by hand would show on it, and a browser that notes what goes wrong."""

import base64
import shutil
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest

from autojacobin.explorer import build_bundle, explorer_settings
from autojacobin.paper.reproduction.trials import make_hasher
from tests.paper.reproduction.small import small_set

METHODS = ("LSH", "ITQ")
BITS = (8, 16)
K, DEPTH, WALL = 12, 100, 5


def small_bundle(pictures=True):
    data = small_set(pictures)
    settings = replace(explorer_settings(data, bits=BITS, k=K, training_points=300), depth=DEPTH)
    return build_bundle(data, settings, methods=METHODS, wall=WALL, toy=False)


class ByHand:
    """The same answers from the vectors alone, by sorting everything."""

    def __init__(self):
        data = small_set()
        self.base, self.queries = (part.astype(np.float64) for part in (data.base, data.queries))
        train = data.train[np.sort(np.random.default_rng(0).choice(len(data.train), 300, replace=False))]
        self.hashers = {(m, b): make_hasher(m, b, 0, {}).fit(train) for m in METHODS for b in BITS}
        self.codes = {key: hasher.transform(data.base) for key, hasher in self.hashers.items()}
        self.rows = np.arange(WALL) * len(self.queries) // WALL

    def euclidean(self, place):
        return np.sqrt(((self.base - self.queries[self.rows[place]]) ** 2).sum(axis=1))

    def truth(self, place, k):
        return np.argsort(self.euclidean(place), kind="stable")[:k]

    def hamming(self, place, method, bits):
        code = self.hashers[method, bits].transform(self.queries[[self.rows[place]]].astype(np.uint8))
        return (self.codes[method, bits] != code).sum(axis=1)

    def order(self, place, method, bits):
        """All points in the order of their codes."""
        return np.argsort(self.hamming(place, method, bits), kind="stable")

    def shown(self, place, method, bits, candidates, k):
        chosen = np.sort(self.order(place, method, bits)[:candidates])
        return chosen[np.argsort(self.euclidean(place)[chosen], kind="stable")[:k]]

    def hits(self, place, method, bits, candidates, k):
        return len(set(self.shown(place, method, bits, candidates, k)) & set(self.truth(place, k)))


def unpacked(text, bits):
    packed = np.frombuffer(base64.b64decode(text), dtype=np.uint8).reshape(-1, -(-bits // 8))
    return np.unpackbits(packed, axis=1, count=bits, bitorder="little")


@contextmanager
def chromium():
    """A headless browser; a test without one is skipped, and says so."""
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if program is None:
        pytest.skip("there is no Chromium on this machine")
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


@contextmanager
def watched(browser, start):
    """A page on which nothing may go wrong, and that may ask for nothing but what begins with ``start``."""
    # a profile of its own for each page would take longer than the page
    profile = browser.contexts[0] if browser.contexts else browser.new_context(viewport={"width": 1440, "height": 900})
    page = profile.new_page()
    page.set_default_timeout(30_000)  # on a busy machine too
    wrong, asked = [], []
    page.on("console", lambda message: wrong.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.wrong = wrong
    try:
        yield page
    finally:
        page.close()
    assert wrong == [], wrong  # this file is not rewritten by pytest, so the list has to be named
    assert [url for url in asked if not url.startswith((start, "data:"))] == []
