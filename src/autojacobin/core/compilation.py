"""How the kernels are compiled: with numba, without the GIL, cached on disk where there is a place for it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar, overload

import numba
from numba import types
from numba.extending import intrinsic as _intrinsic

__all__ = ["intrinsic", "kernel", "popcount", "trailing_zeros", "use_wide_registers"]

F = TypeVar("F", bound=Callable[..., Any])
intrinsic: Any = _intrinsic  # typed as if the caller passed the typing context, which numba does


@overload
def kernel(function: F) -> F: ...
@overload
def kernel(*, reassociate: bool = ..., divides_by_zero: bool = ..., inline: bool = ...) -> Callable[[F], F]: ...
def kernel(
    function: Any = None, *, reassociate: bool = False, divides_by_zero: bool = False, inline: bool = False
) -> Any:
    """Compile a function at its first call; later processes load it from numba's cache.

    The cache lies beside the source, or in the user's cache folder where that is read-only. Where
    neither can be written, each process compiles for itself. ``reassociate`` lets sums of floats be
    taken in another order, always the same one, without which they cannot be vectorised.
    ``divides_by_zero`` gives infinity where an error would be raised, for the same reason. ``inline`` is for what is
    called for every code: LLVM leaves longer functions as they are, and a call hands over each array as ten numbers.
    """
    if function is None:
        return partial(kernel, reassociate=reassociate, divides_by_zero=divides_by_zero, inline=inline)
    options: dict[str, Any] = {
        "nogil": True,
        "fastmath": {"reassoc", "contract"} if reassociate else False,
        "error_model": "numpy" if divides_by_zero else "python",
        "forceinline": inline,
    }
    try:
        return numba.njit(cache=True, **options)(function)
    except RuntimeError:  # numba found no folder to cache in
        return numba.njit(**options)(function)


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
    """Let LLVM use 512-bit registers in the calling function, from which it holds back unless it is told.

    Counting bits runs half as fast again with them. Where the machine has none, this says nothing.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        # llvmlite's attribute sets take known names alone; this one goes past their check.
        attributes = builder.function.attributes
        if isinstance(attributes, set):
            set.add(attributes, '"prefer-vector-width"="512"')
        return context.get_dummy_value()

    return types.void(), generate
