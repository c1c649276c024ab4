// The k smallest of many numbers of at least zero, in order; equal ones in the order of their ids.
//
//     numbers   |0 1 … s−1|s s+1 … 2s−1|2s …        one pass gives the smallest of each of s = 4 k stripes: 0, s, 2s, …
//     minima    |0 1 … s−1|                         the k-th of these is a limit that k numbers or a few more do not
//                                                   exceed, for few of the smallest share a stripe
//     chosen    |up to the limit|                   the place of each is how many are smaller
//
// The limit is found by halving the range in which it is. The bits of floats of at least zero have the order of the
// floats, so the range is one of whole numbers. Counting by whole registers is faster than moving numbers.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <utility>
#include <vector>

#include "arrays.hpp"

namespace autojacobin {
namespace selection {

constexpr i64 stripes_per_wanted = 4, fewest_in_stripe = 2;
constexpr i64 most_ranked = 192;  // numbers whose places are counted; more are sorted
constexpr i64 lanes = 16;         // numbers are counted so many at a time
constexpr i64 last_id = std::numeric_limits<i64>::max();
constexpr float infinity = std::numeric_limits<float>::infinity();

inline i64 whole_lanes(i64 n) {
    return (n + lanes - 1) / lanes * lanes;
}

// How many of some numbers, a multiple of lanes, are smaller than a limit.
template <class T>
inline i64 count_below(const T* numbers, i64 n, T limit) {
    T counts[lanes] = {};
    for (i64 first = 0; first < n; first += lanes)
        for (i64 i = 0; i < lanes; ++i) counts[i] += numbers[first + i] < limit;
    i64 total = 0;
    for (T count : counts) total += i64(count);
    return total;
}

// The smallest number that at least as many keys as are wanted do not exceed, or a little more.
inline i32 limit_of_keys(const i32* keys, i64 n, i64 wanted) {
    i32 low = keys[0], high = keys[0];
    for (i64 i = 0; i < n; ++i) low = std::min(low, keys[i]), high = std::max(high, keys[i]);
    while (low < high) {
        const i32 middle = low + ((high - low) >> 1);
        const i64 within = count_below(keys, n, middle + 1);
        const bool enough = within >= wanted;  // no branch: the CPU could not predict it
        low = enough ? low : middle + 1;
        high = enough ? middle : high;
        if (enough && within <= wanted + wanted / 8 + 2) break;
    }
    return high;
}

}  // namespace selection

// A limit that at least as many numbers as are wanted do not exceed as floats, and few more: infinity if not so many
// are finite. NaN counts as infinite.
template <class T>
inline float limit_of(View<const T, 1> values, i64 wanted) {
    using namespace selection;
    const i64 n = values.size();
    if (wanted >= n) return infinity;
    constexpr i32 infinite = std::bit_cast<i32>(infinity);
    Buffer<i32> keys(whole_lanes(n));
    for (i64 i = 0; i < n; ++i) {
        const float value = float(values[i]);
        keys[i] = value < infinity ? std::bit_cast<i32>(value) : infinite;
    }
    i64 count = n;
    if (const i64 stripes = stripes_per_wanted * wanted; fewest_in_stripe * stripes <= n) {
        count = stripes;
        for (i64 first = stripes; first < n; first += stripes)
            for (i64 s = 0; s < std::min(stripes, n - first); ++s) keys[s] = std::min(keys[s], keys[first + s]);
    }
    std::fill(keys.data() + count, keys.data() + whole_lanes(count), infinite);
    return std::bit_cast<float>(limit_of_keys(keys.data(), whole_lanes(count), wanted));
}

// Writes as many of the smallest numbers as there is room for, and their ids; infinity and the last id if there are
// fewer. NaN is left out.
template <class T, class Ids>
inline void select_smallest(View<const T, 1> values, const Ids& ids, View<double, 1> smallest, View<i64, 1> their_ids) {
    using namespace selection;
    const i64 n = values.size(), k = smallest.size();
    const float limit = limit_of(values, k);
    Buffer<i64> keys(n + lanes), names(n + 1);  // a key is the bits of a number
    i64 count = 0;
    for (i64 i = 0; i < n; ++i) {
        // Written in any case and then counted or not: the CPU would mispredict many branches.
        keys[count] = std::bit_cast<i64>(double(values[i]));
        names[count] = ids[i];
        count += float(values[i]) <= limit;
    }
    const i64 found = std::min(count, k);
    if (count <= most_ranked) {
        const i64 whole = whole_lanes(count);
        std::fill(keys.data() + count, keys.data() + whole, last_id);
        std::array<i64, most_ranked + 1> ordered, named;
        std::fill_n(ordered.begin(), count + 1, -1);
        for (i64 i = 0; i < count; ++i) {
            i64 name = names[i], place = count_below(keys.data(), whole, keys[i]);
            for (; ordered[place] == keys[i]; ++place)  // equal ones are few
                if (name < named[place]) std::swap(name, named[place]);
            ordered[place] = keys[i];
            named[place] = name;
        }
        for (i64 i = 0; i < found; ++i) smallest[i] = std::bit_cast<double>(ordered[i]);
        std::copy_n(named.begin(), found, their_ids.data);
    } else {
        std::vector<std::pair<i64, i64>> pairs(count);
        for (i64 i = 0; i < count; ++i) pairs[i] = {keys[i], names[i]};
        if (found < count) std::nth_element(pairs.begin(), pairs.begin() + found, pairs.end());
        std::sort(pairs.begin(), pairs.begin() + found);
        for (i64 i = 0; i < found; ++i) {
            smallest[i] = std::bit_cast<double>(pairs[i].first);
            their_ids[i] = pairs[i].second;
        }
    }
    std::fill(smallest.data + found, smallest.data + k, double(infinity));
    std::fill(their_ids.data + found, their_ids.data + k, last_id);
}

}  // namespace autojacobin
