// The k nearest codes of tiles for a few queries, in the calling thread.
//
// 64 codes at a time are compared with a radius, and those that may be within it are measured one by one. Whenever the
// memory for them is full, the k nearest stay and the radius shrinks; of equal distances, the lower positions stay. The
// first radius is estimated from every 16th block of 64 codes, because the order of codes often has a meaning. A query
// that finds fewer than k is searched for again without an estimate. A tile stays in the nearest cache for all queries.
//
//     distances   |d0 d1 d2 … dk−1 … | trigger | 64 more |      a row for each query; the codes of a block are written
//     positions   |p0 p1 p2 … pk−1 … |         |         |      before the memory is found to be full
//
// Hamming distances. Bits that differ are counted in each byte, and the bytes of a code are added.
//
// Weighted distances are sums of table entries, as in lookup.hpp. Here the entries are bytes that are rounded down, and
// scaled so that the radius is 254. Their sums saturate at 255. So all codes within the radius have a sum below 255,
// and few others do. Words of 64 codes are transposed in registers for the look-ups, so that one register has the same
// byte of all its codes.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "../arrays.hpp"
#include "../simd.hpp"
#include "../topk.hpp"
#include "tiles.hpp"

namespace autojacobin {
namespace tile_scan {

constexpr i64 block = 64;                                   // codes
constexpr i64 unbounded = std::numeric_limits<i32>::max();  // radius
constexpr int largest_byte = 254;                           // what the radius is in tables of bytes
constexpr i64 words_per_count = 31;                         // whose differing bits fit a byte for each byte
constexpr i32 missing = 65535;                              // distance where there is no code

// What tunes the search
constexpr i64 blocks_per_sampled = 16;
constexpr i64 fewest_to_sample = 8192;  // codes
constexpr i64 fewest_more = 128;        // codes beyond k that are written down before the radius shrinks

// Queries whose distances are the numbers of bits that differ
class BitCounts {
public:
    BitCounts(View<const i32, 2> weights) : n_words_(weights.shape[1] / 64), words_(weights.size() * n_words_) {
        for (i64 i = 0; i < words_.size(); ++i) {
            words_[i] = 0;
            for (int b = 0; b < 64; ++b) words_[i] |= u64(weights.data[64 * i + b] < 0) << b;
        }
    }

    i64 size() const { return words_.size() / n_words_; }
    void set_radius(i64, i64) {}

    // Bitmap of the codes of a block that are within a radius. The next word of a code is n_codes further on.
    u64 near(i64 q, const u64* codes, i64 n_codes, i64 radius) const {
        constexpr int step = simd::lanes<u64>, n = 8;  // registers
        const u64* asked = words_.data() + q * n_words_;
        const simd::Register<i64> limits = simd::everywhere(radius);
        u64 bitmap = 0;
        for (int first = 0; first < block; first += n * step) {
            simd::Register<u64> totals[n] = {};
            for (i64 w = 0; w < n_words_;) {
                simd::Register<u8> counts[n] = {};
                for (const i64 end = std::min(w + words_per_count, n_words_); w < end; ++w)
                    for (int i = 0; i < n; ++i) {
                        const auto words = simd::as<u8>(simd::load(codes + w * n_codes + first + i * step));
                        counts[i] += simd::count_differing(words, simd::as<u8>(simd::everywhere(asked[w])));
                    }
                for (int i = 0; i < n; ++i) totals[i] += simd::sums_of_bytes(counts[i]);
            }
            simd::Register<u32> least = simd::as<u32>(totals[0]);
            for (int i = 1; i < n; ++i) {
                const auto total = simd::as<u32>(totals[i]);
                least = total < least ? total : least;
            }
            if (!simd::nonzero_lanes(simd::as<u64>(simd::as<i64>(least) <= limits))) continue;
            for (int i = 0; i < n; ++i) {
                const u64 bits = simd::nonzero_lanes(simd::as<u64>(simd::as<i64>(totals[i]) <= limits));
                bitmap |= bits << (first + i * step);
            }
        }
        return bitmap;
    }
    static i64 place(int bit) { return bit; }

