"""The bundle: all data of the explorer page, computed from a set of vectors or for a finished run."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from autojacobin import __version__
from autojacobin.core.files import as_path
from autojacobin.core.parallel import Progress
from autojacobin.datasets import VectorSet, load_set
from autojacobin.datasets.pictures import read_photograph
from autojacobin.errors import DataError, FormatError, StorageError
from autojacobin.evaluation import ground_truth
from autojacobin.explorer.retrieved import Retrieved, Sprite, make_photograph, make_sprite, retrieve, short
from autojacobin.hashers import Hasher, find_command, load
from autojacobin.paper.figures.drawings import train_toy
from autojacobin.paper.figures.style import legend_order, style_of
from autojacobin.paper.reproduction.trials import CHOSEN, SHOWN, Settings, cut, make_hasher
from autojacobin.search import rerank
from autojacobin.search.arguments import as_count
from autojacobin.search.distances import DISTANCES

_FORMAT_VERSION = 3
_RECOMMENDED = {
    CHOSEN: "Recommended to start with: Auto-JacoBin as the library trains it by default, with settings that it chose "
    "on held-out training points. The others are what the paper compares, with the paper's settings. The curves below "
    "show which one finds most here.",
}
_STOPS = (1, 2, 3, 5, 7, 10, 15, 20, 30, 50, 70, 100, 150, 200, 300, 500, 700, 1000)
_USUAL_BITS = (32, 64, 128)
_HISTORY = ("cost", "reconstruction", "jacobian", "binary", "contraction", "epoch")


@dataclass(frozen=True)
class Bundle:
    """Data of the page.

    Attributes
    ----------
    about : dict
        What was computed, the recall of all methods over all queries, the history of each training, the toy example.
    queries : list of dict
        For each query on the wall: the points that can be shown for it, nearest first, with the ranks and codes that
        every method gives them. The first of them are its true neighbours.
    wall : Sprite or None
        Pictures of the queries; None if the set has none.
    pictures : list of Sprite
        For each query the pictures of its points, in their order; empty if the set has none.
    photographs : list of bytes
        Small copies, as JPEG, of the photographs that the pictures lie in; empty if that is not known.
    """

    about: dict[str, Any]
    queries: list[dict[str, Any]]
    wall: Sprite | None
    pictures: list[Sprite]
    photographs: list[bytes] = field(default_factory=list)


def explorer_settings(
    data: VectorSet, *, bits: Sequence[int] | None = None, k: int | None = None, training_points: int | None = None
) -> Settings:
    """Choose settings that show a set within a minute or two: 4,000 training points, 1,000 queries, the whole base."""
    dimension, n_base = int(data.train.shape[1]), len(data.base)
    usual = tuple(length for length in _USUAL_BITS if length <= dimension)
    return Settings(
        bits=tuple(bits) if bits is not None else usual or (max(1, dimension // 2), dimension),
        ks=(k if k is not None else min(50, n_base),),
        depth=min(_STOPS[-1], n_base),
        seeds=1,
        training_points=training_points if training_points is not None else 4_000,
        queries=1_000,
    )


def build_bundle(
    data: VectorSet,
    settings: Settings | None = None,
    *,
    methods: Sequence[str] = SHOWN,
    wall: int = 36,
    toy: bool = True,
    models: Mapping[tuple[str, int], Hasher] | None = None,
    progress: Progress | None = None,
) -> Bundle:
    """Train the methods with seed 0, search, and keep what the page can show.

    Parameters
    ----------
    data : VectorSet
        With pictures, the page shows them; without, it shows tables.
    settings : Settings, optional
        ``explorer_settings(data)`` by default. Its largest k is the largest on the page, its depth (at most 1,000)
        the most candidates.
    methods : sequence of str
        Names as in the paper: LSH, SpectralHashing, ITQ, …; Auto-JacoBin by default with the paper's settings and
        with those that it chooses itself.
    wall : int
        Queries to choose from, evenly spread over those of the set.
    toy : bool
        Whether to train the paper's example in three dimensions as well.
    models : mapping of (str, int) to Hasher, optional
        By method and number of bits, models that need not be trained again, as from :func:`kept_models`.
    progress : callable, optional
        Called as ``progress(stage, done, total)``.
    """
    settings = settings or explorer_settings(data)
    settings.check_against(data)
    if not len(data.queries) or not methods:
        what = "methods to compare" if len(data.queries) else f"queries of {data.name} to choose from"
        raise DataError(f"there are no {what}, expected at least one; add some")
    given = {find_command(name, by=("name", "label")).name for name in methods}
    named = sorted(legend_order(given), key=lambda name: name not in _RECOMMENDED)
    data, k = cut(data, settings), settings.ks[-1]
    n_wall, depth = min(len(data.queries), as_count("wall", wall)), min(settings.depth, _STOPS[-1])
    chosen = np.arange(n_wall) * len(data.queries) // n_wall
    stops = [*(stop for stop in _STOPS if stop < depth), depth]
    report = progress or (lambda *_: None)
    total = 2 + len(named) * len(settings.bits)
    report("true neighbours", 0, total)
    truth = ground_truth(data.base, data.queries, k)
    queries = np.asarray(data.queries)[chosen]
    retrieved: dict[str, dict[int, Retrieved]] = {name: {} for name in named}
    shown = [[row] for row in truth[chosen]]
    training = []
    for number, (name, bits) in enumerate(product(named, settings.bits)):
        report(f"{name}, {bits} bits", 1 + number, total)
        hasher = (models or {}).get((name, bits))
        if hasher is None:
            hasher = make_hasher(name, bits, 0, {}).fit(data.train, training_points=None)
        training += _history(name, bits, hasher)
        retrieved[name][bits] = result = retrieve(hasher, data.base, data.queries, truth, chosen, stops)
        for pieces, ids in zip(shown, result.ever_shown(queries, data.base, stops, k), strict=True):
            pieces.append(ids)

    def by_length(of: Callable[[Retrieved], Any]) -> dict[str, dict[str, Any]]:
        """What a function gives for each method and number of bits."""
        return {name: {str(bits): of(one) for bits, one in lengths.items()} for name, lengths in retrieved.items()}

    report("the toy example" if toy else "pictures", total - 1, total)
    about = {
        **_about(data, settings, named, stops, chosen),
        "distances": _common_distances(retrieved),
        "found": by_length(lambda one: {distance: counts.tolist() for distance, counts in one.found.items()}),
        "training": training,
        "trained_as": by_length(lambda one: one.hasher.trained_as),
        "toy": None,
    }
    if toy:
        points, hidden, codes = train_toy()
        shapes = {"points": np.round(points, 3).tolist(), "hidden": np.round(hidden, 3).tolist()}
        about["toy"] = {**shapes, "codes": (codes @ np.array([4, 2, 1])).tolist()}
    records, pictures = [], []
    for place, pieces in enumerate(shown):
        some = np.unique(np.concatenate(pieces))
        [distances], [ids] = rerank(queries[place][None], some[None], data.base, len(some))
        record: dict[str, Any] = {"row": int(chosen[place]), "ids": ids.tolist(), "distances": short(distances)}
        record["methods"] = by_length(partial(Retrieved.record, place=place, query=queries[[place]], ids=ids))
        if data.base_patches is not None and data.query_patches is not None:
            pictures.append(make_sprite(np.asarray(data.base_patches[ids])))
            record["sprite"] = pictures[-1].layout
        records.append(record)
    sheet = make_sprite(np.asarray(data.query_patches[chosen])) if pictures else None
    photographs = _add_photographs(about, records, data, chosen)
    about["sprite"] = None if sheet is None else {**sheet.layout, "ending": sheet.ending}
    report("pictures", total, total)
    return Bundle(about, records, sheet, pictures, photographs)


def _add_photographs(
    about: dict[str, Any], records: list[dict[str, Any]], data: VectorSet, chosen: npt.NDArray[np.int64]
) -> list[bytes]:
    """Add to each record where its query and its points lie in photographs, as shares of their width and height."""
    about["photographs"] = []
    if data.base_places is None or data.query_places is None:
        return []
    names = sorted({*data.base_places["picture"].tolist(), *data.query_places["picture"].tolist()})
    photographs = {name: read_photograph(name) for name in names}
    about["photographs"] = [{"name": name, "ending": "jpg"} for name in names]

    def shares(place: Any) -> list[float]:
        height, width = photographs[place["picture"]].shape[:2]
        parts = np.array([place["x"] / width, place["y"] / height, place["side"] / width])
        return [names.index(place["picture"]), *short(parts)]

    for record, row in zip(records, chosen, strict=True):
        record["query_place"] = shares(data.query_places[row])
        record["places"] = [shares(place) for place in data.base_places[record["ids"]]]
    return [make_photograph(photograph) for photograph in photographs.values()]


def _about(
    data: VectorSet, settings: Settings, methods: list[str], stops: list[int], chosen: npt.NDArray[np.int64]
) -> dict[str, Any]:
    styles = [(name, style_of(name)) for name in methods]
    sizes = {part: len(getattr(data, part)) for part in ("train", "base", "queries")}
    return {
        "format": _FORMAT_VERSION,
        "library": __version__,
        "set": {"name": data.name, "description": data.description, "source": data.source, "licence": data.licence},
        "sizes": {**sizes, "dimension": int(data.base.shape[1])},
        "methods": [
            {"name": n, "label": s.label, "colour": s.colour, "dashes": s.dashes, "note": _RECOMMENDED.get(n, "")}
            for n, s in styles
        ],
        "bits": list(settings.bits),
        "stops": stops,
        "k": settings.ks[-1],
        "wall": chosen.tolist(),
    }


def _common_distances(retrieved: dict[str, dict[int, Retrieved]]) -> dict[str, str]:
    """Give the distances that all methods know, and their summaries; the best that compares codes comes first."""
    results = [result for lengths in retrieved.values() for result in lengths.values()]
    common = [name for name in results[0].ids if all(name in one.ids for one in results)]
    first = next((name for name in common if name != "asymmetric"), None)
    return {name: DISTANCES[name].summary for name in sorted(common, key=lambda name: name != first)}


def _history(name: str, bits: int, hasher: Any) -> list[dict[str, Any]]:
    history = getattr(hasher, "history_", {})
    columns = {name: short(history[name]) for name in _HISTORY if np.isfinite(history.get(name, np.nan)).all()}
    return [{"method": name, "bits": bits, "history": columns}] if columns.get("cost") else []


def open_run(folder: str | os.PathLike[str], data: str | os.PathLike[str] | None = None) -> tuple[VectorSet, Settings]:
    """Give the set and the settings that a run in ``folder`` had.

    A run keeps measures, and models only of methods that it was asked for (:func:`kept_models`). Fits are repeatable,
    so training again with these settings and seed 0 gives the models that were measured.

    Parameters
    ----------
    folder : path
        What ``autojacobin reproduce --out`` wrote.
    data : path, optional
        The folder of data sets, as for :func:`autojacobin.datasets.load_set`.
    """
    path = as_path(folder) / "results.json"
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        name, source = str(record["set"]["name"]), str(record["set"]["source"])
        settings = replace(Settings(**record["settings"]), seeds=1)
    except OSError as error:
        raise StorageError(
            f"{folder} holds no finished run: {path.name} cannot be read ({error.strerror or error}); "
            "give the folder that autojacobin reproduce wrote"
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise FormatError(
            f"{path} is damaged or was not written by autojacobin reproduce, got: {error}; run it again"
        ) from error
    try:
        return load_set(name, data), settings
    except DataError:
        if not Path(source).exists():
            raise
        return load_set(source, data), settings  # a user's own set has a path instead of a name


def kept_models(folder: str | os.PathLike[str]) -> dict[tuple[str, int], Hasher]:
    """Give the models that a run has kept, by method and number of bits; those that cannot be read are left out."""
    record = json.loads((Path(folder) / "results.json").read_text(encoding="utf-8"))
    found = {}
    for method, name in record.get("models", {}).items():
        with suppress(StorageError, FormatError):  # it is trained again
            hasher = load(Path(folder) / "work" / Path(name).name)
            found[method, int(hasher.n_bits)] = hasher
    return found
