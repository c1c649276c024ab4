// Distances of codes by counting bits.
//
// The codes of a tile (tiles.hpp) are gone through place by place, and each place is compared with one word of the
// query.
//
// The spherical Hamming distance depends on two counts alone: the bits that differ, and the ones that both have. A
// table gives the level of each pair of counts.
#pragma once

#include <algorithm>
#include <bit>
#include <limits>

#include "../arrays.hpp"
#include "../select.hpp"
#include "tiles.hpp"

namespace autojacobin {

// Hamming distances of a query to codes that are given as rows of words.
inline void row_distances(View<const u64, 2> words, View<const u64, 1> query, View<i32, 1> distances) {
    const i64 n_words = words.shape[1];
    for (i64 row = 0; row < words.size(); ++row) {
        const u64* word = words.data + row * n_words;
        i64 total = 0;
        for (i64 w = 0; w < n_words; ++w) total += std::popcount(word[w] ^ query[w]);
        distances[row] = i32(total);
    }
}

// For each packed code, the sum of what tables have for its bytes, in the order of the bytes.
inline void table_sums(View<const u8, 2> packed, View<const double, 2> tables, View<double, 1> sums) {
    const i64 n_bytes = packed.shape[1];
    for (i64 row = 0; row < packed.size(); ++row) {
        double total = 0;
        for (i64 byte = 0; byte < n_bytes; ++byte)
            total += tables.data[tables.shape[1] * byte + packed.data[n_bytes * row + byte]];
        sums[row] = total;
    }
}

// Writes the levels of a query to all codes of the tiles in the order of their positions: table[differing][shared].
inline void tile_levels(const Tiles& tiles, View<const u64, 1> query, View<const float, 2> table,
                        View<float, 1> levels) {
    const i64 n_words = tiles.words_per_code(), codes = tiles.codes_per_tile(), groups = codes / 64;
    const u64 last_row = u64(table.shape[0] - 1), last_column = u64(table.shape[1] - 1);
    Buffer<u64> differing(codes), shared(codes);
    for (i64 t = 0; t < tiles.size(); ++t) {
        std::fill(differing.begin(), differing.end(), 0);
        std::fill(shared.begin(), shared.end(), 0);
        for (i64 w = 0; w < n_words; ++w) {
            const u64* words = tiles.words[t][w].data;
            const u64 asked = query[w];
            for (i64 i = 0; i < codes; ++i) {
                differing[i] += u64(std::popcount(words[i] ^ asked));
                shared[i] += u64(std::popcount(words[i] & asked));
            }
        }
        const i64 here = std::min(codes, levels.size() - codes * t);
        for (i64 position = 0; position < here; ++position) {
            const i64 i = (position % 64) * groups + position / 64;
            levels[codes * t + position] =
                table[i64(std::min(differing[i], last_row))][i64(std::min(shared[i], last_column))];
        }
    }
}

// Writes the levels and positions of the nearest of the allowed codes of a query, of which there are enough. If the
// bitmap is empty, all are allowed.
inline void nearest_by_levels(const Tiles& tiles, i64 n, View<const u64, 1> query, View<const float, 2> table,
                              View<const u8, 1> allowed, View<double, 1> nearest, View<i64, 1> positions) {
    struct Positions {
        i64 operator[](i64 i) const { return i; }
    };
    Buffer<float> levels(n);
    const View<float, 1> all{levels.data(), {n}};
    tile_levels(tiles, query, table, all);
    if (allowed.size())
        for (i64 i = 0; i < n; ++i)
            if (!(allowed[i / 8] >> (i % 8) & 1)) levels[i] = std::numeric_limits<float>::infinity();
    select_smallest(View<const float, 1>{levels.data(), {n}}, Positions{}, nearest, positions);
}

}  // namespace autojacobin
