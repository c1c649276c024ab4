// Distances by lookup tables: 64 codes at a time, for one query.
//
// A table has an entry for each of the 16 values of four bits of a code, and a distance is a sum of entries of two
// tables for each byte. CPUs look up 16 to 64 bytes by one instruction, in tables of 16 entries that stay in a
// register. (F. André, A.-M. Kermarrec and N. Le Scouarnec, "Cache locality is not enough", VLDB 2015.)
//
// A block is 64 codes, byte by byte. Row b holds byte b of each code, so that a row as 16-bit words has code i in the
// lower and code i + 32 in the upper half of word i, and the sums of 32 codes come out in their order:
//
//     row b       |c0 |c32|c1 |c33|…|c31|c63|     bytes of the codes
//     as words    | word 0| word 1|…|word 31|
//
// Table entries are at most 127, so that two of them fit a byte. The sums are 16-bit words: one adds up whole words,
// which is the sum of the lower halves plus 256 times the sum of the upper ones, and the other adds up the upper
// halves.
//
// Each code has an offset, a byte. A query adds the product of the offset and its own factor, divided by 256:
//
//     distance = start + (offset · factor >> 8) + Σ over the bytes (table[lower four bits] + table[upper four bits])
#pragma once

#include <array>

#include "../arrays.hpp"
#include "../simd.hpp"

namespace autojacobin {

constexpr i64 codes_per_block = 64;
constexpr i64 largest_sum = 65535;
constexpr i64 entries_per_byte = 32;  // of a code: two tables of 16

namespace lookup {

// Sums of the entries for 64 codes, in their order. Prefetches as many bytes from later on.
inline simd::Words sums_of_entries(const u8* codes, const u8* later, const u8* tables, i64 bytes) {
    constexpr int parts = codes_per_block / simd::register_bytes;
    simd::Words whole = {};  // the first half: whole words, the second: their upper halves
    const auto add_byte = [&](i64 b) {
        const auto lower = simd::load_table(tables + entries_per_byte * b);
        const auto upper = simd::load_table(tables + entries_per_byte * b + 16);
        simd::prefetch(later + codes_per_block * b);
        for (int part = 0; part < parts; ++part) {
            const auto row = simd::load(codes + codes_per_block * b + simd::register_bytes * part);
            const simd::Entries entries = simd::look_up(lower, upper, row);
            const auto words = simd::as<u16>(entries.lower + entries.upper);
            whole[part] += words;
            whole[parts + part] += words >> 8;
        }
    };
    i64 b = 0;
    for (; b + 2 <= bytes; b += 2) add_byte(b), add_byte(b + 1);  // not all compilers unroll a loop
    if (b < bytes) add_byte(b);
    for (int part = 0; part < parts; ++part) whole[part] -= whole[parts + part] << 8;
    return whole;
}

// What a query asks of each block
struct Query {
    const u8* tables;
    i64 bytes;  // of a code that have tables
    u16 factor;
};

// Writes start plus the distances of the 64 codes of a block. Sums that do not fit 16 bits, and those of codes that are
// not set in the bitmap, are written as 65,535. Gives a bitmap of the valid codes whose sums are at most the limit.
inline u64 measure_block(const u8* codes, const u8* offsets, u64 valid, const Query& query, u16 start, u16 limit,
                         u16* sums, const u8* later_codes, const u8* later_offsets) {
    simd::prefetch(later_offsets);
    simd::Words distances = sums_of_entries(codes, later_codes, query.tables, query.bytes);
    const auto factors = simd::everywhere(query.factor), starts = simd::everywhere(start);
    for (std::size_t i = 0; i < distances.size(); ++i) {
        const auto small = simd::load_bytes(offsets + simd::lanes<u16> * i);
        const auto scaled = simd::upper_product(small << 8, factors);
        distances[i] = simd::add_saturating(distances[i] + scaled, starts);
        distances[i] |= ~simd::lanes_of(valid >> (simd::lanes<u16> * i));
        simd::store(sums + simd::lanes<u16> * i, distances[i]);
    }
    return simd::at_most(distances, limit) & valid;
}

inline simd::Words load_row(const u16* sums) {
    simd::Words row;
    for (std::size_t i = 0; i < row.size(); ++i) row[i] = simd::load(sums + simd::lanes<u16> * i);
    return row;
}

// Bitmap of the 64 sums of a row that are at most the limit.
inline u64 mark_row(const u16* sums, u16 limit) {
    return simd::at_most(load_row(sums), limit);
}

// Counts the sums of some rows that are at most the limit. There may be 65,535 rows.
inline i64 count_sums(const u16* sums, i64 rows, u16 limit) {
    const auto limits = simd::everywhere(limit);
    simd::Words counts = {};
    for (i64 row = 0; row < rows; ++row) {
        const simd::Words values = load_row(sums + codes_per_block * row);
        for (std::size_t i = 0; i < counts.size(); ++i)
            counts[i] = simd::count_at_most<u16>(counts[i], values[i], limits);
    }
    i64 total = 0;
    for (const auto& part : counts)
        for (u16 count : simd::as_array<u16>(part)) total += count;
    return total;
}

}  // namespace lookup
}  // namespace autojacobin
