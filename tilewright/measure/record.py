"""Recorded kernel times: one file of JSON lines that programs append to, engines carry, and users merge.

    {"device": "NVIDIA H200, CUDA 13.0", "key": "group-4be1…", "what": "matmul f16[128,768] …", "context": "…",
     "microseconds": {"hopper matmul, tile 128 x 256 …": 5.21, …}, "failures": {…}}

A line belongs to one problem on one device; of several lines with the same device and key the later ones add to the
earlier, so that concatenating files merges them.  The key (`keys.problem_key`) is made of everything that a time
depends on: the problem, its layouts, the compiler's and the kernels' sources.  Lines of `autotune` have "quantiles".
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import stat
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tilewright.errors import TimingCacheError
from tilewright.runtime import safe_files
from tilewright.settings import settings

logger = logging.getLogger("tilewright.measure")

FILE_NAME = "timings.jsonl"  # in the cache directory
_LARGEST_FILE = 256 << 20  # bytes of a file that a user names
_MOST_LINES = 50_000  # lines of that file; the oldest go first
_KEYS = {"problem": "what"}  # fields that the file names otherwise


@dataclass(frozen=True)
class Timing:
    """What candidates for one problem took on one device: microseconds by the candidates' labels.

    `problem` and `context` are for people: the problem, and how it was timed. `failures` tells what could not be run.
    `quantiles` are those of the runs of a candidate that were asked for, the deciding one first.
    """

    device: str
    key: str
    problem: str
    microseconds: Mapping[str, float] = field(default_factory=dict)
    failures: Mapping[str, str] = field(default_factory=dict)
    context: str = ""
    quantiles: Mapping[str, Sequence[float]] = field(default_factory=dict)

    def joined(self, later: Timing) -> Timing:
        """Both times; of those that both have the later."""
        microseconds = {**self.microseconds, **later.microseconds}
        failures = {
            name: text for name, text in {**self.failures, **later.failures}.items() if name not in microseconds
        }
        earlier = {name: values for name, values in self.quantiles.items() if name not in later.microseconds}
        quantiles = {**earlier, **later.quantiles}
        return Timing(self.device, self.key, later.problem, microseconds, failures, later.context, quantiles)


class TimingCache:
    """Times by device and key, in memory; with a `path`, additions are appended to that file as well."""

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
            if status.st_size > _LARGEST_FILE:
                raise TimingCacheError(
                    f"the timing cache {path} has {status.st_size >> 20} MiB; at most {_LARGEST_FILE >> 20} are read"
                )
            timings, _, damaged = _parsed(path.read_bytes())
        except (OSError, ValueError) as error:  # ValueError: a name that no file has
            raise TimingCacheError(f"the timing cache {path} cannot be read: {error}") from error
        for number, reason in damaged.items():
            raise TimingCacheError(
                f"{path}:{number} is no line of a timing cache ({reason}); a file of `tilewright tune merge` or of "
                f"the cache directory ({FILE_NAME}) is expected"
            ) from reason
        return cls(timings)

    @classmethod
    def of_settings(cls) -> TimingCache:
        """The cache directory's times, to which others are added; damaged lines are left out.

        The file is read again when it has changed, by this process or another.
        """
        path = safe_files.private_folder(settings.cache_directory) / FILE_NAME
        state = _state(path)
        known = _CACHES.get(path)
        if known is None or known[0] != state:
            timings, lines = _readable(path)
            cache = cls(timings, path)
            if lines > min(_MOST_LINES, 2 * len(cache._found) + 1000):
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
        counts = Counter(name for name, _ in self._found)
        devices = sorted(counts, key=lambda name: (-counts[name], name))
        return next((self._found[name, key] for name in devices if (name, key) in self._found), None)

    def add(self, timing: Timing) -> Timing:
        """Put times on record; returns all that are known of the problem."""
        self._join(timing)
        if self.path is not None:
            try:
                safe_files.private_folder(self.path.parent, create=True)
                before, after = _append(self.path, _line(timing))
                if _CACHES.get(self.path) == (before, self):
                    _CACHES[self.path] = after, self  # what the file has more is known here
            except OSError as error:
                safe_files.complain(self.path.parent, error)
        return self._found[timing.device, timing.key]

    def write(self, path: Path) -> None:
        """Write all times to a file, in one step; equal caches give equal files. Raises `TimingCacheError`."""
        lines = sorted(_line(timing) for timing in self)
        try:
            with safe_files.replacing(path, mode=0o644) as file:  # others may merge it
                file.write("".join(lines).encode())
        except OSError as error:
            raise TimingCacheError(f"cannot write the timing cache {path}: {error.strerror or error}") from error

    def _join(self, timing: Timing) -> None:
        entry = (timing.device, timing.key)
        known = self._found.get(entry)
        self._found[entry] = timing if known is None else known.joined(timing)

    def _compact(self) -> None:
        """Replace the file by one line for each problem, the latest ones."""
        assert self.path is not None
        try:
            # What others add meanwhile would be lost; Windows, which has no locks, replaces no open file either.
            with safe_files.appending(self.path) if safe_files.HAS_LOCKS else nullcontext():
                timings, _ = _readable(self.path)
                latest = list(TimingCache(timings))[-_MOST_LINES // 2 :]
                TimingCache(latest).write(self.path)
        except (OSError, TimingCacheError) as error:
            logger.warning("cannot shorten the timing cache %s: %s", self.path, error)


_CACHES: dict[Path, tuple[tuple[int, int], TimingCache]] = {}  # what `of_settings` read, and the file's state then


def _state(file: Path | int) -> tuple[int, int]:
    """What changes whenever a file does, as far as the system tells: its size and time."""
    try:
        found = os.stat(file)
    except OSError:
        return 0, 0
    return (found.st_size, found.st_mtime_ns) if found.st_size else (0, 0)


def timing_to_json(timing: Timing) -> dict[str, Any]:
    """A line as JSON values, candidates by name, so that equal times give equal text; `timing_from_json` is the
    inverse.  Quantiles are in it where there are any."""
    fields = {_KEYS.get(name, name): value for name, value in asdict(timing).items()}
    data = {key: value for key, value in fields.items() if key != "quantiles" or value}
    return {name: dict(sorted(value.items())) if isinstance(value, dict) else value for name, value in data.items()}


def timing_from_json(data: Any) -> Timing:
    """Times from JSON; raises `ValueError` for anything else than `timing_to_json` gives."""
    names = {_KEYS.get(name, name): name for name in Timing.__dataclass_fields__}
    if not isinstance(data, dict) or {*data, "quantiles"} != names.keys():
        raise ValueError("the fields are not those of a timing")
    texts = [data[name] for name in ("device", "key", "what", "context")]
    maps = times, failures, quantiles = data["microseconds"], data["failures"], data.get("quantiles", {})
    if not all(isinstance(text, str) for text in texts) or not all(isinstance(each, dict) for each in maps):
        raise ValueError("a field has the wrong type")
    if not all(isinstance(values, list) for values in quantiles.values()):
        raise ValueError("quantiles are no list")
    if not all(is_time(time) for time in (*times.values(), *itertools.chain.from_iterable(quantiles.values()))):
        raise ValueError("a time is no number of microseconds")
    if not all(isinstance(text, str) for text in failures.values()):
        raise ValueError("a failure is no text")
    values = {names[key]: value for key, value in data.items()}
    return Timing(**{**values, "microseconds": {name: float(time) for name, time in times.items()}})


def is_time(value: Any) -> bool:
    """Whether a value is a number of microseconds that can be on record."""
    return isinstance(value, (int, float)) and 0 <= value < 1e12


def _line(timing: Timing) -> str:
    return json.dumps(timing_to_json(timing), sort_keys=True, ensure_ascii=False) + "\n"


def _readable(path: Path) -> tuple[list[Timing], int]:
    """The times of a file's good lines, and how many lines it has."""
    timings, lines, damaged = _parsed(safe_files.read(path) or b"")
    if damaged:
        logger.warning("%d lines of %s are damaged and left out", len(damaged), path)
    return timings, lines


def _parsed(data: bytes) -> tuple[list[Timing], int, dict[int, Exception]]:
    """The times of a file's good lines, how many lines it has, and what is wrong with others, by their numbers."""
    timings: list[Timing] = []
    damaged: dict[int, Exception] = {}
    lines = data.splitlines()  # texts may hold separators that bytes have not
    for number, line in enumerate(lines, 1):
        try:
            timings.append(timing_from_json(json.loads(line)))
        except (ValueError, RecursionError) as error:
            damaged[number] = error
    return timings, len(lines), damaged


def _append(path: Path, text: str) -> tuple[tuple[int, int], tuple[int, int]]:
    """Add a line with one write, so that lines of several processes do not mix; the file's states before and after."""
    with safe_files.appending(path) as handle:
        before = _state(handle)
        if before[0]:
            os.lseek(handle, -1, os.SEEK_END)
            if os.read(handle, 1) != b"\n":  # a writer was killed
                text = f"\n{text}"
        os.write(handle, text.encode())
        return before, _state(handle)
