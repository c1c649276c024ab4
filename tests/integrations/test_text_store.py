"""The store that all frameworks share, compared with plain computation."""

import json
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autojacobin import ITQ, LSH, BinaryAutoencoder, DataError, Index
from autojacobin.integrations.sentence_transformers import SentenceIndex
from autojacobin.integrations.text_store import TextStore
from autojacobin.integrations.words import Words, words_of
from tests.integrations.embedding import Model, cosines, embed

WORDS = ["red", "green", "blue", "yellow", "cat", "dog", "horse", "mouse", "paris", "rome"]
TEXTS = [f"{first} {second}" for first in WORDS for second in WORDS]
METADATAS = [
    {"length": len(text), "first": text.split()[0], "second": text.split()[1], "even": number % 2 == 0}
    | ({"rare": number / 2} if number % 7 == 3 else {})
    for number, text in enumerate(TEXTS)
]
IDS = [f"text {number}" for number in range(len(TEXTS))]


def filled(path=None, **parameters):
    store = TextStore(path, **parameters)
    assert store.add(TEXTS, embed(TEXTS), METADATAS, IDS) == IDS
    return store


def expected(query, k, keep=lambda metadata: True):
    similarities = cosines(query, TEXTS)
    places = [place for place in np.argsort(-similarities, kind="stable") if keep(METADATAS[place])][:k]
    return [IDS[place] for place in places], similarities[places]


@pytest.mark.parametrize("query", ["blue horses", "dogs of rome", "x"])
def test_a_search_gives_the_most_similar_with_their_cosines(query):
    found = filled().search(embed([query]), 7)[0]
    ids, similarities = expected(query, 7)
    assert [text.id for text in found] == ids
    np.testing.assert_allclose([text.similarity for text in found], similarities, atol=1e-5)
    assert [(text.text, text.metadata) for text in found] == [
        (TEXTS[IDS.index(id)], METADATAS[IDS.index(id)]) for id in ids
    ]


def test_the_length_of_a_vector_does_not_matter():
    store = TextStore()
    store.add(TEXTS, embed(TEXTS) * np.linspace(0.01, 100, len(TEXTS))[:, None], ids=IDS)
    assert [text.id for text in store.search(1e-3 * embed(["green mouse"]), 5)[0]] == expected("green mouse", 5)[0]


FILTERS = [
    ({"first": "cat"}, lambda metadata: metadata["first"] == "cat"),
    ({"first": "cat", "even": True}, lambda metadata: metadata["first"] == "cat" and metadata["even"]),
    (lambda text: text.metadata["length"] > 9, lambda metadata: metadata["length"] > 9),
    ("first = 'rome'", lambda metadata: metadata["first"] == "rome"),
    ({"first": "nothing"}, lambda metadata: False),
    ({"length": {"$gt": 8}}, lambda metadata: metadata["length"] > 8),
    ({"length": {"$gte": 8, "$lt": 9.5}}, lambda metadata: 8 <= metadata["length"] < 9.5),
    ({"first": {"$in": ["cat", "dog"]}}, lambda metadata: metadata["first"] in ("cat", "dog")),
    (
        {"$or": [{"first": "cat"}, {"$not": {"first": {"$nin": ["dog"]}}, "even": {"$ne": True}}]},
        lambda metadata: metadata["first"] == "cat" or (metadata["first"] == "dog" and not metadata["even"]),
    ),
    ({"rare": {"$exists": True}}, lambda metadata: "rare" in metadata),
    ({"rare": None}, lambda metadata: "rare" not in metadata),
    ({"rare": {"$ne": 1.5}}, lambda metadata: metadata.get("rare") != 1.5),
    (
        "rare > 1 and length between 6 and 8 or first ilike 'R%'",
        lambda metadata: (
            (metadata.get("rare", 0) > 1 and 6 <= metadata["length"] <= 8) or metadata["first"].startswith(("r", "R"))
        ),
    ),
    ("text like '%mouse'", lambda metadata: metadata["second"] == "mouse"),
    ({}, lambda metadata: True),
]


