// Kernels over vectors: select.hpp and vectors/*.hpp.
#include <nanobind/stl/pair.h>

#include "../select.hpp"
#include "../vectors/clustering.hpp"
#include "../vectors/l2.hpp"
#include "../vectors/screen.hpp"
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

template <class Numbers>
bool within(const Numbers& numbers, i64 end) {
    const View all = view(numbers);
    return std::all_of(all.data, all.data + all.size(), [&](i64 number) { return number >= 0 && number < end; });
}

void keep(const Input<float, 2>& products, const Input<float, 1>& lowered, const Input<float, 1>& spread, i64 first,
          const Input<i64, 1>& queries, const Input<float, 1>& slack, const Input<float, 1>& limits,
          const Output<i64, 1>& counts, const Output<float, 2>& low, const Output<float, 2>& high,
          const Output<i64, 2>& ids, const Output<i64, 1>& reached) {
    const Candidates found{view(slack), view(limits), view(counts), view(low), view(high), view(ids)};
    const i64 n = i64(products.shape(0)), columns = i64(products.shape(1));
    require(i64(lowered.shape(0)) == columns && i64(spread.shape(0)) == columns,
            "lowered and spread must have a number for each column");
    require(found.slack.size() == n && found.limits.size() == n && found.counts.size() == n && found.ids.size() == n &&
                i64(reached.shape(0)) == n && found.low.shape == found.ids.shape && found.high.shape == found.ids.shape,
            "slack, limits, counts, low, high, ids and reached must have a row for each query");
    require(within(queries, n), "queries must be rows of the products");
    require(within(counts, found.ids.shape[1] + 1) && within(reached, columns + 1),
            "counts must be at most what there is room for, and reached at most the columns");
    without_gil(
        [&] { keep_near(view(products), view(lowered), view(spread), first, view(queries), found, view(reached)); });
}

Returned<i32, 1> columns(const Input<float, 2>& products, const Input<float, 1>& norms) {
    require(products.shape(1) == norms.shape(0), "norms must have a number for each column");
    Result<i32, 1> labels({i64(products.shape(0))});
    without_gil([&] { nearest_column(view(products), view(norms), labels.view); });
    return labels.array();
}

std::pair<Returned<i32, 1>, Returned<i32, 1>> two_centres(const Input<float, 2>& X, const Input<float, 2>& centres,
                                                          const Input<i32, 2>& near) {
    const View numbers = view(near);
    const i64 n = numbers.size() * numbers.shape[1];
    require(X.shape(1) == centres.shape(1), "centres must be as wide as X");
    require(numbers.shape[0] == i64(X.shape(0)) && numbers.shape[1] >= 1, "near must have a row for each row of X");
    require(n == 0 || *std::max_element(numbers.data, numbers.data + n) < i64(centres.shape(0)),
            "near must be numbers of centres, or below 0");
    Result<i32, 1> first({numbers.size()}), second({numbers.size()});
    without_gil([&] { choose_first_and_second(view(X), view(centres), numbers, first.view, second.view); });
    return {first.array(), second.array()};
}

void means_of_groups(const AnyVectors& X, const Input<i64, 1>& order, const Input<i64, 1>& bounds, i64 first, i64 last,
                     const Output<float, 2>& means) {
    const Vectors vectors = vectors_of(X);
    const View ends = view(bounds);
    require(first >= 0 && first <= last && last < ends.size() && last <= i64(means.shape(0)),
            "first and last must be groups");
    require(i64(means.shape(1)) == vectors.width, "means must be as wide as X");
    require(ends[0] >= 0 && std::is_sorted(ends.data, ends.data + ends.size()) &&
                ends[ends.size() - 1] <= i64(order.shape(0)),
            "bounds must say where each group begins in order, and where the last one ends");
    require(vectors.type == Vectors::Type::uint8 || vectors.type == Vectors::Type::float32,
            "X must be of uint8 or float32");
    const View rows = view(order);
    const i64 *begin = rows.data + ends[first], *end = rows.data + ends[last];
    require(std::all_of(begin, end, [&](i64 row) { return row >= 0 && row < vectors.size; }),
            "order must be rows of X");
    without_gil([&] {
        if (vectors.type == Vectors::Type::uint8)
            write_means(vectors.as<u8>(), rows, ends, first, last, view(means));
        else
            write_means(vectors.as<float>(), rows, ends, first, last, view(means));
    });
}

}  // namespace

void bind_vectors(nb::module_& module) {
    module.def("measure_rows", &measure_rows, array("queries"), array("vectors"), array("rows"), array("squared"),
               nb::arg("wanted"), "Write the squared distances of queries to rows of vectors, or more for far ones.");
    module.def("select_smallest", &smallest, array("values"), array("ids"), nb::arg("k"),
               "The k smallest values of each row, none below 0, and their ids, in order; equal ones by lower id.");
    module.def("keep_near", &keep, array("products"), array("lowered"), array("spread"), nb::arg("first"),
               array("queries"), array("slack"), array("limits"), array("counts"), array("low"), array("high"),
               array("ids"), array("reached"), "Add the columns that may be near to the candidates of some queries.");
    module.def("nearest_column", &columns, array("products"), array("norms"),
               "The column with the smallest norm - 2 * product of each row; of equal ones the first.");
    module.def("choose_first_and_second", &two_centres, array("X"), array("centres"), array("near"),
               "Two centres of each row, of the near ones, which are in order and end with -1.");
    module.def("write_means", &means_of_groups, array("X"), array("order"), array("bounds"), nb::arg("first"),
               nb::arg("last"), array("means"), "Write the means of groups of rows; empty groups stay as they are.");
}

}  // namespace autojacobin
