// Distances by bit slices: 512 codes at a time, for many queries.
//
// A slice is one bit of each of 512 codes: a row of eight words. A chunk is 512 codes as slices. A number for each code
// is stored the same way, as rows that are called its planes.
//
//     row 0            bit 0 of the codes       |c0 c1 … c63|c64 …     |…      c511|
//     …                                          word 0      word 1         word 7
//     row n_bits − 1   their last bit
//     row n_bits       zeros, which fill up the lists of rows
//     rows after it    Hamming: the planes of ~|x|            weighted: the rows of the bits, inverted
//
// Adding the same row to 512 numbers is a full adder on whole registers, with the parity and the majority of three
// bits. Rows are added as a tree, eight or sixteen at a time, so that only the carries of the tree ripple through the
// higher planes. This takes a little more than two instructions for each row and register.
//
// Hamming distance. With s the number of ones that code x and query q have in common, d = |x| + |q| − 2 s. To find the
// codes with d < R, the planes start as R − |q|, the rows where the query has a one are added at the second plane, and
// then ~|x| is added, which is computed once for all queries:
//
//     R − 1 − d = 2 s + (R − |q|) + ~|x|
//
// The sign of the result, the margin, shows which codes are near. If the query has more ones than zeros, the rows where
// it has a zero are added instead. With t ones of the code among these, the sum is the complement of the above:
//
//     d − R = 2 t + (|q| + 1 − R) + ~|x|
//
// Weighted distance. R − 1 − d is R − 1 − (all weights) + (weights of the bits that agree). List t of a query names the
// rows that agree with it in bits whose weight has 2^t in its binary form; they are added at plane t.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <utility>
#include <vector>

#include "../arrays.hpp"
#include "../simd.hpp"
#include "tiles.hpp"

namespace autojacobin {

constexpr i64 words_per_row = 8, codes_per_chunk = 64 * words_per_row;
constexpr i64 most_sliced_words = 8;                     // of a code; tiles of longer ones hold no whole chunks
constexpr int most_planes = 8;                           // of weights
constexpr int most_width = 16, most_hamming_width = 11;  // planes of a margin
constexpr i64 highest_level = 32768;                     // no distance reaches it

inline i64 chunks_per_tile(const Tiles& tiles) {
    return tiles.codes_per_tile() / codes_per_chunk;
}

// Chosen queries as lists of the rows that each adds up, and where its sums start.
class SlicedQueries {
public:
    SlicedQueries(const WeightedCodes& queries, const std::vector<i64>& chosen)
        : weighted(queries.weighted()),
          n_lists(queries.n_lists()),
          n_bits(64 * queries.words.shape[1]),
          width(width_of(queries)),
          stride_(n_lists * (n_bits + 8)),
          rows_(i64(chosen.size()) * stride_),
          ends_(chosen.size() * n_lists),
          signs_(chosen.size(), 1),
          constants_(chosen.size()),
          starts_(chosen.size() * most_width) {
        for (i64 q = 0; q < i64(chosen.size()); ++q) {
            if (weighted)
                list_weights(q, queries.words[chosen[q]], queries.planes[chosen[q]]);
            else
                list_ones(q, queries.words[chosen[q]]);
        }
    }

    i64 size() const { return i64(signs_.size()); }
    i64 n_rows() const { return n_bits + 1 + (weighted ? n_bits : most_hamming_width); }

    // Let query q look for codes whose distance is below the radius.
    void set_radius(i64 q, i64 radius) {
        const i64 start = signs_[q] * radius + constants_[q];
        for (int i = 0; i < most_width; ++i) starts_[q * most_width + i] = -(u64(start >> i) & 1);
    }

    const u16* rows(i64 q) const { return rows_.data() + q * stride_; }
    const i64* ends(i64 q) const { return &ends_[q * n_lists]; }
    const u64* start(i64 q) const { return &starts_[q * most_width]; }
    u64 inverts(i64 q) const { return signs_[q] < 0 ? 0 : ~u64{0}; }  // what marks near codes, from the margin's sign

    const bool weighted;
    const int n_lists;
    const i64 n_bits;
    const int width;  // planes that a margin needs; more do no harm

private:
    // Planes for the largest distance and a sign. Code is compiled for each width, so it depends on usual weights.
    static int width_of(const WeightedCodes& queries) {
        const i64 usual = 64 * queries.words.shape[1] * (queries.weighted() ? 15 : 1);
        return std::bit_width(u64(std::max(usual, queries.n_levels - 1))) + 1;
    }

