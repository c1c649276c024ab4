// The k nearest codes of the lists that a query probes.
//
// The distances to the codes of its first lists are all written down (lookup.hpp), and a radius that holds a few more
// than k of them is found by counting. From then on, only codes within the radius are written down. Whenever their
// memory is full, the k nearest stay and the radius shrinks; of equal distances, the lower positions stay. While a list
// is scanned, as many blocks of the next one are prefetched; these may be addresses beyond the end.
//
//     lists       |list 0    |list 1 |list 2        |…     codes from bounds[l] to bounds[l + 1], without gaps
//     blocks      |64 codes |64 codes |64 codes |64 co…     of which one may end a list and begin the next
//
//     probes      l3 l7 l0 l9 l4 …                          of a query, nearest first
//                 └ all sums ┘└ only codes within the radius
#pragma once

#include <algorithm>
#include <bit>
#include <limits>
#include <vector>

#include "../arrays.hpp"
#include "../codes/lookup.hpp"
#include "../topk.hpp"

namespace autojacobin {

// Codes in lists. Slot s is code s % 64 of block s / 64.
struct ListCodes {
    View<const u8, 3> blocks;      // shape (blocks, bytes of a code, 64)
    View<const u8, 1> offsets;     // of the slots
    View<const i64, 1> bounds;     // list l is the slots from bounds[l] to bounds[l + 1]
    View<const i32, 1> positions;  // of the codes in their segment

    i64 n_lists() const { return bounds.size() - 1; }
};

// The slots that count, as a bitmap, and how many each list has; empty if all do.
struct AllowedSlots {
    View<const u64, 1> bitmap;
    View<const i64, 1> counts;

    bool all() const { return bitmap.size() == 0; }
};

// The lists that queries probe, none where the number is negative, and their distances as lookup.hpp has them. The
// start depends on the list.
struct ListQueries {
    View<const u8, 4> tables;    // shape (queries, bytes, 2, 16)
    View<const i64, 1> factors;  // up to 65,535
    View<const i32, 2> probes;   // shape (queries, probes)
    View<const i32, 2> starts;   // from 0 to 2^30

    i64 size() const { return probes.shape[0]; }
    i64 n_probes() const { return probes.shape[1]; }
};

namespace list_scan {

constexpr i64 unbounded = std::numeric_limits<i64>::max();
constexpr i64 most_rows = 65535;  // of sums that can be counted

// What tunes the search
constexpr i64 first_codes = 2048;    // of a query, which are all written down
constexpr i64 guess_per_byte = 128;  // of the first radius
constexpr i64 fewest_more = 128;     // codes beyond k that are written down before the radius shrinks

// Bitmap of the codes of a block that are between two slots.
inline u64 codes_between(i64 block, i64 first, i64 last) {
    const i64 place = block * 64;
    u64 valid = ~u64{0};
    if (place < first) valid &= ~u64{0} << (first - place);
    if (place + 64 > last) valid &= ~u64{0} >> (place + 64 - last);
    return valid;
}

// Radius that k sums or a few more do not exceed, from a guess on; unbounded if there are too few.
inline i64 first_radius(const u16* sums, i64 rows, i64 k, i64 guess) {
    if (codes_per_block * rows < k) return unbounded;
    i64 low = 0, high = std::min(guess, largest_sum - 1);
    while (lookup::count_sums(sums, rows, u16(high)) < k) {
        if (high == largest_sum - 1) return unbounded;
        low = high + 1;
        high = std::min(2 * high, largest_sum - 1);
    }
    while (low < high) {
        const i64 middle = (low + high) >> 1, within = lookup::count_sums(sums, rows, u16(middle));
        const bool enough = within >= k;  // no branch: the CPU could not predict it
        low = enough ? low : middle + 1;
        high = enough ? middle : high;
        if (enough && within <= k + (k >> 2) + fewest_more / 8) break;
    }
    return high;
}

// Finds the codes of one query after another.
class Search {
public:
    Search(const ListCodes& lists, const AllowedSlots& allowed, const ListQueries& queries, i64 k)
        : lists_(lists),
          allowed_(allowed),
          queries_(queries),
          k_(k),
          trigger_(k + std::max(k, fewest_more)),
          rows_of_sums_(std::min(std::max(first_codes, 4 * k) / codes_per_block, most_rows)),
          distances_(topk::whole_blocks(trigger_ + codes_per_block)),
          slots_(trigger_ + codes_per_block),
          scratch_(topk::scratch_for(trigger_ + codes_per_block)),
          sums_(rows_of_sums_ * codes_per_block),
          firsts_(rows_of_sums_) {}

    void run(i64 q, View<i32, 1> found, View<i64, 1> nearest) {
        query_ = {queries_.tables.data + q * queries_.tables.row_size(), queries_.tables.shape[1],
                  u16(queries_.factors[q])};
        count_ = 0;
        for (i64 p = scan_first(q); p < queries_.n_probes(); ++p) scan_within_radius(q, p);
        if (count_ > k_) shrink();
        for (i64 i = 0; i < k_; ++i) {
            found[i] = i < count_ ? distances_[i] : std::numeric_limits<i32>::max();
            nearest[i] = i < count_ ? lists_.positions[slots_[i]] : -1;
        }
    }

private:
    // A list that is probed, and where the blocks are that the next one begins with. It is copied to registers.
    struct Probe {
        i64 first, last, ahead;
        const u64* allowed;  // bitmap of the slots, or null
        const u8 *codes, *offsets;
        i64 block_bytes;
        lookup::Query query;

