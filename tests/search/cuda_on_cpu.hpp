// Enough of CUDA to run kernels on a CPU, one block after another. The threads of a block take turns: each runs until it
// waits for its warp or its block.
#include <math.h>
#include <string.h>
#include <ucontext.h>

#include <functional>
#include <vector>

#define ON_CPU
#define __global__
#define __device__
#define __shared__ static
#define __align__(n) __attribute__((aligned(n)))
#define __launch_bounds__(n)

struct uint4 { unsigned x, y, z, w; };
struct Index { unsigned x, y; };
static Index threadIdx, blockIdx, blockDim, gridDim;
__align__(16) unsigned char memory[1 << 18];  // what a kernel declares as extern __shared__

template <class A, class B> static auto min(A a, B b) { return a < b ? a : b; }
static unsigned __popc(unsigned word) { return __builtin_popcount(word); }
static int __ffs(unsigned word) { return __builtin_ffs(word); }
static unsigned __float_as_uint(float value) { unsigned word; memcpy(&word, &value, 4); return word; }
static int __float_as_int(float value) { int word; memcpy(&word, &value, 4); return word; }
static float __int_as_float(int word) { float value; memcpy(&value, &word, 4); return value; }
static double __longlong_as_double(long long word) { double value; memcpy(&value, &word, 8); return value; }
static unsigned atomicAdd(unsigned* to, unsigned value) { unsigned old = *to; *to += value; return old; }

static double half_value(unsigned short half)
{
    int exponent = half >> 10 & 31, digits = half & 1023;
    double size = exponent ? ldexp(1024 + digits, exponent - 25) : ldexp(digits, -24);
    return half >> 15 ? -size : size;
}
static unsigned short half_of(double value)  // of a whole number below 2048
{
    int exponent = 0;
    if (value == 0) return 0;
    frexp(value, &exponent);
    return (value < 0 ? 0x8000 : 0) | (exponent + 14) << 10 | (int)ldexp(fabs(value), 11 - exponent) & 1023;
}
static float number(unsigned short half) { return half_value(half); }

struct Thread { ucontext_t context; std::vector<char> stack; bool done = false; };
struct Meeting { unsigned arrived = 0, turn = 0; };  // of the threads that wait for each other
static std::vector<Thread> threads;
static ucontext_t scheduler;
static unsigned current, alive;
static Meeting of_block, of_warp[32];
static char slots[32][32][64];  // what the lanes of each warp hand over
static std::function<void()> body;

static void wait_turn() { unsigned me = current; swapcontext(&threads[me].context, &scheduler); }

static void meet(Meeting& meeting, unsigned number, const std::function<void()>& at_last = [] {})
{
    unsigned turn = meeting.turn;
    if (++meeting.arrived == number) { at_last(); meeting.arrived = 0; ++meeting.turn; return; }
    while (meeting.turn == turn) wait_turn();
}

static void __syncthreads() { meet(of_block, blockDim.x); }

template <class T> static T __shfl_sync(unsigned, T value, int lane)
{
    unsigned warp = current / 32;
    memcpy(slots[warp][current % 32], &value, sizeof(T));
    meet(of_warp[warp], 32);
    T result;
    memcpy(&result, slots[warp][lane], sizeof(T));
    meet(of_warp[warp], 32);  // all have read
    return result;
}

template <class T> static T __shfl_xor_sync(unsigned all, T value, int mask)
{
    return __shfl_sync(all, value, current % 32 ^ mask);
}

static unsigned __ballot_sync(unsigned, bool vote)
{
    unsigned word = (unsigned)vote << current % 32;
    for (int other = 16; other > 0; other /= 2) word |= __shfl_xor_sync(0xffffffffu, word, other);
    return word;
}

// mma.sync.m16n8k16 as the PTX manual lays out its fragments
struct Operands { float* sums; unsigned a[4], b[2]; };
static void multiply(float* sums, uint4 a, unsigned b0, unsigned b1)
{
    unsigned warp = current / 32;
    Operands mine{sums, {a.x, a.y, a.z, a.w}, {b0, b1}};
    memcpy(slots[warp][current % 32], &mine, sizeof mine);
    meet(of_warp[warp], 32, [&] {
        static double A[16][16], B[16][8];
        for (int lane = 0; lane < 32; ++lane) {
            Operands one;
            memcpy(&one, slots[warp][lane], sizeof one);
            for (int i = 0; i < 8; ++i)
                A[lane / 4 + (i % 4 >= 2 ? 8 : 0)][lane % 4 * 2 + i % 2 + (i >= 4 ? 8 : 0)] =
                    half_value(one.a[i / 2] >> i % 2 * 16 & 0xffff);
            for (int i = 0; i < 4; ++i)
                B[lane % 4 * 2 + i % 2 + (i >= 2 ? 8 : 0)][lane / 4] = half_value(one.b[i / 2] >> i % 2 * 16 & 0xffff);
        }
        for (int lane = 0; lane < 32; ++lane) {
            Operands one;
            memcpy(&one, slots[warp][lane], sizeof one);
            for (int i = 0; i < 4; ++i)
                for (int k = 0; k < 16; ++k)
                    one.sums[i] += A[lane / 4 + i / 2 * 8][k] * B[k][lane % 4 * 2 + i % 2];
        }
    });
}

static void enter()
{
    body();
    threads[current].done = true;
    --alive;
    wait_turn();
}

static void run(unsigned gx, unsigned gy, unsigned n)
{
    gridDim = {gx, gy};
    blockDim = {n, 1};
    threads.resize(n);
    for (blockIdx.y = 0; blockIdx.y < gy; ++blockIdx.y)
        for (blockIdx.x = 0; blockIdx.x < gx; ++blockIdx.x) {
            of_block = Meeting();
            for (Meeting& meeting : of_warp) meeting = Meeting();
            for (Thread& thread : threads) {
                thread.done = false;
                thread.stack.resize(1 << 15);
                getcontext(&thread.context);
                thread.context.uc_stack.ss_sp = thread.stack.data();
                thread.context.uc_stack.ss_size = thread.stack.size();
                makecontext(&thread.context, enter, 0);
            }
            for (alive = n; alive;)
                for (current = 0; current < n; ++current)
                    if (!threads[current].done) {
                        threadIdx = {current, 0};
                        swapcontext(&scheduler, &threads[current].context);
                    }
        }
}

template <class... A, size_t... I> static void call(void (*kernel)(A...), void** arguments, std::index_sequence<I...>)
{
    kernel(*(A*)arguments[I]...);
}
template <class... A> static void launch(void (*kernel)(A...), unsigned gx, unsigned gy, unsigned n, void** arguments)
{
    body = [=] { call(kernel, arguments, std::index_sequence_for<A...>()); };
    run(gx, gy, n);
}
#define EXPORT(kernel) \
    extern "C" void run_##kernel(unsigned gx, unsigned gy, unsigned n, void** a) { launch(kernel, gx, gy, n, a); }
