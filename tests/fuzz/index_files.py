"""Files of an index taken apart and put together again without the code under test, as docs/index-format.md has them.

A folder travels through the fuzzer as a zip archive of those of its files that differ from a golden folder's.
"""

from __future__ import annotations

import io
import json
import math
import re
import struct
import zipfile
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import xxhash

from tests.fuzz.archives import sealed_zip
from tests.fuzz.model_files import mutated_model, sealed_model
from tests.fuzz.mutations import dumped, mutated_bytes, mutated_json

__all__ = [
    "GOLDEN",
    "Folder",
    "archived",
    "as_archive",
    "from_archive",
    "mutated_file",
    "mutated_folder",
    "sealed_folder",
]

Folder = dict[str, bytes]
"""Content of the files by their names."""

GOLDEN: dict[str, Folder] = {
    f"{path.parent.name}-{path.name}".removesuffix("-index"): {
        file.name: file.read_bytes() for file in sorted(path.iterdir())
    }
    for path in sorted((Path(__file__).parent.parent / "golden").glob("index-*/*/"))
}
_PLAIN = re.compile(r"index-[a-z0-9-]+/[A-Za-z0-9.-]+")
_MANIFEST = "MANIFEST.json"
_DIGEST = re.compile(rb'\A\{\n "checksum": "([0-9a-f]{16})",\n')
_PAGE, _BLOCK = 4096, 2**14
_FIELDS = struct.Struct("<8sI8s8sI4QQ")  # magic, version, kind, dtype, number of dimensions, lengths, checksum
_DTYPES = [
    b"<f4",
    b"<f8",
    b"<f2",
    b"<u8",
    b"<i8",
    b"<u4",
    b"|u1",
    b"|b1",
    b">f4",
    b"|O",
    b"<c8",
    b"<M8[s]",
    b"",
    b"\xff",
]
_NUMBERS = [0, 1, 2, 7, 255, 2**22, 2**31, 2**32, 2**40, 2**60, 2**61, 2**63 - 1, 2**63, 2**64 - 1]


def from_archive(content: bytes) -> tuple[str, Folder]:
    """Give the name of a golden folder, and its files with those in place that the archive has."""
    changed: Folder = {}
    try:
        with zipfile.ZipFile(io.BytesIO(sealed_zip(content))) as archive:
            changed = {info.filename: archive.read(info) for info in archive.infolist()}
    except Exception:  # whatever a mutated archive makes zipfile raise
        changed = {}
    golden = next((name.split("/")[0] for name in changed if name.split("/")[0] in GOLDEN), min(GOLDEN))
    files = GOLDEN[golden] | {
        name.split("/")[-1]: content for name, content in changed.items() if _PLAIN.fullmatch(name)
    }
    return golden, {name: content for name, content in files.items() if content}


def as_archive(golden: str, folder: Folder) -> bytes:
    """Give the files that differ from those of a golden folder as a zip archive; one that is missing is empty there."""
    changed = {name: content for name, content in folder.items() if GOLDEN[golden].get(name) != content}
    changed |= {name: b"" for name in GOLDEN[golden] if name not in folder}
    return archived({f"{golden}/{name}": content for name, content in changed.items()})


