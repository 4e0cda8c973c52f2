"""Add up the records of campaigns, into benchmarks/results/fuzz.json."""

from __future__ import annotations

import datetime
import json
from collections import Counter
from pathlib import Path
from typing import Any

from tools.fuzz.record import Record

RESULT = Path(__file__).resolve().parents[2] / "benchmarks" / "results" / "fuzz.json"


def line(record: Record) -> str:
    """One line about a record, for people."""
    labels = ", ".join(f"{count} {label}" for label, count in record.labels.most_common(8))
    failed = sum(record.failed.values())
    rate = record.cases / record.seconds * 60 if record.seconds else 0.0
    return f"{record.target}: {record.cases} cases ({rate:.0f} a minute), {failed} failed; {labels}"


def total(states: list[Path]) -> dict[str, dict[str, Any]]:
    """Cases, outcomes and failures by target, over folders of records."""
    targets: dict[str, dict[str, Any]] = {}
    for folder in states:
        for path in sorted(folder.glob("*.json")):
            record = Record.open(folder, path.stem)
            row = targets.setdefault(
                record.target, {"cases": 0, "failed": 0, "labels": Counter(), "failures": Counter()}
            )
            row["cases"] += record.cases
            row["failed"] += sum(record.failed.values())
            row["labels"].update(record.labels)
            row["failures"].update(record.failed)
    return dict(sorted(targets.items()))


def report(states: list[Path], write: bool, add: bool = False, replace: bool = False) -> None:
    """Print the sum, and write it if asked to: in place of the tally that there is, in place of the rows of its
    targets, or added to them."""
    targets = total(states)
    if replace:
        targets = dict(sorted({**json.loads(RESULT.read_text())["fuzz"], **targets}.items()))
    if add:
        for name, before in json.loads(RESULT.read_text())["fuzz"].items():
            row = targets.setdefault(name, {"cases": 0, "failed": 0, "labels": Counter(), "failures": Counter()})
            for key in row:
                row[key] += Counter(before[key]) if isinstance(row[key], Counter) else before[key]
        targets = dict(sorted(targets.items()))
    for name, row in targets.items():
        labels = ", ".join(f"{count} {label}" for label, count in Counter(row["labels"]).most_common(5))
        print(f"{name}: {row['cases']} cases, {row['failed']} failed; {labels}")
        for signature, count in Counter(row["failures"]).most_common():
            print(f"    {count} {signature}")
    cases, failed = (sum(row[key] for row in targets.values()) for key in ("cases", "failed"))
    print(f"{cases} cases, {failed} failed")
    if write or add or replace:
        data = {"date": datetime.date.today().isoformat(), "fuzz": targets}
        RESULT.write_text(json.dumps(data, indent=1) + "\n")
