"""Times on record: one file of lines that several programs append to, that merge, and that damage does not spoil."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tilewright.errors import TimingCacheError
from tilewright.measure import record
from tilewright.measure.record import FILE_NAME, Timing, TimingCache, timing_from_json, timing_to_json
from tilewright.settings import settings

FIRST = Timing("gpu a", "k1", "matmul", {"x": 3.0, "y": 2.0}, {"z": "too large"}, "weights cold")
LATER = Timing("gpu a", "k1", "matmul", {"z": 1.0, "x": 2.5}, {}, "weights cold")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    with settings.scope(cache_directory=tmp_path):
        yield tmp_path


def another_program() -> TimingCache:
    """The cache as a program reads it that starts now."""
    record._CACHES.clear()
    return TimingCache.of_settings()


def test_what_is_added_is_found_by_other_programs(folder: Path) -> None:
    ours = TimingCache.of_settings()
    assert ours.find("k1", "gpu a") is None
    ours.add(FIRST)
    theirs = another_program()
    assert theirs.find("k1", "gpu a") == FIRST and theirs.find("k1", "gpu b") is None
    theirs.add(LATER)
    found = TimingCache.read(folder / FILE_NAME).find("k1", "gpu a")
    assert found is not None and found.microseconds == {"x": 2.5, "y": 2.0, "z": 1.0} and found.failures == {}


def test_the_file_is_read_again_only_when_others_have_added(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[Path] = []
    readable = record._readable
    monkeypatch.setattr(record, "_readable", lambda path: (reads.append(path), readable(path))[1])
    ours = TimingCache.of_settings()
    for number in range(5):
        ours.add(Timing("gpu a", f"k{number}", "", {"x": 1.0}))
        assert TimingCache.of_settings() is ours
    assert len(reads) == 1
    TimingCache((), folder / FILE_NAME).add(Timing("gpu a", "k9", "", {"x": 1.0}))
    ours.add(FIRST)  # the line before it is not known here
    assert len(TimingCache.of_settings()) == 6 and len(reads) == 2


def test_lines_of_several_processes_stay_whole_while_the_file_is_made_short(folder: Path, monkeypatch) -> None:
    TimingCache([FIRST]).write(folder / FILE_NAME)

    def write(process: int) -> None:
        for number in range(60):
            another_program().add(Timing("gpu b", f"{process}-{number}", "words " * 50, {"x": 1.0}))

    def shorten() -> None:
        for _ in range(60):
            cache = another_program()
            cache._compact()

    context = multiprocessing.get_context("fork")
    work = [*(partial(write, process) for process in range(3)), shorten]
    processes = [context.Process(target=each) for each in work]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    cache = TimingCache.read(folder / FILE_NAME)
    assert len(cache) == 1 + 3 * 60


def test_a_line_that_was_torn_spoils_no_other(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = folder / FILE_NAME
    another_program().add(FIRST)
    path.write_bytes(path.read_bytes() + b'{"device": "gpu')  # its writer was killed
    another_program().add(Timing("gpu a", "k2", ""))
    caplog.clear()
    assert len(another_program()) == 2 and "1 lines" in caplog.text


def test_a_file_that_cannot_be_written_is_reported_once(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    (folder / FILE_NAME).mkdir()
    cache = another_program()
    for number in range(3):
        cache.add(Timing("gpu a", f"k{number}", "", {"x": 1.0}))
    assert len(cache) == 3 and caplog.text.count("cannot write to the cache folder") == 1


def test_texts_may_hold_any_separators(folder: Path) -> None:
    timing = Timing("gpu a", "k1", "next\u0085line, \u2028 and \x0b", {"x\u2029": 1.0}, {"y": "a\nb\r\x1c"})
    another_program().add(timing)
    assert list(TimingCache.read(folder / FILE_NAME)) == list(another_program()) == [timing]


def test_quantiles_go_with_their_times(folder: Path) -> None:
    first = Timing("cpu", "k", "copy", {"x": 2.0, "y": 3.0}, quantiles={"x": [2.0, 1.5, 4.0], "y": [3.0, 3.0, 3.0]})
    another_program().add(first)
    assert another_program().find("k", "cpu") == first
    another_program().add(Timing("cpu", "k", "copy", {"y": 5.0}))
    found = another_program().find("k", "cpu")
    assert found is not None and found.quantiles == {"x": [2.0, 1.5, 4.0]} and found.microseconds["y"] == 5.0
    assert "quantiles" not in timing_to_json(FIRST)  # lines of others are as they were


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
    [
        {"device": 3},
        {"quantiles": {"x": 1}},
        {"quantiles": {"x": ["1"]}},
        {"microseconds": {"x": -1}},
        {"microseconds": {"x": "1"}},
        {"failures": {"x": 1}},
        {"more": 1},
    ],
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
