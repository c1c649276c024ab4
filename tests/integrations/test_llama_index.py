"""The vector store for LlamaIndex, by itself and below a VectorStoreIndex."""

import numpy as np
import pytest
from llama_index.core import Document, StorageContext, VectorStoreIndex
from llama_index.core.embeddings import BaseEmbedding
from llama_index.core.schema import NodeRelationship, RelatedNodeInfo, TextNode
from llama_index.core.vector_stores.types import (
    FilterCondition,
    FilterOperator,
    MetadataFilter,
    MetadataFilters,
    VectorStoreQuery,
    VectorStoreQueryMode,
)

from autojacobin import DataError, Index, StorageError
from autojacobin.integrations.llama_index import AutoJacobinVectorStore
from tests.integrations.embedding import cosines, embed

TEXTS = ["a red house", "a red horse", "the green sea", "green seas", "ships of stone", "a stone house"]
IDS = list("abcdef")


def nodes():
    return [
        TextNode(
            id_=id, text=text, embedding=embed([text])[0].tolist(),
            metadata={"length": len(text), "words": text.split()},
            relationships={NodeRelationship.SOURCE: RelatedNodeInfo(node_id=f"document {place % 2}")},
        )
        for place, (id, text) in enumerate(zip(IDS, TEXTS, strict=True))
    ]  # fmt: skip


@pytest.fixture
def store():
    store = AutoJacobinVectorStore(columns={"length": int})
    assert store.add(nodes()) == IDS
    return store


def query(text, k=6, **parameters):
    return VectorStoreQuery(query_embedding=embed([text])[0].tolist(), similarity_top_k=k, **parameters)


def test_a_query_gives_whole_nodes_with_their_cosines(store):
    result = store.query(query("the red sea", 4))
    similarities = cosines("the red sea", TEXTS)
    order = np.argsort(-similarities)[:4]
    assert result.ids == [IDS[place] for place in order]
    np.testing.assert_allclose(result.similarities, similarities[order], atol=1e-5)
    for node, place in zip(result.nodes, order, strict=True):
        expected = nodes()[place]
        expected.embedding = None
        assert node == expected


def condition(key, operator, value):
    return MetadataFilter(key=key, operator=operator, value=value)


LONG = condition("length", FilterOperator.GT, 12)
RED = condition("words", FilterOperator.CONTAINS, "red")
STONE = condition("words", FilterOperator.ANY, ["stone", "wood"])
FILTERS = [
    (MetadataFilters(filters=[condition("length", FilterOperator.EQ, 11)]), "ab"),
    (MetadataFilters(filters=[LONG, STONE]), "ef"),
    (MetadataFilters(filters=[RED, STONE], condition=FilterCondition.OR), "abef"),
    (MetadataFilters(filters=[RED, STONE], condition=FilterCondition.NOT), "cd"),
    (MetadataFilters(filters=[LONG, MetadataFilters(filters=[RED, STONE], condition="or")]), "ef"),
    (MetadataFilters(filters=[condition("length", "!=", 11), condition("length", "<", 13)]), "d"),
    (MetadataFilters(filters=[condition("length", "in", [11, 12])], condition="not"), "cdef"),
    (MetadataFilters(filters=[LONG, MetadataFilters(filters=[])]), "cef"),
    (MetadataFilters(filters=[]), "abcdef"),
    (MetadataFilters(filters=[], condition=FilterCondition.OR), "abcdef"),
]


@pytest.mark.parametrize(("filters", "expected"), FILTERS)
def test_filters_leave_some_nodes(store, filters, expected):
    assert set(store.query(query("sea", filters=filters)).ids) == set(expected)
    assert [node.node_id for node in store.get_nodes(filters=filters)] == list(expected)
    store.delete_nodes(filters=filters)
    assert {node.node_id for node in store.get_nodes()} == set(IDS) - set(expected)


def test_a_query_can_be_among_some_nodes_or_documents(store):
    assert set(store.query(query("sea", node_ids=["a", "d", "?"])).ids) == {"a", "d"}
    assert set(store.query(query("sea", doc_ids=["document 1"])).ids) == {"b", "d", "f"}
    assert set(store.query(query("sea", node_ids=["a", "d"], doc_ids=["document 1"])).ids) == {"d"}
    assert set(store.query(query("sea", node_ids=[], doc_ids=[])).ids) == set(IDS)


def test_marginal_relevance_prefers_what_differs(store):
    mmr = VectorStoreQueryMode.MMR
    assert store.query(query("green sea", 2)).ids == ["d", "c"]
    assert store.query(query("green sea", 2, mode=mmr, mmr_threshold=1.0)).ids == ["d", "c"]
    diverse = store.query(query("green sea", 2, mode=mmr, mmr_threshold=0.1))
    assert diverse.ids[0] == "d"
    assert diverse.ids[1] != "c"
    assert [node.node_id for node in diverse.nodes] == diverse.ids