def archived(files: Folder) -> bytes:
    """Give files as a zip archive, the same bytes each time."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, content in sorted(files.items()):
            archive.writestr(zipfile.ZipInfo(name), content)
    return stream.getvalue()


def sealed_folder(folder: Folder) -> Folder:
    """Recompute every checksum: of blocks, of headers, and those of the manifest with the sizes of the files."""
    sealed = dict(folder)
    for name, content in folder.items():
        if name.endswith(".bin"):
            sealed[name] = _sealed_array(content)
        elif name.endswith(".safetensors"):
            sealed[name] = sealed_model(content)
    try:
        manifest = json.loads(folder.get(_MANIFEST, b""))
    except (ValueError, RecursionError):
        manifest = None
    if isinstance(manifest, dict):
        _note_files(manifest, sealed)
        sealed[_MANIFEST] = (dumped(manifest, indent=1) + "\n").encode()
    sealed[_MANIFEST] = _sealed_manifest(sealed.get(_MANIFEST, b""))
    return sealed


def mutated_file(folder: Folder, kind: str, rng: Random) -> Folder:
    """Change one file of a kind: ``manifest``, ``any``, or that with which its name begins."""
    if kind == "manifest":
        return folder | {_MANIFEST: _mutated_manifest(folder.get(_MANIFEST, b""), rng)}
    names = sorted(name for name in folder if name.startswith("" if kind == "any" else f"{kind}-"))
    if not names:
        return folder
    name = rng.choice(names)
    ending = name.rpartition(".")[2]
    change = {"safetensors": mutated_model, "bin": _mutated_array}.get(ending, mutated_bytes)
    return folder | {name: change(folder[name], rng)}


def mutated_folder(folder: Folder, rng: Random) -> Folder:
    """Change several files at once, in part so that they agree with each other again."""
    for _ in range(rng.randint(1, 3)):
        kind = rng.choice(("manifest", "codes", "ids", "rows", "vectors", "dead", "hasher"))
        folder = _resized(folder, rng) if rng.random() < 0.5 else mutated_file(folder, kind, rng)
        if rng.random() < 0.1:
            folder = {name: content for name, content in folder.items() if rng.random() < 0.8}
        if _MANIFEST not in folder:
            break
    return folder


def _resized(folder: Folder, rng: Random) -> Folder:
    """Give a segment another number of codes, in the manifest and in all of its files."""
    try:
        manifest = json.loads(folder[_MANIFEST])
        segment = rng.choice(manifest["segments"])
        n = segment["n"]
        new = rng.choice((0, 1, n - 1, n + 1, 2 * n, n + 512, rng.choice(_NUMBERS)))
        segment["n"], changed = new, {}
        segment["n_dead"] = rng.choice((segment["n_dead"], 0, new, n))
        for kind, file in segment["files"].items():
            page, payload = bytearray(folder[file["name"]][:_PAGE]), folder[file["name"]][_PAGE:]
            length = {"codes": -(-new // 512), "dead": -(-new // 8)}.get(kind, new)
            row = _array_bytes(page) // max(1, *struct.unpack_from("<Q", page, 32))
            struct.pack_into("<Q", page, 32, length)
            if rng.random() < 0.9:
                struct.pack_into("<Q", page, 88, new)  # which format 1 does not read
            kept = payload[: min(row * length, _array_bytes(page))]
            changed[file["name"]] = bytes(page) + kept.ljust(min(row * length, 2**13), b"\x01")
    except (ValueError, LookupError, TypeError, AttributeError, struct.error, RecursionError):
        return folder
    return folder | changed | {_MANIFEST: (dumped(manifest, indent=1) + "\n").encode()}


def _mutated_manifest(content: bytes, rng: Random) -> bytes:
    try:
        manifest = json.loads(content)
    except (ValueError, RecursionError):
        return mutated_bytes(content, rng)
    if rng.random() < 0.2:
        return mutated_bytes(content, rng)
    for _ in range(rng.randint(1, 2)):
        manifest = mutated_json(manifest, rng)
    return (dumped(manifest, indent=1) + "\n").encode()


def _mutated_array(content: bytes, rng: Random) -> bytes:
    """Change a field of the header, a number of the array, or any bytes."""
    if len(content) < _PAGE or rng.random() < 0.3:
        return mutated_bytes(content, rng)
    page, payload = bytearray(content[:_PAGE]), bytearray(content[_PAGE:])
    for _ in range(rng.randint(1, 2)):
        match rng.randrange(8):
            case 0:
                page[20:28] = rng.choice(_DTYPES).ljust(8, b"\0")
            case 1:
                page[28:32] = struct.pack("<I", rng.choice((0, 1, 2, 3, 4, 5, 2**32 - 1)))
            case 2:
                at = 32 + 8 * rng.randrange(4)
                page[at : at + 8] = struct.pack("<Q", rng.choice((*_NUMBERS, page[at] + 1, max(0, page[at] - 1))))
            case 3:
                page[8:12] = struct.pack("<I", rng.choice((0, 1, 2, 3, 4, 2**32 - 1)))
            case 4:
                page[12:20] = rng.choice((b"codes", b"ids", b"rows", b"vectors", b"dead", b"", b"\xff" * 8)).ljust(
                    8, b"\0"
                )
            case 5:
                at = rng.choice((72, 80, 88, 96))  # the label of the segment, from format 2 on
                page[at : at + 8] = struct.pack("<Q", rng.choice((*_NUMBERS, page[at] + 1)))
            case _ if len(payload) >= 8:
                size = rng.choice((1, 4, 8))
                at = rng.randrange(len(payload) // size) * size
                number = rng.choice((*_NUMBERS, rng.randrange(2**16)))
                payload[at : at + size] = (number % 2 ** (8 * size)).to_bytes(size, "little")
    return bytes(page + payload)


def _sealed_array(content: bytes) -> bytes:
    """Recompute the checksum of the array in format 1, the table of checksums in later ones, and that of the header."""
    if len(content) < _PAGE:
        return content
    page = bytearray(content[:_PAGE])
    payload = content[_PAGE:]
    digest = xxhash.xxh64_intdigest(payload)
    if struct.unpack_from("<I", page, 8)[0] in (2, 3):
        payload = payload[: min(_array_bytes(page), len(payload))]
        starts = range(0, len(payload), _BLOCK)
        table = b"".join(struct.pack("<Q", xxhash.xxh64_intdigest(payload[at : at + _BLOCK])) for at in starts)
        payload, digest = payload + table, xxhash.xxh64_intdigest(table)
    struct.pack_into("<Q", page, 64, digest)
    struct.pack_into("<Q", page, _PAGE - 8, xxhash.xxh64_intdigest(bytes(page[:-8])))
    return bytes(page) + payload


def _array_bytes(page: bytes | bytearray) -> int:
    """Size of the array that a header describes."""
    _, _, _, dtype, dimensions, *lengths, _ = _FIELDS.unpack_from(page)
    try:
        size = np.dtype(dtype.rstrip(b"\0").decode()).itemsize
    except (TypeError, ValueError, SyntaxError):
        size = 1
    return size * math.prod(lengths[: min(4, dimensions)])


def _note_files(node: Any, files: Folder) -> None:
    """Correct the size and the checksum of each file wherever a manifest names it, unless their types are wrong."""
    stack = [node]
    while stack:
        current = stack.pop()
        if isinstance(current, list):
            stack.extend(current)
        elif isinstance(current, dict):
            stack.extend(current.values())
            content = files.get(current["name"]) if isinstance(current.get("name"), str) else None
            if (
                content is not None
                and isinstance(current.get("size"), int)
                and isinstance(current.get("checksum"), str)
            ):
                of_header = (
                    f"{struct.unpack('<Q', content[_PAGE - 8 : _PAGE])[0]:016x}" if len(content) >= _PAGE else ""
                )
                is_array = current["name"].endswith(".bin")
                current["size"] = len(content)
                current["checksum"] = of_header if is_array else xxhash.xxh64_hexdigest(content)


def _sealed_manifest(content: bytes) -> bytes:
    found = _DIGEST.match(content)
    if found is None:
        return content
    start, end = found.span(1)
    digest = xxhash.xxh64_hexdigest(content[:start] + b"0" * 16 + content[end:])
    return content[:start] + digest.encode() + content[end:]
