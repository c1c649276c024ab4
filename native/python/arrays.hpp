// How arrays come from Python and go back. Inputs may be read-only. Nothing is converted: another type, another number
// of axes or gaps between the rows are errors.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <memory>
#include <string>
#include <utility>

#include "../arrays.hpp"
#include "../codes/tiles.hpp"
#include "../vectors/l2.hpp"

namespace autojacobin {

namespace nb = nanobind;

template <class T, std::size_t Axes>
using Input = nb::ndarray<const T, nb::ndim<Axes>, nb::c_contig, nb::device::cpu>;

// An array of the caller that a kernel writes to, where threads share one result
template <class T, std::size_t Axes>
using Output = nb::ndarray<T, nb::ndim<Axes>, nb::c_contig, nb::device::cpu>;

// Rows of numbers of a type that vectors_of knows
using AnyVectors = nb::ndarray<nb::ro, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

template <class T, std::size_t Axes>
using Returned = nb::ndarray<nb::numpy, T, nb::ndim<Axes>, nb::c_contig>;

// An argument that takes an array as it is; without noconvert(), nanobind would copy arrays of other types.
inline auto array(const char* name) {
    return nb::arg(name).noconvert();
}

template <class T, nb::ssize_t... Lengths, class... Options>
auto view(const nb::ndarray<T, nb::shape<Lengths...>, Options...>& array) {
    View<T, sizeof...(Lengths)> result{array.data(), {}};
    for (std::size_t axis = 0; axis < sizeof...(Lengths); ++axis) result.shape[axis] = i64(array.shape(axis));
    return result;
}

// Memory for a result, which becomes an array that owns it.
template <class T, std::size_t Axes>
class Result {
public:
    explicit Result(std::array<i64, Axes> shape) : view{nullptr, shape} {
        i64 size = 1;
        for (i64 length : shape) size *= length;
        memory_ = std::make_unique<Buffer<T>>(size);
        view.data = memory_->data();
    }

    Returned<T, Axes> array() {
        std::array<std::size_t, Axes> shape;
        for (std::size_t axis = 0; axis < Axes; ++axis) shape[axis] = std::size_t(view.shape[axis]);
        Buffer<T>* memory = memory_.release();
        const nb::capsule owner(memory, [](void* pointer) noexcept { delete static_cast<Buffer<T>*>(pointer); });
        return Returned<T, Axes>(memory->data(), Axes, shape.data(), owner);
    }

    View<T, Axes> view;

private:
    std::unique_ptr<Buffer<T>> memory_;
};

// Every kernel runs without the GIL. Nothing of Python may be touched inside.
template <class Function>
void without_gil(Function&& function) {
    const nb::gil_scoped_release release;
    std::forward<Function>(function)();
}

// What a kernel reads or writes is checked once, here: a wrong shape is an error of the caller's code.
inline void require(bool condition, const char* expected) {
    if (!condition) throw nb::value_error(("wrong argument of a kernel: " + std::string(expected)).c_str());
}

inline Vectors vectors_of(const AnyVectors& array) {
    using Type = Vectors::Type;
    const nb::dlpack::dtype type = array.dtype(), half{u8(nb::dlpack::dtype_code::Float), 16, 1};
    Vectors result{array.data(), Type::uint8, i64(array.shape(0)), i64(array.shape(1))};
    if (type == half)
        result.type = Type::float16;
    else if (type == nb::dtype<float>())
        result.type = Type::float32;
    else if (type == nb::dtype<double>())
        result.type = Type::float64;
    else
        require(type == nb::dtype<u8>(), "vectors must be of uint8, float16, float32 or float64");
    return result;
}

// Tiles as search/tiles.py has them: (tiles, words of a code, lanes, columns)
using TileWords = Input<u64, 4>;

template <class Words>
Tiles tiles_of(const Words& words) {
    const Tiles tiles{{words.data(), {i64(words.shape(0)), i64(words.shape(1)), i64(words.shape(2) * words.shape(3))}}};
    require(tiles.words_per_code() >= 1 && tiles.codes_per_tile() >= 64 && tiles.codes_per_tile() % 64 == 0,
            "tiles must hold whole groups of 64 codes");
    return tiles;
}

// For classes that keep references to arrays: a copy of an index's memory is never what a caller wants.
template <class Class>
void refuse_copies(nb::class_<Class>& bound) {
    constexpr auto refuse = [](nb::handle self) -> nb::typed<nb::tuple, nb::object> {
        const std::string type = nb::cast<std::string>(self.type().attr("__name__"));
        throw nb::type_error((type + " refers to memory and cannot be copied or pickled; make it again").c_str());
    };
    constexpr auto refuse_with = [](nb::handle self, nb::handle) { return decltype(refuse){}(self); };
    bound.def("__copy__", refuse)
        .def("__deepcopy__", refuse_with, nb::arg("memo"))
        .def("__reduce_ex__", refuse_with, nb::arg("protocol"));
}

}  // namespace autojacobin
