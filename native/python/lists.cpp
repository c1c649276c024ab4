// Kernels over lists: lists/*.hpp.
#include <nanobind/stl/pair.h>

#include "../lists/list_scan.hpp"
#include "arrays.hpp"

namespace autojacobin {
namespace {

// The codes of a segment in lists. It keeps the arrays alive.
class OwnedLists {
public:
    OwnedLists(Input<u8, 3> blocks, Input<u8, 1> offsets, Input<i64, 1> bounds, Input<i32, 1> positions)
        : codes{view(blocks), view(offsets), view(bounds), view(positions)},
          owners_{std::move(blocks), std::move(offsets), std::move(bounds), std::move(positions)} {
        const i64 n = codes.positions.size();
        require(codes.blocks.shape[1] >= 1 && codes.blocks.shape[2] == codes_per_block,
                "blocks must have shape (blocks, bytes of a code, 64)");
        require(
            n <= codes_per_block * codes.blocks.size() && codes.offsets.size() == codes_per_block * codes.blocks.size(),
            "blocks must have room for all positions, and offsets 64 numbers for each block");
        require(codes.bounds.size() >= 2 && codes.bounds[0] == 0 && codes.bounds[codes.n_lists()] == n,
                "bounds must begin with 0 and end with the number of codes");
        for (i64 l = 0; l < codes.n_lists(); ++l)
            require(codes.bounds[l] <= codes.bounds[l + 1], "bounds must not fall");
    }

    const ListCodes codes;

private:
    std::tuple<Input<u8, 3>, Input<u8, 1>, Input<i64, 1>, Input<i32, 1>> owners_;
};

std::pair<Returned<i32, 2>, Returned<i64, 2>> scan(const OwnedLists& lists, const Input<u64, 1>& allowed,
                                                   const Input<i64, 1>& n_allowed, const Input<u8, 4>& tables,
                                                   const Input<i64, 1>& factors, const Input<i32, 2>& probes,
                                                   const Input<i32, 2>& starts, i64 k) {
    const ListCodes& codes = lists.codes;
    const AllowedSlots slots{view(allowed), view(n_allowed)};
    const ListQueries queries{view(tables), view(factors), view(probes), view(starts)};
    require(slots.all() || (slots.bitmap.size() == codes.blocks.size() && slots.counts.size() == codes.n_lists()),
            "allowed must have a bit for each slot, and n_allowed a number for each list");
    require(queries.tables.shape[0] == queries.size() && queries.tables.shape[1] <= codes.blocks.shape[1] &&
                queries.tables.shape[2] == 2 && queries.tables.shape[3] == 16 &&
                queries.factors.size() == queries.size(),
            "tables must have shape (queries, bytes of a code or fewer, 2, 16), and factors a number for each query");
    require(queries.starts.shape == queries.probes.shape && queries.n_probes() >= 1 && k >= 1,
            "starts must have the shape of probes, with a column or more, and k must be at least 1");
    for (i64 i = 0; i < queries.size() * queries.n_probes(); ++i)
        require(queries.probes.data[i] < codes.n_lists(), "probes must be numbers of lists");
    Result<i32, 2> found({queries.size(), k});
    Result<i64, 2> nearest({queries.size(), k});
    without_gil([&] { scan_lists(codes, slots, queries, found.view, nearest.view); });
    return {found.array(), nearest.array()};
}

}  // namespace

void bind_lists(nb::module_& module) {
    nb::class_<OwnedLists> lists(module, "ListCodes", "Codes in lists, for searches. It keeps its arrays.");
    lists.def(nb::init<Input<u8, 3>, Input<u8, 1>, Input<i64, 1>, Input<i32, 1>>(), array("blocks"), array("offsets"),
              array("bounds"), array("positions"));
    refuse_copies(lists);
    module.def(
        "scan_lists", &scan, nb::arg("lists"), array("allowed"), array("n_allowed"), array("tables"), array("factors"),
        array("probes"), array("starts"), nb::arg("k"),
        "Whole distances and positions of the k nearest codes of each query, in any order; -1 where codes lack.");
}

}  // namespace autojacobin
