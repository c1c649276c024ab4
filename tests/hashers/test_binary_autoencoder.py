"""The binary auto-encoder: its search against an independent one, its decoder, and the distance that it is made for."""

import itertools
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import autojacobin
from autojacobin import ITQ, BinaryAutoencoder, Codes, DataError, NotFittedError
from autojacobin.evaluation import ground_truth, m_recall
from autojacobin.hashers.autoencoders import tabu_search
from autojacobin.hashers.autoencoders.tabu_search import ERROR_SHARE, Decoder, Offsets, search_codes, waits
from tests.hashers.methods import digits, fitted
from tests.search.gpu_kernels import compile_for_cpu, run_on_cpu


def error(X, weights, middle, signs):
    return ((X - middle - signs @ weights) ** 2).sum(axis=1)


def offsets_of(y, C, signs):
    decoded = signs @ C
    return (decoded**2).sum(axis=1) + ERROR_SHARE * ((y - decoded) ** 2).sum(axis=1)


def objective(y, C, signs, offsets):
    """The error of codes plus what rounding their offsets to the levels costs, in float64."""
    errors = ((y - signs @ C) ** 2).sum(axis=1)
    if offsets is None:
        return errors
    levels = offsets.low + offsets.step * np.arange(2**offsets.n_bits)
    rest = offsets_of(y, C, signs) - signs @ offsets.slope
    return errors + 8 / np.sum(C**2) * ((rest[:, None] - levels) ** 2).min(axis=1)


def tabu_by_the_formula(y, C, s, n_steps, offsets):
    """The same search with every cost computed from scratch, in float64."""
    shortest, longest = waits(len(s))
    ready, wait = np.zeros(len(s), dtype=int), shortest
    best, lowest = s.copy(), objective(y, C, s[None], offsets)[0]
    for step in range(n_steps):
        flipped = s * (1 - 2 * np.eye(len(s)))
        errors = objective(y, C, flipped, offsets)
        errors[(ready > step) & (errors >= lowest)] = np.inf
        j = errors.argmin()
        s = flipped[j]
        ready[j], wait = step + wait, shortest if wait == longest else wait + 1
        if errors[j] < lowest:
            best, lowest = s.copy(), errors[j]
    return best


@given(
    d=st.integers(2, 40),
    D=st.integers(8, 30),
    n_steps=st.integers(0, 60),
    n_level_bits=st.none() | st.integers(0, 4),
    seed=st.integers(0, 2**32 - 1),
)
def test_the_search_is_the_one_of_the_formula(d, D, n_steps, n_level_bits, seed):
    rng = np.random.default_rng(seed)
    C, middle, X = rng.normal(size=(d, D)), rng.normal(size=D), rng.normal(size=(5, D)) * np.sqrt(d)
    first = rng.choice([-1, 1], size=(5, d)).astype(np.int8)
    offsets = None
    if n_level_bits is not None:
        offsets = Offsets(rng.normal(size=d), rng.normal(), rng.uniform(0.5, 5.0), n_level_bits)
    found, levels = search_codes(X, Decoder.prepare(C, middle, offsets), n_steps, signs=first)
    expected = [
        tabu_by_the_formula(x - middle, C, s.astype(float), n_steps, offsets) for x, s in zip(X, first, strict=True)
    ]
    costs = [
        [objective(x - middle, C, code[None].astype(float), offsets)[0] for code in codes]
        for x, codes in zip(X, zip(found, expected, strict=True), strict=True)
    ]
    agree = np.isclose(*np.transpose(costs), rtol=1e-3, atol=1e-3)
    if offsets:
        rest = np.array([offsets_of(x - middle, C, s[None].astype(float))[0] for x, s in zip(X, found, strict=True)])
        rest -= found @ offsets.slope
        off = np.abs(np.clip((rest - offsets.low) / offsets.step, 0, 2**n_level_bits - 1) - levels)
        assert off.max() < 0.51
    # rounding may decide between two flips that are as good, and the path is another one from there
    assert agree.mean() >= 0.6


