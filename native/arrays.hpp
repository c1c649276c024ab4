// Views of arrays, and memory that begins at a cache line. Kernels take and return these; they know no Python.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <new>
#include <utility>

namespace autojacobin {

using u8 = std::uint8_t;
using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;
using i8 = std::int8_t;
using i16 = std::int16_t;
using i32 = std::int32_t;
using i64 = std::int64_t;

struct Float16 {  // a number of IEEE half precision, for which C++20 has no type
    u16 bits;
};

constexpr std::size_t cache_line = 64;  // bytes

// Numbers that someone else owns, row after row without gaps. view[i] is row i, or a number if there is one axis.
template <class T, std::size_t Axes>
struct View {
    T* data;
    std::array<i64, Axes> shape;

    i64 size() const { return shape[0]; }
    i64 row_size() const {
        i64 product = 1;
        for (std::size_t axis = 1; axis < Axes; ++axis) product *= shape[axis];
        return product;
    }
    decltype(auto) operator[](i64 i) const {
        if constexpr (Axes == 1) {
            return data[i];
        } else {
            View<T, Axes - 1> row{data + i * row_size(), {}};
            for (std::size_t axis = 1; axis < Axes; ++axis) row.shape[axis - 1] = shape[axis];
            return row;
        }
    }
};

// Memory for numbers, which are not initialised. std::vector would write zeros and align to 16 bytes.
template <class T>
class Buffer {
public:
    explicit Buffer(i64 size)
        : data_(static_cast<T*>(::operator new (size * sizeof(T), std::align_val_t{cache_line}))), size_(size) {}
    ~Buffer() { ::operator delete (data_, std::align_val_t{cache_line}); }
    Buffer(Buffer&& other) noexcept
        : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;

    T* data() { return data_; }
    const T* data() const { return data_; }
    T& operator[](i64 i) { return data_[i]; }
    const T& operator[](i64 i) const { return data_[i]; }
    i64 size() const { return size_; }
    T* begin() { return data_; }
    T* end() { return data_ + size_; }

private:
    T* data_;
    i64 size_;
};

}  // namespace autojacobin