@pytest.mark.parametrize("columns", [None, {"first": str, "even": bool, "rare": float}])
@pytest.mark.parametrize("number", range(len(FILTERS)))
def test_a_filter_leaves_those_for_which_it_holds(columns, number):
    filter, keep = FILTERS[number]
    store = filled(columns=columns)
    assert [text.id for text in store.search(embed(["a dog"]), 30, filter)[0]] == expected("a dog", 30, keep)[0]
    if filter:
        assert store.matching(filter) == [id for id, metadata in zip(IDS, METADATAS, strict=True) if keep(metadata)]


def test_columns_are_written_as_sql_and_kept_in_the_folder(tmp_path):
    filled(tmp_path / "store", columns={"length": int, "first": str}).close()
    store = TextStore(tmp_path / "store")
    found = store.search(embed(["a dog"]), 30, "length < 9 and first = 'dog'")[0]
    assert [text.id for text in found] == expected("a dog", 30, lambda m: m["length"] < 9 and m["first"] == "dog")[0]
    with pytest.raises(DataError, match="has the columns length .int64., first .string., got year .int64."):
        TextStore(tmp_path / "store", columns={"year": int})


def test_a_folder_holds_what_was_added_and_removed(tmp_path):
    store = filled(tmp_path / "store")
    store.remove([*IDS[10:], "unknown"])
    store.close()
    again = TextStore(tmp_path / "store")
    assert len(again) == 10
    assert [text.text for text in again.get([IDS[3], "unknown", IDS[0], IDS[50]])] == [TEXTS[3], TEXTS[0]]
    again.add(["new"], embed(["new"]))
    assert again.search(embed(["new"]), 1)[0][0].text == "new"


def test_save_writes_a_store_from_memory(tmp_path):
    store = filled()
    store.save(tmp_path / "copy")
    found, copied = (one.search(embed(["yellow"]), 5) for one in (store, TextStore(tmp_path / "copy")))
    assert found == copied
    with pytest.raises(DataError, match="this store is empty"):
        TextStore().save(tmp_path / "other")


def test_a_folder_with_an_index_of_something_else_is_refused(tmp_path):
    with Index.create(tmp_path / "plain", LSH(8).fit(embed(TEXTS))) as plain:
        plain.add(embed(TEXTS))
    with pytest.raises(DataError, match="holds no texts"):
        TextStore(tmp_path / "plain")
    filled(tmp_path / "store").close()
    with pytest.raises(DataError, match="have 256 bits, got a hasher of 8"):
        TextStore(tmp_path / "store", hasher=LSH(8))


def test_the_call_that_made_a_store_opens_it_again(tmp_path):
    for run in range(3):
        store = TextStore(tmp_path / "store", hasher=ITQ(8), columns={"length": int})
        assert len(store) == (100 if run else 0)
        store.add(TEXTS, embed(TEXTS), METADATAS, IDS)
        store.close()


def test_a_store_that_was_emptied_is_opened_again(tmp_path):
    for _ in range(2):
        store = filled(tmp_path / "store", columns={"length": int})
        store.remove(IDS)
        assert store.search(embed(["a"]), 3) == [[]]
        store.close()
        again = TextStore(tmp_path / "store", columns={"length": int})
        assert (len(again), again.search(embed(["a"]), 3), again.matching("length > 0")) == (0, [[]], [])
        again.close()


def test_a_store_whose_first_addition_failed_is_opened_again(tmp_path):
    store = TextStore(tmp_path / "store")
    with pytest.raises(DataError, match="ids must not be empty"):
        store.add(["a"], [[1.0, 0.0]], ids=[""])
    store.close()
    again = TextStore(tmp_path / "store")
    again.add(["a"], [[1.0, 0.0]], ids=["a"])
    assert again.get(["a"])[0].text == "a"


def test_vectors_are_kept_as_float32_of_length_one():
    store = TextStore()
    store.add(["a"], [[3.0, 4.0]], ids=["a"])
    vectors = store.vectors(["a"])
    assert vectors.dtype == np.float32
    np.testing.assert_array_equal(vectors, np.array([[0.6, 0.8]], dtype=np.float32))


