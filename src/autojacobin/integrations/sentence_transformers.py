"""Search by text, with sentence-transformers or any other model that encodes texts."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, SupportsIndex

from autojacobin.core.vectors import as_matrix
from autojacobin.errors import DataError, DataTypeError, import_extra
from autojacobin.integrations.text_store import Filter, StoreOptions, TextStore
from autojacobin.search.arguments import as_count

if TYPE_CHECKING:
    from typing_extensions import Unpack


class SentenceIndex(TextStore):
    """Texts that are encoded by a model and searched by text.

    Parameters
    ----------
    model : str or object with a method ``encode``
        A ``SentenceTransformer``, the name of one, or any object whose ``encode`` takes a list of texts and gives a
        matrix with one row per text. If the model has ``encode_document`` and ``encode_query``, these are used.
    truncate_dim : int, optional
        Keep this many of the first numbers of a vector, for Matryoshka models. Leave it out for a model that truncates
        its vectors itself.
    path, **options
        ``path``, ``hasher``, ``partitions``, ``recall`` and ``columns`` of
        :class:`~autojacobin.integrations.text_store.TextStore`.
    """

    def __init__(
        self,
        model: Any,
        path: str | os.PathLike[str] | None = None,
        *,
        truncate_dim: SupportsIndex | None = None,
        **options: Unpack[StoreOptions],
    ) -> None:
        if isinstance(model, str):
            package = "sentence-transformers"
            given = import_extra("sentence_transformers", package, "a model given by its name", package)
            model = given.SentenceTransformer(model)
        self.model = model
        if not callable(getattr(self.model, "encode", None)):
            raise DataTypeError(
                f"model must have a method encode that takes a list of texts, got {type(model).__name__}; "
                "pass for example a SentenceTransformer"
            )
        self.truncate_dim = None if truncate_dim is None else as_count("truncate_dim", truncate_dim)
        super().__init__(path, **options)

    def add(  # type: ignore[override]
        self,
        texts: Sequence[str],
        metadatas: Sequence[Mapping[str, Any]] | None = None,
        ids: Sequence[str | None] | None = None,
    ) -> list[str]:
        """Encode and add texts, and return their ids; a text replaces the one that has the same id."""
        if isinstance(texts, str):
            raise DataTypeError(f"texts must be a list of strings, got the string {texts!r:.40}; put it into a list")
        return super().add(texts, self._encoded(list(texts), "encode_document") if texts else [], metadatas, ids)

    def search(  # type: ignore[override]
        self, query: str | list[str], k: SupportsIndex = 10, *, filter: Filter | None = None, hybrid: bool = False
    ) -> Any:
        """Find the ``k`` texts most similar to a query, or to each of a list of queries, with their cosines.

        ``filter`` is as in :meth:`TextStore.search`. With ``hybrid``, words that both share count too.
        """
        queries = [query] if isinstance(query, str) else list(query)
        if not queries:
            return []
        words = queries if hybrid else None
        found = super().search(self._encoded(queries, "encode_query"), k, filter, words=words)
        return found[0] if isinstance(query, str) else found

    def _encoded(self, texts: list[str], method: str) -> Any:
        encode = getattr(self.model, method, self.model.encode)
        vectors = as_matrix(encode(texts), type(self.model).__name__)
        if self.truncate_dim is None:
            return vectors
        if self.truncate_dim > vectors.shape[1]:
            raise DataError(
                f"truncate_dim must be at most the length of the vectors, got {self.truncate_dim} for vectors of "
                f"{vectors.shape[1]} numbers"
            )
        return vectors[:, : self.truncate_dim]
