// Tabu search for the codes s ∈ {−1, 1}^d that a linear decoder reconstructs vectors best from. The formulas are in
// hashers/autoencoders/tabu_search.py. With G = 2 C C' without its diagonal, and offsets in steps of their levels,
// flipping bit i costs
//
//     v_i + λ (m_i − nearest level)²,   v_i = s_i (b_i − ½ Σ_j G_ij s_j),   m_i = level − shift_i + (1 + a) v_i/step
//
// and the flip of bit j adds s_i s_j G_ij to each v_i. One pass over a row of G does this and finds the next bit, a
// register at a time: the lowest binary digits of each cost are replaced by i, and the smallest carries it along. So
// costs have 23 − log2(d) binary digits where bits are compared, and all of them where they are summed.
//
//     values   |v0 v1 v2 … vd−1   ∞   ∞ …|   filled up to a multiple of 16 numbers
//     shifts   |s_i (b_i − slope_i)/step |
//     signs    |0, or the highest bit    |   the sign of a float that is −1
//     ready    |steps …   never never …  |   when a bit may flip again
//
// Eight vectors take turns at each step: while the smallest cost of one is found, the pass of the next is under way.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <deque>
#include <limits>
#include <numeric>
#include <utility>

#include "../arrays.hpp"
#include "../simd.hpp"

namespace autojacobin {

// A decoder x ≈ middle + C's, and how the offsets of codes are stored. Lengths are in units of 1 / inverse.
template <class T>
struct LinearDecoder {
    View<const T, 1> middle;     // (D,)
    View<const T, 2> columns;    // (D, width): C'
    View<const float, 2> gram;   // (d, width): 2 C C', zeros on the diagonal
    View<const float, 1> slope;  // (d,)
    T inverse;
    float trace, error_share, low, per_step, top, stiffness;

    i64 n_bits() const { return gram.size(); }
    i64 width() const { return gram.shape[1]; }  // a multiple of 16, the rows are filled up with zeros
};

struct TabuSettings {
    i32 n_steps, shortest, longest;  // flips, and how long a bit waits
    float slack;                     // share of Σ|b| up to which two errors are equal
};

namespace tabu {

constexpr i64 rows_at_once = 8;
constexpr i64 lanes_summed = 16;  // at every level of CPU
constexpr i32 never = std::numeric_limits<i32>::max();
constexpr i32 minus = std::numeric_limits<i32>::min();  // the sign of a float
constexpr float infinity = std::numeric_limits<float>::infinity();

using Floats = simd::Register<float>;
using Ints = simd::Register<i32>;

constexpr i64 filled(i64 n) {
    return (n + lanes_summed - 1) / lanes_summed * lanes_summed;
}

// A sum in as many parts at every level of CPU.
class Sum {
public:
    void add(i64 lane, float value) { parts_[lane] += value; }
    float total() const {
        float sums[lanes_summed];
        std::copy(parts_, parts_ + lanes_summed, sums);
        for (i64 half = lanes_summed / 2; half; half /= 2)
            for (i64 i = 0; i < half; ++i) sums[i] += sums[i + half];
        return sums[0];
    }

private:
    float parts_[lanes_summed] = {};
};

// out = values @ matrix. All rows use four rows of the matrix while these are in the nearest cache, and the order of
// the sums is the same whatever rows a row comes with.
template <class T>
inline void multiply(const T* values, i64 stride, i64 rows, const View<const T, 2>& matrix, T* out) {
    const i64 n = matrix.size(), width = matrix.shape[1], whole = n - n % 4;
    std::fill_n(out, rows * width, T(0));
    for (i64 k = 0; k < whole; k += 4) {
        const T *r0 = matrix.data + k * width, *r1 = r0 + width, *r2 = r1 + width, *r3 = r2 + width;
        for (i64 r = 0; r < rows; ++r) {
            const T* value = values + r * stride + k;
            const auto a0 = simd::everywhere(value[0]), a1 = simd::everywhere(value[1]);
            const auto a2 = simd::everywhere(value[2]), a3 = simd::everywhere(value[3]);
            T* sums = out + r * width;
            for (i64 i = 0; i < width; i += simd::lanes<T>) {
                const auto first = a0 * simd::load(r0 + i) + a1 * simd::load(r1 + i);
                const auto second = a2 * simd::load(r2 + i) + a3 * simd::load(r3 + i);
                simd::store(sums + i, simd::load(sums + i) + (first + second));
            }
        }
    }
    for (i64 k = whole; k < n; ++k)
        for (i64 r = 0; r < rows; ++r)
            for (i64 i = 0; i < width; ++i) out[r * width + i] += values[r * stride + k] * matrix[k][i];
}

// The nearest whole number, of two that are as near the even one; for numbers from 0 to 2^23.
template <class Number>
inline Number rounded(Number value) {
    return (value + 0x1p23f) - 0x1p23f;
}

// Squared distance of a level to the nearest whole one from 0 to top.
inline float off_grid(float level, float top) {
    const float off = level - rounded(std::min(std::max(level, 0.0f), top));
    return off * off;
}

// The search of one vector, see above, and how far it has come.
struct Walk {
    explicit Walk(i64 width) : values(width), shifts(width), signs(width), best(width), ready(width) {}

