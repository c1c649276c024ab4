// The k nearest codes of tiles by bit slices, for a block of queries in the calling thread.
//
// A tile is transposed once for all queries of the block, and not kept: this takes as long as a dozen queries. Codes
// below the radius of a query are written down with their distances, while the tile is in the nearest cache. When the
// memory of a query is full, the k nearest stay and its radius shrinks; of equal distances, the first positions stay.
//
//     positions   |p0 p1 p2 … pk−1 … | capacity | 64 more |      a row for each query; the codes of a word are written
//     distances   |d0 d1 d2 … dk−1 … |          |         |      before the memory is found to be full
//
// First radii are estimated from a sample of chunks spread over the base. The distance of a given rank in the sample is
// found bit by bit from the highest plane of the margins down: count the codes that have the bit, and keep either those
// that have it or those that do not.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <vector>

#include "../arrays.hpp"
#include "bitslice.hpp"

namespace autojacobin {
namespace slice_scan {

// What tunes the estimates
constexpr i64 usual_chunks = 16, fewest_chunks = 4, most_chunks = 256;
constexpr double deviations = 3;  // by which the sample may hold more of the k nearest than its share
constexpr double rank_margin = 4;

constexpr u16 missing = 65535;  // distance where there is no code

constexpr i64 capacity(i64 k) {
    return 4 * k + 1024;
}

// Distance of a query to the code at [p G + g] of a tile.
template <bool Weighted>
inline i64 code_distance(const Tiles& tiles, i64 t, i64 place, const WeightedCodes& queries, i64 q) {
    const i64 n_words = tiles.words_per_code(), codes = tiles.codes_per_tile();
    const u64* word = tiles.words.data + t * n_words * codes + place;
    const u64* asked = queries.words.data + q * n_words;
    i64 total = 0;
    for (i64 w = 0; w < n_words; ++w, word += codes) {
        const u64 differing = *word ^ asked[w];
        if constexpr (Weighted) {
            const u64* plane = queries.planes.data + q * queries.n_lists() * n_words + w;
            for (int p = 0; p < queries.n_lists(); ++p, plane += n_words)
                total += i64(std::popcount(differing & *plane)) << p;
        } else {
            total += std::popcount(differing);
        }
    }
    return total;
}

// Moves the k nearest of some codes to the front, in their order, and gives the distance of the k-th. Distances are
// counted in a table, which has a place for each.
inline i64 keep_nearest(i32* positions, u16* distances, i64 count, i64 k, std::vector<i32>& table) {
    std::fill(table.begin(), table.end(), 0);
    for (i64 i = 0; i < count; ++i) ++table[distances[i]];
    i64 radius = 0, below = 0, kept = 0;
    while (below + table[radius] < k) below += table[radius++];
    for (i64 i = 0, missing = k - below; i < count; ++i) {
        // Written in any case and then counted or not: the CPU would mispredict half of the branches.
        const u16 distance = distances[i];
        positions[kept] = positions[i];
        distances[kept] = distance;
        const bool at_radius = distance == radius;
        kept += (distance < radius) | (at_radius & (missing > 0));
        missing -= at_radius;
    }
    return radius;
}

// Writes the positions of the bits of a word. Most words have one or two, so two are written without a branch.
inline void write_positions(u64 bits, i64 first, i32* positions) {
    for (int i = 0; i < 2; ++i, bits &= bits - 1) *positions++ = i32(first + std::countr_zero(bits | u64{1} << 63));
    for (; bits; bits &= bits - 1) *positions++ = i32(first + std::countr_zero(bits));
}

// The codes that the chosen queries found. Queries are named by their numbers among the chosen.
template <bool Weighted>
class Search {
public:
    Search(const Tiles& tiles, const WeightedCodes& queries, const std::vector<i64>& chosen, i64 k)
        : tiles_(tiles),
          queries_(queries),
          chosen_(chosen),
          k_(k),
          stride_(capacity(k) + 64),
          positions_(i64(chosen.size()) * stride_),
          distances_(i64(chosen.size()) * stride_),
          counts_(chosen.size()),
          table_(queries.n_levels + 1) {}

