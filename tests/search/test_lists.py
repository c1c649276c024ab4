"""Search in inverted lists: against brute force over whole numbers, and against the distances that they stand for."""

import os
import subprocess
import sys

import numba
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numba import types

from autojacobin import BinaryAutoencoder, Codes, DataError
from autojacobin.core.compilation import intrinsic
from autojacobin.core.simd import load
from autojacobin.search.asymmetric import asymmetric_queries
from autojacobin.search.hamming import hamming_queries
from autojacobin.search.kernels import lookup
from autojacobin.search.kmeans import kmeans
from autojacobin.search.lists import Lists, OffsetGrid, code_offsets
from autojacobin.search.tiles import Tiles
from tests.hashers.methods import digits
from tests.search.list_steps import (
    MISSING,
    codes_of,
    list_queries,
    nearest_in_lists,
    query_weights,
    rounded_weights,
    weighted_list_queries,
)


def problem(seed, n, n_bits, n_lists, n_probes, n_queries=3, spread=10.0, n_scanned=None):
    """Random codes in lists with their labels, and random queries of some of the lists."""
    rng = np.random.default_rng(seed)
    codes = Codes.from_bits(rng.integers(0, 2, (n, n_bits)))
    labels = rng.integers(0, n_lists, n).astype(np.int32)
    lists = Lists.build(codes, labels, n_lists, rng.normal(scale=spread, size=n))
    probes = np.stack([rng.permutation(n_lists)[:n_probes] for _ in range(n_queries)]).astype(np.int32)
    weights = rng.normal(size=(n_queries, n_scanned or n_bits))
    queries = list_queries(weights, probes, rng.normal(scale=spread, size=probes.shape), lists.grid)
    return codes, labels, lists, queries


def whole_distances(codes, labels, lists, queries):
    """Distances of all queries to all codes in whole numbers; those of codes that are not probed are ``MISSING``."""
    offsets = np.empty(len(codes), dtype=np.int64)
    offsets[lists.positions] = lists.offsets[: len(codes)]
    nibbles = np.stack([codes.packed & 15, codes.packed >> 4], axis=2)
    out = np.full((len(queries), len(codes)), MISSING, dtype=np.int64)
    for q in range(len(queries)):
        sums = (offsets * queries.factors[q]) >> 8
        for byte, halves in enumerate(queries.tables[q]):
            for half, table in enumerate(halves):
                sums = sums + table[nibbles[:, byte, half]]
        for number, start in zip(queries.probes[q], queries.starts[q], strict=True):
            if number >= 0:
                out[q, labels == number] = start + sums[labels == number]
    return out


def assert_nearest(whole, distances, positions, allowed=None):
    if allowed is not None:
        whole = np.where(allowed, whole, MISSING)
    k = distances.shape[1]
    padded = np.pad(whole, ((0, 0), (0, k)), constant_values=MISSING)
    order = np.argsort(padded, axis=1, kind="stable")[:, :k]
    expected = np.take_along_axis(padded, order, axis=1)
    assert np.array_equal(distances, expected)
    assert np.array_equal(positions, np.where(expected == MISSING, -1, order))


@given(st.integers(0, 2**32), st.integers(0, 300), st.integers(1, 150), st.integers(1, 9), st.data())
def test_the_search_equals_sorting_whole_distances(seed, n, n_bits, n_lists, data):
    n_probes, k = data.draw(st.integers(1, n_lists)), data.draw(st.integers(1, 60))
    n_scanned, spread = data.draw(st.integers(1, n_bits)), data.draw(st.sampled_from([0.0, 1.0, 100.0, 1e6]))
    codes, labels, lists, queries = problem(seed, n, n_bits, n_lists, n_probes, spread=spread, n_scanned=n_scanned)
    queries.probes[0, 0] = -1
    assert_nearest(whole_distances(codes, labels, lists, queries), *nearest_in_lists(lists, queries, k))


def weighted(projections, distance):
    if distance == "asymmetric":
        return asymmetric_queries(projections)
    return hamming_queries(Codes.from_bits(projections >= 0))