@pytest.mark.rare
@pytest.mark.parametrize(("d", "n_level_bits"), [(20, None), (32, 3), (45, 5)])
def test_the_kernel_of_a_gpu_searches_as_a_cpu_does(d, n_level_bits, monkeypatch):
    if shutil.which("g++") is None:
        pytest.skip("no C++ compiler")
    source = Path(tabu_search.__file__).with_name("tabu.cu").read_text(encoding="utf-8")

    library = compile_for_cpu(source, ["tabu"], (f"-DWORDS={-(-d // 32)}",))

    def kernel(*_):
        return lambda grid, threads, arguments: run_on_cpu(library, "tabu", grid, *threads, arguments)

    monkeypatch.setattr(tabu_search, "_cuda_kernel", kernel)
    rng = np.random.default_rng(0)
    C, middle, X = (rng.normal(size=shape).astype(np.float32) for shape in ((d, 30), (30,), (40, 30)))
    X *= np.sqrt(d)
    X[7, 3] = np.inf
    offsets = None
    if n_level_bits is not None:
        offsets = Offsets(rng.normal(size=d), rng.normal(), rng.uniform(0.5, 5.0), n_level_bits)
    decoder, start = Decoder.prepare(C, middle, offsets), rng.normal(size=(d, d)).astype(np.float32)
    first = rng.choice([-1, 1], size=(40, d)).astype(np.int8)
    for has_signs in (True, False):
        for n_steps in (0, 1, 60):
            begin = {"signs": first} if has_signs else {"start": start}
            expected, expected_levels = search_codes(X, decoder, n_steps, **begin)
            with np.errstate(invalid="ignore"):
                found, levels = tabu_search._search_on_gpu(X, decoder, n_steps, start, first, has_signs)
            same = (found == expected).all(axis=1)  # rounding may decide between two flips
            assert np.isnan(found[7]).all()
            assert same.sum() >= 35
            assert np.array_equal(levels[same], expected_levels[same])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_short_codes_are_mostly_the_best_of_all(dtype):
    rng = np.random.default_rng(0)
    C, middle, X = (rng.normal(size=shape).astype(dtype) for shape in ((8, 12), (12,), (50, 12)))
    start = np.eye(8, dtype=np.float32)
    found, _ = search_codes(X, Decoder.prepare(C, middle), 300, start=start)
    all_codes = np.array(list(itertools.product((-1, 1), repeat=8)), dtype=dtype)
    errors = np.array([error(X, C, middle, code[None]) for code in all_codes])
    best = np.isclose(error(X, C, middle, found), errors.min(axis=0), rtol=1e-4)
    assert best.mean() >= 0.9


def test_a_longer_search_reconstructs_better():
    hasher, X = BinaryAutoencoder(32, random_state=0).fit(digits()[:600]), digits()[600:]
    errors = []
    for effort in (0, 1, 2, 4, 8):
        errors.append(((X - hasher.set_params(effort=effort).decode(hasher.encode(X))) ** 2).sum(axis=1).mean())
    assert all(after <= before * 1.001 for before, after in itertools.pairwise(errors))
    assert errors[1] < 0.95 * errors[0]


def test_the_error_falls_in_training_and_is_what_decode_leaves():
    X = digits()[:900].astype(np.float64)
    hasher = BinaryAutoencoder(24, n_iterations=20, ridge=0, random_state=0).fit(X)
    errors = hasher.reconstruction_error_
    assert errors.shape == (20,)
    assert np.all(np.diff(errors[:6]) <= 1e-9)  # then some bits go to the levels of the offsets
    assert errors[5] < 0.9 * errors[0]
    assert errors[-1] < errors[6]
    left = ((X - hasher.decode(hasher.encode(X))) ** 2).sum() / ((X - X.mean(axis=0)) ** 2).sum()
    assert left == pytest.approx(errors[-1], rel=0.02)


def test_the_decoder_is_the_least_squares_one():
    X = digits()[:500].astype(np.float64)
    hasher = BinaryAutoencoder(12, ridge=0, n_iterations=30, effort=8, random_state=0).fit(X)
    signs = hasher.encode(X).to_signs().astype(np.float64)
    d = len(hasher.decoder_)
    solution = np.linalg.lstsq(np.c_[signs[:, :d], np.ones(500)], X, rcond=None)[0]
    assert np.abs(hasher.decoder_ - solution[:d]).max() < 0.05 * np.abs(solution).max()
    assert np.abs(hasher.mean_ - solution[d]).max() < 0.05 * np.abs(solution).max()


def test_the_terms_of_the_distance_add_up_to_it():
    X = digits().astype(np.float64)
    hasher = BinaryAutoencoder(40, random_state=0).fit(X[:1000])
    queries, base = X[1000:1030], X[1100:1400]
    codes = hasher.encode(base)
    decoded = hasher.decode(codes)
    terms = hasher.distance_terms(queries)
    assert terms.n_level_bits == 40 - len(hasher.decoder_) > 0
    found = terms.constants[:, None] - terms.weights @ codes.to_signs().T
    errors = ((base - decoded) ** 2).sum(axis=1)
    off = found - ((queries[:, None, :] - decoded) ** 2).sum(axis=2) - ERROR_SHARE * errors
    assert np.allclose(off, off[0], atol=1e-6 * np.abs(found).max())  # rounding to a level, the same for all queries
    step = 2 * hasher.slope_[len(hasher.decoder_)]
    assert np.mean(np.abs(off[0]) <= 0.51 * step) > 0.95  # the other offsets lie beyond the levels
    assert np.abs(off[0]).mean() < 0.15 * errors.mean()


def test_projections_order_codes_as_the_terms_do():
    hasher, X = fitted("BinaryAutoencoder"), digits()[300:360]
    assert np.array_equal(hasher.project(X), hasher.distance_terms(X).weights)


