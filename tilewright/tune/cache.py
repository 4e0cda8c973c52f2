"""Times of kernels on record: one file of JSON lines, which programs append to, engines carry, and people merge.

    {"device": "NVIDIA H200, driver 13000", "key": "4be1…", "what": "matmul f16[128,768] …", "context": "…",
     "microseconds": {"hopper matmul, tile 128 x 256 …": 5.21, …}, "failures": {…}}

A line belongs to one problem on one GPU; of several lines with the same device and key the later ones add to the
earlier, so that concatenating files merges them.  The key is made by who times (`build.tuning`, `ops.choices`) of
everything that a time depends on: the problem, its layouts, the compiler's and the kernels' sources.
"""

from __future__ import annotations

import json
import logging
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tilewright.errors import TimingCacheError
from tilewright.runtime import cache_files
from tilewright.settings import settings

logger = logging.getLogger("tilewright.tune")

FILE_NAME = "timings.jsonl"  # in the cache directory
_LARGEST = 256 << 20  # bytes of a file that a user names
_LIMIT = 50_000  # lines of that file; the oldest go first


@dataclass(frozen=True)
class Timing:
    """What candidates for one problem took on one GPU: microseconds by the candidates' texts.

    `what` and `context` are for people: the problem, and how it was timed. `failures` tells what could not be run.
    """

    device: str
    key: str
    what: str
    microseconds: Mapping[str, float] = field(default_factory=dict)
    failures: Mapping[str, str] = field(default_factory=dict)
    context: str = ""

    def joined(self, later: Timing) -> Timing:
        """Both times; of those that both have the later."""
        microseconds = {**self.microseconds, **later.microseconds}
        failures = {
            name: text for name, text in {**self.failures, **later.failures}.items() if name not in microseconds
        }
        return Timing(self.device, self.key, later.what, microseconds, failures, later.context)


