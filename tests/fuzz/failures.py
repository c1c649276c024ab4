"""What a fuzzing process leaves behind for the one that started it, even if a signal ends it."""

from __future__ import annotations

import hashlib
import struct
from pathlib import Path

__all__ = ["BOARD", "BOARD_BYTES", "last_input", "note_failure"]

BOARD = struct.Struct("<QQ")  # inputs begun, length of the last one; its bytes follow
BOARD_BYTES = 2**22


def last_input(folder: Path) -> tuple[int, bytes]:
    """Give how many inputs were begun, and the last of them."""
    with (folder / "board").open("rb") as board:
        done, length = BOARD.unpack(board.read(BOARD.size))
        return done, board.read(length)


def note_failure(folder: Path, place: str, content: bytes, details: str) -> None:
    """Keep the first input that failed at a place."""
    path = folder / "failures" / hashlib.sha256(place.encode()).hexdigest()[:16]
    if not path.with_suffix(".txt").exists():
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
        path.with_suffix(".txt").write_text(f"{place}\n\n{details}", errors="backslashreplace")