def test_marginal_relevance_reads_one_state(store, monkeypatch):
    vectors = Index.vectors

    def removed_meanwhile(self, ids):
        store.clear()
        return vectors(self, ids)

    monkeypatch.setattr(Index, "vectors", removed_meanwhile)
    asked = query("green sea", 2, mode=VectorStoreQueryMode.MMR)
    assert len(store.query(asked).ids) == 2
    assert store.query(asked).ids == []


def test_nodes_of_a_document_are_deleted(store):
    store.delete("document 0")
    store.delete("unknown")
    assert [node.node_id for node in store.get_nodes()] == ["b", "d", "f"]
    store.delete_nodes(["b", "unknown"])
    assert [node.node_id for node in store.get_nodes(["b", "d"])] == ["d"]
    store.clear()
    assert len(store.client) == 0
    assert store.query(query("sea")).ids == []


def test_a_store_can_be_persisted(store, tmp_path):
    store.persist(str(tmp_path / "store"))
    again = AutoJacobinVectorStore.from_persist_path(str(tmp_path / "store"))
    assert again.query(query("stone")) == store.query(query("stone"))
    again.add([TextNode(id_="new", text="new", embedding=embed(["new"])[0].tolist())])
    assert len(AutoJacobinVectorStore(tmp_path / "store").client) == 7
    AutoJacobinVectorStore().persist(str(tmp_path / "nothing"))
    with pytest.raises(StorageError, match="there is no store in"):
        AutoJacobinVectorStore.from_persist_path(str(tmp_path / "nothing"))


class NgramEmbedding(BaseEmbedding):
    def _get_text_embedding(self, text):
        return embed([text])[0].tolist()

    _get_query_embedding = _get_text_embedding

    async def _aget_query_embedding(self, query):
        return self._get_query_embedding(query)


def test_a_vector_store_index_stands_on_it(tmp_path):
    context = StorageContext.from_defaults(vector_store=AutoJacobinVectorStore(tmp_path / "store"))
    documents = [Document(text=text, id_=f"document {text}") for text in TEXTS]
    index = VectorStoreIndex.from_documents(documents, storage_context=context, embed_model=NgramEmbedding())
    best = TEXTS[int(np.argmax(cosines("red horses", TEXTS)))]
    found = index.as_retriever(similarity_top_k=1).retrieve("red horses")
    assert [one.node.get_content() for one in found] == [best]
    index.delete_ref_doc(f"document {best}")
    index.storage_context.vector_store.client.close()
    again = VectorStoreIndex.from_vector_store(AutoJacobinVectorStore(tmp_path / "store"), NgramEmbedding())
    found = again.as_retriever(similarity_top_k=9).retrieve("red horses")
    assert {one.node.get_content() for one in found} == set(TEXTS) - {best}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda store: store.query(query("a", mode=VectorStoreQueryMode.HYBRID)), "a hybrid query needs its text"),
        (
            lambda store: store.query(query("a", mode=VectorStoreQueryMode.SPARSE)),
            "must be default, mmr or hybrid, got sparse",
        ),
        (lambda store: store.query(VectorStoreQuery(query_str="a")), "the query has no embedding"),
        (
            lambda store: store.query(query("a", filters=MetadataFilters(filters=[condition("nothing", "==", 1)]))),
            "names the field 'nothing', which no text has",
        ),
        (
            lambda store: store.get_nodes(filters=MetadataFilters(filters=[condition("nothing", "contains", "x")])),
            "the filters name the field 'nothing', which no node has, expected one of",
        ),
        (
            lambda store: store.get_nodes(filters=MetadataFilters(filters=[condition("length", ">", "x")])),
            "compares the column 'length' .int64. with the text 'x', expected a number",
        ),
    ],
)
def test_what_cannot_be_queried_is_an_error(store, wrong, message):
    with pytest.raises(DataError, match=message):
        wrong(store)


def test_a_hybrid_query_counts_words_that_are_shared(store):
    """By vectors alone, another node may be first; a word that only one node has puts that one first."""
    text = nodes()[4].get_content()
    hybrid = query("green sea", 6, mode=VectorStoreQueryMode.HYBRID, query_str=text)
    found = store.query(hybrid)
    assert sorted(found.ids) == sorted(store.query(query("green sea", 6)).ids)
    ranks = {id: place for place, id in enumerate(store.query(query("green sea", 6)).ids)}
    assert found.ids.index(nodes()[4].node_id) < ranks[nodes()[4].node_id]
