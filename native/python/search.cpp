// Searches over segments: search.hpp, codes/tile_search.hpp.
#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>

#include "../codes/tile_search.hpp"
#include "segments.hpp"

namespace autojacobin {
namespace {

// Codes of a segment in tiles, which keep their arrays alive.
class OwnedTiles {
public:
    OwnedTiles(TileWords words, i64 size, std::optional<Input<u8, 1>> allowed)
        : codes{tiles_of(words), size, view_or_none(allowed)}, owners_{std::move(words), std::move(allowed)} {
        const i64 n_codes = codes.tiles.codes_per_tile();
        require(std::has_single_bit(u64(n_codes)), "the codes of a tile must be a power of two");
        require(size >= 0 && size <= codes.tiles.size() * n_codes, "size must be the number of codes in the tiles");
        require(!codes.allowed.size() || 8 * codes.allowed.size() >= size, "allowed must have a bit for each code");
    }

    const TileCodes codes;

private:
    std::tuple<TileWords, std::optional<Input<u8, 1>>> owners_;
};

class OwnedProjection {
public:
    OwnedProjection(Input<float, 2> matrix, Input<float, 1> start, Input<float, 1> shift, i64 n_level_bits,
                    double offset, i32 largest)
        : projection{view(matrix), view(start), view(shift), n_level_bits, offset, largest},
          owners_{std::move(matrix), std::move(start), std::move(shift)} {
        require(projection.start.size() == projection.matrix.shape[1], "start must be as wide as the matrix");
        require(projection.matrix.size() <= projection.shift.size(),
                "the matrix must have a row for each bit or fewer");
        require(largest >= 1 && largest <= tile_search::largest_of_levels, "largest must be from 1 to 255");
    }

    const Projection projection;

private:
    std::tuple<Input<float, 2>, Input<float, 1>, Input<float, 1>> owners_;
};

CodeDistance distance_named(const std::string& name) {
    if (name == "hamming") return CodeDistance::hamming;
    if (name == "asymmetric") return CodeDistance::asymmetric;
    require(name == "decoded", "distance must be hamming, asymmetric or decoded");
    return CodeDistance::decoded;
}

using SomeTiles = std::vector<std::shared_ptr<const OwnedTiles>>;
using Searched = std::tuple<Returned<double, 2>, Returned<i64, 2>, std::optional<Returned<i64, 2>>>;

// Codes as queries, with a scale and a constant for each
WeightedCodes codes_of(const Input<u64, 2>& words, const Input<u64, 3>& planes) {
    const WeightedCodes codes{view(words), view(planes), 0};
    require(!codes.weighted() || (codes.planes.shape[0] == codes.words.shape[0] && codes.planes.shape[1] <= 8 &&
                                  codes.planes.shape[2] == codes.words.shape[1]),
            "planes must have shape (queries, 1 to 8, words), or be empty");
    return codes;
}

class TileSearch {
public:
    TileSearch(OwnedSegments segments, SomeTiles tiles, const std::string& distance,
               std::shared_ptr<const OwnedProjection> projection)
        : segments_(views_of(segments)),
          distance_(distance_named(distance)),
          projection_(std::move(projection)),
          owners_{std::move(segments), std::move(tiles)} {
        for (const auto& one : std::get<1>(owners_)) codes_.push_back(one->codes);
        require(codes_.size() == segments_.size(), "there must be tiles for each segment");
        for (std::size_t s = 0; s < codes_.size(); ++s)
            require(codes_[s].size == segments_[s].size && n_words(s) == n_words(0),
                    "the tiles of a segment must have as many codes, and all codes one length");
        require(!projection_ || (projection_->projection.shift.size() + 63) / 64 == n_words(0),
                "the projection must have a shift for each bit of a code");
    }

    Searched by_vectors(const AnyVectors& queries, i64 k, i64 n_candidates) const {
        require(projection_ != nullptr, "this search has no projection; pass the queries as codes, too");
        const Vectors given = queries_of(queries);
        require(given.width == projection_->projection.start.size(), "queries must be as wide as the projection");
        return search(given, k, n_candidates, [&](const Queries& both) {
            return project(projection_->projection, distance_, both.floats, n_words(0));
        });
    }

    Searched by_codes(const AnyVectors& queries, i64 k, i64 n_candidates, const Input<u64, 2>& words,
                      const Input<u64, 3>& planes, const Input<double, 1>& scales,
                      const Input<double, 1>& constants) const {
        const Vectors given = queries_of(queries);
        const WeightedCodes codes = codes_of(words, planes);
        require(codes.words.size() == given.size && codes.words.shape[1] == n_words(0),
                "words must have a row for each query, as long as the codes");
        require(i64(scales.shape(0)) == given.size && i64(constants.shape(0)) == given.size,
                "scales and constants must have a number for each query");
        return search(given, k, n_candidates, [&](const Queries&) {
            WholeWeights whole = weights_of(codes);
            whole.scales.assign(scales.data(), scales.data() + given.size);
            whole.constants.assign(constants.data(), constants.data() + given.size);
            return whole;
        });
    }

private:
    i64 n_words(std::size_t s) const { return codes_[s].tiles.words_per_code(); }

