"""Texts with metadata and vectors in an index: what the stores of all frameworks share."""

from __future__ import annotations

import json
import os
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, SupportsIndex, TypedDict

import numpy as np
import numpy.typing as npt

from autojacobin.core.arrays import to_host
from autojacobin.core.files import as_path
from autojacobin.core.vectors import as_floats, as_matrix
from autojacobin.errors import DataError, DataTypeError, import_extra
from autojacobin.hashers import ITQ, LSH, Hasher
from autojacobin.hashers.base import check_fitted
from autojacobin.index import Index
from autojacobin.index.comparisons import allowed_rows, find_column
from autojacobin.index.conditions import Condition, read_condition
from autojacobin.index.manifest import MANIFEST_NAME
from autojacobin.index.metric import Metric
from autojacobin.index.payload import check_depth
from autojacobin.index.plan import as_recall
from autojacobin.integrations.metadata_filters import as_condition, field_column
from autojacobin.integrations.words import Words
from autojacobin.search.arguments import as_count

if TYPE_CHECKING:
    import pyarrow
    from typing_extensions import Self

TEXT, METADATA = "text", "metadata"
_COSINE = Metric("cosine")
_DEFAULT_BITS = 256
_TRAINING_VECTORS = 50_000
_FEWEST_SEGMENTS = 32  # that are worth joining
_RANKS_FUSED, _RANK_OFFSET = 50, 60  # the usual offset of reciprocal ranks
_MANY_IDS = 1_000  # above which looking up one after the other takes longer than reading them all


class Text(NamedTuple):
    """A stored text; with its cosine similarity to the query if a search found it."""

    id: str
    text: str
    metadata: dict[str, Any]
    similarity: float | None = None


Filter = Mapping[str, Any] | Callable[[Text], bool] | str


class StoreOptions(TypedDict, total=False):
    """The parameters of :class:`TextStore` that all stores take."""

    hasher: Hasher | None
    partitions: SupportsIndex | str | None
    recall: float | None
    columns: Mapping[str, type] | None


