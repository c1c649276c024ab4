// Kernels over vectors: select.hpp and vectors/*.hpp.
#include <nanobind/stl/pair.h>

#include "../select.hpp"
#include "../vectors/l2.hpp"
#include "arrays.hpp"

namespace autojacobin {
namespace {

void measure_rows(const Input<double, 2>& queries, const AnyVectors& vectors, const Input<i64, 2>& rows,
                  const Output<double, 2>& squared, i64 wanted) {
    const View asked = view(queries);
    const View chosen = view(rows);
    const View<double, 2> measured = view(squared);
    const Vectors stored = vectors_of(vectors);
    require(stored.width == asked.shape[1], "vectors must be as wide as the queries");
    require(chosen.shape[0] == asked.shape[0] && measured.shape == chosen.shape,
            "rows and squared must have one shape, with a row for each query");
    require(wanted >= 0, "wanted must not be negative");
    const i64 n = chosen.shape[0] * chosen.shape[1];
    require(n == 0 || *std::max_element(chosen.data, chosen.data + n) < stored.size,
            "rows must be rows of the vectors, or below 0");
    without_gil([&] {
        Buffer<i64> some(chosen.shape[1]);
        for (i64 q = 0; q < asked.size(); ++q) {
            std::copy_n(chosen[q].data, some.size(), some.data());
            measure(L2Query(asked[q], stored.type), stored, {some.data(), {some.size()}}, wanted, measured[q]);
        }
    });
}

std::pair<Returned<double, 2>, Returned<i64, 2>> smallest(const Input<double, 2>& values, const Input<i64, 2>& ids,
                                                          i64 k) {
    const View rows = view(values);
    const View names = view(ids);
    require(names.shape == rows.shape, "ids must have the shape of values");
    require(k >= 1, "k must be at least 1");
    Result<double, 2> found({rows.size(), k});
    Result<i64, 2> named({rows.size(), k});
    without_gil([&] {
        for (i64 q = 0; q < rows.size(); ++q) select_smallest(rows[q], names[q], found.view[q], named.view[q]);
    });
    return {found.array(), named.array()};
}

}  // namespace

void bind_vectors(nb::module_& module) {
    module.def("measure_rows", &measure_rows, array("queries"), array("vectors"), array("rows"), array("squared"),
               nb::arg("wanted"), "Write the squared distances of queries to rows of vectors, or more for far ones.");
    module.def("select_smallest", &smallest, array("values"), array("ids"), nb::arg("k"),
               "The k smallest values of each row, none below 0, and their ids, in order; equal ones by lower id.");
}

}  // namespace autojacobin
