"""The command line: composed from the library, with no logic of its own."""

import sys

from autojacobin.errors import MissingExtraError

try:
    from autojacobin.cli.program import app, main
except ModuleNotFoundError as error:
    if error.name not in ("typer", "rich"):
        raise
    _missing = MissingExtraError(error.name, "cli", "the command line")

    def main() -> None:
        """End with the command that installs what is missing."""
        sys.exit(f"autojacobin: {_missing}")

except KeyboardInterrupt:  # while the commands are loaded, which takes a third of a second
    sys.exit(130)

__all__ = ["app", "main"]
