"""Files with flipped, lost, inserted and repeated bytes give an error in a sentence or a matrix, and nothing else."""

import tempfile
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from autojacobin.datasets import open_vectors
from autojacobin.errors import AutoJacobinError, FormatError
from tests.datasets.vector_files import FORMATS, foreign_file

ENDINGS = [*FORMATS, "fvecs.gz", "npy.gz", "csv.gz"]
VARIANTS = 3
# what readers of binary headers and of text stumble over
TOKENS = [
    b"\xff" * 4,
    b"\xff" * 8,
    bytes(4),
    bytes(8),
    b"\xff\xff\xff\x7f",
    b"\x00\x00\x00\x80",
    b"\x80",
    b"nan",
    b"\n",
]
TOKENS += [b",", b"-", b"1e999", b"(", b"\r", b'"', b"PAR1", b"PK\x03\x04", b"\x93NUMPY", b"\x1f\x8b"]
MOST_MEMORY = 4 * 2**20  # for files of some kilobytes, with the buffers of gzip and zip


@pytest.fixture(scope="module")
def originals(tmp_path_factory):
    folder = tmp_path_factory.mktemp("originals")
    return {
        ending: [
            foreign_file(folder / f"{variant}.{ending}", variant=variant).read_bytes() for variant in range(VARIANTS)
        ]
        for ending in ENDINGS
    }


@st.composite
def mutations(draw):
    """A few changes, each at a place given as a share of the length, or close to either end, where headers are."""
    places = st.floats(0, 1) | st.integers(0, 200) | st.integers(-100, -1)
    one = st.one_of(
        st.tuples(st.just("flip"), places, st.integers(0, 7)),
        st.tuples(st.just("set"), places, st.integers(0, 255)),
        st.tuples(st.just("overwrite"), places, st.sampled_from(TOKENS)),
        st.tuples(st.just("insert"), places, st.binary(min_size=1, max_size=9) | st.sampled_from(TOKENS)),
        st.tuples(st.just("delete"), places, st.integers(1, 40)),
        st.tuples(st.just("repeat"), places, st.integers(1, 64)),
        st.tuples(st.just("cut"), places, st.none()),
    )
    return draw(st.lists(one, min_size=1, max_size=4))


def mutated(content, changes):
    found = bytearray(content)
    for kind, place, what in changes:
        at = int(place * len(found)) if isinstance(place, float) else place if place >= 0 else len(found) + place
        at = max(0, min(at, len(found) - 1))
        if kind == "insert":
            found[at:at] = what
        elif kind == "overwrite":
            found[at : at + len(what)] = what
        elif kind == "delete":
            del found[at : at + what]
        elif kind == "repeat":
            found[at:at] = found[at : at + what]
        elif kind == "cut":
            del found[at:]
        elif found:
            found[at] = what if kind == "set" else found[at] ^ (1 << what)
    return bytes(found)


@pytest.mark.parametrize("ending", ENDINGS)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(variant=st.integers(0, VARIANTS - 1), changes=mutations())
@example(variant=0, changes=[("cut", 1.0, None)])
@example(variant=1, changes=[("delete", 0, 1)])
def test_mutated_files_give_an_error_or_a_matrix(originals, ending, variant, changes):
    content = mutated(originals[ending][variant], changes)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"a.{ending}"
        path.write_bytes(content)
        tracemalloc.start()
        try:
            _read_all(path, len(content))
        except AutoJacobinError as error:
            assert str(path) in str(error)
            assert "\n" not in str(error)
        finally:
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
    assert peak < MOST_MEMORY


def _read_all(path, size):
    with open_vectors(path) as vectors:
        assert min(vectors.shape) >= 1
        assert vectors.dtype.kind in "biuf"
        expanding = vectors.format in ("parquet", "hdf5", "csv", "tsv", "text", "npz") or path.name.endswith(".gz")
        n_bytes = vectors.shape[0] * vectors.shape[1] * vectors.dtype.itemsize
        assert n_bytes <= size * (2000 if expanding else 1)
        whole = np.asarray(vectors)
        assert whole.shape == vectors.shape
        assert whole.dtype == vectors.dtype
        for key in (0, -1, slice(1, 7), [0, -1]):
            assert vectors[key].tobytes() == whole[key].tobytes()
        assert sum(len(block) for block in vectors.blocks(7)) == len(vectors)


@pytest.mark.parametrize("ending", ENDINGS)
@settings(max_examples=10, deadline=None)
@given(content=st.binary(max_size=300))
def test_noise_gives_an_error_or_a_matrix(ending, content):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"a.{ending}"
        path.write_bytes(content)
        try:
            _read_all(path, len(content))
        except FormatError as error:
            assert str(path) in str(error)