    Buffer<float> values, shifts;
    Buffer<i32> signs, best, ready;
    float level, best_level, slack;
    float penalty;         // for the level
    float change, lowest;  // of the costs since the start
    const float* row;      // of G, of the bit that was flipped
    i32 flipped;           // its sign before
    i64 number;            // of the vector in its block
};

template <class T>
class Search {
public:
    Search(const LinearDecoder<T>& decoder, const TabuSettings& settings)
        : decoder_(decoder),
          settings_(settings),
          width_(decoder.width()),
          both_(decoder.per_step * (1 + decoder.error_share)),
          stride_(filled(decoder.middle.size())),
          y_(rows_at_once * stride_),
          product_(rows_at_once * width_),
          b_(rows_at_once * width_),
          s_(rows_at_once * width_),
          sums_(rows_at_once * width_),
          slope_(width_),
          zeros_(width_),
          places_(width_) {
        std::fill(zeros_.begin(), zeros_.end(), 0.0f);
        std::iota(places_.begin(), places_.end(), 0);
        std::fill(y_.begin(), y_.end(), T(0));
        std::fill(s_.begin(), s_.end(), 0.0f);
        std::fill(slope_.begin(), slope_.end(), 0.0f);
        std::copy_n(decoder.slope.data, decoder.n_bits(), slope_.begin());
        while (place_ < decoder.n_bits()) place_ *= 2;
        --place_;
        for (i64 r = 0; r < rows_at_once; ++r) walks_.emplace_back(width_);
    }

    // The codes of up to 8 rows, from the signs that are given, or else from the signs of C y `start`.
    void run(const T* rows, i64 n, const View<const float, 2>& start, const i8* signs, float* codes, float* levels) {
        const i64 d = decoder_.n_bits();
        project(rows, n);
        if (signs) {
            for (i64 r = 0; r < n; ++r) std::copy_n(signs + r * d, d, &s_[r * width_]);
        } else {
            multiply(b_.data(), width_, n, start, sums_.data());
            for (i64 r = 0; r < n; ++r)
                for (i64 i = 0; i < d; ++i) s_[r * width_ + i] = sums_[r * width_ + i] >= 0 ? 1.0f : -1.0f;
        }
        multiply(s_.data(), width_, n, decoder_.gram, sums_.data());
        i64 n_walks = 0;
        for (i64 r = 0; r < n; ++r) {
            if (begin(r, walks_[n_walks])) {
                ++n_walks;
            } else {
                std::fill_n(codes + r * d, d, std::numeric_limits<float>::quiet_NaN());
                levels[r] = 0;
            }
        }
        search(n_walks);
        for (i64 w = 0; w < n_walks; ++w) {
            const Walk& walk = walks_[w];
            for (i64 i = 0; i < d; ++i) codes[walk.number * d + i] = walk.best[i] ? -1.0f : 1.0f;
            levels[walk.number] = walk.best_level;
        }
    }

private:
    void project(const T* rows, i64 n) {
        const i64 D = decoder_.middle.size();
        for (i64 r = 0; r < n; ++r)
            for (i64 k = 0; k < D; ++k) y_[r * stride_ + k] = (rows[r * D + k] - decoder_.middle[k]) * decoder_.inverse;
        multiply(y_.data(), stride_, n, decoder_.columns, product_.data());
        std::copy_n(product_.data(), n * width_, b_.data());
    }

    // Prepares the search of a row; false if its numbers are too large.
    bool begin(i64 number, Walk& walk) {
        const i64 d = decoder_.n_bits(), at = number * width_;
        const float *b = &b_[at], *s = &s_[at], *sums = &sums_[at];
        const T* y = &y_[number * stride_];
        Sum energy, total, quadratic, agreement, linear;
        for (i64 k = 0; k < stride_; k += lanes_summed)
            for (i64 i = 0; i < lanes_summed; ++i) energy.add(i, float(y[k + i] * y[k + i]));
        for (i64 first = 0; first < width_; first += lanes_summed) {
            for (i64 lane = 0; lane < lanes_summed; ++lane) {
                const i64 i = first + lane;
                const float half = 0.5f * sums[i];
                total.add(lane, std::fabs(b[i]));
                quadratic.add(lane, s[i] * half);
                agreement.add(lane, s[i] * b[i]);
                linear.add(lane, s[i] * slope_[i]);
                walk.values[i] = s[i] * (b[i] - half);
                walk.shifts[i] = decoder_.per_step * (s[i] * (b[i] - slope_[i]));
                walk.signs[i] = walk.best[i] = s[i] < 0 ? minus : 0;
                walk.ready[i] = 0;
            }
        }
        std::fill(walk.values.begin() + d, walk.values.end(), infinity);  // bits that there are not are never flipped
        std::fill(walk.ready.begin() + d, walk.ready.end(), never);
        if (!(total.total() + energy.total() < infinity)) return false;
        const float norm = quadratic.total() + decoder_.trace;
        const float error = energy.total() - 2 * agreement.total() + norm;
        const float offset = norm + decoder_.error_share * error - 2 * linear.total();
        walk.level = walk.best_level = (0.25f * offset - decoder_.low) * decoder_.per_step;
        walk.penalty = decoder_.stiffness * off_grid(walk.level, decoder_.top);
        walk.slack = settings_.slack * total.total();
        walk.change = walk.lowest = 0;
        walk.row = zeros_.data();
        walk.flipped = 0;
        walk.number = number;
        return true;
    }

