"""The object cache: what is stored comes back or nothing does, whatever happens to the files."""

from __future__ import annotations

import json
import multiprocessing
import os
from pathlib import Path

import numpy as np
import pytest

from tilewright.targets.llvm.cache import ObjectCache, content_key

METADATA = {"symbol": "kernel", "parameters": ["*f32", "i32"], "scratch_bytes": 64}


def test_round_trip(tmp_path: Path) -> None:
    cache = ObjectCache(tmp_path)
    assert cache.get("key") is None
    assert cache.put("key", METADATA, b"\x00machine code\xff")
    entry = cache.get("key")
    assert entry is not None
    assert entry.metadata == METADATA and entry.image == b"\x00machine code\xff"
    assert cache.put("key", {}, b"newer") and cache.get("key").image == b"newer"  # type: ignore[union-attr]
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["key.kernel"], "temporary files stay"


def test_damage_is_noticed_and_removed(tmp_path: Path, rng: np.random.Generator) -> None:
    cache = ObjectCache(tmp_path)
    cache.put("key", METADATA, bytes(range(256)))
    path = cache.path("key")
    whole = path.read_bytes()
    for _ in range(300):
        damaged = bytearray(whole)
        kind = rng.integers(3)
        if kind == 0:
            damaged[rng.integers(len(damaged))] ^= 1 << rng.integers(8)
        elif kind == 1:
            del damaged[rng.integers(len(damaged)) :]
        else:
            damaged += rng.bytes(int(rng.integers(1, 9)))
        path.write_bytes(damaged)
        assert cache.get("key") is None
        assert not path.exists()
    path.write_bytes(whole)
    assert cache.get("key") is not None


def test_keys_are_file_names(tmp_path: Path) -> None:
    for key in ("", "../escape", "a/b", ".hidden", "nul\0"):
        with pytest.raises(ValueError, match="bad cache key"):
            ObjectCache(tmp_path).path(key)


def test_content_key_covers_every_part() -> None:
    assert content_key("a", "b") == content_key("a", "b")
    assert len({content_key("a", "b"), content_key("ab"), content_key("a", "c"), content_key("b", "a")}) == 4


def test_cleaning_removes_the_least_recently_used(tmp_path: Path) -> None:
    cache = ObjectCache(tmp_path, limit_bytes=3000)
    for number in range(6):
        cache.put(f"key{number}", {}, bytes(900))
        os.utime(cache.path(f"key{number}"), (number, number))
    assert cache.get("key0") is not None  # used again: now the newest
    assert cache.clean() == 3
    assert [number for number in range(6) if cache.path(f"key{number}").exists()] == [0, 4, 5]


def test_unwritable_directory_is_not_an_error(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a directory")
    cache = ObjectCache(blocked)
    assert not cache.put("key", METADATA, b"code")
    assert cache.get("key") is None


def _hammer(directory: str, seed: int) -> None:
    """Write and read the same few keys; every entry read must be one that somebody wrote whole."""
    cache = ObjectCache(Path(directory))
    rng = np.random.default_rng(seed)
    for _ in range(60):
        key, fill = f"key{rng.integers(3)}", int(rng.integers(256))
        cache.put(key, {"fill": fill}, bytes([fill]) * 5000)
        entry = cache.get(key)
        assert entry is not None and entry.image == bytes([entry.metadata["fill"]]) * 5000


def test_processes_share_a_cache(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_hammer, args=(str(tmp_path), seed)) for seed in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(120)
    assert [worker.exitcode for worker in workers] == [0, 0, 0, 0]


def test_entries_are_data(tmp_path: Path) -> None:
    """The metadata of an entry is JSON that any tool can read."""
    cache = ObjectCache(tmp_path)
    cache.put("key", METADATA, b"code")
    data = cache.path("key").read_bytes()
    length = int.from_bytes(data[40:48], "little")
    assert json.loads(data[48 : 48 + length]) == METADATA