    template <class Function>
    Searched search(const Vectors& given, i64 k, i64 n_candidates, Function&& weights) const {
        require(k >= 1 && n_candidates >= 0, "k must be at least 1, and candidates not negative");
        require(!n_candidates || (segments_[0].vectors.data && segments_[0].vectors.width == given.width),
                "the segments must have vectors as wide as the queries");
        Result<double, 2> distances({given.size, k});
        Result<i64, 2> ids({given.size, k});
        std::vector<Doubtful> doubtful;
        without_gil([&] {
            const Queries both(given, 0, given.size);
            search_tiles(segments_, codes_, weights(both), both.doubles, n_candidates, {distances.view, ids.view},
                         doubtful);
        });
        std::optional<Returned<i64, 2>> noted;
        if (!doubtful.empty()) noted = array_of(doubtful);
        return {distances.array(), ids.array(), noted};
    }

    std::vector<Segment> segments_;
    std::vector<TileCodes> codes_;
    const CodeDistance distance_;
    const std::shared_ptr<const OwnedProjection> projection_;
    const std::tuple<OwnedSegments, SomeTiles> owners_;
};

std::pair<Returned<i32, 2>, Returned<i64, 2>> scan(const TileWords& words, i64 n, const Input<u64, 2>& queries,
                                                   const Input<u64, 3>& planes, const Input<u8, 1>& allowed, i64 k) {
    const OwnedTiles tiles(words, n, allowed);
    const WeightedCodes codes = codes_of(queries, planes);
    require(codes.words.shape[1] == tiles.codes.tiles.words_per_code() && k >= 1,
            "queries must have as many words as the codes of the tiles, and k must be at least 1");
    Result<i32, 2> found({codes.words.size(), k});
    Result<i64, 2> nearest({codes.words.size(), k});
    without_gil([&] {
        const WholeWeights whole = weights_of(codes);
        const View<const i32, 2> weights{whole.weights.data, whole.weights.shape};
        scan_tiles(tiles.codes, weights, whole.counted, found.view, nearest.view);
    });
    return {found.array(), nearest.array()};
}

}  // namespace

void bind_search(nb::module_& module) {
    nb::class_<OwnedSegment> segment(module, "Segment", "What a segment holds beside its codes. It keeps its arrays.");
    segment.def(nb::init<i64, i64, std::optional<Input<i64, 1>>, std::optional<AnyVectors>,
                         std::optional<Input<u32, 1>>, std::optional<Input<bool, 1>>, i64>(),
                nb::arg("size"), nb::arg("first_id"), array("ids").none(), array("vectors").none(),
                array("rows").none(), array("checked").none(), nb::arg("block_bytes"));
    refuse_copies(segment);
    nb::class_<OwnedTiles> tiles(module, "TileCodes", "Codes in tiles, and which of them count. It keeps its arrays.");
    tiles.def(nb::init<TileWords, i64, std::optional<Input<u8, 1>>>(), array("words"), nb::arg("size"),
              array("allowed").none());
    refuse_copies(tiles);
    nb::class_<OwnedProjection> projection(module, "Projection", "How vectors become weights. It keeps its arrays.");
    projection.def(nb::init<Input<float, 2>, Input<float, 1>, Input<float, 1>, i64, double, i32>(), array("matrix"),
                   array("start"), array("shift"), nb::arg("n_level_bits"), nb::arg("offset"), nb::arg("largest"));
    refuse_copies(projection);
    nb::class_<TileSearch> search(module, "TileSearch", "A search among all codes of segments.");
    search.def(nb::init<OwnedSegments, SomeTiles, const std::string&, std::shared_ptr<const OwnedProjection>>(),
               nb::arg("segments"), nb::arg("tiles"), nb::arg("distance"), nb::arg("projection").none());
    search.def("search", &TileSearch::by_vectors, array("queries"), nb::arg("k"), nb::arg("candidates"),
               "Distances and ids of the nearest vectors or codes, and segments and rows of doubtful vectors, if any.");
    search.def("search", &TileSearch::by_codes, array("queries"), nb::arg("k"), nb::arg("candidates"), array("words"),
               array("planes"), array("scales"), array("constants"), "The same for queries that are codes.");
    refuse_copies(search);
    module.def(
        "scan_tiles", &scan, array("words"), nb::arg("n"), array("queries"), array("planes"), array("allowed"),
        nb::arg("k"),
        "Whole distances and positions of the k nearest codes of each query, in any order; -1 where codes lack.");
}

}  // namespace autojacobin
