"""How the kernels are compiled: with numba, without the GIL, and with a cache on disk where one can be written."""

from __future__ import annotations

import gc
import hashlib
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar, overload

import numba
from numba import types
from numba.core import event
from numba.extending import intrinsic as _intrinsic
from numba.extending import register_jitable

from autojacobin.core.progress import compilation_begins

__all__ = ["intrinsic", "kernel", "part_of_others", "popcount", "trailing_zeros", "use_wide_registers"]

F = TypeVar("F", bound=Callable[..., Any])
intrinsic: Any = _intrinsic  # typed as if the caller passed the typing context, which numba does


class _CompilationListener(event.Listener):
    """Announces the first compilation of this process, and collects no garbage during any of them.

    Numba makes millions of small objects that it keeps, and a fifth of the time of a compilation went into looking for
    garbage among them. It sends no event for what its cache holds, and compiles on one thread at a time.
    """

    _depth = 0  # a kernel is compiled with the functions that it calls
    _collected = False

    def on_start(self, event: Any) -> None:
        dispatcher = event.data.get("dispatcher")
        name = getattr(dispatcher, "__module__", None) or ""
        if self._depth == 0:
            if not name.startswith("autojacobin"):
                return
            compilation_begins(kept=dispatcher._cache.cache_path is not None)
            self._collected = gc.isenabled()
            gc.disable()
        self._depth += 1

    def on_end(self, event: Any) -> None:  # noqa: ARG002
        self._depth = max(0, self._depth - 1)
        if self._depth == 0 and self._collected:
            self._collected = False
            gc.enable()


event.register("numba:compile", _CompilationListener())  # type: ignore[no-untyped-call]


@overload
def kernel(function: F) -> F: ...
@overload
def kernel(
    *,
    reassociate: bool = ...,
    never_nan: bool = ...,
    divides_by_zero: bool = ...,
    inner: bool = ...,
    inline: bool = ...,
) -> Callable[[F], F]: ...
def kernel(
    function: Any = None,
    *,
    reassociate: bool = False,
    never_nan: bool = False,
    divides_by_zero: bool = False,
    inner: bool = False,
    inline: bool = False,
) -> Any:
    """Compile a function at its first call; later processes load it from numba's cache.

    The cache is beside the source, or in the user's cache folder if that is read-only. If neither can be written, each
    process compiles for itself. A kernel may call kernels of its own folder, the functions of this file and those of
    ``simd.py``: it is compiled again when any of these files changes.

    ``reassociate`` lets LLVM take sums of floats in another order, always the same one, without which it cannot
    vectorise them. ``never_nan`` says that no number is NaN and that the sign of zero does not matter: a minimum is
    then one instruction. ``divides_by_zero`` gives infinity instead of raising an error; the check would prevent
    vectorisation, too. ``inner`` is for functions that only other kernels call, and is compiled as a part of each of
    these: nothing is generated that converts Python objects, and nothing is cached twice. ``inline`` is for inner
    functions that are called for every code: LLVM does not inline longer functions by itself, and a call passes each
    array as ten numbers.
    """
    if function is None:
        return partial(
            kernel,
            reassociate=reassociate,
            never_nan=never_nan,
            divides_by_zero=divides_by_zero,
            inner=inner,
            inline=inline,
        )
    options: dict[str, Any] = {
        "fastmath": ({"reassoc", "contract"} if reassociate else set()) | ({"nnan", "nsz"} if never_nan else set()),
        "error_model": "numpy" if divides_by_zero else "python",
        "forceinline": inline,
    }
    if inner or inline:
        return register_jitable(**options)(function)
    options.update(nogil=True, no_cfunc_wrapper=True)  # a wrapper for C that nothing calls
    try:
        compiled = numba.njit(cache=True, **options)(function)
    except RuntimeError:  # numba found no folder to cache in
        return numba.njit(**options)(function)
    # numba compares the file of the kernel only, and would keep an old version of a kernel that this one calls.
    cache_file = compiled._cache._cache_file
    cache_file._source_stamp = cache_file._source_stamp, _digest(Path(function.__code__.co_filename).parent)
    return compiled


def part_of_others(compiled: Any) -> Any:
    """Give a kernel as an inner function, for other kernels that call it.

    It is then compiled as a part of these. As a kernel, it would be compiled and cached on its own as well.
    """
    options = {name: compiled.targetoptions[name] for name in ("fastmath", "error_model")}
    return register_jitable(**options)(compiled.py_func)


@cache
def _digest(folder: Path) -> str:
    """Digest of all sources of a folder, of this file and of ``simd.py``."""
    digest = hashlib.sha256()
    for path in [Path(__file__), Path(__file__).with_name("simd.py"), *sorted(folder.glob("*.py"))]:
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


@intrinsic  # type: ignore[untyped-decorator]
def popcount(typing_context: Any, word: Any) -> Any:  # noqa: ARG001
    """Count the bits of an unsigned integer that are set, by the instruction of the machine."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        return builder.ctpop(arguments[0])

    return word(word), generate


@intrinsic  # type: ignore[untyped-decorator]
def trailing_zeros(typing_context: Any, word: Any) -> Any:  # noqa: ARG001
    """Number of zero bits below the lowest bit that is set; the word must not be zero."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        return builder.cttz(arguments[0], context.get_constant(types.boolean, True))

    return word(word), generate


@intrinsic  # type: ignore[untyped-decorator]
def use_wide_registers(typing_context: Any) -> Any:  # noqa: ARG001
    """Let LLVM use 512-bit registers in the calling function, which it avoids by default.

    Counting bits is 1.5 times as fast with them. On machines without such registers this has no effect.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        # llvmlite accepts known attributes only; set.add skips its check.
        attributes = builder.function.attributes
        if isinstance(attributes, set):
            set.add(attributes, '"prefer-vector-width"="512"')
        return context.get_dummy_value()

    return types.void(), generate
