// How many true neighbours searches with some thresholds for lists and numbers of candidates find.
//
// The codes of a query come in the order in which a search finds them. A search with threshold t scans those whose
// first threshold is at most t, and takes as many as its candidates allow:
//
//     nearness   |p0 p1 p2 …|   which neighbour of the query a code is, counted from 0; −1 if it does not count
//     first      |t0 t1 t2 …|   the first threshold that scans it
//
// The rank of a code for a threshold is the number of codes before it that are scanned.
#pragma once

#include <algorithm>
#include <numeric>
#include <vector>

#include "../arrays.hpp"

namespace autojacobin {

// Sums over the queries: of the neighbours found, of their squares, and of their products with `totals`. Neighbours up
// to counts[q] are true ones, and `candidates` ascend.
inline void sum_hits(const View<const i32, 2>& nearness, const View<const u8, 2>& first,
                     const View<const i64, 1>& counts, const View<const double, 1>& totals,
                     const View<const i64, 1>& candidates, const View<double, 2>& sums, const View<double, 2>& squares,
                     const View<double, 2>& products) {
    const i64 n_thresholds = sums.shape[0], n_steps = sums.shape[1];
    for (const View<double, 2>* result : {&sums, &squares, &products})
        std::fill_n(result->data, n_thresholds * n_steps, 0.0);
    std::vector<i64> hits(n_thresholds * (n_steps + 1)), before(n_thresholds + 1);
    for (i64 q = 0; q < first.size(); ++q) {
        std::fill(hits.begin(), hits.end(), 0);
        std::fill(before.begin(), before.end(), 0);
        const View<const i32, 1> neighbours = nearness[q];
        const View<const u8, 1> starts = first[q];
        for (i64 c = 0; c < starts.size(); ++c) {
            if (neighbours[c] < 0) continue;
            if (neighbours[c] < counts[q]) {
                i64 rank = std::accumulate(before.begin(), before.begin() + starts[c], i64{0});
                for (i64 t = starts[c]; t < n_thresholds; ++t) {
                    rank += before[t];
                    const i64* step = std::upper_bound(candidates.data, candidates.data + n_steps, rank);
                    ++hits[t * (n_steps + 1) + (step - candidates.data)];
                }
            }
            ++before[starts[c]];
        }
        for (i64 t = 0; t < n_thresholds; ++t) {
            i64 found = 0;
            for (i64 step = 0; step < n_steps; ++step) {
                found += hits[t * (n_steps + 1) + step];
                sums[t][step] += double(found);
                squares[t][step] += double(found * found);
                products[t][step] += double(found) * totals[q];
            }
        }
    }
}

}  // namespace autojacobin
