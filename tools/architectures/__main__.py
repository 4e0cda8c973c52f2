"""Runs the architectures, each in each way in a process of its own, and writes what became of them.

    python -m tools.architectures --output results.json [--ways static dynamic …] [--limit 180] [pattern ...]

transformers, timm, torchvision and diffusers are used where they are installed (or on PYTHONPATH); entries of a library
that is not there are left out.  A run adds to the results that the output has; `--new` leaves out what it has already.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
from pathlib import Path
from typing import Any

from tools.architectures import operators, processes
from tools.architectures.entry import Entry
from tools.architectures.trial import WAYS


def _of_transformers() -> list[Entry]:
    from tools.architectures.entries import heads, newest, sequence, sound, tasks, text, towers, vision

    return [
        *text.ENTRIES,
        *heads.ENTRIES,
        *sequence.ENTRIES,
        *vision.ENTRIES,
        *sound.ENTRIES,
        *newest.ENTRIES,
        *tasks.ENTRIES,
        *towers.ENTRIES,
    ]


def _of_timm() -> list[Entry]:
    from tools.architectures.entries import timm_models

    return timm_models.ENTRIES


def _of_torchvision() -> list[Entry]:
    from tools.architectures.entries import torchvision_models

    return torchvision_models.ENTRIES


def _of_diffusers() -> list[Entry]:
    from tools.architectures.entries import diffusers_models

    return diffusers_models.ENTRIES


def _of_torch() -> list[Entry]:
    from tools.architectures.entries import plain, research

    return [*plain.ENTRIES, *research.ENTRIES]


def entries() -> dict[str, Entry]:
    """All architectures whose library is there, by name."""
    operators.provide()
    found: dict[str, Entry] = {}
    for library in (_of_transformers, _of_timm, _of_torchvision, _of_diffusers, _of_torch):
        try:
            listed = library()
        except ImportError as error:
            print(f"left out: {error}")
            continue
        for entry in listed:
            assert entry.name not in found, entry.name
            found[entry.name] = entry
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("patterns", nargs="*", default=["*"])
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--limit", type=float, default=180.0, help="seconds of CPU time for each")
    parser.add_argument("--new", action="store_true")
    parser.add_argument("--part", nargs=2, type=int, default=(0, 1), metavar=("NUMBER", "OF"), help="every n-th entry")
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # trials are forked and run on the CPU; CUDA cannot be used after a fork
    chosen = {
        name: entry
        for name, entry in entries().items()
        if any(
            fnmatch.fnmatch(name, pattern) or fnmatch.fnmatch(entry.library, pattern) for pattern in options.patterns
        )
    }
    number, count = options.part
    chosen = dict(list(chosen.items())[number::count])
    if options.list:
        print("\n".join(f"{entry.library:13} {name}" for name, entry in chosen.items()), len(chosen), sep="\n")
        return
    processes.warm()
    results: dict[str, Any] = {}
    if options.output and options.output.exists():
        results = json.loads(options.output.read_text())
    for name, entry in chosen.items():
        for way in options.ways:
            known = results.setdefault(name, {"library": entry.library})
            if (options.new and way in known) or (way == "dynamic" and not entry.batched):
                continue
            outcome = processes.outcome(entry, way, options.limit)
            if outcome["outcome"] == "none":
                continue
            known[way] = outcome
            print(f"{name:32} {way:8} {outcome['seconds']:6.1f} s {outcome['outcome']:9} {_short(outcome)}", flush=True)
            if options.output:
                options.output.write_text(json.dumps(results, indent=1) + "\n")


def _short(outcome: dict[str, Any]) -> str:
    text = outcome.get("reason", "") or ("stays: " + str(outcome["kept"]) if outcome.get("kept") else "")
    return text[:400]


if __name__ == "__main__":
    main()
