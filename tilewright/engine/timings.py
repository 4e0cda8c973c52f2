"""Reads recorded kernel times from timing caches and from engines."""

from __future__ import annotations

from pathlib import Path

from tilewright.engine.file import read_package
from tilewright.errors import TimingCacheError
from tilewright.measure.record import Timing, TimingCache, timing_from_json


def read_timings(path: Path) -> tuple[Timing, ...]:
    """The times in a timing cache, or of all programs of an engine.

    Raises `TimingCacheError` for a file that has none, `EngineError` for an engine that cannot be read.
    """
    if path.suffix != ".engine":
        return tuple(TimingCache.read(path))
    manifest = read_package(path).manifest
    try:
        programs = manifest["programs"]
        return tuple(timing_from_json(data) for program in programs for data in program.get("timings", ()))
    except (LookupError, ValueError, TypeError, AttributeError) as error:
        raise TimingCacheError(f"the times in the engine {path} are malformed: {error}") from error
