"""The nearest centres of queries.

Squared distances are estimated by products of bytes (``byte_products.py``), and those centres are measured whose
estimate exceeds that of the n-th by at most four standard deviations. With one million SIFT descriptors and 4,096
centres, all of the nearest were found for each of 1,000 queries. A rule takes estimates as they are where their error
is small beside what they decide: below a fiftieth of the distance of the nearest centre, which is always measured, and
below the *tolerance*, which a search sets by the error of its codes. Sums of whole numbers do not depend on their
order, so the centres of a query do not depend on what else is searched for.

*The rule.* Which lists are scanned may depend on how many neighbours are expected in them. The expected number λ of
neighbours in the list of rank i, whose centre is at the squared distance d_i², is learned:

    log λ = w0 + w1 log(d_i² / d_0²) + w2 log(1 + i) + w3 log(d_64² / d_0²)

A list is scanned if log λ is at or above a threshold. There may be rules for several numbers of neighbours, the
*levels*. With a filter, ranks count the lists that hold an allowed vector. The sum of λ times the share of the list's
vectors that are allowed is how many allowed neighbours a query can expect. It takes the first level that is enough.

*Cells.* Many centres are in cells of 64 near ones, and only the cells whose means are nearest to the query are looked
at. Some of the nearest centres are missed then, mostly the farthest of them.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from autojacobin.core.compilation import intrinsic, kernel, trailing_zeros, use_wide_registers
from autojacobin.core.simd import WORD, everywhere, load
from autojacobin.search.kernels.byte_products import (
    CENTRES_PER_GROUP,
    QUERIES_AT_ONCE,
    estimate,
    multiply_one,
    multiply_some,
    round_query,
    scale_of,
)
from autojacobin.search.kernels.selection import MOST_RANKED, kth_smallest, limit_of, sort_keys

# What tunes the search
FEWEST_IN_CELLS = 2**12  # centres; the nearest of fewer are found as fast without cells
_SHARE_LOOKED_AT = 0.4  # a query looks at this share of √(number of cells × number of centres it wants)
_DEVIATIONS = 4.0
_HALVINGS = 5  # of the range in which the last of the lists is
_MOST_TURNS = 4  # of measuring the lists that the rule may want

# What correctness needs: what knowledge was learned with
_FAR_RANK = 64  # of the list whose distance d_64 the rule compares with
_LARGEST_ERROR = 0.02  # of estimates, as a share of the squared distance of the nearest centre
_SMALLEST_SHARE = 1e-6  # of the squared distance of that rank
_TINY = 1e-37
_LARGEST = np.finfo(np.float32).max


@kernel
def nearest_centres(
    X: Any, points: Any, origin: Any, groups: Any, members: Any, norms: Any, rounding: Any, cells: Any, rule: Any,
    shares: Any, labels: Any, squared: Any,
) -> None:  # fmt: skip
    """Write the nearest centres of each row and their squared distances, in this order; of equal ones the first.

    If there is a rule, only the centres are written whose lists are worth to be scanned by it, and then -1; the nearest
    one is always written. For each level, ``rule`` has w0, w1, w2, w3, the smallest log λ of such a list and how many
    allowed neighbours are wanted; without a rule, it is empty. ``shares`` is the allowed share of each list; without a
    filter, it is empty, and the first level counts.

    ``groups`` holds the centres less the origin as :func:`write_groups` gives them, in the order of ``members``, and
    ``norms`` their squared norms, filled up with infinity. Centres with an infinite norm do not count; where there are
    too few others, -1 is written. ``rounding`` is the step of the centres, the largest whole number, the largest norm
    and the tolerance: the largest error of an estimate that a rule may write.
    ``cells`` holds the means of the groups as groups of their own, their norms, and how many groups to look at; 0
    stands for all.
    """
    use_wide_registers()
    step, largest, largest_norm, tolerance = rounding
    means, norms_of_means, n_cells = cells
    n, width, wanted = X.shape[0], np.uint64(X.shape[1]), labels.shape[1]
    at_once = QUERIES_AT_ONCE if n > 1 and n_cells == 0 else 1
    asked = np.zeros((at_once, 4 * groups.shape[1]), dtype=np.int8)
    products = np.empty((at_once, norms.shape[0]), dtype=np.int32)
    estimates = np.empty(norms.shape[0], dtype=np.float32)
    looked_at = np.arange(groups.shape[0])
    units, squares = np.empty(at_once), np.empty(at_once)
    shifted = np.empty(X.shape[1], dtype=np.float32)
    enough = wanted  # nearest centres; the rule compares with the far one, and with a filter it needs all
    if rule.shape[0] == 0:
        tolerance = -1.0
    else:
        enough = max(wanted, _FAR_RANK + 1) if shares.shape[0] > 0 else _FAR_RANK + 1
    n_keys = norms.shape[0]  # at most; kth_smallest writes up to a multiple of 64
    keys, upper, ranked = np.empty(n_keys, np.int64), np.empty(n_keys, np.int32), np.empty(MOST_RANKED, np.int64)
    for first in range(0, n, at_once):
        some = min(at_once, n - first)
        for i in range(np.uint64(some)):
            for j in range(width):
                shifted[j] = X[np.uint64(first) + i, j] - origin[j]
            units[i], squares[i] = round_query(shifted, largest, asked, i)
        n_looked_at = groups.shape[0]
        if n_cells > 0:
            for group in range(means.shape[0]):
                multiply_one(asked, means, group, products, group * CENTRES_PER_GROUP)
            constant, factor = scale_of(asked[0], step * units[0], largest, squares[0])
            for group in range(means.shape[0]):
                estimate(products[0], estimates, group, norms_of_means, group, constant, factor)
            n_looked_at = _choose_cells(estimates[: norms_of_means.shape[0]], n_cells, looked_at)
        for place in range(n_looked_at):
            if some == 1:
                multiply_one(asked, groups, looked_at[place], products, place * CENTRES_PER_GROUP)
            else:
                multiply_some(asked, groups, looked_at[place], products, place * CENTRES_PER_GROUP)
        for i in range(np.uint64(some)):
            q, row = np.uint64(first) + i, products[i]
            constant, factor = scale_of(asked[i], step * units[i], largest, squares[i])
            for place in range(n_looked_at):
                estimate(row, estimates, place, norms, looked_at[place], constant, factor)
            near = estimates[: CENTRES_PER_GROUP * n_looked_at]
            error = 2 * math.sqrt((step * step * squares[i] + units[i] * units[i] * largest_norm) / 12)
            found = _nearest_few(near, enough, looked_at, members, keys)
            nearest, room = _measured(X, q, points, found), np.float32(-1)
            if error > min(tolerance, _LARGEST_ERROR * np.float64(_distance_of(nearest))):
                room = np.float32(min(_DEVIATIONS * error, np.float64(_LARGEST)))
                if n_looked_at < groups.shape[0]:  # the cells were chosen by estimates, too
                    for group in range(groups.shape[0]):
                        looked_at[group] = group
                        multiply_one(asked, groups, group, products, group * CENTRES_PER_GROUP)
                        estimate(row, estimates, group, norms, group, constant, factor)
                    near = estimates
                limit = limit_of(near.view(np.int32), enough)
                _measure_up_to(X, q, points, near, limit + room, looked_at, members)
                found = _nearest_few(near, enough, looked_at, members, keys)
                nearest = _first(found)
            if rule.shape[0] > 0 and len(found) > 0:
                ordered = _worth_scanning(
                    X,
                    q,
                    points,
                    near,
                    found,
                    nearest,
                    room,
                    rule,
                    shares,
                    wanted,
                    looked_at,
                    members,
                    upper,
                    ranked,
                    keys,
                )
            else:
                ordered = sort_keys(found, upper, ranked)
            if room < 0 and len(ordered) > 0:
                ordered[0] = nearest
            count = min(len(ordered), wanted)
            for place in range(np.uint64(count)):
                labels[q, place] = np.int32(ordered[place] & 0xFFFFFFFF)
                squared[q, place] = _distance_of(ordered[place])
            for place in range(np.uint64(count), np.uint64(wanted)):
                labels[q, place], squared[q, place] = -1, np.inf


@kernel(inline=True)
def _nearest_few(estimates: Any, wanted: int, looked_at: Any, members: Any, memory: Any) -> Any:
    """The centres with the smallest estimates, ``wanted`` or a few more, as keys."""
    limit = min(limit_of(estimates.view(np.int32), wanted), _LARGEST)
    return _estimated(estimates, limit, looked_at, members, memory)


@kernel(inline=True)
def _first(keys: Any) -> Any:
    """The smallest key; the largest number if there is none."""
    first = np.int64(np.iinfo(np.int64).max)
    for i in range(np.uint64(len(keys))):
        first = min(first, keys[i])
    return first


@kernel(inline=True)
def _measured(X: Any, q: Any, points: Any, keys: Any) -> Any:
    """The smallest key, with the squared distance in place of the estimate."""
    if len(keys) == 0:
        return np.int64(np.iinfo(np.int64).max)
    c = np.uint64(_first(keys) & 0xFFFFFFFF)
    return (np.int64(np.float32(_distance(X, q, points, c)).view(np.int32)) << 32) | np.int64(c)


@kernel(inline=True)
def _worth_scanning(
    X: Any, q: Any, points: Any, estimates: Any, keys: Any, nearest: Any, room: Any, rule: Any, shares: Any, most: int,
    looked_at: Any, members: Any, upper: Any, ranked: Any, memory: Any,
) -> Any:  # fmt: skip
    """The lists that a query scans by the rule, of at least one, as keys in the order of their distances.

    ``keys`` are the nearest ones, and the first of them is ``nearest``. Where ``room`` is not negative, estimates may
    err by it, and lists are measured before they are compared.
    """
    filtered, level = shares.shape[0] > 0, 0
    for i in range(np.uint64(len(keys))):
        upper[i] = np.int32(keys[i] >> 32)
    rank = min(_FAR_RANK, len(keys) - 1)
    far = np.int32(kth_smallest(upper, len(keys), rank + 1)).view(np.float32)
    scale = _scale_of_gaps(_distance_of(nearest), far)
    if filtered:
        ordered = sort_keys(keys, upper, ranked)[: max(most, _FAR_RANK + 1)]
        level = _level_of(ordered, scale, rule, shares)
    else:
        row, log_far = rule[0], scale[1] + scale[2]
        spare = _expected(log_far, rank, scale, row) - row[4]
        if spare < 0:
            reach = _reach_of(scale[1], log_far, scale, row, upper[: len(keys)].view(np.float32))
            keys = _up_to(keys, max(reach, _distance_of(nearest)))
        elif len(keys) > _FAR_RANK:
            farthest = log_far + (min(spare / -row[1], 80.0) if row[1] < 0 else 80.0)
            reach = _reach_of(log_far, farthest, scale, row, estimates)
            if room >= 0:
                for _ in range(_MOST_TURNS):  # what is measured may move a little, and the rank with it
                    _measure_up_to(X, q, points, estimates, reach + room, looked_at, members)
                    measured, reach = reach, _reach_of(log_far, farthest, scale, row, estimates)
                    if reach <= measured:
                        break
            keys = _estimated(estimates, reach, looked_at, members, memory)
        ordered = sort_keys(keys, upper, ranked)
    low = high = min(len(ordered), most)
    if level >= 0:  # if no level expects enough, all are scanned
        low = 1  # what is expected falls with the rank
        while low < high:
            middle = (low + high) >> 1
            if _expected(_log_of(ordered[middle], scale), middle, scale, rule[level]) < rule[level, 4]:
                high = middle
            else:
                low = middle + 1
    return ordered[:low]


@kernel(inline=True)
def _reach_of(low: float, high: float, scale: Any, weights: Any, distances: Any) -> Any:
    """The squared distance up to which the rule scans lists, or a little more, from its bounds in logarithms.

    The rank of a list is the number of smaller distances.
    """
    for _ in range(_HALVINGS):
        middle, rank = (low + high) / 2, np.int32(0)
        limit = np.float32(math.exp(middle))
        for c in range(np.uint64(distances.shape[0])):
            rank = np.int32(rank + np.int32(distances[c] <= limit))
        low, high = (middle, high) if _expected(middle, rank, scale, weights) >= weights[4] else (low, middle)
    return min(np.float32(math.exp(high)), _LARGEST)


@kernel(inline=True)
def _up_to(keys: Any, limit: Any) -> Any:
    """The keys whose distances are at most a limit, moved to the front."""
    count = np.uint64(0)
    for i in range(np.uint64(len(keys))):
        key = keys[i]
        keys[count] = key  # written in any case and then counted or not: the CPU would mispredict many branches
        count += np.uint64(_distance_of(key) <= limit)
    return keys[: np.int64(count)]


@kernel(inline=True)
def _scale_of_gaps(nearest: Any, far: Any) -> Any:
    """The smallest squared distance that counts, log d₀², and log(d₆₄² / d₀²).

    Squared distances are at least a small share of that of a far list, so that a query that is a centre scans more than
    one list.
    """
    least = _SMALLEST_SHARE * np.float64(far) + _TINY
    log_nearest = math.log(max(np.float64(nearest), least))
    return least, log_nearest, math.log(max(np.float64(far), least)) - log_nearest


@kernel(inline=True)
def _log_of(key: Any, scale: Any) -> Any:
    """The logarithm of the squared distance of a list."""
    return math.log(max(np.float64(_distance_of(key)), scale[0]))


@kernel(inline=True)
def _expected(log_distance: float, rank: Any, scale: Any, weights: Any) -> Any:
    """Logarithm of the number of neighbours that are expected in the list of a rank, at a squared distance."""
    gap, contrast = log_distance - scale[1], scale[2]
    return weights[0] + weights[1] * gap + weights[2] * math.log(1.0 + rank) + weights[3] * contrast


@kernel(inline=True)
def _level_of(ordered: Any, scale: Any, rule: Any, shares: Any) -> Any:
    """The first level that expects enough allowed neighbours in the lists that were found; -1 if none does."""
    for level in range(rule.shape[0]):
        total = 0.0
        for rank in range(len(ordered)):
            expected = _expected(_log_of(ordered[rank], scale), rank, scale, rule[level])
            total += math.exp(min(expected, 50.0)) * shares[ordered[rank] & 0xFFFFFFFF]
            if total >= rule[level, 5]:
                return level
    return -1


@kernel
def write_expected(squared: Any, weights: Any, out: Any) -> None:
    """Write the logarithms of the numbers of neighbours that are expected in lists; -inf where there is no list.

    ``squared`` has the squared distances of the nearest lists of each query, then infinity; ``weights`` is w₀ to w₃.
    """
    for q in range(squared.shape[0]):
        found = 0
        while found < squared.shape[1] and squared[q, found] < np.inf:
            found += 1
        out[q] = -np.inf
        if found > 0:
            scale = _scale_of_gaps(squared[q, 0], squared[q, min(_FAR_RANK, found - 1)])
            for rank in range(found):
                out[q, rank] = _expected(math.log(max(np.float64(squared[q, rank]), scale[0])), rank, scale, weights)


@kernel(inline=True)
def _distance_of(key: Any) -> Any:
    return np.int32(key >> 32).view(np.float32)


@kernel(inner=True)
def cells_to_look_at(n_centres: int, wanted: int) -> int:
    """How many cells hold most of the ``wanted`` nearest centres; 0 if it is faster to look at all centres."""
    n_cells = -(-n_centres // CENTRES_PER_GROUP)
    chosen = math.ceil(_SHARE_LOOKED_AT * math.sqrt(wanted * n_cells)) + 2
    return chosen if n_centres >= FEWEST_IN_CELLS and 2 * chosen <= n_cells else 0


@kernel(inline=True)
def _choose_cells(estimates: Any, wanted: int, chosen: Any) -> Any:
    """Write the numbers of the ``wanted`` nearest cells, or of a few more, and give how many they are."""
    limit, count = limit_of(estimates.view(np.int32), wanted), 0
    for first in range(0, estimates.shape[0], CENTRES_PER_GROUP):
        near = _mark(estimates, first, limit)
        while near:
            chosen[count] = first + np.int64(trailing_zeros(near))
            near &= near - np.uint64(1)
            count += 1
    return count


@kernel(inline=True, reassociate=True)
def _distance(X: Any, q: Any, points: Any, c: Any) -> Any:
    total = np.float32(0)
    for j in range(np.uint64(points.shape[1])):
        gap = X[q, j] - points[c, j]
        total += gap * gap
    return total


@intrinsic  # type: ignore[untyped-decorator]
def _mark(typing_context: Any, estimates: Any, first: Any, limit: Any) -> Any:  # noqa: ARG001
    """Bitmap of the 64 estimates from ``first`` on that are at most ``limit``."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        table = context.make_array(signature.args[0])(context, builder, arguments[0])
        floats = ir.VectorType(ir.FloatType(), 64)
        limits = everywhere(builder, arguments[2], floats)
        values = load(builder, builder.gep(table.data, [arguments[1]]), floats, 4)
        return builder.bitcast(builder.fcmp_ordered("<=", values, limits), WORD)

    return types.uint64(estimates, first, limit), generate


