// A search among all codes of segments, for a few queries, by the Hamming, asymmetric or decoded distance.
//
// Queries come as codes with whole weights, or as vectors. The weights of the bits of a code for a vector v are
//
//     w = 2 (v − start) · matrix' + shift
//
// where the products of bits beyond the rows of the matrix are zero. A code s ∈ {−1, 1} has, up to a constant, the
// distance −w · s. By counting bits, all weights are 1. Otherwise they are rounded to multiples of a unit, so that the
// largest becomes a whole number that depends on the length of the codes, or 255 for bits of a level.
#pragma once

#include <algorithm>
#include <cmath>
#include <optional>
#include <span>
#include <vector>

#include "../arrays.hpp"
#include "../search.hpp"
#include "../simd.hpp"
#include "tile_scan.hpp"
#include "tiles.hpp"

namespace autojacobin {

enum class CodeDistance { hamming, asymmetric, decoded };

// How vectors become the weights of the bits of a code
struct Projection {
    View<const float, 2> matrix;  // shape (bits or fewer, width)
    View<const float, 1> start;   // as wide as vectors
    View<const float, 1> shift;   // a number for each bit
    i64 n_level_bits;             // the last bits, which may weigh more than the others
    double offset;                // the constant of a decoded distance is ‖v − start‖² + offset
    i32 largest;                  // whole weight of a bit that is not one of a level
};

// Queries as scans of tiles take them: what each set bit adds to the whole distances, and how these become real ones.
struct WholeWeights {
    WholeWeights(i64 n, i64 n_bits, bool counted)
        : counted(counted), memory(n * n_bits), weights{memory.data(), {n, n_bits}}, scales(n, 1.0), constants(n, 0.0) {
        std::fill(memory.begin(), memory.end(), 0);
    }

    bool counted;  // all weights are 1 or −1
    Buffer<i32> memory;
    View<i32, 2> weights;  // shape (queries, bits of whole words)
    std::vector<double> scales, constants;
};

namespace tile_search {

constexpr i32 largest_of_levels = 255;

// The product of two rows, in 16 accumulators of float32 at every level. The query is followed by zeros.
inline float product(const float* query, const float* row, i64 width) {
    constexpr int n = 16, step = simd::lanes<float>;
    simd::Register<float> sums[n / step] = {};
    i64 j = 0;
    for (; j + n <= width; j += n)
        for (int i = 0; i < n / step; ++i) sums[i] += simd::load(query + j + i * step) * simd::load(row + j + i * step);
    for (int i = 0; j < width; j += step, ++i)
        sums[i] += simd::load(query + j) * simd::load_first_as<float>(row + j, width - j);
    for (int half = n / step / 2; half; half /= 2)
        for (int i = 0; i < half; ++i) sums[i] += sums[i + half];
    return simd::sum<float>(sums[0]);
}

// Writes the whole weights of query q.
inline void round_weights(const Projection& projection, CodeDistance distance, View<const float, 1> query, i64 q,
                          WholeWeights& whole) {
    const i64 n_bits = projection.shift.size(), n_rows = projection.matrix.size(), width = query.size();
    const View<const float, 1> start = projection.start;
    Buffer<float> twice(width + 16), weights(n_bits);
    for (i64 j = 0; j < width; ++j) twice[j] = 2 * (query[j] - start[j]);
    std::fill(twice.begin() + width, twice.end(), 0.0f);
    double unit = 0;
    for (i64 b = 0; b < n_bits; ++b) {
        weights[b] = b < n_rows ? product(twice.data(), projection.matrix[b].data, width) : 0;
        weights[b] += projection.shift[b];
        const i32 largest = b >= n_bits - projection.n_level_bits ? largest_of_levels : projection.largest;
        unit = std::max(unit, std::abs(double(weights[b])) / largest);
    }
    if (!(unit > 0 && std::isfinite(unit))) unit = 1;
    i64 total = 0;
    for (i64 b = 0; b < n_bits; ++b) {
        i32 weight = 1;
        if (distance != CodeDistance::hamming) {
            const double real = std::rint(std::abs(double(weights[b])) / unit);
            weight = real <= largest_of_levels ? i32(real) : 0;  // of a number, too, that is none
        }
        whole.weights[q][b] = weights[b] >= 0 ? -weight : weight;
        total += weight;
    }
    if (distance == CodeDistance::asymmetric) whole.scales[q] = unit;
    if (distance == CodeDistance::decoded) {
        double square = projection.offset;
        for (i64 j = 0; j < width; ++j) {
            const double gap = double(query[j]) - double(start[j]);
            square += gap * gap;
        }
        whole.scales[q] = 2 * unit;
        whole.constants[q] = square - unit * double(total);
    }
}

}  // namespace tile_search

// The whole weights of vectors.
inline WholeWeights project(const Projection& projection, CodeDistance distance, View<const float, 2> queries,
                            i64 n_words) {
    WholeWeights whole(queries.size(), 64 * n_words, distance == CodeDistance::hamming);
    for (i64 q = 0; q < queries.size(); ++q) tile_search::round_weights(projection, distance, queries[q], q, whole);
    return whole;
}

// The whole weights of queries that were prepared as codes.
inline WholeWeights weights_of(const WeightedCodes& queries) {
    WholeWeights whole(queries.words.size(), 64 * queries.words.shape[1], !queries.weighted());
    for (i64 q = 0; q < queries.words.size(); ++q) write_signed_weights(queries, q, whole.weights[q].data);
    return whole;
}

// Writes the nearest vectors of queries, among as many candidates, or their nearest codes if there are to be none.
inline void search_tiles(std::span<const Segment> segments, std::span<const TileCodes> codes, const WholeWeights& asked,
                         View<const double, 2> queries, i64 n_candidates, Found found,
                         std::vector<Doubtful>& doubtful) {
    const i64 n = asked.weights.size(), n_segments = i64(segments.size()), wanted = std::max(n_candidates, found.k());
    Buffer<i32> whole(n_segments * n * wanted);
    Buffer<i64> places(n_segments * n * wanted);
    const View<const i32, 2> weights{asked.weights.data, asked.weights.shape};
    for (i64 s = 0; s < n_segments; ++s)
        scan_tiles(codes[s], weights, asked.counted, {whole.data() + s * n * wanted, {n, wanted}},
                   {places.data() + s * n * wanted, {n, wanted}});
    const Candidates candidates = nearest_of_segments(segments, {whole.data(), {n_segments, n, wanted}},
                                                      {places.data(), {n_segments, n, wanted}}, wanted);
    if (n_candidates)
        order_vectors(queries, segments, candidates, found, doubtful);
    else
        order_codes(candidates, {asked.scales.data(), {n}}, {asked.constants.data(), {n}}, found);
}

}  // namespace autojacobin
