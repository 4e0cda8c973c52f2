"""The object cache: what is stored comes back or nothing does, whatever happens to the files."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright
import tilewright.language as tl
from tilewright.runtime import safe_files
from tilewright.settings import settings
from tilewright.targets.llvm import cache as cache_module
from tilewright.targets.llvm.cache import SUFFIX, ObjectCache, content_key, rounded_weights

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


def test_writes_are_counted_over_all_caches_of_a_folder(tmp_path: Path) -> None:
    """Callers make a cache for each kernel."""
    for number in range(2 * 64 - 1):
        assert ObjectCache(tmp_path / "own", limit_bytes=3000).put(f"key{number}", {}, bytes(900))
        ObjectCache(tmp_path / "other", limit_bytes=3000).put("key", {}, bytes(900))
    assert sum(path.suffix == SUFFIX for path in (tmp_path / "own").rglob("*")) == 3 + 63
    ObjectCache(tmp_path / "own", limit_bytes=3000).put("last", {}, bytes(900))
    assert sum(path.suffix == SUFFIX for path in (tmp_path / "own").rglob("*")) == 3


def test_rounded_weights_displace_no_kernels(tmp_path: Path) -> None:
    with settings.scope(cache_directory=tmp_path):
        kernels, weights = ObjectCache(tmp_path, limit_bytes=3000), rounded_weights()
        weights.put("weights", {}, bytes(9000))
        kernels.put("kernel", {}, bytes(900))
        os.utime(weights.path("weights"), (1, 1))
        assert kernels.clean() == 0
        weights.limit_bytes = 3000
        assert weights.clean() == 1 and kernels.get("kernel") is not None


def test_unwritable_directory_is_not_an_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a directory")
    for _ in range(3):
        cache = ObjectCache(blocked)
        assert not cache.put("key", METADATA, b"code")
        assert cache.get("key") is None
    (record,) = caplog.records  # one warning, which says what to do
    assert str(blocked) in record.getMessage() and "TILEWRIGHT_CACHE_DIRECTORY" in record.getMessage()


def test_what_lies_in_the_place_of_an_entry_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache = ObjectCache(tmp_path)
    cache.path("key").mkdir(parents=True)
    assert not cache.put("key", METADATA, b"code")
    assert "key.kernel exists and is not a regular file" in caplog.text


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


def test_an_entry_under_another_key_is_damaged(tmp_path: Path) -> None:
    cache = ObjectCache(tmp_path)
    cache.put("one", METADATA, b"code")
    cache.path("two").parent.mkdir()
    cache.path("one").rename(cache.path("two"))
    assert cache.get("two") is None and not cache.path("two").exists()


@pytest.mark.parametrize("text", ["[]", "1", "null", '"text"', "{", "[" * 100_000, '{"symbol": NaN'])
def test_an_entry_with_other_metadata_is_damaged(tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even with a checksum that fits."""
    cache = ObjectCache(tmp_path)
    monkeypatch.setattr(cache_module.json, "dumps", lambda *arguments, **options: text)
    cache.put("key", {}, b"code")
    assert cache.get("key") is None and not cache.path("key").exists()


def test_an_entry_that_its_reader_does_not_know_is_damaged(tmp_path: Path) -> None:
    cache = ObjectCache(tmp_path)
    cache.put("key", {"another": 1}, b"code")
    assert cache.find("key", lambda entry: entry.metadata["symbol"]) is None
    assert not cache.path("key").exists()


@pytest.mark.parametrize("text", ["{}", '{"binary": 1, "written": [], "remarks": []}', '{"binary": "../x"}'])
def test_kernels_are_compiled_again_where_entries_are_forged(tmp_path: Path, text: str) -> None:
    """Entries with right checksums and wrong contents: the launch is right, nothing is raised."""
    with settings.scope(cache_directory=tmp_path):
        for _ in range(2):
            source, result = np.arange(100, dtype=np.float32), np.zeros(100, np.float32)
            fresh_kernel()[(1,)](source, result, 100, BLOCK=128)
            np.testing.assert_array_equal(result, source + 1)
            for path in tmp_path.glob(f"*/*{SUFFIX}"):
                if not path.name.startswith("sources-"):
                    ObjectCache(tmp_path).put(path.name.removesuffix(SUFFIX), json.loads(text), b"")


def test_code_for_another_cpu_is_not_taken(tmp_path: Path) -> None:
    """An entry whose code needs a feature that the target lacks is not linked, whatever key it lies under."""
    with settings.scope(cache_directory=tmp_path):
        for _ in range(2):
            source, result = np.arange(100, dtype=np.float32), np.zeros(100, np.float32)
            compiled = fresh_kernel()[(1,)](source, result, 100, BLOCK=128)
            assert "quantum" not in compiled.binary.features
            cache = ObjectCache(tmp_path)
            entry = cache.get(compiled.binary.key)
            assert entry is not None
            cache.put(compiled.binary.key, {**entry.metadata, "features": ["quantum"]}, b"")


