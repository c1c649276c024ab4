"""Search by text, with sentence-transformers or any other model that encodes texts."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, SupportsIndex, overload

from autojacobin.core.vectors import as_matrix
from autojacobin.errors import DataError, DataTypeError, MissingExtraError
from autojacobin.hashers import Hasher
from autojacobin.index import Index
from autojacobin.integrations.text_store import Filter, Text, TextStore
from autojacobin.search.arguments import as_count


class SentenceIndex:
    """Texts that are encoded by a model and searched by text.

    Parameters
    ----------
    model : str or object with a method ``encode``
        A ``SentenceTransformer``, the name of one, or any object whose ``encode`` takes a list of texts and gives a
        matrix with one row per text. If the model has ``encode_document`` and ``encode_query``, these are used.
    path : path, optional
        Folder of the index, which is opened if it holds one. Every change is on the disk before the call returns. By
        default the index lives in memory.
    truncate_dim : int, optional
        Keep this many of the first numbers of a vector, for Matryoshka models. Leave it out for a model that truncates
        its vectors itself.
    hasher : Hasher, optional
        Makes the codes. One that is not fitted is fitted to the first vectors. By default codes have 256 bits, by ITQ
        if the first vectors are many enough to train it, and otherwise by LSH, which needs no training.
    partitions : int, "auto" or None
        Whether the index makes inverted lists, as in ``Index``. An index that is in the folder already stays as it was
        made, with its hasher and lists.
    recall : float, optional
        Share of the true neighbours that a search finds. By default all up to 2,000 texts, and 0.95 above that.
    columns : mapping of str to type, optional
        Fields of the metadata that become columns, with their type: ``str``, ``int``, ``float`` or ``bool``. Conditions
        on them are fast.

    Examples
    --------
    >>> from sklearn.feature_extraction.text import HashingVectorizer
    >>> from autojacobin.integrations.sentence_transformers import SentenceIndex
    >>> class Trigrams:
    ...     def encode(self, texts):
    ...         vectorizer = HashingVectorizer(n_features=256, analyzer="char_wb", ngram_range=(3, 3))
    ...         return vectorizer.transform(texts).toarray()
    >>> index = SentenceIndex(Trigrams())
    >>> index.add(["the cat sleeps", "rain in the north", "cats and dogs"], ids=["a", "b", "c"])
    ['a', 'b', 'c']
    >>> [hit.text for hit in index.search("a sleeping cat", k=2)]
    ['the cat sleeps', 'cats and dogs']
    """

    def __init__(
        self,
        model: Any,
        path: str | os.PathLike[str] | None = None,
        *,
        truncate_dim: SupportsIndex | None = None,
        hasher: Hasher | None = None,
        partitions: SupportsIndex | str | None = None,
        recall: float | None = None,
        columns: Mapping[str, type] | None = None,
    ) -> None:
        self.model = _loaded(model) if isinstance(model, str) else model
        if not callable(getattr(self.model, "encode", None)):
            raise DataTypeError(
                f"model must have a method encode that takes a list of texts, got {type(model).__name__}; "
                "pass for example a SentenceTransformer"
            )
        self.truncate_dim = None if truncate_dim is None else as_count("truncate_dim", truncate_dim)
        self._store = TextStore(path, hasher=hasher, partitions=partitions, recall=recall, columns=columns)

    @property
    def index(self) -> Index | None:
        """The index; None before the first texts are added."""
        return self._store.index

    def __len__(self) -> int:
        return len(self._store)

    def add(
        self,
        texts: Sequence[str],
        metadatas: Sequence[Mapping[str, Any]] | None = None,
        ids: Sequence[str] | None = None,
    ) -> list[str]:
        """Encode and add texts, and return their ids; a text replaces the one that has the same id."""
        if isinstance(texts, str):
            raise DataTypeError(f"texts must be a list of strings, got the string {texts!r:.40}; put it into a list")
        return self._store.add(texts, self._encoded(list(texts), "encode_document") if texts else [], metadatas, ids)

    def remove(self, ids: Sequence[str]) -> None:
        """Remove the texts with these ids; ids that are not there do not matter."""
        self._store.remove(ids)

    def get(self, ids: Sequence[str]) -> list[Text]:
        """Texts with these ids, in their order; ids that are not there are passed over."""
        return self._store.get(ids)

    @overload
    def search(self, query: str, k: SupportsIndex = 10, *, filter: Filter | None = None) -> list[Text]: ...

    @overload
    def search(self, query: list[str], k: SupportsIndex = 10, *, filter: Filter | None = None) -> list[list[Text]]: ...

    def search(
        self, query: str | list[str], k: SupportsIndex = 10, *, filter: Filter | None = None
    ) -> list[Text] | list[list[Text]]:
        """Find the ``k`` texts most similar to a query, or to each of a list of queries.

        Parameters
        ----------
        query : str or list of str
            What to look for.
        k : int
            Texts for each query, or fewer if there are not as many.
        filter : dict, callable or str, optional
            Search among some texts alone: those whose metadata have these values, those for which a function gives
            True, or those that meet a condition in SQL, such as ``"metadata->>'lang' = 'de'"``.

        Returns
        -------
        hits : list of Text
            Each with ``id``, ``text``, ``metadata`` and ``similarity``, the cosine; the most similar first. A list of
            these for each query, if there is a list of queries.
        """
        queries = [query] if isinstance(query, str) else list(query)
        found = self._store.search(self._encoded(queries, "encode_query"), k, filter) if queries else []
        return found[0] if isinstance(query, str) else found

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the index to a new or empty folder; with ``overwrite``, in place of the one that is there."""
        self._store.save(path, overwrite=overwrite)

    def close(self) -> None:
        """Close the files and release the lock; the index cannot be used afterwards."""
        self._store.close()

    def _encoded(self, texts: list[str], method: str) -> Any:
        encode = getattr(self.model, method, self.model.encode)
        vectors = as_matrix(encode(texts), type(self.model).__name__)
        if self.truncate_dim is None:
            return vectors
        if self.truncate_dim > vectors.shape[1]:
            raise DataError(
                f"truncate_dim must be at most the length of the vectors, got {self.truncate_dim} for vectors of "
                f"{vectors.shape[1]} numbers"
            )
        return vectors[:, : self.truncate_dim]


def _loaded(name: str) -> Any:
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError as error:
        raise MissingExtraError(
            "sentence-transformers", "sentence-transformers", "a model given by its name"
        ) from error
    return SentenceTransformer(name)
