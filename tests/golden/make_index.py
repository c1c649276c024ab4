"""Writes the golden index of an index format. Run once, when the format is new; never again for that version.

    python -m tests.golden.make_index

The vectors are chosen so that no projection is near zero: another BLAS may round the last digit differently.
"""

from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

from autojacobin import ITQ, BinaryAutoencoder
from autojacobin.index import segment_writer
from autojacobin.index.array_files import FORMAT_VERSION
from autojacobin.index.index import Index

FOLDER = Path(__file__).parent / f"index-{FORMAT_VERSION}"


def main() -> None:
    FOLDER.mkdir()
    segment_writer._FEWEST_IN_LISTS = 1  # so that few vectors have lists in files too
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
            "hamming": {"rerank": False},
            "asymmetric": {"distance": "asymmetric", "rerank": False},
            "reranked": {},
        }.items():
            expected[f"{name}_distances"], expected[f"{name}_ids"] = index.search(queries, 10, **options)
    (FOLDER / "index" / "LOCK").unlink()
    auto_encoder = BinaryAutoencoder(20, random_state=0).fit(X[:400].astype(np.float32))
    with Index.create(FOLDER / "lists", auto_encoder, partitions=32) as index:
        index.add(X[400:], ids=np.arange(2 * len(X[400:]), 0, -2))
        expected["lists_codes"] = index.codes(index.ids).packed
        expected["lists_distances"], expected["lists_ids"] = index.search(queries, 10, probes="all", rerank=False)
    (FOLDER / "lists" / "LOCK").unlink()
    np.savez(FOLDER / "expected.npz", **expected)


if __name__ == "__main__":
    main()
