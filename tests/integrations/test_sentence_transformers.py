"""Search by text, with objects that have the methods of a SentenceTransformer."""

import sys
import types

import numpy as np
import pytest

from autojacobin import DataError, MissingExtraError
from autojacobin.integrations.sentence_transformers import SentenceIndex
from tests.integrations.embedding import Model, cosines, embed

TEXTS = ["a red house", "a green garden", "the blue sea", "houses by the sea", "gardens of stone"]


def test_texts_are_found_by_text():
    index = SentenceIndex(Model())
    ids = index.add(TEXTS, [{"words": len(text.split())} for text in TEXTS])
    similarities = cosines("red houses", TEXTS)
    best = np.argsort(-similarities)[:3]
    hits = index.search("red houses", k=3)
    assert [(hit.id, hit.text) for hit in hits] == [(ids[place], TEXTS[place]) for place in best]
    np.testing.assert_allclose([hit.similarity for hit in hits], similarities[best], atol=1e-5)
    several = index.search(["red houses", "sea"], k=3)
    assert several == [hits, index.search("sea", 3)]
    assert index.search([]) == []
    assert {hit.text for hit in index.search("red", filter={"words": 4})} == {"houses by the sea"}


def test_texts_can_be_removed_read_and_kept_in_a_folder(tmp_path):
    index = SentenceIndex(Model(), tmp_path / "texts")
    index.add(TEXTS, ids=list("abcde"))
    index.remove(["a", "unknown"])
    index.save(tmp_path / "copy")
    index.close()
    for path in (tmp_path / "texts", tmp_path / "copy"):
        again = SentenceIndex(Model(), path)
        assert len(again) == len(again.index) == 4
        assert [hit.text for hit in again.get(["b", "a"])] == ["a green garden"]
        assert again.search("a red house", k=1)[0].id != "a"


def test_vectors_are_cut_to_the_wanted_length():
    index = SentenceIndex(Model(), truncate_dim=16)
    index.add(TEXTS)
    assert index.index.hasher.n_features_in_ == 16
    cut = embed([*TEXTS, "sea garden"])[:, :16].astype(np.float64)
    cut /= np.linalg.norm(cut, axis=1, keepdims=True)
    best = np.argsort(-(cut[:-1] @ cut[-1]))
    assert [hit.text for hit in index.search("sea garden")] == [TEXTS[place] for place in best]
    with pytest.raises(DataError, match="truncate_dim must be at most the length of the vectors, got 100"):
        SentenceIndex(Model(), truncate_dim=100).add(TEXTS)
    with pytest.raises(DataError, match="truncate_dim must be an integer of at least 1, got 0"):
        SentenceIndex(Model(), truncate_dim=0)


def test_a_model_may_encode_documents_and_queries_in_its_own_way():
    class Retriever(Model):
        def encode_document(self, texts):
            return embed([text.removeprefix("passage: ") for text in texts])

        def encode_query(self, texts):
            return embed([TEXTS[int(text)] for text in texts])

    index = SentenceIndex(Retriever())
    index.add([f"passage: {text}" for text in TEXTS])
    assert [index.search(str(place), k=1)[0].text for place in range(5)] == [f"passage: {text}" for text in TEXTS]


def test_what_is_no_model_or_no_list_is_an_error():
    with pytest.raises(DataError, match="model must have a method encode"):
        SentenceIndex(7)
    with pytest.raises(DataError, match="texts must be a list of strings, got the string 'one text'"):
        SentenceIndex(Model()).add("one text")


def test_a_model_can_be_given_by_its_name(monkeypatch):
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(MissingExtraError, match="pip install 'autojacobin.sentence-transformers.'"):
        SentenceIndex("all-MiniLM-L6-v2")
    loaded = []
    package = types.SimpleNamespace(SentenceTransformer=lambda name: loaded.append(name) or Model())
    monkeypatch.setitem(sys.modules, "sentence_transformers", package)
    assert SentenceIndex("all-MiniLM-L6-v2").add(TEXTS, ids=list("abcde")) == list("abcde")
    assert loaded == ["all-MiniLM-L6-v2"]