def test_many_ids_are_read_and_removed_at_once():
    vectors = np.random.default_rng(0).normal(size=(2500, 8))
    ids = [str(number) for number in range(2500)]
    store = TextStore()
    store.add(ids, vectors, ids=ids)
    assert [text.text for text in store.get([*ids[::-1], "unknown"])] == ids[::-1]
    store.remove([*ids[5:], "unknown"])
    assert list(store.index.ids) == ids[:5]


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("add"), st.lists(st.tuples(st.sampled_from("abcdef"), st.text("xyz ", max_size=5)))),
            st.tuples(st.just("remove"), st.lists(st.sampled_from("abcdefgh"))),
        ),
        max_size=8,
    )
)
def test_the_store_is_a_dict_of_texts(changes):
    store, model = TextStore(), {}
    for kind, content in changes:
        if kind == "add":
            texts = [f"text {text}" for _, text in content]
            store.add(texts, embed(texts) if texts else [], ids=[id for id, _ in content])
            model.update(zip([id for id, _ in content], texts, strict=True))
        else:
            store.remove(content)
            for id in content:
                model.pop(id, None)
        assert len(store) == len(model)
        assert {text.id: text.text for text in store.get("abcdefgh")} == model
        found = store.search(embed(["text"]), 10)[0]
        assert {text.id: text.text for text in found} == model


def _nested(depth):
    value = 1
    for _ in range(depth):
        value = [value]
    return value


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@given(st.text(), st.dictionaries(st.text(max_size=5), JSON, max_size=4))
def test_text_and_metadata_come_back(text, metadata):
    store = TextStore()
    try:
        json.dumps([text, metadata], ensure_ascii=False).encode()
    except UnicodeEncodeError:
        with pytest.raises(DataError):
            store.add([text], [[1.0, 2.0]], [metadata], ["a"])
    else:
        store.add([text], [[1.0, 2.0]], [metadata], ["a"])
        assert store.get(["a"]) == [("a", text, metadata, None)]


def test_the_hasher_is_the_one_given_or_one_that_suits_the_number_of_vectors():
    vectors = np.random.default_rng(0).normal(size=(3000, 32)).astype(np.float32)
    texts = [""] * 3000
    few, many, own, fitted = TextStore(), TextStore(), TextStore(hasher=ITQ(16)), ITQ(8).fit(vectors)
    few.add(texts[:5], vectors[:5])
    many.add(texts, vectors)
    own.add(texts[:300], vectors[:300])
    given_fitted = TextStore(hasher=fitted)
    given_fitted.add(texts[:5], vectors[:5])
    names = [(type(s.index.hasher).__name__, s.index.hasher.n_bits) for s in (few, many, own, given_fitted)]
    assert names == [("LSH", 256), ("ITQ", 32), ("ITQ", 16), ("ITQ", 8)]


def test_a_large_store_finds_the_wanted_share_with_fewer_candidates():
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(6000, 8)) @ rng.normal(size=(8, 32)) + 0.1 * rng.normal(size=(6000, 32))
    store = TextStore()
    store.add([""] * 6000, vectors, ids=[str(number) for number in range(6000)])
    queries = vectors[:100] + 0.1 * rng.normal(size=(100, 32))
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    truth = np.argsort(-(queries @ unit.T), axis=1)[:, :10]
    found = [{int(text.id) for text in row} for row in store.search(queries, 10)]
    assert np.mean([len(row & set(true)) / 10 for row, true in zip(found, truth, strict=True)]) > 0.9


@pytest.mark.parametrize("hasher", [BinaryAutoencoder(16, random_state=0), LSH(16, random_state=0)])
def test_inverted_lists_are_made_if_wanted(hasher):
    vectors = np.random.default_rng(0).normal(size=(400, 16)).astype(np.float32)
    store = TextStore(hasher=hasher, partitions=4)
    store.add([""] * 400, vectors, ids=[str(number) for number in range(400)])
    assert store.index.info()["lists"] == 4
    assert [row[0].id for row in store.search(vectors[:20], 1)] == [str(number) for number in range(20)]


def test_many_small_additions_are_joined():
    store = TextStore()
    for number in range(100):
        store.add([TEXTS[number]], embed(TEXTS[number : number + 1]), ids=[IDS[number]])
    assert store.index.info()["segments"] <= 33
    assert [text.id for text in store.search(embed(["horse cat"]), 9)[0]] == expected("horse cat", 9)[0]