class TextStore:
    """Texts with ids, metadata and vectors, searched by cosine similarity.

    The index has a string as the id of each text, and the columns ``text``, ``metadata`` (as JSON) and those of
    ``columns``. The vectors are scaled to length 1. The index is made when the first texts are added. A folder that
    holds one is opened.

    Parameters
    ----------
    path : path, optional
        Folder of the index. Every change is on the disk before the call returns. By default it lives in memory.
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
        on them, such as ``"year > 2000"``, are fast. A folder that holds an index has them.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        hasher: Hasher | None = None,
        partitions: SupportsIndex | str | None = None,
        recall: float | None = None,
        columns: Mapping[str, type] | None = None,
    ) -> None:
        self._path = None if path is None else as_path(path)
        self._hasher, self._partitions = hasher, partitions
        self._recall = None if recall is None else as_recall(recall)
        self._lock = threading.Lock()
        self._schema = _schema(columns or {})
        self.index: Index | None = None  # before the first texts are added
        if self._path is not None and (self._path / MANIFEST_NAME).exists():
            self.index = Index.open(self._path)
            self._adopt(self.index)

    def _adopt(self, index: Index) -> None:
        """Check that an index holds texts, with codes as the hasher makes them, and take its columns."""
        wanted = getattr(self._hasher, "n_bits", None)
        if wanted not in (None, index.hasher.n_bits):
            raise DataError(
                f"the codes in {index.path} have {index.hasher.n_bits} bits, got a hasher of {wanted}; leave out the "
                "hasher, or build a new store with it"
            )
        found, metric = index.info()["columns"], index.info()["metric"]
        if found is None:
            index.get(index.ids)  # which raises: they are damaged
        if not found and not len(index):  # nothing was added yet
            return
        if found[:2] != [TEXT, METADATA] or metric != _COSINE.name:
            raise DataError(
                f"the index in {index.path} holds no texts, got the columns {', '.join(found) or '(none)'} and the "
                f"metric {metric}, expected {TEXT}, {METADATA} and cosine; give the folder of a store of texts"
            )
        schema = index.get(index.ids[:0]).schema
        if not set(self._schema) <= set(schema):
            raise DataError(
                f"the store in {index.path} has the columns {_listed(schema)}, got {_listed(self._schema)}; "
                "leave out columns, or build a new store with them"
            )
        self._schema = schema

    def snapshot(self) -> Self:
        """The store as it is now, for reads that belong together: later changes are not in it. This costs nothing."""
        store = copy(self)
        if self.index is not None:
            store.index = self.index.to("cpu")
        return store

    @property
    def ids(self) -> list[str]:
        """The ids of all texts."""
        return [] if self.index is None else list(self.index.ids)

    def __len__(self) -> int:
        return 0 if self.index is None else len(self.index)

    def add(
        self,
        texts: Sequence[str],
        vectors: Any,
        metadatas: Sequence[Mapping[str, Any]] | None = None,
        ids: Sequence[str | None] | None = None,
        *,
        replace: bool = True,
    ) -> list[str]:
        """Add texts and return their ids; a text replaces the one that has the same id.

        Without ``ids``, or where one is None, a UUID is drawn. Of texts with the same id the last one is kept. With
        ``replace=False``, an id that is in the store is an IdExistsError, and nothing is added.
        """
        n = len(texts)
        for name, values in (("vectors", vectors), ("metadatas", metadatas), ("ids", ids)):
            if values is not None and len(values) != n:
                raise DataError(f"there must be one of {name} for each of the {n} texts, got {len(values)}")
        names = [str(uuid.uuid4()) if id is None else id for id in (ids or [None] * n)]
        if not n:
            return []
        table = self._table(texts, metadatas or [{}] * n, names)
        floats = _as_vectors(vectors)
        last = sorted({name: place for place, name in enumerate(names)}.values())
        with self._lock:
            if self.index is None:
                hasher = _fitted(self._hasher, _COSINE.prepare(floats))
                make = Index if self._path is None else partial(Index.create, self._path)
                self.index = make(hasher, partitions=self._partitions, metric=_COSINE)
            index = self.index
        write = index.upsert if replace else index.add
        write(floats[last], [names[place] for place in last], table.take(last))
        # after about √n small additions, so that neither they nor searches become slow
        if index.info()["segments"] > max(_FEWEST_SEGMENTS, len(index) ** 0.5):
            index.compact()
        return names

    def _table(
        self, texts: Sequence[str], metadatas: Sequence[Mapping[str, Any]], names: Sequence[str]
    ) -> pyarrow.Table:
        arrow = _arrow()
        written = [_as_json(metadata, name) for metadata, name in zip(metadatas, names, strict=True)]
        values: dict[str, list[Any]] = {TEXT: list(texts), METADATA: written}
        arrays = []
        for field in self._schema:
            column = values.get(field.name)
            if column is None:
                column = [metadata.get(field.name) for metadata in metadatas]
            try:
                arrays.append(arrow.array(column, field.type))
            except (arrow.ArrowInvalid, arrow.ArrowTypeError, TypeError, ValueError) as error:
                raise DataError(
                    f"the values of {field.name!r} must be {field.type}, got another: {error}; "
                    "change these values, or leave the field out of columns"
                ) from error
        return arrow.Table.from_arrays(arrays, schema=self._schema)

    def remove(self, ids: Sequence[str]) -> None:
        """Remove the texts with these ids; ids that are not in the store do not matter."""
        index = self.index
        if index is not None and (known := _known(index, ids)):
            index.remove(known, missing_ok=True)  # another thread may have removed some meanwhile

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the store to a new or empty folder; with ``overwrite``, in place of the index that is there."""
        if self.index is None:
            raise DataError(f"this store is empty and cannot be written to {os.fspath(path)}; add texts first")
        self.index.save(path, overwrite=overwrite)

    def close(self) -> None:
        """Close the files and release the lock; the store cannot be used afterwards."""
        if self.index is not None:
            self.index.close()

    def get(self, ids: Sequence[str]) -> list[Text]:
        """Texts with these ids, in their order; ids that are not in the store are passed over."""
        index = self.snapshot().index
        if index is None or not (known := _known(index, ids)):
            return []
        return _texts(known, index.get(known, [TEXT, METADATA]))

    def vectors(self, ids: Sequence[str]) -> npt.NDArray[Any]:
        """Vectors of some texts, all of which must be in the store, scaled to length 1."""
        if self.index is None:
            raise DataError(f"this store is empty, got {len(ids)} ids to give vectors for; add texts first")
        return self.index.vectors(ids)

    def matching(self, filter: Filter) -> list[str]:
        """Ids of the texts for which a filter holds, as in :meth:`search`."""
        index = self.snapshot().index
        return [] if index is None or not len(index) else self._matching(index, filter)

    def _matching(self, index: Index, filter: Filter) -> list[str]:
        ids = index.ids
        if callable(filter):
            return [text.id for text in _texts(ids, index.get(ids, [TEXT, METADATA])) if filter(text)]
        condition, fields = self._condition(filter)
        used = [find_column(self._schema.names, name) or name for name in condition.columns if name not in fields]
        table = index.get(ids, list(dict.fromkeys([METADATA, *used])))
        metadatas = [json.loads(text or "{}") for text in table[METADATA].to_pylist()] if fields else []
        columns = dict(zip(table.column_names, table.columns, strict=True))
        columns |= {name: field_column(name, metadatas, condition.shown) for name in fields}
        return list(ids[allowed_rows([_arrow().table(columns)], condition)])

    def search(
        self,
        queries: Any,
        k: SupportsIndex,
        filter: Filter | None = None,
        among: Sequence[str] | None = None,
        words: Sequence[str] | None = None,
    ) -> list[list[Text]]:
        """Find the ``k`` texts that are most similar to each query vector, or all if there are fewer.

        With ``words``, the search is hybrid: texts are ranked by their vectors and by the words that they share with
        the query (BM25), and the two ranks r and s give the order, by 1 / (60 + r) + 1 / (60 + s).

        Parameters
        ----------
        queries : matrix of shape (n_queries, n_features)
            Query vectors, of any length.
        k : int
            Texts for each query.
        filter : dict, callable or str, optional
            Search among some texts alone: those whose metadata have these values, those for which a function gives
            True, or those that meet a condition on fields of the metadata or on ``text``, such as ``"lang = 'de'"``.
            A dict may have operators, as in ``{"year": {"$gt": 2000}}``: $eq, $ne, $gt, $gte, $lt, $lte, $in, $nin,
            $exists, and $and, $or and $not around dicts. A field that no text has is an error.
        among : list of str, optional
            Search among the texts with these ids alone.
        words : list of str, optional
            The text of each query. The first such search reads all texts. Needs the package bm25s.
        """
        floats = _as_vectors(queries)
        index, wanted = self.snapshot().index, as_count("k", k)
        if words is not None and (isinstance(words, str) or len(words) != len(floats)):
            raise DataError(f"words must have the text of each of the {len(floats)} queries, got {words!r:.60}")
        number = 0 if index is None else min(wanted, len(index))
        if index is None or not number:
            return [[] for _ in floats]
        filter = None if filter == {} else filter
        if words is not None:
            return self._fused(index, floats, words, number, filter, among)
        return self._nearest(index, floats, number, filter, among)

    def _nearest(
        self, index: Index, floats: Any, number: int, filter: Filter | None, among: Sequence[str] | None
    ) -> list[list[Text]]:
        where, fields = (None, []) if filter is None or callable(filter) else self._condition(filter)
        if filter is not None and (callable(filter) or fields):
            where, among = None, self._passing(index, filter, among)
        similarities, ids, table = index.search(
            floats, number, recall=self._recall, columns=[TEXT, METADATA], among=among, where=where
        )
        found = _texts(ids.ravel(), table, np.clip(similarities, -1, 1).ravel())
        width = ids.shape[1]  # less than ``number`` if another thread has removed texts
        rows = [found[start : start + width] for start in range(0, len(found), width)]
        return [[text for text in row if text.id is not None] for row in rows]

    def _passing(self, index: Index, filter: Filter, among: Sequence[str] | None) -> list[str]:
        passing = self._matching(index, filter)
        return passing if among is None else list(set(passing).intersection(among))

    def _fused(
        self, index: Index, queries: Any, words: Sequence[str], k: int, filter: Filter | None, among: Any
    ) -> list[list[Text]]:
        """The best texts by reciprocal ranks (G. Cormack, C. Clarke and S. Büttcher, SIGIR 2009)."""
        ids, shared = _words_of(index)
        if filter is not None:
            among = self._passing(index, filter, among)
        allowed = None if among is None else set(among)
        depth, found = max(2 * k, _RANKS_FUSED), []
        nearest = self._nearest(index, queries, min(depth, len(index)), None, among)
        for vector, near, text in zip(queries, nearest, words, strict=True):
            sharing = (ids[place] for place in shared.sharing(text))
            some = islice((id for id in sharing if allowed is None or id in allowed), depth)
            ranks: Counter[str] = Counter()
            for ranked in ([text.id for text in near], some):
                for rank, id in enumerate(ranked, 1):
                    ranks[id] += 1 / (_RANK_OFFSET + rank)  # type: ignore[assignment]
            best = [id for id, _ in ranks.most_common(k)]
            cosines = index.vectors(best) @ vector / np.linalg.norm(vector)
            table = index.get(best, [TEXT, METADATA])
            found.append(_texts(best, table, np.clip(cosines, -1, 1)))
        return found

    def _condition(self, filter: Mapping[str, Any] | str) -> tuple[Condition, list[str]]:
        """A filter as a condition, and the fields in it that are not columns of the index."""
        own = self._schema.names
        if isinstance(filter, str):
            condition = read_condition(filter)
        elif isinstance(filter, Mapping):
            condition = as_condition(filter)
            own = [name for name in own if name not in (TEXT, METADATA)]  # a dict speaks of metadata alone
        else:
            raise DataTypeError(f"filter must be a dict, a function or a condition, got {type(filter).__name__}")
        return condition, [name for name in condition.columns if find_column(own, name) is None]