    // Finds the k nearest of the allowed codes within the radii, or fewer if there are not so many.
    void run(View<const u64, 1> allowed, const std::vector<i64>& radii) {
        SlicedQueries sliced(queries_, chosen_);
        Slices slices(chunks_per_tile(tiles_), sliced);
        const MarkNear mark_near = mark_near_for(sliced);
        const i64 groups = tiles_.codes_per_tile() / 64;
        Buffer<u64> near(groups);
        for (i64 q = 0; q < sliced.size(); ++q) sliced.set_radius(q, radii[q]);
        for (i64 t = 0; t < tiles_.size(); ++t) {
            for (i64 c = 0; c < slices.chunks; ++c) slices.fill(c, tiles_, t, c, sliced);
            for (i64 q = 0; q < sliced.size(); ++q) {
                i64 count = counts_[q], measured = count;
                for (u64 marked = mark_near(slices, sliced, q, near.data()); marked; marked &= marked - 1) {
                    const i64 g = std::countr_zero(marked);
                    const u64 bits = near[g] & allowed[groups * t + g];
                    write_positions(bits, 64 * (groups * t + g), positions(q) + count);
                    count += std::popcount(bits);
                    if (count > capacity(k_)) {
                        measure(t, q, measured, count);
                        sliced.set_radius(q, keep_nearest(positions(q), distances(q), count, k_, table_));
                        count = measured = k_;
                    }
                }
                measure(t, q, measured, count);
                counts_[q] = count;
            }
        }
        for (i64 q = 0; q < sliced.size(); ++q)
            if (counts_[q] > k_) keep_nearest(positions(q), distances(q), counts_[q], k_, table_), counts_[q] = k_;
    }

    i64 count(i64 q) const { return counts_[q]; }
    i32* positions(i64 q) { return positions_.data() + q * stride_; }
    u16* distances(i64 q) { return distances_.data() + q * stride_; }

private:
    // Writes the distances of the codes from begin to end of query q, all of them in tile t.
    void measure(i64 t, i64 q, i64 begin, i64 end) {
        const i64 codes = tiles_.codes_per_tile(), groups = codes / 64;
        for (i64 i = begin; i < end; ++i) {
            const i64 inside = positions(q)[i] - codes * t;
            const i64 place = (inside & 63) * groups + (inside >> 6);
            distances(q)[i] = u16(code_distance<Weighted>(tiles_, t, place, queries_, chosen_[q]));
        }
    }