    i64 distance(i64 q, const u64* code, i64 n_codes) const {
        i64 total = 0;
        for (i64 w = 0; w < n_words_; ++w) total += std::popcount(code[w * n_codes] ^ words_[q * n_words_ + w]);
        return total;
    }

private:
    const i64 n_words_;
    Buffer<u64> words_;
};

// Queries whose distances are sums of whole weights
class TableSums {
public:
    TableSums(View<const i32, 2> weights)
        : n_words_(weights.shape[1] / 64),
          size_(weights.size()),
          tables_(size_ * entries()),
          bytes_(size_ * entries()) {
        for (i64 q = 0; q < size_; ++q) write_tables(weights[q].data, 16 * n_words_, tables_.data() + q * entries());
    }

    i64 size() const { return size_; }

    // Scales the tables of bytes so that the radius is 254.
    void set_radius(i64 q, i64 radius) {
        const float scale = radius > 0 ? float(largest_byte) / float(radius) : float(largest_byte + 1);
        const u16* from = tables_.data() + q * entries();
        u8* to = bytes_.data() + q * entries();
        for (i64 i = 0; i < entries(); ++i) to[i] = u8(i32(std::min(float(from[i]) * scale, float(largest_byte + 1))));
    }

    // Bitmap of the codes of a block that may be within the radius: all that are, and few others. Bit 8 i + j is the
    // code 8 j + i.
    u64 near(i64 q, const u64* codes, i64 n_codes, i64) const {
        constexpr int step = simd::lanes<u64>;
        u64 bitmap = 0;
        for (int first = 0; first < 8; first += step) {
            const u8* table = bytes_.data() + q * entries();
            simd::Register<u8> lower = {}, upper = {};
            for (i64 w = 0; w < n_words_; ++w) {
                std::array<simd::Register<u8>, 8> rows;
                for (int i = 0; i < 8; ++i) rows[i] = simd::as<u8>(simd::load(codes + w * n_codes + first + 8 * i));
                simd::transpose_bytes(rows);
                for (int b = 0; b < 8; ++b, table += 32) {
                    const simd::Entries entries =
                        simd::look_up(simd::load_table(table), simd::load_table(table + 16), rows[b]);
                    lower = simd::add_saturating(lower, entries.lower);
                    upper = simd::add_saturating(upper, entries.upper);
                }
            }
            bitmap |= simd::bytes_below(simd::add_saturating(lower, upper), largest_byte + 1) << (8 * first);
        }
        return bitmap;
    }
    static i64 place(int bit) { return (bit & 7) << 3 | bit >> 3; }

    i64 distance(i64 q, const u64* code, i64 n_codes) const {
        const u16* table = tables_.data() + q * entries();
        i64 total = 0;
        for (i64 w = 0; w < n_words_; ++w) {
            u64 word = code[w * n_codes];
            for (int part = 0; part < 16; ++part, word >>= 4, table += 16) total += table[word & 15];
        }
        return total;
    }

private:
    i64 entries() const { return 256 * n_words_; }

    const i64 n_words_, size_;
    Buffer<u16> tables_;
    Buffer<u8> bytes_;
};

// Codes in tiles, and a bitmap of the positions that count; all do if it is empty.
struct TileCodes {
    Tiles tiles;
    i64 size;  // codes
    View<const u8, 1> allowed;

    bool counts(i64 position) const {
        return position < size && (!allowed.size() || (allowed[position >> 3] >> (position & 7) & 1));
    }
};

template <class QueryTables>
class Search {
public:
    Search(const TileCodes& codes, QueryTables& queries, i64 k)
        : codes_(codes),
          queries_(queries),
          k_(k),
          rank_(rank_of(k)),
          stride_(topk::whole_blocks(trigger(std::max(k, rank_)) + block)),
          distances_(queries.size() * stride_),
          positions_(queries.size() * stride_),
          scratch_(topk::scratch_for(stride_)),
          counts_(queries.size()),
          radii_(queries.size(), unbounded) {}

    void run(View<i32, 2> found, View<i64, 2> nearest) {
        estimate_radii();
        const std::vector<i64> estimates = radii_;
        const i64 n = queries_.size();
        scan(0, n, k_, 1);
        for (i64 q = 0; q < n; ++q) {
            if (counts_[q] < k_ && estimates[q] < unbounded) {
                radii_[q] = unbounded;
                scan(q, q + 1, k_, 1);
            }
            if (counts_[q] > k_) shrink(q, k_);
            for (i64 i = 0; i < k_; ++i) {
                found[q][i] = i < counts_[q] ? distances(q)[i] : missing;
                nearest[q][i] = i < counts_[q] ? positions(q)[i] : -1;
            }
        }
    }

private:
    static i64 trigger(i64 k) { return k + std::max(k, fewest_more); }

