"""The engine file: one uncompressed zip of plain data and machine code.

    manifest.json          what the file is, its programs, and the digest of every other member
    manifest.sha256        the manifest's digest, as ``sha256sum`` writes it
    manifest.signatures    signatures of the manifest, where somebody has signed it (`engine.signatures`)
    weights.safetensors    constants, aligned, in the order in which kernels read them
    graph.json             the graph that the engine was built from; its constants are in the weights
    kernels/<key>.o        machine code of a CPU
    kernels/<key>.cubin    machine code of a GPU

`docs/internals/engine.md` describes it.  Reading refuses anything that is not exactly what was written.
"""

from __future__ import annotations

import hashlib
import json
import struct
import zipfile
import zlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.engine.archive import PADDING_EXTRA, EngineArchive
from tilewright.engine.bounded_json import read_json
from tilewright.engine.signatures import SIGNATURES
from tilewright.engine.trust import Trust
from tilewright.engine.weights import WEIGHT_ALIGNMENT, Weights
from tilewright.errors import EngineError, EngineVersionError, a_kind
from tilewright.runtime.safe_files import replacing, why_not_replaceable
from tilewright.settings import settings

FORMAT = "tilewright engine"
VERSION = 3  # 3: programs for GPUs, with cubins
VERSION_OF_PARTS = 4  # engines in parts, which older versions do not know
READABLE = (2, 3, 4)

MANIFEST = "manifest.json"
GUARD = "manifest.sha256"
WEIGHTS = "weights.safetensors"
GRAPH = "graph.json"
MOST_MANIFEST_BYTES = 64 << 20
MOST_GRAPH_BYTES = 256 << 20

_PAGE = 4096  # large members start on a page of the file, so that they can be mapped
_COPIED_AT_ONCE = 4 << 20
_LOCAL_HEADER_BYTES = 30
_EXTRA = struct.Struct("<HH")
_ZIP64_EXTRA_BYTES = 20
REBUILD = (
    "Build it again from the graph inside it: `tilewright build OLD.engine -o NEW.engine` on the command line (with "
    "--target for something else than it was built for), tilewright.load(path, rebuild=True) in Python."
)


@dataclass(frozen=True)
class Package:
    """The contents of an engine file."""

    manifest: Mapping[str, Any]  # without "members", which writing adds
    weights: Weights
    graph: bytes
    objects: Mapping[str, bytes]  # by member name
    signed: tuple[bytes, bytes] | None = None  # the manifest as it was read, and its signatures


def as_path(value: Any, description: str) -> Path:
    """What a caller names a file by, as a path; raises `EngineError` for things that name none."""
    try:
        return Path(value)
    except TypeError as error:
        raise EngineError(f"{description} is named by a text or a path, got {a_kind(value)}") from error


def write_package(package: Package, path: Path) -> None:
    """Write an engine file; readers see the old file or the whole new one. Raises `EngineError`.

    Signatures are kept where the manifest is the one that was signed.
    """
    manifest = manifest_text(package)
    members: dict[str, Any] = {MANIFEST: manifest, GUARD: _guard(manifest)}
    if package.signed is not None and package.signed[0] == manifest:
        members[SIGNATURES] = package.signed[1]
    members |= {**package.objects, GRAPH: package.graph, WEIGHTS: package.weights.data}
    path = Path(path)
    check_replaceable(path)
    try:
        with replacing(path) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
            for name, data in members.items():
                _write_member(archive, file.tell(), name, data)
    except OSError as error:
        raise EngineError(f"cannot write the engine {path}: {error.strerror or error}") from error


def manifest_text(package: Package) -> bytes:
    """The manifest as it stands in the file, with the size and digest of every other member."""
    members: dict[str, Any] = {**package.objects, GRAPH: package.graph, WEIGHTS: package.weights.data}
    listing = {name: {"bytes": len(data), "sha256": digest(data)} for name, data in members.items()}
    return json.dumps({**package.manifest, "members": listing}, indent=1).encode()


def _guard(manifest: bytes | memoryview) -> bytes:
    """The manifest's digest, as `sha256sum` writes it."""
    return f"{hashlib.sha256(manifest).hexdigest()}  {MANIFEST}\n".encode()