class TimingCache:
    """Times by device and key, in memory; with a `path`, what is added is appended to that file as well."""

    def __init__(self, timings: Iterable[Timing] = (), path: Path | None = None) -> None:
        self.path = path
        self._found: dict[tuple[str, str], Timing] = {}
        for timing in timings:
            self._join(timing)

    @classmethod
    def read(cls, path: Path) -> TimingCache:
        """The times of a file that a user names; raises `TimingCacheError` when it is not there or holds others."""
        try:
            status = path.stat()
            if not stat.S_ISREG(status.st_mode):
                raise TimingCacheError(f"the timing cache {path} is no regular file")
            if status.st_size > _LARGEST:
                raise TimingCacheError(
                    f"the timing cache {path} has {status.st_size >> 20} MiB; at most {_LARGEST >> 20} are read"
                )
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, ValueError) as error:
            raise TimingCacheError(f"the timing cache {path} cannot be read: {error}") from error
        timings = []
        for number, line in enumerate(lines, 1):
            try:
                timings.append(timing_from_json(json.loads(line)))
            except (ValueError, RecursionError) as error:
                raise TimingCacheError(
                    f"{path}:{number} is no line of a timing cache ({error}); a file of `tilewright tune merge` or of "
                    f"the cache directory ({FILE_NAME}) is expected"
                ) from error
        return cls(timings)

    @classmethod
    def of_settings(cls) -> TimingCache:
        """The cache directory's times, to which others are added; damaged lines are left out.

        The file is read again when it has changed, by this process or another.
        """
        path = cache_files.private_folder(settings.cache_directory) / FILE_NAME
        state = _state(path)
        known = _CACHES.get(path)
        if known is None or known[0] != state:
            timings, lines = _readable(path)
            cache = cls(timings, path)
            if lines > min(_LIMIT, 2 * len(cache._found) + 1000):
                cache._compact()
                state = _state(path)
            known = _CACHES[path] = (state, cache)
        return known[1]

    def __iter__(self) -> Iterator[Timing]:
        return iter(self._found.values())

    def __len__(self) -> int:
        return len(self._found)

    def find(self, key: str, device: str | None) -> Timing | None:
        """The times of a problem on a GPU; for `device` None those of the GPU that most times are of."""
        if device is not None:
            return self._found.get((device, key))
        counts: dict[str, int] = {}
        for name, _ in self._found:
            counts[name] = counts.get(name, 0) + 1
        for name in sorted(counts, key=lambda name: (-counts[name], name)):
            if (name, key) in self._found:
                return self._found[name, key]
        return None

    def add(self, timing: Timing) -> Timing:
        """Put times on record; returns all that are known of the problem."""
        self._join(timing)
        if self.path is not None:
            try:
                cache_files.private_folder(self.path.parent, create=True)
                _append(self.path, _line(timing))
            except OSError as error:
                logger.warning("cannot write the timing cache %s: %s", self.path, error)
        return self._found[timing.device, timing.key]

    def update(self, others: Iterable[Timing]) -> None:
        """Add the times of other caches, in memory alone."""
        for timing in others:
            self._join(timing)

    def write(self, path: Path) -> None:
        """Write all times to a file, in one step; equal caches give equal files. Raises `TimingCacheError`."""
        lines = sorted(_line(timing) for timing in self)
        try:
            cache_files.replace(path, "".join(lines).encode(), mode=0o644)  # others may merge it
        except OSError as error:
            raise TimingCacheError(f"cannot write the timing cache {path}: {error.strerror or error}") from error

    def _join(self, timing: Timing) -> None:
        entry = (timing.device, timing.key)
        known = self._found.get(entry)
        self._found[entry] = timing if known is None else known.joined(timing)

    def _compact(self) -> None:
        """Replace the file by one line for each problem, the latest ones."""
        assert self.path is not None
        latest = dict(list(self._found.items())[-_LIMIT // 2 :])
        try:
            TimingCache(latest.values()).write(self.path)
        except TimingCacheError as error:
            logger.warning("%s", error)


_CACHES: dict[Path, tuple[tuple[int, int], TimingCache]] = {}  # what `of_settings` read, and the file's state then


def _state(path: Path) -> tuple[int, int]:
    """What changes whenever a file does, as far as the system tells: its size and time."""
    try:
        found = path.stat()
    except OSError:
        return 0, 0
    return found.st_size, found.st_mtime_ns


def timing_to_json(timing: Timing) -> dict[str, Any]:
    """A line as JSON values, candidates by name, so that equal times give equal text; `timing_from_json` is the
    inverse."""
    data = asdict(timing)
    return data | {name: dict(sorted(data[name].items())) for name in ("microseconds", "failures")}


def timing_from_json(data: Any) -> Timing:
    """Times from JSON; raises `ValueError` for anything else than `timing_to_json` gives."""
    if not isinstance(data, dict) or data.keys() != Timing.__dataclass_fields__.keys():
        raise ValueError("the fields are not those of a timing")
    texts = [data[name] for name in ("device", "key", "what", "context")]
    times, failures = data["microseconds"], data["failures"]
    if not (all(isinstance(text, str) for text in texts) and isinstance(times, dict) and isinstance(failures, dict)):
        raise ValueError("a field has the wrong type")
    if not all(isinstance(time, (int, float)) and 0 <= time < 1e12 for time in times.values()):
        raise ValueError("a time is no number of microseconds")
    if not all(isinstance(text, str) for text in failures.values()):
        raise ValueError("a failure is no text")
    return Timing(**{**data, "microseconds": {name: float(time) for name, time in times.items()}})


def _line(timing: Timing) -> str:
    return json.dumps(timing_to_json(timing), sort_keys=True, ensure_ascii=False) + "\n"


def _readable(path: Path) -> tuple[list[Timing], int]:
    """The times of a file's good lines, and how many lines it has."""
    lines = (cache_files.read(path) or b"").splitlines()
    timings, damaged = [], 0
    for line in lines:
        try:
            timings.append(timing_from_json(json.loads(line)))
        except (ValueError, RecursionError):
            damaged += 1
    if damaged:
        logger.warning("%d lines of %s are damaged and left out", damaged, path)
    return timings, len(lines)


def _append(path: Path, text: str) -> None:
    """One write, so that lines of several processes do not mix."""
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o644)
    try:
        os.write(handle, text.encode())
    finally:
        os.close(handle)
