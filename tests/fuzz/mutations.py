"""Changes to bytes and to JSON that parsers stumble over, drawn from a seeded generator: one seed, one result."""

from __future__ import annotations

import json
from random import Random
from typing import Any

__all__ = ["DEEP", "awkward_json", "dumped", "mutated_bytes", "mutated_json"]

# What readers of binary headers and of text stumble over.
TOKENS = [
    *(number.to_bytes(size, "little", signed=True) for size in (1, 2, 4, 8) for number in (0, 1, -1)),
    *((2**bits - less).to_bytes(bits // 8 + 1, "little") for bits in (15, 31, 63) for less in (0, 1)),
    b"nan", b"-inf", b"1e999", b"\n", b"\r", b",", b";", b"\t", b"-", b"#", b"(", b"[", b"{", b'"', b"\\u",
    b"PAR1", b"PK\x03\x04", b"PK\x05\x06", b"\x93NUMPY", b"\x1f\x8b\x08", b"\x89HDF\r\n\x1a\n",
]  # fmt: skip

DEEP = "a list in a list, and so on"  # stands for nesting too deep for a recursive parser; see dumped()
_DEPTH = 50_000
_AWKWARD: list[Any] = [
    None, True, False, 0, 1, -1, 7, 2**31, 2**32, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1, 2**64, -(2**63), 10**400,
    0.0, 0.5, -1.5, 1e308, 1e-320, float("nan"), float("inf"), float("-inf"),
    "", "0", "1", "-1", "nan", "auto", "\0", "\n", "ä", "\ud800", "../x", "x" * 300, "F16", "BF16", "F64", "I64", "U8",
    [], [0], [-1], [2**64 - 1], [0, 2**63], [1.5], [None], {}, {"": None}, {"name": "x"}, DEEP,
]  # fmt: skip


def mutated_bytes(content: bytes, rng: Random, most: int = 4) -> bytes:
    """Flip, set, overwrite, insert, delete, repeat or cut a few times; more often near the ends, where headers are."""
    found = bytearray(content)
    for _ in range(rng.randint(1, most)):
        size = len(found)
        at = rng.choice((rng.randrange(size + 1), min(size, rng.randrange(200)), max(0, size - rng.randrange(100))))
        match rng.randrange(8):
            case 0 if at < size:
                found[at] ^= 1 << rng.randrange(8)
            case 1 if at < size:
                found[at] = rng.randrange(256)
            case 2 | 3:
                token = rng.choice(TOKENS)
                found[at : at + len(token)] = token
            case 4:
                found[at:at] = rng.choice((rng.choice(TOKENS), rng.randbytes(rng.randint(1, 9))))
            case 5:
                del found[at : at + rng.randint(1, 40)]
            case 6:
                found[at:at] = found[at : at + rng.randint(1, 64)]
            case 7 if not rng.randrange(4):
                del found[at:]
    return bytes(found)


def mutated_json(tree: Any, rng: Random) -> Any:
    """Give a JSON tree with one node changed: another value, one key fewer or more, or the value of another key."""
    if isinstance(tree, dict | list) and tree and rng.random() < 0.85:
        copy: Any = dict(tree) if isinstance(tree, dict) else list(tree)
        keys = list(copy) if isinstance(copy, dict) else list(range(len(copy)))
        key = rng.choice(keys)
        match rng.randrange(12):
            case 0:
                del copy[key]
            case 1 if isinstance(copy, dict):
                copy[rng.choice(("", "x", "device", "progress", key + "_", key[:-1]))] = copy[key]
            case 1:
                copy.append(copy[key])
            case 2:
                copy[key] = copy[rng.choice(keys)]
            case _:
                copy[key] = mutated_json(copy[key], rng)
        return copy
    return awkward_json(tree, rng)


def awkward_json(value: Any, rng: Random) -> Any:
    """Give another value in the place of ``value``, often one near it."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**64 and rng.random() < 0.4:
        return rng.choice((value + 1, value - 1, -value, 2 * value, value * 256, value / 2**8, str(value), [value]))
    if isinstance(value, str) and value and rng.random() < 0.2:
        return rng.choice((value[:-1], value + value[-1], value.upper(), value[::-1], [value]))
    return rng.choice(_AWKWARD)


def dumped(tree: Any, **options: Any) -> str:
    """Give a tree as JSON; in the place of ``DEEP`` comes what json.dumps itself could not nest."""
    return json.dumps(tree, **options).replace(json.dumps(DEEP), "[" * _DEPTH + "]" * _DEPTH)