@kernel(inline=True)
def _estimated(estimates: Any, limit: Any, looked_at: Any, members: Any, memory: Any) -> Any:
    """The centres whose estimates are at most a limit: estimates and numbers as keys to sort by, in ``memory``."""
    count, bits = np.uint64(0), estimates.view(np.int32)
    for first in range(0, estimates.shape[0], CENTRES_PER_GROUP):
        near = _mark(estimates, first, limit)
        start = np.uint64(looked_at[first // CENTRES_PER_GROUP] * CENTRES_PER_GROUP)
        while near:
            place = trailing_zeros(near)
            near &= near - np.uint64(1)
            memory[count] = (np.int64(bits[np.uint64(first) + place]) << 32) | np.int64(members[start + place])
            count += np.uint64(1)
    return memory[: np.int64(count)]


@kernel(inline=True)
def _measure_up_to(X: Any, q: Any, points: Any, estimates: Any, limit: Any, looked_at: Any, members: Any) -> None:
    """Replace the estimates up to a limit by the squared distances."""
    limit = min(limit, _LARGEST)
    for first in range(0, estimates.shape[0], CENTRES_PER_GROUP):
        near = _mark(estimates, first, limit)
        start = np.uint64(looked_at[first // CENTRES_PER_GROUP] * CENTRES_PER_GROUP)
        while near:
            place = trailing_zeros(near)
            near &= near - np.uint64(1)
            estimates[np.uint64(first) + place] = np.float32(_distance(X, q, points, np.uint64(members[start + place])))
