"""Text files of word vectors: GloVe, and word2vec with its header line."""

import gzip

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autojacobin.datasets import open_vectors
from autojacobin.errors import FormatError

WORDS = [",", "the", ". . .", "1990", "hé", "0.5"]
VECTORS = np.arange(18, dtype=np.float32).reshape(6, 3) / 8 - 1


def lines_of(words, vectors):
    rows = zip(words, vectors.tolist(), strict=True)
    return "".join(f"{word} {' '.join(map(repr, row))}\n" for word, row in rows).encode()


def check_words(path, words=WORDS, vectors=VECTORS):
    with open_vectors(path) as opened:
        assert opened.names == words
        assert opened.dtype == np.float32
        np.testing.assert_array_equal(np.asarray(opened), vectors)
        np.testing.assert_array_equal(opened[1:2], vectors[1:2])


@pytest.mark.parametrize("name", ["glove.txt", "cc.en.vec", "vectors.dat"])
def test_glove_files_are_read_with_their_words(tmp_path, name):
    (tmp_path / name).write_bytes(lines_of(WORDS, VECTORS))
    check_words(tmp_path / name)


def test_word2vec_files_have_a_header_line_and_may_have_spaces_at_the_end_of_lines(tmp_path):
    content = b"6 3\n" + lines_of(WORDS, VECTORS).replace(b"\n", b" \n")
    (tmp_path / "a.txt").write_bytes(content)
    check_words(tmp_path / "a.txt")


def test_with_the_header_even_the_first_words_may_be_numbers(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"2 3\n" + lines_of(["7", "8"], VECTORS[:2]))
    check_words(tmp_path / "a.txt", ["7", "8"], VECTORS[:2])


def test_two_columns_of_numbers_have_no_header(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"1 1\n1 1\n")
    with open_vectors(tmp_path / "a.txt") as opened:
        assert (opened.shape, opened.names) == ((2, 2), None)


def test_packed_files_are_read(tmp_path):
    (tmp_path / "glove.txt.gz").write_bytes(gzip.compress(lines_of(WORDS, VECTORS)))
    check_words(tmp_path / "glove.txt.gz")


def test_one_line_is_enough(tmp_path):
    (tmp_path / "a.txt").write_bytes(lines_of(WORDS[:1], VECTORS[:1]))
    check_words(tmp_path / "a.txt", WORDS[:1], VECTORS[:1])


@pytest.mark.parametrize("content", [b"1 2\n3 4\n", b"3 2\n1 2\n", b"# words\n1 2\n", b"a b\n1 2\n"])
def test_files_of_numbers_alone_have_no_names(tmp_path, content):
    (tmp_path / "a.txt").write_bytes(content)
    with open_vectors(tmp_path / "a.txt") as opened:
        assert opened.names is None
        assert opened.shape[1] == 2


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"x 1 2\ny 3 4\nz 5\n", "1 fields in line 3, expected 2"),
        (b"x 1 2\ny 3 4\nz 5 a\n", "'a' in field 2 of line 3"),
        (b"x 1 2\n3 4 5\n", "'x' in field 1 of line 1"),
        (b"x 1 2\ny 1\n", "'x' in field 1 of line 1"),
        (b"2 2\nx 1 2\ny 3\n", "1 fields in line 3"),
    ],
)
def test_damaged_lines_are_named(tmp_path, content, said):
    (tmp_path / "a.txt").write_bytes(content)
    with pytest.raises(FormatError, match=said), open_vectors(tmp_path / "a.txt") as opened:
        np.asarray(opened)


def test_names_of_a_damaged_file_are_an_error(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"x 1 2\ny 3 4\nz\n")
    with pytest.raises(FormatError, match="line 3"):
        open_vectors(tmp_path / "a.txt")


def is_number(word):
    try:
        float(word)
    except ValueError:
        return False
    return True


words = st.lists(st.text(st.characters(categories=["L", "P"]), min_size=1), min_size=1, max_size=20)


@given(words.filter(lambda some: not (some[0].startswith("#") or any(map(is_number, some[:2])))))
def test_any_words_come_back(tmp_path_factory, some):
    path = tmp_path_factory.mktemp("words") / "a.txt"
    vectors = np.arange(2 * len(some), dtype=np.float32).reshape(-1, 2)
    path.write_bytes(lines_of(some, vectors))
    check_words(path, some, vectors)


@pytest.mark.parametrize(
    ("name", "text"), [("w.txt", "the\nof\nand\n"), ("w.csv", "the\nof\n"), ("w.txt", "a b\nc d e\n")]
)
def test_a_file_of_words_without_numbers_is_no_header(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    with pytest.raises(FormatError, match="holds text and no vectors, got '.*' and '.*' in its first lines") as error:
        open_vectors(tmp_path / name)
    assert "give them as ids beside a file of vectors" in str(error.value)
