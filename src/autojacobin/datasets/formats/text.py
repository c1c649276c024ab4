"""Numbers as text: csv, tsv and txt.

A txt file may also begin each line with a word, as the word vectors of GloVe, word2vec and fastText do.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from autojacobin.datasets.formats.source import Source, damaged, shortened
from autojacobin.datasets.formats.vecs import LARGEST_DIMENSION
from autojacobin.datasets.formats.vectors import LazyReader, Reader, steps
from autojacobin.datasets.formats.writing import Matrix
from autojacobin.errors import FormatError

__all__ = ["open_text", "write_text"]

_LONGEST_LINE = 2**25
_BYTES_PER_SCAN = 2**24
_BYTES_PER_PARSE = 2**20
_MOST_BYTES_PER_PARSE = 2**28
_NEWLINE = ord("\n")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_DIGITS = {2: 5, 4: 9, 8: 17}  # decimal digits that every float of so many bytes needs to be read back


def open_text(source: Source, name: str) -> Reader:
    """Find the lines of a file, whether it has a header, and what separates its numbers."""
    start = len(_BYTE_ORDER_MARK) if source.head(3) == _BYTE_ORDER_MARK else 0
    stop = _end_of_text(source.content)
    skipped = 0
    line = _line(source, start, stop, 1, name)
    while line.lstrip().startswith(b"#") and start < stop:  # as numpy.savetxt writes headers
        start, skipped = start + len(line) + 1, skipped + 1
        line = _line(source, start, stop, 1 + skipped, name)
    words = _width_after_words(source, start, stop, line) if name == "text" else None
    if words is not None:
        return _opened_words(source, start, stop, skipped, line, words)
    names = _fields(line, _separator(line, name))
    if any(_is_number(field) for field in names):
        names = []
    else:
        start, skipped = start + len(line) + 1, skipped + 1
        line = _line(source, start, stop, 1 + skipped, name)
        if start < stop and not any(map(_is_number, _fields(line, _separator(line, name)))):
            first, second = (
                shortened(" ".join(text.decode("utf-8", "replace").split()), 40) for text in (b" ".join(names), line)
            )
            raise FormatError(
                f"{source.path} holds text and no vectors, got {first!r} and {second!r} in its first lines, expected "
                "numbers; if these are names, give them as ids beside a file of vectors"
            )
    if start >= stop:
        raise FormatError(
            f"{source.path} holds no line of numbers, expected one vector per line; give a {name} file with numbers"
        )
    separator = _separator(line, name)
    width = len(_fields(line, separator))
    if not 1 <= width <= LARGEST_DIMENSION:
        number = width if width <= LARGEST_DIMENSION else f"more than {LARGEST_DIMENSION}"
        what = f"{number} fields in line {1 + skipped} at byte {start}"
        raise damaged(source.path, name, f"{what}, expected 1 to {LARGEST_DIMENSION}")
    if names and (len(names) == width - 1 or not names[0].strip(b' \t\r"')):  # as pandas and R write data frames
        raise FormatError(
            f"{source.path} has no name for the first column in line {skipped}, its header, so its lines seem to begin "
            f"with the names of rows; write it without them, as DataFrame.to_csv(index=False) does"
        )
    per_step = max(1, _BYTES_PER_PARSE // (len(line) + 1))
    n, starts = _line_starts(source, start, stop, per_step, 1 + skipped, name)
    return _TextReader(source, name, separator, (n, width), skipped, per_step, [*starts, stop + 1])


def _width_after_words(source: Source, start: int, stop: int, line: bytes) -> tuple[int, bool] | None:
    """Count the numbers after the word that begins each line; None if lines begin with numbers.

    The second result is whether the first line is the header of word2vec: the numbers of words and of dimensions.
    """
    following = start + len(line) + 1
    second = _line(source, following, stop, 2, "text").split(None, LARGEST_DIMENSION + 1) if following < stop else []
    first = line.split(None, LARGEST_DIMENSION + 1)
    if len(first) == 2 and all(map(bytes.isdigit, first)) and len(second) == int(first[1][:9]) + 1:
        return len(second) - 1, True
    rows = [row for row in (first, second) if row]
    widths = {_numbers_at_end(row) for row in rows}
    if any(_is_number(row[0]) for row in rows) or len(widths) > 1 or 0 in widths:
        return None
    if any(field[-1:] in b",;" and _is_number(field[:-1]) for row in rows for field in row):  # commas separate
        return None
    return widths.pop(), False


def _numbers_at_end(fields: list[bytes]) -> int:
    """Count the numbers after the last field that is none; a word may contain spaces."""
    return sum(1 for _ in itertools.takewhile(_is_number, reversed(fields)))


def _opened_words(
    source: Source, start: int, stop: int, skipped: int, line: bytes, words: tuple[int, bool]
) -> _TextReader:
    width, has_header = words
    if width > LARGEST_DIMENSION:
        what = f"more than {LARGEST_DIMENSION} numbers in line {1 + skipped} at byte {start}"
        raise damaged(source.path, "text", f"{what}, expected 1 to {LARGEST_DIMENSION}")
    if has_header:
        start, skipped = start + len(line) + 1, skipped + 1
        line = _line(source, start, stop, 1 + skipped, "text")
    per_step = max(1, _BYTES_PER_PARSE // (len(line) + 1))
    n, starts = _line_starts(source, start, stop, per_step, 1 + skipped, "text")
    return _TextReader(source, "text", None, (n, width), skipped, per_step, [*starts, stop + 1], words=True)


class _TextReader(LazyReader):
    """Parses lines; ``starts`` are the positions of the lines 0, per_step, 2 · per_step and so on.

    With ``words``, each line begins with a word, and its numbers are read as float32.
    """

    def __init__(
        self,
        source: Source,
        name: str,
        separator: bytes | None,
        shape: tuple[int, int],
        skipped: int,
        per_step: int,
        starts: list[int],
        *,
        words: bool = False,
    ) -> None:
        super().__init__(source.path, shape, np.dtype(np.float32 if words else np.float64))
        self._words = words
        self._source, self._name, self._separator = source, name, separator
        self._skipped, self._per_step, self._starts = skipped, per_step, starts
        self._read(0, 1)

    def names(self) -> list[str] | None:
        """The words at the beginning of all lines."""
        if not self._words:
            return None
        blocks = (self._lines(*span) for span in steps(self.shape[0], self._per_step))
        return [word for block in blocks for lines, row in block for word in self._words_of(lines, row)]

    def _words_of(self, lines: list[bytes], row: int) -> list[str]:
        fields = [line.rsplit(None, self.shape[1]) for line in lines]
        if any(len(parts) != self.shape[1] + 1 for parts in fields):
            raise self._explained(lines, row)
        return [parts[0].decode("utf-8", "replace") for parts in fields]

    def _read(self, start: int, stop: int) -> npt.NDArray[Any]:
        parts = [self._parsed(lines, row) for lines, row in self._lines(start, stop)]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _lines(self, start: int, stop: int) -> Iterator[tuple[list[bytes], int]]:
        """Lines of some rows in blocks, each with its first row."""
        step = self._per_step
        for number in range(start // step, -(-stop // step)):
            first, begin, end = number * step, self._starts[number], self._starts[number + 1] - 1
            if end - begin > _MOST_BYTES_PER_PARSE:
                what = f"{end - begin} bytes in the {step} lines from line {first + self._skipped + 1} on"
                raise damaged(self.path, self._name, f"{what}, expected lines of about the length of the first")
            lines = self._source.content[begin:end].tobytes().split(b"\n")
            yield lines[max(0, start - first) : stop - first], max(first, start)

    def _parsed(self, lines: list[bytes], row: int) -> npt.NDArray[Any]:
        separator = None if self._separator is None else self._separator.decode()
        try:
            if not all(map(bytes.strip, lines)):  # empty lines, which loadtxt would leave out
                raise ValueError
            kept = [b" ".join(line.rsplit(None, self.shape[1])[1:]) for line in lines] if self._words else lines
            text = [line.decode("ascii") for line in kept]
            numbers = np.loadtxt(text, self.dtype, delimiter=separator, quotechar='"', comments=None, ndmin=2)
            if numbers.shape == (len(lines), self.shape[1]):
                return numbers
        except ValueError:
            pass
        raise self._explained(lines, row)

    def _explained(self, lines: list[bytes], row: int) -> FormatError:
        """Find the line and the field that cannot be read."""
        for number, line in enumerate(lines, row + self._skipped + 1):
            if b"\r" in line.rstrip(b"\r"):
                what = f"a carriage return within line {number}"
                return damaged(self.path, self._name, f"{what}, expected lines that end in a line feed")
            fields = line.rsplit(None, self.shape[1])[1:] if self._words else _fields(line, self._separator)
            for place, field in enumerate(fields, 1):
                if not _is_number(field):
                    what = f"{shortened(field.decode('utf-8', 'replace'), 40)!r} in field {place} of line {number}"
                    return damaged(self.path, self._name, f"{what}, expected a number")
            if len(fields) != self.shape[1]:
                what = f"{len(fields)} fields in line {number}"
                return damaged(self.path, self._name, f"{what}, expected {self.shape[1]} as in the first line")
        what = f"something that is not a number in the lines {row + self._skipped + 1} to {number}"
        return damaged(self.path, self._name, f"{what}, expected {self.shape[1]} numbers per line")


def write_text(stream: BinaryIO, matrix: Matrix, separator: str) -> None:
    """Write one vector per line, with enough digits to read the same numbers back."""
    number = f"%.{_DIGITS[matrix.dtype.itemsize]}g" if matrix.dtype.kind == "f" else "%d"
    line = separator.join([number] * matrix.width) + "\n"
    for block in matrix.blocks():
        for rows in np.array_split(block, max(1, block.nbytes // _BYTES_PER_PARSE)):
            stream.write((line * len(rows) % tuple(rows.ravel().tolist())).encode("ascii"))


def _line(source: Source, start: int, stop: int, number: int, name: str) -> bytes:
    for window in (2**12, _LONGEST_LINE + 1):  # most lines are short
        head = source.content[start : min(stop, start + window)].tobytes()
        length = head.find(b"\n")
        if length >= 0:
            return head[:length]
    if len(head) > _LONGEST_LINE:
        raise _too_long(source, number, start, name)
    return head


def _line_starts(source: Source, start: int, stop: int, per_step: int, number: int, name: str) -> tuple[int, list[int]]:
    """Count lines, and note where lines 0, per_step, 2 · per_step, … begin; ``number`` is that of the first line."""
    n, last, starts = 0, start - 1, [start]  # last: position of the newline before the current line
    for first in range(start, stop, _BYTES_PER_SCAN):
        end = min(stop, first + _BYTES_PER_SCAN)
        newlines = np.flatnonzero(source.content[first:end] == _NEWLINE) + first
        edges = np.concatenate(([last], newlines, [end]))
        long = np.flatnonzero(np.diff(edges) > _LONGEST_LINE + 1)
        if len(long):
            raise _too_long(source, number + n + int(long[0]), int(edges[long[0]]) + 1, name)
        starts.extend((newlines[per_step - 1 - n % per_step :: per_step] + 1).tolist())
        n += len(newlines)
        last = int(edges[-2])
    return n + 1, starts


def _end_of_text(content: npt.NDArray[np.uint8]) -> int:
    """Position after the last character that is not white space."""
    stop = len(content)
    while stop:
        tail = content[max(0, stop - 4096) : stop].tobytes()
        kept = len(tail.rstrip())
        if kept:
            return stop - len(tail) + kept
        stop -= len(tail)
    return 0


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


def _too_long(source: Source, number: int, start: int, name: str) -> FormatError:
    what = f"more than {_LONGEST_LINE} bytes without the end of line {number}, from byte {start} on"
    return damaged(source.path, name, f"{what}, expected one vector per line")