    void search(i64 n_walks) {
        i32 wait = settings_.shortest;
        for (i32 step = 0; step < settings_.n_steps; ++step) {
            for (i64 w = 0; w < n_walks; ++w) take_step(walks_[w], step, wait);
            wait = wait == settings_.longest ? settings_.shortest : wait + 1;
        }
    }

    // Flips the bit that costs least, of those that are ready or lead below the lowest costs so far.
    void take_step(Walk& walk, i32 step, i32 wait) {
        const float wanted = (walk.lowest - walk.change - walk.slack) + walk.penalty;
        const float smallest = change_and_find(walk, step, wanted);
        if (smallest == infinity) {  // no bit may flip
            walk.row = zeros_.data();
            return;
        }
        const i64 i = std::bit_cast<i32>(smallest) & place_;
        walk.row = decoder_.gram.data + i * width_;
        walk.flipped = walk.signs[i];
        const float before = walk.penalty, value = walk.values[i];
        walk.level += both_ * value - walk.shifts[i];
        walk.penalty = decoder_.stiffness * off_grid(walk.level, decoder_.top);
        walk.change += value + (walk.penalty - before);
        walk.values[i] = -value;
        walk.shifts[i] = -walk.shifts[i];
        walk.signs[i] ^= minus;
        walk.ready[i] = step + wait;
        if (walk.change < walk.lowest - walk.slack) {
            walk.lowest = walk.change;
            walk.best_level = walk.level;
            std::copy(walk.signs.begin(), walk.signs.end(), walk.best.begin());
        }
    }

    // The pass: the smallest cost that counts, with the number of its bit in the lowest digits; or infinity.
    float change_and_find(Walk& walk, i32 step, float wanted) const {
        // Variables of this function: after each store of a float, compilers would read members again.
        const i64 width = width_;
        const float *row = walk.row, *shifts = walk.shifts.data();
        const i32 *signs = walk.signs.data(), *ready = walk.ready.data(), *places = places_.data();
        float* values = walk.values.data();
        const Floats zero = {}, none = simd::everywhere(infinity), top = simd::everywhere(decoder_.top);
        const Floats level = simd::everywhere(walk.level), both = simd::everywhere(both_);
        const Floats stiffness = simd::everywhere(decoder_.stiffness), aim = simd::everywhere(wanted);
        const Ints flipped = simd::everywhere(walk.flipped), now = simd::everywhere(step);
        const Ints digits = simd::everywhere(~place_);
        Floats smallest = none;
        for (i64 first = 0; first < width; first += simd::lanes<float>) {
            const Ints added = (Ints)simd::load(row + first) ^ simd::load(signs + first) ^ flipped;
            const Floats value = simd::load(values + first) + (Floats)added;
            simd::store(values + first, value);
            const Floats moved = (level - simd::load(shifts + first)) + both * value;
            const Floats off = moved - rounded(simd::smaller(simd::larger(moved, zero), top));
            const Floats cost = value + stiffness * (off * off);
            const Floats offered = (Floats)(((Ints)cost & digits) | simd::load(places + first));
            const Ints counts = (simd::load(ready + first) <= now) | (cost < aim);
            smallest = counts ? simd::smaller(offered, smallest) : smallest;
        }
        return simd::smallest_lane(smallest);
    }

    const LinearDecoder<T> decoder_;
    const TabuSettings settings_;
    const i64 width_;
    const float both_;
    i32 place_ = 1;  // a mask of the digits that hold the number of a bit
    const i64 stride_;
    Buffer<T> y_, product_;
    Buffer<float> b_, s_, sums_, slope_, zeros_;
    Buffer<i32> places_;  // 0, 1, 2 …
    std::deque<Walk> walks_;
};

}  // namespace tabu

// Codes of −1 and 1 for the rows of X, and the levels of their offsets, which are not rounded. They start from `signs`
// (n, d), or, if there are none, from the signs of C y `start`, of shape (d, width). A row that is not finite, or too
// large to project, has NaN for a code.
template <class T>
void tabu_search(const View<const T, 2>& X, const LinearDecoder<T>& decoder, const View<const float, 2>& start,
                 const View<const i8, 2>& signs, const TabuSettings& settings, const View<float, 2>& codes,
                 const View<float, 1>& levels) {
    tabu::Search<T> search(decoder, settings);
    const i64 d = decoder.n_bits();
    for (i64 first = 0; first < X.size(); first += tabu::rows_at_once) {
        const i64 n = std::min(tabu::rows_at_once, X.size() - first);
        search.run(X.data + first * X.shape[1], n, start, signs.size() ? signs.data + first * d : nullptr,
                   codes.data + first * d, levels.data + first);
    }
}

}  // namespace autojacobin
