// The kernels of searches on a GPU. search/gpu.py says how they work together.
//
// A hit is a 64-bit number: the distance of a query to a code, or its rank, in the upper half, and the position of the
// code in the lower half. So hits that are sorted have equal distances in order of position.
//
// The macro WORDS is the length of a code in words of 32 bits, and VECTOR the type of a number of a vector.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

__device__ inline void append(u64* hits, u32* counts, u32 capacity, int query, u32 distance, u32 position)
{
    u32 place = atomicAdd(&counts[query], 1u);
    if (place < capacity) hits[(u64)query * capacity + place] = (u64)distance << 32 | position;
}

template <typename Number>
__device__ inline Number sum_of_warp(Number value)
{
    for (int other = 16; other > 0; other /= 2) value += __shfl_xor_sync(0xffffffffu, value, other);
    return value;
}

__device__ inline double largest_of_warp(double value)
{
    for (int other = 16; other > 0; other /= 2) value = fmax(value, __shfl_xor_sync(0xffffffffu, value, other));
    return value;
}

#ifndef ON_CPU
__device__ inline u16 half_of(float value)
{
    u16 half;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(value));
    return half;
}

__device__ inline float number(u16 half)
{
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(half));
    return value;
}
#endif

#ifdef WORDS

// Hamming distances. A thread keeps some codes in registers, and a block 128 queries in shared memory.

#define QUERIES 128
#define THREADS 256
#define CODES (WORDS <= 4 ? 4 : WORDS <= 8 ? 2 : 1)

__device__ inline void copy_words(const u32* from, u32* to)
{
#if WORDS % 4 == 0
    #pragma unroll
    for (int w = 0; w < WORDS; w += 4) {
        uint4 four = *(const uint4*)(from + w);
        to[w] = four.x; to[w + 1] = four.y; to[w + 2] = four.z; to[w + 3] = four.w;
    }
#else
    #pragma unroll
    for (int w = 0; w < WORDS; ++w) to[w] = from[w];
#endif
}

