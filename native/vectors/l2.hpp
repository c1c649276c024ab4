// Squared Euclidean distances of a query to rows of a matrix, read in place whatever their type.
//
//     rows       |r0 r1 r2 … |     of the candidates, anywhere in memory: those that come next are prefetched, for
//     squared    |d0 d1 d2 … |     waiting for them took two thirds of the time
//
// Sums of squares are taken in 16 accumulators of float64 at every level, which are added by halves:
//
//     row            |x0 … x15|x16 … x31| … |the rest, and zeros|
//     accumulators   |a0 … a15|         a0..a7 + a8..a15, then four, two and one
//
// If vectors and query are whole numbers from 0 to 255, all sums are whole numbers, too, and are taken as such: the
// result is the same. Otherwise, if only the nearest are wanted, estimates in float32 show which rows are too far to be
// measured. An estimate is a sum of D squares. Each difference and each square is rounded once and takes part in at
// most D − 1 sums, so that it errs by about (D + 2) 2⁻²⁴ of the distance at most. Twice that is allowed for, plus a
// tiny number for squares that are too small for float32. The query is rounded to float32 for this, and no distance
// changes by more than the query moves. A limit that as many estimates as are wanted do not exceed thus proves that so
// many vectors are within a certain distance; what is surely farther away need not be measured.
#pragma once

#include <algorithm>
#include <cmath>

#include "../arrays.hpp"
#include "../select.hpp"
#include "../simd.hpp"

namespace autojacobin {

// Rows of numbers of one of four types
struct Vectors {
    enum class Type { uint8, float16, float32, float64 };  // each twice as long as the one before

    const void* data;
    Type type;
    i64 size, width;

    i64 item_bytes() const { return i64{1} << int(type); }
    template <class T>
    View<const T, 2> as() const {
        return {static_cast<const T*>(data), {size, width}};
    }
    i64 row_bytes() const { return width * item_bytes(); }
    const void* row_data(i64 row) const { return static_cast<const char*>(data) + row * row_bytes(); }
};

namespace l2 {

constexpr i64 bytes_ahead = 4096, fewest_rows_ahead = 4, most_rows_ahead = 24;
constexpr i64 fewest_rows_per_wanted = 4;   // if a larger share is wanted, estimates save little
constexpr i64 longest_estimated = 1 << 20;  // numbers in a vector, up to which the relative error is below an eighth
constexpr i64 longest_bytes = ((i64{1} << 31) - 1) / (255 * 255);  // whose sum of squares fits 32 bits
constexpr i64 padding = 64;                                        // numbers after a query that are zeros
constexpr double unit = 0x1p-24, tiny = 0x1p-120;

template <class Sum>
constexpr int accumulators = std::is_same_v<Sum, float> ? 32 : 16;

// Squared distance of a query, followed by zeros, to a row.
template <class Number, class T>
inline Number distance(const Number* query, const T* row, i64 width) {
    constexpr int n = accumulators<Number>, step = simd::lanes<Number>;
    simd::Register<Number> sums[n / step] = {};
    i64 j = 0;
    for (; j + n <= width; j += n)
        for (int i = 0; i < n / step; ++i) {
            const auto gaps = simd::load(query + j + i * step) - simd::load_as<Number>(row + j + i * step);
            sums[i] += gaps * gaps;
        }
    for (int i = 0; j < width; j += step, ++i) {
        const auto gaps = simd::load(query + j) - simd::load_first_as<Number>(row + j, width - j);
        sums[i] += gaps * gaps;
    }
    for (int half = n / step / 2; half; half /= 2)
        for (int i = 0; i < half; ++i) sums[i] += sums[i + half];
    return simd::sum<Number>(sums[0]);
}

// The same for bytes, with a query of bytes.
inline i64 distance(const i16* query, const u8* row, i64 width) {
    constexpr int n = 64, step = simd::lanes<i16>;
    simd::Register<i32> sums[n / step] = {};
    i64 j = 0;
    for (; j + n <= width; j += n)
        for (int i = 0; i < n / step; ++i) {
            const auto gaps = simd::load(query + j + i * step) - simd::load_as<i16>(row + j + i * step);
            sums[i] += simd::sums_of_products(gaps, gaps);
        }
    for (int i = 0; j < width; j += step, ++i) {
        const auto gaps = simd::load(query + j) - simd::load_first_as<i16>(row + j, width - j);
        sums[i] += simd::sums_of_products(gaps, gaps);
    }
    for (int half = n / step / 2; half; half /= 2)
        for (int i = 0; i < half; ++i) sums[i] += sums[i + half];
    return simd::sum<i32>(sums[0]);
}

inline void prefetch(const void* first, i64 n_bytes) {
    const char* bytes = static_cast<const char*>(first);
    for (i64 i = 0; i < n_bytes; i += cache_line) simd::prefetch(bytes + i);
    simd::prefetch(bytes + n_bytes - 1);  // which may be in the next line
}

// Writes the distances of a query to rows; rows below 0 are left out.
template <class Number, class T>
inline void measure_all(const Number* query, View<const T, 2> vectors, View<const i64, 1> rows,
                        View<double, 1> squared) {
    const i64 width = vectors.shape[1], row_bytes = width * i64(sizeof(T));
    const i64 ahead = std::clamp(bytes_ahead / std::max<i64>(1, row_bytes), fewest_rows_ahead, most_rows_ahead);
    for (i64 c = 0; c < rows.size(); ++c) {
        // Asking for an address outside the mapped memory takes as long as waiting for a row.
        if (c + ahead < rows.size() && rows[c + ahead] >= 0)
            l2::prefetch(vectors.data + rows[c + ahead] * width, row_bytes);
        if (rows[c] >= 0) squared[c] = double(distance(query, vectors.data + rows[c] * width, width));
    }
}

}  // namespace l2

// A query as it is compared with vectors of a type, each time followed by zeros.
class L2Query {
public:
    L2Query(View<const double, 1> query, Vectors::Type type)
        : width(query.size()),
          doubles_(width + l2::padding),
          floats_(width + l2::padding),
          bytes_(width + l2::padding) {
        if (type == Vectors::Type::uint8 && width <= l2::longest_bytes) {
            fill(bytes_, query, [](double x) { return i16(x >= 0 && x <= 255 ? x : 0); });
            is_bytes = true;
            for (i64 j = 0; j < width; ++j) is_bytes &= query[j] == double(bytes_[j]);
            if (is_bytes) return;
        }
        fill(doubles_, query, [](double x) { return x; });
        if (type == Vectors::Type::float64) return;
        fill(floats_, query, [](double x) { return float(x); });
        moved = std::sqrt(l2::distance(doubles_.data(), floats_.data(), width));
    }

