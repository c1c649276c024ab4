"""What every engine has to do, compared with brute force: the suite that each adapter's tests derive from.

A module of tests for an engine has a function ``open_engine(location, n_bits, n_features=None)``, importable from
another process, and a class that derives from ``Conformance``, or from ``ConformanceWithVectors`` if the engine keeps
vectors. A location is a string; ``new_location`` gives fresh ones, by default paths in a temporary folder, and an
engine that is addressed otherwise overrides that fixture.
"""

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib import import_module

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autojacobin import AutoJacobinError, Codes, DataError

LENGTHS = (64, 96, 128, 256)
N_FEATURES = 5
LARGEST_ID = 2**63 - 1


def clustered(n, n_bits, seed):
    """Codes that often lie at equal distances: a few centres with one or two bits turned."""
    rng = np.random.default_rng(seed)
    bits = rng.integers(0, 2, (4, n_bits), dtype=np.uint8)[rng.integers(0, 4, n)]
    for _ in range(2):
        bits[np.arange(n), rng.integers(0, n_bits, n)] ^= 1
    return Codes.from_bits(bits)


def scattered_ids(n, seed):
    """Ids in no order, with gaps, the smallest and the largest there are among them."""
    rng = np.random.default_rng(seed)
    ids = rng.choice(10 * n, n, replace=False).astype(np.int64)
    ids[ids == 0] = 10 * n
    ids[[0, n // 2]] = [LARGEST_ID, 0]
    return ids


def whole_vectors(n, seed):
    """Small whole numbers, so that distances are exact in any precision, and often equal."""
    return np.random.default_rng(seed).integers(-3, 4, (n, N_FEATURES)).astype(np.float32)


class Answer(tuple):
    """Distances and ids, and in ``true`` for each query the distance of every id."""


def nearest(queries, codes, ids, k):
    """Brute force: all distances, ordered by distance and then by id."""
    by_id = np.argsort(ids)
    ids, base = ids[by_id], codes.to_bits()[by_id]
    distances = (queries.to_bits()[:, None, :] != base[None]).sum(axis=2)
    order = np.argsort(distances, axis=1, kind="stable")[:, :k]
    answer = Answer((np.take_along_axis(distances, order, axis=1), ids[order]))
    answer.true = [dict(zip(ids.tolist(), line.tolist(), strict=True)) for line in distances]
    return answer


def assert_same(answer, expected):
    """The same shape, types and distances; each id once and at its own distance, equal distances in any order."""
    distances, ids = answer
    assert ids.dtype == np.int64
    np.testing.assert_array_equal(distances, expected[0])
    for near, found, true in zip(distances.tolist(), ids.tolist(), expected.true, strict=True):
        assert len(set(found)) == len(found)
        assert [true[id] for id in found] == near


def assert_reranked(answer, queries, asked, codes, ids, vectors, k, candidates):
    """The ``k`` nearest vectors of some ``candidates`` nearest codes; the engine chooses among equal codes."""
    distances, found = answer
    assert found.dtype == np.int64
    assert distances.shape == found.shape == (len(queries), k)
    rows, codes_found = {id: row for row, id in enumerate(ids.tolist())}, nearest(queries, codes, ids, candidates)
    euclidean = np.linalg.norm(asked[:, None].astype(np.float64) - vectors[None], axis=2)
    for query, (near, line) in enumerate(zip(distances, found.tolist(), strict=True)):
        assert len(set(line)) == k
        assert (np.diff(near) >= 0).all()
        np.testing.assert_allclose(near, [euclidean[query, rows[id]] for id in line], rtol=1e-6)
        last, hamming = codes_found[0][query, -1], codes_found.true[query]
        assert all(hamming[id] <= last for id in line)  # only candidates
        sure = [id for id in hamming if hamming[id] < last]  # candidates whatever the engine chose among equals
        missed = [euclidean[query, rows[id]] for id in sure if id not in line]
        assert all(distance >= near[-1] * (1 - 1e-6) for distance in missed)


class Suite:
    """What the suites share."""

    @pytest.fixture
    def new_location(self, tmp_path):
        numbers = iter(range(10**6))
        return lambda: str(tmp_path / f"engine-{next(numbers)}")

    def open(self, location, n_bits, n_features=None):
        return import_module(type(self).__module__).open_engine(location, n_bits, n_features)

    @contextmanager
    def refused(self, message, kind=AutoJacobinError):
        with pytest.raises(kind) as error:
            yield
        assert message in str(error.value)


class Conformance(Suite):
    """Codes alone.

    ``random_cases`` is how many an engine can afford. ``counts_opposites`` is false for an engine that takes two codes
    for equal if all their 256 bits differ.
    """

    random_cases = 25
    counts_opposites = True

    # Answers

    @pytest.mark.parametrize("n_bits", LENGTHS)
    def test_answers_are_those_of_brute_force(self, new_location, n_bits):
        codes, ids = clustered(300, n_bits, 0), scattered_ids(300, 1)
        queries = Codes.concatenate([clustered(5, n_bits, 0), clustered(6, n_bits, 2)])
        with self.open(new_location(), n_bits) as engine:
            engine.write(codes[:170], ids[:170])
            engine.write(codes[170:], ids[170:])
            assert engine.count() == 300
            for k in (1, 10, 300):
                distances, found = engine.search(queries, k)
                assert distances.dtype == np.int32
                assert_same((distances, found), nearest(queries, codes, ids, k))

    @pytest.mark.parametrize("n_bits", LENGTHS)
    def test_every_bit_goes_in_and_out_in_its_place(self, new_location, n_bits):
        single = np.eye(n_bits, dtype=np.uint8)
        staircase = np.tril(np.ones((n_bits, n_bits), dtype=np.uint8))
        codes = Codes.from_bits(np.concatenate([single, staircase, np.zeros((1, n_bits), dtype=np.uint8)]))
        ids = np.random.default_rng(0).permutation(len(codes)).astype(np.int64)
        with self.open(new_location(), n_bits) as engine:
            engine.write(codes, ids)
            wanted = np.concatenate([ids[::-1], ids[:3]])
            assert engine.read(wanted) == Codes.concatenate([codes[::-1], codes[:3]])
            rows, with_an_opposite = [0, 1, n_bits // 2, n_bits + 7], [n_bits - 1, 2 * n_bits]
            few = codes[rows + with_an_opposite * (n_bits < 256 or self.counts_opposites)]
            assert_same(engine.search(few, len(codes)), nearest(few, codes, ids, len(codes)))

    @pytest.mark.parametrize("n_bits", [1, 12, 65])
    def test_lengths_that_fill_no_byte(self, new_location, n_bits):
        location, codes = new_location(), Codes.from_bits(np.random.default_rng(0).integers(0, 2, (40, n_bits)))
        ids = scattered_ids(40, 3)
        with self.open(location, n_bits) as engine:
            engine.write(codes, ids)
        with self.open(location, n_bits) as engine:
            assert engine.n_bits == n_bits
            assert engine.read(ids) == codes
            assert_same(engine.search(codes[:4], 40), nearest(codes[:4], codes, ids, 40))

    def test_random_cases(self, new_location):
        with self.open(new_location(), 8) as engine:
            there = []

            @settings(max_examples=self.random_cases, suppress_health_check=list(HealthCheck))
            @given(st.data())
            def check(data):
                if there:
                    engine.delete(there.pop())
                assert engine.count() == 0
                ids = np.array(data.draw(st.lists(st.integers(0, 40), min_size=1, unique=True)), dtype=np.int64)
                base = data.draw(st.lists(st.integers(0, 7), min_size=len(ids), max_size=len(ids)))
                asked = data.draw(st.lists(st.integers(0, 255), min_size=1, max_size=3))
                k = data.draw(st.integers(1, len(ids)))
                codes = Codes(np.array(base, dtype=np.uint8)[:, None], 8)
                queries = Codes(np.array(asked, dtype=np.uint8)[:, None], 8)
                engine.write(codes, ids)
                there.append(ids)
                assert_same(engine.search(queries, k), nearest(queries, codes, ids, k))

            check()

    def test_no_queries_no_answers(self, new_location):
        with self.open(new_location(), 64) as engine:
            engine.write(clustered(3, 64, 0), [1, 2, 3])
            distances, ids = engine.search(clustered(3, 64, 0)[:0], 2)
            assert distances.shape == ids.shape == (0, 2)

    # Changes

    def test_a_known_id_is_replaced_and_a_deleted_one_gone(self, new_location):
        codes, ids = clustered(60, 64, 0), np.arange(60, dtype=np.int64) * 3
        with self.open(new_location(), 64) as engine:
            engine.write(codes, ids)
            engine.write(codes[::-1][:20], ids[:20])
            assert engine.count() == 60
            assert engine.read(ids[:20]) == codes[::-1][:20]
            now = Codes.concatenate([codes[::-1][:20], codes[20:]])
            engine.delete(ids[10:30])
            kept = np.r_[0:10, 30:60]
            assert engine.count() == 40
            assert_same(engine.search(codes[:5], 40), nearest(codes[:5], now[kept], ids[kept], 40))
            engine.write(codes[10:30], ids[10:30])
            now = Codes.concatenate([now[:10], codes[10:30], now[30:]])
            assert_same(engine.search(codes[:5], 60), nearest(codes[:5], now, ids, 60))
            engine.delete(ids)
            assert engine.count() == 0
            engine.write(codes, ids)
            assert engine.read(ids) == codes

    def test_nothing_to_do_changes_nothing(self, new_location):
        codes = clustered(4, 64, 0)
        with self.open(new_location(), 64) as engine:
            engine.write(codes, range(4))
            engine.write(codes[:0], [])
            engine.delete([])
            assert engine.count() == 4
            assert engine.read([]) == codes[:0]
            engine.delete([3, 3])
            assert engine.count() == 3

    # A new process

    @pytest.mark.rare
    def test_a_new_process_finds_and_changes_what_was_written(self, new_location):
        location, codes, ids = new_location(), clustered(50, 96, 0), scattered_ids(50, 1)
        with self.open(location, 96) as engine:
            engine.write(codes, ids)
        program = (
            "import json, sys\n"
            f"from {type(self).__module__} import open_engine\n"
            "from tests.engines.conformance import clustered\n"
            f"with open_engine({location!r}, 96) as engine:\n"
            "    count = engine.count()\n"
            "    distances, ids = engine.search(clustered(3, 96, 5), 7)\n"
            f"    packed = engine.read({ids.tolist()}).packed\n"
            "    engine.delete([0])\n"
            "    engine.write(clustered(2, 96, 9), [7_000, 8_000])\n"
            "print(json.dumps([count, distances.tolist(), ids.tolist(), packed.tolist()]))\n"
        )
        finished = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=1200
        )
        assert finished.returncode == 0, finished.stderr
        count, distances, found, packed = json.loads(finished.stdout.splitlines()[-1])
        assert count == 50
        assert Codes(np.array(packed, dtype=np.uint8), 96) == codes
        assert_same((np.array(distances), np.array(found)), nearest(clustered(3, 96, 5), codes, ids, 7))
        with self.open(location, 96) as engine:
            assert engine.count() == 51
            assert engine.read([8_000, 7_000]) == clustered(2, 96, 9)[::-1]
            with pytest.raises(DataError, match="got 0, which is not"):
                engine.read([0])

    # Several threads

    def test_several_threads_read_at_once(self, new_location):
        codes, ids = clustered(80, 64, 0), scattered_ids(80, 1)
        expected = nearest(codes[:4], codes, ids, 5)
        with self.open(new_location(), 64) as engine:
            engine.write(codes, ids)

            def read(_):
                assert_same(engine.search(codes[:4], 5), expected)
                return engine.count() == 80 and engine.read(ids) == codes

            with ThreadPoolExecutor(4) as pool:
                assert all(pool.map(read, range(12)))

    # Bad input

    def test_without_vectors_there_is_no_reranking(self, new_location):
        with self.open(new_location(), 64) as engine:
            assert engine.n_features is None
            engine.write(clustered(2, 64, 0), [1, 2])
            with pytest.raises(DataError, match="keeps no vectors to re-rank by"):
                engine.search_vectors(clustered(2, 64, 0), whole_vectors(2, 0), 1)
            with pytest.raises(DataError, match="keeps no vectors, got some"):
                engine.write(clustered(2, 64, 0), [3, 4], whole_vectors(2, 0))

    def test_what_cannot_be_written_is_named_and_changes_nothing(self, new_location):
        two = clustered(2, 64, 0)
        with self.open(new_location(), 64) as engine:
            engine.write(clustered(9, 64, 1), range(9))
            for codes, ids, message in (
                (two, [5, 5], "ids must be unique, got 5 more than once"),
                (two, [5, -1], "integers from 0 to 2^63 - 1, got -1"),
                (two[:1], [2**63], "integers from 0 to 2^63 - 1, got 9223372036854775808"),
                (two, [0.5, 1.5], "ids must be a list of integers, got float64"),
                (two, ["a", "b"], "ids must be a list of integers"),
                (two, [5], "got 1 ids for 2 codes"),
                (clustered(2, 32, 0), [5, 6], "must have the 64 bits of the"),
                (two.packed, [5, 6], "codes must be Codes, got ndarray"),
            ):
                with self.refused(message, DataError):
                    engine.write(codes, ids)
                assert engine.count() == 9
                assert engine.read(range(9)) == clustered(9, 64, 1)

    def test_what_cannot_be_asked_is_named(self, new_location):
        with self.open(new_location(), 64) as engine:
            codes = clustered(4, 64, 0)
            with self.refused("is empty"):
                engine.search(codes, 1)
            engine.write(codes, [1, 2, 3, 4])
            for k, message in (
                (5, "k must be an integer from 1 to 4"),
                (0, "k must be an integer of at least 1"),
                (1.5, "got 1.5"),
            ):
                with self.refused(message):
                    engine.search(codes, k)
            with self.refused("queries must be Codes"):
                engine.search(codes.packed, 1)
            with self.refused("queries must have the 64 bits of the"):
                engine.search(clustered(2, 65, 0), 1)
            for ids in ([1, 9], [9]):
                with self.refused("can be read, got 9, which is not"):
                    engine.read(ids)
                with self.refused("can be deleted, got 9, which is not"):
                    engine.delete(ids)
            with self.refused("got -1"):
                engine.delete([-1])
            assert engine.count() == 4

    def test_a_closed_engine_says_so(self, new_location):
        engine = self.open(new_location(), 64)
        engine.write(clustered(2, 64, 0), [1, 2])
        engine.close()
        engine.close()
        assert "closed" in repr(engine)
        for call in (
            lambda: engine.count(),
            lambda: engine.read([1]),
            lambda: engine.delete([1]),
            lambda: engine.write(clustered(1, 64, 0), [3]),
            lambda: engine.search(clustered(1, 64, 0), 1),
            lambda: engine.search_vectors(clustered(1, 64, 0), whole_vectors(1, 0), 1),
        ):
            with self.refused("is closed"):
                call()

    def test_an_engine_of_another_layout_is_refused_and_left_alone(self, new_location):
        location = new_location()
        with self.open(location, 64) as engine:
            engine.write(clustered(2, 64, 0), [1, 2])
        with self.refused("64"):
            self.open(location, 128)
        with self.open(location, 64) as engine:
            assert engine.read([1, 2]) == clustered(2, 64, 0)

    @pytest.mark.parametrize("n_bits", [0, -8, 1.5, "many", True])
    def test_lengths_that_make_no_sense(self, new_location, n_bits):
        with self.refused("n_bits must be an integer of at least 1"):
            self.open(new_location(), n_bits)


class VectorConformance(Suite):
    """Vectors beside the codes, to re-rank by. ``largest`` is what a number of a vector may be."""

    largest = 3e38

    def test_reranking_is_the_euclidean_order_of_the_nearest_codes(self, new_location):
        codes, ids, vectors = clustered(250, 128, 0), scattered_ids(250, 1), whole_vectors(250, 2)
        queries, asked = clustered(7, 128, 0), whole_vectors(7, 3)
        location = new_location()
        with self.open(location, 128, N_FEATURES) as engine:
            engine.write(codes, ids, vectors[::-1])
            engine.write(codes[:200], ids[:200], vectors[:200])  # some are replaced
            engine.write(codes[200:], ids[200:], vectors[200:])
        with self.open(location, 128, N_FEATURES) as engine:
            assert engine.n_features == N_FEATURES
            for k, candidates in ((1, None), (12, None), (5, 5), (5, 30), (5, 1000), (250, 250)):
                number = min(250, candidates or max(10 * k, 100))
                answer = engine.search_vectors(queries, asked, k, candidates)
                assert_reranked(answer, queries, asked, codes, ids, vectors, k, number)
            assert_same(engine.search(queries, 9), nearest(queries, codes, ids, 9))
            assert engine.search_vectors(queries[:0], asked[:0], 3)[1].shape == (0, 3)

    def test_vectors_that_cannot_be_kept_are_named_and_change_nothing(self, new_location):
        codes, vectors = clustered(2, 64, 0), whole_vectors(2, 0)
        with self.open(new_location(), 64, N_FEATURES) as engine:
            engine.write(codes, [1, 2], vectors)
            with self.refused("keeps vectors of 5 features, got none", DataError):
                engine.write(codes, [2, 3])
            for wrong, message in (
                (np.zeros((2, 4)), "vectors of these 2 codes must have shape (2, 5), got (2, 4)"),
                (np.zeros((3, 5)), "vectors of these 2 codes must have shape (2, 5), got (3, 5)"),
                (np.zeros(5), "Expected 2D array"),
                (np.full((2, 5), np.nan), "contains NaN in row 0"),
                (np.full((2, 5), 1e300), "contains inf in row 0"),
                ([["a"] * 5] * 2, "text where numbers are expected"),
            ):
                with self.refused(message, DataError):
                    engine.write(codes, [2, 3], wrong)
                with self.refused(message.replace("2 codes", "2 queries"), DataError):
                    engine.search_vectors(codes, wrong, 1)
            assert engine.count() == 2
            with self.refused("candidates must be at least k = 2, got 1", DataError):
                engine.search_vectors(codes, vectors, 2, 1)

    def test_distances_that_are_equal_in_single_precision(self, new_location):
        """Their squares differ by less than a unit in the last place of float32; the nearest has the highest id."""
        vectors = np.zeros((20, N_FEATURES), dtype=np.float32)
        vectors[:, 0], vectors[:, 1] = 1024, np.arange(20, 0, -1) / 64
        codes, asked = clustered(20, 64, 0), np.zeros((1, N_FEATURES))
        with self.open(new_location(), 64, N_FEATURES) as engine:
            engine.write(codes, range(20), vectors)
            distances, ids = engine.search_vectors(codes[:1], asked, 20)
        np.testing.assert_array_equal(ids, [np.arange(20)[::-1]])
        np.testing.assert_allclose(distances, [np.hypot(1024, np.arange(1, 21) / 64)], rtol=1e-15)

    def test_squares_that_single_precision_cannot_hold(self, new_location):
        codes, far = clustered(2, 64, 0), self.largest
        vectors, asked = np.zeros((2, N_FEATURES)), np.zeros((1, N_FEATURES))
        vectors[0, :2], vectors[1, 0], asked[0, 0] = far, far, -far
        with self.open(new_location(), 64, N_FEATURES) as engine:
            engine.write(codes, [1, 2], vectors)
            distances, ids = engine.search_vectors(codes[:1], asked, 2)
        np.testing.assert_array_equal(ids, [[2, 1]])
        np.testing.assert_allclose(distances, [[2 * far, np.sqrt(5) * far]], rtol=1e-6)


class ConformanceWithVectors(Conformance, VectorConformance):
    """Codes, and vectors beside them."""


NAMES = ["b", "a", "it's", "Ä", "z z", "%s", '"', "B", "10", "9", "", "ä" * 50]


def check_names(make):
    """Keys of text: all operations against brute force. ``make`` opens a table of codes with vectors, with names."""
    codes, vectors = clustered(len(NAMES), 20, 0), whole_vectors(len(NAMES), 1)
    names = [name or "empty" for name in NAMES]
    with make(20, N_FEATURES, id_kind="string") as engine:
        engine.write(codes[:7], names[:7], vectors[:7])
        engine.write(codes[5:], names[5:], vectors[5:])  # two of them again
        assert engine.count() == len(names)
        assert engine.read([names[3], names[0], names[3]]) == codes[[3, 0, 3]]
        distances, ids = engine.search(codes[:3], len(names))
        exact = (codes[:3].to_bits()[:, None] != codes.to_bits()).sum(axis=2)
        np.testing.assert_array_equal(distances, np.sort(exact, axis=1))
        places = np.vectorize(names.index)(ids)
        np.testing.assert_array_equal(np.take_along_axis(exact, places, axis=1), distances)
        near, found = engine.search_vectors(codes[:3], vectors[:3] + np.float32(0.25), 4, len(names))
        lengths = np.linalg.norm(vectors[:3, None] + 0.25 - vectors, axis=2)
        np.testing.assert_allclose(near, np.sort(lengths, axis=1)[:, :4], rtol=1e-6)
        np.testing.assert_allclose(
            np.take_along_axis(lengths, np.vectorize(names.index)(found), axis=1), near, rtol=1e-6
        )
        engine.delete(["it's", "10"])
        assert engine.count() == len(names) - 2
        for call, message in (
            (lambda: engine.delete(["10"]), "can be deleted, got '10', which is not"),
            (lambda: engine.write(codes[:2], ["c", "c"], vectors[:2]), "ids must be unique, got 'c' more than once"),
            (lambda: engine.write(codes[:2], [1, 2], vectors[:2]), "are strings, got 1 of type int"),
        ):
            with pytest.raises(DataError, match=message):
                call()
    with make(20, N_FEATURES, id_kind="string") as engine:
        assert engine.read(["Ä"]) == codes[3:4]
    with pytest.raises(DataError, match="has another layout"):
        make(20, N_FEATURES)
    with pytest.raises(DataError, match="id_kind must be 'integer' or 'string', got 'uuid'"):
        make(20, N_FEATURES, id_kind="uuid")
