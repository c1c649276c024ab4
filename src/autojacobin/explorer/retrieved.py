"""What a method retrieves for each query, and the sprites that show it."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from autojacobin.codes import Codes
from autojacobin.datasets.descriptors import opencv
from autojacobin.evaluation.measures import ranks_in_list
from autojacobin.hashers import Hasher
from autojacobin.search import rerank
from autojacobin.search.distances import distances_of

_COLUMNS = 32
_LARGEST_SIDE = 64
_PHOTOGRAPH_SIDE = 300  # pixels of the longer side of a small photograph
_JPEG_BLOCK = 8
_JPEG_QUALITY = 85


@dataclass(frozen=True, eq=False)
class Retrieved:
    """What a fitted method retrieves from the codes of a base, by the name of a distance.

    ``ids`` (n_wall, depth) are the points in the order of their codes, for the queries on the wall. ``found`` (k,
    n_stops) counts queries: those whose j-th true neighbour is among the candidates of a stop.
    """

    hasher: Hasher
    codes: Codes
    ids: dict[str, npt.NDArray[np.int64]]
    found: dict[str, npt.NDArray[np.int64]]

    def ever_shown(self, queries: Any, base: Any, stops: list[int], k: int) -> list[npt.NDArray[np.int64]]:
        """For each query, the ids that are among the k nearest candidates at one or more of the stops."""
        shown: list[list[npt.NDArray[np.int64]]] = [[] for _ in range(len(queries))]
        for ids in self.ids.values():
            _, nearest = rerank(queries, ids, base, ids.shape[1])
            for pieces, row, before in zip(shown, nearest, ranks_in_list(ids, nearest, ids.shape[1]), strict=True):
                pieces += [row[before < stop][:k] for stop in stops]
        return [np.unique(np.concatenate(pieces)) for pieces in shown]

    def record(self, place: int, query: Any, ids: npt.NDArray[np.int64]) -> dict[str, Any]:
        """Codes, ranks and distances of some points, for a query at a place on the wall, as the page wants them."""
        codes, distances, ranks = self.codes[ids], {}, {}
        for name, distance in distances_of(self.hasher).items():
            before, found = ranks_in_list(self.ids[name][[place]], ids[None], len(ids))[0], self.ids[name].shape[1]
            ranks[name] = np.where(before < found, before + 1, 0).tolist()
            nearest_first, order = distance.topk(distance.encode(self.hasher, query), codes, len(ids))
            distances[name] = short(nearest_first[0][np.argsort(order[0])])
        return {
            "query": _base64(self.hasher.encode(query)),
            "codes": _base64(codes),
            "weights": short(np.abs(self.hasher.project(query)[0])),
            "ranks": ranks,
            "distances": distances,
        }


def retrieve(
    hasher: Hasher, base: Any, queries: Any, truth: npt.NDArray[np.int64], wall: npt.NDArray[np.int64], stops: list[int]
) -> Retrieved:
    """Encode with a fitted hasher, search by every distance, and count what was found after each stop."""
    codes, kept, found = hasher.encode(base), {}, {}
    for name, distance in distances_of(hasher).items():
        _, ids = distance.topk(distance.encode(hasher, queries), codes, stops[-1])
        before = ranks_in_list(ids, truth, truth.shape[1])
        found[name] = np.stack([(before < stop).sum(axis=0) for stop in stops], axis=1)
        kept[name] = ids[wall]
    return Retrieved(hasher, codes, kept, found)


def short(values: npt.NDArray[Any]) -> list[float]:
    """Numbers with the five digits that a page can show."""
    return [float(f"{value:.5g}") for value in values.tolist()]


def _base64(codes: Codes) -> str:
    return base64.b64encode(codes.packed.tobytes()).decode()


@dataclass(frozen=True)
class Sprite:
    """An encoded picture made of tiles, row by row; the layout has its columns and rows, and the size of a tile."""

    content: bytes
    ending: str
    layout: dict[str, int]


def make_sprite(patches: Any) -> Sprite:
    """Lay pictures out in one, each with its brightness stretched from black to white, as in the paper's figures."""
    from autojacobin.paper.reproduction.measured import stretched

    tiles = np.stack([_shrunk(tile, _LARGEST_SIDE) for tile in stretched(patches)])
    n, height, width = tiles.shape[:3]
    columns = min(_COLUMNS, n)
    rows = -(-n // columns)
    sheet = np.zeros((rows * columns, *tiles.shape[1:]), dtype=np.uint8)
    sheet[:n] = tiles
    whole = sheet.reshape(rows, columns, *tiles.shape[1:]).swapaxes(1, 2)
    whole = whole.reshape(rows * height, columns * width, *tiles.shape[3:])
    # a JPEG has a third of the size of a PNG, but its blocks must not span two tiles
    ending = "jpg" if height % _JPEG_BLOCK == width % _JPEG_BLOCK == 0 and height > _JPEG_BLOCK else "png"
    layout = {"columns": columns, "rows": rows, "width": width, "height": height}
    return Sprite(_encoded(whole, ending), ending, layout)


def make_photograph(picture: npt.NDArray[np.uint8]) -> bytes:
    """Make a small copy of a photograph, as JPEG."""
    return _encoded(_shrunk(picture, _PHOTOGRAPH_SIDE), "jpg")


def _encoded(picture: npt.NDArray[np.uint8], ending: str) -> bytes:
    cv2 = opencv("a page with pictures")
    blue_first = picture[..., ::-1] if picture.ndim == 3 else picture
    options = [cv2.IMWRITE_JPEG_QUALITY, _JPEG_QUALITY] if ending == "jpg" else []
    _, content = cv2.imencode(f".{ending}", np.ascontiguousarray(blue_first), options)
    return bytes(content)


def _shrunk(picture: npt.NDArray[np.uint8], most: int) -> npt.NDArray[np.uint8]:
    """Average over areas, so that no side is longer than ``most`` pixels."""
    longest = max(picture.shape[:2])
    if longest <= most:
        return picture
    height, width = (max(1, side * most // longest) for side in picture.shape[:2])
    cv2 = opencv("a page with pictures")
    return np.asarray(cv2.resize(picture, (width, height), interpolation=cv2.INTER_AREA))
