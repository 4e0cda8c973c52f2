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

_ENTRIES = {ROUNDED_WEIGHTS: "rounded", SEARCHES: "measured"}  # by folder, those of others are kernels
# What is counted, as fields of `CacheState`, in the order of the summary: the field of its bytes, the summary's words.
_COUNTED = {
    "entries": ("entry_bytes", "{} entries, {}"),
    "rounded": ("rounded_bytes", "rounded weights of {} layers, {}"),
    "measured": ("measured_bytes", "{} measurements of searches, {}"),
    "other_files": ("other_bytes", ""),
    "leftovers": ("leftover_bytes", "{} files of killed writers, {} (tilewright cache clean)"),
}


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
    sizes: dict[str, list[int]] = {field: [] for field in _COUNTED}
    sizes["leftovers"] += abandoned.values()
    for path in safe_files.files(folder):
        try:
            size = path.lstat().st_size
        except OSError:
            continue  # removed meanwhile
        if path not in abandoned:
            entries = _ENTRIES.get(path.relative_to(folder).parts[0], "entries")
            sizes[entries if path.suffix == SUFFIX else "other_files"].append(size)
    counted: dict[str, int] = {}
    for field, found in sizes.items():
        counted |= {field: len(found), _COUNTED[field][0]: sum(found)}
    return CacheState(
        folder=str(folder),
        not_used=safe_files.why_not_private(folder) if os.path.lexists(folder) else None,
        **counted,
    )


def summary(state: CacheState) -> str:
    """One line for people: entries, and what else there is."""
    parts = []
    for field, (size, words) in _COUNTED.items():
        count = getattr(state, field)
        if words and (count or field == "entries"):
            parts.append(words.format(count, f"{getattr(state, size) / 1e6:.1f} MB"))
    return "; ".join(parts)


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