def test_an_empty_store_finds_nothing():
    store = TextStore()
    assert (len(store), store.index, store.get(["a"]), store.matching({"a": 1})) == (0, None, [], [])
    assert store.search(np.ones((2, 3)), 5, {"a": 1}) == [[], []]
    store.remove(["a"])
    assert store.add([], []) == []
    store.add(["a"], [[1.0, 0.0]], ids=["a"])
    store.remove(["a"])
    assert store.search([[1.0, 0.0]], 5) == [[]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((["a"], [[0.0, 0.0]]), "the vector in row 0 is zero, so it has no direction"),
        ((["a"], [[1.0, np.nan]]), "NaN"),
        ((["a", "b"], [[1.0, 0.0]]), "one of vectors for each of the 2 texts, got 1"),
        ((["a"], [[1.0, 0.0]], [{}, {}]), "one of metadatas for each of the 1 texts, got 2"),
        ((["a"], [[1.0, 0.0]], None, []), "one of ids for each of the 1 texts, got 0"),
        ((["a"], [[1.0, 0.0]], [{"when": {1, 2}}], ["x"]), "the metadata of 'x' cannot be written as JSON"),
        *[
            ((["a"], [[1.0, 0.0]], [{"deep": _nested(depth)}], ["x"]), "the metadata of 'x' .* 32 lists and objects")
            for depth in (33, 990, 20_000)
        ],
        ((["a"], [[1.0, 0.0]], [{"year": "MMXX"}]), "the values of 'year' must be int64"),
        (([7], [[1.0, 0.0]]), "the values of 'text' must be string"),
        ((["a"], [[1.0, 0.0]], None, [""]), "ids must not be empty"),
    ],
)
def test_what_cannot_be_added_is_an_error_that_changes_nothing(tmp_path, arguments, message):
    for store in (TextStore(columns={"year": int}), TextStore(tmp_path / "store", columns={"year": int})):
        with pytest.raises(DataError, match=message):
            store.add(*arguments)
        assert len(store) == 0
        store.add(["b"], [[1.0, 0.0]], [{"year": 2020}], ["b"])
        with pytest.raises(DataError, match=message):
            store.add(*arguments)
        assert [text.text for text in store.search([[1.0, 0.1]], 2)[0]] == ["b"]


@pytest.mark.parametrize(
    ("search", "message"),
    [
        (lambda store: store.search([[1.0, 0.0]], 0), "k must be an integer of at least 1, got 0"),
        (lambda store: store.search([[0.0, 0.0]], 1), "the vector in row 0 is zero, so it has no direction"),
        (lambda store: store.search([[1.0, 0.0]], 1, ["a"]), "filter must be a dict, .* got list"),
        (lambda store: store.search([[1.0, 0.0]], 1, "price < 3"), "names the field 'price', which no text has"),
        (lambda store: store.search([[1.0, 0.0]], 1, ""), "where must be a condition of 1 to 10,000 characters"),
        (lambda store: store.search([[1.0, 0.0, 2.0]], 1), "features"),
        (lambda store: TextStore(columns={"text": str}), "the column 'text' is there already"),
        (lambda store: TextStore(recall=2), "recall"),
        (lambda store: TextStore(columns={"a": list}), "a column must be str, int, float or bool"),
        (lambda store: TextStore(hasher="itq").add(["a"], [[1.0, 0.0]]), "hasher must be a hasher, got str"),
    ],
)
def test_what_cannot_be_searched_is_an_error(search, message):
    store = TextStore()
    store.add(["b"], [[1.0, 0.0]])
    with pytest.raises(DataError, match=message):
        search(store)


