"""Eigenvectors of symmetric matrices on a CPU, in their own precision and without the GIL: all, or the leading ones.

LAPACK's ``ssyevd`` computes all eigenvectors. It reduces the matrix to a tridiagonal one, T, and spends most of its
time after that on eigenvectors that a tangent space does not need. :func:`leading_eigh` computes only the leading
eigenvectors of T and transforms them back, which takes half to two thirds as long. It takes many matrices in one call,
because with a call per step two threads would wait for the GIL as long as they compute.

**Eigenvalues of T.** The number of negative pivots in the elimination of T − x is the number of eigenvalues below x. So
each eigenvalue can be enclosed by bisection.

**Eigenvectors of T.** An eigenvector z solves (T − λ) z = 0. Eliminate from the first row down to row k, and from the
last row up to row k: a single number γ is left in row k. Choose k, the twist, where |γ| is smallest. Then z is 1 at k,
and its other entries follow from row to row in both directions. The residual is γ / ‖z‖, and λ + γ / ‖z‖², the
Rayleigh quotient, is a much better eigenvalue. This is Dhillon and Parlett's twisted factorisation.

Both steps run in float64, and for all eigenvalues side by side in vector registers. Eigenvectors found this way are
orthogonal up to residual / gap, as long as the gaps between eigenvalues are not tiny. Matrices with tiny gaps are left
to ``ssyevd``.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from autojacobin.core.compilation import kernel, use_wide_registers
from autojacobin.core.parallel import scipy_linalg

# What tunes the solver: outside the first two limits ssyevd is faster.
_FEWEST_DIMENSIONS = 48
_LARGEST_SHARE_OF_EIGENVECTORS = 0.7
_REFLECTORS_PER_BLOCK = 64

# What correctness needs
_BISECTIONS = 26
_MOST_REFINEMENTS = 4
_LARGEST_ANGLE = 1e-6
# The entries of an eigenvector decay away from its twist, down to denormal numbers, which are ten times as slow to
# compute with. Entries below the first limit are stored as zero. The recurrence goes on down to the second limit,
# because entries may pass near zero and grow again.
_SMALLEST_STORED, _SMALLEST_COMPUTED = 1e-14, 1e-200


def eigh(matrix: Any) -> tuple[Any, Any]:
    """Ascending eigenvalues, and eigenvectors as columns, of a symmetric NumPy ``matrix``, which may be overwritten."""
    ssyevd = lapack_routine("ssyevd") if matrix.dtype == np.float32 else None
    if ssyevd is None or len(matrix) == 0:
        values, vectors = np.linalg.eigh(matrix)
        return values, vectors
    n = len(matrix)
    vectors = np.asfortranarray(matrix.T)  # a view, if the matrix is stored row by row
    values = np.empty(n, dtype=np.float32)
    work = np.empty(1 + 6 * n + 2 * n * n, dtype=np.float32)
    int_work = np.empty(3 + 5 * n, dtype=np.int32)
    _call_lapack(ssyevd, "ssyevd", b"V", b"L", n, vectors, n, values, work, len(work), int_work, len(int_work))
    return values, vectors


def leading_eigh(matrices: Any, r: int) -> tuple[Any, Any]:
    """Largest ``r`` eigenvalues (s, r), descending, and eigenvectors as rows (s, r, n), of matrices (s, n, n)."""
    s, n, _ = matrices.shape
    values = np.empty((s, r), dtype=matrices.dtype)
    rows = np.empty((s, r, n), dtype=matrices.dtype)
    found = np.zeros(s, dtype=np.bool_)
    ssytrd = lapack_routine("ssytrd") if matrices.dtype == np.float32 else None
    if ssytrd is not None and n >= _FEWEST_DIMENSIONS and r <= _LARGEST_SHARE_OF_EIGENVECTORS * n:
        reflectors, (diagonals, off_diagonals, taus) = matrices.copy(), np.empty((3, s, n), dtype=np.float32)
        work = np.empty(_REFLECTORS_PER_BLOCK * n, dtype=np.float32)
        for i in range(s):  # LAPACK reads columns where NumPy stores rows; in a symmetric matrix they are the same
            arrays = (diagonals[i], off_diagonals[i], taus[i])
            _call_lapack(ssytrd, "ssytrd", b"L", n, reflectors[i], n, *arrays, work, len(work))
        vectors = np.empty((s, n, r), dtype=np.float32)
        _leading_of_each(diagonals, off_diagonals, values, vectors, found)
        _apply_reflectors(reflectors, taus, found, vectors, rows)
    for i in map(int, np.flatnonzero(~found)):
        ascending, vectors = eigh(matrices[i].copy())
        values[i], rows[i] = ascending[::-1][:r], vectors.T[::-1][:r]
    return values, rows


# LAPACK in single precision. numpy.linalg.eigh computes float32 in float64, which takes twice as long, and
# scipy.linalg.eigh holds the GIL. So the routines are called through the pointers that SciPy exports for Cython.


@cache
def lapack_routine(name: str) -> Callable[..., None] | None:
    """Return a single-precision LAPACK routine with 32-bit integers, or None if SciPy does not export one."""
    capsule = scipy_linalg().cython_lapack.__pyx_capi__.get(name)
    if capsule is None:
        return None
    api = ctypes.pythonapi
    signature_of = ctypes.PYFUNCTYPE(ctypes.c_char_p, ctypes.py_object)(("PyCapsule_GetName", api))
    pointer_of = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_GetPointer", api))
    signature = signature_of(capsule)
    parameters = signature.removeprefix(b"void (").removesuffix(b")").split(b", ")
    if any(kind not in (b"int *", b"char *") and not kind.endswith(b"_s *") for kind in parameters):
        return None
    kinds = [ctypes.c_char_p if kind == b"char *" else ctypes.c_void_p for kind in parameters]
    found: Callable[..., None] = ctypes.CFUNCTYPE(None, *kinds)(pointer_of(capsule, signature))
    return found


def _call_lapack(routine: Callable[..., None], name: str, *arguments: Any) -> None:
    """Call ``routine`` with bytes for flags, ints and arrays; its last argument, ``info``, is added here."""
    info = ctypes.c_int(0)
    routine(*map(_as_pointer, arguments), ctypes.byref(info))
    if info.value:
        raise np.linalg.LinAlgError(f"{name} did not converge, got info={info.value}")


def _as_pointer(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.ctypes.data
    return ctypes.byref(ctypes.c_int(value)) if isinstance(value, int) else value


@kernel
def _leading_of_each(diagonals: Any, off_diagonals: Any, values: Any, vectors: Any, found: Any) -> None:
    s, n, _ = vectors.shape
    for i in range(s):
        found[i] = leading_of_tridiagonal(diagonals[i], off_diagonals[i, : n - 1], values[i], vectors[i])


@kernel(divides_by_zero=True)
def leading_of_tridiagonal(diagonal: Any, off_diagonal: Any, values: Any, vectors: Any) -> bool:
    """Write the largest r eigenvalues, descending, to ``values`` (r,) and eigenvectors to the columns of ``vectors``.

    Returns False if eigenvalues are so close together that their eigenvectors would not be orthogonal.
    """
    n, r = vectors.shape
    d, e, squares = np.empty(n), np.empty(n - 1), np.empty(n - 1)
    for i in range(n):
        d[i] = diagonal[i]
    for i in range(n - 1):
        e[i] = off_diagonal[i]
        squares[i] = e[i] * e[i]
    bound = 0.0  # on the absolute value of every eigenvalue, by Gershgorin's theorem
    for i in range(n):
        row_sum = abs(d[i]) + (abs(e[i - 1]) if i > 0 else 0.0) + (abs(e[i]) if i < n - 1 else 0.0)
        if not np.isfinite(row_sum):
            return False
        bound = max(bound, row_sum * (1 + 1e-12))
    if bound == 0:
        return False
    rounding = bound * np.finfo(np.float64).eps
    tiny = rounding * np.finfo(np.float64).eps
    found, residuals = np.empty(r), np.empty(r)
    _bisect(d, squares, bound, tiny, found)
    down, up, pivots = np.empty((n, r)), np.empty((n, r)), np.empty((n, r))
    for _ in range(_MOST_REFINEMENTS):
        _twisted_eigenvectors(d, e, tiny, found, residuals, vectors, down, up, pivots)
        separated = True
        for j in range(r):
            above = found[j - 1] - found[j] if j > 0 else np.inf
            below = found[j] - found[j + 1] if j < r - 1 else np.inf
            # Rounding is added, because equal eigenvalues can have a residual of zero.
            separated = separated and residuals[j] + rounding <= _LARGEST_ANGLE * min(above, below)
        if separated:
            for j in range(r):
                values[j] = found[j]
            return True
    return False


@kernel(divides_by_zero=True, inner=True)
def _bisect(d: Any, squares: Any, bound: float, tiny: float, values: Any) -> None:
    """Write the largest eigenvalues, descending, with an error of at most 3e-8 ``bound``.

    ``d`` is the diagonal, ``squares`` are the squared off-diagonal entries, and all eigenvalues lie within ±``bound``.
    """
    use_wide_registers()
    n, r = d.shape[0], values.shape[0]
    low, high, x, pivots = np.empty(r), np.empty(r), np.empty(r), np.empty(r)
    below = np.empty(r, dtype=np.int64)
    for j in range(r):
        low[j], high[j] = -bound, bound
    for step in range(_BISECTIONS):
        for j in range(r):
            # The first step puts all x on one grid, which is denser near zero, where most eigenvalues are.
            x[j] = bound * ((j + 1) / (r + 1)) ** 3 if step == 0 else 0.5 * (low[j] + high[j])
            pivots[j] = d[0] - x[j]
            below[j] = 1 if pivots[j] < 0 else 0
        for i in range(1, n):
            for j in range(r):
                pivot = -tiny if abs(pivots[j]) < tiny else pivots[j]
                pivot = (d[i] - x[j]) - squares[i - 1] / pivot
                pivots[j] = pivot
                below[j] += 1 if pivot < 0 else 0
        for j in range(r):
            if step == 0:
                for other in range(r):
                    if below[other] <= n - 1 - j:
                        low[j] = max(low[j], x[other])
                    else:
                        high[j] = min(high[j], x[other])
            elif below[j] <= n - 1 - j:
                low[j] = x[j]
            else:
                high[j] = x[j]
    for j in range(r):
        values[j] = 0.5 * (low[j] + high[j])


@kernel(divides_by_zero=True, inner=True)
def _twisted_eigenvectors(
    d: Any, e: Any, tiny: float, values: Any, residuals: Any, vectors: Any, down: Any, up: Any, pivots: Any
) -> None:
    """Write an eigenvector for each of ``values``, and its residual; the values are refined in place.

    ``pivots``, ``down`` and ``up`` (n, r) are buffers: the pivots of the elimination from above, and the factors by
    which an entry follows from the next one below or above it.
    """
    use_wide_registers()
    n, r = vectors.shape
    pivot_below, gamma, entry, squared = np.empty(r), np.empty(r), np.empty(r), np.empty(r)
    twist = np.empty(r, dtype=np.int64)
    for j in range(r):
        pivots[0, j] = d[0] - values[j]
    for i in range(1, n):
        for j in range(r):
            pivot = -tiny if abs(pivots[i - 1, j]) < tiny else pivots[i - 1, j]
            down[i - 1, j] = e[i - 1] / pivot
            pivots[i, j] = (d[i] - values[j]) - e[i - 1] * down[i - 1, j]
    for j in range(r):
        pivot_below[j] = d[n - 1] - values[j]
        gamma[j] = pivots[n - 1, j]
        twist[j] = n - 1
    for i in range(n - 2, -1, -1):
        for j in range(r):
            pivot = -tiny if abs(pivot_below[j]) < tiny else pivot_below[j]
            up[i + 1, j] = e[i] / pivot
            eliminated = e[i] * up[i + 1, j]
            pivot_below[j] = (d[i] - values[j]) - eliminated
            gamma_here = pivots[i, j] - eliminated
            smaller = abs(gamma_here) < abs(gamma[j])
            gamma[j] = gamma_here if smaller else gamma[j]
            twist[j] = i if smaller else twist[j]
    for j in range(r):
        entry[j] = 1.0 if twist[j] == n - 1 else 0.0
        squared[j] = entry[j]
        vectors[n - 1, j] = entry[j]
    for i in range(n - 2, -1, -1):
        for j in range(r):
            z = -down[i, j] * entry[j]
            z = z if abs(z) > _SMALLEST_COMPUTED else 0.0
            z = 1.0 if i == twist[j] else z  # before the twist is reached, all entries are 0
            entry[j] = z
            squared[j] += z * z
            vectors[i, j] = z if abs(z) > _SMALLEST_STORED else 0.0
    for j in range(r):
        entry[j] = 0.0
    for i in range(1, n):
        for j in range(r):
            z = -up[i, j] * (1.0 if i - 1 == twist[j] else entry[j])
            z = z if abs(z) > _SMALLEST_COMPUTED else 0.0
            entry[j] = z
            squared[j] += z * z
            vectors[i, j] += z if abs(z) > _SMALLEST_STORED else 0.0
    for j in range(r):
        residuals[j] = abs(gamma[j]) / np.sqrt(squared[j])
        values[j] += gamma[j] / squared[j]
    for j in range(r):
        squared[j] = 1 / np.sqrt(squared[j])
    for i in range(n):
        for j in range(r):
            vectors[i, j] *= squared[j]


@kernel
def _apply_reflectors(reflectors: Any, taus: Any, found: Any, vectors: Any, rows: Any) -> None:
    """Multiply the vectors of each matrix by its reflectors, and write them to ``rows``, where they were found."""
    s, n, r = vectors.shape
    for i in range(s):
        if found[i]:
            _reflect(reflectors[i], taus[i, : n - 1], vectors[i])
            for j in range(r):  # an assignment of arrays would take seconds to compile, for the text of its error
                for k in range(n):
                    rows[i, j, k] = vectors[i, k, j]


@kernel(inner=True)
def _reflect(reflectors: Any, taus: Any, vectors: Any) -> None:
    """Multiply ``vectors`` by LAPACK's reflectors I − τ v v', last to first, in blocks of the form I − V' S⁻¹ V.

    The rows of V are the vectors v of a block. S is upper triangular: its entries above the diagonal are the inner
    products of the v, and those on it are 1/τ. The vector v of reflector k begins with k + 1 zeros and a 1; LAPACK
    stores its other entries in row k, each at its own position.
    """
    n_reflectors = taus.shape[0]
    n_blocks = -(-n_reflectors // _REFLECTORS_PER_BLOCK)
    for block in range(n_blocks - 1, -1, -1):
        first = block * _REFLECTORS_PER_BLOCK
        last = min(first + _REFLECTORS_PER_BLOCK, n_reflectors)
        changed = vectors[first + 1 :]
        n_changed, n_vectors = changed.shape
        V = np.zeros((last - first, n_changed), vectors.dtype)
        transposed = np.zeros((n_changed, last - first), vectors.dtype)  # np.dot is compiled for each layout anew
        for k in range(last - first):
            if taus[first + k] != 0:  # τ = 0 is the identity
                V[k, k] = transposed[k, k] = 1
                for i in range(k + 1, n_changed):
                    V[k, i] = transposed[i, k] = reflectors[first + k, first + 1 + i]
        products = np.dot(V, changed)
        _solve_triangular(np.dot(V, transposed), taus[first:last], products)
        change = np.dot(transposed, products)
        for i in range(n_changed):
            for j in range(n_vectors):
                changed[i, j] -= change[i, j]


@kernel(inner=True)
def _solve_triangular(S: Any, taus: Any, right: Any) -> None:
    """Solve in place with the upper triangle of ``S``, where 1/τ takes the place of the diagonal."""
    for i in range(S.shape[0] - 1, -1, -1):
        sums = right[i]
        for k in range(i + 1, S.shape[0]):
            factor, known = S[i, k], right[k]
            for j in range(right.shape[1]):
                sums[j] -= factor * known[j]
        for j in range(right.shape[1]):
            sums[j] *= taus[i]
