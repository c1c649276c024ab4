"""The document store for Haystack: its standard tests, and a pipeline that is written down and read again."""

import os
from inspect import signature

import numpy as np
import pytest

os.environ.setdefault("HAYSTACK_TELEMETRY_ENABLED", "False")  # before the import

from haystack import Document, Pipeline
from haystack.document_stores.errors import DuplicateDocumentError
from haystack.document_stores.in_memory import InMemoryDocumentStore
from haystack.document_stores.types import DuplicatePolicy
from haystack.testing.document_store import DocumentStoreBaseTests
from hypothesis import given
from hypothesis import strategies as st

from autojacobin import DataError
from autojacobin.integrations.haystack import AutoJacobinDocumentStore, AutoJacobinEmbeddingRetriever
from autojacobin.integrations.text_store import TextStore
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


@given(
    st.lists(
        st.tuples(st.sampled_from(list(DuplicatePolicy)), st.lists(st.sampled_from("abc"), max_size=4)),
        max_size=4,
    )
)
def test_duplicates_are_treated_as_by_the_store_of_haystack(calls):
    ours, theirs = AutoJacobinDocumentStore(), InMemoryDocumentStore()
    for number, (policy, ids) in enumerate(calls):
        given = [
            Document(id=id, content=f"{number} {place}", embedding=[1.0, number, place]) for place, id in enumerate(ids)
        ]
        before = theirs.filter_documents()
        try:
            expected = theirs.write_documents(given, policy)
        except DuplicateDocumentError:
            with pytest.raises(DuplicateDocumentError, match="a document with the id '[abc]' exists"):
                ours.write_documents(given, policy)
            theirs = InMemoryDocumentStore()  # it has written those before the first duplicate
            theirs.write_documents(before)
        else:
            assert ours.write_documents(given, policy) == expected
        contents = [{one.id: one.content for one in store.filter_documents()} for store in (ours, theirs)]
        assert contents[0] == contents[1]


@pytest.mark.parametrize("policy", list(DuplicatePolicy))
def test_a_document_that_another_thread_writes_meanwhile_is_a_duplicate_too(policy, monkeypatch):
    store, add = AutoJacobinDocumentStore(), TextStore.add
    store.write_documents(documents()[:1])

    def written_meanwhile(self, *arguments, **options):
        monkeypatch.setattr(TextStore, "add", add)
        other = Document(id="1", content="other", embedding=vector("other"))
        store.write_documents([other])
        return add(self, *arguments, **options)

    monkeypatch.setattr(TextStore, "add", written_meanwhile)
    if policy in (DuplicatePolicy.SKIP, DuplicatePolicy.OVERWRITE):
        assert store.write_documents(documents()[1:], policy) == {DuplicatePolicy.SKIP: 2}.get(policy, 3)
    else:
        with pytest.raises(DuplicateDocumentError, match="the id '1' exists"):
            store.write_documents(documents()[1:], policy)
    expected = {
        DuplicatePolicy.SKIP: [TEXTS[0], "other", *TEXTS[2:]], DuplicatePolicy.OVERWRITE: TEXTS
    }.get(policy, [TEXTS[0], "other"])  # fmt: skip
    assert sorted(one.content for one in store.filter_documents()) == sorted(expected)


def test_a_document_without_an_embedding_and_another_store_are_named():
    with pytest.raises(DataError, match="the document '7' has no embedding; run an embedder"):
        AutoJacobinDocumentStore().write_documents([Document(id="7", content="text")])
    with pytest.raises(DataError, match="must be an AutoJacobinDocumentStore, got str"):
        AutoJacobinEmbeddingRetriever("store")
