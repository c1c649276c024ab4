// Registers and the instructions that compilers do not find by themselves. No other file has any of a processor.
//
// The compiler's flags say the level (CMakeLists.txt). A register is a vector of the compiler: +, &, <<, <= and the
// like work on all its lanes, and a comparison gives −1 in each lane where it holds. Where a function below has no
// branch for a level, its last branch is plain C++ that every compiler turns into what that level has.
#pragma once

#include <algorithm>
#include <array>
#include <cstring>
#include <type_traits>

#include "arrays.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace autojacobin::simd {

#if defined(__AVX512BW__)
constexpr int register_bytes = 64;
#elif defined(__AVX2__)
constexpr int register_bytes = 32;
#else
constexpr int register_bytes = 16;
#endif

template <class T>
struct RegisterOf {
    typedef T type __attribute__((vector_size(register_bytes)));
};
template <class T>
using Register = typename RegisterOf<T>::type;

template <class T>
constexpr int lanes = register_bytes / int(sizeof(T));

// From any address: no kernel needs aligned memory, but some are faster with it.
template <class T>
inline Register<T> load(const T* from) {
    Register<T> result;
    std::memcpy(&result, from, sizeof result);
    return result;
}

template <class T>
inline void store(T* to, Register<T> values) {
    std::memcpy(to, &values, sizeof values);
}

template <class T>
inline Register<T> everywhere(T value) {
    return Register<T>{} + value;
}

// Asks for a cache line without waiting for it. Any address will do.
inline void prefetch(const void* address) {
    __builtin_prefetch(address, 0, 3);
}

// Single bits, 64 in each lane

inline Register<u64> parity(Register<u64> a, Register<u64> b, Register<u64> c) {
#if defined(__AVX512F__)
    return (Register<u64>)_mm512_ternarylogic_epi64((__m512i)a, (__m512i)b, (__m512i)c, 0x96);
#else
    return a ^ b ^ c;
#endif
}

inline Register<u64> majority(Register<u64> a, Register<u64> b, Register<u64> c) {
#if defined(__AVX512F__)
    return (Register<u64>)_mm512_ternarylogic_epi64((__m512i)a, (__m512i)b, (__m512i)c, 0xE8);
#else
    return ((a ^ b) & c) | (a & b);  // a ^ b is needed for the parity, too
#endif
}

// Bitmaps of lanes: lane i is bit i

inline u64 nonzero_lanes(Register<u64> words) {
#if defined(__AVX512F__)
    return _mm512_test_epi64_mask((__m512i)words, (__m512i)words);
#elif defined(__AVX2__)
    return _mm256_movemask_pd((__m256d)(words != 0));
#elif defined(__SSE4_1__)
    return _mm_movemask_pd((__m128d)(words != 0));
#else
    return u64(words[0] != 0) | u64(words[1] != 0) << 1;
#endif
}

// Numbers of other types

template <class T, int N>
struct VectorOf {
    typedef T type __attribute__((vector_size(N * sizeof(T))));
};
template <class T, int N>
using Vector = typename VectorOf<T, N>::type;

// The numbers that N half-precision ones are
template <int N>
inline Vector<float, N> as_floats(Vector<u16, N> halves) {
#if defined(__AVX512F__)
    if constexpr (N == 16) return (Vector<float, N>)_mm512_maskz_cvtph_ps(0xFFFF, (__m256i)halves);
#endif
#if defined(__F16C__)
    if constexpr (N == 8) return (Vector<float, N>)_mm256_cvtph_ps((__m128i)halves);
    if constexpr (N == 4) return (Vector<float, N>)_mm_cvtph_ps(_mm_set_epi64x(0, (long long)halves));
#elif defined(__aarch64__)
    if constexpr (N == 4) return (Vector<float, N>)vcvt_f32_f16((float16x4_t)halves);
#endif
    // The exponent, moved to where float32 has it, is too small by 2^112; what is beyond the largest is infinite or
    // NaN.
    using Bits = Vector<u32, N>;
    using Floats = Vector<float, N>;
    const Bits bits = __builtin_convertvector(halves, Bits);
    const Floats sizes = (Floats)((bits & 0x7FFF) << 13) * 0x1p112f;
    const Bits beyond = (Bits)(sizes >= 65536.0f) & 0x7F800000;
    return (Floats)((Bits)sizes | beyond | (bits & 0x8000) << 16);
}

