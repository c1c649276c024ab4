// Which levels this CPU can run.
//
// x86-64-v2, v3 and v4 are those of the System V ABI. With AVX-512, two levels more have what this library gains from:
// VNNI (products of bytes), and VBMI (look-ups of 64 bytes by one instruction). This file is compiled for any CPU of
// its kind. It asks the CPU itself, because __builtin_cpu_supports knows other features in each compiler.
#include "cpu.hpp"

#include <cstdint>
#include <utility>

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif

namespace autojacobin {
namespace {

using Level = std::pair<const char*, bool>;  // a name, and whether it runs here

#if defined(__x86_64__)

constexpr std::uint32_t bits(std::initializer_list<int> numbers) {
    std::uint32_t result = 0;
    for (int number : numbers) result |= std::uint32_t{1} << number;
    return result;
}
constexpr bool has(std::uint32_t value, std::uint32_t wanted) {
    return (value & wanted) == wanted;
}

// Registers that the operating system saves when it changes threads
std::uint32_t saved_registers() {
    std::uint32_t low, high;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

std::vector<Level> all_levels() {
    std::uint32_t a, b, c, d, c1 = 0, b7 = 0, c7 = 0, c_extended = 0;
    if (__get_cpuid(1, &a, &b, &c, &d)) c1 = c;
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d)) b7 = b, c7 = c;
    if (__get_cpuid(0x80000001, &a, &b, &c, &d)) c_extended = c;
    const std::uint32_t saved = c1 & bits({27}) ? saved_registers() : 0;
    // SSE3, SSSE3, CMPXCHG16B, SSE4.1, SSE4.2, POPCNT; LAHF
    const bool v2 = has(c1, bits({0, 9, 13, 19, 20, 23})) && has(c_extended, bits({0}));
    // FMA, MOVBE, AVX, F16C; LZCNT; BMI1, AVX2, BMI2
    const bool v3 = v2 && has(saved, bits({1, 2})) && has(c1, bits({12, 22, 28, 29})) && has(c_extended, bits({5})) &&
                    has(b7, bits({3, 5, 8}));
    // AVX-512 F, DQ, CD, BW, VL
    const bool v4 = v3 && has(saved, bits({5, 6, 7})) && has(b7, bits({16, 17, 28, 30, 31}));
    const bool vnni = v4 && has(c7, bits({11}));
    const bool vbmi = vnni && has(c7, bits({1}));
    return {
        {"x86-64-v2", v2}, {"x86-64-v3", v3}, {"x86-64-v4", v4}, {"x86-64-v4-vnni", vnni}, {"x86-64-v4-vbmi", vbmi}};
}

#elif defined(__aarch64__)

bool has_dot_products() {
#if defined(__linux__)
    return getauxval(AT_HWCAP) & (1 << 20);  // HWCAP_ASIMDDP
#elif defined(__APPLE__)
    int value = 0;
    std::size_t size = sizeof value;
    return sysctlbyname("hw.optional.arm.FEAT_DotProd", &value, &size, nullptr, 0) == 0 && value;
#else
    return false;
#endif
}

std::vector<Level> all_levels() {
    return {{"aarch64-neon", true}, {"aarch64-dotprod", has_dot_products()}};
}

#endif

}  // namespace

std::vector<std::string> known_levels() {
    std::vector<std::string> names;
    for (const auto& [name, runs] : all_levels()) names.emplace_back(name);
    return names;
}

std::vector<std::string> levels() {
    std::vector<std::string> names;
    for (const auto& [name, runs] : all_levels())
        if (runs) names.emplace_back(name);
    return names;
}

}  // namespace autojacobin
