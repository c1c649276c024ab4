"""Codes that were made elsewhere, in place of a hasher."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from autojacobin.codes import BitOrder, Codes
from autojacobin.core.arrays import to_host
from autojacobin.core.vectors import as_floats, as_matrix
from autojacobin.errors import DataError, DataTypeError
from autojacobin.hashers.base import Hasher
from autojacobin.hashers.parameters import Bits, Choice, Limit


class OwnCodes(Hasher):
    """Stands in for the hasher of codes that were made elsewhere: its vectors are the packed codes themselves.

    An index made by :meth:`autojacobin.Index.from_codes` has one. There is nothing to learn.

    Parameters
    ----------
    n_bits : int
        Length of the codes.
    bitorder : {"little", "big"}
        Order of the bits in each byte, as in :func:`numpy.packbits`.

    Examples
    --------
    >>> import numpy as np
    >>> from autojacobin.hashers import OwnCodes
    >>> OwnCodes(12, bitorder="big").encode(np.array([[255, 128]], dtype=np.uint8)).to_bits()
    array([[1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0]], dtype=uint8)
    """

    distances: ClassVar[tuple[str, ...]] = ("hamming", "asymmetric")  # queries are codes unless the caller says so
    _limits: ClassVar[dict[str, Limit]] = {"n_bits": Bits(), "bitorder": Choice("little", "big")}

    def __init__(self, n_bits: int = 64, *, bitorder: BitOrder = "little") -> None:
        self.n_bits = n_bits
        self.bitorder = bitorder
        self.n_features_in_ = -(-n_bits // 8) if isinstance(n_bits, int) else 0

    def fit(self, X: Any = None, y: Any = None, **_: Any) -> OwnCodes:  # noqa: ARG002
        """Do nothing, as there is nothing to learn."""
        return self

    def encode(self, X: Any) -> Codes:
        """Packed codes as :class:`Codes`."""
        return X if isinstance(X, Codes) else Codes.from_packed(self._checked(X), self.n_bits, bitorder=self.bitorder)

    def project(self, X: Any) -> npt.NDArray[Any]:
        """Real values, one for each bit, as an asymmetric search compares them; those of codes are −1 and 1."""
        checked = self._checked(X)
        if checked.dtype == np.uint8:
            return self.encode(checked).to_signs().astype(np.float32)
        values: npt.NDArray[Any] = as_floats(checked)
        return values

    def _checked(self, X: Any, **_: Any) -> Any:
        """Give packed codes, or a matrix of floats with a column for each bit."""
        array = to_host(as_matrix(X, type(self).__name__))
        if array.dtype == np.uint8 and array.shape[1] == self.n_features_in_:
            return array
        if array.dtype.kind == "f" and array.shape[1] == self.n_bits:
            return array
        if array.dtype != np.uint8 and array.shape[1] == self.n_features_in_:
            raise DataTypeError(f"packed codes must be uint8, got {array.dtype}; convert them with astype(np.uint8)")
        raise DataError(
            f"codes of {self.n_bits} bits are rows of {self.n_features_in_} bytes (uint8), or of {self.n_bits} real "
            f"values for an asymmetric search, got {array.dtype} of shape {array.shape}"
        )
