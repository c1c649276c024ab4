// A search over several segments, after the codes of each have been scanned: merge what was found, and order it.
//
//     found, places    |segment 0: queries × kept|segment 1|…    whole distances and positions, −1 after the last
//                                 ↓ nearest_of_segments
//     candidates       |query 0: wanted|query 1: wanted|…        ids, segments, positions and whole distances
//                                 ↓ order_codes, or order_vectors
//     distances, ids   |query 0: k|query 1: k|…                  in order, then infinity and −1
#pragma once

#include <bit>
#include <cmath>
#include <limits>
#include <span>
#include <stdexcept>
#include <vector>

#include "arrays.hpp"
#include "select.hpp"
#include "topk.hpp"
#include "vectors/l2.hpp"

namespace autojacobin {

// What a segment holds beside its codes, each at a position from 0 on
struct Segment {
    i64 size;                     // codes
    i64 first_id;                 // if ids are consecutive
    View<const i64, 1> ids;       // of the codes, ascending; empty if they are consecutive
    Vectors vectors;              // of the codes, read in place; without rows if they are not
    View<const u32, 1> rows;      // of the vectors of the codes; empty if they have the order of the codes
    View<const bool, 1> checked;  // which blocks of the bytes of the vectors were checked; empty if none need be
    i64 block_bytes;              // of such a block, a power of two

    i64 id(i64 position) const { return ids.size() ? ids[position] : first_id + position; }

    i64 row(i64 position) const {
        const i64 row = rows.size() ? i64(rows[position]) : position;
        if (row >= vectors.size) throw std::out_of_range("a segment names a row that its vectors do not have");
        return row;
    }

    bool is_checked(i64 row) const {
        if (!checked.size()) return true;
        const int shift = std::countr_zero(u64(block_bytes));
        const i64 last = ((row + 1) * vectors.row_bytes() - 1) >> shift;
        bool all = true;
        for (i64 block = row * vectors.row_bytes() >> shift; block <= last; ++block) all &= checked[block];
        return all;
    }
};

// Queries, given as float32 or as float64, in both types.
class Queries {
public:
    Queries(const Vectors& given, i64 first, i64 last)
        : floats_(given.type == Vectors::Type::float32 ? 0 : (last - first) * given.width),
          doubles_(given.type == Vectors::Type::float64 ? 0 : (last - first) * given.width) {
        const std::array shape{last - first, given.width};
        const i64 start = first * given.width, n = shape[0] * shape[1];
        if (given.type == Vectors::Type::float32) {
            floats = {given.as<float>().data + start, shape};
            std::copy_n(floats.data, n, doubles_.data());
            doubles = {doubles_.data(), shape};
        } else {
            doubles = {given.as<double>().data + start, shape};
            for (i64 i = 0; i < n; ++i) floats_[i] = float(doubles.data[i]);
            floats = {floats_.data(), shape};
        }
    }

    i64 size() const { return floats.size(); }

    View<const float, 2> floats;
    View<const double, 2> doubles;

private:
    Buffer<float> floats_;
    Buffer<double> doubles_;
};

// A code that a scan found
struct Candidate {
    i64 id, position;
    i32 segment, distance;  // the distance is whole
};

// The nearest codes of each query over all segments, as many as are wanted or as there are, in any order
class Candidates {
public:
    Candidates(i64 n, i64 wanted) : candidates_(n * wanted), counts_(n), wanted_(wanted) {}

    std::span<const Candidate> operator[](i64 q) const {
        return {candidates_.data() + q * wanted_, std::size_t(counts_[q])};
    }
    std::span<Candidate> resize(i64 q, i64 count) {
        counts_[q] = count;
        return {candidates_.data() + q * wanted_, std::size_t(count)};
    }

private:
    Buffer<Candidate> candidates_;
    std::vector<i64> counts_;
    const i64 wanted_;
};

// Results of a search: a row for each query, in order; infinity and −1 where there are too few.
struct Found {
    View<double, 2> distances;
    View<i64, 2> ids;

