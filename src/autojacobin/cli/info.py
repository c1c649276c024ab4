"""``autojacobin info`` and ``bench``: what a file or this installation is, and how fast this machine is."""

import importlib.metadata
import platform
import re
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import typer
from typer import Argument, Option

from autojacobin import __version__
from autojacobin.cli.console import output, print_facts, print_json, print_table, progress_bar, table_of, wrong
from autojacobin.cli.models import settable
from autojacobin.cli.opening import open_index, opened, saved_bits, split_part
from autojacobin.cli.options import Bits, K
from autojacobin.codes import Codes
from autojacobin.core.files import check_not_special
from autojacobin.core.parallel import usable_cores
from autojacobin.errors import DataError, StorageError
from autojacobin.hashers import LSH, Hasher, load
from autojacobin.search.distances import distances_of

_FIRST_ROWS = 1_000
_FOR_DEVELOPERS = ("dev", "fuzz", "test")
_FEATURES, _INNER_DIMENSIONS, _TRAINING_POINTS, _ROUNDS = 128, 12, 10_000, 5  # of bench


def info(
    path: Annotated[str | None, Argument(metavar="PATH", help="Model, codes, index or vectors, PATH::PART.")] = None,
) -> None:
    """Describe a file or folder; without one, this installation: versions, cores, devices, and what is missing.

    Example: autojacobin info model.safetensors

    Example: autojacobin info
    """
    print_facts(_installation() if path is None else _describe(path))


def _describe(name: str) -> dict[str, Any]:
    path = Path(split_part(name)[0])
    if not path.exists():
        raise StorageError(f"cannot read {path}: there is no such file or folder; look at the spelling")
    if path.is_dir():
        with open_index(path) as index:
            return {"kind": "index", **index.info(), "trained_as": index.hasher.trained_as}
    check_not_special(path, "read")
    with open(path, "rb") as file:
        is_model = path.suffix.lower() == ".safetensors" or file.read(10)[8:] == b'{"'  # after the header's length
    return _model(path) if is_model else _vectors(name)


def _model(path: Path) -> dict[str, Any]:
    hasher = load(path)
    width = int(hasher.n_features_in_) - (hasher.metric_ == "inner_product")
    facts: dict[str, Any] = {"kind": "model", "method": type(hasher).__name__, "trained_as": hasher.trained_as}
    facts |= {"bits": int(hasher.n_bits), "features": width, "metric": hasher.metric_}
    facts |= {"seed": getattr(hasher, "random_state", None), "parameters": _parameters(hasher)}
    return facts | {"bytes": path.stat().st_size}


def _parameters(hasher: Hasher) -> dict[str, Any]:
    """Parameters of a hasher, and of the one that it wraps."""
    own = settable(hasher)
    inner = own.pop("hasher", None)
    return own if inner is None else own | {name: value for name, value in settable(inner).items() if name not in own}


def _vectors(name: str) -> dict[str, Any]:
    with opened(name) as vectors:
        size = vectors.path.stat().st_size
        if saved_bits(vectors) is not None:
            codes = Codes.load(vectors.path)
            return {"kind": "codes", "codes": len(codes), "bits": codes.n_bits, "bytes": size}
        first = np.asarray(vectors[:_FIRST_ROWS])
        facts: dict[str, Any] = {"kind": "vectors", "format": vectors.format, "vectors": len(vectors)}
        facts |= {"features": vectors.shape[1], "type": str(vectors.dtype), "bytes": size}
    finite = first[np.isfinite(first)]
    if finite.size:
        facts[f"first_{len(first):,}"] = f"from {finite.min():.6g} to {finite.max():.6g}"
    if finite.size < first.size:
        facts["not_finite"] = f"{first.size - finite.size:,} of the first {first.size:,} numbers"
    return facts


def _installation() -> dict[str, Any]:
    facts: dict[str, Any] = {"autojacobin": __version__, "python": platform.python_version()}
    facts |= {"machine": f"{platform.system()} {platform.machine()}", "cores": usable_cores(), "gpu": _gpu()}
    for requirement in importlib.metadata.requires("autojacobin") or []:
        extra, name = re.search(r"extra == ['\"]([\w-]+)", requirement), re.split(r"[^\w.-]", requirement)[0]
        needed = not (extra and extra[1] in _FOR_DEVELOPERS) and "python_version" not in requirement
        if needed and name != "autojacobin":
            facts[name] = _version(name) or (f"not installed: pip install 'autojacobin[{extra[1]}]'" if extra else None)
    return facts


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _gpu() -> str:
    if find_spec("cupy") is None:
        return "not looked for, because cupy is not installed"
    import cupy

    try:
        count = int(cupy.cuda.runtime.getDeviceCount())
        names = [cupy.cuda.runtime.getDeviceProperties(number)["name"].decode() for number in range(count)]
    except cupy.cuda.runtime.CUDARuntimeError:
        return "none found"
    return ", ".join(names) or "none found"