@pytest.mark.parametrize("columns", [None, {"length": int, "first": str}])
@pytest.mark.parametrize(
    ("filter", "message"),
    [
        ({"nothing": 3}, "names the field 'nothing', which no text has; the fields are even, first, length"),
        ({"nothing": {"$gt": 2990}}, "names the field 'nothing'"),
        ("nothing = 3", "names the field 'nothing'"),
        ({"length": {"$gt": "x"}}, "the column 'length' .int64. with the text 'x', expected a number"),
        ({"length": "x"}, "expected a number"),
        ({"first": {"$lt": 3}}, "the column 'first' .string. with a number, expected text"),
        ({"first": {"$regex": "x"}}, "asks for '.regex' 'x', expected .eq, .ne"),
        ({"first": {"$in": "cat"}}, "asks for '.in' 'cat'"),
        ({"first": {}}, "has 'first' where the name of a field with a value is expected"),
        ({"$nor": [{"first": "cat"}]}, "has '.nor' where the name of a field"),
        ({"$and": {"first": "cat"}}, "has .and with .*, expected a list of dicts"),
        ({"$not": 3}, "has 3, expected a dict with fields or operators"),
        ({"length": float("nan")}, "compares with nan, expected text, a finite number"),
        ({"length": [1, 2]}, r"compares with \[1, 2\]"),
        ({"first": "\ud800"}, "cannot be computed"),
        ("length <", "cannot be read at its end: a condition compares columns with"),
    ],
)
def test_a_wrong_filter_is_one_sentence(columns, filter, message):
    store = filled(columns=columns)
    for call in (lambda: store.search(embed(["a"]), 3, filter), lambda: store.matching(filter)):
        with pytest.raises(DataError, match=message) as caught:
            call()
        assert "\n" not in str(caught.value)


def test_a_filter_with_dicts_in_dicts_has_a_limit():
    filter = {"first": "cat"}
    for _ in range(2_000):
        filter = {"$not": filter}
    with pytest.raises(DataError, match="has more than 50 dicts in each other"):
        filled().matching(filter)


def test_a_field_with_values_of_several_types_is_for_a_function():
    store = TextStore()
    store.add(["a", "b"], [[1.0, 0.0], [0.0, 1.0]], [{"page": 1}, {"page": "iv"}], ["a", "b"])
    with pytest.raises(DataError, match="compares 'page', which has several types; pass a function"):
        store.matching({"page": 1})
    assert store.matching(lambda text: text.metadata["page"] == 1) == ["a"]


def test_a_search_is_among_some_ids_that_meet_a_filter():
    store = filled(columns={"length": int})
    for filter in ("length > 8", "length > 8 and even", lambda text: text.metadata["length"] > 8):
        found = {text.id for text in store.search(embed(["a dog"]), 100, filter, IDS[:40])[0]}
        assert found == set(store.matching(filter)) & set(IDS[:40])


def test_a_dict_speaks_of_metadata_even_if_a_column_has_the_name():
    store = TextStore()
    store.add(["a", "b"], [[1.0, 0.0], [0.0, 1.0]], [{"text": "x", "metadata": 1}, {"text": "a"}], ["a", "b"])
    assert store.matching({"text": "a"}) == ["b"]
    assert store.matching({"metadata": 1}) == ["a"]
    assert store.matching("text = 'a'") == ["a"]


FABLES = [
    "The fox and the grapes", "The tortoise and the hare run a long race", "The wolf and the fox", "A crow",
    "The crow, the fox and the cheese", "The lion, the ass and the fox went hunting",
    "Grapes, sour grapes said the fox",
]  # fmt: skip


def by_words(query, texts):
    """Places of the texts that share words with a query, the best first, by BM25 as Lucene has it."""
    words = [re.findall(r"\w+", text.lower()) for text in texts]
    mean = np.mean([len(some) for some in words])
    scores = np.zeros(len(texts))
    for word in re.findall(r"\w+", query.lower()):
        counts = np.array([some.count(word) for some in words])
        weight = np.log(1 + (len(texts) - np.count_nonzero(counts) + 0.5) / (np.count_nonzero(counts) + 0.5))
        scores += weight * counts / (counts + 1.5 * (0.25 + 0.75 * np.array([len(some) for some in words]) / mean))
    return [place for place in np.argsort(-scores, kind="stable") if scores[place] > 0]


def fused(query, texts, places):
    near = [place for place in np.argsort(-cosines(query, texts), kind="stable") if place in places]
    sharing = [place for place in by_words(query, texts) if place in places]
    score = {place: 1 / (61 + near.index(place)) for place in near}
    for rank, place in enumerate(sharing):
        score[place] += 1 / (61 + rank)
    return sorted(score, key=lambda place: -score[place])


