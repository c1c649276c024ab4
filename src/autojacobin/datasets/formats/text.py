"""Numbers as text: csv, tsv and txt, which may also begin each line with a word, as GloVe and word2vec do."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from typing import BinaryIO

import numpy as np

from autojacobin.datasets.formats.flat import LARGEST_DIMENSION
from autojacobin.datasets.formats.matrices import Matrix, Vectors
from autojacobin.datasets.formats.source import Source, damaged
from autojacobin.errors import FormatError, shortened

_LONGEST_LINE = 2**25
_BYTES_PER_BLOCK = 2**22
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_DIGITS = {2: 5, 4: 9, 8: 17}  # decimal digits that every float of so many bytes needs to be read back


def open_text(source: Source, name: str) -> Vectors:
    """Decode all lines with ``numpy.loadtxt``."""
    blocks = _blocks_of_lines(source, name)
    first = next(blocks, []) + next(blocks, [])
    skipped = next((number for number, line in enumerate(first) if not line.lstrip().startswith(b"#")), len(first))
    after_words = _width_after_words(first[skipped:]) if name == "text" else None
    if after_words is not None:
        width, has_header = after_words
        separator, skipped = None, skipped + has_header
    else:
        width, separator, has_header = _read_header(source, name, first[skipped:], skipped)
        skipped += has_header
    if width > LARGEST_DIMENSION:
        what = f"more than {LARGEST_DIMENSION} fields in line {1 + skipped}"
        raise damaged(source.path, name, f"{what}, expected 1 to {LARGEST_DIMENSION}")
    number, words = skipped, list[str]()

    def numbers() -> Iterator[str]:
        nonlocal number
        for line in itertools.chain(first[skipped:], itertools.chain.from_iterable(blocks)):
            number += 1
            if after_words is not None and line.strip():
                fields = line.rsplit(None, width)
                if len(fields) != width + 1:
                    raise ValueError(f"{len(fields) - 1} fields")
                words.append(fields[0].decode("utf-8", "replace"))
                line = b" ".join(fields[1:])
            yield line.decode("ascii", "backslashreplace")

    dtype = np.float64 if after_words is None else np.float32
    try:
        found = np.loadtxt(numbers(), dtype, delimiter=separator, quotechar='"', comments=None, ndmin=2)
    except (ValueError, OverflowError) as error:
        what = f"{_reason(str(error), number)}, expected {width} numbers as in the first line"
        raise damaged(source.path, name, what) from None
    vectors = Vectors(source.path, name, found)
    vectors.names = None if after_words is None else words
    return vectors


def _read_header(source: Source, name: str, first: list[bytes], skipped: int) -> tuple[int, str | None, bool]:
    """Give the width, the separator, and whether there is a header, by the first lines; ``skipped`` are before them."""
    header: list[bytes] = []
    if first and not any(_is_number(field) for field in _fields(first[0], _separator(first[0], name))):
        header = _fields(first[0], _separator(first[0], name))
        first = first[1:]
    if not any(map(bytes.strip, first)):
        raise FormatError(
            f"{source.path} holds no line of numbers, expected one vector per line; give a {name} file with numbers"
        )
    separator = _separator(first[0], name)
    fields = _fields(first[0], separator)
    if header and not any(map(_is_number, fields)):
        lines = [shortened(text.decode("utf-8", "replace"), 40) for text in (b" ".join(header), first[0])]
        raise FormatError(
            f"{source.path} holds text and no vectors, got {lines[0]!r} and {lines[1]!r} in its first lines, expected "
            "numbers; if these are names, give them as ids beside a file of vectors"
        )
    if header and (len(header) == len(fields) - 1 or not header[0].strip(b' \t\r"')):  # of pandas and R
        raise FormatError(
            f"{source.path} has no name for the first column in line {skipped + 1}, its header, so its lines seem to "
            "begin with the names of rows; write it without them, as to_csv(index=False) does"
        )
    return len(fields), None if separator is None else separator.decode(), bool(header)


def _reason(message: str, number: int) -> str:
    """What NumPy says about a line, with the number of the line instead of its own number of the row."""
    if found := re.search(r"string (.*) to float\d+ at row \d+, column (\d+)", message, re.DOTALL):
        return f"{shortened(found[1], 60)} in field {found[2]} of line {number}"
    found = re.search(r"columns changed from \d+ to (\d+) at row", message)
    return f"{f'{found[1]} fields' if found else shortened(message, 200)} in line {number}"


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
    """Count the numbers after the word of each line, and say if word2vec's header comes first; None without words."""
    rows = [line.split(None, LARGEST_DIMENSION + 1) for line in lines[:2]]
    first, second = [*rows, [], []][:2]
    if len(first) == 2 and all(map(bytes.isdigit, first)) and len(second) == int(first[1][:9]) + 1 > 2:
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
    """Find what separates the fields: a comma or semicolon if there is one, otherwise any run of white space (None)."""
    # if two tabs of a tsv file counted as one, the fields after a missing number would be shifted
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