@pytest.mark.parametrize("n_bits", [32, pytest.param(48, marks=pytest.mark.rare)])
def test_by_its_own_distance_it_finds_more_than_itq_asymmetrically(n_bits):
    X = digits()
    base, queries = X[:1400], X[1400:]
    truth = ground_truth(base, queries, 10)
    itq = ITQ(n_bits, random_state=0).fit(base)
    _, asymmetric = autojacobin.search.asymmetric_topk(itq.project(queries), itq.encode(base), 140)
    for seed in range(3):
        hasher = BinaryAutoencoder(n_bits, random_state=seed).fit(base)
        _, ids = autojacobin.search.decoded_topk(hasher.distance_terms(queries), hasher.encode(base), 140)
        assert m_recall(ids, truth, 10, 140) > m_recall(asymmetric, truth, 10, 140) + 0.015


def test_more_bits_than_features_reconstruct_better():
    X = digits()[:900, 20:30]
    errors = [BinaryAutoencoder(n_bits, random_state=0).fit(X).reconstruction_error_[-1] for n_bits in (5, 10, 20, 40)]
    assert all(after < 0.7 * before for before, after in itertools.pairwise(errors))


def test_threads_do_not_change_the_codes(monkeypatch):
    X = digits()[:700]
    codes = []
    for cores in (1, 3):
        monkeypatch.setattr("autojacobin.core.parallel.usable_cores", lambda cores=cores: cores)
        hasher = BinaryAutoencoder(24, random_state=0).fit(X)
        codes.append(hasher.encode(digits()))
    assert codes[0] == codes[1]


def test_a_row_has_the_same_code_alone_and_among_others():
    hasher, X = fitted("BinaryAutoencoder"), digits()[300:400]
    alone = Codes.concatenate(hasher.encode(row[None]) for row in X)
    assert alone == hasher.encode(X)


def test_a_row_that_is_not_finite_leaves_the_others_as_they_are():
    rng = np.random.default_rng(0)
    C, middle, X = (rng.normal(size=shape).astype(np.float32) for shape in ((20, 13), (13,), (19, 13)))
    decoder, start = Decoder.prepare(C, middle), np.eye(20, dtype=np.float32)
    expected, _ = search_codes(X, decoder, 40, start=start)
    X[3], X[9] = np.nan, np.inf
    found, _ = search_codes(X, decoder, 40, start=start)
    others = np.delete(np.arange(19), [3, 9])
    assert np.isnan(found[[3, 9]]).all()
    assert np.array_equal(found[others], expected[others])


@pytest.mark.parametrize(("n_bits", "effort", "n_steps"), [(100, 2, 200), (128, 1, 128), (300, 1, 128), (300, 3, 384)])
def test_long_codes_are_searched_in_no_more_steps_than_those_of_128_bits(n_bits, effort, n_steps):
    hasher = BinaryAutoencoder(n_bits, n_iterations=2, effort=effort, random_state=0).fit(digits()[:400])
    X = digits()[400:500]
    decoder = Decoder.prepare(hasher.decoder_, hasher.mean_, hasher._offsets())
    expected, _ = search_codes(X, decoder, n_steps, start=hasher.start_)
    assert np.array_equal(hasher.encode(X).to_signs()[:, : len(hasher.decoder_)], expected)


def test_progress_counts_the_iterations():
    seen = []
    BinaryAutoencoder(8, n_iterations=3, progress=lambda *words: seen.append(words)).fit(digits()[:100])
    assert seen == [("training", 1, 3), ("training", 2, 3), ("training", 3, 3)]


def test_points_that_are_not_finite_are_named():
    hasher = fitted("BinaryAutoencoder")
    X = digits()[:30].copy()
    X[7, 3] = np.nan
    with pytest.raises(DataError, match="NaN in row 7, column 3"):
        hasher.encode(X)
    with pytest.raises(DataError, match="too large to project in float32"):
        hasher.encode(np.full((1, 64), 3e38, dtype=np.float32))


def test_codes_of_another_length_and_unfitted_hashers_are_refused():
    hasher, codes = fitted("BinaryAutoencoder"), Codes.from_bits(np.ones((2, 9), dtype=bool))
    with pytest.raises(DataError, match="the codes have 9 bits, but this BinaryAutoencoder gives codes of 16"):
        hasher.decode(codes)
    with pytest.raises(NotFittedError):
        BinaryAutoencoder(9).distance_terms(digits()[:3])


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"effort": -1}, "effort of BinaryAutoencoder must be an integer from 0 to 1,000"),
        ({"n_iterations": 0}, "n_iterations of BinaryAutoencoder must be an integer from 1 to 1,000,000"),
        ({"ridge": -1}, "ridge of BinaryAutoencoder"),
        ({"device": "tpu"}, "'cpu' or 'cuda'"),
    ],
)
def test_parameters_outside_their_limits_are_named(parameters, message):
    with pytest.raises(DataError, match=message):
        BinaryAutoencoder(4, **parameters).fit(digits()[:50])
