"""CPU binaries as stored in the object cache, read without the compiler on a warm start."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tilewright.settings import settings
from tilewright.targets.base import Binary, Remark
from tilewright.targets.cpu.target import CPUTarget
from tilewright.targets.llvm.cache import CacheEntry, ObjectCache


def load_binary(key: str, target: CPUTarget) -> Binary | None:
    """The binary of a key from the object cache; None when it is not there."""
    return ObjectCache(settings.cache_directory).find(key, lambda entry: from_entry(key, entry, target))


def from_entry(key: str, entry: CacheEntry, target: CPUTarget) -> Binary:
    """What an entry holds; raises `ValueError` where its code needs what the target lacks."""
    binary = binary_of(key, {**entry.metadata, "seconds": {}}, entry.image, target, {})
    foreign = set(binary.features) - set(target.features)
    if foreign:
        raise ValueError(f"its code needs {', '.join(sorted(foreign))}, which {target.description} lacks")
    return binary


def binary_of(
    key: str, metadata: Mapping[str, Any], image: bytes, target: CPUTarget, texts: Mapping[str, str]
) -> Binary:
    """The binary that `metadata` describes."""
    return Binary(
        target=target.name,
        key=key,
        symbol=metadata["symbol"],
        image=image,
        parameters=tuple(metadata["parameters"]),
        scratch_bytes=metadata["scratch_bytes"],
        records=metadata["records"],
        asks=metadata["asks"],
        refuses=metadata["refuses"],
        features=tuple(metadata["features"]),
        remarks=tuple(Remark(**remark) for remark in metadata["remarks"]),
        texts=texts,
        seconds=metadata["seconds"],
    )
