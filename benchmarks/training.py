"""Speed of training: ratios of times measured alternately in one process, best of several; and complete fits.

    python benchmarks/training.py [--quick] [--json PATH] [--data DIR] [--threads 2] [--large] [--gpu] [--plot PATH]

Whole fits use the training sets ``sift`` (128-D) and ``gist`` (960-D) under ``--data`` (or AUTOJACOBIN_DATA), and
points near a curved surface without them. ``--large`` adds the fit of 10,000 × 960 at 256 bits, which takes a quarter
of an hour; ``--gpu`` adds the same fits on a GPU; ``--plot`` draws how the time grows.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--quick", action="store_true", help="fewer points and rounds: about a minute")
parser.add_argument("--json", metavar="PATH")
parser.add_argument("--data", metavar="DIR", default=os.environ.get("AUTOJACOBIN_DATA"))
parser.add_argument("--threads", type=int, default=2)
parser.add_argument("--large", action="store_true")
parser.add_argument("--gpu", action="store_true")
parser.add_argument("--plot", metavar="PATH")
arguments = parser.parse_args()
os.environ["OMP_NUM_THREADS"] = str(arguments.threads)  # before any library reads it

import numpy as np  # noqa: E402
import printed  # noqa: E402
import timing  # noqa: E402

from autojacobin import AutoJacoBin  # noqa: E402
from autojacobin.autoencoder import Batch, Network, Objective, TangentSpaces, tangent_spaces  # noqa: E402
from autojacobin.autoencoder.jacobian import LineBuffer, squared_norm, trace  # noqa: E402
from autojacobin.autoencoder.tangent import Candidates, local_pca  # noqa: E402
from autojacobin.core.linear_algebra import coordinates, mean_row, principal_frame  # noqa: E402
from autojacobin.core.parallel import one_blas_thread  # noqa: E402
from autojacobin.datasets import load_set  # noqa: E402
from autojacobin.hashers.itq import itq_rotation  # noqa: E402

ROUNDS = 2 if arguments.quick else 7
POINTS = 2000 if arguments.quick else 10_000
results: list[dict[str, Any]] = []


def fastest(candidates: dict[str, Callable[[], Any]], rounds: int = ROUNDS) -> dict[str, float]:
    # the threads of BLAS need a moment to stop waiting for more work
    return timing.fastest(candidates, rounds, before=lambda: time.sleep(0.05))


def report(what: str, ratio: float, wanted: str, **details: float) -> None:
    shown = {name: float(f"{value:.4g}") for name, value in details.items()}
    results.append({"what": what, "ratio": ratio, "wanted": wanted, **shown})
    print(f"{what:66} {ratio:8.2f}   ({wanted})   {shown}", flush=True)


def surface(n: int, D: int, seed: int = 0) -> np.ndarray:
    """Points near a curved surface of 24 dimensions, with noise that falls off as that of real descriptors does."""
    rng = np.random.default_rng(seed)
    inner = rng.normal(size=(n, 24)).astype(np.float32)
    mixing = np.random.default_rng(99).normal(size=(24, D)).astype(np.float32)
    noise = rng.normal(size=(n, D)) * np.geomspace(0.5, 0.05, D)
    return (np.tanh(0.3 * inner @ mixing) + noise).astype(np.float32)


def learning_set(name: str, n: int, D: int) -> np.ndarray:
    folder = Path(arguments.data or "") / name
    if arguments.data and folder.is_dir():
        return np.asarray(load_set(folder).train[:n]).astype(np.float32)
    return surface(n, D)


def problem(n: int, D: int, d: int, r: int) -> tuple[Network, Batch]:
    rng = np.random.default_rng(0)
    W1 = np.linalg.qr(rng.normal(size=(D, D)))[0][:d]
    parts = (W1, np.zeros(d), W1.T, np.zeros(D))
    network = Network(*(np.ascontiguousarray(part, dtype=np.float32) for part in parts))
    X = (rng.normal(size=(n, D)) / D).astype(np.float32)
    bases = rng.normal(0, D**-0.5, (n, r, D)).astype(np.float32)
    return network, Batch(X, X, TangentSpaces(bases, np.full(n, r)))


@one_blas_thread()  # as it is during training
def evaluate(network: Network, batch: Batch) -> Any:
    return Objective(jacobian_weight=1.0)(network, batch)


def objective() -> None:
    for D, wanted in ((128, ">= 30"), (960, ">= 60")):
        network, batch = problem(1000, D, 64, 64)
        few = 8 if D == 128 else 1
        X, bases = batch.inputs[:few], batch.tangents.bases[:few]
        square = np.random.default_rng(0).random((2000, 2000), dtype=np.float32)
        times = fastest(
            {
                "ours": lambda n=network, b=batch: evaluate(n, b),
                "printed": lambda n=network, X=X, T=bases: printed.as_printed(n, X, T),
                "by_hand": lambda n=network, X=X, T=bases: printed.by_hand(n, X, T),
                "sgemm": lambda s=square: s @ s,
            }
        )
        a_point = times["ours"] / 1000
        microseconds = {name: 1e6 * times[name] / few for name in ("printed", "by_hand")}
        ratio = times["printed"] / few / a_point
        report(
            f"objective and gradient, D={D}, d=64, against Appendix II",
            ratio,
            wanted,
            ours=1e6 * a_point,
            **microseconds,
        )
        report("  against D x D Jacobians without third-order arrays", times["by_hand"] / few / a_point, "> 1")
        rate = 1000 * (8 * D * 64 * 64 + 3 * D * 64 * 65) / times["ours"]
        peer = 2 * 2000**3 / times["sgemm"]
        report("  share of the rate of a large sgemm", rate / peer, ">= 0.4", gflops=rate / 1e9, sgemm=peer / 1e9)


@one_blas_thread()
def line() -> None:
    """CPU time of the parts of a step, divided by that of as many full evaluations."""
    for D, d in ((128, 64),) if arguments.quick else ((128, 64), (960, 256)):
        n = 1000 if D == 128 else 250
        network, batch = problem(n, D, d, d)
        objective, room = Objective(jacobian_weight=1.0), LineBuffer()
        best = dict.fromkeys(("full", "start", "first", "next"), float("inf"))
        for _ in range(ROUNDS if D == 128 else 2):
            calls: dict[str, Callable[[], Any]] = {
                "full": lambda n=network, b=batch, o=objective: o(n, b),
                "start": lambda n=network, b=batch, o=objective, r=room: o.descent(n, b, r),
            }
            for name, call in calls.items():
                best[name] = min(best[name], _cpu_seconds(call))
            descent = objective.descent(network, batch, room)
            for name in ("first", "next"):  # the first one finds what the others use
                best[name] = min(best[name], _cpu_seconds(lambda d=descent: d(1e-6)))
        for trials in (1, 2):
            step = best["start"] + best["first"] + (trials - 1) * best["next"]
            report(
                f"step of {trials} + 1 evaluations over evaluations in full, D={D}, d={d}",
                step / ((trials + 1) * best["full"]),
                "< 1",
                **{name: 1e6 * seconds / n for name, seconds in best.items()},
            )


def _cpu_seconds(call: Callable[[], Any]) -> float:
    start = time.process_time()
    call()
    return time.process_time() - start


def itq_against_faiss() -> None:
    import faiss

    faiss.omp_set_num_threads(arguments.threads)
    X = learning_set("sift", 10_000, 128)
    mean = mean_row(X)
    V = coordinates(X, mean, principal_frame(X, mean, 64))
    V /= np.abs(V).mean()

    def peer() -> Any:
        matrix = faiss.ITQMatrix(64)  # 50 turns, as ours
        matrix.train(V)
        return matrix

    def ours() -> Any:
        return itq_rotation(V, 50, np.random.RandomState(0))[0]

    times = fastest({"ours": ours, "faiss": peer})
    error = {name: float(((np.where(Y >= 0, 1, -1) - Y) ** 2).mean()) for name, Y in _rotated(V, ours(), peer())}
    report("ITQ 10,000 x 64, 50 turns, against faiss.ITQMatrix", times["faiss"] / times["ours"], ">= 1", **_ms(times))
    report("  its quantisation error over theirs", error["ours"] / error["faiss"], "1", **error)


def _rotated(V: np.ndarray, rotation: np.ndarray, peer: Any) -> list[tuple[str, np.ndarray]]:
    return [("ours", V @ rotation), ("faiss", peer.apply(V))]


def whole_fit(name: str, n: int, D: int, n_bits: int, device: str = "cpu") -> dict[str, float]:
    """Seconds of a fit and of its tangent spaces, and the peak of memory, in a separate process."""
    context = multiprocessing.get_context("spawn")
    parent, child = context.Pipe()
    process = context.Process(target=_fit_and_tell, args=(child, learning_set(name, n, D), n_bits, device))
    process.start()
    figures: dict[str, float] = parent.recv()
    process.join()
    return figures


def _fit_and_tell(pipe: Any, X: np.ndarray, n_bits: int, device: str) -> None:
    if device == "cuda":  # the first call of any GPU library takes seconds
        AutoJacoBin.as_published(n_bits, n_neighbors=X.shape[1] + n_bits, device=device).fit(X[:2000])
    start, tangents = time.perf_counter(), []

    def watch(stage: str, done: int, total: int) -> None:  # noqa: ARG001
        if stage == "tangent spaces":
            tangents.append(time.perf_counter() - start)

    hasher = AutoJacoBin.as_published(n_bits, random_state=0, device=device, progress=watch).fit(X)
    pipe.send(
        {
            "seconds": time.perf_counter() - start,
            "tangents": tangents[-1] if tangents else float("nan"),
            "evaluations": int(hasher.history_["evaluations"].sum()),
            "peak_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6,
        }
    )


def fits() -> None:
    sets = [("sift", 128, 64, 15.0, 480.0)]
    if arguments.large:
        sets.append(("gist", 960, 256, 720.0, float("nan")))
    for name, D, n_bits, limit, paper in sets:
        n = POINTS if D == 128 else 10_000
        figures = whole_fit(name, n, D, n_bits)
        report(
            f"whole fit {n} x {D}, {n_bits} bits, seconds", figures["seconds"], f"<= {limit:g}", paper=paper, **figures
        )
        if arguments.gpu:
            figures = whole_fit(name, n, D, n_bits, "cuda")
            report("  on a GPU, seconds", figures["seconds"], "<= 1" if D == 128 else "<= 5", **figures)


@one_blas_thread()
def breakdown() -> None:
    """Where the time of the fit at 128-D goes, on one core, in microseconds per point."""
    X = learning_set("sift", POINTS, 128) / 1000
    candidates = Candidates(X)
    places = np.arange(32)
    neighbors = candidates.nearest(X[:32], 192, places)
    network, batch = problem(128, 128, 64, 64)
    state = network.forward(batch.inputs)
    times = fastest(
        {
            "neighbours": lambda: candidates.nearest(X[:32], 192, places),
            "local_pca": lambda: local_pca(candidates, neighbors, 64, 0.98),
            "norm_part": lambda: squared_norm(network, state.g, state.a),
            "trace_part": lambda: trace(network, state.g, state.a, batch.tangents),
            "other_terms": lambda: Objective()(network, Batch(batch.inputs, batch.targets)),
        }
    )
    sizes = {"neighbours": 32, "local_pca": 32, "norm_part": 128, "trace_part": 128, "other_terms": 128}
    print("microseconds a point:", {name: round(1e6 * times[name] / sizes[name], 1) for name in times})
    results.append({"what": "breakdown", **{name: 1e6 * times[name] / sizes[name] for name in times}})


def growth() -> None:
    """Slopes of log time over log size, beside the slopes that follow from the operation counts."""
    quick = arguments.quick
    axes: dict[str, tuple[str, list[int], Callable[[int], Callable[[], Any]]]] = {
        "objective over n": ("1", [250, 500, 1000, 2000], lambda n: _evaluation(n, 128, 64)),
        "objective over D": ("1", [64, 128, 256, 512], lambda D: _evaluation(500, D, 64)),
        "objective over d": ("2 (d = r)", [16, 32, 64, 128], lambda d: _evaluation(500, 128, d)),
        "tangent spaces over N": ("1 to 2", [500, 1000, 2000] + [4000] * (not quick), lambda n: _tangents(n, 64, 16)),
        "tangent spaces over D": ("3", [32, 64, 128] + [256] * (not quick), lambda D: _tangents(400, D, 16)),
    }
    curves = {}
    for what, (expected, sizes, make) in axes.items():
        seconds = [fastest({"it": make(size)}, 2 if quick else 3)["it"] for size in sizes]
        slope = float(np.polyfit(np.log(sizes[1:]), np.log(seconds[1:]), 1)[0])
        report(f"growth: {what}, slope", slope, expected, **{str(s): t for s, t in zip(sizes, seconds, strict=True)})
        curves[what] = (sizes, seconds, expected)
    if arguments.plot:
        _plot(curves)


def _evaluation(n: int, D: int, d: int) -> Callable[[], Any]:
    network, batch = problem(n, D, d, d)
    return lambda: evaluate(network, batch)


def _tangents(n: int, D: int, r: int) -> Callable[[], Any]:
    X = surface(n, D)
    return lambda: tangent_spaces(X, min(n, D + r), r, 0.98)


def _plot(curves: dict[str, tuple[list[int], list[float], str]]) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5.4), layout="constrained")
    axes = list(figure.subplots(2, 3).ravel())
    for axis, (what, (sizes, seconds, expected)) in zip(axes, curves.items(), strict=False):
        axis.loglog(sizes, seconds, "o-", label="seen")
        promised = float(expected.split()[0])
        axis.loglog(
            sizes, [seconds[-1] * (s / sizes[-1]) ** promised for s in sizes], "--", label=f"slope {promised:g}"
        )
        axis.set(title=what, xlabel=what.split()[-1])
        axis.set_xticks(sizes, [f"{size:,}" for size in sizes])
        axis.minorticks_off()
        ends = [min(seconds), max(seconds)]
        axis.set_yticks(ends, [f"{1000 * end:,.0f} ms" for end in ends])
        axis.set_ylim(ends[0] / 1.6, ends[1] * 1.6)
        axis.legend(loc="upper left", fontsize=8)
    for axis in axes[len(curves) :]:
        axis.set_visible(False)
    figure.savefig(arguments.plot, metadata={"Date": None})


def _ms(times: dict[str, float]) -> dict[str, float]:
    return {f"{name}_ms": 1000 * seconds for name, seconds in times.items()}


def main() -> None:
    objective()
    line()
    itq_against_faiss()
    breakdown()
    growth()
    fits()
    print("\nratios")
    for result in results:
        if "ratio" in result:
            print(f"{result['ratio']:8.2f}  {result['wanted']:12} {result['what']}")
    if arguments.json:
        timing.write_results(arguments.json, results, arguments)


if __name__ == "__main__":
    main()
