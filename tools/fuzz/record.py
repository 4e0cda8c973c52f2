"""The record of a target: how many cases ran, what came of them, which failed; kept in a file so that a run resumes."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

EXAMPLES = 10  # failures of one signature that are kept whole


@dataclass
class Record:
    """One target's tally; `next` is the first seed that was not handed out, `left` ranges that did not end."""

    target: str
    next: int = 0
    cases: int = 0
    seconds: float = 0.0
    labels: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    failures: list[dict[str, Any]] = field(default_factory=list)
    left: list[list[int]] = field(default_factory=list)

    def add(self, seed: int, result: dict[str, Any]) -> bool:
        """Count one case; True if it failed."""
        self.cases += 1
        if "label" in result:
            self.labels[result["label"]] += 1
            return False
        group = f"{result['failed']}: {result['signature']}"
        self.failed[group] += 1
        if self.failed[group] <= EXAMPLES:
            self.failures.append({"seed": seed, **result})
        return True

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.target}.json"
        path.with_suffix(".tmp").write_text(json.dumps(self.__dict__, indent=1))
        path.with_suffix(".tmp").replace(path)

    @classmethod
    def open(cls, folder: Path, target: str, first: int = 0) -> Record:
        """The record in a folder, or a new one that begins with the seed `first`."""
        path = folder / f"{target}.json"
        if not path.exists():
            return cls(target, first)
        data = json.loads(path.read_text())
        data["labels"], data["failed"] = Counter(data["labels"]), Counter(data["failed"])
        return cls(**data)
