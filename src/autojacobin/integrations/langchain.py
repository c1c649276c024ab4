"""A vector store for LangChain."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from autojacobin.errors import DataTypeError, MissingExtraError
from autojacobin.index import Index
from autojacobin.integrations.text_store import StoreOptions, Text, TextStore

try:
    from langchain_core.documents import Document
    from langchain_core.embeddings import Embeddings
    from langchain_core.vectorstores import VectorStore
    from langchain_core.vectorstores.utils import maximal_marginal_relevance
    from typing_extensions import Unpack
except ImportError as error:
    raise MissingExtraError("langchain-core", "langchain", "the vector store for LangChain") from error

DocumentFilter = Mapping[str, Any] | Callable[[Document], bool] | str


class AutoJacobinVectorStore(VectorStore):
    """Documents in an index, searched by cosine similarity.

    Adding a document whose id is in the store already replaces it. Scores are cosine similarities: higher is better.
    Metadata are kept as JSON, so a tuple comes back as a list.

    All searches take ``filter``: a dict of metadata that a document must have, perhaps with operators, as in
    ``{"year": {"$gt": 2000}}``; a function of a document; or a condition such as ``"year > 2000 and lang = 'de'"``.
    Similarity searches for a text take ``hybrid=True``: words that a document shares with it count too, by BM25.

    Parameters
    ----------
    embedding : Embeddings
        Turns texts into vectors.
    path, **options
        ``path``, ``hasher``, ``partitions``, ``recall`` and ``columns`` of
        :class:`~autojacobin.integrations.text_store.TextStore`.
    """

    def __init__(
        self, embedding: Embeddings, path: str | os.PathLike[str] | None = None, **options: Unpack[StoreOptions]
    ) -> None:
        if not isinstance(embedding, Embeddings):
            raise DataTypeError(f"embedding must be LangChain's Embeddings, got {type(embedding).__name__}")
        self._embedding = embedding
        self._store = TextStore(path, **options)

    @classmethod
    def from_texts(
        cls,
        texts: list[str],
        embedding: Embeddings,
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: list[str] | None = None,
        **kwargs: Any,
    ) -> AutoJacobinVectorStore:
        """Make a store of some texts; further parameters are those of the class."""
        store = cls(embedding, **kwargs)
        store.add_texts(texts, metadatas, ids=ids)
        return store

    @property
    def embeddings(self) -> Embeddings:
        """What turns texts into vectors."""
        return self._embedding

    @property
    def index(self) -> Index | None:
        """The index; None before the first documents are added."""
        return self._store.index

    def __len__(self) -> int:
        return len(self._store)

    def add_texts(
        self,
        texts: Iterable[str],
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: Sequence[str | None] | None = None,
        **_kwargs: Any,
    ) -> list[str]:
        """Add texts and return their ids; a text replaces the one that has the same id."""
        found = list(texts)
        return self._store.add(found, self._embedding.embed_documents(found), metadatas, ids)

    def delete(self, ids: Sequence[str] | None = None, **_kwargs: Any) -> bool:
        """Delete the documents with these ids, or all if there are none given; unknown ids do not matter."""
        self._store.remove(self._store.ids if ids is None else ids)
        return True

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the store to a new or empty folder; with ``overwrite``, in place of the index that is there."""
        self._store.save(path, overwrite=overwrite)

    def close(self) -> None:
        """Close the files and release the lock; the store cannot be used afterwards."""
        self._store.close()

    def get_by_ids(self, ids: Sequence[str], /) -> list[Document]:
        """Documents with these ids, in their order; ids that are not in the store are passed over."""
        return [_document(text) for text in self._store.get(ids)]

    def similarity_search(self, query: str, k: int = 4, **kwargs: Any) -> list[Document]:
        """Find the ``k`` documents most similar to a text."""
        return [document for document, _ in self.similarity_search_with_score(query, k, **kwargs)]

    def similarity_search_by_vector(self, embedding: list[float], k: int = 4, **kwargs: Any) -> list[Document]:
        """Find the ``k`` documents most similar to a vector."""
        return [_document(text) for text in self._nearest(self._store, embedding, k, kwargs.get("filter"))]

    def similarity_search_with_score(self, query: str, k: int = 4, **kwargs: Any) -> list[tuple[Document, float]]:
        """Find the ``k`` documents most similar to a text, with their cosine similarities."""
        words = [query] if kwargs.pop("hybrid", False) else None
        found = self._nearest(self._store, self._embedding.embed_query(query), k, kwargs.get("filter"), words)
        return [(_document(text), float(text.similarity or 0)) for text in found]

    def max_marginal_relevance_search(
        self, query: str, k: int = 4, fetch_k: int = 20, lambda_mult: float = 0.5, **kwargs: Any
    ) -> list[Document]:
        """Find documents that are similar to a text and different from each other."""
        vector = self._embedding.embed_query(query)
        return self.max_marginal_relevance_search_by_vector(vector, k, fetch_k, lambda_mult, **kwargs)

    def max_marginal_relevance_search_by_vector(
        self,
        embedding: list[float],
        k: int = 4,
        fetch_k: int = 20,
        lambda_mult: float = 0.5,
        filter: DocumentFilter | None = None,
        **_kwargs: Any,
    ) -> list[Document]:
        """Find documents that are similar to a vector and different from each other.

        Of the ``fetch_k`` most similar ones ``k`` are chosen. With ``lambda_mult=1`` only similarity counts, with 0
        only difference.
        """
        store = self._store.snapshot()
        found = self._nearest(store, embedding, max(k, fetch_k), filter)
        if not found:
            return []
        vectors = list(store.vectors([text.id for text in found]))
        chosen = maximal_marginal_relevance(np.asarray(embedding, dtype=np.float32), vectors, lambda_mult, k)
        return [_document(found[place]) for place in chosen]

    def _nearest(
        self, store: TextStore, vector: Any, k: int, filter: DocumentFilter | None, words: list[str] | None = None
    ) -> list[Text]:
        passing: Any = (lambda text: filter(_document(text))) if callable(filter) else filter
        return store.search([vector], k, passing, words=words)[0]

    def _select_relevance_score_fn(self) -> Callable[[float], float]:
        return lambda similarity: (1 + similarity) / 2


def _document(text: Text) -> Document:
    return Document(id=text.id, page_content=text.text, metadata=text.metadata)
