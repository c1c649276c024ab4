"""A document store and a retriever for Haystack."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any

from autojacobin.errors import DataError, DataTypeError, IdExistsError, MissingExtraError
from autojacobin.integrations.text_store import StoreOptions, Text, TextStore

try:
    from haystack import Document, component, default_from_dict, default_to_dict
    from haystack.document_stores.errors import DuplicateDocumentError
    from haystack.document_stores.types import DuplicatePolicy
    from haystack.utils.filters import document_matches_filter
    from typing_extensions import Unpack
except ImportError as error:
    raise MissingExtraError("haystack-ai", "haystack", "the document store for Haystack") from error


class AutoJacobinDocumentStore:
    """Documents in an index, searched by cosine similarity.

    Every document needs an embedding, as the embedders of Haystack make it. Content and ``meta`` are kept, the latter
    as JSON; embeddings are not given back.

    Parameters
    ----------
    path, **options
        ``path``, ``hasher``, ``partitions``, ``recall`` and ``columns`` of
        :class:`~autojacobin.integrations.text_store.TextStore`.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None, **options: Unpack[StoreOptions]) -> None:
        self._path, self._recall = None if path is None else os.fspath(path), options.get("recall")
        self._store = TextStore(path, **options)

    def to_dict(self) -> dict[str, Any]:
        """Give what a pipeline writes down: path and recall. The folder has the rest."""
        return default_to_dict(self, path=self._path, recall=self._recall)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> AutoJacobinDocumentStore:
        """Open the store that a pipeline wrote down."""
        return default_from_dict(cls, data)

    def count_documents(self) -> int:
        """Number of documents."""
        return len(self._store)

    def filter_documents(self, filters: dict[str, Any] | None = None) -> list[Document]:
        """Documents that pass the filters of Haystack; all without filters."""
        found = [_document(text) for text in self._store.get(self._store.ids)]
        return [document for document in found if not filters or document_matches_filter(filters, document)]

    def write_documents(self, documents: list[Document], policy: DuplicatePolicy = DuplicatePolicy.NONE) -> int:
        """Write documents, and give how many.

        Documents whose ids exist, in the store or earlier in the list, are refused, and then none is written. With
        ``SKIP`` they are passed over, and with ``OVERWRITE`` the last of them is kept.
        """
        if not isinstance(documents, list) or not all(isinstance(one, Document) for one in documents):
            raise DataTypeError("documents must be a list of Documents of Haystack; pass one")
        if policy == DuplicatePolicy.OVERWRITE:
            self._add(documents, replace=True)
            return len(documents)
        while True:
            seen = {text.id for text in self._store.get([document.id for document in documents])}
            new: list[Document] = []
            for document in documents:
                if document.id not in seen:
                    seen.add(document.id)
                    new.append(document)
                elif policy != DuplicatePolicy.SKIP:
                    raise DuplicateDocumentError(f"a document with the id {document.id!r} exists; use another policy")
            with suppress(IdExistsError):  # another thread has just written one of them
                self._add(new, replace=False)
                return len(new)

    def _add(self, documents: list[Document], *, replace: bool) -> None:
        for document in documents:
            if document.embedding is None:
                raise DataError(f"the document {document.id!r} has no embedding; run an embedder on it first")
        self._store.add(
            [document.content for document in documents],
            [document.embedding for document in documents],
            [document.meta for document in documents],
            [document.id for document in documents],
            replace=replace,
        )

    def delete_documents(self, document_ids: list[str]) -> None:
        """Delete documents by their ids; unknown ids do not matter."""
        self._store.remove(document_ids)

    def embedding_retrieval(
        self, query_embedding: list[float], filters: dict[str, Any] | None = None, top_k: int = 10
    ) -> list[Document]:
        """Find the documents that are most similar to an embedding, with their cosine similarities as scores."""
        passing = (lambda text: document_matches_filter(filters, _document(text))) if filters else None
        return [_document(text) for text in self._store.search([query_embedding], top_k, passing)[0]]

    def close(self) -> None:
        """Close the files and release the lock; the store cannot be used afterwards."""
        self._store.close()


@component
class AutoJacobinEmbeddingRetriever:
    """Finds the ``top_k`` documents of an :class:`AutoJacobinDocumentStore` that are most similar to an embedding.

    ``filters`` are those of Haystack, unless ``run`` gets others.
    """

    def __init__(
        self, document_store: AutoJacobinDocumentStore, filters: dict[str, Any] | None = None, top_k: int = 10
    ) -> None:
        if not isinstance(document_store, AutoJacobinDocumentStore):
            raise DataTypeError(
                f"document_store must be an AutoJacobinDocumentStore, got {type(document_store).__name__}"
            )
        self.document_store, self.filters, self.top_k = document_store, filters, top_k

    def to_dict(self) -> dict[str, Any]:
        """Give what a pipeline writes down."""
        store = self.document_store.to_dict()
        return default_to_dict(self, document_store=store, filters=self.filters, top_k=self.top_k)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> AutoJacobinEmbeddingRetriever:
        """Make the retriever that a pipeline wrote down."""
        given = data["init_parameters"]
        given["document_store"] = AutoJacobinDocumentStore.from_dict(given["document_store"])
        return default_from_dict(cls, data)

    @component.output_types(documents=list[Document])  # type: ignore[untyped-decorator]
    def run(
        self, query_embedding: list[float], filters: dict[str, Any] | None = None, top_k: int | None = None
    ) -> dict[str, list[Document]]:
        """Find documents."""
        number = self.top_k if top_k is None else top_k
        return {"documents": self.document_store.embedding_retrieval(query_embedding, filters or self.filters, number)}


def _document(text: Text) -> Document:
    return Document(id=text.id, content=text.text, meta=text.metadata, score=text.similarity)