template <bool ALL>
__device__ inline void hamming(
    const u32* codes, u32 n, const u32* queries, int n_queries,
    const u32* limits, u32* counts, u64* hits, u32 capacity, u32* out)
{
    __shared__ __align__(16) u32 asked[QUERIES * WORDS];
    __shared__ u32 near[QUERIES];
    int first = blockIdx.y * QUERIES, here = min(QUERIES, n_queries - first);
    for (int i = threadIdx.x; i < here * WORDS; i += THREADS) asked[i] = queries[(u64)first * WORDS + i];
    if (!ALL) for (int i = threadIdx.x; i < here; i += THREADS) near[i] = limits[first + i];
    u32 start = blockIdx.x * (u32)(THREADS * CODES) + threadIdx.x, code[CODES][WORDS];
    #pragma unroll
    for (int c = 0; c < CODES; ++c) copy_words(codes + (u64)min(start + c * THREADS, n - 1) * WORDS, code[c]);
    __syncthreads();
    for (int q = 0; q < here; ++q) {
        u32 words[WORDS];
        copy_words(asked + q * WORDS, words);
        #pragma unroll
        for (int c = 0; c < CODES; ++c) {
            u32 distance = 0, position = start + c * THREADS;
            #pragma unroll
            for (int w = 0; w < WORDS; ++w) distance += __popc(code[c][w] ^ words[w]);
            if (ALL) {
                if (position < n) out[(u64)(first + q) * n + position] = distance;
            } else if (distance <= near[q] && position < n) {
                append(hits, counts, capacity, first + q, distance, position);
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) hamming_hits(
    const u32* codes, u32 n, const u32* queries, int n_queries,
    const u32* limits, u32* counts, u64* hits, u32 capacity)
{
    hamming<false>(codes, n, queries, n_queries, limits, counts, hits, capacity, nullptr);
}

extern "C" __global__ void __launch_bounds__(THREADS) hamming_all(
    const u32* codes, u32 n, const u32* queries, int n_queries, u32* out)
{
    hamming<true>(codes, n, queries, n_queries, nullptr, nullptr, nullptr, 0, out);
}

// Weighted distances: constant + Σ weight · bit, by products of 16 × 16 weights with the bits of 8 codes in fp16. All
// numbers are whole and below 2^15, so the sums in float32 are exact.
//
// Lane 4 g + t of a warp holds bits of code g of each tile of 8 codes: WORDS bytes from byte t · WORDS on, of which
// every step takes four bits. The weights come in the same order, as each lane reads them (_fragments in gpu.py).

#define STEPS (2 * WORDS)
#define ROW_TILES (WORDS <= 4 ? 8 : WORDS >= 32 ? 1 : 32 / WORDS)  // of 16 queries
#define CODE_TILES (WORDS <= 4 ? 4 : WORDS <= 8 ? 2 : 1)  // of 8 codes
#define TURNS 4

// Where the lanes read the weight of a bit: see _fragments in gpu.py.

__device__ inline u64 place_of(int row, int bit)
{
    int t = bit / (8 * WORDS), i = bit / 8 % WORDS, s = bit / 4 % 2, r = bit / 2 % 2;
    return ((((((u64)(row / 16) * WORDS + i) * 2 + s) * 8 + row % 8) * 4 + t) * 2 + r) * 4 + row / 8 % 2 * 2 + bit % 2;
}

// Whole weights of the bits of queries, from 2 (query − start)·column + shift, each query in a unit of its own. The bits
// of a level come last; their weights go up to 255. A block makes one query, and zeros for rows beyond the last.

extern "C" __global__ void weigh(
    const double* queries, int n_queries, int width, const double* columns, int n_columns, const double* start,
    const double* shift, int n_bits, int n_level_bits, double offset, double largest, int decoded,
    u16* fragments, float* starts, double* scales, double* constants)
{
    extern __shared__ __align__(16) u8 memory[];
    double* centred = (double*)memory;
    double* weights = centred + width;
    int row = blockIdx.x, thread = threadIdx.x, lane = thread % 32;
    if (row >= n_queries) {
        for (int b = thread; b < 32 * WORDS; b += blockDim.x) fragments[place_of(row, b)] = 0;
        return;
    }
    for (int j = thread; j < width; j += blockDim.x) centred[j] = queries[(u64)row * width + j] - start[j];
    __syncthreads();
    for (int b = thread; b < n_bits; b += blockDim.x) {
        double product = 0.0;
        if (b < n_columns) {
            #pragma unroll 8
            for (int j = 0; j < width; ++j) product += centred[j] * columns[(u64)j * n_columns + b];
        }
        weights[b] = 2.0 * product + shift[b];
    }
    __syncthreads();
    // each warp computes the same
    double most = 0.0, unit = 0.0, square = 0.0, sum = 0.0, below = 0.0;
    for (int b = lane; b < n_bits; b += 32) most = fmax(most, fabs(weights[b]));
    double lift = largest_of_warp(most) < 0x1p-1000 ? 0x1p200 : 1.0;  // fractions of subnormal numbers lose digits
    for (int b = lane; b < n_bits; b += 32)
        unit = fmax(unit, lift * fabs(weights[b]) / (b < n_bits - n_level_bits ? largest : 255.0));
    unit = largest_of_warp(unit);
    if (unit == 0.0) unit = 1.0;
    for (int b = lane; b < n_bits; b += 32) {
        double whole = rint(lift * fabs(weights[b]) / unit);
        sum += whole;
        if (weights[b] >= 0.0) below += whole;
    }
    for (int j = lane; j < width; j += 32) square += centred[j] * centred[j];
    sum = sum_of_warp(sum), below = sum_of_warp(below), square = sum_of_warp(square);
    if (thread == 0) {
        starts[row] = (float)below;
        scales[row] = (decoded ? 2.0 : 1.0) * unit / lift;
        constants[row] = decoded ? square + offset - unit / lift * sum : 0.0;
    }
    for (int b = thread; b < 32 * WORDS; b += blockDim.x) {
        double whole = b < n_bits ? rint(lift * fabs(weights[b]) / unit) : 0.0;
        fragments[place_of(row, b)] = half_of(b < n_bits && weights[b] >= 0.0 ? -whole : whole);
    }
}

#ifndef ON_CPU
__device__ inline void multiply(float* sums, uint4 a, u32 b0, u32 b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}
#endif

__device__ inline u32 two_halves(u32 bits)  // two bits as numbers of fp16, in which 1 is 0x3c00
{
    return (bits & 1) * 0x3c00u + (bits >> 1 & 1) * 0x3c000000u;
}

template <bool ALL>
__device__ inline void weighted(
    const u8* codes, u32 n, const uint4* fragments, const float* constants, int n_queries,
    const u32* limits, u32* counts, u64* hits, u32 capacity, u32* out)
{
    __shared__ uint4 weights[ROW_TILES * STEPS * 32];
    __shared__ float starts[ROW_TILES * 16];
    int first = blockIdx.y * (ROW_TILES * 16), here = min(ROW_TILES * 16, n_queries - first);
    int tiles = (here + 15) / 16, warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const uint4* from = fragments + (u64)blockIdx.y * (ROW_TILES * STEPS * 32);
    for (int i = threadIdx.x; i < tiles * STEPS * 32; i += THREADS) weights[i] = from[i];
    // sums start so that those of near codes end below zero
    for (int i = threadIdx.x; i < tiles * 16; i += THREADS)
        starts[i] = i >= here ? 1.0f : ALL ? constants[first + i] : constants[first + i] - limits[first + i] - 0.5f;
    __syncthreads();
    for (int turn = 0; turn < TURNS; ++turn) {
        u32 start = ((blockIdx.x * TURNS + turn) * (THREADS / 32) + warp) * (u32)(8 * CODE_TILES);
        if (start >= n) break;
        u32 bits[CODE_TILES][STEPS][2];
        #pragma unroll
        for (int c = 0; c < CODE_TILES; ++c) {
            const u8* code = codes + ((u64)min(start + 8 * c + g, n - 1) * 4 + t) * WORDS;
            #pragma unroll
            for (int i = 0; i < WORDS; ++i) {
                u32 byte = code[i];
                bits[c][2 * i][0] = two_halves(byte);
                bits[c][2 * i][1] = two_halves(byte >> 2);
                bits[c][2 * i + 1][0] = two_halves(byte >> 4);
                bits[c][2 * i + 1][1] = two_halves(byte >> 6);
            }
        }
        for (int tile = 0; tile < tiles; ++tile) {
            float sums[CODE_TILES][4], upper = starts[tile * 16 + g], lower = starts[tile * 16 + g + 8];
            #pragma unroll
            for (int c = 0; c < CODE_TILES; ++c) {
                sums[c][0] = sums[c][1] = upper;
                sums[c][2] = sums[c][3] = lower;
            }
            #pragma unroll
            for (int step = 0; step < STEPS; ++step) {
                uint4 a = weights[(tile * STEPS + step) * 32 + lane];
                #pragma unroll
                for (int c = 0; c < CODE_TILES; ++c) multiply(sums[c], a, bits[c][step][0], bits[c][step][1]);
            }
            u32 signs = ALL ? 0x80000000u : 0u;
            #pragma unroll
            for (int c = 0; c < CODE_TILES; ++c)
                #pragma unroll
                for (int i = 0; i < 4; ++i) signs |= __float_as_uint(sums[c][i]);
            if (!(signs >> 31)) continue;
            #pragma unroll
            for (int c = 0; c < CODE_TILES; ++c)
                #pragma unroll
                for (int i = 0; i < 4; ++i) {
                    int row = tile * 16 + g + i / 2 * 8, query = first + row;
                    u32 position = start + 8 * c + 2 * t + i % 2;
                    if (row >= here || position >= n) continue;
                    if (ALL) out[(u64)query * n + position] = (u32)sums[c][i];
                    else if (sums[c][i] < 0.0f)
                        append(hits, counts, capacity, query, (u32)(sums[c][i] + limits[query] + 0.5f), position);
                }
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) weighted_hits(
    const u8* codes, u32 n, const uint4* fragments, const float* constants, int n_queries,
    const u32* limits, u32* counts, u64* hits, u32 capacity)
{
    weighted<false>(codes, n, fragments, constants, n_queries, limits, counts, hits, capacity, nullptr);
}

extern "C" __global__ void __launch_bounds__(THREADS) weighted_all(
    const u8* codes, u32 n, const uint4* fragments, const float* constants, int n_queries, u32* out)
{
    weighted<true>(codes, n, fragments, constants, n_queries, nullptr, nullptr, nullptr, 0, out);
}

#endif

// Scores of vectors, |x|²/2 − q·x, as whole numbers in the same order. A NaN is larger than all others.

__device__ inline u32 ordered(float score)
{
    u32 word = __float_as_uint(score);
    return score != score ? 0xffffffffu : word ^ (word >> 31 ? 0xffffffffu : 0x80000000u);
}

extern "C" __global__ void product_hits(
    const float* products, const float* halves, u32 n, u32 first,
    const u32* limits, u32* counts, u64* hits, u32 capacity)
{
    int query = blockIdx.y;
    u32 limit = limits[query];
    for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        u32 score = ordered(halves[i] - products[(u64)query * n + i]);
        if (score <= limit) append(hits, counts, capacity, query, score, first + i);
    }
}

// The list of each vector x: the centre c with the smallest ‖c‖² − 2 x·c. For a second list: another centre with the
// smallest ‖c‖² − 2 x·c + (r·x − r·c)², with r the direction from the first centre to x. A warp for each row.
//
// Products with centres come in fp16, divided by the largest that they could be, of which they err by ERROR at most. So
// a first pass finds how small a cost must be, and a second one computes again those that may be the smallest. The
// number of centres is a multiple of 8; those that fill it up have infinite norms.

#define ERROR 0x1p-9f
#define INFINITE 0x1p127f

template <bool SECOND>
__device__ inline void least_centre(
    const float* rows, const float* points, int width, const float* norms, u32 n_rows, u32 n,
    const u16* products, const float* sizes, const float* directions, const u16* along, float largest,
    const float* shifts, const int* first, int* found)
{
    u32 row = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
    if (row >= n_rows) return;
    u64 start = (u64)row * n, own = (u64)row * width;
    float size = 2 * sizes[row], shift = SECOND ? shifts[row] : 0.0f;
    u32 other_than = SECOND ? first[row] : n;
    auto estimate_eight = [&](u32 i, float* lowest, float* highest) {
        uint4 of_rows = *(const uint4*)(products + start + i), of_directions = of_rows;
        if (SECOND) of_directions = *(const uint4*)(along + start + i);
        #pragma unroll
        for (u32 k = 0; k < 8; ++k) {
            float cost = norms[i + k] - size * number(((const u16*)&of_rows)[k]), error = size * ERROR;
            if (SECOND) {
                float off = shift - largest * number(((const u16*)&of_directions)[k]);
                cost += off * off;
                error += (2 * fabsf(off) + largest * ERROR) * (largest * ERROR);
            }
            if (i + k == other_than) cost = INFINITE;
            lowest[k] = cost - error;
            highest[k] = cost + error;
        }
    };
    float least = INFINITE, lowest[8], highest[8];
    for (u32 i = 8 * lane; i < n; i += 256) {
        estimate_eight(i, lowest, highest);
        #pragma unroll
        for (u32 k = 0; k < 8; ++k) least = fminf(least, highest[k]);
    }
    for (int other = 16; other > 0; other /= 2) least = fminf(least, __shfl_xor_sync(0xffffffffu, least, other));
    u64 best = ~0ull << 32;
    for (u32 from = 0; from < n; from += 256) {
        u32 i = from + 8 * lane, near = 0;
        if (i < n) {
            estimate_eight(i, lowest, highest);
            #pragma unroll
            for (u32 k = 0; k < 8; ++k) near |= (u32)!(lowest[k] > least) << k;
        }
        for (u32 lanes = __ballot_sync(0xffffffffu, near); lanes; lanes &= lanes - 1) {
            int owner = __ffs(lanes) - 1;
            for (u32 places = __shfl_sync(0xffffffffu, near, owner); places; places &= places - 1) {
                u32 centre = from + 8 * owner + __ffs(places) - 1;
                float product = 0.0f, off = 0.0f;
                #pragma unroll 4
                for (int j = lane; j < width; j += 32) {
                    float coordinate = points[(u64)centre * width + j];
                    product += rows[own + j] * coordinate;
                    if (SECOND) off += directions[own + j] * coordinate;
                }
                if (SECOND) off = shift - sum_of_warp(off);
                float cost = norms[centre] - 2 * sum_of_warp(product) + off * off;
                best = min(best, (u64)ordered(cost) << 32 | centre);
            }
        }
    }
    if (lane == 0) found[row] = (int)(u32)best;
}

extern "C" __global__ void first_centres(
    const float* rows, const float* points, int width, const float* norms, u32 n_rows, u32 n,
    const u16* products, const float* sizes, int* found)
{
    least_centre<false>(
        rows, points, width, norms, n_rows, n, products, sizes, nullptr, nullptr, 0, nullptr, nullptr, found);
}

extern "C" __global__ void second_centres(
    const float* rows, const float* points, int width, const float* norms, u32 n_rows, u32 n,
    const u16* products, const float* sizes, const float* directions, const u16* along, float largest,
    const float* shifts, const int* first, int* found)
{
    least_centre<true>(
        rows, points, width, norms, n_rows, n, products, sizes, directions, along, largest, shifts, first, found);
}

// The number with a given rank, from 1 on, in each row: the largest number that fewer than ``rank`` are below.

extern "C" __global__ void ranked(const u32* rows, u32 n, u32 rank, int n_bits, u32* out)
{
    __shared__ u32 total[2];
    const u32* row = rows + (u64)blockIdx.x * n;
    u32 found = 0;
    if (threadIdx.x < 2) total[threadIdx.x] = 0;
    __syncthreads();
    for (int bit = n_bits - 1; bit >= 0; --bit) {
        u32 tried = found | 1u << bit, below = 0;
        for (u32 i = threadIdx.x; i < n; i += blockDim.x) below += row[i] < tried;
        for (int other = 16; other > 0; other /= 2) below += __shfl_xor_sync(0xffffffffu, below, other);
        if (threadIdx.x % 32 == 0) atomicAdd(&total[bit & 1], below);
        __syncthreads();
        if (total[bit & 1] < rank) found = tried;
        if (threadIdx.x == 0) total[~bit & 1] = 0;
        __syncthreads();
    }
    if (threadIdx.x == 0) out[blockIdx.x] = found;
}

// A bitonic sort of a power of two of entries by all threads of a block.

template <typename Swap>
__device__ inline void sort_entries(u32 size, Swap swap_if_greater)
{
    for (u32 run = 2; run <= size; run *= 2)
        for (u32 gap = run / 2; gap > 0; gap /= 2) {
            __syncthreads();
            for (u32 pair = threadIdx.x; pair < size / 2; pair += blockDim.x) {
                u32 left = 2 * pair - (pair & (gap - 1)), right = left + gap;
                if (left & run) swap_if_greater(right, left);
                else swap_if_greater(left, right);
            }
        }
    __syncthreads();
}

__device__ inline u32 power_of_two(u32 least)
{
    u32 size = 1;
    while (size < least) size *= 2;
    return size;
}

// The k lowest hits of each query in order, and their number. It is 0 where there are fewer hits, or more than there was
// room for.

extern "C" __global__ void lowest_hits(
    const u64* hits, const u32* counts, u32 capacity, u32 k, u64* out, u32* found)
{
    extern __shared__ __align__(16) u8 memory[];
    u64* entries = (u64*)memory;
    int query = blockIdx.x;
    u32 count = counts[query];
    bool fails = count < k || count > capacity;
    if (threadIdx.x == 0) found[query] = fails ? 0 : k;
    if (fails) return;
    u32 size = power_of_two(count);
    for (u32 i = threadIdx.x; i < size; i += blockDim.x)
        entries[i] = i < count ? hits[(u64)query * capacity + i] : ~0ull;
    sort_entries(size, [&](u32 low, u32 high) {
        u64 a = entries[low], b = entries[high];
        if (a > b) entries[low] = b, entries[high] = a;
    });
    for (u32 i = threadIdx.x; i < k; i += blockDim.x) out[(u64)query * k + i] = entries[i];
}

#ifdef VECTOR

__device__ inline double number(u8 value) { return value; }
__device__ inline double number(float value) { return value; }
__device__ inline double number(double value) { return value; }

// The k nearest of the vectors that the hits of each query name: squared distances in float64, equal ones in order of
// position. The positions are -1 where there are fewer hits, or more than there was room for.

extern "C" __global__ void nearest_vectors(
    const VECTOR* vectors, int width, const double* queries, const u64* hits, const u32* counts, u32 capacity, u32 k,
    double* squared, long long* positions)
{
    extern __shared__ __align__(16) u8 memory[];
    int row = blockIdx.x, lane = threadIdx.x % 32;
    u32 count = counts[row];
    if (count < k || count > capacity) {
        for (u32 i = threadIdx.x; i < k; i += blockDim.x) squared[(u64)row * k + i] = 0, positions[(u64)row * k + i] = -1;
        return;
    }
    u32 size = power_of_two(count);
    double* distance = (double*)memory;
    u32* position = (u32*)(distance + size);
    const double* query = queries + (u64)row * width;
    for (u32 i = threadIdx.x / 32; i < size; i += blockDim.x / 32) {
        double sum = 0.0;
        u32 place = i < count ? (u32)hits[(u64)row * capacity + i] : 0xffffffffu;
        if (i < count)
            for (int j = lane; j < width; j += 32) {
                double gap = query[j] - number(vectors[(u64)place * width + j]);
                sum += gap * gap;
            }
        sum = sum_of_warp(sum);
        if (lane == 0) {
            distance[i] = i < count ? sum : __longlong_as_double(0x7ff0000000000000ll);
            position[i] = place;
        }
    }
    sort_entries(size, [&](u32 low, u32 high) {
        double a = distance[low], b = distance[high];
        u32 p = position[low], q = position[high];
        if (a > b || (a == b && p > q)) {
            distance[low] = b, distance[high] = a;
            position[low] = q, position[high] = p;
        }
    });
    for (u32 i = threadIdx.x; i < k; i += blockDim.x) {
        squared[(u64)row * k + i] = distance[i];
        positions[(u64)row * k + i] = position[i];
    }
}

#endif