    i64 k() const { return ids.shape[1]; }
};

// A vector whose distance may be wrong: it is not a number or infinite, or some bytes of the vector were not compared
// with their checksums. A memory map may hold damage that nobody has seen. The caller checks these rows.
struct Doubtful {
    i64 segment, row;
};

constexpr i64 prefetched = 256;  // bytes of a vector; the CPU notices by itself that others follow

// The nearest codes of all segments, of those that were found in each; of equal distances, those with the lower ids.
inline Candidates nearest_of_segments(std::span<const Segment> segments, View<const i32, 3> found,
                                      View<const i64, 3> places, i64 wanted) {
    const i64 n = found.shape[1], kept = found.shape[2], capacity = i64(segments.size()) * kept;
    Candidates candidates(n, wanted);
    Buffer<i32> distances(topk::whole_blocks(capacity));
    Buffer<i64> slots(capacity), ids(capacity);  // slot c of segment s is s · kept + c
    Buffer<i64> scratch(topk::scratch_for(capacity));
    for (i64 q = 0; q < n; ++q) {
        i64 count = 0;
        const auto row_of = [&](i64 s) { return (s * n + q) * kept; };
        for (i64 s = 0; s < i64(segments.size()); ++s)
            for (i64 c = 0; c < kept && places.data[row_of(s) + c] >= 0; ++c, ++count) {
                slots[count] = s * kept + c;
                distances[count] = found.data[row_of(s) + c];
                ids[slots[count]] = segments[s].id(places.data[row_of(s) + c]);
            }
        if (count > wanted) {
            topk::keep_nearest(distances.data(), slots.data(), count, wanted, ids.data(), scratch.data());
            count = wanted;
        }
        const std::span<Candidate> nearest = candidates.resize(q, count);
        for (i64 c = 0; c < count; ++c) {
            const i64 slot = slots[c], s = segments.size() == 1 ? 0 : slot / kept;
            nearest[c] = {ids[slot], places.data[row_of(s) + slot - s * kept], i32(s), distances[c]};
        }
    }
    return candidates;
}

// Writes the nearest candidates by whole distance. Real distances, which are rounded to float32, are constants[q] +
// scales[q] · whole.
inline void order_codes(const Candidates& candidates, View<const double, 1> scales, View<const double, 1> constants,
                        Found found) {
    std::vector<double> whole;
    std::vector<i64> names;
    for (i64 q = 0; q < found.ids.size(); ++q) {
        whole.clear(), names.clear();
        for (const Candidate& one : candidates[q]) whole.push_back(one.distance), names.push_back(one.id);
        const View<double, 1> distances = found.distances[q];
        const View<i64, 1> ids = found.ids[q];
        select_smallest(View<const double, 1>{whole.data(), {i64(whole.size())}}, names, distances, ids);
        for (i64 i = 0; i < found.k(); ++i) {
            const bool missing = ids[i] == selection::last_id;
            if (missing) ids[i] = -1;
            if (!missing) distances[i] = double(float(constants[q] + scales[q] * distances[i]));
        }
    }
}

// Writes the nearest candidates by the Euclidean distances of their vectors, and notes those that are doubtful. What
// was measured in one segment counts among the nearest in the next.
inline void order_vectors(View<const double, 2> queries, std::span<const Segment> segments,
                          const Candidates& candidates, Found found, std::vector<Doubtful>& doubtful) {
    std::vector<i64> names, places, rows;
    std::vector<double> squared;
    for (i64 q = 0; q < found.ids.size(); ++q) {
        const std::span<const Candidate> here = candidates[q];
        const i64 n = i64(here.size()), k = found.k();
        names.clear(), places.clear();
        for (const Candidate& one : here) {
            const Segment& segment = segments[one.segment];
            names.push_back(one.id);
            places.push_back(segment.row(one.position));
            l2::prefetch(segment.vectors.row_data(places.back()), std::min(segment.vectors.row_bytes(), prefetched));
        }
        squared.assign(n, std::numeric_limits<double>::infinity());
        const L2Query query(queries[q], segments[0].vectors.type);
        for (i64 s = 0; s < i64(segments.size()); ++s) {
            rows = places;
            for (i64 c = 0; c < n; ++c)
                if (here[c].segment != s) rows[c] = -1;
            measure(query, segments[s].vectors, {rows.data(), {n}}, k, {squared.data(), {n}});
            for (i64 c = 0; c < n; ++c)
                if (rows[c] >= 0 && !(std::isfinite(squared[c]) && segments[s].is_checked(rows[c])))
                    doubtful.push_back({s, rows[c]});
        }
        const View<double, 1> distances = found.distances[q];
        const View<i64, 1> ids = found.ids[q];
        select_smallest(View<const double, 1>{squared.data(), {n}}, names, distances, ids);
        for (i64 i = 0; i < k; ++i) {
            distances[i] = std::sqrt(distances[i]);
            if (ids[i] == selection::last_id) ids[i] = -1;  // there are fewer, or nothing was comparable
        }
    }
}

}  // namespace autojacobin
