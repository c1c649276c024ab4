"""Writes the golden indexes of an index format. After the first release: once for each format, and never again.

    python -m tests.golden.make_index

The vectors are chosen so that no projection is near zero: another BLAS may round the last digit differently.
"""

from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

from autojacobin import ITQ, BinaryAutoencoder
from autojacobin.index import segment
from autojacobin.index.index import Index
from autojacobin.index.manifest import FORMAT_VERSION

FOLDER = Path(__file__).parent / f"index-{FORMAT_VERSION}"


def main() -> None:
    FOLDER.mkdir()
    segment._FEWEST_IN_LISTS = 1  # so that few vectors have lists in files too
    X = load_digits().data[:, 18:26].astype(np.uint8)
    hasher = ITQ(8, random_state=0).fit(X[:400].astype(np.float32))
    projections = np.abs(hasher.project(X[400:]))
    clear = X[400:][(projections > 1e-2 * projections.max()).all(axis=1)]
    vectors, queries = clear[:40], clear[40:45]
    with Index.create(FOLDER / "index", hasher) as index:
        index.add(vectors[:25])
        index.add(vectors[25:], ids=np.arange(60, 30, -2))
        index.remove([7])
        expected = {"queries": queries, "ids": index.ids}
        for name, options in {
            "hamming": {"distance": "hamming", "rerank": False},
            "asymmetric": {"distance": "asymmetric", "rerank": False},
            "reranked": {"distance": "hamming"},
        }.items():
            expected[f"{name}_distances"], expected[f"{name}_ids"] = index.search(queries, 10, **options)
    (FOLDER / "index" / "LOCK").unlink()
    auto_encoder = BinaryAutoencoder(20, random_state=0).fit(X[:400].astype(np.float32))
    with Index.create(FOLDER / "lists", auto_encoder, partitions=32) as index:
        index.add(X[400:], ids=np.arange(2 * len(X[400:]), 0, -2))
        expected["lists_codes"] = index.codes(index.ids).packed
        expected["lists_distances"], expected["lists_ids"] = index.search(queries, 10, probes="all", rerank=False)
    (FOLDER / "lists" / "LOCK").unlink()
    rng = np.random.default_rng(0)
    named = rng.integers(1, 200, (2_100, 4)).astype(np.uint8)
    payload = {"price": np.arange(2_100), "shop": ["north", "south", None] * 700}
    hasher = ITQ(4, random_state=0)
    names = [f"article {number}" for number in range(2_100)]
    Index.from_vectors(named, hasher, path=FOLDER / "named", ids=names, payload=payload, metric="cosine").close()
    with Index.open(FOLDER / "named") as index:
        expected["named_queries"] = named[:5]
        expected["named_candidates"] = index.plan(10).candidates
        for name, where in {"named": None, "dear": "price >= 2000 and shop = 'north'"}.items():
            expected[f"{name}_similarities"], ids = index.search(named[:5], 10, recall=1, where=where)
            expected[f"{name}_ids"] = ids.astype(str)
    (FOLDER / "named" / "LOCK").unlink()
    np.savez(FOLDER / "expected.npz", **expected)


if __name__ == "__main__":
    main()
