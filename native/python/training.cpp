// Kernels that learn: training/*.hpp.
#include <nanobind/stl/array.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>

#include <algorithm>

#include "../training/recall.hpp"
#include "../training/tabu.hpp"
#include "arrays.hpp"

namespace autojacobin {
namespace {

template <class T>
void search(const Input<T, 2>& X, const Input<T, 1>& middle, const Input<T, 2>& columns, double inverse,
            const Input<float, 2>& gram, const Input<float, 1>& slope, const std::array<float, 6>& constants,
            const Input<float, 2>& start, const Input<i8, 2>& signs, i32 n_steps, std::pair<i32, i32> waits,
            float slack, const Output<float, 2>& codes, const Output<float, 1>& levels) {
    const auto [trace, error_share, low, per_step, top, stiffness] = constants;
    const LinearDecoder<T> decoder{view(middle), view(columns), view(gram), view(slope), T(inverse), trace,
                                   error_share,  low,           per_step,   top,         stiffness};
    const auto rows = view(X);
    const i64 n = rows.size(), D = rows.shape[1], d = decoder.n_bits(), width = decoder.width();
    require(width >= d && width % tabu::lanes_summed == 0,
            "rows of gram must be filled up to a multiple of 16 numbers");
    require(decoder.middle.size() == D && decoder.columns.size() == D && decoder.columns.shape[1] == width &&
                decoder.slope.size() == d,
            "middle, columns and slope must have the lengths of the rows of X and of gram");
    const auto given = view(signs);
    const auto first = view(start);
    require(given.size() ? given.size() == n && given.shape[1] == d
                         : n == 0 || (first.size() == d && first.shape[1] == width),
            "either signs must have a row for each of X, or start the shape of gram");
    require(view(codes).size() == n && view(codes).shape[1] == d && view(levels).size() == n,
            "codes and levels must have a row for each of X");
    const TabuSettings settings{n_steps, waits.first, waits.second, slack};
    without_gil([&] { tabu_search(rows, decoder, first, given, settings, view(codes), view(levels)); });
}

template <class T>
void bind_search(nb::module_& module) {
    module.def("tabu_search", &search<T>, array("X"), array("middle"), array("columns"), nb::arg("inverse"),
               array("gram"), array("slope"), nb::arg("constants"), array("start"), array("signs"), nb::arg("n_steps"),
               nb::arg("waits"), nb::arg("slack"), array("codes"), array("levels"),
               "Write the codes of some rows that a decoder reconstructs best, and the levels of their offsets.");
}

using Sums = Returned<double, 2>;

std::tuple<Sums, Sums, Sums> hits(const Input<i32, 2>& nearness, const Input<u8, 2>& first, const Input<i64, 1>& counts,
                                  const Input<double, 1>& totals, const Input<i64, 1>& candidates, i64 n_thresholds) {
    const auto scanned_from = view(first);
    const i64 n = scanned_from.size(), n_codes = n * scanned_from.shape[1];
    require(view(nearness).shape == scanned_from.shape && view(counts).size() == n && view(totals).size() == n,
            "nearness, first, counts and totals must have a row for each query");
    require(n_thresholds >= 0 && std::all_of(scanned_from.data, scanned_from.data + n_codes,
                                             [&](u8 threshold) { return threshold <= n_thresholds; }),
            "first must hold numbers from 0 to n_thresholds");
    const std::array<i64, 2> shape{n_thresholds, view(candidates).size()};
    Result<double, 2> sums(shape), squares(shape), products(shape);
    without_gil([&] {
        sum_hits(view(nearness), scanned_from, view(counts), view(totals), view(candidates), sums.view, squares.view,
                 products.view);
    });
    return {sums.array(), squares.array(), products.array()};
}

}  // namespace

void bind_training(nb::module_& module) {
    module.attr("BITS_AT_ONCE") = tabu::lanes_summed;
    bind_search<float>(module);
    bind_search<double>(module);
    module.def("sum_hits", &hits, array("nearness"), array("first"), array("counts"), array("totals"),
               array("candidates"), nb::arg("n_thresholds"),
               "Sums over queries for each threshold and number of candidates: neighbours found, squares, products.");
}

}  // namespace autojacobin
