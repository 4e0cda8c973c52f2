"""The object cache: compiled kernels on disk, found by content.

One file per key.  An entry is data only (JSON and machine code), written to a temporary name,
flushed and renamed, so that readers in any process see all of it or nothing; its checksum is
verified on every read, and a damaged entry is removed and reported as missing.

    file = magic (8) · SHA-256 of the rest (32) · length of the JSON (8, little endian) · JSON · image
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import llvmlite
import llvmlite.binding as llvm

from tilewright.settings import settings

_MAGIC = b"TWOBJ001"
_HEADER = len(_MAGIC) + 32 + 8
_SUFFIX = ".kernel"
_CLEAN_EVERY = 64  # writes between looks at the cache's size
_FIELD, _LINE = "\0", "\n"
_SETTLED = 2_000_000_000  # nanoseconds after which another change of a file has another time

logger = logging.getLogger("tilewright.cache")


@dataclass(frozen=True)
class CacheEntry:
    """What was stored under a key: JSON metadata and the image."""

    metadata: Mapping[str, Any]
    image: bytes


class ObjectCache:
    """Entries under `directory`; together at most about `limit_bytes`, the least recently used go first."""

    def __init__(self, directory: Path, limit_bytes: int = 2 << 30) -> None:
        self.directory = directory
        self.limit_bytes = limit_bytes
        self._writes = 0

    def path(self, key: str) -> Path:
        """Where the entry of a key lies; raises `ValueError` for a key that is no plain file name."""
        if not key or not all(character.isalnum() or character in "-_." for character in key) or key[0] == ".":
            raise ValueError(f"bad cache key {key!r}")
        return self.directory / key[-2:] / (key + _SUFFIX)

    def get(self, key: str) -> CacheEntry | None:
        """The entry of a key; None when there is none, when it is damaged, or when it cannot be read."""
        path = self.path(key)
        try:
            data = path.read_bytes()
        except OSError:
            return None
        entry = _decode(data)
        if entry is None:
            logger.warning("cache entry %s is damaged: removed, its kernel is compiled again", path)
            _remove(path)
            return None
        _touch(path)
        return entry

    def put(self, key: str, metadata: Mapping[str, Any], image: bytes) -> bool:
        """Store an entry, replacing an older one; False (and a log line) when the disk refuses."""
        path = self.path(key)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            _write_atomically(path, _encode(metadata, image))
        except OSError as error:
            logger.warning("cannot write the object cache at %s: %s", path, error)
            return False
        self._writes += 1
        if self._writes % _CLEAN_EVERY == 0:
            self.clean()
        return True

    def clean(self) -> int:
        """Remove the least recently used entries beyond `limit_bytes`; returns how many."""
        entries = []
        for path in self.directory.glob(f"*/*{_SUFFIX}"):
            try:
                status = path.stat()
            except OSError:
                continue  # removed by another process
            entries.append((status.st_mtime, status.st_size, path))
        total, removed = sum(size for _, size, _ in entries), 0
        for _, size, path in sorted(entries, key=lambda entry: (entry[0], entry[2])):
            if total <= self.limit_bytes:
                break
            _remove(path)
            total, removed = total - size, removed + 1
        return removed


def content_key(*parts: str) -> str:
    """A key over everything given, the compiler's own sources and the versions of LLVM."""
    digest = hashlib.sha256()
    for part in (compiler_digest(), *parts):
        data = part.encode()
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()[:40]


@lru_cache(maxsize=1)
def compiler_digest() -> str:
    """A hash of the sources that turn Tile IR into machine code, and of the LLVM in use."""
    digest = source_digest("ir", "passes", "targets")
    return hashlib.sha256(f"{_llvm_version()} {digest}".encode()).hexdigest()


@lru_cache
def kernel_digest(family: str) -> str:
    """A hash of the sources that turn kernels into machine code of one family of targets, and of the LLVM in use.

    `family` is the name of its targets: ``cpu``, ``cuda``.
    """
    others = frozenset(_FOLDERS.values()) - {_FOLDERS[family]}
    digest = source_digest("frontend", "ir", "language", "passes", "targets", without=others)
    return hashlib.sha256(f"{_llvm_version()} {digest}".encode()).hexdigest()


_FOLDERS = {"cpu": "cpu", "cuda": "nvidia"}  # name of a family's targets -> its folder in `targets`


def _llvm_version() -> str:
    return f"{llvmlite.__version__} {llvm.llvm_version_info}"


def source_digest(*folders: str, without: frozenset[str] = frozenset()) -> str:
    """A hash of all Python sources in folders of this package, but for subfolders with the names in `without`.

    Reading them takes longer than all else that finding a compiled kernel needs; so the hash is kept in the cache
    under what the system says of the files (size, inode, times of change), which changes whenever one of them does.
    """
    package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    states: list[str] = []
    newest = max((_add_states(states, f"{package}/{folder}", without) for folder in folders), default=0)
    states.sort()
    key = f"sources-{hashlib.sha256(_LINE.join(states).encode()).hexdigest()[:40]}"
    cache = ObjectCache(settings.cache_directory)
    entry = cache.get(key)
    if entry is not None:
        return str(entry.metadata["digest"])
    digest = hashlib.sha256()
    for state in states:
        path = state.split(_FIELD)[0]
        digest.update(path.removeprefix(package).encode())
        digest.update(Path(path).read_bytes())
    found = digest.hexdigest()
    if time.time_ns() - newest > _SETTLED:
        cache.put(key, {"digest": found}, b"")
    return found


def _add_states(states: list[str], folder: str, without: frozenset[str]) -> int:
    """Add path, size, inode, times of modification and of change of every Python source below `folder`.

    Returns the latest change.  Each is one string: hundreds of tuples would start a garbage collection, which takes
    longer than all of this.
    """
    newest = 0
    with os.scandir(folder) as entries:
        for entry in entries:
            name = entry.name
            if name.endswith(".py"):
                status = entry.stat()
                changed = status.st_ctime_ns
                newest = max(newest, changed)
                states.append(f"{entry.path}{_FIELD}{status.st_size} {status.st_ino} {status.st_mtime_ns} {changed}")
            elif name != "__pycache__" and name not in without and entry.is_dir(follow_symlinks=False):
                newest = max(newest, _add_states(states, entry.path, without))
    return newest


def _encode(metadata: Mapping[str, Any], image: bytes) -> bytes:
    text = json.dumps(metadata, sort_keys=True).encode()
    body = len(text).to_bytes(8, "little") + text + image
    return _MAGIC + hashlib.sha256(body).digest() + body


def _decode(data: bytes) -> CacheEntry | None:
    if len(data) < _HEADER or not data.startswith(_MAGIC):
        return None
    body = data[len(_MAGIC) + 32 :]
    if hashlib.sha256(body).digest() != data[len(_MAGIC) : len(_MAGIC) + 32]:
        return None
    length = int.from_bytes(body[:8], "little")
    return CacheEntry(json.loads(body[8 : 8 + length]), body[8 + length :])


def _write_atomically(path: Path, data: bytes) -> None:
    handle, temporary = tempfile.mkstemp(prefix=".write-", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        _remove(Path(temporary))
        raise


def _remove(path: Path) -> None:
    try:
        path.unlink()
    except OSError:
        pass  # another process was first, or the directory is read-only: nothing depends on it


def _touch(path: Path) -> None:
    try:
        os.utime(path)
    except OSError:
        pass  # a read-only cache still serves