def check_replaceable(path: Path) -> None:
    """Raise `EngineError` if writing a file to `path` would replace something that is not a file.

    A symbolic link to a file is replaced itself; the file that it leads to stays as it is.
    """
    reason = why_not_replaceable(path)
    if reason is not None:
        raise EngineError(f"cannot write {path}: {reason}; give another name")


def _write_member(archive: zipfile.ZipFile, position: int, name: str, data: Any) -> None:
    """Add a stored member; a large one starts at a page."""
    information = zipfile.ZipInfo(name)  # with the format's first date: equal engines are equal files
    information.external_attr = 0o644 << 16
    large = len(data) * 1.05 > zipfile.ZIP64_LIMIT
    if len(data) >= _PAGE:
        start = position + _LOCAL_HEADER_BYTES + len(name.encode()) + _EXTRA.size + (_ZIP64_EXTRA_BYTES if large else 0)
        gap = -start % _PAGE
        information.extra = _EXTRA.pack(PADDING_EXTRA, gap) + bytes(gap)
    with archive.open(information, "w", force_zip64=large) as member:
        member.write(data)


def read_package(path: Path, trust: Trust | None = None, mapped: bool = False) -> Package:
    """Read and verify an engine file; `mapped` shares its pages with other processes in place of a copy.

    Raises `EngineDamagedError` when a bit of it is not as it was written, `EngineVersionError`,
    `EngineUntrustedError` when it is not what `trust` asks for, and `EngineError` when the file cannot be read at all.
    """
    archive = EngineArchive(path, mapped)
    manifest = _read_manifest(archive, trust or Trust())
    listing = _listing(archive, manifest)
    members = {name: _checked_member(archive, listing, name) for name in listing}
    objects = {name: bytes(data) for name, data in members.items() if name not in (GRAPH, WEIGHTS)}
    weights = _weights(archive, members.get(WEIGHTS))
    signatures = archive.members.get(SIGNATURES)
    signed = None if signatures is None else (bytes(archive.members[MANIFEST]), bytes(signatures))
    return Package(manifest, weights, bytes(members.get(GRAPH, b"")), objects, signed)


@dataclass(frozen=True)
class RebuildSource:
    """What an engine can be built from again: its graph and weights, and what the manifest says of them."""

    graph: bytes
    weights: Weights
    origin: str  # where the model came from; empty when that cannot be read
    targets: tuple[Mapping[str, Any], ...]  # what the programs were built for; none when that cannot be read


def read_source(path: Path, trust: Trust | None = None) -> RebuildSource:
    """The graph and the weights alone, for building an engine again: its machine code is not looked at.

    They are verified by the zip's own checksums, so that damage elsewhere does not stand in the way; by the manifest's
    digests where `trust` asks for a signature.  Raises `EngineDamagedError` when the graph or the weights are damaged
    too, and `EngineUntrustedError`.
    """
    archive = EngineArchive(path)
    trust = trust or Trust()
    for name in (GRAPH, WEIGHTS):
        if name not in archive.members:
            raise archive.damaged(f"{name} is missing")
        if zlib.crc32(archive.members[name]) != archive.checksums[name]:
            raise archive.damaged(f"{name} has changed since it was written")
    trust.check_file(archive.path, archive.content)
    if trust.needs_signature:
        listing = _listing(archive, _verified_manifest(archive, trust))
        for name in (GRAPH, WEIGHTS):
            _checked_member(archive, listing, name)
    weights = _weights(archive, archive.members[WEIGHTS])
    return RebuildSource(bytes(archive.members[GRAPH]), weights, *_recorded(archive))


def read_targets(path: Path) -> tuple[Mapping[str, Any], ...]:
    """What an engine's programs were built for, as its manifest has it, whatever else is wrong with that; none when
    it cannot be read. Raises `EngineDamagedError` for what is no zip file."""
    return _recorded(EngineArchive(path))[1]