@pytest.mark.parametrize("query", ["sour grapes", "lion hunting", "nothing of it", "a race of cheese"])
def test_a_hybrid_search_fuses_the_ranks_by_vectors_and_by_words(query):
    store = TextStore()
    store.add(FABLES[:4], embed(FABLES[:4]), [{"n": place} for place in range(4)], list("0123"))
    store.search(embed([query]), 3, words=[query])
    store.add(FABLES[4:], embed(FABLES[4:]), [{"n": place} for place in range(4, 7)], list("456"))
    found = store.search(embed([query]), 5, words=[query])[0]
    assert [int(text.id) for text in found] == fused(query, FABLES, range(7))[:5]
    np.testing.assert_allclose(
        [text.similarity for text in found], cosines(query, FABLES)[[int(text.id) for text in found]], atol=1e-5
    )
    few = store.search(embed([query]), 5, {"n": {"$gt": 2}}, among=list("12456"), words=[query])[0]
    assert [int(text.id) for text in few] == fused(query, FABLES, {4, 5, 6})
    store.remove(list("0123456"))
    assert store.search(embed([query]), 5, words=[query]) == [[]]


@pytest.mark.parametrize("texts", [FABLES, ["?", "", "!?", "€", "…", "--", "."]])
@pytest.mark.parametrize("query", ["", "?", "€", "猫", "7 €", "\u0301"])
def test_where_no_word_is_found_a_hybrid_search_ranks_by_vectors(texts, query):
    store = TextStore()
    vectors = np.random.default_rng(0).normal(size=(8, 6))
    store.add(texts, vectors[:7], ids=list("0123456"))
    by_vectors = [text.id for text in store.search(vectors[7:], 4)[0]]
    assert [text.id for text in store.search(vectors[7:], 4, words=[query])[0]] == by_vectors


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("C", "The language C"), ("5 €", "It costs 5 dollars"), ("猫", "東京に猫がいる"), ("東京", "東京に猫がいる"),
        ("ネコ", "ﾈｺ!"), ("แมว", "ฉันรักแมวมาก"), ("हिन्दी", "वह हिन्दी बोलता है"), ("한국어", "한국어 문서"),
        ("STRASSE", "Die Straße"), ("cafe\u0301", "Ein Café"), ("ཡོད", "བོད་ཡོད་"),
    ],
)  # fmt: skip
def test_words_of_one_letter_and_of_all_languages_are_found(query, text):
    store = TextStore()
    store.add([*FABLES, text], [*np.eye(7, 8), -np.eye(8)[0]], ids=list("01234567"))
    assert [text.id for text in store.search(np.eye(1, 8) + 0.1, 1, words=[query])[0]] == ["7"]


def test_of_languages_without_spaces_neighbours_count_too():
    words = Words(["都と京と東", "東京と都", "東京都"])
    assert words.sharing("東京都").tolist() == [2, 1, 0]
    assert words_of("東京は、Tokyo 2020") == ["東", "京", "は", "東京", "京は", "tokyo", "2020"]


@given(st.text(), st.text())
def test_a_text_shares_the_words_of_its_parts(first, second):
    assert set(words_of(first)) | set(words_of(second)) <= set(words_of(f"{first} {second}"))
    assert Words([first, ""]).sharing(f"{first} {second}").tolist() == [0] * bool(words_of(first))


@pytest.mark.parametrize("words", [[], ["a", "b"], "a"])
def test_there_is_a_text_for_each_query_of_a_hybrid_search(words):
    with pytest.raises(DataError, match="words must have the text of each of the 1 queries"):
        filled().search(embed(["a"]), 3, words=words)


def test_words_belong_to_a_state_of_the_index(tmp_path, monkeypatch):
    """While words are collected for a search, texts come and go."""
    import bm25s

    store = TextStore(tmp_path / "store")
    store.add(["the fox", "the crow"], np.eye(2, 3), ids=["fox", "crow"])
    collect = bm25s.BM25.index

    def changed_meanwhile(self, *arguments, **options):
        monkeypatch.setattr(bm25s.BM25, "index", collect)
        store.remove(["fox"])
        store.add(["the wolf"], np.eye(3)[2:], ids=["wolf"])
        collect(self, *arguments, **options)

    monkeypatch.setattr(bm25s.BM25, "index", changed_meanwhile)
    assert {text.id for text in store.search(np.eye(1, 3), 3, words=["fox"])[0]} == {"fox", "crow"}
    for word in ("fox", "wolf"):
        assert {text.id for text in store.search(np.eye(1, 3), 3, words=[word])[0]} == {"wolf", "crow"}
    assert store.search(np.eye(1, 3) + 0.1, 1, words=["wolf"])[0][0].id == "wolf"


