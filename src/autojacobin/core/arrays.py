"""Arrays of NumPy, CuPy and PyTorch: numerical code asks ``namespace`` for the library of its input."""

import math
import sys
from typing import Any

import numpy as np
import numpy.typing as npt

from autojacobin.errors import DataError, DataTypeError, import_extra

_DLPACK_CPU, _DLPACK_CUDA = 1, 2
_CACHE_LINE = 64  # bytes


def namespace(array: Any) -> Any:
    """Give the module (``numpy`` or ``cupy``) that ``array`` belongs to."""
    return sys.modules["cupy"] if _is_cupy(array) else np


def device_of(array: Any) -> str:
    """Give where an array is stored: ``"cuda"`` or ``"cpu"``."""
    return "cuda" if _is_cupy(array) else "cpu"


def empty_aligned(shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Give an array like ``np.empty`` that begins at a cache line.

    NumPy aligns to 16 bytes, and loading a vector of 64 bytes that spans two cache lines reads both.
    """
    size = math.prod(shape) * np.dtype(dtype).itemsize
    memory = np.empty(size + _CACHE_LINE, dtype=np.uint8)
    start = -memory.ctypes.data % _CACHE_LINE
    return memory[start : start + size].view(dtype).reshape(shape)


def adopt(X: Any) -> Any:
    """Take over a PyTorch tensor, or any other DLPack producer, as a NumPy or CuPy array without a copy."""
    if not _is_torch(X):
        return X
    if X.requires_grad:
        raise DataError("X is a PyTorch tensor that requires a gradient, expected one without; pass X.detach() instead")
    kind, _ = X.__dlpack_device__()
    try:
        if kind == _DLPACK_CPU:
            return np.from_dlpack(X)
        if kind == _DLPACK_CUDA:
            return _import_cupy().from_dlpack(X)
    except (BufferError, RuntimeError, TypeError) as error:  # a dtype that the other library does not have
        raise DataTypeError(f"X is a PyTorch tensor that cannot be taken over: {error}; pass X.float()") from error
    raise DataTypeError(f"X lives on the device {X.device}, expected a CPU or CUDA tensor; pass X.cpu() instead")


def on_device(array: Any, device: str) -> Any:
    """Move a NumPy array to ``device``; an array that is on a GPU already stays there."""
    if device == "cpu" or _is_cupy(array):
        return array
    return _import_cupy().asarray(array)


def to_host(array: Any) -> Any:
    """Give a NumPy array with the content of ``array``, wherever it is stored."""
    return array.get() if _is_cupy(array) else np.asarray(array)


def give_back(result: Any, original: Any) -> Any:
    """Convert ``result`` to the kind of array that the caller's ``original`` is."""
    if _is_torch(original):
        return sys.modules["torch"].from_dlpack(result)
    return result if _is_cupy(original) else to_host(result)


def free_gpu_memory(array: Any) -> int | None:
    """Count the bytes that are free on the GPU where ``array`` lives; None for an array that lives on no GPU."""
    if not _is_cupy(array):
        return None
    cupy: Any = sys.modules["cupy"]
    free, _ = cupy.cuda.runtime.memGetInfo()
    return int(free + cupy.get_default_memory_pool().free_bytes())


def _is_cupy(array: Any) -> bool:
    cupy: Any = sys.modules.get("cupy")  # if there is such an array, its library has been imported
    return cupy is not None and isinstance(array, cupy.ndarray)


def _is_torch(array: Any) -> bool:
    torch: Any = sys.modules.get("torch")
    return torch is not None and isinstance(array, torch.Tensor)


def _import_cupy() -> Any:
    cupy = import_extra("cupy", "gpu", 'device="cuda"')
    try:
        if cupy.cuda.runtime.getDeviceCount() > 0:
            return cupy
    except cupy.cuda.runtime.CUDARuntimeError:  # there is no driver
        pass
    raise DataError('device="cuda" needs an NVIDIA GPU, got a machine without one; use the device "cpu" instead')