def fresh_kernel() -> tilewright.JITFunction:
    source = (
        "def add(x, out, n, BLOCK: tl.constexpr):\n"
        "    i = tl.arange(0, BLOCK)\n    tl.store(out + i, tl.load(x + i, mask=i < n) + 1, mask=i < n)\n"
    )
    return tilewright.JITFunction.from_source(source, "add", {"tl": tl})


only_posix = pytest.mark.skipif(not hasattr(os, "getuid"), reason="modes and owners of POSIX")


@only_posix
def test_folders_are_private(tmp_path: Path) -> None:
    cache = ObjectCache(tmp_path / "new" / "folder")
    assert cache.put("key", METADATA, b"code")
    for place in (tmp_path / "new", tmp_path / "new/folder", cache.path("key").parent):
        assert place.stat().st_mode & 0o777 == 0o700
    assert cache.path("key").stat().st_mode & 0o777 == 0o600


@only_posix
@pytest.mark.parametrize("mode", [0o777, 0o770, 0o720, 0o702, 0o1777])
def test_a_folder_that_others_may_write_to_is_not_used(
    tmp_path: Path, mode: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A folder of this process stands in for it, and a warning says why."""
    folder = tmp_path / "shared"
    ObjectCache(folder).put("key", METADATA, b"forged")
    folder.chmod(mode)
    cache = ObjectCache(folder)
    assert cache.get("key") is None and cache.directory != folder
    assert f"mode {mode:o}" in caplog.text and f"chmod 700 {folder}" in caplog.text
    assert cache.put("key", METADATA, b"code")
    again = ObjectCache(folder).get("key")
    assert again is not None and again.image == b"code"
    assert cache.directory.stat().st_mode & 0o777 == 0o700


@only_posix
def test_a_folder_below_one_that_others_may_change_is_not_used(tmp_path: Path) -> None:
    folder = tmp_path / "open" / "cache"
    folder.mkdir(parents=True, mode=0o700)
    folder.chmod(0o700)
    (tmp_path / "open").chmod(0o777)
    assert "others may rename it" in str(safe_files.why_not_private(folder))
    (tmp_path / "open").chmod(0o1777)  # as /tmp: what is there belongs to who made it
    assert safe_files.why_not_private(folder) is None
    (tmp_path / "link").symlink_to(folder)
    assert safe_files.why_not_private(tmp_path / "link") is None


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="only root gives files away")
def test_what_belongs_to_others_is_not_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache = ObjectCache(tmp_path / "cache")
    cache.put("key", METADATA, b"code")
    os.chown(cache.path("key"), 12345, -1)
    assert cache.get("key") is None and "belongs to another user (number 12345)" in caplog.text
    os.chown(tmp_path / "cache", 12345, -1)
    assert "belongs to another user" in str(safe_files.why_not_private(tmp_path / "cache"))


@only_posix
@pytest.mark.parametrize("kind", ["link", "fifo", "folder", "open", "sparse"])
def test_only_private_regular_files_are_read(tmp_path: Path, kind: str) -> None:
    cache = ObjectCache(tmp_path)
    cache.put("key", METADATA, b"code")
    path = cache.path("key")
    kept = path.rename(tmp_path / "kept")
    if kind == "link":
        path.symlink_to(kept)
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "open":
        kept.rename(path).chmod(0o666)
    else:
        with path.open("wb") as file:
            file.truncate(1 << 40)
        path.chmod(0o600)
    assert cache.get("key") is None


def test_leftovers_of_killed_writers_are_removed(tmp_path: Path) -> None:
    cache = ObjectCache(tmp_path)
    cache.put("key", METADATA, b"code")
    for number in range(5):
        (tmp_path / "ey" / f".write-{number}").write_bytes(bytes(1000))
    old = tmp_path / "tmpabcdefgh"
    old.write_bytes(b"")
    os.utime(old, (1, 1))
    assert [size for _, size in safe_files.leftovers(tmp_path)].count(1000) == 5
    with open(tmp_path / "ey" / ".write-0", "rb") as file:  # its writer lives
        if safe_files._lock(file.fileno()):
            assert len(safe_files.leftovers(tmp_path)) == 5
    assert cache.clean() == 6
    assert safe_files.leftovers(tmp_path) == [] and cache.get("key") is not None


def _write_and_wait(path: str, ready: Any) -> None:
    with safe_files.replacing(Path(path)) as file:
        file.write(b"half")
        file.flush()
        ready.set()
        time.sleep(600)


@pytest.mark.skipif(not safe_files.HAS_LOCKS, reason="no file locks")
def test_files_that_killed_writers_of_a_name_left_go_with_the_next_writing(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    path, others = tmp_path / "a.engine", []

    def found() -> set[Path]:
        return set(tmp_path.glob(".a.engine.*")) - set(others)

    workers = []
    for _ in range(2):
        ready = context.Event()
        workers.append(context.Process(target=_write_and_wait, args=(str(path), ready)))
        workers[-1].start()
        assert ready.wait(60)
    for name in (
        ".b.engine.0123456789abcdef",
        ".a.engine.0123456789ABCDEF",
        ".a.engine.0123456789abcdef0",
        "a.engine.old",
    ):
        others.append(tmp_path / name)
        others[-1].write_bytes(b"")
    (tmp_path / ".a.engine.00000000000000ff").symlink_to(others[0])
    others.append(tmp_path / ".a.engine.00000000000000ff")
    before = found()
    assert len(before) == 2
    workers[0].kill()
    workers[0].join()
    with safe_files.replacing(path) as file:
        file.write(b"first")
    assert found() == before and path.read_bytes() == b"first"  # the one that is left is not old yet
    for old in (*before, *others):
        os.utime(old, (1, 1), follow_symlinks=False)
    with safe_files.replacing(path) as file:
        file.write(b"second")
    assert len(found()) == 1 and path.read_bytes() == b"second"  # which the other process is writing
    workers[1].kill()
    workers[1].join()
    with safe_files.replacing(path) as file:
        file.write(b"third")
    assert found() == set() and all(map(os.path.lexists, others))


def test_a_file_is_not_replaced_by_half_of_another(tmp_path: Path) -> None:
    path = tmp_path / "a.engine"
    path.write_bytes(b"old")
    with pytest.raises(KeyError), safe_files.replacing(path) as file:
        file.write(b"new")
        raise KeyError
    assert path.read_bytes() == b"old" and [each.name for each in tmp_path.iterdir()] == ["a.engine"]
    with pytest.raises(OSError, match="not a regular file"), safe_files.replacing(tmp_path):
        pass


def _write_until_killed(directory: str) -> None:
    cache = ObjectCache(Path(directory))
    number = 0
    while True:
        number += 1
        cache.put(f"key{number % 7}", {}, bytes(200_000))


def test_writers_that_are_killed_leave_nothing_for_long(tmp_path: Path) -> None:
    """The next writer to a folder removes what they left; entries are whole or missing."""
    context = multiprocessing.get_context("fork" if hasattr(os, "fork") else "spawn")
    for round_ in range(8):
        worker = context.Process(target=_write_until_killed, args=(str(tmp_path),))
        worker.start()
        time.sleep(0.05 + 0.01 * round_)
        worker.kill()
        worker.join()
    assert len(safe_files.leftovers(tmp_path)) <= 8
    safe_files._swept.clear()
    cache = ObjectCache(tmp_path)
    for number in range(7):
        assert cache.put(f"key{number}", {}, b"")
    assert safe_files.leftovers(tmp_path) == []


NOTES = """
import sys
import numpy as np
import tilewright
import tilewright.language as tl
from helpers import twice

@tilewright.jit
def kernel(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i * 3 % 7, twice(tl.load(x + i * 5 % 11, mask=i < n)), mask=i < n)

x, out = np.ones(64, np.float32), np.zeros(64, np.float32)
compiled = kernel[(1,)](x, out, 8, BLOCK=8)
print(*(f"{note.file}:{note.line} {note.message}" for note in compiled.remarks), sep="\\n")
"""
HELPERS = """
import tilewright
import tilewright.language as tl

@tilewright.jit
def twice(x):
    return tl.sum(x[:, None] + x[None, :], 1)
"""


def test_checkouts_that_share_a_cache_do_not_show_their_paths(tmp_path: Path) -> None:
    environment = {**os.environ, "TILEWRIGHT_CACHE_DIRECTORY": str(tmp_path / "cache")}
    outputs = []
    for name in ("first", "second"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "notes.py").write_text(NOTES)
        (folder / "helpers.py").write_text(HELPERS)
        found = subprocess.run(
            [sys.executable, "notes.py"], cwd=folder, env=environment, capture_output=True, text=True, check=True
        )
        outputs.append(found.stdout)
    assert str(tmp_path / "first") not in outputs[1]
    kept = b"".join(path.read_bytes() for path in (tmp_path / "cache").rglob("*") if path.is_file())
    assert os.fsencode(tmp_path) not in kept
    assert os.fsencode(Path(tilewright.__file__).parent) not in kept
