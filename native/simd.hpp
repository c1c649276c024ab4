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

// The lanes of a register that is needed no more. GCC would keep one whose lanes are indexed in memory from the
// beginning.
template <class T>
inline std::array<T, lanes<T>> as_array(Register<T> values) {
    std::array<T, lanes<T>> result;
    store(result.data(), values);
    return result;
}

template <class T>
inline Register<T> everywhere(T value) {
    return Register<T>{} + value;
}

// The same bits as lanes of another size
template <class T, class From>
inline Register<T> as(From lanes) {
    static_assert(sizeof lanes == register_bytes);
    return (Register<T>)lanes;
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

// Lane i is −1 where bit i is set, for lanes of 16 bits.
inline Register<u16> lanes_of(u64 bits) {
#if defined(__AVX512BW__)
    return (Register<u16>)_mm512_movm_epi16(__mmask32(bits));
#else
    Register<u16> own;  // the bit of each lane
    for (int i = 0; i < lanes<u16>; ++i) own[i] = u16(1 << i);
    return (Register<u16>)((everywhere(u16(bits)) & own) == own);
#endif
}

// 64 numbers of 16 bits
using Words = std::array<Register<u16>, 64 / lanes<u16>>;

// Bitmap of the numbers that are at most the limit.
inline u64 at_most(const Words& values, u16 limit) {
    const Register<u16> limits = everywhere(limit);
#if defined(__AVX512BW__)
    return u64(_mm512_cmple_epu16_mask((__m512i)values[0], (__m512i)limits)) |
           u64(_mm512_cmple_epu16_mask((__m512i)values[1], (__m512i)limits)) << 32;
#elif defined(__AVX2__)
    const auto bits = [&](int i) {
        const __m256i one = (__m256i)(values[i] <= limits), other = (__m256i)(values[i + 1] <= limits);
        return u64(u32(_mm256_movemask_epi8(_mm256_permute4x64_epi64(_mm256_packs_epi16(one, other), 0xD8))));
    };
    return bits(0) | bits(2) << 32;
#elif defined(__SSE4_1__)
    const auto bits = [&](int i) {
        const auto mask = [&](int j) {
            const __m128i value = (__m128i)values[j];
            return _mm_cmpeq_epi16(_mm_min_epu16(value, (__m128i)limits), value);
        };
        return u64(_mm_movemask_epi8(_mm_packs_epi16(mask(i), mask(i + 1))));
    };
    return bits(0) | bits(2) << 16 | bits(4) << 32 | bits(6) << 48;
#elif defined(__aarch64__)
    const uint8x16_t own = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
    const auto bytes = [&](int i) {
        const uint8x8_t one = vmovn_u16((uint16x8_t)(values[i] <= limits));
        return vandq_u8(vmovn_high_u16(one, (uint16x8_t)(values[i + 1] <= limits)), own);
    };
    const uint8x16_t halves = vpaddq_u8(vpaddq_u8(bytes(0), bytes(2)), vpaddq_u8(bytes(4), bytes(6)));
    return vgetq_lane_u64(vreinterpretq_u64_u8(vpaddq_u8(halves, halves)), 0);
#endif
}

// Adds 1 to the lanes of the counts where the value is at most the limit.
template <class T>
inline Register<T> count_at_most(Register<T> counts, Register<T> values, Register<T> limits) {
#if defined(__AVX512BW__)
    const __m512i c = (__m512i)counts, v = (__m512i)values, l = (__m512i)limits;
    if constexpr (sizeof(T) == 2)
        return (Register<T>)_mm512_mask_add_epi16(c, _mm512_cmple_epu16_mask(v, l), c, _mm512_set1_epi16(1));
    else if constexpr (sizeof(T) == 4)
        return (Register<T>)_mm512_mask_add_epi32(c, _mm512_cmple_epi32_mask(v, l), c, _mm512_set1_epi32(1));
    else
        return (Register<T>)_mm512_mask_add_epi64(c, _mm512_cmple_epi64_mask(v, l), c, _mm512_set1_epi64(1));
#else
    return counts - (Register<T>)(values <= limits);
#endif
}

// Numbers of 16 bits

// Of as many bytes as a register has numbers of 16 bits.
inline Register<u16> load_bytes(const u8* from) {
#if defined(__AVX512BW__)
    return (Register<u16>)_mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
#elif defined(__AVX2__)
    return (Register<u16>)_mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
#elif defined(__SSE4_1__)
    return (Register<u16>)_mm_cvtepu8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)));
