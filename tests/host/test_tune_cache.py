"""Times on record: one file of lines that several programs append to, that merge, and that damage does not spoil."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilewright.errors import TimingCacheError
from tilewright.settings import settings
from tilewright.tune.cache import FILE_NAME, Timing, TimingCache, timing_from_json, timing_to_json

FIRST = Timing("gpu a", "k1", "matmul", {"x": 3.0, "y": 2.0}, {"z": "too large"}, "weights cold")
LATER = Timing("gpu a", "k1", "matmul", {"z": 1.0, "x": 2.5}, {}, "weights cold")


def test_what_is_added_is_found_by_other_programs(tmp_path: Path) -> None:
    with settings.scope(cache_directory=tmp_path):
        ours = TimingCache.of_settings()
        assert ours.find("k1", "gpu a") is None
        ours.add(FIRST)
        theirs = TimingCache.of_settings()
        assert theirs.find("k1", "gpu a") == FIRST and theirs.find("k1", "gpu b") is None
        theirs.add(LATER)
    found = TimingCache.read(tmp_path / FILE_NAME).find("k1", "gpu a")
    assert found is not None and found.microseconds == {"x": 2.5, "y": 2.0, "z": 1.0} and found.failures == {}


def test_without_a_gpu_the_times_of_the_commonest_are_taken() -> None:
    cache = TimingCache([FIRST, Timing("gpu b", "k1", ""), Timing("gpu b", "k2", "")])
    found = [cache.find(key, None) for key in ("k1", "k2", "k3")]
    assert [timing and timing.device for timing in found] == ["gpu b", "gpu b", None]


def test_merged_files_do_not_depend_on_their_order(tmp_path: Path) -> None:
    other = Timing("gpu b", "k1", "matmul", {"x": 7.0})
    for name, timings in (("one", [FIRST, other]), ("two", [other, FIRST])):
        TimingCache(timings).write(tmp_path / name)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    both = tmp_path / "both"  # as `cat` does
    both.write_bytes((tmp_path / "one").read_bytes() + (tmp_path / "two").read_bytes())
    assert len(TimingCache.read(both)) == 2


def test_damaged_lines_are_left_out_of_our_file_and_refused_in_a_users(tmp_path: Path, caplog) -> None:
    with settings.scope(cache_directory=tmp_path):
        TimingCache.of_settings().add(FIRST)
        path = tmp_path / FILE_NAME
        path.write_bytes(path.read_bytes() + b'{"device": 3}\n{"torn')
        assert len(TimingCache.of_settings()) == 1 and "2 lines" in caplog.text
        with pytest.raises(TimingCacheError, match=f"{FILE_NAME}:2 is no line of a timing cache"):
            TimingCache.read(path)
    with pytest.raises(TimingCacheError, match="cannot be read"):
        TimingCache.read(tmp_path / "missing")


@pytest.mark.parametrize(
    "change",
    [{"device": 3}, {"microseconds": {"x": -1}}, {"microseconds": {"x": "1"}}, {"failures": {"x": 1}}, {"more": 1}],
)
def test_only_timings_are_read(change) -> None:
    assert timing_from_json(timing_to_json(FIRST)) == FIRST
    with pytest.raises(ValueError):
        timing_from_json({**timing_to_json(FIRST), **change})


def test_a_long_file_is_made_short(tmp_path: Path) -> None:
    with settings.scope(cache_directory=tmp_path):
        path = tmp_path / FILE_NAME
        TimingCache([FIRST]).write(path)
        path.write_bytes(path.read_bytes() * 1100)
        assert len(TimingCache.of_settings()) == 1
        assert path.read_bytes().count(b"\n") == 1
