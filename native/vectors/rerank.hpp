// The order of candidates, which the codes of several segments gave, by their vectors or by the codes.
//
//     candidates   |id, segment, position, distance of the code| …     of one query, each id once
//     rows         position → row of the vector in its segment, or −1 for those of other segments
//     squared      ∞ → distance, segment by segment: what was measured before counts among the nearest
//
// A memory map may hold damage that nobody has seen. So rows whose distance is not finite, or some of whose bytes have
// not been compared with their checksums, are doubtful: the caller checks them, and searches again if they are wrong.
#pragma once

#include <cmath>
#include <limits>
#include <vector>

#include "../arrays.hpp"
#include "../select.hpp"
#include "l2.hpp"

namespace autojacobin {

struct Candidate {
    i64 id, segment, position;
    i32 distance;  // of the code, in whole steps
};

// The vectors of a segment
struct StoredVectors {
    Vectors vectors;
    View<const u32, 1> rows;    // of the positions; empty if each position has the row of its number
    View<const u8, 1> checked;  // whether the bytes of each block were compared with its checksum; empty if all were
    int block_shift;            // a block has 2^block_shift bytes

    i64 row(i64 position) const { return rows.size() ? i64(rows[position]) : position; }
    i64 row_bytes() const { return vectors.width * vectors.item_bytes(); }
    const void* address(i64 row) const { return static_cast<const char*>(vectors.data) + row * row_bytes(); }
    bool is_checked(i64 row) const {
        if (!checked.size()) return true;
        const i64 start = row * row_bytes(), last = start + row_bytes() - 1;
        for (i64 block = start >> block_shift; block <= last >> block_shift; ++block)
            if (!checked[block]) return false;
        return true;
    }
};

struct DoubtfulRow {
    i64 segment, row;
};

// Asks for the first bytes of the vectors of candidates, which will be needed soon. The CPU notices by itself that
// others follow.
inline void prefetch_vectors(const std::vector<StoredVectors>& segments, const std::vector<Candidate>& candidates) {
    for (const Candidate& candidate : candidates) {
        const StoredVectors& stored = segments[candidate.segment];
        l2::prefetch(stored.address(stored.row(candidate.position)), std::min<i64>(stored.row_bytes(), 256));
    }
}

// Writes the distances and ids of the nearest candidates by their vectors; infinity and −1 where there are fewer.
inline void order_by_vectors(View<const double, 1> query, const std::vector<StoredVectors>& segments,
                             const std::vector<Candidate>& candidates, View<double, 1> distances, View<i64, 1> ids,
                             std::vector<DoubtfulRow>& doubtful) {
    const i64 n = i64(candidates.size()), wanted = distances.size();
    std::vector<double> squared(n, std::numeric_limits<double>::infinity());
    std::vector<i64> rows(n), names(n);
    const View<double, 1> measured{squared.data(), {n}};
    for (i64 c = 0; c < n; ++c) names[c] = candidates[c].id;
    if (!segments.empty() && n) {
        const L2Query prepared(query, segments[0].vectors.type);  // that of all segments
        for (i64 s = 0; s < i64(segments.size()); ++s) {
            for (i64 c = 0; c < n; ++c)
                rows[c] = candidates[c].segment == s ? segments[s].row(candidates[c].position) : -1;
            measure(prepared, segments[s].vectors, {rows.data(), {n}}, wanted, measured);
            for (i64 c = 0; c < n; ++c)
                if (rows[c] >= 0 && !(std::isfinite(squared[c]) && segments[s].is_checked(rows[c])))
                    doubtful.push_back({s, rows[c]});
        }
    }
    select_smallest(View<const double, 1>{squared.data(), {n}}, names, distances, ids);
    for (i64 i = 0; i < wanted; ++i) {
        distances[i] = std::sqrt(distances[i]);
        if (ids[i] == selection::last_id) ids[i] = -1;  // nothing was comparable
    }
}

// The same by the distances of the codes, of which a step stands for a real number.
inline void order_by_codes(const std::vector<Candidate>& candidates, double step, double constant,
                           View<double, 1> distances, View<i64, 1> ids) {
    const i64 n = i64(candidates.size());
    std::vector<double> steps(n);
    std::vector<i64> names(n);
    for (i64 c = 0; c < n; ++c) {
        steps[c] = candidates[c].distance;
        names[c] = candidates[c].id;
    }
    select_smallest(View<const double, 1>{steps.data(), {n}}, names, distances, ids);
    for (i64 i = 0; i < distances.size(); ++i) {
        distances[i] = double(float(constant + step * distances[i]));
        if (ids[i] == selection::last_id) ids[i] = -1;
    }
}

}  // namespace autojacobin
