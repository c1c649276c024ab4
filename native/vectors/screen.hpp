// Rows that may be among the nearest, from a matrix product whose error has a bound (search/truth.py).
//
// A point of the base is a column of the products. With lowered = |x|²/2 − c |x|², the lowest that its distance may be
// is low = lowered − q·x, and the highest is low + spread + slack of the query. Where low is above the limit of a
// query, the point is too far. The others are written down with both bounds:
//
//     products   |64 columns|64 columns| …     tested by whole registers; those that hold nothing near are left at once
//     ids        |the candidates of a query so far … | room |
#pragma once

#include <algorithm>
#include <limits>

#include "../arrays.hpp"

namespace autojacobin {

// Memory of all queries, a row for each. Several threads share it, each with queries of its own.
struct Candidates {
    View<const float, 1> slack, limits;
    View<i64, 1> counts;
    View<float, 2> low, high;
    View<i64, 2> ids;
};

// Adds the points that may be near to the candidates of some queries. First is the id of column 0. Each query goes on
// at the column that it had reached, and comes to the end unless its memory is full.
inline void keep_near(View<const float, 2> products, View<const float, 1> lowered, View<const float, 1> spread,
                      i64 first, View<const i64, 1> queries, const Candidates& found, View<i64, 1> reached) {
    constexpr i64 strip = 64;
    constexpr float infinity = std::numeric_limits<float>::infinity();
    const i64 columns = products.shape[1], capacity = found.ids.shape[1];
    for (i64 number = 0; number < queries.size(); ++number) {
        const i64 q = queries[number];
        const float* row = products[q].data;
        const float limit = found.limits[q];
        float *low = found.low[q].data, *high = found.high[q].data;
        i64 *ids = found.ids[q].data, count = found.counts[q], column = reached[q];
        while (column < columns && count < capacity) {
            const i64 end = std::min(column + strip, columns);
            i32 near = 0;
            for (i64 j = column; j < end; ++j) near |= lowered[j] - row[j] <= limit;
            if (!near) column = end;
            for (; column < end && count < capacity; ++column) {
                const float value = lowered[column] - row[column];
                if (!(value <= limit)) continue;
                low[count] = value;
                high[count] = value > -infinity ? value + (spread[column] + found.slack[q]) : infinity;
                ids[count++] = first + column;
            }
        }
        found.counts[q] = count;
        reached[q] = column;
    }
}

}  // namespace autojacobin