def bench(
    bits: Bits = 64,
    points: Annotated[int, Option("--points", min=100, help="Vectors to encode and to search among.")] = 200_000,
    queries: Annotated[int, Option("--queries", min=1, help="Queries at once.")] = 200,
    k: K = 10,
) -> None:
    """Measure how fast this machine encodes and searches, in comparison with FAISS if that is installed.

    All take turns on the same codes in this process: the best of five rounds counts, and the first call does not.

    Example: autojacobin bench --points 5000 --queries 20
    """
    from autojacobin.paper.reproduction.searches import fastest

    if k > points:
        raise wrong("-k", f"{k} is more than the {points} points")
    with progress_bar() as progress:
        progress("making points near a curved surface", 0, 0)
        tasks = _tasks(_surface(points, 0), _surface(queries, 1), bits, k)
        progress("measuring", 0, 0)
        for task in tasks.values():  # compiles, and prepares the codes
            task()
        best = dict(zip(tasks, fastest(list(tasks.values()), _ROUNDS), strict=True))
    facts: dict[str, Any] = {"bits": bits, "points": points, "features": _FEATURES, "queries": queries, "k": k}
    facts |= {"cores": usable_cores(), "seconds": best}
    peers = [seconds for name, seconds in best.items() if name.startswith("faiss")]
    if peers:
        facts["times_as_fast_as_faiss"] = min(peers) / best["hamming"]
    if output.as_json:
        print_json(facts)
        return
    typer.echo(", ".join(f"{name} {value:,}" for name, value in facts.items() if isinstance(value, int)))
    table = table_of("what", "best time", "vectors or queries per second")
    for name, seconds in best.items():
        table.add_row(name, f"{1000 * seconds:,.2f} ms", f"{(points if name == 'encode' else queries) / seconds:,.0f}")
    print_table(table)
    if peers:
        ratio = facts["times_as_fast_as_faiss"]
        sentence = f"Hamming search ran {ratio:.2f} times as fast as the faster of FAISS's two exact searches."
    else:
        sentence = "FAISS was not measured: it takes codes of whole bytes, and pip install 'autojacobin[faiss]'."
    typer.echo(f"{sentence} Synthetic points, LSH codes; other programs on this machine slow down all of them.")


def _surface(n: int, part: int) -> npt.NDArray[np.float32]:
    """Points near a curved surface of few dimensions. Their bits depend on each other, as those of real data do."""
    mixing = np.random.default_rng(0).normal(size=(2, _INNER_DIMENSIONS, _FEATURES)).astype(np.float32)
    inner = np.random.default_rng([0, part]).normal(size=(n, _INNER_DIMENSIONS)).astype(np.float32)
    return np.tanh(inner @ mixing[0]) + np.float32(0.3) * (inner @ mixing[1])


def _tasks(base: Any, asked: Any, bits: int, k: int) -> dict[str, Callable[[], Any]]:
    """What is timed, by name. The results of FAISS are compared with ours before anything is timed."""
    hasher = LSH(bits, random_state=0).fit(base[:_TRAINING_POINTS])
    codes, query_codes = hasher.encode(base), hasher.encode(asked)
    tasks: dict[str, Callable[[], Any]] = {"encode": lambda: hasher.encode(base)}
    for name, distance in distances_of(hasher).items():
        tasks[name] = partial(distance.topk, distance.encode(hasher, asked), codes, k)
    if bits % 8 or find_spec("faiss") is None:  # FAISS only has codes of whole bytes
        return tasks
    import faiss

    faiss.omp_set_num_threads(usable_cores())
    peer = faiss.IndexBinaryFlat(bits)
    peer.add(codes.packed)
    tasks["faiss flat"] = lambda: peer.search(query_codes.packed, k)
    tasks["faiss counting"] = lambda: faiss.knn_hamming(query_codes.packed, codes.packed, k, variant="mc")
    if not np.array_equal(tasks["hamming"]()[0], tasks["faiss flat"]()[0]):
        raise DataError("FAISS found other distances than this library, so nothing was timed; please report it")
    return tasks
