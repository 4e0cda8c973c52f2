"""The engine file: one uncompressed zip of plain data and machine code, read by mapping.

    manifest.json          what the file is, its programs, and the digest of every other member
    manifest.sha256        the manifest's digest, as ``sha256sum`` writes it
    weights.safetensors    constants, aligned, in the order in which kernels read them
    graph.json             the graph that the engine was built from; its constants are in the weights
    kernels/<key>.o        machine code of a CPU
    kernels/<key>.cubin    machine code of a GPU

`docs/engine.md` describes it.  Reading refuses anything that is not exactly what was written.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import secrets
import struct
import zipfile
import zlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.engine.weights import Weights
from tilewright.errors import EngineDamagedError, EngineError, EngineVersionError
from tilewright.settings import settings

FORMAT = "tilewright engine"
VERSION = 3  # 3: programs for GPUs, with cubins
READABLE = (2, 3)

MANIFEST = "manifest.json"
GUARD = "manifest.sha256"
WEIGHTS = "weights.safetensors"
GRAPH = "graph.json"

_PAGE = 4096  # large members start on a page of the file, so that they can be mapped
_PIECE = 4 << 20
_ZIP = b"PK"  # what zip archives begin with
_LOCAL_HEADER = struct.Struct("<4s5H3I2H")
_EXTRA = struct.Struct("<HH")
_EXTRA_ID = 0xD935  # the zip extra field that alignment tools use
_ZIP64_EXTRA = 20
_DAMAGE = "Build the engine again, or copy the file again from where it came"
REBUILD = (
    "Build it again from the graph inside it: `tilewright build OLD.engine -o NEW.engine` on the command line (with "
    "--target for something else than it was built for), Engine.load(path, rebuild=True) in Python."
)


@dataclass(frozen=True)
class Package:
    """The contents of an engine file."""

    manifest: Mapping[str, Any]  # without "members", which writing adds
    weights: Weights
    graph: bytes
    objects: Mapping[str, bytes]  # by member name


def write_package(package: Package, path: Path) -> None:
    """Write an engine file; readers see the old file or the whole new one. Raises `EngineError`."""
    members: dict[str, Any] = {**package.objects, GRAPH: package.graph, WEIGHTS: package.weights.data}
    listing = {name: {"bytes": len(data), "sha256": digest(data)} for name, data in members.items()}
    manifest = json.dumps({**package.manifest, "members": listing}, indent=1).encode()
    guard = f"{hashlib.sha256(manifest).hexdigest()}  {MANIFEST}\n".encode()
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        try:
            with open(temporary, "xb") as file:
                with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
                    for name, data in {MANIFEST: manifest, GUARD: guard, **members}.items():
                        _write_member(archive, file.tell(), name, data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise EngineError(f"cannot write the engine {path}: {error}") from error


def _write_member(archive: zipfile.ZipFile, position: int, name: str, data: Any) -> None:
    """Add a stored member; a large one starts at a page."""
    information = zipfile.ZipInfo(name)  # with the format's first date: equal engines are equal files
    information.external_attr = 0o644 << 16
    large = len(data) * 1.05 > zipfile.ZIP64_LIMIT
    if len(data) >= _PAGE:
        start = position + _LOCAL_HEADER.size + len(name.encode()) + _EXTRA.size + (_ZIP64_EXTRA if large else 0)
        gap = -start % _PAGE
        information.extra = _EXTRA.pack(_EXTRA_ID, gap) + bytes(gap)
    with archive.open(information, "w", force_zip64=large) as member:
        member.write(data)


def read_package(path: Path) -> Package:
    """Map and verify an engine file.

    Raises `EngineDamagedError` when a bit of it is not as it was written, `EngineVersionError`,
    and `EngineError` when the file cannot be read at all.
    """
    archive = Archive(path)
    manifest = _read_manifest(archive)
    members = _checked_members(archive, manifest)
    objects = {name: bytes(data) for name, data in members.items() if name not in (GRAPH, WEIGHTS)}
    try:
        weights = Weights.parse(np.frombuffer(members[WEIGHTS], np.uint8))
    except (KeyError, ValueError) as error:
        raise archive.damaged(f"{WEIGHTS}: {error}") from error
    return Package(manifest, weights, bytes(members.get(GRAPH, b"")), objects)


def read_source(path: Path) -> tuple[bytes, Weights, str]:
    """The graph and the weights alone, verified by the zip's own checksums, and where the model came from, if that
    can be read: for rebuilding an engine whose other parts do not load.

    Raises `EngineDamagedError` when the graph or the weights are damaged too.
    """
    archive = Archive(path)
    for name in (GRAPH, WEIGHTS):
        if name not in archive.members:
            raise archive.damaged(f"{name} is missing")
        if zlib.crc32(archive.members[name]) != archive.checksums[name]:
            raise archive.damaged(f"{name} has changed since it was written")
    try:
        weights = Weights.parse(np.frombuffer(archive.members[WEIGHTS], np.uint8))
    except ValueError as error:
        raise archive.damaged(f"{WEIGHTS}: {error}") from error
    return bytes(archive.members[GRAPH]), weights, _recorded_source(archive)


def read_targets(path: Path) -> list[Mapping[str, Any]]:
    """What an engine's programs were built for, as its manifest has it, whatever else is wrong with that; none when
    it cannot be read. Raises `EngineDamagedError` for what is no zip file."""
    archive = Archive(path)
    try:
        found = [program["target"] for program in json.loads(bytes(archive.members[MANIFEST]))["programs"]]
    except (KeyError, TypeError, ValueError, RecursionError):
        return []
    return [target for target in found if isinstance(target, dict)]


def _recorded_source(archive: Archive) -> str:
    """The manifest's `source`, whatever else is wrong with it; empty when there is none to read."""
    try:
        source = json.loads(bytes(archive.members[MANIFEST]))["source"]
    except (KeyError, TypeError, ValueError, RecursionError):
        return ""
    return source if isinstance(source, str) else ""