@given(st.integers(0, 2**32), st.integers(1, 300), st.integers(1, 200), st.integers(1, 9), st.data())
def test_weights_of_bits_give_the_distances_of_the_exhaustive_search(seed, n, n_bits, n_lists, data):
    rng = np.random.default_rng(seed)
    k, distance = data.draw(st.integers(1, n)), data.draw(st.sampled_from(["asymmetric", "hamming"]))
    codes = Codes.from_bits(rng.integers(0, 2, (n, n_bits)))
    lists = Lists.build(codes, rng.integers(0, n_lists, n).astype(np.int32), n_lists)
    queries = weighted(rng.normal(size=(3, n_bits)) * data.draw(st.sampled_from([1.0, 1e-30, 1e30, 0.0])), distance)
    prepared = weighted_list_queries(queries, n_bits, np.tile(np.arange(n_lists, dtype=np.int32), (3, 1)))
    expected, found = Tiles.from_codes(codes).nearest(queries, k), nearest_in_lists(lists, prepared, k)
    assert all(map(np.array_equal, found, expected))
    real = queries.real(expected[0])
    assert np.array_equal(prepared.real(found[0]), real)
    assert prepared.real(found[0]).dtype == real.dtype


@pytest.mark.parametrize(("n_bits", "distance"), [(2184, "asymmetric"), (32_767, "hamming")])
def test_the_longest_codes_have_exact_distances_in_lists(n_bits, distance):
    """The farthest code of each query is as far away as a code can be."""
    projections = np.random.default_rng(3).choice([-1.0, 1.0], size=(2, n_bits))
    codes = Codes.from_bits(np.concatenate([projections >= 0, projections < 0]))
    lists = Lists.build(codes, np.zeros(4, dtype=np.int32), 1)
    queries = weighted(projections, distance)
    expected = Tiles.from_codes(codes).nearest(queries, 4)
    found = nearest_in_lists(lists, weighted_list_queries(queries, n_bits, np.zeros((2, 1), dtype=np.int32)), 4)
    assert all(map(np.array_equal, found, expected))
    assert found[0].max() == queries.n_levels - 1


@given(st.integers(0, 2**32), st.integers(1, 300), st.integers(1, 9), st.floats(0, 1), st.integers(1, 40))
def test_only_allowed_codes_are_found(seed, n, n_lists, share, k):
    codes, labels, lists, queries = problem(seed, n, 40, n_lists, n_lists)
    mask = np.random.default_rng(seed).random(n) < share
    allowed = lists.allow(mask)
    assert np.array_equal(allowed.counts, np.bincount(labels[mask], minlength=n_lists))
    assert np.array_equal(lists.labels(), [labels])
    whole = whole_distances(codes, labels, lists, queries)
    assert_nearest(whole, *nearest_in_lists(lists, queries, k, allowed), mask)


@pytest.mark.parametrize(("n_lists", "n_probes"), [(1, 1), (3, 3), (40, 40), (400, 300)])
@pytest.mark.parametrize("k", [1, 50, 1500])
@pytest.mark.parametrize("n_bits", [2, 64])
def test_many_codes_are_searched_exactly(n_lists, n_probes, k, n_bits):
    """More than are measured before the radius is known; with two bits, most distances are equal."""
    spread = 1.0 if n_bits > 2 else 0.0
    codes, labels, lists, queries = problem(5, 20_000, n_bits, n_lists, n_probes, spread=spread)
    whole = whole_distances(codes, labels, lists, queries)
    assert_nearest(whole, *nearest_in_lists(lists, queries, k))
    mask = np.arange(20_000) % 3 == 1
    allowed = lists.allow(mask)
    assert_nearest(whole, *nearest_in_lists(lists, queries, k, allowed), mask)


@given(st.integers(0, 2**32), st.integers(1, 300), st.floats(0.01, 1e5))
def test_whole_distances_stand_for_the_real_ones(seed, n_bits, spread):
    rng = np.random.default_rng(seed)
    codes = Codes.from_bits(rng.integers(0, 2, (100, n_bits)))
    labels = rng.integers(0, 4, 100).astype(np.int32)
    list_weights, weights = rng.normal(scale=spread, size=(4, n_bits)), rng.normal(size=(2, n_bits))
    constants = rng.normal(scale=spread, size=(2, 4)).astype(np.float32)
    offsets = code_offsets(codes, labels, list_weights)
    lists = Lists.build(codes, labels, 4, offsets)
    queries = list_queries(weights, np.tile(np.arange(4, dtype=np.int32), (2, 1)), constants, lists.grid)
    distances, positions = nearest_in_lists(lists, queries, 100)
    signs = codes.to_signs().astype(float)
    real = constants[:, labels] - weights @ signs.T - np.einsum("ij,ij->i", list_weights[labels], signs)
    wrong = np.abs(queries.real(distances) - np.take_along_axis(real, positions, axis=1))
    # half a unit for each table and the constant, one for the offset and one for its factor; half a step of the grid
    allowed = queries.units * (np.ceil(n_bits / 4) / 2 + 2.5) + lists.grid.step / 2 + 1e-4 * np.abs(real).max()
    assert (wrong <= allowed[:, None]).all()


