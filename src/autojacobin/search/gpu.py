"""Searches on a GPU, for codes and projections that are CuPy arrays.

A GPU counts bits so fast that all distances of a block of queries are computed and stored. A histogram of each row then
gives the distance of the k-th nearest code. Codes that are nearer are selected, and of those at this distance the first
ones.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from autojacobin.codes import Codes
from autojacobin.core.arrays import namespace

__all__ = ["gpu_asymmetric_topk", "gpu_hamming_topk"]

_DISTANCES_PER_BLOCK = 2**28
_THREADS = 256

_DISTANCES = r"""
extern "C" __global__ void distances(
    const unsigned char* base, const unsigned char* queries, unsigned short* out,
    long long n, int n_queries, int width)
{
    long long code = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (code >= n) return;
    for (int q = blockIdx.y; q < n_queries; q += gridDim.y) {
        int total = 0;
        int byte = 0;
        if (width % 8 == 0) {
            const unsigned long long* a = (const unsigned long long*)(base + code * width);
            const unsigned long long* b = (const unsigned long long*)(queries + (long long)q * width);
            for (; byte < width; byte += 8) total += __popcll(a[byte / 8] ^ b[byte / 8]);
        }
        for (; byte < width; ++byte) total += __popc(base[code * width + byte] ^ queries[(long long)q * width + byte]);
        out[(long long)q * n + code] = (unsigned short)total;
    }
}
"""

_HISTOGRAM = r"""
extern "C" __global__ void histogram(const unsigned short* distances, int* counts, long long n, int levels)
{
    extern __shared__ int local[];
    for (int level = threadIdx.x; level < levels; level += blockDim.x) local[level] = 0;
    __syncthreads();
    const unsigned short* row = distances + (long long)blockIdx.y * n;
    long long stride = (long long)gridDim.x * blockDim.x;
    for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < n; i += stride)
        atomicAdd(&local[row[i]], 1);
    __syncthreads();
    for (int level = threadIdx.x; level < levels; level += blockDim.x)
        if (local[level]) atomicAdd(&counts[(long long)blockIdx.y * levels + level], local[level]);
}
"""


def gpu_hamming_topk(queries: Codes, base: Codes, k: int) -> tuple[Any, Any]:
    """Exact Hamming top-k on a GPU; the result is in CuPy arrays."""
    xp = namespace(base.packed)
    packed_queries = xp.asarray(queries.packed)
    n, width = base.packed.shape
    levels = base.n_bits + 1
    per_block = max(1, _DISTANCES_PER_BLOCK // n)
    results = []
    for start in range(0, len(packed_queries), per_block):
        block = xp.ascontiguousarray(packed_queries[start : start + per_block])
        distances = xp.empty((len(block), n), dtype=xp.uint16)
        grid = (-(-n // _THREADS), min(len(block), 65535))
        _kernel("distances", _DISTANCES)(grid, (_THREADS,), (base.packed, block, distances, n, len(block), width))
        counts = xp.zeros((len(block), levels), dtype=xp.int32)
        spread = (min(256, -(-n // _THREADS)), len(block))
        _kernel("histogram", _HISTOGRAM)(spread, (_THREADS,), (distances, counts, n, levels), shared_mem=4 * levels)
        results.append(_pick(xp, distances, counts, k))
    return xp.concatenate([part[0] for part in results]), xp.concatenate([part[1] for part in results])


def gpu_asymmetric_topk(projections: Any, base: Codes, k: int) -> tuple[Any, Any]:
    """Asymmetric top-k on a GPU in real numbers, by a matrix product with ±1 codes; the result is in CuPy arrays."""
    xp = namespace(base.packed)
    values = xp.asarray(projections, dtype=xp.float32)
    bits = xp.unpackbits(base.packed.ravel(), bitorder="little").reshape(len(base), -1)[:, : base.n_bits]
    signs = bits.astype(xp.float32) * 2 - 1
    per_block = max(1, _DISTANCES_PER_BLOCK // (4 * len(base)))
    results = []
    for start in range(0, len(values), per_block):
        block = values[start : start + per_block]
        distances = xp.maximum((xp.abs(block).sum(axis=1, keepdims=True) - block @ signs.T) / 2, 0)
        ids = xp.argsort(distances, axis=1, kind="stable")[:, :k]
        results.append((xp.take_along_axis(distances, ids, axis=1), ids))
    return xp.concatenate([part[0] for part in results]), xp.concatenate([part[1] for part in results])


def _pick(xp: Any, distances: Any, counts: Any, k: int) -> tuple[Any, Any]:
    """Give the k smallest of each row in order, equal ones by column; ``counts`` is the histogram of each row."""
    up_to = xp.cumsum(counts, axis=1)
    radius = (up_to >= k).argmax(axis=1)
    rows = xp.arange(len(distances))
    room = k - (up_to[rows, radius] - counts[rows, radius])
    at_radius = distances == radius[:, None]
    chosen = at_radius & (xp.cumsum(at_radius, axis=1, dtype=xp.int32) <= room[:, None])
    chosen |= distances < radius[:, None]
    ids = xp.nonzero(chosen)[1].reshape(len(distances), k)
    found = xp.take_along_axis(distances, ids, axis=1).astype(xp.int64)
    order = xp.argsort(found * distances.shape[1] + ids, axis=1)
    return xp.take_along_axis(found, order, axis=1).astype(xp.int32), xp.take_along_axis(ids, order, axis=1)


@cache
def _kernel(name: str, source: str) -> Any:
    import cupy

    return cupy.RawKernel(source, name)