    // The list of the query's ones, or of its zeros if these are fewer.
    void list_ones(i64 q, View<const u64, 1> words) {
        i64 ones = 0, count = 0;
        for (i64 w = 0; w < words.size(); ++w) ones += std::popcount(words[w]);
        const bool mostly_ones = ones > n_bits / 2;
        signs_[q] = mostly_ones ? -1 : 1;
        constants_[q] = mostly_ones ? ones + 1 : -ones;
        for (i64 w = 0; w < words.size(); ++w)
            for (u64 bits = mostly_ones ? ~words[w] : words[w]; bits; bits &= bits - 1)
                append(q, count, 64 * w + std::countr_zero(bits));
        end_list(q, 0, count);
    }

    // A list for each plane of weights: the rows of bits where the query has a one, otherwise the inverted ones.
    void list_weights(i64 q, View<const u64, 1> words, View<const u64, 2> planes) {
        i64 total = 0, count = 0;
        for (int list = 0; list < n_lists; ++list) {
            for (i64 w = 0; w < words.size(); ++w) {
                total += i64(std::popcount(planes[list][w])) << list;
                for (u64 bits = planes[list][w]; bits; bits &= bits - 1) {
                    const int bit = std::countr_zero(bits);
                    append(q, count, 64 * w + bit + (words[w] >> bit & 1 ? 0 : n_bits + 1));
                }
            }
            end_list(q, list, count);
        }
        constants_[q] = -1 - total;
    }

    void append(i64 q, i64& count, i64 row) { rows_[q * stride_ + count++] = u16(words_per_row * row); }
    void end_list(i64 q, int list, i64& count) {
        while (count % 8) append(q, count, n_bits);
        ends_[q * n_lists + list] = count;
    }

