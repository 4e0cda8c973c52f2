"""One typed settings object, read from `TILEWRIGHT_*` environment variables, with scoped overrides.

from tilewright.settings import settings
settings.threads                     # TILEWRIGHT_THREADS
with settings.scope(verify=True):    # for this block only
    ...
"""

from __future__ import annotations

import difflib
import logging
import os
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from tilewright.errors import SettingsError, printable

PREFIX = "TILEWRIGHT_"
MOST_THREADS = 1024  # limit of one run: more than any machine can use
_CHOICES = {
    "interpret": ("eager", "check"),
    "cpu": ("native", "x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4", "znver4", "znver5", "sapphirerapids")
    + ("aarch64", "neoverse-n1", "apple-m1"),
    "parallel": ("auto", "openmp", "libdispatch", "threads", "none"),
    "log": ("debug", "info", "warning", "error", "critical"),
}
_log = logging.getLogger("tilewright")


def _default_cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "tilewright"
    except RuntimeError:  # a user without a home; nobody else may know a folder that we take machine code from
        return Path(tempfile.gettempdir()) / f"tilewright-{secrets.token_hex(8)}"


def _default_threads() -> int:
    """The CPUs that this process may use: its affinity, and a container's share of time where one is set."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(allowed, MOST_THREADS, _cpu_quota(Path("/sys/fs/cgroup")) or allowed))


def _cpu_quota(folder: Path) -> int | None:
    """Whole CPUs' worth of time that Linux control groups (version 2, then 1) grant; None when unlimited."""
    try:
        if (folder / "cpu.max").exists():
            quota, period = (folder / "cpu.max").read_text().split()
        else:
            quota = (folder / "cpu/cpu.cfs_quota_us").read_text()
            period = (folder / "cpu/cpu.cfs_period_us").read_text()
        return max(1, int(quota) // int(period)) if int(quota) > 0 else None
    except (OSError, ValueError, ZeroDivisionError):  # no such file, or "max"
        return None


@dataclass
class Settings:
    """Every switch of tilewright. The environment variable of `name` is ``TILEWRIGHT_NAME``."""

    cache_directory: Path  # compiled kernels, rounded weights, measurements of searches; TILEWRIGHT_CACHE_DIRECTORY
    threads: int  # threads of a CPU launch; by default one per CPU available to this process
    cpu: str = "native"  # use only the instructions of this CPU, a name as in --target cpu:NAME; read once
    verify: bool = False  # run the verifiers between passes
    interpret: bool | str = False  # run kernels in the NumPy interpreter; "eager": as Python; "check": with all checks
    interpret_order: int = 0  # seed of the order in which the interpreter runs roles and copies of explicit kernels
    check_bounds: bool = False  # compile bounds checks into CPU kernels
    dump_directory: Path | None = None  # write every stage's text here
    always_compile: bool = False  # ignore the object cache
    debug: bool = False  # keep device assertions in kernels decorated afterwards
    print_autotuning: bool = False  # print the config that autotune chose
    tune: bool = True  # time the close candidates of a GPU operation; with 0 use the one with the lowest estimate
    explain_recompile: bool = False  # log why a kernel is compiled again
    parallel: str = "auto"  # who provides threads: auto, openmp, libdispatch, threads (tilewright's own), none
    shim: bool = False  # `import triton` gives tilewright, if the folder of tilewright.shim is on PYTHONPATH
    log: str | None = None  # level of the "tilewright" logger, set at import; if not set, the program decides

    @classmethod
    def from_environment(cls) -> Settings:
        """Settings from the environment; warns of unknown variables.

        An empty path or word counts as not set.  Raises `SettingsError` naming the variable that is malformed.
        """
        _warn_of_unknown([entry.name for entry in fields(cls)])
        values: dict[str, Any] = {"cache_directory": _default_cache(), "threads": _default_threads()}
        for entry in fields(cls):
            text = os.environ.get(PREFIX + entry.name.upper())
            if text or (text is not None and entry.type == "int"):
                values[entry.name] = _parse(entry.name, str(entry.type), text)
        return cls(**values)

    def dump(self, name: str, text: str) -> None:
        """Write a stage's text to a file of the dump directory, if there is one; raises `SettingsError`."""
        if self.dump_directory is None:
            return
        try:
            self.dump_directory.mkdir(parents=True, exist_ok=True)
            (self.dump_directory / name).write_text(text, encoding="utf-8")
        except OSError as error:
            raise SettingsError(
                f"cannot write {name} to the dump directory {self.dump_directory} ({error.strerror}); "
                "name a folder that you may write to in TILEWRIGHT_DUMP_DIRECTORY, or unset it"
            ) from error

    @contextmanager
    def scope(self, **overrides: Any) -> Iterator[Settings]:
        """Override settings inside a `with` block; not for use from several threads at once."""
        saved = {name: getattr(self, name) for name in overrides}
        try:
            for name, value in overrides.items():
                setattr(self, name, value)
            yield self
        finally:
            for name, value in saved.items():
                setattr(self, name, value)


def _warn_of_unknown(names: list[str]) -> None:
    known = [PREFIX + name.upper() for name in names]
    for variable in sorted(os.environ):
        if variable.startswith(PREFIX) and variable not in known:
            close = difflib.get_close_matches(variable, known, 1)
            hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(known)}"
            _log.warning("the environment variable %s has no meaning; %s", printable(variable), hint)


def _parse(name: str, kind: str, text: str) -> Any:
    variable = PREFIX + name.upper()
    if kind.startswith("Path"):
        return Path(text).expanduser()
    if kind == "int":
        if not (text.isascii() and text.isdecimal()) or len(text) > 18 or int(text) < 1:
            raise SettingsError(f"{variable}={text[:50]!r}: expected a positive whole number")
        if name == "threads" and int(text) > MOST_THREADS:
            raise SettingsError(f"{variable}={text}: at most {MOST_THREADS} threads")
        return int(text)
    if kind.startswith("bool") and text.lower() not in _CHOICES.get(name, ()):
        if text.lower() not in ("0", "1", "true", "false"):
            also = "".join(f" or {choice}" for choice in _CHOICES.get(name, ()))
            raise SettingsError(f"{variable}={text!r}: expected 0 or 1{also}")
        return text.lower() in ("1", "true")
    if text.lower() not in _CHOICES[name]:
        raise SettingsError(f"{variable}={text!r}: expected one of {', '.join(_CHOICES[name])}")
    return text.lower()


def _set_log_level(level: str) -> None:
    """Show messages from this level on: on standard error, when the program has not set up logging itself."""
    _log.setLevel(level.upper())
    if not _log.hasHandlers():
        _log.addHandler(logging.StreamHandler())


settings = Settings.from_environment()
if settings.log is not None:
    _set_log_level(settings.log)
