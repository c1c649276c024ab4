"""Settings of a command as a TOML file: read for ``--config``, and written beside the output of a run.

The file has one table per command, so that one file can serve a whole pipeline. Its keys are the long names of options:

    [train]
    method = "itq"
    bits = 64

    [index.build]
    vectors = false

A file that a run wrote also has a table ``[run]``, which describes the run and is not read.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

import typer

from autojacobin.core.addresses import redacted_address, redacted_message
from autojacobin.core.files import write_atomically

# those that do not change the output, and consent to replace a file, which is given anew each time
_NOT_SETTINGS = ("config", "quiet", "json", "debug", "help", "overwrite")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def use_settings(context: typer.Context, path: Path | None) -> Path | None:
    """Use the settings of the file as the defaults of the command."""
    if path is not None and not context.resilient_parsing:
        known = _settings_of(context)
        table = _table(context, path)
        for key in table:
            if key not in known:
                raise _wrong(f"{path} sets {key!r}, which is unknown here; known are {', '.join(known)}")
        context.default_map = {known[key].name: _as_typed(known[key], key, value) for key, value in table.items()}
    return path


def settings_path(output: Path) -> Path:
    """Where the settings of a run go."""
    return Path(f"{output}.toml")


def write_settings(context: typer.Context, output: Path, **instead: Any) -> None:
    """Write the settings that the command ran with to ``<output>.toml``; ``instead`` replaces some, by key."""
    from autojacobin import __version__

    values = {key: context.params.get(param.name) for key, param in _settings_of(context).items()} | instead
    run: dict[str, Any] = {"version": __version__, "command": " ".join(_names(context))}
    run |= {param.name: _shown(context.params[param.name]) for param in _parameters(context, "argument")}
    table: dict[str, Any] = {key: _shown(value) for key, value in values.items() if value is not None}
    for name in reversed(_names(context)):
        table = {name: table}
    write_atomically(settings_path(output), as_toml({"run": run, **table}).encode("utf-8", "replace"))


def _shown(value: Any) -> Any:
    """Give a value without the passwords that addresses may contain."""
    if isinstance(value, Mapping):
        return {key: _shown(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_shown(entry) for entry in value]
    return redacted_address(value) if isinstance(value, str | Path) and not isinstance(value, Enum) else value


def as_toml(document: Mapping[str, Any], above: tuple[str, ...] = ()) -> str:
    """Give nested mappings of plain values as TOML."""
    lines = [f"{_key(key)} = {_value(value)}\n" for key, value in document.items() if not isinstance(value, Mapping)]
    head = f"[{'.'.join(map(_key, above))}]\n" if above and (lines or not document) else ""
    tables = [as_toml(value, (*above, key)) for key, value in document.items() if isinstance(value, Mapping)]
    return "\n".join(part for part in (head + "".join(lines), *tables) if part)


def _settings_of(context: typer.Context) -> dict[str, Any]:
    """Options of the command by their key in a file."""
    keys = {_long_name(param): param for param in _parameters(context, "option")}
    return {key: param for key, param in keys.items() if key not in _NOT_SETTINGS}


def _parameters(context: typer.Context, kind: str) -> list[Any]:
    return [param for param in context.command.params if param.param_type_name == kind]


def _long_name(param: Any) -> str:
    return str(next((name for name in param.opts if name.startswith("--")), param.opts[0])).lstrip("-")


def _names(context: typer.Context) -> list[str]:
    """Names of the command below ``autojacobin``: ``["index", "build"]``."""
    names: list[str] = []
    here: Any = context
    while here.parent is not None:
        names.insert(0, here.info_name)
        here = here.parent
    return names


def _table(context: typer.Context, path: Path) -> dict[str, Any]:
    """Read the table of this command from the file."""
    table: Any = _parsed(path)
    names = _names(context)
    root: Any = context.find_root().command
    for key in table:
        if key != "run" and key not in root.commands:
            raise _wrong(f"{path} has {key!r} outside of a command's table; put it below [{'.'.join(names)}]")
    for depth, name in enumerate(names, 1):
        if not isinstance(table, dict) or not isinstance(table.get(name), dict):
            raise _wrong(f"{path} has no table [{'.'.join(names[:depth])}], which holds the settings of this command")
        table = table[name]
    return dict(table)


def _parsed(path: Path) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        try:
            import tomli as tomllib
        except ImportError:
            raise _wrong("reading TOML before Python 3.11 needs the package tomli; run: pip install tomli") from None
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise _wrong(f"{path} is not a TOML file: {error}") from None


def _as_typed(param: Any, key: str, value: Any) -> Any:
    """Give a value as typed on the command line, so that it is checked by the same rules."""
    several = bool(getattr(param, "multiple", False))
    if several and isinstance(value, dict):
        value = [f"{name}={part}" for name, part in value.items()]
    if isinstance(value, list) and several:
        return [str(part) for part in value]
    if isinstance(value, bool) and getattr(param, "is_flag", False):
        return value
    if not isinstance(value, bool | int | float | str):
        raise _wrong(f"{key!r} must be one value, got {redacted_message(repr(value))}")
    return [str(value)] if several else str(value)


def _wrong(what: str) -> typer.BadParameter:
    return typer.BadParameter(what, param_hint="'--config'")


def _key(key: str) -> str:
    return key if _BARE_KEY.fullmatch(key) else _text(key)


def _value(value: Any) -> str:
    if isinstance(value, Enum):
        return _value(value.value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"[{', '.join(map(_value, value))}]"
    return _text(str(value))


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