    i64 stride_;
    Buffer<u16> rows_;            // as the number of words before each
    std::vector<i64> ends_;       // of the lists of each query, multiples of eight
    std::vector<i64> signs_;      // −1 if the rows of a query's zeros are added
    std::vector<i64> constants_;  // the sums start as sign times radius plus constant
    std::vector<u64> starts_;     // in two's complement, a word for each bit
};

namespace bitslice {

using Part = simd::Register<u64>;  // of a row
constexpr int words_per_part = simd::lanes<u64>;

template <std::size_t Width>
using Planes = std::array<Part, Width>;

// Adds single bits to the numbers in the planes, from plane Level on: the carries of a plane are added to the next.
template <std::size_t Level, std::size_t Width, std::size_t Count>
[[gnu::always_inline]] inline void add(Planes<Width>& planes, const std::array<Part, Count>& bits) {
    if constexpr (Count > 0 && Level < Width) {
        constexpr std::size_t pairs = Count / 2, odd = Count % 2;
        std::array<Part, pairs + odd> carries;
        Part plane = planes[Level];
        for (std::size_t i = 0; i < pairs; ++i) {
            carries[i] = simd::majority(bits[2 * i], bits[2 * i + 1], plane);
            plane = simd::parity(bits[2 * i], bits[2 * i + 1], plane);
        }
        if constexpr (odd) {
            carries[pairs] = bits[Count - 1] & plane;
            plane ^= bits[Count - 1];
        }
        planes[Level] = plane;
        add<Level + 1>(planes, carries);
    }
}

template <std::size_t Level, std::size_t Count, std::size_t Width>
[[gnu::always_inline]] inline void add_rows(Planes<Width>& planes, const u64* slices, const u16* rows) {
    std::array<Part, Count> bits;
    for (std::size_t i = 0; i < Count; ++i) bits[i] = simd::load(slices + rows[i]);
    add<Level>(planes, bits);
}

// Adds the rows of a list to the planes from Level on: sixteen at a time, then eight if they remain.
template <std::size_t Level, std::size_t Width>
[[gnu::always_inline]] inline void add_list(Planes<Width>& planes, const u64* slices, const u16* rows, i64 begin,
                                            i64 end) {
    for (; begin + 16 <= end; begin += 16) add_rows<Level, 16>(planes, slices, rows + begin);
    for (; begin + 8 <= end; begin += 8) add_rows<Level, 8>(planes, slices, rows + begin);
}

template <std::size_t Level, std::size_t Width>
[[gnu::always_inline]] inline void add_lists(Planes<Width>& planes, const u64* slices, const u16* rows, const i64* ends,
                                             int n_lists) {
    if constexpr (Level < most_planes && Level < Width) {
        if (i64(Level) == n_lists) return;
        add_list<Level>(planes, slices, rows, Level ? ends[Level - 1] : 0, ends[Level]);
        add_lists<Level + 1>(planes, slices, rows, ends, n_lists);
    }
}

// The margins of some codes of a chunk; slices is where their words begin in its first row.
template <std::size_t Width, bool Weighted>
[[gnu::always_inline]] inline Planes<Width> margins(const u64* slices, const SlicedQueries& queries, i64 q) {
    Planes<Width> planes;
    for (std::size_t i = 0; i < Width; ++i) planes[i] = simd::everywhere(queries.start(q)[i]);
    if constexpr (Weighted) {
        add_lists<0>(planes, slices, queries.rows(q), queries.ends(q), queries.n_lists);
    } else {
        add_list<1>(planes, slices, queries.rows(q), 0, queries.ends(q)[0]);
        const u64* counts = slices + words_per_row * (queries.n_bits + 1);
        Part carry = {};
        for (std::size_t i = 0; i < Width; ++i) {
            const Part other = simd::load(counts + words_per_row * i), plane = planes[i];
            planes[i] = simd::parity(plane, other, carry);
            carry = simd::majority(plane, other, carry);
        }
    }
    return planes;
}

// Three rounds over eight rows: in each, the high bits of one row and the low bits of another change places.
template <int Shift, int Distance = 4>
[[gnu::always_inline]] inline void exchange(std::array<Part, 8>& rows) {
    constexpr u64 mask = ~u64{0} / ((u64{1} << Shift) + 1);
    for (int i = 0; i < 8; ++i) {
        if (i & Distance) continue;
        const Part moved = (rows[i] >> Shift ^ rows[i + Distance]) & mask;
        rows[i + Distance] ^= moved;
        rows[i] ^= moved << Shift;
    }
    if constexpr (Distance > 1) exchange<Shift / 2, Distance / 2>(rows);
}

// Transposes the words of eight groups of 64 codes: row b of the target gets bit b of each code. The words of code p of
// the groups begin at source + p stride. Squares of 64 × 64 bits are transposed by exchanging ever smaller squares
// (Hacker's Delight, section 7-3). Eight rows stay in registers for three of the six rounds.
inline void transpose(const u64* source, i64 stride, u64* target) {
    for (int part = 0; part < words_per_row; part += words_per_part) {
        std::array<Part, 8> rows;
        for (int first = 0; first < 8; ++first) {
            for (int i = 0; i < 8; ++i) rows[i] = simd::load(source + part + (first + 8 * i) * stride);
            exchange<32>(rows);
            for (int i = 0; i < 8; ++i) simd::store(target + part + (first + 8 * i) * words_per_row, rows[i]);
        }
        for (int first = 0; first < 64; first += 8) {
            for (int i = 0; i < 8; ++i) rows[i] = simd::load(target + part + (first + i) * words_per_row);
            exchange<4>(rows);
            for (int i = 0; i < 8; ++i) simd::store(target + part + (first + i) * words_per_row, rows[i]);
        }
    }
}

}  // namespace bitslice

// Memory for the slices of some chunks.
class Slices {
public:
    Slices(i64 chunks, const SlicedQueries& queries)
        : chunks(chunks), n_rows(queries.n_rows()), memory_(chunks * n_rows * words_per_row) {
        for (i64 slot = 0; slot < chunks; ++slot) std::fill_n(row(slot, queries.n_bits), words_per_row, 0);
    }

    const u64* chunk(i64 slot) const { return memory_.data() + slot * n_rows * words_per_row; }

