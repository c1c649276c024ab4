"""The tabu search and the counts of what is found, number by number as NumPy and Python compute them, at every level.

``tests/hashers/test_binary_autoencoder.py`` compares the search with one that follows the formula in float64.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

f4 = np.float32


def product(values, matrix):
    """``values @ matrix``, where four products are added before they come to the sum."""
    terms = values[:, None] * matrix
    whole = len(terms) - len(terms) % 4
    sums = np.zeros(matrix.shape[1], dtype=matrix.dtype)
    for a, b, c, d in terms[:whole].reshape(-1, 4, matrix.shape[1]):
        sums = sums + ((a + b) + (c + d))
    for term in terms[whole:]:
        sums = sums + term
    return sums


def total(terms):
    """The sum in 16 parts, then of their halves, down to one number."""
    parts = np.zeros(16, dtype=f4)
    for some in np.pad(terms.astype(f4), (0, -len(terms) % 16)).reshape(-1, 16):
        parts = parts + some
    while len(parts) > 1:
        parts = parts[: len(parts) // 2] + parts[len(parts) // 2 :]
    return parts[0]


def off_grid(level, top):
    off = level - np.rint(np.minimum(np.maximum(level, f4(0)), top))
    return off * off


def search(x, case, first):
    """The code of one vector and its level, in float32."""
    trace, share, low, per_step, top, stiffness = map(f4, case["constants"])
    slope, gram, slack = case["slope"], case["gram"], f4(case["slack"])
    y = (x - case["middle"]) * x.dtype.type(case["inverse"])
    b = product(y, case["columns"]).astype(f4)
    s = np.where(product(b, case["start"]) >= 0, f4(1), f4(-1)) if first is None else first.astype(f4)
    half = f4(0.5) * product(s, gram)
    energy, size = total(y * y), total(np.abs(b))
    if not size + energy < np.inf:
        return np.full(len(b), np.nan, dtype=f4), f4(0)
    norm = total(s * half) + trace
    offset = norm + share * (energy - f4(2) * total(s * b) + norm) - f4(2) * total(s * slope)
    level = best_level = (f4(0.25) * offset - low) * per_step
    v, shifts, both = s * (b - half), per_step * (s * (b - slope)), per_step * (f4(1) + share)
    place = np.int32(2 ** (len(s) - 1).bit_length() - 1)
    ready, best, slack = np.zeros(len(s), dtype=int), s.copy(), slack * size
    change = lowest = f4(0)
    penalty = stiffness * off_grid(level, top)
    shortest, longest = case["waits"]
    wait = shortest
    for step in range(case["n_steps"]):
        costs = v + stiffness * off_grid((level - shifts) + both * v, top)
        offered = ((costs.view(np.int32) & ~place) | np.arange(len(s), dtype=np.int32)).view(f4)
        counts = (ready <= step) | (costs < (lowest - change - slack) + penalty)
        j = np.where(counts, offered, f4(np.inf)).argmin()
        if not counts[j]:
            break
        level = level + (both * v[j] - shifts[j])
        before, penalty = penalty, stiffness * off_grid(level, top)
        change = change + (v[j] + (penalty - before))
        v[j], shifts[j] = -v[j], -shifts[j]
        v = v + s * s[j] * gram[j]
        s[j], ready[j] = -s[j], step + wait
        wait = shortest if wait == longest else wait + 1
        if change < lowest - slack:
            lowest, best, best_level = change, s.copy(), level
    return best, best_level


def filled(matrix):
    return np.pad(matrix, ((0, 0), (0, -matrix.shape[1] % 16)))


def at_an_odd_address(array):
    memory = np.zeros(array.size + 1, dtype=array.dtype)
    memory[1:] = array.ravel()
    memory.flags.writeable = False
    return memory[1:].reshape(array.shape)


def make_case(rng, d, D, n_level_bits, n_steps, dtype):
    C = rng.normal(size=(d, D))
    gram = 2 * C @ C.T
    np.fill_diagonal(gram, 0)
    top = 2.0**n_level_bits - 1
    return {
        "middle": rng.normal(size=D).astype(dtype), "columns": C.T.astype(dtype), "inverse": 0.5,
        "gram": gram.astype(f4), "slope": rng.normal(size=d).astype(f4),
        "constants": ((C**2).sum(), 0.6, rng.normal(), rng.uniform(0.2, 2), top, 0.3 if n_level_bits else 0.0),
        "start": rng.normal(size=(d, d)).astype(f4), "n_steps": n_steps,
        "waits": (1 + min(3, d // 4), 1 + min(7, d // 2)), "slack": 1e-6,
    }  # fmt: skip


def run(kernels, X, case, first, **changed):
    arguments = {**case, "signs": np.empty((0, len(case["gram"])), dtype=np.int8) if first is None else first}
    arguments |= {name: at_an_odd_address(filled(case[name])) for name in ("columns", "gram", "start")}
    arguments["constants"] = tuple(map(float, map(f4, case["constants"])))
    codes, levels = np.empty((len(X), len(case["gram"])), dtype=f4), np.empty(len(X), dtype=f4)
    kernels.tabu_search(**{"X": at_an_odd_address(X), "codes": codes, "levels": levels, **arguments, **changed})
    return codes, levels


@given(
    seed=st.integers(0, 2**32), d=st.integers(1, 70), D=st.integers(1, 40), n=st.integers(0, 19),
    n_level_bits=st.integers(0, 4), n_steps=st.integers(0, 90), given_signs=st.booleans(),
    dtype=st.sampled_from([np.float32, np.float64]),
)  # fmt: skip
def test_codes_are_those_of_numpy(kernels, seed, d, D, n, n_level_bits, n_steps, given_signs, dtype):
    rng = np.random.default_rng(seed)
    case = make_case(rng, d, D, n_level_bits, n_steps, dtype)
    X = (rng.normal(size=(n, D)) * np.sqrt(d)).astype(dtype)
    X[3:4, -1], X[11:12, 0] = np.nan, np.inf
    first = rng.choice([-1, 1], size=(n, d)).astype(np.int8) if given_signs else None
    codes, levels = run(kernels, X, case, first)
    with np.errstate(invalid="ignore", over="ignore"):
        expected = [search(x, case, None if first is None else first[i]) for i, x in enumerate(X)]
    for i, (code, level) in enumerate(expected):
        assert np.array_equal(codes[i], code, equal_nan=True)
        assert levels[i] == level


@pytest.mark.parametrize("d", [2, 16, 17, 512])
def test_a_row_has_the_same_code_in_every_block(kernels, d):
    rng = np.random.default_rng(d)
    case, X = make_case(rng, d, 9, 3, 2 * d, f4), rng.normal(size=(8, 9)).astype(f4)
    together = run(kernels, X, case, None)
    for n in (1, 7):
        for alone, all_rows in zip(run(kernels, X[:n], case, None), together, strict=True):
            assert np.array_equal(alone, all_rows[:n])


def test_wrong_shapes_of_a_search_are_refused(kernels):
    rng = np.random.default_rng(0)
    case, X = make_case(rng, 5, 3, 2, 4, f4), rng.normal(size=(2, 3)).astype(f4)
    first = np.ones((2, 5), dtype=np.int8)
    wrong = {
        "middle": case["middle"][:-1], "columns": case["columns"].copy("C"), "gram": case["gram"],
        "slope": case["slope"][1:], "signs": first[1:], "codes": np.empty((2, 4), dtype=f4),
        "levels": np.empty(3, dtype=f4),
    }  # fmt: skip
    for name, array in wrong.items():
        with pytest.raises(ValueError, match="wrong argument of a kernel"):
            run(kernels, X, case, first, **{name: array})
    with pytest.raises(ValueError, match="either signs must have a row for each of X, or start the shape of gram"):
        run(kernels, X, case, None, start=np.empty((0, 16), dtype=f4))


def hits_one_by_one(nearness, first, counts, candidates, n_thresholds):
    """Neighbours found by each query, threshold and number of candidates."""
    found = np.zeros((len(first), n_thresholds, len(candidates)))
    for q, t, step in np.ndindex(found.shape):
        scanned = [place for place, start in zip(nearness[q], first[q], strict=True) if place >= 0 and start <= t]
        found[q, t, step] = sum(place < counts[q] for place in scanned[: candidates[step]])
    return found


@given(
    seed=st.integers(0, 2**32), n_queries=st.integers(0, 5), n_codes=st.integers(0, 40), n_thresholds=st.integers(1, 6),
    n_steps=st.integers(1, 8),
)  # fmt: skip
def test_hits_are_those_that_are_counted_one_by_one(kernels, seed, n_queries, n_codes, n_thresholds, n_steps):
    rng = np.random.default_rng(seed)
    nearness = rng.integers(-1, 20, (n_queries, n_codes), dtype=np.int32)
    first = rng.integers(0, n_thresholds + 1, (n_queries, n_codes), dtype=np.uint8)
    counts, totals = rng.integers(0, 20, n_queries), rng.uniform(1, 20, n_queries)
    candidates = np.unique(rng.integers(1, 50, n_steps))
    sums, squares, products = kernels.sum_hits(nearness, first, counts, totals, candidates, n_thresholds)
    found = hits_one_by_one(nearness, first, counts, candidates, n_thresholds)
    assert np.array_equal(sums, found.sum(axis=0))
    assert np.array_equal(squares, (found**2).sum(axis=0))
    assert np.allclose(products, (found * totals[:, None, None]).sum(axis=0))


def test_wrong_arguments_of_the_hits_are_refused(kernels):
    zeros = np.zeros((2, 3), dtype=np.int32)
    counts, totals, candidates = np.ones(2, dtype=np.int64), np.ones(2), np.array([1, 2])
    with pytest.raises(ValueError, match="a row for each query"):
        kernels.sum_hits(zeros, np.zeros((2, 4), dtype=np.uint8), counts, totals, candidates, 2)
    with pytest.raises(ValueError, match="from 0 to n_thresholds"):
        kernels.sum_hits(zeros, np.full((2, 3), 3, dtype=np.uint8), counts, totals, candidates, 2)
