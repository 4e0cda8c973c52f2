"""The object cache: compiled kernels on disk, found by content.

One file per key.  An entry is data only (JSON and machine code), written by `safe_files.write`, so
that readers in any process see all of it or nothing; its checksum, which covers the key, is verified on
every read, and an entry that is damaged or lies under another key is removed and reported as missing.

Rounded weights and the measurements of searches are such entries too, in folders of their own, so that they displace
no kernels.

    file = magic (8) · SHA-256 of key and rest (32) · length of the JSON (8, little endian) · JSON · image
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import llvmlite
import llvmlite.binding as llvm
import numpy as np

from tilewright.runtime import safe_files
from tilewright.settings import settings
from tilewright.targets.families import FAMILIES

_MAGIC = b"TWOBJ002"
_HEADER = len(_MAGIC) + 32 + 8
SUFFIX = ".kernel"
ROUNDED_WEIGHTS = "rounded"  # the folder of rounded weights, in that of kernels
SEARCHES = "searches"  # and that of what searches for precisions measured
_CLEAN_EVERY = 64  # writes of a process between looks at a cache's size
_ROUNDED_LIMIT = 16 << 30  # bytes: a model that is resumed needs the weights of all of its layers
_SEARCH_LIMIT = 4 << 30
_FIELD, _LINE = "\0", "\n"
_SETTLED = 2_000_000_000  # nanoseconds after which another change of a file has another time

_writes: defaultdict[Path, Iterator[int]] = defaultdict(lambda: count(1))  # by folder the numbers of writes to come

logger = logging.getLogger("tilewright.cache")
Decoded = TypeVar("Decoded")


@dataclass(frozen=True)
class CacheEntry:
    """What was stored under a key: JSON metadata and the image."""

    metadata: Mapping[str, Any]
    image: bytes


class ObjectCache:
    """Entries under `directory`; together at most about `limit_bytes`, the least recently used go first.

    The folder is used only when nobody else may write to it (`safe_files.private_folder`).
    """

    def __init__(self, directory: Path, limit_bytes: int = 2 << 30) -> None:
        self.directory = safe_files.private_folder(directory)
        self.limit_bytes = limit_bytes

    def path(self, key: str) -> Path:
        """Where the entry of a key lies; raises `ValueError` for a key that is no plain file name."""
        if not key or not all(character.isalnum() or character in "-_." for character in key) or key[0] == ".":
            raise ValueError(f"bad cache key {key!r}")
        return self.directory / key[-2:] / (key + SUFFIX)

    def get(self, key: str) -> CacheEntry | None:
        """The entry of a key; None when there is none, when it is damaged, or when it cannot be read."""
        return self.find(key, lambda entry: entry)

    def find(self, key: str, decode: Callable[[CacheEntry], Decoded]) -> Decoded | None:
        """What `decode` makes of the entry of a key; None as of `get`, and for an entry that has not what it reads."""
        path = self.path(key)
        data = safe_files.read(path)
        if data is None:
            return None
        try:
            found = decode(decode_entry(key, data))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            logger.warning("cache entry %s is damaged (%s): removed, it is made again", path, error)
            _remove(path)
            return None
        _touch(path)
        return found

    def put(self, key: str, metadata: Mapping[str, Any], image: bytes) -> bool:
        """Store an entry, replacing an older one; False (and one warning) when the disk refuses."""
        try:
            self.directory = safe_files.private_folder(self.directory, create=True)
            path = self.path(key)
            safe_files.write(path, _encode(key, metadata, image), durable=False)  # `find` verifies it
        except OSError as error:
            safe_files.complain(self.directory, error)
            return False
        if next(_writes[self.directory]) % _CLEAN_EVERY == 0:
            self.clean()
        return True

    def _entries(self) -> list[tuple[float, int, Path]]:
        """When each entry was used last, its bytes and its file."""
        entries = []
        for path in safe_files.files(self.directory):
            if path.suffix == SUFFIX and path.parent.parent == self.directory:  # not of a cache in this folder
                with contextlib.suppress(OSError):  # removed by another process
                    status = path.lstat()
                    entries.append((status.st_mtime, status.st_size, path))
        return entries

    def clean(self) -> int:
        """Remove what killed writers have left, then the least recently used entries beyond `limit_bytes`; returns how
        many files that were."""
        removed, _ = safe_files.remove_leftovers(self.directory)
        entries = self._entries()
        total = sum(size for _, size, _ in entries)
        for _, size, path in sorted(entries, key=lambda entry: (entry[0], entry[2])):
            if total <= self.limit_bytes:
                break
            _remove(path)
            total, removed = total - size, removed + 1
        return removed


def rounded_weights() -> ObjectCache:
    """The cache of weights that were rounded."""
    return ObjectCache(safe_files.private_folder(settings.cache_directory) / ROUNDED_WEIGHTS, _ROUNDED_LIMIT)


def searches() -> ObjectCache:
    """The cache of what searches for precisions measured."""
    return ObjectCache(safe_files.private_folder(settings.cache_directory) / SEARCHES, _SEARCH_LIMIT)


def content_key(*parts: str) -> str:
    """A key over everything given, the compiler's own sources and the versions of LLVM."""
    digest = hashlib.sha256()
    for part in (compiler_digest(), *parts):
        data = part.encode()
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()[:40]


def arrays_key(arrays: Mapping[str, np.ndarray]) -> str:
    """A key over arrays by name, in whatever order: their types, shapes and elements."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = np.asarray(arrays[name])
        digest.update(f"{len(name)} {name} {array.dtype} {array.shape}".encode())
        if array.dtype.hasobject:
            digest.update(repr(array.tolist()).encode())
        else:  # as bytes: buffers have no name for the types of ml_dtypes
            digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
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
    others = frozenset().union(*(row.folders for row in FAMILIES.values())) - FAMILIES[family].folders
    digest = source_digest("frontend", "ir", "language", "launch", "passes", "targets", without=others)
    return hashlib.sha256(f"{_llvm_version()} {digest}".encode()).hexdigest()


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
    cached = cache.find(key, lambda entry: str(entry.metadata["digest"]))
    if cached is not None:
        return cached
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


def _encode(key: str, metadata: Mapping[str, Any], image: bytes) -> bytes:
    text = json.dumps(metadata, sort_keys=True).encode()
    body = len(text).to_bytes(8, "little") + text + image
    return _MAGIC + _checksum(key, body) + body


def _checksum(key: str, body: bytes) -> bytes:
    digest = hashlib.sha256(f"{key}{_FIELD}".encode())
    digest.update(body)
    return digest.digest()


def decode_entry(key: str, data: bytes) -> CacheEntry:
    """The entry of a file; raises `ValueError` when it is damaged or was stored under another key."""
    if len(data) < _HEADER or not data.startswith(_MAGIC):
        raise ValueError("it is no cache entry")
    body = data[len(_MAGIC) + 32 :]
    if _checksum(key, body) != data[len(_MAGIC) : len(_MAGIC) + 32]:
        raise ValueError("its checksum is another")
    length = int.from_bytes(body[:8], "little")
    metadata = json.loads(body[8 : 8 + length])
    if not isinstance(metadata, dict):
        raise ValueError("its metadata is no JSON object")
    return CacheEntry(metadata, body[8 + length :])


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
