"""The document store for Haystack: its standard tests, and a pipeline that is written down and read again."""

import os
from inspect import signature

import numpy as np
import pytest

os.environ.setdefault("HAYSTACK_TELEMETRY_ENABLED", "False")  # before the import

from haystack import Document, Pipeline
from haystack.document_stores.errors import DuplicateDocumentError
from haystack.document_stores.types import DuplicatePolicy
from haystack.testing.document_store import DocumentStoreBaseTests

from autojacobin import DataError
from autojacobin.integrations.haystack import AutoJacobinDocumentStore, AutoJacobinEmbeddingRetriever
from tests.integrations.embedding import cosines, embed

TEXTS = ["The Fox and the Grapes", "The Tortoise and the Hare", "The Wolf and the Fox", "The Crow and the Pitcher"]


def vector(text):
    return embed([text])[0].tolist()


class Embedding(AutoJacobinDocumentStore):
    """The standard tests write documents without embeddings, some of them with random ones of another length."""

    def write_documents(self, documents, policy=DuplicatePolicy.NONE):
        if isinstance(documents, list):
            documents = [
                Document(id=one.id, content=one.content, meta=one.meta, embedding=vector(one.content or "none"))
                if isinstance(one, Document)
                else one
                for one in documents
            ]
        return super().write_documents(documents, policy)


class TestStandard(DocumentStoreBaseTests):
    @pytest.fixture(params=["memory", "folder"])
    def document_store(self, request, tmp_path):
        store = Embedding(None if request.param == "memory" else tmp_path / "store")
        yield store
        store.close()

    @staticmethod
    def assert_documents_are_equal(received, expected):
        def seen(documents):
            return sorted((one.id, one.content, repr(sorted(one.meta.items()))) for one in documents)

        assert seen(received) == seen(expected)

    def test_write_documents(self, document_store):
        documents = [Document(content=text) for text in TEXTS]
        assert document_store.write_documents(documents) == 4
        with pytest.raises(DuplicateDocumentError, match="with the id"):
            document_store.write_documents(documents[:1])
        self.assert_documents_are_equal(document_store.filter_documents(), documents)


def documents():
    return [
        Document(id=str(number), content=text, meta={"number": number}, embedding=vector(text))
        for number, text in enumerate(TEXTS)
    ]


def test_a_pipeline_finds_what_is_most_similar_and_can_be_read_again(tmp_path):
    store = AutoJacobinDocumentStore(tmp_path / "store", columns={"number": int})
    assert store.write_documents(documents()) == 4
    pipeline = Pipeline()
    pipeline.add_component("retriever", AutoJacobinEmbeddingRetriever(store, top_k=3))
    query = vector("grapes and foxes")
    expected = cosines("grapes and foxes", TEXTS)
    for step in ("first", "again"):
        if step == "again":
            text = pipeline.dumps()
            store.close()
            modules = {"allowed_modules": [AutoJacobinDocumentStore.__module__]}  # versions before 3 take all
            pipeline = Pipeline.loads(
                text, **(modules if "allowed_modules" in signature(Pipeline.loads).parameters else {})
            )
        found = pipeline.run({"retriever": {"query_embedding": query}})["retriever"]["documents"]
        assert [one.content for one in found] == [TEXTS[place] for place in np.argsort(-expected)[:3]]
        assert [one.score for one in found] == pytest.approx(-np.sort(-expected)[:3], abs=1e-5)
    few = {"field": "meta.number", "operator": "in", "value": [1, 3]}
    given = {"query_embedding": query, "filters": few, "top_k": 1}
    found = pipeline.run({"retriever": given})["retriever"]["documents"]
    assert found[0].meta == {"number": max((1, 3), key=lambda number: expected[number])}


def test_a_document_without_an_embedding_and_another_store_are_named():
    with pytest.raises(DataError, match="the document '7' has no embedding; run an embedder"):
        AutoJacobinDocumentStore().write_documents([Document(id="7", content="text")])
    with pytest.raises(DataError, match="must be an AutoJacobinDocumentStore, got str"):
        AutoJacobinEmbeddingRetriever("store")
