// The tabu search of tabu_search.py on a GPU, compiled for codes of up to 32 WORDS bits.
// One warp per vector. Lane l holds the bits l, l + 32, l + 64, ...
extern "C" __global__ void tabu(
    const float* gains, const float* products, const float* gram, signed char* signs, float* levels,
    const float* slacks, int n, int d, int n_steps, int place, int shortest, int longest,
    float both, float per_step, float top, float stiffness)
{
    const int never = 0x7fffffff;
    auto off_grid = [&](float level) {
        float off = level - rintf(fminf(fmaxf(level, 0.0f), top));
        return stiffness * off * off;
    };
    int vector = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
    if (vector >= n) return;
    float v[WORDS], c[WORDS];
    bool s[WORDS], best[WORDS];
    int ready[WORDS];
    #pragma unroll
    for (int w = 0; w < WORDS; ++w) {
        int i = lane + 32 * w;
        v[w] = i < d ? gains[(long long)vector * d + i] : 0.0f;
        c[w] = i < d ? products[(long long)vector * d + i] : 0.0f;
        s[w] = best[w] = i < d && signs[(long long)vector * d + i] > 0;
        ready[w] = i < d ? 0 : never;
    }
    float change = 0.0f, lowest = 0.0f, slack = slacks[vector], level = levels[vector], best_level = level;
    int wait = shortest;
    for (int step = 0; step < n_steps; ++step) {
        float wanted = lowest - change - slack, now = off_grid(level);
        int smallest = never;
        #pragma unroll
        for (int w = 0; w < WORDS; ++w) {
            float cost = v[w] + (off_grid(level + per_step * (both * v[w] - (s[w] ? c[w] : -c[w]))) - now);
            int i = lane + 32 * w, word = __float_as_int(cost);
            int ordered = ((word ^ ((word >> 31) & never)) & ~place) | i;
            if (i < d && (ready[w] <= step || cost < wanted)) smallest = min(smallest, ordered);
        }
        for (int other = 16; other > 0; other /= 2)
            smallest = min(smallest, __shfl_xor_sync(0xffffffffu, smallest, other));
        if (smallest == never) break;
        int flipped = smallest & place, owner = flipped % 32;
        float gain = 0.0f, move = 0.0f;
        bool sign = false;
        #pragma unroll
        for (int w = 0; w < WORDS; ++w)
            if (w == flipped / 32) {
                gain = v[w];
                sign = s[w];
                move = both * v[w] - (sign ? c[w] : -c[w]);
            }
        gain = __shfl_sync(0xffffffffu, gain, owner);
        level += per_step * __shfl_sync(0xffffffffu, move, owner);
        sign = __shfl_sync(0xffffffffu, (int)sign, owner);
        const float* row = gram + (long long)flipped * d;
        #pragma unroll
        for (int w = 0; w < WORDS; ++w) {
            int i = lane + 32 * w;
            if (i == flipped) {
                v[w] = -v[w];
                s[w] = !s[w];
                ready[w] = step + wait;
            } else if (i < d) {
                v[w] += s[w] == sign ? row[i] : -row[i];
            }
        }
        change += gain + (off_grid(level) - now);
        wait = wait == longest ? shortest : wait + 1;
        if (change < lowest - slack) {
            lowest = change;
            best_level = level;
            #pragma unroll
            for (int w = 0; w < WORDS; ++w) best[w] = s[w];
        }
    }
    #pragma unroll
    for (int w = 0; w < WORDS; ++w) {
        int i = lane + 32 * w;
        if (i < d) signs[(long long)vector * d + i] = best[w] ? 1 : -1;
    }
    if (lane == 0) levels[vector] = best_level;
}
