"""One typed settings object, read from `TILEWRIGHT_*` environment variables, with scoped overrides.

from tilewright.settings import settings
settings.threads                     # TILEWRIGHT_THREADS
with settings.scope(verify=True):    # for this block only
    ...
"""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any


def _default_cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "tilewright"
    except RuntimeError:  # a user without a home; nobody else may know a folder that we take machine code from
        return Path(tempfile.gettempdir()) / f"tilewright-{secrets.token_hex(8)}"


def _default_threads() -> int:
    """The CPUs that this process may use: its affinity, and a container's share of time where one is set."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(allowed, _cpu_quota(Path("/sys/fs/cgroup")) or allowed))


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

    cache_directory: Path  # compiled kernels; TILEWRIGHT_CACHE_DIRECTORY
    threads: int  # workers of a CPU launch; default: the CPUs this process may use
    verify: bool = False  # run the verifiers between passes
    interpret: bool = False  # run kernels in the NumPy interpreter
    dump_directory: Path | None = None  # write every stage's text here
    always_compile: bool = False  # ignore the object cache
    explain_recompile: bool = False  # log why a kernel is compiled for another signature
    parallel: str = "auto"  # who provides threads: auto, openmp, libdispatch, threads (our own), none
    log: str = "warning"  # logging level of the "tilewright" logger

    @classmethod
    def from_environment(cls) -> Settings:
        """Settings from the environment; raises `ValueError` naming the variable that is malformed."""
        values: dict[str, Any] = {"cache_directory": _default_cache(), "threads": _default_threads()}
        for entry in fields(cls):
            text = os.environ.get(f"TILEWRIGHT_{entry.name.upper()}")
            if text is not None:
                values[entry.name] = _parse(entry.name, str(entry.type), text)
        return cls(**values)

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


def _parse(name: str, kind: str, text: str) -> Any:
    variable = f"TILEWRIGHT_{name.upper()}"
    if kind.startswith("Path"):
        return Path(text).expanduser()
    if kind == "int":
        if not text.isdigit() or int(text) < 1:
            raise ValueError(f"{variable}={text!r}: expected a positive whole number")
        return int(text)
    if kind == "bool":
        if text.lower() not in ("0", "1", "true", "false", ""):
            raise ValueError(f"{variable}={text!r}: expected 0 or 1")
        return text.lower() in ("1", "true")
    return text


settings = Settings.from_environment()