#elif defined(__aarch64__)
    return (Register<u16>)vmovl_u8(vld1_u8(from));
#endif
}

// Upper halves of the products.
inline Register<u16> upper_product(Register<u16> a, Register<u16> b) {
#if defined(__AVX512BW__)
    return (Register<u16>)_mm512_mulhi_epu16((__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
    return (Register<u16>)_mm256_mulhi_epu16((__m256i)a, (__m256i)b);
#elif defined(__SSE4_1__)
    return (Register<u16>)_mm_mulhi_epu16((__m128i)a, (__m128i)b);
#elif defined(__aarch64__)
    const uint16x8_t one = (uint16x8_t)a, other = (uint16x8_t)b;
    const uint32x4_t low = vmull_u16(vget_low_u16(one), vget_low_u16(other)), high = vmull_high_u16(one, other);
    return (Register<u16>)vuzp2q_u16(vreinterpretq_u16_u32(low), vreinterpretq_u16_u32(high));
#endif
}

// The largest number instead of sums that do not fit.
inline Register<u16> add_saturating(Register<u16> a, Register<u16> b) {
#if defined(__AVX512BW__)
    return (Register<u16>)_mm512_adds_epu16((__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
    return (Register<u16>)_mm256_adds_epu16((__m256i)a, (__m256i)b);
#elif defined(__SSE4_1__)
    return (Register<u16>)_mm_adds_epu16((__m128i)a, (__m128i)b);
#elif defined(__aarch64__)
    return (Register<u16>)vqaddq_u16((uint16x8_t)a, (uint16x8_t)b);
#endif
}

// Look-ups in tables of 16 bytes

// A table, as look_up takes it.
inline Register<u8> load_table(const u8* entries) {
#if defined(__AVX512BW__)
    return (Register<u8>)_mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(entries)));
#elif defined(__AVX2__)
    return (Register<u8>)_mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(entries)));
#else
    return load(entries);
#endif
}

// Entries of two tables, for the lower and for the upper four bits of bytes
struct Entries {
    Register<u8> lower, upper;
};

inline Entries look_up(Register<u8> lower, Register<u8> upper, Register<u8> bytes) {
#if defined(__AVX512VBMI__)
    // looks at six bits, of which two do not matter: the table is repeated
    const __m512i b = (__m512i)bytes;
    return {(Register<u8>)_mm512_permutexvar_epi8(b, (__m512i)lower),
            (Register<u8>)_mm512_permutexvar_epi8(_mm512_srli_epi16(b, 4), (__m512i)upper)};
#elif defined(__x86_64__)
    const Register<u8> nibble = everywhere(u8(15));
    const Register<u8> low = bytes & nibble, high = as<u8>(as<u16>(bytes) >> 4) & nibble;
#if defined(__AVX512BW__)
    return {(Register<u8>)_mm512_shuffle_epi8((__m512i)lower, (__m512i)low),
            (Register<u8>)_mm512_shuffle_epi8((__m512i)upper, (__m512i)high)};
#elif defined(__AVX2__)
    return {(Register<u8>)_mm256_shuffle_epi8((__m256i)lower, (__m256i)low),
            (Register<u8>)_mm256_shuffle_epi8((__m256i)upper, (__m256i)high)};
#else
    return {(Register<u8>)_mm_shuffle_epi8((__m128i)lower, (__m128i)low),
            (Register<u8>)_mm_shuffle_epi8((__m128i)upper, (__m128i)high)};
#endif
#elif defined(__aarch64__)
    return {(Register<u8>)vqtbl1q_u8((uint8x16_t)lower, (uint8x16_t)(bytes & everywhere(u8(15)))),
            (Register<u8>)vqtbl1q_u8((uint8x16_t)upper, (uint8x16_t)(bytes >> 4))};
#endif
}

// Bytes