def _recorded(archive: EngineArchive) -> tuple[str, tuple[Mapping[str, Any], ...]]:
    """The manifest's `source` and its programs' targets, as far as they can be read."""
    try:
        manifest = read_json(archive.members[MANIFEST], MOST_MANIFEST_BYTES)
        found = [program["target"] for program in manifest["programs"]]
        source = manifest.get("source", "")
    except (KeyError, TypeError, ValueError, AttributeError):
        return "", ()
    targets = tuple(target for target in found if isinstance(target, dict))
    return source if isinstance(source, str) else "", targets


def _weights(archive: EngineArchive, data: memoryview | None) -> Weights:
    """The weights where they are in memory, or a copy where a rewritten file has them out of alignment."""
    if data is None:
        raise archive.damaged(f"{WEIGHTS} is missing")
    try:
        weights = Weights.parse(np.frombuffer(data, np.uint8))
    except ValueError as error:
        raise archive.damaged(f"{WEIGHTS}: {error}") from error
    return weights if weights.address % WEIGHT_ALIGNMENT == 0 else weights.aligned()


def _read_manifest(archive: EngineArchive, trust: Trust) -> dict[str, Any]:
    """The manifest of an engine that this version reads."""
    manifest = _verified_manifest(archive, trust)
    version = manifest.get("version")
    if manifest.get("format") != FORMAT or not isinstance(version, int):
        raise archive.damaged(f"{MANIFEST} is not of a {FORMAT}")
    if version not in READABLE:
        raise EngineVersionError(
            f"the engine {archive.path} has format version {version}, this tilewright reads versions "
            f"{READABLE[0]} to {READABLE[-1]} "
            f"(it was written by {str(manifest.get('producer'))[:200]}). {REBUILD}"
        )
    return manifest


def _verified_manifest(archive: EngineArchive, trust: Trust) -> dict[str, Any]:
    """The manifest's JSON object, parsed once it is known to be what was written and what is trusted."""
    trust.check_file(archive.path, archive.content)
    for name in (MANIFEST, GUARD):
        if name not in archive.members:
            raise archive.damaged(f"{name} is missing, so this is no tilewright engine")
    text = archive.members[MANIFEST]
    if archive.members[GUARD] != _guard(text):
        raise archive.damaged(f"{MANIFEST} has changed since it was written")
    trust.check_manifest(archive.path, bytes(text), bytes(archive.members.get(SIGNATURES, b"")))
    try:
        manifest = read_json(text, MOST_MANIFEST_BYTES)
    except (ValueError, RecursionError) as error:
        raise archive.damaged(f"{MANIFEST}: {error}") from error
    if not isinstance(manifest, dict):
        raise archive.damaged(f"{MANIFEST} is not of a {FORMAT}")
    return manifest


def _listing(archive: EngineArchive, manifest: Mapping[str, Any]) -> Mapping[str, Any]:
    """What the manifest says of the other members, which are exactly those in the file."""
    listing = manifest.get("members")
    names = archive.members.keys() - {MANIFEST, GUARD, SIGNATURES}
    if not isinstance(listing, dict) or listing.keys() != names:
        raise archive.damaged("its members are not those that the manifest lists")
    return listing


def _checked_member(archive: EngineArchive, listing: Mapping[str, Any], name: str) -> memoryview:
    """A member that has the size and the digest of the manifest."""
    data, entry = archive.members[name], listing[name]
    if not isinstance(entry, dict) or entry.get("bytes") != len(data) or entry.get("sha256") != digest(data):
        raise archive.damaged(f"{name} has changed since it was written")
    return data


def digest(data: Any) -> str:
    """SHA-256 in hexadecimal; of more than 4 MiB, that of the digests of its 4 MiB pieces.

    Pieces are hashed by several threads, so that verifying weights takes little of an engine's load.
    """
    view = memoryview(data).cast("B")
    if len(view) <= _COPIED_AT_ONCE:
        return hashlib.sha256(view).hexdigest()
    pieces = [view[start : start + _COPIED_AT_ONCE] for start in range(0, len(view), _COPIED_AT_ONCE)]
    with ThreadPoolExecutor(max(1, min(settings.threads, len(pieces)))) as pool:
        digests = pool.map(lambda piece: hashlib.sha256(piece).digest(), pieces)
        return hashlib.sha256(b"".join(digests)).hexdigest()
