// Codes in tiles: columns of 64-bit words, which take at most 32 KB, so that they stay in the nearest cache while many
// queries pass over them.
//
//     tile    |word 0 of the codes|word 1|…                          codes are counted in groups of 64
//     word w  |code 0, 64, 128 … |code 1, 65, 129 … |…|code 63, …|   word w of code 64 g + p, of G groups, is at p G +
//     g
//
// So the eight words from one place on belong to the same place of eight groups, and squares of 64 × 64 bits can be
// transposed side by side (bitslice.hpp). The layout is part of the file format of an index.
#pragma once

#include <algorithm>

#include "../arrays.hpp"

namespace autojacobin {

struct Tiles {
    View<const u64, 3> words;  // shape (tiles, words of a code, codes of a tile)

    i64 size() const { return words.shape[0]; }
    i64 words_per_code() const { return words.shape[1]; }
    i64 codes_per_tile() const { return words.shape[2]; }
};

// Writes codes, given as rows of words, into tiles from a position on.
inline void write_tiles(View<const u64, 2> rows, View<u64, 3> tiles, i64 first) {
    const i64 n_words = tiles.shape[1], codes = tiles.shape[2], groups = codes / 64;
    for (i64 row = 0; row < rows.size(); ++row) {
        const i64 position = first + row, inside = position % codes;
        u64* word = tiles.data + position / codes * n_words * codes + (inside % 64) * groups + inside / 64;
        for (i64 w = 0; w < n_words; ++w, word += codes) *word = rows[row][w];
    }
}

// Queries as codes with a weight for each bit. Plane t marks the bits whose weight has 2^t in its binary form; without
// planes all weights are 1. No distance reaches n_levels.
struct WeightedCodes {
    View<const u64, 2> words;   // shape (queries, words of a code)
    View<const u64, 3> planes;  // shape (queries, planes, words of a code), or empty
    i64 n_levels;

    bool weighted() const { return planes.shape[0] > 0; }
    int n_lists() const { return weighted() ? int(planes.shape[1]) : 1; }
};

// Writes what each set bit of a code adds to the distance of query q. A clear bit adds the opposite, if this is
// negative.
inline void write_signed_weights(const WeightedCodes& queries, i64 q, i32* weights) {
    const i64 n_words = queries.words.shape[1];
    for (i64 w = 0; w < n_words; ++w)
        for (int b = 0; b < 64; ++b) {
            i32 weight = queries.weighted() ? 0 : 1;
            for (i64 p = 0; p < queries.planes.shape[1]; ++p)
                weight += i32(queries.planes.data[(q * queries.planes.shape[1] + p) * n_words + w] >> b & 1) << p;
            weights[64 * w + b] = queries.words.data[q * n_words + w] >> b & 1 ? -weight : weight;
        }
}

// Writes a table for each four bits of a code: what they add to the distance in each of their 16 values.
template <class T>
inline void write_tables(const i32* weights, i64 n_tables, T* tables) {
    for (i64 g = 0; g < n_tables; ++g, weights += 4, tables += 16)
        for (int value = 0; value < 16; ++value) {
            i32 total = 0;
            for (int b = 0; b < 4; ++b) total += std::max(value >> b & 1 ? weights[b] : -weights[b], 0);
            tables[value] = T(total);
        }
}

}  // namespace autojacobin
