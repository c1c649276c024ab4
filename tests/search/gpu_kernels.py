"""What runs the kernels of a GPU in tests: NumPy, the same source compiled for the CPU, or a GPU if there is one."""

import ctypes
import re
import shutil
import subprocess
import sys
import tempfile
import types
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from autojacobin.search import gpu

SOURCE = Path(gpu.__file__).parent / "kernels" / "gpu.cu"
RUNNERS = ("numpy", pytest.param("compiled", marks=pytest.mark.rare), "gpu")


def use(runner, monkeypatch):
    """Let a runner run the kernels, and give the array library whose arrays it takes."""
    if runner == "gpu":
        return gpu_arrays()
    if runner == "compiled" and shutil.which("g++") is None:
        pytest.skip("no C++ compiler")
    monkeypatch.setattr(gpu, "launch", with_numpy if runner == "numpy" else compiled)
    monkeypatch.setattr(gpu, "_MOST_THREADS", 64)  # which take turns on a CPU
    return np


def gpu_arrays():
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    try:
        cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError:
        pytest.skip("no GPU")
    return cupy


# A stand-in for CuPy


class DeviceArray(np.ndarray):
    """An array of NumPy that, like one of CuPy, refuses to be mixed with others."""

    def get(self):
        return np.array(self, subok=False)

    def __array__(self, *_, **__):
        raise TypeError("an array on a GPU is not converted implicitly")

    def __array_ufunc__(self, ufunc, method, *inputs, **options):
        _check_kind(inputs)
        plain = [_plain(one) for one in inputs]
        if options.get("out"):
            options["out"] = tuple(_plain(one) for one in options["out"])
            getattr(ufunc, method)(*plain, **options)
            return inputs[0]
        return _on_device(getattr(ufunc, method)(*plain, **options))

    def __array_function__(self, function, types, arguments, options):
        return _on_device(function(*map(_plain, arguments), **{name: _plain(one) for name, one in options.items()}))


def _check_kind(values):
    for value in values:
        if type(value) is np.ndarray and value.ndim:
            raise TypeError("an array on a GPU is mixed with one of NumPy")


def _plain(value):
    if isinstance(value, list | tuple):
        return type(value)(map(_plain, value))
    return value.view(np.ndarray) if isinstance(value, DeviceArray) else value


def _on_device(value):
    if isinstance(value, tuple):
        return tuple(map(_on_device, value))
    return np.asarray(value).view(DeviceArray) if isinstance(value, np.ndarray | np.generic) else value


class FakeCuPy(types.ModuleType):
    """The functions of NumPy, for arrays that stand for those on a GPU."""

    ndarray = DeviceArray

    def __init__(self):
        super().__init__("cupy")
        self.free = 2**40
        runtime = SimpleNamespace(getDeviceCount=lambda: 1, memGetInfo=lambda: (self.free, self.free))
        self.cuda = SimpleNamespace(runtime=runtime)

    def get_default_memory_pool(self):
        return SimpleNamespace(free_bytes=lambda: 0)

    def asarray(self, values, dtype=None):
        return np.array(_plain(values), dtype=dtype).view(DeviceArray)

    def __getattr__(self, name):
        function = getattr(np, name)
        if isinstance(function, type) or not callable(function):
            return function

        def call(*arguments, **options):
            _check_kind(arguments)
            return _on_device(function(*map(_plain, arguments), **options))

        return call


def use_fake_cupy(monkeypatch):
    """Let arrays of NumPy stand for those on a GPU, and NumPy run the kernels."""
    fake = FakeCuPy()
    monkeypatch.setitem(sys.modules, "cupy", fake)
    monkeypatch.setattr(
        gpu, "launch", lambda *arguments: with_numpy(*arguments[:4], tuple(map(_plain, arguments[4])), *arguments[5:])
    )
    return fake


# The kernels in NumPy


def with_numpy(name, options, grid, threads, arguments, shared=0):
    KERNELS[name](*arguments)


def _append(rows, first, limits, counts, hits, capacity):
    """Append in any order, as the threads of a GPU do."""
    for query, row in enumerate(rows):
        near = np.random.default_rng(query).permutation(np.flatnonzero(row <= limits[query])).astype(np.uint64)
        places = int(counts[query]) + np.arange(len(near))
        room = places < capacity
        hits[query, places[room]] = (row[near].astype(np.uint64) << np.uint64(32) | near + np.uint64(first))[room]
        counts[query] += len(near)


def _hamming(codes, n, queries, n_queries):
    assert codes.shape[0] == n
    assert len(queries) == n_queries
    return np.bitwise_count(codes[np.newaxis] ^ queries[:, np.newaxis]).sum(axis=2, dtype=np.uint32)


def _weigh(
    queries, n, width, columns, n_columns, start, shift, n_bits, n_level_bits, offset, largest, decoded,
    fragments, starts, scales, constants,
):  # fmt: skip
    centred = queries - start
    weights = np.tile(shift, (n, 1))
    weights[:, :n_columns] += 2 * centred @ columns
    levels = np.arange(n_bits) >= n_bits - n_level_bits
    units = np.maximum((np.abs(weights) / np.where(levels, 255, largest)).max(axis=1, keepdims=True), 1e-300)
    whole = np.rint(np.abs(weights) / units)
    fragments[:] = gpu._fragments(np.where(weights >= 0, -whole, whole))
    starts[:] = np.where(weights >= 0, whole, 0).sum(axis=1)
    scales[:] = units[:, 0] * (2 if decoded else 1)
    constants[:] = (np.square(centred).sum(axis=1) + offset - units[:, 0] * whole.sum(axis=1)) if decoded else 0


