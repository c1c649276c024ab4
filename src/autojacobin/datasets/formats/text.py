"""Numbers as text: csv, tsv and txt.

A txt file may also begin each line with a word, as the word vectors of GloVe, word2vec and fastText do.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from autojacobin.datasets.formats.flat import LARGEST_DIMENSION
from autojacobin.datasets.formats.readers import Reader
from autojacobin.datasets.formats.source import Source, damaged, shortened, spooled
from autojacobin.datasets.formats.writing import Matrix
from autojacobin.errors import FormatError

_LONGEST_LINE = 2**25
_BYTES_PER_BLOCK = 2**22
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_DIGITS = {2: 5, 4: 9, 8: 17}  # decimal digits that every float of so many bytes needs to be read back


def open_text(source: Source, name: str) -> Reader:
    """Decode all lines into a temporary file, which is mapped."""
    blocks = _blocks_of_lines(source, name)
    first = next(blocks, []) + next(blocks, [])
    skipped = next((number for number, line in enumerate(first) if not line.lstrip().startswith(b"#")), len(first))
    lines = _Lines(source, name, skipped, first[skipped:])
    parts = spooled(lines.numbers(itertools.chain([first[lines.skipped :]], blocks)), f"decode {source.path}")
    return Reader(parts.view(lines.dtype).reshape(-1, lines.width), lines.words)


class _Lines:
    """What the first lines say about all of them: header, separator, width, and whether each begins with a word."""

    def __init__(self, source: Source, name: str, skipped: int, first: list[bytes]) -> None:
        self._source, self._name, self.skipped = source, name, skipped
        self._separator: bytes | None = None
        self.words: list[str] | None = None
        self.dtype: np.dtype[Any] = np.dtype(np.float64)
        after_words = _width_after_words(first) if name == "text" else None
        if after_words is not None:
            self.width, has_header = after_words
            self.skipped += has_header
            self.words, self.dtype = [], np.dtype(np.float32)
        else:
            self._read_header(first)
        if self.width > LARGEST_DIMENSION:
            what = f"more than {LARGEST_DIMENSION} fields in line {1 + self.skipped}"
            raise damaged(source.path, name, f"{what}, expected 1 to {LARGEST_DIMENSION}")

    def _read_header(self, first: list[bytes]) -> None:
        header: list[bytes] = []
        if first and not any(_is_number(field) for field in _fields(first[0], _separator(first[0], self._name))):
            header = _fields(first[0], _separator(first[0], self._name))
            self.skipped, first = self.skipped + 1, first[1:]
        if not any(map(bytes.strip, first)):
            raise FormatError(
                f"{self._source.path} holds no line of numbers, expected one vector per line; give a {self._name} file "
                "with numbers"
            )
        self._separator = _separator(first[0], self._name)
        if header and not any(map(_is_number, _fields(first[0], self._separator))):
            words = (
                shortened(" ".join(text.decode("utf-8", "replace").split()), 40)
                for text in (b" ".join(header), first[0])
            )
            raise FormatError(
                f"{self._source.path} holds text and no vectors, got {' and '.join(map(repr, words))} in its first "
                "lines, expected numbers; if these are names, give them as ids beside a file of vectors"
            )
        self.width = len(_fields(first[0], self._separator))
        if header and (len(header) == self.width - 1 or not header[0].strip(b' \t\r"')):  # of pandas and R
            raise FormatError(
                f"{self._source.path} has no name for the first column in line {self.skipped}, its header, so "
                "its lines seem to begin with the names of rows; write it without them, as to_csv(index=False) does"
            )

    def numbers(self, blocks: Iterator[list[bytes]]) -> Iterator[npt.NDArray[Any]]:
        """Decode blocks of lines; empty lines may be at the end alone."""
        number, empty = self.skipped + 1, list[bytes]()
        for block in blocks:
            lines = empty + block
            end = next((end for end in range(len(lines), 0, -1) if lines[end - 1].strip()), 0)
            empty = lines[end:]
            if end:
                yield self._decoded(lines[:end], number)
                number += end

    def _decoded(self, lines: list[bytes], number: int) -> npt.NDArray[Any]:
        """Decode some lines, the first of which is line ``number`` of the file."""
        fields = lines
        if self.words is not None:
            split = [line.rsplit(None, self.width) for line in lines]
            wrong = next((row for row, parts in enumerate(split) if len(parts) != self.width + 1), None)
            if wrong is not None:
                raise self._wrong(f"{max(0, len(split[wrong]) - 1)} fields in line {number + wrong}")
            self.words += [parts[0].decode("utf-8", "replace") for parts in split]
            fields = [b" ".join(parts[1:]) for parts in split]
        missing = next((row for row, line in enumerate(lines) if not line.strip()), None)
        if missing is not None:  # loadtxt would leave it out
            raise self._wrong(f"nothing in line {number + missing}")
        separator = None if self._separator is None else self._separator.decode()
        try:
            text = [line.decode("ascii", "backslashreplace") for line in fields]
            found = np.loadtxt(text, self.dtype, delimiter=separator, quotechar='"', comments=None, ndmin=2)
        except (ValueError, OverflowError) as error:
            raise self._wrong(_reason(str(error), number)) from None
        if found.shape != (len(lines), self.width):
            raise self._wrong(f"{found.shape[1]} fields in lines {number} to {number + len(lines) - 1}")
        return found

    def _wrong(self, what: str) -> FormatError:
        return damaged(self._source.path, self._name, f"{what}, expected {self.width} numbers as in the first line")


def _reason(message: str, number: int) -> str:
    """What NumPy says, with the number of the line in the file."""
    if found := re.search(r"string (.*) to float\d+ at row (\d+), column (\d+)", message, re.DOTALL):
        return f"{shortened(found[1], 60)} in field {found[3]} of line {number + int(found[2])}"
    if found := re.search(r"columns changed from \d+ to (\d+) at row (\d+)", message):
        return f"{found[1]} fields in line {number + int(found[2]) - 1}"
    return shortened(f"{' '.join(message.split())} from line {number} on", 200)


def _blocks_of_lines(source: Source, name: str) -> Iterator[list[bytes]]:
    """Give lists of whole lines, some megabytes at a time."""
    rest, start = b"", len(_BYTE_ORDER_MARK) if source.head(3) == _BYTE_ORDER_MARK else 0
    for begin in range(start, len(source), _BYTES_PER_BLOCK):
        *lines, rest = (rest + source.content[begin : begin + _BYTES_PER_BLOCK].tobytes()).split(b"\n")
        if len(rest) > _LONGEST_LINE:
            what = f"more than {_LONGEST_LINE} bytes without the end of a line"
            raise damaged(source.path, name, f"{what}, expected one vector per line")
        if lines:
            yield lines
    yield [rest]


def _width_after_words(lines: list[bytes]) -> tuple[int, bool] | None:
    """Count the numbers after the word that begins each line; None if lines begin with numbers.

    The second result is whether the first line is the header of word2vec: the numbers of words and of dimensions.
    """
    rows = [line.split(None, LARGEST_DIMENSION + 1) for line in lines[:2]]
    first, second = [*rows, [], []][:2]
    if len(first) == 2 and all(map(bytes.isdigit, first)) and len(second) == int(first[1][:9]) + 1:
        return len(second) - 1, True
    rows = [row for row in rows if row]
    widths = {sum(1 for _ in itertools.takewhile(_is_number, reversed(row))) for row in rows}
    if not rows or any(_is_number(row[0]) for row in rows) or len(widths) > 1 or 0 in widths:
        return None
    if any(field[-1:] in b",;" and _is_number(field[:-1]) for row in rows for field in row):  # commas separate
        return None
    return widths.pop(), False


def write_text(stream: BinaryIO, matrix: Matrix, separator: str) -> None:
    """Write one vector per line, with enough digits to read the same numbers back."""
    number = f"%.{_DIGITS[matrix.dtype.itemsize]}g" if matrix.dtype.kind == "f" else "%d"
    line = separator.join([number] * matrix.width) + "\n"
    for block in matrix.blocks():
        for rows in np.array_split(block, max(1, block.nbytes // 2**20)):
            stream.write((line * len(rows) % tuple(rows.ravel().tolist())).encode("ascii"))


def _separator(line: bytes, name: str) -> bytes | None:
    """Find what separates the fields: a comma or semicolon if there is one, otherwise any run of white space (None).

    In a tsv file each tab separates. If two counted as one, the fields after a missing number would be shifted.
    """
    marks = (b"\t", b",", b";") if name == "tsv" else (b",", b";")
    return next((mark for mark in marks if mark in line), None)


def _fields(line: bytes, separator: bytes | None) -> list[bytes]:
    """Fields of a line; if there are too many, the last one holds the rest."""
    return (line if separator is None else line.rstrip(b"\r")).split(separator, LARGEST_DIMENSION)


def _is_number(field: bytes) -> bool:
    plain = field.strip(b" \t")
    if len(plain) >= 2 and plain.startswith(b'"') and plain.endswith(b'"'):
        plain = plain[1:-1]
    try:
        float(plain)
    except ValueError:
        return False
    return b"_" not in plain and b"\r" not in plain and b"\n" not in plain
