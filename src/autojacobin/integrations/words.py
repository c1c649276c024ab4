"""Words of texts of any language, and the texts that share words with a query, by BM25."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from functools import cache
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from autojacobin.errors import import_extra

# Thai, Lao, Myanmar, Khmer, their neighbours, Chinese and Japanese
_WITHOUT_SPACES = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u1950-\u19ff\u1a20-\u1aaf\u3005-\u3007\u3021-\u3029\u3031-\u30ff"
    "\u31f0-\u31ff\u3400-\u9fff\ua9e0-\ua9ff\uaa60-\uaadf\uf900-\ufaff\U0001b000-\U0001b16f\U00020000-\U0003ffff"
)
_WORD = re.compile(r"\w+")
_MARKS_END = 0x1F000  # above all marks but those that choose a form of a character


def words_of(text: str) -> list[str]:
    """The words of a text, in small letters; where there are no spaces, each character and each two neighbours."""
    text = unicodedata.normalize("NFKC", text).casefold()
    special, runs, characters = _patterns()
    if not special.search(text):
        return _WORD.findall(text)  # several times faster
    found: list[str] = []
    for run in runs.findall(text):
        if parts := characters.findall(run):
            found += [*parts, *(first + second for first, second in pairwise(parts))]
        else:
            found.append(run)
    return found


class Words:
    """The words of some texts. Needs the package bm25s."""

    def __init__(self, texts: Sequence[str]) -> None:
        found = [words_of(text) for text in texts]
        self._n, self._model = len(texts), None
        if any(found):
            self._model = import_extra("bm25s", "hybrid", "a hybrid search").BM25()
            self._model.index(found, show_progress=False)

    def sharing(self, query: str) -> npt.NDArray[np.int64]:
        """Places of the texts that share words with a query, the best first, by BM25."""
        words = words_of(query)
        if self._model is None or not words:
            return np.empty(0, dtype=np.int64)
        scores = self._model.get_scores(words)
        order = np.argsort(-scores, kind="stable")
        return order[scores[order] > 0]


@cache
def _patterns() -> tuple[re.Pattern[str], re.Pattern[str], re.Pattern[str]]:
    r"""Patterns of what ``\w`` does not suit, of words or runs of characters, and of characters.

    To ``\w``, marks end a word, as those in हिन्दी do.
    """
    marks = "".join(chr(code) for code in range(_MARKS_END) if unicodedata.category(chr(code))[0] == "M")
    letter, character = rf"[^\W{_WITHOUT_SPACES}]", rf"(?=\w)[{_WITHOUT_SPACES}][{marks}]*"
    word = f"{letter}+(?:[{marks}]+{letter}*)*"
    return (
        re.compile(f"[{_WITHOUT_SPACES}{marks}]"),
        re.compile(f"{word}|(?:{character})+"),
        re.compile(character),
    )
