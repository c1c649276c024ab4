// Segments as searches hold them.
#pragma once

#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <vector>

#include "../search.hpp"
#include "arrays.hpp"

namespace autojacobin {

template <class T>
View<const T, 1> view_or_none(const std::optional<Input<T, 1>>& array) {
    return array ? view(*array) : View<const T, 1>{nullptr, {0}};
}

// A segment that keeps its arrays alive.
class OwnedSegment {
public:
    OwnedSegment(i64 size, i64 first_id, std::optional<Input<i64, 1>> ids, std::optional<AnyVectors> vectors,
                 std::optional<Input<u32, 1>> rows, std::optional<Input<bool, 1>> checked, i64 block_bytes)
        : segment{size,
                  first_id,
                  view_or_none(ids),
                  vectors ? vectors_of(*vectors) : Vectors{nullptr, Vectors::Type::uint8, 0, 0},
                  view_or_none(rows),
                  view_or_none(checked),
                  block_bytes},
          owners_{std::move(ids), std::move(vectors), std::move(rows), std::move(checked)} {
        const Vectors& stored = segment.vectors;
        require(size >= 0 && (!segment.ids.size() || segment.ids.size() == size), "ids must be as many as the codes");
        require(!stored.data || (segment.rows.size() ? segment.rows.size() == size : stored.size >= size),
                "rows must be as many as the codes, and vectors without rows, too");
        require(std::has_single_bit(u64(block_bytes)) && block_bytes > 0, "block_bytes must be a power of two");
        require(!segment.checked.size() || segment.checked.size() * block_bytes >= stored.size * stored.row_bytes(),
                "checked must have an entry for each block of the vectors");
    }

    const Segment segment;

private:
    std::tuple<std::optional<Input<i64, 1>>, std::optional<AnyVectors>, std::optional<Input<u32, 1>>,
               std::optional<Input<bool, 1>>>
        owners_;
};

// Segments that searches share, and that they keep alive
using OwnedSegments = std::vector<std::shared_ptr<const OwnedSegment>>;

inline std::vector<Segment> views_of(const OwnedSegments& owned) {
    std::vector<Segment> segments;
    for (const auto& one : owned) segments.push_back(one->segment);
    require(!segments.empty(), "there must be a segment or more");
    for (const Segment& one : segments)
        require(one.vectors.type == segments[0].vectors.type && one.vectors.width == segments[0].vectors.width,
                "the vectors of all segments must have one type and one width");
    return segments;
}

// Queries as they come from Python: float32 or float64.
inline Vectors queries_of(const AnyVectors& array) {
    const Vectors queries = vectors_of(array);
    require(queries.type == Vectors::Type::float32 || queries.type == Vectors::Type::float64,
            "queries must be of float32 or float64");
    return queries;
}

// Segments and rows of doubtful vectors, in two rows.
inline Returned<i64, 2> array_of(const std::vector<Doubtful>& doubtful) {
    Result<i64, 2> result({2, i64(doubtful.size())});
    for (i64 i = 0; i < i64(doubtful.size()); ++i) {
        result.view[0][i] = doubtful[i].segment;
        result.view[1][i] = doubtful[i].row;
    }
    return result.array();
}

}  // namespace autojacobin
