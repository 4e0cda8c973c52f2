"""`tilewright cache`: show and clean the folder of compiled kernels, rounded weights and searches."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from typing import Annotated

import typer

from tilewright.cli.console import terminal
from tilewright.runtime import safe_files
from tilewright.settings import settings
from tilewright.targets.llvm.cache import ROUNDED_WEIGHTS, SEARCHES, SUFFIX, ObjectCache, rounded_weights, searches

commands = typer.Typer(
    name="cache",
    help="Show and clean the folder of compiled kernels, rounded weights and searches.",
    no_args_is_help=True,
)


@dataclass(frozen=True)
class CacheState:
    """The cache folder: kernels, rounded weights, measurements of searches and all other files, what killed writers
    have left, and why it is not used."""

    folder: str
    entries: int
    entry_bytes: int
    rounded: int
    rounded_bytes: int
    measured: int
    measured_bytes: int
    other_files: int
    other_bytes: int
    leftovers: int
    leftover_bytes: int
    not_used: str | None  # the reason


def cache_state() -> CacheState:
    """Counts of the cache folder that the settings name, whether it is used or not."""
    folder = settings.cache_directory
    abandoned = dict(safe_files.leftovers(folder))
    entries: list[int] = []
    rounded: list[int] = []
    measured: list[int] = []
    others: list[int] = []
    for path in safe_files.files(folder):
        try:
            size = path.lstat().st_size
        except OSError:
            continue  # removed meanwhile
        if path not in abandoned:
            kinds = entries
            if folder / ROUNDED_WEIGHTS in path.parents:
                kinds = rounded
            elif folder / SEARCHES in path.parents:
                kinds = measured
            (kinds if path.suffix == SUFFIX else others).append(size)
    return CacheState(
        folder=str(folder),
        entries=len(entries),
        entry_bytes=sum(entries),
        rounded=len(rounded),
        rounded_bytes=sum(rounded),
        measured=len(measured),
        measured_bytes=sum(measured),
        other_files=len(others),
        other_bytes=sum(others),
        leftovers=len(abandoned),
        leftover_bytes=sum(abandoned.values()),
        not_used=safe_files.why_not_private(folder) if os.path.lexists(folder) else None,
    )


def summary(state: CacheState) -> str:
    """One line for people."""
    text = f"{state.entries} entries, {state.entry_bytes / 1e6:.1f} MB"
    if state.rounded:
        text += f"; rounded weights of {state.rounded} layers, {state.rounded_bytes / 1e6:.1f} MB"
    if state.measured:
        text += f"; {state.measured} measurements of searches, {state.measured_bytes / 1e6:.1f} MB"
    if state.leftovers:
        size = f"{state.leftover_bytes / 1e6:.1f} MB"
        text += f"; {state.leftovers} files of killed writers, {size} (tilewright cache clean)"
    return text


@commands.command("show")
def show(as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False) -> None:
    """Show the folder, its contents, and files left by killed processes."""
    state = cache_state()
    if as_json:
        print(json.dumps(asdict(state), indent=2))
        return
    console = terminal()
    console.print(f"{state.folder}: {summary(state)}", soft_wrap=True)
    console.print(f"{state.other_files} other files (times, the runtime's functions), {state.other_bytes / 1e6:.1f} MB")
    if state.not_used is not None:
        console.print(f"not used: {state.not_used}", soft_wrap=True)


@commands.command("clean")
def clean(
    everything: Annotated[bool, typer.Option("--all", help="Remove all entries as well; keep recorded times.")] = False,
) -> None:
    """Remove files left by killed processes, and the least recently used entries beyond 2 GiB of kernels, 16 GiB of
    rounded weights and 4 GiB of measurements of searches."""
    count, size = safe_files.remove_leftovers(settings.cache_directory)
    console = terminal()
    console.print(f"removed {count} files of killed writers, {size / 1e6:.1f} MB")
    if settings.cache_directory.is_dir():
        removed = 0
        for cache in (ObjectCache(settings.cache_directory), rounded_weights(), searches()):
            cache.limit_bytes = 0 if everything else cache.limit_bytes
            removed += cache.clean()
        console.print(f"removed {removed} entries")
