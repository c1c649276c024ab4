"""What a command prints when it is done: a sentence or a table for people, or one JSON object for programs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import typer
from rich.console import Console, RenderableType

__all__ = ["print_facts", "print_json", "print_sentence", "print_table"]

_WIDTH_OF_FILES = 120  # of tables that go into a file or a pipe, which have no edge to keep away from


def print_sentence(sentence: str, facts: Mapping[str, Any], *, quiet: bool, as_json: bool, err: bool = False) -> None:
    """Print the sentence, or with ``as_json`` the facts that it tells; ``err`` where the output itself goes out."""
    if as_json:
        print_json(facts, err=err)
    elif not quiet:
        typer.echo(sentence, err=err)


def print_facts(facts: Mapping[str, Any], *, as_json: bool) -> None:
    """Print names and values below each other."""
    if as_json:
        print_json(facts)
        return
    width = max(13, *(len(name) + 1 for name in facts)) + 1
    for name, value in facts.items():
        typer.echo(f"{name.replace('_', ' '):<{width}}{_readable(value)}")


def print_json(facts: Any, *, err: bool = False) -> None:
    """Print plain values, also those of NumPy, as JSON."""
    typer.echo(json.dumps(facts, indent=2, ensure_ascii=False, default=_plain, allow_nan=False), err=err)


def print_table(table: RenderableType) -> None:
    """Print a table as wide as the terminal allows."""
    console = Console()
    if not console.is_terminal:
        console.width = _WIDTH_OF_FILES
    console.print(table)


def _readable(value: Any) -> str:
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={part}" for name, part in value.items())
    return str(value)


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Path):
        return str(value)
    return value.item()
