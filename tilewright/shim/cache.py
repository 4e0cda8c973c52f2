"""`triton.runtime.cache`: files that programs keep next to compiled kernels, and keys."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tilewright
from tilewright.errors import UnsupportedOperationError
from tilewright.runtime import safe_files
from tilewright.settings import settings
from tilewright.shim.environment import folder
from tilewright.targets.llvm.cache import kernel_digest


class CacheManager:
    """Files under one key; see `FileCacheManager`."""

    def __init__(self, key: str, override: bool = False, dump: bool = False) -> None:
        self.key = key


class FileCacheManager(CacheManager):
    """Files of one key in a folder of the cache directory; what is written is seen whole or not at all."""

    def __init__(self, key: str, override: bool = False, dump: bool = False) -> None:
        super().__init__(key)
        base = safe_files.private_folder(settings.cache_directory) / "files"
        if dump:
            base = folder("TRITON_DUMP_DIR", "dump")
        elif override:
            base = folder("TRITON_OVERRIDE_DIR", "override")
        self.cache_dir = str(base / key)

    def _make_path(self, filename: str) -> str:
        return os.path.join(self.cache_dir, filename)

    def has_file(self, filename: str) -> bool:
        """Whether there is such a file."""
        return os.path.exists(self._make_path(filename))

    def get_file(self, filename: str) -> str | None:
        """The path of a file, or None."""
        return self._make_path(filename) if self.has_file(filename) else None

    def put(self, data: Any, filename: str, binary: bool = True) -> str:
        """Write a file; returns its path."""
        content = data if isinstance(data, bytes) else str(data).encode()
        path = Path(self._make_path(filename))
        safe_files.write(path, content)
        return str(path)

    def get_group(self, filename: str) -> dict[str, str] | None:
        """Paths of the files of a group by name; None when one of them is missing."""
        path = self.get_file(f"__grp__{filename}")
        if path is None:
            return None
        found: dict[str, str] = json.loads(Path(path).read_text())["child_paths"]
        return found if all(os.path.exists(child) for child in found.values()) else None

    def put_group(self, filename: str, group: Mapping[str, str]) -> str:
        """Remember the paths of a group's files; returns the path of the record."""
        return self.put(json.dumps({"child_paths": dict(group)}), f"__grp__{filename}", binary=False)


class RemoteCacheManager(CacheManager):
    """Files of a key on another machine: not here."""

    def __init__(self, key: str, override: bool = False, dump: bool = False) -> None:
        RemoteCacheBackend(key)


class RemoteCacheBackend:
    """A cache on another machine: not here."""

    def __init__(self, key: str) -> None:
        raise UnsupportedOperationError(
            "there is no remote cache; TILEWRIGHT_CACHE_DIRECTORY may name a folder that several machines share"
        )


class RedisRemoteCacheBackend(RemoteCacheBackend):
    """The same in a Redis server: not here."""


def get_cache_manager(key: str) -> FileCacheManager:
    """Files of a key next to compiled kernels."""
    return FileCacheManager(key)


def get_override_manager(key: str) -> FileCacheManager:
    """Files of a key in the folder of overrides."""
    return FileCacheManager(key, override=True)


def get_dump_manager(key: str) -> FileCacheManager:
    """Files of a key in the folder of dumps."""
    return FileCacheManager(key, dump=True)


def default_cache_dir() -> str:
    """The cache directory."""
    return str(safe_files.private_folder(settings.cache_directory))


def triton_key() -> str:
    """A hash of the compiler: it differs whenever compiled code may differ."""
    return f"{tilewright.__version__}-{kernel_digest('cpu')}"


def get_cache_key(src: Any, backend: Any, backend_options: Any, env_vars: Mapping[str, str] | None = None) -> str:
    """A hash of a source, a backend and options."""
    parts = (triton_key(), src.hash(), backend.hash(), str(backend_options), str(sorted((env_vars or {}).items())))
    return hashlib.sha256("-".join(parts).encode()).hexdigest()