class Archive:
    """The members of a zip file, mapped; views of them stay valid as long as they exist."""

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        self.members: dict[str, memoryview] = {}
        self.checksums: dict[str, int] = {}
        try:
            with open(path, "rb") as file:
                if os.fstat(file.fileno()).st_size == 0:
                    raise self.damaged("the file is empty")
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
                self._list(file, memoryview(mapped))
        except OSError as error:
            raise EngineError(f"cannot read the engine {path}: {error}") from error

    def _list(self, file: Any, memory: memoryview) -> None:
        try:
            with zipfile.ZipFile(file) as archive:
                entries = archive.infolist()
        except Exception as error:  # zipfile raises a dozen kinds for damaged files
            if bytes(memory[:2]) != _ZIP:
                raise EngineDamagedError(
                    f"{self.path} is no engine: no complete zip archive. Models become engines by "
                    "`tilewright build MODEL -o NEW.engine`, or `tilewright.compile` in Python."
                ) from error
            raise self.damaged(f"no complete zip archive ({error})") from error
        for entry in entries:
            data = self._data(entry, memory)
            if data is None or entry.filename in self.members:
                raise self.damaged(f"the zip's entry of {entry.filename!r} is wrong")
            self.members[entry.filename] = data
            self.checksums[entry.filename] = entry.CRC

    @staticmethod
    def _data(entry: zipfile.ZipInfo, memory: memoryview) -> memoryview | None:
        """A stored member's bytes; None when its headers are wrong."""
        start = entry.header_offset
        if start < 0 or start + _LOCAL_HEADER.size > len(memory) or entry.compress_type != zipfile.ZIP_STORED:
            return None
        signature, *_, name_length, extra_length = _LOCAL_HEADER.unpack_from(memory, start)
        begin = start + _LOCAL_HEADER.size + name_length + extra_length
        if signature != b"PK\3\4" or begin + entry.file_size > len(memory):
            return None
        return memory[begin : begin + entry.file_size]

    def damaged(self, what: str) -> EngineDamagedError:
        """The error for this file."""
        return EngineDamagedError(f"the engine {self.path} is damaged: {what}. {_DAMAGE}.")


def _read_manifest(archive: Archive) -> dict[str, Any]:
    for name in (MANIFEST, GUARD):
        if name not in archive.members:
            raise archive.damaged(f"{name} is missing, so this is no tilewright engine")
    text = archive.members[MANIFEST]
    if bytes(archive.members[GUARD]).split()[:1] != [hashlib.sha256(text).hexdigest().encode()]:
        raise archive.damaged(f"{MANIFEST} has changed since it was written")
    try:
        manifest = json.loads(bytes(text))
        known, version = manifest["format"] == FORMAT, manifest["version"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise archive.damaged(f"{MANIFEST}: {error}") from error
    if not known:
        raise archive.damaged(f"{MANIFEST} is not of a {FORMAT}")
    if version not in READABLE:
        raise EngineVersionError(
            f"the engine {archive.path} has format version {version}, this tilewright reads versions "
            f"{' and '.join(map(str, READABLE))} "
            f"(it was written by {manifest.get('producer')}). {REBUILD}"
        )
    return manifest


def _checked_members(archive: Archive, manifest: Mapping[str, Any]) -> dict[str, memoryview]:
    """All members but the manifest, verified: exactly those that the manifest lists."""
    members = {name: data for name, data in archive.members.items() if name not in (MANIFEST, GUARD)}
    listing = manifest.get("members")
    if not isinstance(listing, dict) or listing.keys() != members.keys():
        raise archive.damaged("its members are not those that the manifest lists")
    for name, data in members.items():
        entry = listing[name]
        if not isinstance(entry, dict) or entry.get("bytes") != len(data) or entry.get("sha256") != digest(data):
            raise archive.damaged(f"{name} has changed since it was written")
    return members


def digest(data: Any) -> str:
    """SHA-256 in hexadecimal; of more than 4 MiB, that of the digests of its 4 MiB pieces.

    Pieces are hashed by several threads, so that verifying weights takes little of an engine's load.
    """
    view = memoryview(data).cast("B")
    if len(view) <= _PIECE:
        return hashlib.sha256(view).hexdigest()
    pieces = [view[start : start + _PIECE] for start in range(0, len(view), _PIECE)]
    with ThreadPoolExecutor(max(1, min(settings.threads, len(pieces)))) as pool:
        digests = pool.map(lambda piece: hashlib.sha256(piece).digest(), pieces)
        return hashlib.sha256(b"".join(digests)).hexdigest()