    const double* doubles() const { return doubles_.data(); }
    const float* floats() const { return floats_.data(); }
    const i16* bytes() const { return bytes_.data(); }

    const i64 width;
    bool is_bytes = false;  // whole numbers from 0 to 255, and so are the vectors
    double moved = 0;       // how far the query is from its numbers in float32

private:
    template <class T, class Function>
    static void fill(Buffer<T>& numbers, View<const double, 1> query, Function as_number) {
        for (i64 j = 0; j < query.size(); ++j) numbers[j] = as_number(query[j]);
        std::fill(numbers.data() + query.size(), numbers.end(), T{0});
    }

    Buffer<double> doubles_;
    Buffer<float> floats_;
    Buffer<i16> bytes_;
};

// Writes the squared distances of a query to rows. Rows below 0 are left out. Squared holds infinity, or what was
// measured before, which counts among the nearest. Where a row is not among as many nearest as are wanted, something
// larger may be written instead; rows that are not measured exactly become −1.
template <class T>
inline void measure(const L2Query& query, View<const T, 2> vectors, View<i64, 1> rows, i64 wanted,
                    View<double, 1> squared) {
    using namespace l2;
    const View<const i64, 1> asked{rows.data, rows.shape};
    if constexpr (std::is_same_v<T, u8>)
        if (query.is_bytes) return measure_all(query.bytes(), vectors, asked, squared);
    if constexpr (!std::is_same_v<T, double>)
        if (rows.size() >= fewest_rows_per_wanted * wanted && query.width <= longest_estimated) {
            measure_all(query.floats(), vectors, asked, squared);
            // The limit was rounded to float32, which is far less than the error allows for.
            const double near = limit_of(View<const double, 1>{squared.data, squared.shape}, wanted);
            const double error = 2 * double(query.width + 8) * unit, least = double(query.width + 8) * tiny;
            const double reach = std::sqrt(near * (1 + error) + least) + 2 * query.moved * (1 + 0x1p-20);
            const double limit = (reach * reach + least) / (1 - error);
            for (i64 c = 0; c < rows.size(); ++c)
                if (squared[c] > limit && squared[c] < double(selection::infinity)) rows[c] = -1;
        }
    measure_all(query.doubles(), vectors, asked, squared);
}

inline void measure(const L2Query& query, const Vectors& vectors, View<i64, 1> rows, i64 wanted,
                    View<double, 1> squared) {
    switch (vectors.type) {
        case Vectors::Type::uint8:
            return measure(query, vectors.as<u8>(), rows, wanted, squared);
        case Vectors::Type::float16:
            return measure(query, vectors.as<Float16>(), rows, wanted, squared);
        case Vectors::Type::float32:
            return measure(query, vectors.as<float>(), rows, wanted, squared);
        case Vectors::Type::float64:
            return measure(query, vectors.as<double>(), rows, wanted, squared);
    }
}

}  // namespace autojacobin