def test_a_reading_store_has_the_words_of_the_state_that_it_reads(tmp_path):
    writer = TextStore(tmp_path / "store")
    writer.add(["the fox", "the crow"], np.eye(2, 3), ids=["fox", "crow"])
    reader = TextStore(tmp_path / "store")
    assert reader.search(np.eye(1, 3) + 0.1, 1, words=["fox"])[0][0].id == "fox"
    writer.remove(["fox"])
    writer.add(["the wolf"], np.eye(3)[2:], ids=["wolf"])
    assert reader.search(np.eye(1, 3) + 0.1, 1, words=["fox"])[0][0].id == "fox"
    reader.index.refresh()
    for word in ("fox", "wolf"):
        assert {text.id for text in reader.search(np.eye(1, 3), 3, words=[word])[0]} == {"wolf", "crow"}


@pytest.mark.parametrize(
    ("before", "read"),
    [
        ("get", lambda store: [text.id for text in store.get(["fox", "crow"])]),
        ("get", lambda store: [text.id for text in store.search(np.eye(1, 2), 2, {"n": {"$lt": 9}})[0]]),
        ("get", lambda store: [text.id for text in store.search(np.eye(1, 2), 2, lambda text: True)[0]]),
        ("get", lambda store: store.matching("n < 9")),
        ("vectors", lambda store: [text.id for text in store.search(np.eye(1, 2), 2, words=["fox"])[0]]),
    ],
)  # fmt: skip
def test_what_a_call_reads_is_one_state(before, read, monkeypatch):
    """Another thread removes a text between what a call looks up and what it then reads."""
    store = TextStore()
    store.add(["the fox", "the crow"], np.eye(2), [{"n": 1}, {"n": 2}], ["fox", "crow"])
    method = getattr(Index, before)

    def removed_meanwhile(self, *arguments, **options):
        store.index.remove(["fox"], missing_ok=True)
        return method(self, *arguments, **options)

    monkeypatch.setattr(Index, before, removed_meanwhile)
    assert read(store) == ["fox", "crow"]
    assert read(store) == ["crow"]


def test_what_another_thread_has_removed_meanwhile_does_not_matter(monkeypatch):
    store, remove = filled(), Index.remove

    def removed_meanwhile(self, ids, **options):
        remove(self, ids[:2])
        remove(self, ids, **options)

    monkeypatch.setattr(Index, "remove", removed_meanwhile)
    store.remove(IDS[:5])
    assert store.ids == IDS[5:]


def test_a_store_that_was_emptied_keeps_its_columns(tmp_path):
    store = filled(tmp_path / "store", columns={"length": int, "first": str})
    store.remove(IDS)
    store.save(tmp_path / "copy")
    store.close()
    for path in (tmp_path / "store", tmp_path / "copy"):
        with pytest.raises(DataError, match="has the columns length .int64., first .string., got year .int64."):
            TextStore(path, columns={"year": int})
        again = TextStore(path)
        again.index.compact()
        assert again.search(embed(["a dog"]), 3, "length < 9") == [[]]
        again.add(TEXTS, embed(TEXTS), METADATAS, IDS)
        assert again.index.info()["columns"] == ["text", "metadata", "length", "first"]
        assert again.index.search(embed(["a dog"]), 3, where="first = 'cat' and length < 9")[1].shape == (1, 3)


def test_hybrid_searches_of_the_frameworks_are_those_of_the_store():
    query = "sour grapes"
    expected_ids = [str(place) for place in fused(query, FABLES, range(7))[:3]]
    sentences = SentenceIndex(Model())
    sentences.add(FABLES, ids=list("0123456"))
    assert [text.id for text in sentences.search(query, 3, hybrid=True)] == expected_ids
    assert [text.id for text in sentences.search([query], 3, hybrid=True)[0]] == expected_ids