    // Transposes chunk c of tile t into a slot, and writes the rows that follow the bits.
    void fill(i64 slot, const Tiles& tiles, i64 t, i64 c, const SlicedQueries& queries) {
        const i64 n_bits = queries.n_bits, n_words = tiles.words_per_code(), codes = tiles.codes_per_tile();
        const u64* source = tiles.words.data + t * n_words * codes + c * words_per_row;
        for (i64 w = 0; w < n_words; ++w) bitslice::transpose(source + w * codes, codes / 64, row(slot, 64 * w));
        u64* after = row(slot, n_bits + 1);
        if (queries.weighted) {
            for (i64 i = 0; i < n_bits * words_per_row; ++i) after[i] = ~row(slot, 0)[i];
        } else {
            for (int part = 0; part < words_per_row; part += bitslice::words_per_part) {
                // the widest of all: what is above the width of the queries stays zero
                bitslice::Planes<most_hamming_width> planes = {};
                for (i64 b = 0; b < n_bits; b += 8) {
                    std::array<bitslice::Part, 8> bits;
                    for (int i = 0; i < 8; ++i) bits[i] = simd::load(row(slot, b + i) + part);
                    bitslice::add<0>(planes, bits);
                }
                for (int i = 0; i < most_hamming_width; ++i) simd::store(after + part + words_per_row * i, ~planes[i]);
            }
        }
    }

    const i64 chunks, n_rows;

private:
    u64* row(i64 slot, i64 number) { return memory_.data() + (slot * n_rows + number) * words_per_row; }

    Buffer<u64> memory_;
};

namespace bitslice {

// Marks the codes of all chunks that are nearer to query q than its radius: code i is bit i % 64 of word i / 64. Gives
// a bitmap of the words that are not zero.
template <std::size_t Width, bool Weighted>
u64 mark_near(const Slices& slices, const SlicedQueries& queries, i64 q, u64* near) {
    u64 marked = 0;
    const Part inverts = simd::everywhere(queries.inverts(q));
    for (i64 c = 0; c < slices.chunks; ++c) {
        for (int part = 0; part < words_per_row; part += words_per_part) {
            const Part marks = margins<Width, Weighted>(slices.chunk(c) + part, queries, q)[Width - 1] ^ inverts;
            const i64 place = words_per_row * c + part;
            simd::store(near + place, marks);
            marked |= simd::nonzero_lanes(marks) << place;
        }
    }
    return marked;
}

template <std::size_t Width, bool Weighted>
void write_margins(const Slices& slices, const SlicedQueries& queries, i64 q, u64* planes) {
    const Part complement = ~simd::everywhere(queries.inverts(q));
    for (i64 c = 0; c < slices.chunks; ++c) {
        for (int part = 0; part < words_per_row; part += words_per_part) {
            const Planes<Width> sums = margins<Width, Weighted>(slices.chunk(c) + part, queries, q);
            for (std::size_t i = 0; i < Width; ++i)
                simd::store(planes + words_per_row * (i64(i) * slices.chunks + c) + part, sums[i] ^ complement);
        }
    }
}

}  // namespace bitslice

// As bitslice::mark_near, which is compiled for each number of planes, so that these stay in registers.
using MarkNear = u64 (*)(const Slices&, const SlicedQueries&, i64 q, u64* near);

template <bool Weighted, std::size_t First, std::size_t... I>
constexpr std::array<MarkNear, sizeof...(I)> marks_near(std::index_sequence<I...>) {
    return {bitslice::mark_near<First + I, Weighted>...};
}

inline MarkNear mark_near_for(const SlicedQueries& queries) {
    static constexpr auto hamming = marks_near<false, 8>(std::make_index_sequence<4>());
    static constexpr auto weighted = marks_near<true, 11>(std::make_index_sequence<6>());
    return queries.weighted ? weighted[queries.width - 11] : hamming[queries.width - 8];
}

// Writes R − 1 − d for the codes of all chunks: row i of the result holds plane i. Gives the number of planes.
inline int write_margins(const Slices& slices, const SlicedQueries& queries, i64 q, u64* planes) {
    constexpr int few = 12;  // for weights of codes of up to 128 bits
    if (!queries.weighted) {
        bitslice::write_margins<most_hamming_width, false>(slices, queries, q, planes);
        return most_hamming_width;
    }
    if (queries.width <= few) {
        bitslice::write_margins<few, true>(slices, queries, q, planes);
        return few;
    }
    bitslice::write_margins<most_width, true>(slices, queries, q, planes);
    return most_width;
}

}  // namespace autojacobin
