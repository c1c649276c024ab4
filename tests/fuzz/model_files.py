"""Model files taken apart and put together again, as docs/formats.md describes them, without the code under test."""

from __future__ import annotations

import hashlib
import json
import re
from random import Random
from typing import Any

import numpy as np

from tests.fuzz.mutations import DEEP, dumped, mutated_bytes, mutated_json

__all__ = ["model_file", "mutated_model", "sealed_model", "taken_apart"]

_DIGEST = re.compile(rb'\\"checksum\\": ?\\"([0-9a-f]{64})\\"')
_AWKWARD_NUMBERS = [np.nan, np.inf, -np.inf, 0.0, -1.0, 1e-45, 1e-30, 1e14, 9e17, -9e17, 1e25, 3e38, -3e38]


def taken_apart(content: bytes) -> tuple[dict[str, Any], dict[str, Any], bytes]:
    """Give the entries of the arrays, the header of this library, and the bytes of the arrays."""
    length = int.from_bytes(content[:8], "little")
    entries = json.loads(content[8 : 8 + length])
    header = json.loads(entries.pop("__metadata__")["autojacobin"])
    return entries, header, content[8 + length :]


def model_file(entries: Any, header: Any, data: bytes) -> bytes:
    """Put a file together, with a checksum that holds; ``header`` may be text that is no JSON."""
    inner = header if isinstance(header, str) else dumped(header)
    outer = {**entries, "__metadata__": {"autojacobin": inner}} if isinstance(entries, dict) else entries
    text = dumped(outer, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return sealed_model(len(text).to_bytes(8, "little") + text + data)


def sealed_model(content: bytes) -> bytes:
    """Recompute the checksum, where there is a place for one."""
    found = _DIGEST.search(content)
    if found is None:
        return content
    start, end = found.span(1)
    digest = hashlib.sha256(content[:start] + b"0" * 64 + content[end:]).hexdigest()
    return content[:start] + digest.encode() + content[end:]


def mutated_model(content: bytes, rng: Random) -> bytes:
    """Change the entries, the header or the numbers of a model file, or any bytes of it."""
    try:
        entries, header, data = taken_apart(content)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return mutated_bytes(content, rng)
    match rng.randrange(6):
        case 0 | 1:
            for _ in range(rng.randint(1, 2)):
                header = mutated_json(header, rng)
        case 2:
            for _ in range(rng.randint(1, 2)):
                entries = mutated_json(entries, rng)
        case 3:
            return model_file(*_reshaped(entries, header, data, rng))
        case 4:
            data = _awkward_numbers(entries, data, rng)
        case _:
            return mutated_bytes(content, rng)
    if isinstance(header, dict):
        header = {"checksum": "0" * 64, **{key: value for key, value in header.items() if key != "checksum"}}
    return model_file(DEEP if entries is DEEP else entries, header, data)


def _reshaped(entries: Any, header: Any, data: bytes, rng: Random) -> tuple[Any, Any, bytes]:
    """Give one array another type and shape, with as many bytes as these take, and the rest as it was."""
    if not isinstance(entries, dict) or not entries:
        return entries, header, data
    sizes = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I8": 1, "U8": 1, "BOOL": 1, "C64": 8}
    chosen = rng.choice(list(entries))
    new, parts, start = {}, [], 0
    for name, entry in entries.items():
        try:
            first, last = entry["data_offsets"]
            raw, kind, shape = data[first:last], entry["dtype"], list(entry["shape"])
            if name == chosen:
                kind = rng.choice((kind, *sizes))
                for _ in range(rng.randint(0, 2)):
                    place = rng.randrange(len(shape) + 1)
                    shape[place : place + rng.randint(0, 1)] = rng.choice(([], [0], [1], [2], [2**64 - 1], [65]))
                wanted = sizes.get(kind, 1) * int(np.prod([int(length) for length in shape], dtype=object))
                raw = (raw * (wanted // max(1, len(raw)) + 1))[:wanted] if wanted < 2**16 else raw
        except (TypeError, ValueError, LookupError, OverflowError):
            return entries, header, data
        new[name] = {"dtype": kind, "shape": shape, "data_offsets": [start, start + len(raw)]}
        parts.append(raw)
        start += len(raw)
    return new, header, b"".join(parts)


def _awkward_numbers(entries: Any, data: bytes, rng: Random) -> bytes:
    kinds = {"F64": "<f8", "F32": "<f4", "I64": "<i8", "I32": "<i4", "U8": "u1"}
    found = bytearray(data)
    try:
        entry = entries[rng.choice(list(entries))]
        (start, stop), kind = entry["data_offsets"], np.dtype(kinds[entry["dtype"]])
        for _ in range(rng.randint(1, 3)):
            at = start + rng.randrange(max(1, stop - start)) // kind.itemsize * kind.itemsize
            if kind.kind == "f":
                with np.errstate(over="ignore"):
                    value = np.array(rng.choice(_AWKWARD_NUMBERS)).astype(kind)
            else:
                value = np.array(rng.choice((0, 1, -1, 64, 255, 2**31 - 1, -(2**63), 2**63 - 1))).astype(kind)
            found[at : at + kind.itemsize] = value.tobytes()
    except (TypeError, ValueError, LookupError, AttributeError, OverflowError):
        return data
    return bytes(found)
