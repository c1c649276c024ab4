// Kernels over codes: codes/*.hpp.
#include <nanobind/stl/pair.h>

#include <bit>

#include "../codes/popcount.hpp"
#include "../codes/slice_scan.hpp"
#include "arrays.hpp"

namespace autojacobin {
namespace {

WeightedCodes queries_of(const Tiles& tiles, const Input<u64, 2>& words, const Input<u64, 3>& planes, i64 n_levels) {
    const WeightedCodes queries{view(words), view(planes), n_levels};
    const i64 n = queries.words.shape[0], n_words = queries.words.shape[1];
    require(n_words == tiles.words_per_code(), "queries must have as many words as the codes of the tiles");
    require(n_levels >= 1 && n_levels <= highest_level, "n_levels must be from 1 to 32,768");
    if (!queries.weighted()) {
        require(n_levels <= 64 * n_words + 1, "n_levels must not exceed the bits of a code plus 1");
        return queries;
    }
    require(queries.planes.shape[0] == n && queries.planes.shape[1] >= 1 && queries.planes.shape[1] <= most_planes &&
                queries.planes.shape[2] == n_words,
            "planes must have shape (queries, 1 to 8, words), or be empty");
    for (i64 q = 0; q < n; ++q) {
        i64 total = 0;
        for (int p = 0; p < queries.n_lists(); ++p)
            for (i64 w = 0; w < n_words; ++w) total += i64(std::popcount(queries.planes[q][p][w])) << p;
        require(total < n_levels, "the weights of a query must sum to less than n_levels");
    }
    return queries;
}

void check_sliced(const Tiles& tiles, const Input<u64, 1>& allowed) {
    require(tiles.words_per_code() <= most_sliced_words && tiles.codes_per_tile() % codes_per_chunk == 0,
            "codes longer than 512 bits cannot be sliced");
    require(tiles.size() * tiles.codes_per_tile() <= i64{1} << 31, "tiles must hold at most 2^31 codes");
    require(i64(allowed.shape(0)) == tiles.size() * tiles.codes_per_tile() / 64,
            "allowed must have a bit for each code of the tiles");
}

std::pair<Returned<u16, 2>, Returned<i32, 2>> scan(const TileWords& words, const Input<u64, 2>& queries,
                                                   const Input<u64, 3>& planes, i64 n_levels,
                                                   const Input<u64, 1>& allowed, const Input<i64, 1>& radii, i64 k) {
    const Tiles tiles = tiles_of(words);
    check_sliced(tiles, allowed);
    const WeightedCodes asked = queries_of(tiles, queries, planes, n_levels);
    require(view(radii).size() == asked.words.size(), "radii must have a number for each query");
    require(k >= 1, "k must be at least 1");
    Result<u16, 2> distances({asked.words.size(), k});
    Result<i32, 2> positions({asked.words.size(), k});
    without_gil([&] { scan_slices(tiles, asked, view(allowed), view(radii), distances.view, positions.view); });
    return {distances.array(), positions.array()};
}

Returned<i64, 1> estimate(const TileWords& words, i64 n, const Input<u64, 2>& queries, const Input<u64, 3>& planes,
                          i64 n_levels, const Input<u64, 1>& allowed, i64 k, i64 wanted) {
    const Tiles tiles = tiles_of(words);
    check_sliced(tiles, allowed);
    const WeightedCodes asked = queries_of(tiles, queries, planes, n_levels);
    require(k >= 1 && n >= 0 && n <= tiles.size() * tiles.codes_per_tile(),
            "n must be the number of codes in the tiles");
    Result<i64, 1> radii({asked.words.size()});
    without_gil([&] { estimate_radii(tiles, n, asked, view(allowed), k, wanted, radii.view); });
    return radii.array();
}

void write(const Input<u64, 2>& rows, const Output<u64, 4>& words, i64 first) {
    const Tiles tiles = tiles_of(words);
    require(i64(rows.shape(1)) == tiles.words_per_code(), "codes must have as many words as those of the tiles");
    require(first >= 0 && first + i64(rows.shape(0)) <= tiles.size() * tiles.codes_per_tile(),
            "the tiles must have room for the codes");
    without_gil([&] { write_tiles(view(rows), {words.data(), tiles.words.shape}, first); });
}

Returned<i32, 1> distances_of_rows(const Input<u64, 2>& words, const Input<u64, 1>& query) {
    require(words.shape(1) == query.shape(0), "the query must have as many words as the codes");
    Result<i32, 1> distances({i64(words.shape(0))});
    without_gil([&] { row_distances(view(words), view(query), distances.view); });
    return distances.array();
}

Returned<double, 1> sums_of_tables(const Input<u8, 2>& packed, const Input<double, 2>& tables) {
    require(packed.shape(1) == tables.shape(0) && tables.shape(1) == 256, "tables must have 256 values for each byte");
    Result<double, 1> sums({i64(packed.shape(0))});
    without_gil([&] { table_sums(view(packed), view(tables), sums.view); });
    return sums.array();
}

std::pair<Returned<double, 1>, Returned<i64, 1>> by_levels(const TileWords& words, i64 n, const Input<u64, 1>& query,
                                                           const Input<float, 2>& table, const Input<u8, 1>& allowed,
                                                           i64 k) {
    const Tiles tiles = tiles_of(words);
    const i64 n_words = tiles.words_per_code(), n_bytes = i64(allowed.shape(0));
    require(n >= 0 && n <= tiles.size() * tiles.codes_per_tile(), "n must be the number of codes in the tiles");
    require(i64(query.shape(0)) == n_words, "the query must have as many words as the codes of the tiles");
    require(n_bytes == 0 || 8 * n_bytes >= n, "allowed must have a bit for each code, or be empty");
    require(k >= 1 && k <= n, "k must be from 1 to n");
    require(table.shape(0) >= 1 && table.shape(1) >= 1, "table must not be empty");
    Result<double, 1> levels({k});
    Result<i64, 1> positions({k});
    without_gil(
        [&] { nearest_by_levels(tiles, n, view(query), view(table), view(allowed), levels.view, positions.view); });
    return {levels.array(), positions.array()};
}

}  // namespace

void bind_codes(nb::module_& module) {
    module.attr("MOST_SLICED_WORDS") = most_sliced_words;
    module.def("scan_slices", &scan, array("words"), array("queries"), array("planes"), nb::arg("n_levels"),
               array("allowed"), array("radii"), nb::arg("k"),
               "Distances and positions of the k nearest allowed codes of each query, in the order of positions.");
    module.def("estimate_radii", &estimate, array("words"), nb::arg("n"), array("queries"), array("planes"),
               nb::arg("n_levels"), array("allowed"), nb::arg("k"), nb::arg("wanted"),
               "A radius for each query that leaves a few more than k of the n codes, but hardly more than wanted.");
    module.def("write_tiles", &write, array("rows"), array("words"), nb::arg("first"),
               "Write codes, given as rows of words, into tiles from a position on.");
    module.def("row_distances", &distances_of_rows, array("words"), array("query"),
               "Hamming distances of a query to codes that are given as rows of words.");
    module.def("table_sums", &sums_of_tables, array("packed"), array("tables"),
               "For each packed code, the sum of what tables have for its bytes, in the order of the bytes.");
    module.def("nearest_by_levels", &by_levels, array("words"), nb::arg("n"), array("query"), array("table"),
               array("allowed"), nb::arg("k"),
               "Levels and positions of the k nearest of the allowed codes, by a table of the bits that differ and the "
               "ones that are shared.");
}

}  // namespace autojacobin