    const Tiles& tiles_;
    const WeightedCodes& queries_;
    const std::vector<i64>& chosen_;
    const i64 k_, stride_;
    Buffer<i32> positions_;
    Buffer<u16> distances_;
    std::vector<i64> counts_;
    std::vector<i32> table_;
};

template <bool Weighted>
void scan(const Tiles& tiles, const WeightedCodes& queries, View<const u64, 1> allowed, const std::vector<i64>& chosen,
          const std::vector<i64>& radii, View<u16, 2> distances, View<i32, 2> positions) {
    const i64 k = distances.shape[1];
    Search<Weighted> search(tiles, queries, chosen, k);
    search.run(allowed, radii);
    std::vector<i64> again;  // whose radius was too small
    for (i64 q = 0; q < i64(chosen.size()); ++q) {
        const i64 number = chosen[q];
        if (search.count(q) < k && radii[q] < queries.n_levels) {
            again.push_back(number);
            continue;
        }
        const View<i32, 1> where = positions[number];
        const View<u16, 1> near = distances[number];
        std::fill(std::copy_n(search.positions(q), search.count(q), where.data), where.data + k, -1);
        std::fill(std::copy_n(search.distances(q), search.count(q), near.data), near.data + k, missing);
    }
    if (!again.empty()) {
        const std::vector<i64> unbounded(again.size(), queries.n_levels);
        scan<Weighted>(tiles, queries, allowed, again, unbounded, distances, positions);
    }
}

// How many codes of the sample should be within the radius, so that k of all n codes are.
inline i64 sample_rank(i64 k, i64 chunks, i64 n) {
    const double share = double(k) * double(chunks * codes_per_chunk) / double(n);
    return i64(share + deviations * std::sqrt(share) + rank_margin);
}

struct Sample {
    i64 chunks;  // none if the base is too small
    i64 rank;    // at which the radius is read off
};

// The radius should leave at most the wanted number of codes. A small sample of a large base would leave more.
inline Sample sample_of(i64 n, i64 k, i64 wanted) {
    const i64 whole = n / codes_per_chunk;
    i64 chunks = std::min(usual_chunks, whole / 4);
    if (chunks < fewest_chunks) return {0, 0};
    while (2 * chunks <= std::min(whole / 4, most_chunks) && sample_rank(k, chunks, n) * whole > wanted * chunks)
        chunks *= 2;
    const i64 rank = sample_rank(k, chunks, n);
    return rank <= chunks * codes_per_chunk / 4 ? Sample{chunks, rank} : Sample{0, 0};
}

// The rank-th largest of the marked numbers whose bits are the planes, each of so many words; none is negative.
inline i64 largest(const u64* planes, int width, i64 words, i64 rank, std::vector<u64>& marked) {
    i64 number = 0;
    for (int plane = width - 2; plane >= 0; --plane) {
        const u64* bits = planes + plane * words;
        i64 count = 0;
        for (i64 i = 0; i < words; ++i) count += std::popcount(marked[i] & bits[i]);
        const bool enough = count >= rank;
        const u64 flip = enough ? 0 : ~u64{0};
        for (i64 i = 0; i < words; ++i) marked[i] &= bits[i] ^ flip;
        number = 2 * number + enough;
        rank -= enough ? 0 : count;
    }
    return number;
}

}  // namespace slice_scan

// Writes the distances and positions of the k nearest allowed codes of each query, in the order of positions. The radii
// are estimates: a query that finds fewer than k is searched for again without one. Where codes are missing, so are
// their positions, −1.
inline void scan_slices(const Tiles& tiles, const WeightedCodes& queries, View<const u64, 1> allowed,
                        View<const i64, 1> radii, View<u16, 2> distances, View<i32, 2> positions) {
    std::vector<i64> chosen(queries.words.size());
    std::iota(chosen.begin(), chosen.end(), 0);
    const std::vector<i64> guesses(radii.data, radii.data + radii.size());
    const auto scan = queries.weighted() ? slice_scan::scan<true> : slice_scan::scan<false>;
    scan(tiles, queries, allowed, chosen, guesses, distances, positions);
}

// Writes a radius for each query that leaves a few more than k of the n codes, but hardly more than the wanted number;
// n_levels, which leaves all, for a base that is too small.
inline void estimate_radii(const Tiles& tiles, i64 n, const WeightedCodes& queries, View<const u64, 1> allowed, i64 k,
                           i64 wanted, View<i64, 1> radii) {
    std::fill_n(radii.data, radii.size(), queries.n_levels);
    const auto [chunks, rank] = slice_scan::sample_of(n, k, wanted);
    if (!chunks) return;
    std::vector<i64> chosen(queries.words.size());
    std::iota(chosen.begin(), chosen.end(), 0);
    SlicedQueries sliced(queries, chosen);
    Slices slices(chunks, sliced);
    const i64 words = chunks * words_per_row, per_tile = chunks_per_tile(tiles);
    std::vector<u64> sampled(words), marked;
    for (i64 slot = 0; slot < chunks; ++slot) {
        // spread over the whole base, since its order often has a meaning
        const i64 chunk = slot * (n / codes_per_chunk) / chunks;
        std::copy_n(allowed.data + words_per_row * chunk, words_per_row, &sampled[words_per_row * slot]);
        slices.fill(slot, tiles, chunk / per_tile, chunk % per_tile, sliced);
    }
    Buffer<u64> planes(most_width * words);
    for (i64 q = 0; q < sliced.size(); ++q) {
        sliced.set_radius(q, queries.n_levels);
        const int width = write_margins(slices, sliced, q, planes.data());
        marked = sampled;
        radii[q] = queries.n_levels - slice_scan::largest(planes.data(), width, words, rank, marked);
    }
}

}  // namespace autojacobin
