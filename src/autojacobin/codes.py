"""Binary codes, packed into bytes in one bit order, with their length."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Sequence
from typing import Any, Literal, SupportsIndex

import numpy as np
import numpy.typing as npt

from autojacobin.core.arrays import device_of, namespace, on_device, to_host
from autojacobin.core.counts import as_count
from autojacobin.core.files import as_path, check_not_special, write_atomically
from autojacobin.errors import DataError, DataTypeError, FormatError, reason_of

BitOrder = Literal["little", "big"]
"""Which bit of a byte comes first: the least or the most significant one, as in ``np.packbits``."""

_FORMAT_VERSION = 1
_EVERY_BYTE = np.arange(256, dtype=np.uint8)[:, np.newaxis]
_REVERSED = np.packbits(np.unpackbits(_EVERY_BYTE, axis=1, bitorder="little"), axis=1)[:, 0]  # the bits of each byte


class Codes:
    """``n`` binary codes of ``n_bits`` bits each, packed into bytes.

    Bit ``j`` of a code is bit ``j % 8``, least significant first, of byte ``j // 8``; the bits that
    fill up the last byte are zero, so they add nothing to a distance. Two ``Codes`` are equal when their bits
    are, and the packed array cannot be changed through them.

    Parameters
    ----------
    packed : array of uint8, shape (n, ceil(n_bits / 8))
        The packed bits, as a NumPy array, or as a CuPy array on a GPU. Kept as it is, not copied, when it is
        C-contiguous; do not write to it afterwards.
    n_bits : int
        Length of a code, at least 1.

    Examples
    --------
    >>> import numpy as np
    >>> from autojacobin import Codes
    >>> codes = Codes.from_bits([[1, 0, 1], [0, 1, 1]])
    >>> codes
    Codes(2 codes of 3 bits)
    >>> codes.packed
    array([[5],
           [6]], dtype=uint8)
    >>> codes[1].to_signs()
    array([[-1,  1,  1]], dtype=int8)
    """

    __slots__ = ("_n_bits", "_packed", "_tiles")
    __hash__ = None  # type: ignore[assignment]  # equal by content, and the content may be large

    def __init__(self, packed: npt.ArrayLike, n_bits: SupportsIndex) -> None:
        length = as_count("n_bits", n_bits)
        xp = namespace(packed)
        array = xp.asarray(packed)
        if array.dtype != np.uint8:
            raise DataTypeError(f"packed codes must be uint8, got {array.dtype}; pack 0/1 matrices by Codes.from_bits")
        width = -(-length // 8)
        if array.ndim != 2 or array.shape[1] != width:
            raise DataError(f"codes of {length} bits must have shape (n, {width}), got {array.shape}; check n_bits")
        array = xp.ascontiguousarray(array)
        spare = 8 * width - length
        if spare and len(array) and int(array[:, -1].max()) >> (8 - spare):
            row = int((array[:, -1] >> (8 - spare) != 0).argmax())
            raise DataError(f"the {spare} padding bits of each code must be zero, got others in row {row}; fix n_bits")
        self._packed = array.view()
        if xp is np:
            self._packed.flags.writeable = False
        self._n_bits = length
        self._tiles: Any = None  # the codes as search arranges them at its first call

    @classmethod
    def from_bits(cls, bits: npt.ArrayLike) -> Codes:
        """Pack a matrix of 0 and 1 (or of booleans) with one code per row; codes of a CuPy array are on the GPU."""
        try:
            matrix: npt.NDArray[Any] = namespace(bits).asarray(bits)
        except ValueError as error:
            raise DataError(f"bits cannot be read as a matrix: {error}; pass rows of equal length") from error
        if matrix.ndim != 2:
            raise DataError(f"bits must be a matrix, one code per row, got {matrix.ndim}D; reshape a code to (1, -1)")
        if matrix.dtype.kind not in "biuf":
            raise DataTypeError(f"bits must be numbers or booleans, got dtype {matrix.dtype}")
        if matrix.dtype == np.bool_:
            return cls._pack(matrix)
        wrong = (matrix != 0) & (matrix != 1)
        if wrong.any():
            row, column = np.unravel_index(int(wrong.argmax()), wrong.shape)
            found = f"{matrix[row, column]} in row {row}, column {column}"
            raise DataError(f"every bit must be 0 or 1, got {found}; binarise with values >= 0")
        return cls._pack(matrix != 0)

    @classmethod
    def from_packed(
        cls, packed: npt.ArrayLike, n_bits: SupportsIndex | None = None, *, bitorder: BitOrder = "little"
    ) -> Codes:
        """Take packed bytes in either bit order, as ``np.packbits(bits, axis=1, bitorder=bitorder)`` gives them.

        Parameters
        ----------
        packed : array of uint8, shape (n, ceil(n_bits / 8))
            Bytes in which the bits that fill up the last byte are zero. In the order ``"little"`` they are not copied.
        n_bits : int, optional
            Length of a code; by default eight times the number of bytes.
        bitorder : {"little", "big"}
            Whether the first bit of a code is the least or the most significant bit of its first byte. NumPy's default
            and sentence-transformers' ``"ubinary"`` are ``"big"``.
        """
        little = _in_bit_order(packed, bitorder)
        if n_bits is None:
            n_bits = 8 * little.shape[1] if little.ndim == 2 else 1
        return cls(little, n_bits)

    @classmethod
    def concatenate(cls, parts: Iterable[Codes]) -> Codes:
        """Concatenate codes of one length."""
        parts = list(parts)
        if not parts:
            raise DataError("no codes to concatenate, got an empty sequence; expected at least one Codes")
        for part in parts:
            if not isinstance(part, Codes):
                raise DataTypeError(f"only Codes can be concatenated, got {type(part).__name__}; use Codes.from_bits")
        lengths = sorted({part.n_bits for part in parts})
        if len(lengths) > 1:
            raise DataError(f"codes to concatenate must have one length, got {lengths} bits; encode with one hasher")
        xp = namespace(parts[0].packed)
        return cls(xp.concatenate([xp.asarray(part.packed) for part in parts]), lengths[0])

    @classmethod
    def _pack(cls, matrix: npt.NDArray[np.bool_]) -> Codes:
        xp, (n, n_bits) = namespace(matrix), matrix.shape
        if xp is not np:  # CuPy packs one long row alone
            matrix = xp.pad(matrix, ((0, 0), (0, -n_bits % 8)))
        if n_bits and matrix.shape[1] % 8 == 0:  # one long row packs faster than many short ones
            return cls(xp.packbits(matrix.ravel(), bitorder="little").reshape(n, -(-n_bits // 8)), n_bits)
        return cls(np.packbits(matrix, axis=1, bitorder="little"), n_bits)

    @property
    def packed(self) -> npt.NDArray[np.uint8]:
        """The packed bits, read-only (on a GPU: not to be written), shape ``(n, ceil(n_bits / 8))``."""
        return self._packed

    def to_packed(self, bitorder: BitOrder = "little") -> npt.NDArray[np.uint8]:
        """Give the packed bits in either bit order; ``"little"`` is ``packed`` itself.

        ``np.unpackbits(codes.to_packed("big"), axis=1, count=codes.n_bits)`` gives the bits, and so does
        ``bitorder="little"`` in both places.
        """
        return _in_bit_order(self._packed, bitorder)

    @property
    def n_bits(self) -> int:
        """Length of a code in bits."""
        return self._n_bits

    def to_bits(self) -> npt.NDArray[np.uint8]:
        """Unpack into a ``uint8`` matrix of 0 and 1, shape ``(n, n_bits)``."""
        return np.unpackbits(to_host(self._packed), axis=1, count=self._n_bits, bitorder="little")

    def to_device(self, device: str) -> Codes:
        """Give the codes with their packed bits on ``"cuda"``, as a CuPy array, or on ``"cpu"``."""
        if device not in ("cpu", "cuda"):
            raise DataError(f"device must be 'cpu' or 'cuda', got {device!r}")
        if device == device_of(self._packed):
            return self
        return Codes(to_host(self._packed) if device == "cpu" else on_device(self._packed, device), self._n_bits)

    def to_signs(self) -> npt.NDArray[np.int8]:
        """Unpack into an ``int8`` matrix of -1 and +1, shape ``(n, n_bits)``."""
        signs = self.to_bits().view(np.int8)
        signs *= 2
        signs -= 1
        return signs

    def __len__(self) -> int:
        return len(self._packed)

    def __getitem__(self, rows: SupportsIndex | slice | Sequence[int] | npt.NDArray[Any]) -> Codes:
        """Choose rows by a number, a slice, an array of numbers or a mask; the result is ``Codes`` again."""
        if isinstance(rows, tuple):
            raise DataError(f"codes are indexed by rows, got {len(rows)} indices; use codes.to_bits()[rows, columns]")
        chosen = self._packed[rows]
        return Codes(chosen if chosen.ndim == 2 else chosen[np.newaxis], self._n_bits)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Codes):
            return NotImplemented
        return self._n_bits == other._n_bits and np.array_equal(to_host(self._packed), to_host(other._packed))

    def __repr__(self) -> str:
        return f"Codes({len(self)} code{'s' * (len(self) != 1)} of {self._n_bits} bit{'s' * (self._n_bits != 1)})"

    def __reduce__(self) -> tuple[Any, ...]:
        return Codes, (to_host(self._packed), self._n_bits)

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the codes to ``path`` as an npz archive of plain arrays, atomically.

        A file that exists is a StorageError, unless ``overwrite`` says that it may be replaced.
        """
        stream = io.BytesIO()
        n_bits, version = np.int64(self._n_bits), np.int64(_FORMAT_VERSION)
        np.savez(stream, packed=to_host(self._packed), n_bits=n_bits, format_version=version)
        write_atomically(path, stream.getvalue(), overwrite=overwrite)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Codes:
        """Read codes that ``save`` wrote; nothing in the file is ever executed."""
        path = as_path(path)
        check_not_special(path, "read the codes")
        content = path.read_bytes()
        try:
            with np.load(io.BytesIO(content)) as archive:
                if archive.zip.testzip() is not None:
                    raise ValueError("content that does not match its checksum")
                arrays = dict(archive)
            version, n_bits = int(arrays["format_version"]), int(arrays["n_bits"])
            if version <= _FORMAT_VERSION:
                return cls(arrays["packed"], n_bits)
        except Exception as error:  # a damaged archive makes zipfile and NumPy raise almost anything
            raise FormatError(
                f"{path} is damaged or does not hold codes, got: {reason_of(error, 200)}; "
                "expected an npz archive written by Codes.save; write it again from the vectors"
            ) from error
        raise FormatError(f"{path} has codes format {version}, expected {_FORMAT_VERSION}; install a newer version")


def as_bit_order(bitorder: Any) -> BitOrder:
    """Check the name of a bit order."""
    if not isinstance(bitorder, str) or bitorder not in ("little", "big"):
        raise DataError(f"bitorder must be 'little' or 'big', got {bitorder!r}; that of np.packbits is 'big'")
    return "big" if bitorder == "big" else "little"


def _in_bit_order(packed: Any, bitorder: BitOrder) -> Any:
    """Convert packed bytes from the order ``"little"`` to ``bitorder``, or back; both are the same operation."""
    array = namespace(packed).asarray(packed)
    if as_bit_order(bitorder) == "little":
        return array
    if array.dtype != np.uint8:
        raise DataTypeError(f"packed codes must be uint8, got {array.dtype}; use Codes.from_bits for a 0/1 matrix")
    return namespace(array).asarray(_REVERSED)[array]
