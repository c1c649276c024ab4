// What k-means and lists need: the nearest centre of vectors, a second one, and the means of groups.
//
// With x·c from a matrix product, the nearest centre is the one with the smallest ‖x − c‖² − ‖x‖² = ‖c‖² − 2 x·c.
// Of some near centres c, the second has the smallest ‖x − c‖² + (component of x − c along r)², where r is what is left
// of x beside the first one: it is near, and what is left points elsewhere.
//
//     products   |64 centres|64 centres| …     tested by whole registers; read one by one if one is nearer than before
//     order      |rows of group 0|rows of group 1| …     and where each group begins
//
// Sums over the numbers of a vector are taken in 16 accumulators at every level, those of means in float64.
#pragma once

#include <algorithm>
#include <limits>
#include <vector>

#include "../arrays.hpp"
#include "../simd.hpp"

namespace autojacobin {

// Writes the column with the smallest norm − 2 · product of each row; of equal ones the first.
inline void nearest_column(View<const float, 2> products, View<const float, 1> norms, View<i32, 1> labels) {
    constexpr i64 strip = 64;
    const i64 columns = products.shape[1];
    for (i64 i = 0; i < products.size(); ++i) {
        const float* row = products[i].data;
        float best = std::numeric_limits<float>::infinity();
        i64 label = 0;
        for (i64 first = 0; first < columns; first += strip) {
            const i64 end = std::min(first + strip, columns);
            i32 smaller = 0;
            if (end - first == strip)  // a loop of known length is unrolled
                for (i64 j = 0; j < strip; ++j) smaller |= norms[first + j] - 2 * row[first + j] < best;
            else
                for (i64 j = first; j < end; ++j) smaller |= norms[j] - 2 * row[j] < best;
            if (!smaller) continue;
            for (i64 j = first; j < end; ++j)
                if (const float value = norms[j] - 2 * row[j]; value < best) {
                    best = value;
                    label = j;
                }
        }
        labels[i] = i32(label);
    }
}

namespace clustering {

constexpr int accumulators = 16, parts = accumulators / simd::lanes<float>;
constexpr float tiny = 1e-37f;  // keeps a division by the length of r from one by zero

// Calls add(part, offset, gaps) with x − c, register by register; zeros follow the last numbers.
template <class Add>
inline void for_each_gap(const float* x, const float* c, i64 width, Add&& add) {
    constexpr int step = simd::lanes<float>;
    i64 j = 0;
    for (; j + accumulators <= width; j += accumulators)
        for (int i = 0; i < parts; ++i)
            add(i, j + i * step, simd::load(x + j + i * step) - simd::load(c + j + i * step));
    for (int i = 0; j < width; j += step, ++i)
        add(i, j, simd::load_first_as<float>(x + j, width - j) - simd::load_first_as<float>(c + j, width - j));
}

using Sums = std::array<simd::Register<float>, parts>;

inline float total(Sums sums) {
    for (int half = parts / 2; half; half /= 2)
        for (int i = 0; i < half; ++i) sums[i] += sums[i + half];
    return simd::sum<float>(sums[0]);
}

}  // namespace clustering

// Writes two centres of each row: the first of the near ones, which are in order and end with −1, and a second one. Of
// a row that is not finite, which is reported later, both are 0.
inline void choose_first_and_second(View<const float, 2> X, View<const float, 2> centres, View<const i32, 2> near,
                                    View<i32, 1> first, View<i32, 1> second) {
    using namespace clustering;
    const i64 width = X.shape[1];
    Buffer<float> left(width + accumulators);
    for (i64 q = 0; q < X.size(); ++q) {
        const float* x = X[q].data;
        first[q] = second[q] = std::max(near[q][0], 0);
        Sums lengths = {};
        for_each_gap(x, centres[first[q]].data, width, [&](int part, i64 j, simd::Register<float> gaps) {
            simd::store(left.data() + j, gaps);
            lengths[part] += gaps * gaps;
        });
        const float length = tiny + total(lengths);
        float best = std::numeric_limits<float>::infinity();
        for (i64 place = 1; place < near.shape[1] && near[q][place] >= 0; ++place) {
            const i32 c = near[q][place];
            Sums squares = {}, products = {};
            for_each_gap(x, centres[c].data, width, [&](int part, i64 j, simd::Register<float> gaps) {
                squares[part] += gaps * gaps;
                products[part] += gaps * simd::load(left.data() + j);
            });
            const float along = total(products), cost = total(squares) + along * (along / length);
            if (cost < best || place == 1) {
                best = cost;
                second[q] = c;
            }
        }
    }
}

// Writes the means of groups first to last of the rows; those of empty groups stay as they are.
template <class T>
inline void write_means(View<const T, 2> X, View<const i64, 1> order, View<const i64, 1> bounds, i64 first, i64 last,
                        View<float, 2> means) {
    const i64 width = X.shape[1];
    std::vector<double> total(width);
    for (i64 group = first; group < last; ++group) {
        const i64 count = bounds[group + 1] - bounds[group];
        if (!count) continue;
        std::fill(total.begin(), total.end(), 0.0);
        for (i64 place = bounds[group]; place < bounds[group + 1]; ++place) {
            const T* row = X[order[place]].data;
            for (i64 j = 0; j < width; ++j) total[j] += double(row[j]);
        }
        for (i64 j = 0; j < width; ++j) means[group][j] = float(total[j] / double(count));
    }
}

}  // namespace autojacobin
