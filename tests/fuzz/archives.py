"""gzip and zip files whose checksums are recomputed after a change, so that what lies behind them is reached."""

from __future__ import annotations

import io
import struct
import warnings
import zipfile
import zlib
from random import Random

from tests.fuzz.mutations import mutated_bytes

__all__ = ["gzipped", "mutated_gzip", "mutated_zip", "sealed_gzip", "sealed_zip"]

_GZIP_HEAD = 10
_MOST_BYTES = 2**20  # of what is unpacked to compute a checksum
_ENTRY = b"PK\x01\x02"


def gzipped(content: bytes) -> bytes:
    """Pack bytes the same way each time."""
    return sealed_gzip(b"\x1f\x8b\x08\0\0\0\0\0\0\xff" + _deflated(content) + bytes(8))


def sealed_gzip(content: bytes) -> bytes:
    """Recompute the checksum and the length at the end of a gzip file with a plain header."""
    if len(content) < _GZIP_HEAD + 8 or content[3]:
        return content
    unpacked = _inflated(content[_GZIP_HEAD:-8])
    return content[:-8] + struct.pack("<II", zlib.crc32(unpacked), len(unpacked) & 0xFFFFFFFF)


def mutated_gzip(content: bytes, rng: Random) -> bytes:
    """Change what is packed, or the packed bytes."""
    if rng.random() < 0.5:
        return mutated_bytes(content, rng)
    return gzipped(mutated_bytes(_inflated(content[_GZIP_HEAD:-8]), rng))


def sealed_zip(content: bytes) -> bytes:
    """Recompute the checksum of every member in the directory at the end of a zip file."""
    found = bytearray(content)
    at = content.find(_ENTRY)
    while 0 <= at <= len(content) - 46:
        method, packed_size, start = struct.unpack_from("<10xH8xI18xI", content, at)
        if start + 30 <= len(content):
            start += 30 + sum(struct.unpack_from("<HH", content, start + 26))
            packed = content[start : start + packed_size]
            struct.pack_into("<I", found, at + 16, zlib.crc32(_inflated(packed) if method == 8 else packed))
        at = content.find(_ENTRY, at + 4)
    return bytes(found)


def mutated_zip(content: bytes, rng: Random) -> bytes:
    """Change a member, its name or how it is packed; or any bytes."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = [(info.filename, info.compress_type, archive.read(info)) for info in archive.infolist()]
    except Exception:
        members = []
    if not members or rng.random() < 0.4:
        return mutated_bytes(content, rng)
    chosen = rng.randrange(len(members))
    name, method, raw = members[chosen]
    match rng.randrange(6):
        case 0:
            name = rng.choice(("train.npy", "", ".npy", "../a.npy", "/", "x" * 300 + ".npy", "a\0.npy", "ä.npy"))
        case 1:
            method = rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA))
        case 2:
            members.append(members[chosen])
        case _:
            raw = mutated_bytes(raw, rng)
    members[chosen] = (name, method, raw)
    stream = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(stream, "w") as archive:
        warnings.simplefilter("ignore")  # of names that come twice
        for name, method, raw in members:
            info = zipfile.ZipInfo(name)
            info.compress_type = method
            archive.writestr(info, raw)
    return stream.getvalue()


def _deflated(content: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(content) + packer.flush()


def _inflated(packed: bytes) -> bytes:
    """Unpack as much as can be."""
    unpacker, found = zlib.decompressobj(-15), b""
    try:
        for start in range(0, len(packed), 64):
            found += unpacker.decompress(packed[start : start + 64], _MOST_BYTES)
            if len(found) > _MOST_BYTES:
                break
    except zlib.error:
        pass
    return found