def test_residuals_of_an_auto_encoder_are_compared_by_its_distance():
    X = digits().astype(np.float32)
    centres = kmeans(X, 12, random_state=0)
    labels = centres.assign(X)
    hasher = BinaryAutoencoder(32, random_state=0, n_iterations=5).fit(X - centres.points[labels])
    codes = hasher.encode(X - centres.points[labels])
    origin = centres.origin
    offsets = code_offsets(codes, labels, hasher.distance_terms(origin - centres.points).weights)
    lists = Lists.build(codes, labels, 12, offsets)
    Q = X[:5] + 1
    probes, squared = centres.nearest(Q - hasher.mean_, 12)
    scanned = len(hasher.decoder_)
    zero = hasher.distance_terms(np.zeros_like(Q[:1])).weights
    weights = (hasher.distance_terms(Q - origin).weights - zero)[:, :scanned]
    queries = list_queries(weights, probes, squared + hasher.offset_, lists.grid)
    distances, positions = nearest_in_lists(lists, queries, len(X))
    expected = np.empty((5, len(X)))
    for number in range(12):
        terms = hasher.distance_terms(Q - centres.points[number])
        members = labels == number
        expected[:, members] = terms.constants[:, None] - terms.weights @ codes[members].to_signs().astype(float).T
    wrong = np.abs(queries.real(distances) - np.take_along_axis(expected, positions, axis=1))
    assert wrong.max() < 0.05 * expected.std()


@given(st.integers(0, 2**32), st.integers(1, 5), st.integers(1, 70), st.integers(1, 40))
def test_weights_of_queries_are_products_with_the_decoder(seed, n, width, n_bits):
    rng = np.random.default_rng(seed)
    Q, origin, decoder = rng.normal(size=(n, width)), rng.normal(size=width), rng.normal(size=(n_bits, width))
    weights = query_weights(Q.astype(np.float32), origin, decoder)
    assert np.allclose(weights, 2 * (Q - origin) @ decoder.T, atol=1e-3)
    assert np.array_equal(query_weights(Q[:1].astype(np.float32), origin, decoder), weights[:1])
    gaps, rows = np.abs(Q - origin), np.abs(decoder)
    unit, step = gaps.max(axis=1, keepdims=True) / 127, rows.max() / 127
    largest = step * gaps.sum(axis=1, keepdims=True) + unit * rows.sum(axis=1) + width * unit * step / 2
    rounded = rounded_weights(Q.astype(np.float32), origin.astype(np.float32), decoder.astype(np.float32))
    assert (np.abs(rounded - weights) <= 1.01 * largest + 1e-3).all()


@given(st.integers(0, 2**32), st.integers(1, 300), st.integers(1, 9))
def test_a_mask_is_written_in_the_order_of_lists_and_counted(seed, n, n_lists):
    rng = np.random.default_rng(seed)
    codes = Codes.from_bits(rng.integers(0, 2, (n, 8)))
    labels = rng.integers(0, n_lists, n).astype(np.int32)
    lists = Lists.build(codes, labels, n_lists)
    mask = rng.random(n) < 0.3
    allowed = lists.allow(mask)
    slots = np.unpackbits(allowed.bitmap.view(np.uint8), bitorder="little")
    assert np.array_equal(slots[:n], mask[lists.positions])
    assert not slots[n:].any()
    assert np.array_equal(allowed.counts, np.bincount(labels[mask], minlength=n_lists))
    assert np.array_equal(lists.labels(), labels[np.newaxis])


@given(st.integers(0, 2**32), st.integers(1, 300), st.integers(2, 9))
def test_a_mask_counts_for_both_copies(seed, n, n_lists):
    rng = np.random.default_rng(seed)
    labels = np.array([rng.permutation(n_lists)[:2] for _ in range(n)], dtype=np.int32)
    lists = Lists.build(Codes.from_bits(rng.integers(0, 2, (2 * n, 8))), labels.ravel(), n_lists, copies=2)
    mask = rng.random(n) < 0.3
    allowed = lists.allow(mask)
    slots = np.unpackbits(allowed.bitmap.view(np.uint8), bitorder="little")
    assert np.array_equal(slots[: 2 * n], mask[lists.positions])
    assert np.array_equal(allowed.counts, np.bincount(labels[mask].ravel(), minlength=n_lists))
    assert np.array_equal(lists.labels(), np.sort(labels.T, axis=0))


def test_codes_can_be_read_back():
    codes, labels, lists, _ = problem(8, 200, 77, 9, 1)
    assert np.array_equal(codes_of(lists).packed, codes.packed)
    for number in range(9):
        members = lists.positions[lists.bounds[number] : lists.bounds[number + 1]]
        assert np.array_equal(members, np.flatnonzero(labels == number))


