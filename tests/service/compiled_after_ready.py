"""Serves some indexes, waits until they are ready, asks all kinds of things, and prints what had to be compiled then.

    python -m tests.service.compiled_after_ready [few|ahead]

With ``few``, there is one index and it is asked fewer things. With ``ahead``, everything is compiled as
``autojacobin warm`` does, and what is compiled after that is printed, with inverted lists too. A program of its own: in
a process that has searched before, much is compiled already.
"""

import json
import sys
import tempfile
from itertools import product
from pathlib import Path

import numpy as np
from numba.core.dispatcher import Dispatcher

from autojacobin import LSH, BinaryAutoencoder, Index
from autojacobin.search.distances import distances_of
from autojacobin.service import Client, serving
from autojacobin.service.served import compile_kernels
from tests.service.service_process import asked, eventually

WORK = 1_000_000  # vectors times candidates, the limit of the service


def main(ahead=False, few=False):
    if ahead:
        compile_kernels()
    before, rng = compiled(), np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as home:
        indexes = dict(made(Path(home), rng, few))
        if ahead:
            indexes["residuals"] = lists(BinaryAutoencoder(48, random_state=0), rng)
            indexes["signs"] = lists(LSH(48, random_state=0), rng)
        with serving(indexes) as address, Client(address, timeout=None, patience=10**6) as client:
            assert eventually(lambda: asked(client, "/readyz"))
            before = before if ahead else compiled()
            for name, index in indexes.items():
                ask_all(client, name, index, rng, (1, 130) if few else (1, 33, 130, 600))
            print(json.dumps(sorted(map(str, compiled() - before))))


def made(home, rng, few):
    """Indexes large enough for each kernel: of bytes in no order, of floats on disk, and of codes in memory."""
    numbers = rng.integers(0, 256, size=(9_000, 40), dtype=np.uint8)
    with Index.create(home / "bytes", LSH(64, random_state=0).fit(numbers)) as index:
        index.add(numbers, ids=3 * rng.permutation(len(numbers)))
    yield "bytes", Index.open(home / "bytes")
    if few:
        return
    floats = rng.normal(size=(70_000, 8)).astype(np.float32)
    with Index.create(home / "floats", LSH(20, random_state=0).fit(floats)) as index:
        index.add(floats)
    yield "floats", Index.open(home / "floats")
    codes = Index(LSH(200, random_state=0).fit(floats), keep_vectors=False)
    codes.add(floats)
    yield "codes", codes


def lists(hasher, rng):
    floats = rng.normal(size=(3_000, 24)).astype(np.float32)
    index = Index(hasher.fit(floats), partitions=16)
    index.add(floats)
    return index


def ask_all(client, name, index, rng, numbers):
    figures, distances = index.info(), distances_of(index.hasher)
    for n, k, distance in product(numbers, (1, 300), distances):
        queries = rng.normal(size=(n, figures["features"]))
        if figures["vectors_kept"]:
            queries = 128 + 40 * queries if name == "bytes" else queries
            for candidates, whole in product((k, max(10 * k, 100), 1_500), (False, True)):
                if k <= candidates <= WORK // n:
                    asked = np.rint(queries).clip(0, 255) if whole else queries
                    client.search(asked, k, index=name, candidates=candidates, distance=distance)
        if n * k <= WORK:
            client.search(queries, k, index=name, distance=distance, rerank=False)
    for among, distance in product((index.ids[:1], index.ids[::2]), distances):
        for n in (1, 33):
            client.search(queries[:n], 1, index=name, among=among, distance=distance, rerank=figures["vectors_kept"])
    if figures["vectors_kept"]:
        for k, recall, distance in product((1, 10), (0.5, 0.9), distances):
            client.search(queries[:1], k, index=name, recall=recall, distance=distance)
        client.search(ids=index.ids[:3], k=2, index=name)
    client.encode(queries, index=name)


def compiled():
    """Name and signature of every kernel that is compiled for some types."""
    modules = [module for name, module in sys.modules.items() if name.startswith("autojacobin")]
    kernels = {kernel for module in modules for kernel in vars(module).values() if isinstance(kernel, Dispatcher)}
    return {(kernel.__name__, signature) for kernel in kernels for signature in kernel.signatures}


if __name__ == "__main__":
    main(**dict.fromkeys(sys.argv[1:], True))
