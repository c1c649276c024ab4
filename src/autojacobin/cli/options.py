"""Options that several commands have, and settings as a TOML file: for ``--config``, and beside the output of a run."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import typer
from typer import Argument, Option

from autojacobin import __version__
from autojacobin.cli.console import wrong
from autojacobin.codes import BitOrder
from autojacobin.core.addresses import redacted_address, redacted_message
from autojacobin.core.files import write_atomically
from autojacobin.search.distances import DISTANCES, METRICS

Device = Literal["cpu", "cuda"]
if TYPE_CHECKING:  # mypy takes no computed Literal
    Distance: TypeAlias = str
    Metric: TypeAlias = str
else:
    Distance, Metric = Literal[tuple(DISTANCES)], Literal[tuple(METRICS)]


def split_columns(names: str | None) -> list[str] | None:
    """Give the names that an option lists, separated by commas."""
    return None if names is None else [name.strip() for name in names.split(",")]


ModelPath = Annotated[Path, Argument(metavar="MODEL", help="Model that `autojacobin train` wrote.")]
IndexPath = Annotated[Path, Argument(metavar="INDEX", help="Folder of the index.")]
QueriesPath = Annotated[str, Argument(metavar="QUERIES", help="File of query vectors, PATH::PART, or -.")]
NeighboursPath = Annotated[Path, Argument(metavar="OUT", help="File to write: .npz, .npy, .parquet, .csv, .jsonl, -.")]

Overwrite = Annotated[bool, Option("--overwrite", help="Replace the output if it exists already.")]
Seed = Annotated[int, Option("--seed", min=0, max=2**32 - 1, help="Seed of all random numbers.")]
OnDevice = Annotated[Device, Option("--device", help="Where to compute; cuda is for the auto-encoders.")]
SearchDevice = Annotated[Device, Option("--device", help="Where to search; cuda is an NVIDIA GPU.")]
Format = Annotated[str | None, Option(metavar="NAME", help="Format, such as fvecs, if the name does not show it.")]
Bits = Annotated[int, Option("--bits", "-b", min=1, help="Length of a code.")]
BitOrderOption = Annotated[BitOrder, Option(help="First bit of a byte: little is the least significant.")]
K = Annotated[int, Option("-k", min=1, help="Neighbours of each query.")]
ByDistance = Annotated[
    Distance | None,
    Option("--distance", "-d", metavar="NAME", help=f"How to compare codes: {', '.join(DISTANCES)}; else the best."),
]
Candidates = Annotated[int | None, Option("--candidates", "-c", min=1, help="Codes to re-rank; else recall decides.")]
Recall = Annotated[
    float | None,
    Option(min=0, max=1, metavar="SHARE", help="Share of the true neighbours to find; 0.95 by default, 1 is exact."),
]
Rerank = Annotated[bool | None, Option("--rerank/--no-rerank", help="Sort the candidates by their vectors, if any.")]
MetricOption = Annotated[
    Metric,
    Option("--metric", metavar="NAME", help=f"How vectors are compared: {', '.join(METRICS)}. The model keeps it."),
]
Partitions = Annotated[str | None, Option(metavar="N", help="Inverted lists; auto makes them where they pay.")]
Probes = Annotated[int | None, Option(min=1, help="Inverted lists to scan; else recall decides.")]
KeepVectors = Annotated[bool, Option("--vectors/--no-vectors", help="Keep the vectors too, for re-ranking.")]
Columns = Annotated[str | None, Option(metavar="NAMES", help="Columns of the payload, with commas between.")]
SetName = Annotated[str, Option("--set", help="Name of a data set, or path of your own.")]
DataFolder = Annotated[Path | None, Option(metavar="DIR", help="Folder of sets; else $AUTOJACOBIN_DATA, or the cache.")]


_NOT_SETTINGS = ("help", "overwrite")  # consent to replace a file is given anew each time


def typed_settings(path: Path, names: list[str], command: Any) -> list[str]:
    """Give the settings that a TOML file has for a command, of these names, as they are typed."""
    table: Any = _parsed(path)
    for name in names:
        table = table.get(name) if isinstance(table, dict) else None
    if not isinstance(table, dict):
        raise wrong("--config", f"{path} has no table [{'.'.join(names)}], which holds the settings of this command")
    known, words = _settings_of(command), list[str]()
    for key, value in table.items():
        if key not in known:
            raise wrong("--config", f"{path} sets {key!r}, which is unknown here; known are {', '.join(known)}")
        option, parts = known[key], value if isinstance(value, list) else [value]
        if isinstance(value, dict):
            parts = [f"{name}={part}" for name, part in value.items()]
        if len(parts) != 1 and not option.multiple:
            raise wrong("--config", f"{key!r} must be one value, got {redacted_message(repr(value))}")
        if isinstance(value, bool) and option.is_flag:
            words += option.opts[:1] if value else option.secondary_opts
        else:
            words += [word for part in parts for word in (option.opts[0], str(part))]
    return words


def settings_path(output: Path) -> Path:
    """Where the settings of a run go."""
    return Path(f"{output}.toml")


def write_settings(context: typer.Context, output: Path, **instead: Any) -> None:
    """Write the settings that the command ran with to ``<output>.toml``; ``instead`` replaces some, by key."""
    import tomli_w

    values = {key: context.params.get(param.name) for key, param in _settings_of(context.command).items()} | instead
    names = context.command_path.removeprefix(context.find_root().command_path).split()
    run: dict[str, Any] = {"version": __version__, "command": " ".join(names)}
    run |= {param.name: _shown(context.params[param.name]) for param in _parameters(context.command, "argument")}
    table: dict[str, Any] = {key: _shown(value) for key, value in values.items() if value not in (None, [], ())}
    for name in reversed(names):
        table = {name: table}
    write_atomically(settings_path(output), tomli_w.dumps({"run": run, **table}).encode("utf-8", "replace"))


def _shown(value: Any) -> Any:
    """Give a value as TOML has it, without the passwords that addresses may contain."""
    if isinstance(value, Mapping):
        return {key: _shown(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_shown(entry) for entry in value]
    return redacted_address(value) if isinstance(value, str | Path) else value


def _settings_of(command: Any) -> dict[str, Any]:
    """Options of a command by their key in a file."""
    keys = {max(param.opts, key=len).lstrip("-"): param for param in _parameters(command, "option")}
    return {key: param for key, param in keys.items() if key not in _NOT_SETTINGS}


def _parameters(command: Any, kind: str) -> list[Any]:
    return [param for param in command.params if param.param_type_name == kind]


def _parsed(path: Path) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise wrong("--config", f"{path} is not a TOML file: {getattr(error, 'strerror', None) or error}") from None