def _known(index: Index, ids: Sequence[str]) -> list[str]:
    """Those of some ids that are in an index, each once, in their order."""
    there = index if len(ids) < _MANY_IDS else set(index.ids)
    return [id for id in dict.fromkeys(ids) if id in there]


def _fitted(hasher: Hasher | None, vectors: npt.NDArray[Any]) -> Hasher:
    """The given hasher, fitted to the first vectors if it is not fitted; or the default one."""
    n, n_features = vectors.shape
    if hasher is None:
        n_bits = min(_DEFAULT_BITS, n_features)
        # LSH is not centred, because the mean of a few vectors says little about later ones
        few = LSH(_DEFAULT_BITS, center=False, random_state=0)
        hasher = ITQ(n_bits, random_state=0) if n >= 10 * n_bits else few
    if not isinstance(hasher, Hasher):
        raise DataTypeError(f"hasher must be a hasher, got {type(hasher).__name__}; pass for example ITQ(128)")
    if not hasher.__sklearn_is_fitted__():
        return hasher.unfitted().fit(vectors[:: -(-n // _TRAINING_VECTORS)], training_points=None)
    check_fitted(hasher)
    return hasher


def _words_of(index: Index) -> tuple[Any, Words]:
    """The ids of all texts, and their words; both are kept with the state that they belong to."""
    kept = index._state.kept
    found: tuple[Any, Words] | None = kept.get("words")
    if found is None:
        ids = index.ids
        found = ids, Words([text or "" for text in index.get(ids, [TEXT])[TEXT].to_pylist()])
        kept["words"] = found
    return found


def _as_vectors(vectors: Any) -> npt.NDArray[np.float32]:
    """A matrix of float32: lists of Python's numbers, which the frameworks give, would take twice the space."""
    return as_floats(to_host(as_matrix(vectors, "the store"))).astype(np.float32)


def _texts(ids: Any, table: pyarrow.Table, similarities: Any = None) -> list[Text]:
    texts, metadatas = (table.column(name).to_pylist() for name in (TEXT, METADATA))
    values = [None] * len(ids) if similarities is None else similarities.tolist()
    rows = zip(ids, texts, metadatas, values, strict=True)
    return [Text(id, text, json.loads(metadata or "{}"), value) for id, text, metadata, value in rows]


def _as_json(metadata: Mapping[str, Any], id: str) -> str:
    try:
        check_depth(dict(metadata).values())
        return json.dumps(dict(metadata), ensure_ascii=False)
    except (TypeError, ValueError) as error:
        reason = str(error).partition(";")[0]
        raise DataError(f"the metadata of {id!r} cannot be written as JSON: {reason}; give other values") from error


def _schema(columns: Mapping[str, type]) -> pyarrow.Schema:
    arrow = _arrow()
    types = {str: arrow.string(), int: arrow.int64(), float: arrow.float64(), bool: arrow.bool_()}
    for name, type_ in columns.items():
        if type_ not in types:
            raise DataError(f"a column must be str, int, float or bool, got {type_!r} for {name!r}")
        if name in (TEXT, METADATA):
            raise DataError(f"the column {name!r} is there already; rename this field of the metadata")
    fields = [(TEXT, arrow.string()), (METADATA, arrow.string())]
    return arrow.schema(fields + [(name, types[type_]) for name, type_ in columns.items()])


def _listed(schema: pyarrow.Schema) -> str:
    fields = [f"{field.name} ({field.type})" for field in schema if field.name not in (TEXT, METADATA)]
    return ", ".join(fields) or "(none)"


def _arrow() -> Any:
    return import_extra("pyarrow", "payload", "a store of texts")
