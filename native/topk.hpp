// The k smallest of a few hundred numbers.
//
// By halving the range in which the k-th smallest is, and counting by whole registers. This is faster than moving
// numbers:
//
//     low …………… middle …………… high      at least k numbers up to the middle: it is the new high, otherwise the new low
//
// Memory for the numbers has room up to the next multiple of 64, which these functions fill up.
#pragma once

#include <algorithm>
#include <limits>
#include <utility>

#include "arrays.hpp"
#include "simd.hpp"

namespace autojacobin {
namespace topk {

inline i64 whole_blocks(i64 count) {
    return (count + 63) & ~i64{63};
}

// Counts the numbers up to a limit; those that fill up the memory are larger.
template <class T>
inline i64 count_up_to(const T* values, i64 count, T limit) {
    constexpr int step = simd::lanes<T>;
    const simd::Register<T> limits = simd::everywhere(limit);
    simd::Register<T> within[4] = {};
    for (i64 i = 0; i < whole_blocks(count); i += 4 * step)
        for (int j = 0; j < 4; ++j)
            within[j] = simd::count_at_most<T>(within[j], simd::load(values + i + j * step), limits);
    i64 total = 0;
    for (T sum : simd::as_array<T>(within[0] + within[1] + (within[2] + within[3]))) total += sum;
    return total;
}

// The least of some numbers, and the largest of those up to a limit, which is at least the least.
template <class T>
inline std::pair<T, T> range_up_to(const T* values, i64 count, T limit) {
    constexpr int step = simd::lanes<T>;
    const simd::Register<T> limits = simd::everywhere(limit);
    simd::Register<T> low = simd::load(values), high = simd::everywhere(std::numeric_limits<T>::min());
    for (i64 i = 0; i < whole_blocks(count); i += step) {
        const simd::Register<T> value = simd::load(values + i);
        low = value < low ? value : low;
        high = ((value <= limits) & (value > high)) ? value : high;
    }
    const auto lows = simd::as_array<T>(low), highs = simd::as_array<T>(high);
    return {*std::min_element(lows.begin(), lows.end()), *std::max_element(highs.begin(), highs.end())};
}

// The k-th smallest of some numbers from 0 on, none of them the largest of its type.
template <class T>
inline T kth_smallest(T* values, i64 count, i64 k) {
    constexpr T filling = std::numeric_limits<T>::max();
    std::fill(values + count, values + whole_blocks(count), filling);
    auto [low, high] = range_up_to<T>(values, count, filling - 1);
    while (low < high) {
        const T middle = low + ((high - low) >> 1);
        const i64 within = count_up_to(values, count, middle);
        const bool enough = within >= k;  // no branch: the CPU could not predict it
        low = enough ? low : middle + 1;
        high = enough ? middle : high;
        if (within == k) break;
    }
    return range_up_to(values, count, high).second;
}

// Memory that keep_nearest needs for some codes.
inline i64 scratch_for(i64 count) {
    return 2 * whole_blocks(count);
}

// Moves the k nearest of some codes to the front, in any order, and gives the distance of the k-th. Of equal distances
// those stay whose slots have the lower positions, or, without positions, the lower slots. Two codes of a vector have
// one position.
template <class Position>
[[gnu::noinline]] inline i32 keep_nearest(i32* distances, i64* slots, i64 count, i64 k, const Position* positions,
                                          i64* scratch) {
    const i32 radius = kth_smallest(distances, count, k);
    i64 *ties = scratch, *places = scratch + whole_blocks(count);
    i64 kept = 0, n_ties = 0;
    for (i64 i = 0; i < count; ++i) {
        // Written in any case and then counted or not: the CPU would mispredict half of the branches.
        const i32 distance = distances[i];
        const i64 slot = slots[i];
        distances[kept] = distance;
        slots[kept] = ties[n_ties] = slot;
        kept += distance < radius;
        n_ties += distance == radius;
    }
    i64 last = std::numeric_limits<i64>::max(), room = k - kept;  // the last place that stays, and room for it
    for (i64 i = 0; i < n_ties; ++i) places[i] = positions ? i64(positions[ties[i]]) : ties[i];
    if (n_ties > room) {
        last = kth_smallest(places, n_ties, room);
        for (i64 i = 0; i < n_ties; ++i) room -= places[i] < last;
    }
    for (i64 i = 0; i < n_ties; ++i) {
        const bool is_last = places[i] == last;
        distances[kept] = radius;
        slots[kept] = ties[i];
        kept += places[i] < last || (is_last && room > 0);
        room -= is_last;
    }
    return radius;
}

}  // namespace topk
}  // namespace autojacobin