template <class To, class T>
inline Register<To> convert(Vector<T, lanes<To>> numbers) {
    if constexpr (std::is_same_v<To, T>) {
        return numbers;
#if defined(__AVX512BW__)  // GCC converts halves
    } else if constexpr (std::is_same_v<To, i16> && std::is_same_v<T, u8>) {
        return (Register<i16>)_mm512_cvtepu8_epi16((__m256i)numbers);
#endif
    } else {
        return __builtin_convertvector(numbers, Register<To>);
    }
}

// Loads as many numbers as a register has lanes of another type, and converts them: without any error, if they fit.
template <class To, class T>
inline Register<To> load_as(const T* from) {
    constexpr int n = lanes<To>;
    if constexpr (std::is_same_v<T, Float16>) {
        Vector<u16, n> halves;
        std::memcpy(&halves, from, sizeof halves);
        return convert<To, float>(as_floats<n>(halves));
    } else {
        Vector<T, n> numbers;
        std::memcpy(&numbers, from, sizeof numbers);
        return convert<To, T>(numbers);
    }
}

// The same for the first numbers, with zeros after them. No memory after them is read.
template <class To, class T>
inline Register<To> load_first_as(const T* from, i64 count) {
    [[maybe_unused]] constexpr int size = lanes<To> * int(sizeof(T));
    alignas(64) char memory[64] = {};
    const u32 bytes = u32(std::min<i64>(count, lanes<To>) * i64(sizeof(T)));
#if defined(__AVX512BW__)
    const __mmask64 mask = _bzhi_u64(~u64{0}, bytes);
    if constexpr (size == 64) _mm512_store_si512(memory, _mm512_maskz_loadu_epi8(mask, from));
    if constexpr (size == 32)
        _mm256_store_si256(reinterpret_cast<__m256i*>(memory), _mm256_maskz_loadu_epi8(__mmask32(mask), from));
    if constexpr (size <= 16)
        _mm_store_si128(reinterpret_cast<__m128i*>(memory), _mm_maskz_loadu_epi8(__mmask16(mask), from));
#else
    std::memcpy(memory, from, bytes);
#endif
    return load_as<To>(reinterpret_cast<const T*>(memory));
}

// Products of numbers of 16 bits, added two by two in an order that differs between levels
inline Register<i32> sums_of_products(Register<i16> a, Register<i16> b) {
#if defined(__AVX512BW__)
    return (Register<i32>)_mm512_madd_epi16((__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
    return (Register<i32>)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#elif defined(__x86_64__)
    return (Register<i32>)_mm_madd_epi16((__m128i)a, (__m128i)b);
#elif defined(__aarch64__)
    const int16x8_t one = (int16x8_t)a, other = (int16x8_t)b;
    return (Register<i32>)vmlal_high_s16(vmull_s16(vget_low_s16(one), vget_low_s16(other)), one, other);
#endif
}

// The sum of all numbers: the upper half is added to the lower one, again and again.
template <class T, int N>
inline T sum_of(Vector<T, N> numbers) {
    if constexpr (N == 2) {
        return numbers[0] + numbers[1];
    } else {
        Vector<T, N / 2> halves[2];
        std::memcpy(halves, &numbers, sizeof numbers);
        return sum_of<T, N / 2>(halves[0] + halves[1]);
    }
}

template <class T>
inline T sum(Register<T> numbers) {
    return sum_of<T, lanes<T>>(numbers);
}

}  // namespace autojacobin::simd
