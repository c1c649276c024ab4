"""XXH64, a 64-bit checksum that keeps up with the disk.

The algorithm is Yann Collet's (seed 0), so ``xxhsum -H64`` gives the same digits. It is no protection against
someone who means harm, nor does it need to be: it finds what wears out.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from autojacobin._compile import kernel

__all__ = ["Checksum", "checksum"]

_MASK = 2**64 - 1
_P1, _P2, _P3, _P4, _P5 = (
    0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5,
)  # fmt: skip
_K1, _K2 = np.uint64(_P1), np.uint64(_P2)
_LEFT, _RIGHT = np.uint64(31), np.uint64(33)
_STRIPE = 32


class Checksum:
    """A checksum of bytes that come in parts.

    Examples
    --------
    >>> Checksum().update(b"nearest ").update(b"neighbours").hexdigest()
    '00c06a6e5f9b1986'
    """

    def __init__(self) -> None:
        self._lanes = np.array([_P1 + _P2 & _MASK, _P2, 0, -_P1 & _MASK], dtype=np.uint64)
        self._length = 0
        self._rest = b""  # fewer bytes than make a stripe

    def update(self, content: Any) -> Checksum:
        """Take in bytes, or the bytes of a contiguous array."""
        view = memoryview(content)
        data = np.frombuffer(view, dtype=np.uint8)
        self._length += len(data)
        if self._rest:
            wanted = _STRIPE - len(self._rest)
            self._rest += data[:wanted].tobytes()
            data = data[wanted:]
            if len(self._rest) < _STRIPE:
                return self
            _mix_in(np.frombuffer(bytearray(self._rest), dtype=np.uint64), self._lanes)
        whole = len(data) - len(data) % _STRIPE
        if whole:
            _mix_in(data[:whole].view(np.uint64), self._lanes)
        self._rest = data[whole:].tobytes()
        return self

    def digest(self) -> int:
        """Give the checksum of all bytes so far."""
        total = _P5
        if self._length >= _STRIPE:
            lanes = [int(lane) for lane in self._lanes]
            total = sum(_rotated(lane, turn) for lane, turn in zip(lanes, (1, 7, 12, 18), strict=True)) & _MASK
            for lane in lanes:
                total = ((total ^ _round(0, lane)) * _P1 + _P4) & _MASK
        total = (total + self._length) & _MASK
        rest = self._rest
        while len(rest) >= 8:
            total = (_rotated(total ^ _round(0, int.from_bytes(rest[:8], "little")), 27) * _P1 + _P4) & _MASK
            rest = rest[8:]
        if len(rest) >= 4:
            total = (_rotated(total ^ int.from_bytes(rest[:4], "little") * _P1 & _MASK, 23) * _P2 + _P3) & _MASK
            rest = rest[4:]
        for byte in rest:
            total = _rotated(total ^ byte * _P5 & _MASK, 11) * _P1 & _MASK
        total = (total ^ total >> 33) * _P2 & _MASK
        total = (total ^ total >> 29) * _P3 & _MASK
        return total ^ total >> 32

    def hexdigest(self) -> str:
        """Give the checksum as 16 hexadecimal digits."""
        return f"{self.digest():016x}"


def checksum(content: Any) -> str:
    """Checksum of bytes that are all there, as 16 hexadecimal digits."""
    return Checksum().update(content).hexdigest()


def _rotated(number: int, turn: int) -> int:
    return (number << turn | number >> (64 - turn)) & _MASK


def _round(lane: int, word: int) -> int:
    return _rotated(lane + word * _P2 & _MASK, 31) * _P1 & _MASK


@kernel
def _mix_in(words: Any, lanes: Any) -> None:
    a, b, c, d = lanes[0], lanes[1], lanes[2], lanes[3]
    for i in range(0, words.shape[0], 4):
        a += words[i] * _K2
        a = (a << _LEFT | a >> _RIGHT) * _K1
        b += words[i + 1] * _K2
        b = (b << _LEFT | b >> _RIGHT) * _K1
        c += words[i + 2] * _K2
        c = (c << _LEFT | c >> _RIGHT) * _K1
        d += words[i + 3] * _K2
        d = (d << _LEFT | d >> _RIGHT) * _K1
    lanes[0], lanes[1], lanes[2], lanes[3] = a, b, c, d