def _weighted(codes, n, fragments, constants, n_queries):
    rows = gpu._rows_of(fragments)[:n_queries].astype(np.float64)
    bits = np.unpackbits(codes, axis=1, bitorder="little")
    return (rows @ bits.T + constants[:, np.newaxis]).astype(np.uint32)


def _ordered(scores):
    """Ranks of all numbers of float32: negative ones in reverse order before the others."""
    words = scores.astype(np.float32).view(np.int32).astype(np.int64)
    return np.where(words < 0, -(words & 0x7FFFFFFF) - 1, words) + 2**31


def _lowest(hits, counts, capacity, k, out, found):
    for query, count in enumerate(counts):
        found[query] = k if k <= count <= capacity else 0
        if found[query]:
            out[query] = np.sort(hits[query, :count])[:k]


def _nearest_vectors(vectors, width, queries, hits, counts, capacity, k, squared, positions):
    for query, count in enumerate(counts):
        squared[query], positions[query] = 0, -1
        if k <= count <= capacity:
            chosen = (hits[query, :count] & np.uint64(0xFFFFFFFF)).astype(np.int64)
            found = np.square(queries[query] - vectors[chosen].astype(np.float64)).sum(axis=1)
            order = np.lexsort((chosen, found))[:k]
            squared[query], positions[query] = found[order], chosen[order]


def _first_centres(rows, points, width, norms, n_rows, n, products, sizes, found):
    check_products(products, rows @ points.T, sizes[:, np.newaxis])
    assert rows.shape == (n_rows, width)
    assert points.shape == (n, width)
    found[:] = (norms - 2 * rows @ points.T).argmin(axis=1)


def _second_centres(
    rows, points, width, norms, n_rows, n, products, sizes, directions, along, largest, shifts, first, found
):
    check_products(products, rows @ points.T, sizes[:, np.newaxis])
    check_products(along, directions @ points.T, largest)
    costs = norms - 2 * rows @ points.T + np.square(shifts[:, np.newaxis] - directions @ points.T)
    costs[np.arange(n_rows), first] = np.inf
    found[:] = costs.argmin(axis=1)


def check_products(halves, products, sizes):
    """Check the bound of the errors of products in fp16 that the kernels rely on."""
    assert halves.dtype == np.float16
    assert (np.abs(sizes * halves.astype(np.float64) - products) <= 2.0**-9 * sizes).all()


def _store(out, rows):
    out[:] = rows


KERNELS = {
    "hamming_all": lambda *arguments: _store(arguments[-1], _hamming(*arguments[:4])),
    "hamming_hits": lambda *arguments: _append(_hamming(*arguments[:4]), 0, *arguments[4:]),
    "weighted_all": lambda *arguments: _store(arguments[-1], _weighted(*arguments[:5])),
    "weighted_hits": lambda *arguments: _append(_weighted(*arguments[:5]), 0, *arguments[5:]),
    "product_hits": lambda products, halves, n, first, *rest: _append(_ordered(halves - products), first, *rest),
    "first_centres": _first_centres,
    "second_centres": _second_centres,
    "ranked": lambda rows, n, rank, n_bits, out: _store(out, np.sort(rows, axis=1)[:, rank - 1]),
    "weigh": _weigh,
    "lowest_hits": _lowest,
    "nearest_vectors": _nearest_vectors,
}


# The same source, compiled for the CPU


def compiled(name, options, grid, threads, arguments, shared=0):
    run_on_cpu(_library(options), name, grid, threads, arguments)


def run_on_cpu(library, name, grid, threads, arguments):
    values = [np.uint64(one.ctypes.data) if isinstance(one, np.ndarray) else one for one in arguments]
    cells = [ctypes.create_string_buffer(value.tobytes()) for value in values]
    pointers = (ctypes.c_void_p * len(cells))(*(ctypes.addressof(cell) for cell in cells))
    getattr(library, f"run_{name}")(grid[0], grid[1] if len(grid) > 1 else 1, threads, pointers)


@cache
def _library(options):
    source = SOURCE.read_text(encoding="utf-8").replace("extern __shared__", "extern")
    wanted = {"WORDS": any("WORDS" in one for one in options), "VECTOR": any("VECTOR" in one for one in options)}
    conditional = {"hamming": "WORDS", "weighted": "WORDS", "weigh": "WORDS", "nearest": "VECTOR"}
    names = re.findall(r"__global__ void (?:__launch_bounds__\(\w+\) )?(\w+)\(", source)
    assert set(names) == set(KERNELS)
    exported = [name for name in names if wanted.get(conditional.get(name.split("_")[0], ""), True)]
    return compile_for_cpu(source, exported, options)


def compile_for_cpu(source, names, options):
    folder = Path(tempfile.mkdtemp())
    header = Path(__file__).with_name("cuda_on_cpu.hpp").read_text(encoding="utf-8")
    exports = "\n".join(f"EXPORT({name})" for name in names)
    (folder / "gpu.cpp").write_text(header + source + exports, encoding="utf-8")
    flags = ["-std=c++17", "-O1", "-w", "-shared", "-fPIC", "-fno-gnu-unique"]  # each library has its own memory
    command = ["g++", *flags, *options, "gpu.cpp", "-o", "gpu.so"]
    subprocess.run(command, cwd=folder, check=True, timeout=300)
    return ctypes.CDLL(str(folder / "gpu.so"))