def test_offsets_beyond_a_given_grid_get_its_ends():
    codes = Codes.from_bits(np.zeros((3, 8), dtype=int))
    lists = Lists.build(codes, np.zeros(3, dtype=np.int32), 1, np.array([-5.0, 1.0, 900.0]), OffsetGrid(0.0, 1.0))
    assert lists.offsets[:3].tolist() == [0, 1, 255]


@pytest.mark.parametrize("wrong", [1e30, 3e38, np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("place", ["weights", "constants", "both"])
def test_kernels_survive_numbers_that_are_too_large_or_not_finite(wrong, place):
    n, n_lists = 3000, 9
    rng = np.random.default_rng(0)
    codes = Codes.from_bits(rng.integers(0, 2, (n, 20)))
    lists = Lists.build(codes, rng.integers(0, n_lists, n).astype(np.int32), n_lists, rng.normal(size=n))
    weights, constants = (rng.normal(size=(3, width)).astype(np.float32) for width in (20, n_lists))
    if place != "constants":
        weights[1, 3] = wrong
    if place != "weights":
        constants[1, 2] = wrong
    probes = np.tile(np.arange(n_lists, dtype=np.int32), (3, 1))
    for grid in (lists.grid, OffsetGrid(wrong, 1.0), OffsetGrid(0.0, wrong)):
        with np.errstate(all="ignore"):
            queries = list_queries(weights, probes, constants, grid)
            found, positions = nearest_in_lists(lists, queries, 700)
            queries.real(found)
        assert queries.starts.min() >= 0
        assert queries.starts.max() <= 2**30
        assert queries.tables.max() <= 127
        assert positions.min() >= -1
        assert positions.max() < n
        for row in positions:
            assert len(set(row[row >= 0])) == (row >= 0).sum()


def test_lists_of_nothing_give_nothing():
    lists = Lists.build(Codes.from_bits(np.empty((0, 16), dtype=int)), np.empty(0, dtype=np.int32), 2)
    queries = list_queries(np.ones((2, 16)), np.zeros((2, 1), dtype=np.int32), np.zeros((2, 1)), lists.grid)
    distances, positions = nearest_in_lists(lists, queries, 3)
    assert (positions == -1).all()
    assert (distances == MISSING).all()


def test_wrong_arguments_are_explained():
    codes, labels, _, _ = problem(9, 20, 16, 3, 2)
    with pytest.raises(DataError, match="labels must give a list from 0 to 1 for each of the 20 codes"):
        Lists.build(codes, labels, 2)
    with pytest.raises(DataError, match="a weight for each of the 16 bits"):
        code_offsets(codes, labels, np.zeros((3, 15)))


@pytest.mark.rare
def test_a_machine_without_tables_in_registers_finds_the_same(tmp_path):
    program = (
        "from tests.search.list_steps import nearest_in_lists\n"
        "from tests.search.test_lists import assert_nearest, problem, whole_distances\n"
        "codes, labels, lists, queries = problem(1, 6000, 70, 40, 30)\n"
        "assert_nearest(whole_distances(codes, labels, lists, queries), *nearest_in_lists(lists, queries, 50))\n"
    )
    environment = {
        **os.environ,
        "NUMBA_CPU_NAME": "generic",
        "NUMBA_CPU_FEATURES": "",
        "NUMBA_CACHE_DIR": str(tmp_path),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    result = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False, timeout=1200
    )
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("feature", ["avx512vbmi", "avx512bw", "avx2", "ssse3", "neon", "none"])
def test_tables_are_read_by_each_instruction_that_there_is(feature, monkeypatch):
    if feature != "none" and not lookup.machine_has(feature):
        pytest.skip(f"this machine has no {feature}")
    monkeypatch.setattr(lookup, "machine_has", lambda name: name == feature)

    @intrinsic
    def read(typing_context, table, indices, out):
        def generate(context, builder, signature, arguments):
            pointers = [context.make_array(signature.args[i])(context, builder, arguments[i]).data for i in range(3)]
            values = lookup._look_up(builder, pointers[0], load(builder, pointers[1], lookup._BYTES, 1))
            builder.store(values, builder.bitcast(pointers[2], lookup._BYTES.as_pointer())).align = 1
            return context.get_dummy_value()

        return types.void(table, indices, out), generate

    @numba.njit
    def call(table, indices, out):
        read(table, indices, out)

    rng = np.random.default_rng(0)
    table, values = rng.integers(0, 128, 16).astype(np.uint8), rng.integers(0, 256, 64).astype(np.uint8)
    out = np.empty(64, dtype=np.uint8)
    call(table, values, out)
    assert np.array_equal(out, table[values & 15])