        i64 first_block() const { return first / 64; }
        i64 end_block() const { return (last + 63) / 64; }
        u64 valid(i64 block) const {
            const u64 inside = codes_between(block, first, last);
            return allowed ? inside & allowed[block] : inside;
        }
        u64 measure(i64 block, u64 valid, u16 start, u16 limit, u16* sums) const {
            const i64 later = block + ahead;
            return lookup::measure_block(codes + block_bytes * block, offsets + 64 * block, valid, query, start, limit,
                                         sums, codes + block_bytes * later, offsets + 64 * later);
        }
    };

    bool is_probed(i64 q, i64 p) const {
        const i32 number = queries_.probes[q][p];
        return number >= 0 && (allowed_.all() || allowed_.counts[number] > 0);
    }

    Probe probe(i64 q, i64 p) const {
        const i64 number = queries_.probes[q][p], first = lists_.bounds[number];
        return {first,
                lists_.bounds[number + 1],
                lists_.bounds[next_list(q, p)] / 64 - first / 64,
                allowed_.all() ? nullptr : allowed_.bitmap.data,
                lists_.blocks.data,
                lists_.offsets.data,
                lists_.blocks.row_size(),
                query_};
    }

    // The list after the p-th of a query, which may be the first of the next query; any if there is none.
    i64 next_list(i64 q, i64 p) const {
        const auto probes = queries_.probes;
        if (p + 1 < queries_.n_probes() && probes[q][p + 1] >= 0) return probes[q][p + 1];
        return std::max(probes[std::min(q + 1, queries_.size() - 1)][0], 0);
    }

    // Writes all sums of the first lists, then the codes within the radius. Gives the first list that is left.
    i64 scan_first(i64 q) {
        i64 rows = 0, p = 0;
        for (; p < queries_.n_probes(); ++p) {
            if (!is_probed(q, p)) continue;
            const Probe list = probe(q, p);
            if (rows + list.end_block() - list.first_block() > rows_of_sums_) break;
            const u16 start = u16(std::min<i64>(queries_.starts[q][p], largest_sum));
            for (i64 block = list.first_block(); block < list.end_block(); ++block) {
                const u64 valid = list.valid(block);
                if (!valid) continue;
                list.measure(block, valid, start, 0, &sums_[64 * rows]);
                firsts_[rows++] = 64 * block;
            }
        }
        radius_ = first_radius(sums_.data(), rows, k_, guess_per_byte * query_.bytes);
        if (radius_ == unbounded) return 0;
        for (i64 row = 0; row < rows; ++row) {
            const u16* sums = &sums_[64 * row];
            append(lookup::mark_row(sums, u16(radius_)), sums, 0, firsts_[row]);
        }
        return p;
    }

    void scan_within_radius(i64 q, i64 p) {
        const i64 start = queries_.starts[q][p];
        if (start > radius_ || !is_probed(q, p)) return;
        const Probe list = probe(q, p);
        u16* sums = sums_.data();
        for (i64 block = list.first_block(); block < list.end_block(); ++block) {
            const u64 valid = list.valid(block);
            const i64 limit = std::min(radius_ - start, largest_sum);
            if (!valid || limit < 0) continue;
            const u64 near = list.measure(block, valid, 0, u16(limit), sums);
            if (near) append(near, sums, start, 64 * block);
        }
    }

    // Writes down the marked codes of a row.
    void append(u64 near, const u16* sums, i64 start, i64 first) {
        i64 count = count_;  // in a register: what is written below could be a member
        i32* distances = distances_.data();
        i64* slots = slots_.data();
        for (; near; near &= near - 1, ++count) {
            const int i = std::countr_zero(near);
            distances[count] = i32(start + sums[i]);
            slots[count] = first + i;
        }
        count_ = count;
        if (count >= trigger_) [[unlikely]]
            radius_ = shrink();
    }

    i64 shrink() {
        const i64 radius =
            topk::keep_nearest(distances_.data(), slots_.data(), count_, k_, lists_.positions.data, scratch_.data());
        count_ = k_;
        return radius;
    }

    const ListCodes& lists_;
    const AllowedSlots& allowed_;
    const ListQueries& queries_;
    const i64 k_, trigger_, rows_of_sums_;
    Buffer<i32> distances_;  // of the codes that are written down
    Buffer<i64> slots_, scratch_;
    Buffer<u16> sums_;    // of the first lists, a row for each block
    Buffer<i64> firsts_;  // the first slot of each row
    lookup::Query query_{};
    i64 count_ = 0, radius_ = unbounded;
};

}  // namespace list_scan

// Writes the whole distances and the positions of the k nearest codes of each query, in any order. Missing codes have
// position −1.
inline void scan_lists(const ListCodes& lists, const AllowedSlots& allowed, const ListQueries& queries,
                       View<i32, 2> found, View<i64, 2> nearest) {
    list_scan::Search search(lists, allowed, queries, found.shape[1]);
    for (i64 q = 0; q < queries.size(); ++q) search.run(q, found[q], nearest[q]);
}

}  // namespace autojacobin
