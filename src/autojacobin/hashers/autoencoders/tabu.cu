// The tabu search of tabu_search.py on a GPU, compiled for codes of up to 32 WORDS bits.
// One warp per vector. Lane l holds the bits l, l + 32, l + 64, ...
//
// The lowest binary digits of the cost of a flip are replaced by a *tag*: twice the number of the bit, plus one if the
// bit is 1. The smallest cost carries the tag along.

__device__ inline float sum_of_warp(float value)
{
    for (int other = 16; other > 0; other /= 2) value += __shfl_xor_sync(0xffffffffu, value, other);
    return value;
}

__device__ inline int least_of_warp(int value)
{
#if __CUDA_ARCH__ >= 800
    return __reduce_min_sync(0xffffffffu, value);
#else
    for (int other = 16; other > 0; other /= 2) value = min(value, __shfl_xor_sync(0xffffffffu, value, other));
    return value;
#endif
}

__device__ inline int ordered(int word)  // floats as whole numbers in the same order, and back
{
    return word ^ (word >> 31 & 0x7fffffff);
}

__device__ inline float off_grid(float level, float top)  // from the nearest whole number from 0 to top
{
    const float whole = 0x1.8p23f;  // a sum with this is a whole number
    return level - (fminf(fmaxf(level, 0.0f), top) + whole - whole);
}

// products are b, sums Σ 2 (C C')_ij s_j, and squares ‖y‖². Rows of gram are filled up to 32 WORDS numbers.

extern "C" __global__ void __launch_bounds__(128) tabu(
    const float* products, const float* sums, const float* squares, const float* gram, const float* slope,
    float* signs, float* levels, int n, int d, int n_steps, int digits, int shortest, int longest,
    float slack, float trace, float share, float low, float per_step, float top, float stiffness)
{
    const float infinite = __int_as_float(0x7f800000);
    int vector = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
    if (vector >= n) return;
    float g[WORDS], c[WORDS], s[WORDS], size = 0.0f, fit = 0.0f, norm = 0.0f, linear = 0.0f;
    int ready[WORDS], tag[WORDS], best[WORDS];
    #pragma unroll
    for (int w = 0; w < WORDS; ++w) {
        int i = lane + 32 * w;
        g[w] = -infinite, c[w] = 0.0f, s[w] = -1.0f;
        ready[w] = 0x7fffffff;
        if (i < d) {
            long long at = (long long)vector * d + i;
            float b = products[at], half = 0.5f * sums[at];
            g[w] = b - half;
            c[w] = per_step * (b - slope[i]);
            s[w] = signs[at];
            ready[w] = 0;
            size += fabsf(b);
            fit += s[w] * b;
            norm += s[w] * half;
            linear += s[w] * slope[i];
        }
        tag[w] = best[w] = 2 * i + (s[w] > 0.0f);
    }
    size = sum_of_warp(size);
    norm = sum_of_warp(norm) + trace;
    float error = squares[vector] - 2.0f * sum_of_warp(fit) + norm, both = per_step * (1.0f + share);
    float level = (0.25f * (norm + share * error - 2.0f * sum_of_warp(linear)) - low) * per_step, best_level = level;
    float change = 0.0f, lowest = 0.0f;
    slack *= size;
    int wait = shortest;
    for (int step = 0; step < n_steps; ++step) {
        float off = off_grid(level, top), now = stiffness * off * off, wanted = lowest - slack - change + now;
        float least = infinite, its_cost = 0.0f, its_level = 0.0f;
        #pragma unroll
        for (int w = 0; w < WORDS; ++w) {
            float moved = level + s[w] * (both * g[w] - c[w]), off = off_grid(moved, top);
            float cost = s[w] * g[w] + stiffness * off * off;
            float offered = __int_as_float((__float_as_int(cost) & ~digits) | tag[w]);
            if ((ready[w] <= step || cost < wanted) && offered < least) {
                least = offered;
                its_cost = cost;
                its_level = moved;
            }
        }
        int smallest = least_of_warp(ordered(__float_as_int(least)));
        if (smallest == __float_as_int(infinite)) break;
        int flipped = ordered(smallest) & digits, owner = flipped / 2 % 32;
        level = __shfl_sync(0xffffffffu, its_level, owner);
        change += __shfl_sync(0xffffffffu, its_cost, owner) - now;
        float sign = flipped % 2 ? 1.0f : -1.0f;
        const float* row = gram + flipped / 2 * (32 * WORDS) + lane;
        #pragma unroll
        for (int w = 0; w < WORDS; ++w) {
            g[w] += sign * row[32 * w];
            if (tag[w] == flipped) {
                tag[w] ^= 1;
                s[w] = -s[w];
                ready[w] = step + wait;
            }
        }
        wait = wait == longest ? shortest : wait + 1;
        if (change < lowest - slack) {
            lowest = change;
            best_level = level;
            #pragma unroll
            for (int w = 0; w < WORDS; ++w) best[w] = tag[w];
        }
    }
    #pragma unroll
    for (int w = 0; w < WORDS; ++w) {
        int i = lane + 32 * w;
        float sign = best[w] % 2 ? 1.0f : -1.0f;
        if (i < d) signs[(long long)vector * d + i] = size < infinite ? sign : __int_as_float(0x7fc00000);  // or NaN
    }
    if (lane == 0) levels[vector] = best_level;
}
