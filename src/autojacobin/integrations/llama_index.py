"""A vector store for LlamaIndex."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from autojacobin.errors import DataError, MissingExtraError, StorageError
from autojacobin.index import Index
from autojacobin.integrations.text_store import StoreOptions, Text, TextStore

try:
    from llama_index.core.bridge.pydantic import PrivateAttr
    from llama_index.core.indices.query.embedding_utils import get_top_k_mmr_embeddings
    from llama_index.core.schema import BaseNode, MetadataMode
    from llama_index.core.vector_stores.types import (
        BasePydanticVectorStore,
        FilterCondition,
        FilterOperator,
        MetadataFilters,
        VectorStoreQuery,
        VectorStoreQueryMode,
        VectorStoreQueryResult,
    )
    from llama_index.core.vector_stores.utils import (
        build_metadata_filter_fn,
        metadata_dict_to_node,
        node_to_metadata_dict,
    )
    from typing_extensions import Unpack
except ImportError as error:
    raise MissingExtraError("llama-index-core", "llama-index", "the vector store for LlamaIndex") from error

_DOCUMENT = "ref_doc_id"  # the field by which LlamaIndex knows the document of a node
_MMR_FETCHED = 4  # times the wanted number
_OPERATORS = {
    FilterOperator.EQ: "$eq", FilterOperator.NE: "$ne", FilterOperator.GT: "$gt", FilterOperator.GTE: "$gte",
    FilterOperator.LT: "$lt", FilterOperator.LTE: "$lte", FilterOperator.IN: "$in", FilterOperator.NIN: "$nin",
}  # fmt: skip


class AutoJacobinVectorStore(BasePydanticVectorStore):
    """Nodes in an index, searched by cosine similarity.

    Adding a node whose id is in the store already replaces it. The nodes are kept whole, with text, metadata and
    relationships.

    Parameters
    ----------
    path, **options
        ``path``, ``hasher``, ``partitions``, ``recall`` and ``columns`` of
        :class:`~autojacobin.integrations.text_store.TextStore`. Without a path, :meth:`persist` writes the index.
    """

    stores_text: bool = True
    is_embedding_query: bool = True

    _store: TextStore = PrivateAttr()

    def __init__(self, path: str | os.PathLike[str] | None = None, **options: Unpack[StoreOptions]) -> None:
        super().__init__(stores_text=True)
        options["columns"] = {_DOCUMENT: str, **(options.get("columns") or {})}
        self._store = TextStore(path, **options)

    @classmethod
    def class_name(cls) -> str:
        """The name by which LlamaIndex knows the class."""
        return "AutoJacobinVectorStore"

    @classmethod
    def from_persist_path(cls, persist_path: str, **kwargs: Any) -> AutoJacobinVectorStore:
        """Open a store that :meth:`persist` wrote; further parameters are those of the class."""
        if not os.path.isdir(persist_path):
            raise StorageError(f"there is no store in {persist_path}, expected a folder that persist wrote")
        return cls(persist_path, **kwargs)

    @property
    def client(self) -> Index | None:
        """The index; None before the first nodes are added."""
        return self._store.index

    def add(self, nodes: Sequence[BaseNode], **_kwargs: Any) -> list[str]:
        """Add nodes with their embeddings, and return their ids."""
        return self._store.add(
            [node.get_content(MetadataMode.NONE) for node in nodes],
            [node.get_embedding() for node in nodes],
            [node_to_metadata_dict(node, remove_text=True) for node in nodes],
            [node.node_id for node in nodes],
        )

    def delete(self, ref_doc_id: str, **_kwargs: Any) -> None:
        """Delete the nodes of a document."""
        self._store.remove(self._store.matching({_DOCUMENT: ref_doc_id}))

    def delete_nodes(
        self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None, **_kwargs: Any
    ) -> None:
        """Delete the nodes that have one of these ids and pass the filters."""
        self._store.remove(_selected(self._store.snapshot(), node_ids, filters))

    def clear(self) -> None:
        """Delete all nodes."""
        self._store.remove(self._store.ids)

    def persist(self, persist_path: str, fs: Any = None) -> None:
        """Write the store to a folder; an empty store writes nothing.

        An index that is there is replaced, because ``StorageContext.persist`` writes to one place again and again.
        """
        if fs is not None and "file" not in (fs.protocol if isinstance(fs.protocol, tuple) else (fs.protocol,)):
            raise DataError(f"a store is written to a local folder, got a file system of {type(fs).__name__}")
        if self._store.index is not None:
            self._store.save(persist_path, overwrite=True)

    def get_nodes(self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None) -> list[BaseNode]:
        """Nodes that have one of these ids and pass the filters."""
        store = self._store.snapshot()
        return [_node(text) for text in store.get(_selected(store, node_ids, filters))]

    def query(self, query: VectorStoreQuery, **kwargs: Any) -> VectorStoreQueryResult:
        """Find the nodes that are most similar to the embedding of a query.

        The modes are ``DEFAULT``, ``MMR`` and ``HYBRID``, which also counts words that a node shares with the text of
        the query, by BM25.
        """
        mmr, hybrid = query.mode == VectorStoreQueryMode.MMR, query.mode == VectorStoreQueryMode.HYBRID
        if not mmr and not hybrid and query.mode != VectorStoreQueryMode.DEFAULT:
            raise DataError(f"the mode must be default, mmr or hybrid, got {query.mode.value}; choose one of these")
        if hybrid and query.query_str is None:
            raise DataError("a hybrid query needs its text, got none; pass query_str")
        if query.query_embedding is None:
            raise DataError("the query has no embedding, expected query_embedding; embed its text first")
        k, store = query.similarity_top_k, self._store.snapshot()
        fetched = int(kwargs.get("mmr_prefetch_factor", _MMR_FETCHED) * k) if mmr else k
        among = query.node_ids or None  # LlamaIndex gives an empty list for all
        conditions: list[dict[str, Any]] = [{_DOCUMENT: {"$in": query.doc_ids}}] if query.doc_ids else []
        if query.filters and query.filters.filters:
            if (condition := _as_dict(query.filters)) is None:
                among = _selected(store, among, query.filters)
            else:
                conditions.append(condition)
        words = [query.query_str or ""] if hybrid else None
        found = store.search(
            [query.query_embedding], fetched, {"$and": conditions} if conditions else None, among, words
        )[0]
        if mmr and found:
            found = _diverse(store, found, query, kwargs.get("mmr_threshold", query.mmr_threshold))
        return VectorStoreQueryResult(
            nodes=[_node(text) for text in found],
            similarities=[float(text.similarity or 0) for text in found],
            ids=[text.id for text in found],
        )


def _diverse(store: TextStore, found: list[Text], query: VectorStoreQuery, threshold: float | None) -> list[Text]:
    ids = [text.id for text in found]
    by_id = dict(zip(ids, found, strict=True))
    _, chosen = get_top_k_mmr_embeddings(
        list(query.query_embedding or ()), store.vectors(ids).tolist(),
        similarity_top_k=query.similarity_top_k, embedding_ids=ids, mmr_threshold=threshold,
    )  # fmt: skip
    return [by_id[id] for id in chosen]


def _selected(store: TextStore, node_ids: list[str] | None, filters: MetadataFilters | None) -> list[str]:
    """Ids of the nodes that have one of some ids and pass filters."""
    ids = store.ids if node_ids is None else node_ids
    if filters is None or not filters.filters:
        return ids
    if (condition := _as_dict(filters)) is not None:
        passing = store.matching(condition)
    else:
        texts = store.get(store.ids)
        known = {name for text in texts for name in text.metadata}
        if texts and (unknown := _fields(filters) - known):
            raise DataError(
                f"the filters name the field {min(unknown)!r:.60}, which no node has, expected one of "
                f"{', '.join(sorted(known)[:20])}"
            )
        passing = [text.id for text in texts if _passes(filters, text.metadata)]
    allowed = set(passing)
    return [id for id in ids if id in allowed]


def _node(text: Text) -> BaseNode:
    return metadata_dict_to_node(text.metadata, text=text.text)


def _as_dict(filters: MetadataFilters) -> dict[str, Any] | None:
    """Filters as a dict, as the store takes it; None if one of them looks into lists or for parts of a text."""
    parts = []
    for one in filters.filters:
        if isinstance(one, MetadataFilters):
            parts.append(_as_dict(one))
        else:
            parts.append({one.key: {_OPERATORS[one.operator]: one.value}} if one.operator in _OPERATORS else None)
    if not parts or None in parts:
        return None
    if filters.condition == FilterCondition.NOT:
        return {"$not": {"$or": parts}}
    return {"$or" if filters.condition == FilterCondition.OR else "$and": parts}


def _fields(filters: MetadataFilters) -> set[str]:
    """Fields that must exist, for filters to make sense."""
    nested = [_fields(one) for one in filters.filters if isinstance(one, MetadataFilters)]
    single = [one for one in filters.filters if not isinstance(one, MetadataFilters)]
    return set().union(*nested, (one.key for one in single if one.operator != FilterOperator.IS_EMPTY))


def _passes(filters: MetadataFilters, metadata: Mapping[str, Any]) -> bool:
    """Whether metadata pass filters, which may be nested."""
    results = []
    for one in filters.filters:
        if isinstance(one, MetadataFilters):
            results.append(_passes(one, metadata))
            continue
        try:
            results.append(build_metadata_filter_fn(lambda _: metadata, MetadataFilters(filters=[one]))(""))
        except TypeError as error:
            raise DataError(
                f"the filter {one.key} {one.operator.value} {one.value!r} cannot be compared with "
                f"{metadata.get(one.key)!r}: {error}; give a value of the same type"
            ) from error
    if filters.condition == FilterCondition.NOT:
        return not any(results)
    return any(results) if filters.condition == FilterCondition.OR and results else all(results)
