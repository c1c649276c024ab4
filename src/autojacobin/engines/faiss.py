"""FAISS as an engine: a flat binary index with ids, in one file that FAISS reads by itself."""

from __future__ import annotations

import os
from typing import Any, ClassVar, SupportsIndex

import numpy as np
import numpy.typing as npt

from autojacobin.codes import Codes
from autojacobin.core.files import atomic_writer
from autojacobin.datasets._formats.source import as_path
from autojacobin.engines._contract import Distances, Engine, Floats, Ids
from autojacobin.engines._faiss_indexes import faiss_package, hasher_to_faiss, to_faiss
from autojacobin.engines._ties import by_lower_id
from autojacobin.errors import DataError, DataTypeError, FormatError, StorageError

__all__ = ["FaissEngine", "hasher_to_faiss", "to_faiss", "write_faiss"]


class FaissEngine(Engine):
    """Codes in an ``IndexBinaryIDMap2`` of an ``IndexBinaryFlat``, which is read from a file and written back to it.

    FAISS works in memory: changes reach the file with :meth:`save`, with :meth:`close` and at the end of a ``with``
    block, whole or not at all. A ``with`` block that ends in an error leaves the file as it was. Two processes that
    change one file do not see each other, and the last to save wins.

    FAISS keeps whole bytes and does not know how long a code is, so ``n_bits`` is to be told when a file is opened. It
    keeps no vectors beside codes.

    Parameters
    ----------
    path : path
        The file; if there is none yet, it is made when the engine is saved.
    n_bits : int
        Length of the codes.

    Examples
    --------
    >>> import tempfile
    >>> from autojacobin import Codes
    >>> from autojacobin.engines import FaissEngine
    >>> codes = Codes.from_bits([[0, 0, 0, 0], [0, 1, 1, 1], [1, 1, 1, 1]])
    >>> with tempfile.TemporaryDirectory() as folder, FaissEngine(f"{folder}/codes.faiss", n_bits=4) as engine:
    ...     engine.write(codes, ids=[30, 20, 10])
    ...     engine.search(codes[:1], k=2)
    (array([[0, 3]], dtype=int32), array([[30, 20]]))
    """

    _called: ClassVar[str] = "the FAISS index"

    def __init__(self, path: str | os.PathLike[str], n_bits: SupportsIndex) -> None:
        super().__init__(n_bits)
        self._faiss = faiss_package()
        self.path = as_path(path)
        self._width = -(-self.n_bits // 8)
        self._ordered: tuple[Ids, Ids] | None = None
        self._changed = not self.path.exists()
        if self._changed:
            if not self.path.parent.is_dir():
                raise StorageError(f"{self.path} cannot be made: there is no folder {self.path.parent}; make it first")
            self._index = self._faiss.IndexBinaryIDMap2(self._faiss.IndexBinaryFlat(8 * self._width))
        else:
            self._index = self._opened()
            self._refuse_another_layout(self._index)

    def save(self) -> None:
        """Write the index to its file, if it has changed since it was read or written."""
        self._refuse_closed()
        self._saved()

    def __exit__(self, *exception: object) -> None:
        self._changed = self._changed and exception[0] is None
        self.close()

    def _write(self, codes: Codes, ids: Ids, vectors: Floats | None) -> None:  # noqa: ARG002
        replaced = ids[self._known(ids)]
        if len(replaced):
            self._index.remove_ids(replaced)
        self._index.add_with_ids(codes.packed, ids)
        self._has_changed()

    def _search(self, queries: Codes, k: int) -> tuple[Distances, Ids]:
        def ask(rows: Ids, depth: int) -> tuple[Any, Any]:
            found: tuple[Any, Any] = self._index.search(queries.packed[rows], depth)
            return found

        return by_lower_id(ask, len(queries), k, self._count())

    def _delete(self, ids: Ids) -> None:
        self._index.remove_ids(ids)
        self._has_changed()

    def _known(self, ids: Ids) -> npt.NDArray[np.bool_]:
        ordered, _ = self._ids_in_order()
        if not len(ordered):
            return np.zeros(len(ids), dtype=bool)
        places = np.minimum(np.searchsorted(ordered, ids), len(ordered) - 1)
        known: npt.NDArray[np.bool_] = ordered[places] == ids
        return known

    def _read(self, ids: Ids) -> Codes:
        ordered, positions = self._ids_in_order()
        return Codes(self._packed()[positions[np.searchsorted(ordered, ids)]], self.n_bits)

    def _count(self) -> int:
        return int(self._index.ntotal)

    def _close(self) -> None:
        self._saved()

    def _has_changed(self) -> None:
        self._changed, self._ordered = True, None

    def _ids_in_order(self) -> tuple[Ids, Ids]:
        """All ids, ascending, and the position of each."""
        if self._ordered is None:
            ids = self._faiss.vector_to_array(self._index.id_map)
            positions = np.argsort(ids)
            self._ordered = ids[positions], positions
        return self._ordered

    def _packed(self) -> npt.NDArray[np.uint8]:
        """The codes as they lie in FAISS, to be looked at before the index changes, and not to be kept."""
        flat = self._faiss.downcast_IndexBinary(self._index.index)
        if not self._count():
            return np.empty((0, self._width), dtype=np.uint8)
        memory: npt.NDArray[np.uint8] = self._faiss.rev_swig_ptr(flat.xb.data(), self._count() * self._width)
        return memory.reshape(-1, self._width)

    def _opened(self) -> Any:
        try:
            self.path.open("rb").close()
        except OSError as error:
            raise StorageError(f"{self.path} cannot be read: {error.strerror or error}") from error
        try:
            return self._faiss.read_index_binary(os.fspath(self.path))
        except Exception as error:  # FAISS tells a damaged file by RuntimeError, MemoryError and what else C++ throws
            raise FormatError(
                f"{self.path} is damaged or holds no binary FAISS index; expected a file that FaissEngine or "
                "faiss.write_index_binary wrote"
            ) from error

    def _refuse_another_layout(self, index: Any) -> None:
        faiss = self._faiss
        named = isinstance(index, faiss.IndexBinaryIDMap2)
        inner = faiss.downcast_IndexBinary(index.index) if named else index
        if not named or not isinstance(inner, faiss.IndexBinaryFlat):
            kinds = type(index).__name__ + (f" of an {type(inner).__name__}" if named else "")
            raise DataError(
                f"{self.path} holds an {kinds}, expected an IndexBinaryIDMap2 of an IndexBinaryFlat, as to_faiss makes "
                "it; search it with FAISS itself, or export the codes again with kind='flat'"
            )
        if index.d != 8 * self._width:
            raise DataError(
                f"{self.path} holds codes of {index.d} bits, expected {self.n_bits}; open it with their length"
            )
        padding = 8 * self._width - self.n_bits
        if padding and (self._packed()[:, -1] >> (8 - padding)).any():
            raise DataError(
                f"{self.path} holds codes of more than {self.n_bits} bits; open it with their length, up to {index.d}"
            )
        ordered, _ = self._ids_in_order()
        if len(ordered) and (ordered[0] < 0 or (ordered[1:] == ordered[:-1]).any()):
            raise DataError(f"{self.path} has ids that are negative or not unique; expected each once, from 0 on")

    def _saved(self) -> None:
        if not self._changed:
            return
        write_faiss(self._index, self.path)
        self._changed = False


def write_faiss(index: Any, path: str | os.PathLike[str]) -> None:
    """Write a FAISS index, binary or not, so that the path holds either the old file or all of the new one."""
    faiss, target = faiss_package(), as_path(path)
    if not isinstance(index, faiss.Index | faiss.IndexBinary):
        raise DataTypeError(f"an index of FAISS is needed, got {type(index).__name__}; make one with to_faiss")
    write = faiss.write_index_binary if isinstance(index, faiss.IndexBinary) else faiss.write_index
    try:
        with atomic_writer(target) as stream:
            write(index, stream.name)
    except (OSError, RuntimeError) as error:  # RuntimeError is what FAISS makes of a full disk
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise StorageError(f"{target} cannot be written: {reason}") from error
