// Registers and the instructions that compilers do not find by themselves. No other file has any of a processor.
//
// The compiler's flags say the level (CMakeLists.txt). A register is a vector of the compiler: +, &, <<, <= and the
// like work on all its lanes, and a comparison gives −1 in each lane where it holds. Where a function below has no
// branch for a level, its last branch is plain C++ that every compiler turns into what that level has.
#pragma once

#include <cstring>

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

// Floats: one instruction for compilers, too. Of two that cannot be compared, the second is given.

inline Register<float> smaller(Register<float> a, Register<float> b) {
    return a < b ? a : b;
}

inline Register<float> larger(Register<float> a, Register<float> b) {
    return a > b ? a : b;
}

// None may be NaN.
inline float smallest_lane(Register<float> values) {
    typedef float Four __attribute__((vector_size(16)));
    Four parts[register_bytes / sizeof(Four)];
    std::memcpy(parts, &values, sizeof values);
    for (Four part : parts) parts[0] = part < parts[0] ? part : parts[0];
    const float low = parts[0][1] < parts[0][0] ? parts[0][1] : parts[0][0];
    const float high = parts[0][3] < parts[0][2] ? parts[0][3] : parts[0][2];
    return high < low ? high : low;
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

}  // namespace autojacobin::simd