// The largest number instead of sums that do not fit.
inline Register<u8> add_saturating(Register<u8> a, Register<u8> b) {
#if defined(__AVX512BW__)
    return (Register<u8>)_mm512_adds_epu8((__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
    return (Register<u8>)_mm256_adds_epu8((__m256i)a, (__m256i)b);
#elif defined(__x86_64__)
    return (Register<u8>)_mm_adds_epu8((__m128i)a, (__m128i)b);
#elif defined(__aarch64__)
    return (Register<u8>)vqaddq_u8((uint8x16_t)a, (uint8x16_t)b);
#endif
}

// Bitmap of the bytes that are below a limit, which is at least 1.
inline u64 bytes_below(Register<u8> bytes, u8 limit) {
#if defined(__AVX512BW__)
    return _mm512_cmplt_epu8_mask((__m512i)bytes, _mm512_set1_epi8(char(limit)));
#elif defined(__AVX2__)
    const __m256i least = _mm256_min_epu8((__m256i)bytes, _mm256_set1_epi8(char(limit - 1)));
    return u32(_mm256_movemask_epi8(_mm256_cmpeq_epi8(least, (__m256i)bytes)));
#elif defined(__x86_64__)
    const __m128i least = _mm_min_epu8((__m128i)bytes, _mm_set1_epi8(char(limit - 1)));
    return u32(_mm_movemask_epi8(_mm_cmpeq_epi8(least, (__m128i)bytes)));
#elif defined(__aarch64__)
    const uint8x16_t own = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
    uint8x16_t bits = vandq_u8((uint8x16_t)(bytes < limit), own);
    for (int i = 0; i < 3; ++i) bits = vpaddq_u8(bits, bits);
    return vgetq_lane_u16(vreinterpretq_u16_u8(bits), 0);
#endif
}

// How many bits of two bytes differ.
inline Register<u8> count_differing(Register<u8> a, Register<u8> b) {
#if defined(__x86_64__)
    alignas(16) static constexpr u8 counts[16] = {0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4};
    const Register<u8> table = load_table(counts);
#if defined(__AVX512BW__)
    // one instruction takes four bits of both that differ
    const __m512i nibble = _mm512_set1_epi8(15), t = (__m512i)table;
    const __m512i x = (__m512i)a, y = (__m512i)b, upper_x = _mm512_srli_epi16(x, 4), upper_y = _mm512_srli_epi16(y, 4);
    const __m512i low = _mm512_ternarylogic_epi64(x, y, nibble, 0x28);
    const __m512i high = _mm512_ternarylogic_epi64(upper_x, upper_y, nibble, 0x28);
    return (Register<u8>)_mm512_add_epi8(_mm512_shuffle_epi8(t, low), _mm512_shuffle_epi8(t, high));
#else
    const Entries entries = look_up(table, table, a ^ b);
    return entries.lower + entries.upper;
#endif
#elif defined(__aarch64__)
    return (Register<u8>)vcntq_u8((uint8x16_t)(a ^ b));
#endif
}

// The sums of each eight bytes.
inline Register<u64> sums_of_bytes(Register<u8> bytes) {
#if defined(__AVX512BW__)
    return (Register<u64>)_mm512_sad_epu8((__m512i)bytes, _mm512_setzero_si512());
#elif defined(__AVX2__)
    return (Register<u64>)_mm256_sad_epu8((__m256i)bytes, _mm256_setzero_si256());
#elif defined(__x86_64__)
    return (Register<u64>)_mm_sad_epu8((__m128i)bytes, _mm_setzero_si128());
#elif defined(__aarch64__)
    return (Register<u64>)vpaddlq_u32(vpaddlq_u16(vpaddlq_u8((uint8x16_t)bytes)));
#endif
}

#if defined(__AVX512BW__)
// Bytes j of one row and j + Distance of another change places, for each j without that bit, then those of half the
// distance.
template <int Distance>
inline void exchange_bytes(std::array<Register<u8>, 8>& rows) {
    struct Places {
        u64 upper = 0;
        u8 partners[64] = {};
    };
    static constexpr Places places = [] {  // a loop over the lanes of a register would run each time
        Places result;
        for (int j = 0; j < 64; ++j) {
            result.upper |= u64(j & Distance ? 1 : 0) << j;
            result.partners[j] = u8((j ^ Distance) & 15);
        }
        return result;
    }();
    const __mmask64 upper = places.upper;
    const __m512i partner = (__m512i)load(places.partners);
    for (int i = 0; i < 8; ++i) {
        if (i & Distance) continue;
        const __m512i one = (__m512i)rows[i], other = (__m512i)rows[i + Distance];
        rows[i] = (Register<u8>)_mm512_mask_shuffle_epi8(one, upper, other, partner);
        rows[i + Distance] = (Register<u8>)_mm512_mask_shuffle_epi8(other, ~upper, one, partner);
    }
    if constexpr (Distance > 1) exchange_bytes<Distance / 2>(rows);
}
#elif defined(__x86_64__)
// The elements of some bytes in the lower or upper halves of each 16 bytes, one of each in turn.
template <int Size>
inline Register<u8> interleave(Register<u8> a, Register<u8> b, bool upper) {
#if defined(__AVX2__)
    const __m256i x = (__m256i)a, y = (__m256i)b;
    if constexpr (Size == 1) return (Register<u8>)(upper ? _mm256_unpackhi_epi8(x, y) : _mm256_unpacklo_epi8(x, y));
    if constexpr (Size == 2) return (Register<u8>)(upper ? _mm256_unpackhi_epi16(x, y) : _mm256_unpacklo_epi16(x, y));
    if constexpr (Size == 8) return (Register<u8>)(upper ? _mm256_unpackhi_epi64(x, y) : _mm256_unpacklo_epi64(x, y));
#else
    const __m128i x = (__m128i)a, y = (__m128i)b;
    if constexpr (Size == 1) return (Register<u8>)(upper ? _mm_unpackhi_epi8(x, y) : _mm_unpacklo_epi8(x, y));
    if constexpr (Size == 2) return (Register<u8>)(upper ? _mm_unpackhi_epi16(x, y) : _mm_unpacklo_epi16(x, y));
    if constexpr (Size == 8) return (Register<u8>)(upper ? _mm_unpackhi_epi64(x, y) : _mm_unpacklo_epi64(x, y));
#endif
}

// Of the four bits of a place in 16 bytes, the highest comes to choose between two rows, in the place of one that did,
// which goes where elements of this size have it.
template <int Size, int Distance>
inline void interleave_rows(std::array<Register<u8>, 8>& rows) {
    for (int i = 0; i < 8; ++i) {
        if (i & Distance) continue;
        const Register<u8> one = rows[i], other = rows[i + Distance];
        rows[i] = interleave<Size>(one, other, false);
        rows[i + Distance] = interleave<Size>(one, other, true);
    }
}
#elif defined(__aarch64__)
// The even elements of two rows, one of each in turn, then the odd ones; then for elements of half the size
template <int Distance>
inline void exchange_bytes(std::array<Register<u8>, 8>& rows) {
    for (int i = 0; i < 8; ++i) {
        if (i & Distance) continue;
        const uint8x16_t a = (uint8x16_t)rows[i], b = (uint8x16_t)rows[i + Distance];
        if constexpr (Distance == 4) {
            const uint32x4_t x = vreinterpretq_u32_u8(a), y = vreinterpretq_u32_u8(b);
            rows[i] = (Register<u8>)vtrn1q_u32(x, y), rows[i + Distance] = (Register<u8>)vtrn2q_u32(x, y);
        } else if constexpr (Distance == 2) {
            const uint16x8_t x = vreinterpretq_u16_u8(a), y = vreinterpretq_u16_u8(b);
            rows[i] = (Register<u8>)vtrn1q_u16(x, y), rows[i + Distance] = (Register<u8>)vtrn2q_u16(x, y);
        } else {
            rows[i] = (Register<u8>)vtrn1q_u8(a, b), rows[i + Distance] = (Register<u8>)vtrn2q_u8(a, b);
        }
    }
    if constexpr (Distance > 1) exchange_bytes<Distance / 2>(rows);
}
#endif

// Transposes squares of 8 × 8 bytes: row i has byte j of square s at 8 s + j, and then row j has it at 8 s + i.
inline void transpose_bytes(std::array<Register<u8>, 8>& rows) {
#if defined(__x86_64__) && !defined(__AVX512BW__)
    interleave_rows<1, 1>(rows);
    interleave_rows<2, 4>(rows);
    interleave_rows<2, 2>(rows);
    interleave_rows<8, 1>(rows);
#else
    exchange_bytes<4>(rows);
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
