"""The command line: composed from the library, with no logic of its own."""

from autojacobin.cli.program import app, main

__all__ = ["app", "main"]