    // A little more than the share of the k nearest that a sample has
    static i64 rank_of(i64 k) {
        const double share = double(k) / blocks_per_sampled;
        return i64(share + 4 * std::sqrt(share) + 4);
    }

    // The radius is the distance of a rank in the sample.
    void estimate_radii() {
        if (codes_.size < fewest_to_sample || codes_.size < 4 * blocks_per_sampled * rank_) return;
        scan(0, queries_.size(), rank_, blocks_per_sampled);
        for (i64 q = 0; q < queries_.size(); ++q) {
            radii_[q] = counts_[q] >= rank_ ? i64(topk::kth_smallest(distances(q), counts_[q], rank_)) : unbounded;
            if (radii_[q] < unbounded) queries_.set_radius(q, radii_[q]);
        }
    }

    // Writes down the k nearest codes within the radius of each of some queries, or a few more; the radius may shrink.
    // Of as many blocks as the step says, one is scanned.
    void scan(i64 first_query, i64 last_query, i64 k, i64 step) {
        const Tiles& tiles = codes_.tiles;
        const i64 n_codes = tiles.codes_per_tile();
        std::fill(counts_.begin() + first_query, counts_.begin() + last_query, 0);
        for (i64 t = 0; t < tiles.size(); ++t) {
            const u64* tile = tiles.words.data + t * tiles.words_per_code() * n_codes;
            for (i64 q = first_query; q < last_query; ++q)
                for (i64 first = -(t * n_codes) & (block * step - 1); first < n_codes; first += block * step) {
                    const bool all = radii_[q] == unbounded;
                    const u64 near = all ? ~u64{0} : queries_.near(q, tile + first, n_codes, radii_[q]);
                    if (near) append(q, t, tile, first, near, k);
                }
        }
    }

    // Writes down the marked codes of a block that are within the radius.
    void append(i64 q, i64 t, const u64* tile, i64 first, u64 near, i64 k) {
        const i64 n_codes = codes_.tiles.codes_per_tile(), groups = n_codes / 64, radius = radii_[q];
        const int shift = std::countr_zero(u64(groups));
        i64 count = counts_[q];
        for (; near; near &= near - 1) {
            const i64 place = first + QueryTables::place(std::countr_zero(near));
            const i64 position = t * n_codes + 64 * (place & (groups - 1)) + (place >> shift);
            if (!codes_.counts(position)) continue;
            const i64 distance = queries_.distance(q, tile + place, n_codes);
            distances(q)[count] = i32(distance);
            positions(q)[count] = position;
            count += distance <= radius;
        }
        counts_[q] = count;
        if (count >= trigger(k)) {
            radii_[q] = shrink(q, k);
            queries_.set_radius(q, radii_[q]);
        }
    }

    i64 shrink(i64 q, i64 k) {
        const i64 radius = topk::keep_nearest<i64>(distances(q), positions(q), counts_[q], k, nullptr, scratch_.data());
        counts_[q] = k;
        return radius;
    }

    i32* distances(i64 q) { return distances_.data() + q * stride_; }
    i64* positions(i64 q) { return positions_.data() + q * stride_; }

    const TileCodes& codes_;
    QueryTables& queries_;
    const i64 k_, rank_, stride_;
    Buffer<i32> distances_;
    Buffer<i64> positions_, scratch_;
    std::vector<i64> counts_, radii_;
};

}  // namespace tile_scan

using tile_scan::TileCodes;

// Writes whole distances and positions of the k nearest codes of each query, in any order; positions are −1 where codes
// lack. A set bit of a code adds its weight to the distance, and a clear one the opposite, if this is more than 0. If
// bits are counted, all weights are 1 or −1.
inline void scan_tiles(const TileCodes& codes, View<const i32, 2> weights, bool counted, View<i32, 2> found,
                       View<i64, 2> nearest) {
    if (counted) {
        tile_scan::BitCounts queries(weights);
        tile_scan::Search(codes, queries, found.shape[1]).run(found, nearest);
    } else {
        tile_scan::TableSums queries(weights);
        tile_scan::Search(codes, queries, found.shape[1]).run(found, nearest);
    }
}

}  // namespace autojacobin
