"""The vector store for LangChain: its standard tests, and what they leave out."""

import inspect

import numpy as np
import pytest
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_tests.integration_tests import VectorStoreIntegrationTests

from autojacobin import ITQ, DataError, Index
from autojacobin.integrations.langchain import AutoJacobinVectorStore
from tests.integrations.embedding import cosines, embed
from tests.waiting import run_async

for _, function in inspect.getmembers(VectorStoreIntegrationTests, inspect.iscoroutinefunction):
    pytest.mark.asyncio(function)


class TestInMemory(VectorStoreIntegrationTests):
    @pytest.fixture
    def vectorstore(self):
        return AutoJacobinVectorStore(self.get_embeddings())


class TestInFolder(VectorStoreIntegrationTests):
    @pytest.fixture
    def vectorstore(self, tmp_path):
        store = AutoJacobinVectorStore(self.get_embeddings(), tmp_path / "store")
        yield store
        store.close()


class NgramEmbeddings(Embeddings):
    def embed_documents(self, texts):
        return embed(texts).tolist()

    def embed_query(self, text):
        return embed([text])[0].tolist()


TEXTS = ["a red house", "a red horse", "the green sea", "green seas", "ships of stone", "a stone house"]
METADATAS = [{"place": place, "first": text.split()[0]} for place, text in enumerate(TEXTS)]


@pytest.fixture
def store():
    return AutoJacobinVectorStore.from_texts(TEXTS, NgramEmbeddings(), METADATAS, ids=list("abcdef"))


def places(documents):
    return [document.metadata["place"] for document in documents]


def test_scores_are_cosine_similarities(store):
    found = store.similarity_search_with_score("the red sea", k=6)
    similarities = cosines("the red sea", TEXTS)
    order = np.argsort(-similarities).tolist()
    assert places(document for document, _ in found) == order
    np.testing.assert_allclose([score for _, score in found], similarities[order], atol=1e-5)
    relevance = store.similarity_search_with_relevance_scores("the red sea", k=6)
    np.testing.assert_allclose([score for _, score in relevance], (1 + similarities[order]) / 2, atol=1e-5)
    vector = NgramEmbeddings().embed_query("the red sea")
    assert places(store.similarity_search_by_vector(vector, k=3)) == order[:3]
    assert places(run_async(store.asimilarity_search("the red sea", k=3))) == order[:3]


@pytest.mark.parametrize("filter", [{"first": "a"}, lambda document: document.metadata["first"] == "a", "first = 'a'"])
def test_a_filter_leaves_some_documents(store, filter):
    order = [place for place in np.argsort(-cosines("the red sea", TEXTS)).tolist() if place in (0, 1, 5)]
    assert places(store.similarity_search("the red sea", k=6, filter=filter)) == order
    assert set(places(store.max_marginal_relevance_search("the red sea", k=6, filter=filter))) == {0, 1, 5}
    retriever = store.as_retriever(search_kwargs={"k": 2, "filter": filter})
    assert places(retriever.invoke("the red sea")) == order[:2]


def test_marginal_relevance_prefers_what_differs(store):
    assert places(store.max_marginal_relevance_search("green sea", k=2, lambda_mult=1)) == [3, 2]
    first, second = places(store.max_marginal_relevance_search("green sea", k=2, lambda_mult=0.1))
    assert first == 3
    assert second != 2
    assert AutoJacobinVectorStore(NgramEmbeddings()).max_marginal_relevance_search("sea") == []


def test_marginal_relevance_reads_one_state(store, monkeypatch):
    vectors = Index.vectors

    def removed_meanwhile(self, ids):
        store.delete(list("abcdef"))
        return vectors(self, ids)

    monkeypatch.setattr(Index, "vectors", removed_meanwhile)
    assert len(store.max_marginal_relevance_search("green sea", k=2)) == 2
    assert store.max_marginal_relevance_search("green sea", k=2) == []


def test_a_folder_is_opened_again_with_its_columns(tmp_path):
    documents = [Document(text, metadata=metadata) for text, metadata in zip(TEXTS, METADATAS, strict=True)]
    first = AutoJacobinVectorStore.from_documents(
        documents, NgramEmbeddings(), path=tmp_path / "store", columns={"place": int}, hasher=ITQ(4)
    )
    assert first.delete(first.add_texts(["to be deleted"], [{"place": 99}]))
    first.close()
    store = AutoJacobinVectorStore(NgramEmbeddings(), tmp_path / "store")
    assert len(store) == 6
    assert store.index.hasher.n_bits == 4
    assert sorted(places(store.similarity_search("sea", k=9, filter="place between 2 and 4"))) == [2, 3, 4]


def test_a_store_in_memory_can_be_saved_and_emptied(store, tmp_path):
    store.save(tmp_path / "store")
    store.delete()
    assert len(store) == 0
    copy = AutoJacobinVectorStore(NgramEmbeddings(), tmp_path / "store")
    assert [document.page_content for document in copy.get_by_ids(["f", "?", "a"])] == [TEXTS[5], TEXTS[0]]


def test_an_embedding_of_another_kind_is_an_error():
    with pytest.raises(DataError, match="embedding must be LangChain's Embeddings, got function"):
        AutoJacobinVectorStore(embed)


def test_a_hybrid_search_counts_words_that_are_shared(store):
    query = "ships in the green sea"
    near = np.argsort(-cosines(query, TEXTS), kind="stable").tolist()
    sharing = [2, 4, 3]  # three words, one rare one in a short text, one common one
    score = {place: 1 / (61 + near.index(place)) for place in near}
    for rank, place in enumerate(sharing):
        score[place] += 1 / (61 + rank)
    expected = sorted(score, key=lambda place: -score[place])
    assert places(store.similarity_search(query, k=6, hybrid=True)) == expected
    assert places(store.as_retriever(search_kwargs={"k": 2, "hybrid": True}).invoke(query)) == expected[:2]
    few = store.similarity_search(query, k=6, hybrid=True, filter={"first": "a"})
    assert places(few) == [place for place in near if place in (0, 1, 5)]
