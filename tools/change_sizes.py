"""How many files a change of each kind touches, counted from trial changes that were made and run.

    python tools/change_sizes.py            # write the table of docs/internals/changes.md
    python tools/change_sizes.py --check    # exit status 1 if the page has another table

A patch that does not apply to this tree, or touches too many files, is an exit status of 1, too: make the change again.

A trial change is a patch in `tools/changes`, with a head of lines: `Title`, `Most` (files that it may touch), `Change`
(what it adds), `Shown` (how it was found right), `Own` (a folder whose files do not count), and `Named` (files of the
library that have this word count too: the type was there before).  Tests and documentation are not part of the
patches.
"""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER, PAGE = ROOT / "tools" / "changes", ROOT / "docs" / "internals" / "changes.md"
BLOCK = re.compile(r"(<!-- changes -->\n)(.*?)(<!-- end -->)", re.DOTALL)
ORDER = ("graph-op", "tile-op", "model-family", "epilogue", "implementation", "gpu-target", "four-bit-type")


@dataclass(frozen=True)
class Change:
    """A trial change: the lines of its head, and what its patch does to files (path -> whether it is there before)."""

    head: dict[str, str]
    files: dict[str, bool]

    @property
    def counted(self) -> list[str]:
        """The files that count, in order."""
        own, word = self.head.get("Own"), self.head.get("Named")
        found = {path for path in self.files if own is None or not path.startswith(own)}
        if word is not None:
            named = re.compile(rf"\b{word}\b")
            sources = (ROOT / "tilewright").rglob("*.py")
            found |= {path.relative_to(ROOT).as_posix() for path in sources if named.search(path.read_text("utf-8"))}
        return sorted(found)


def read(name: str) -> Change:
    """The trial change of a name."""
    head, _, patch = (FOLDER / f"{name}.patch").read_text(encoding="utf-8").partition("\n\n")
    files = {}
    for part in patch.split("diff --git ")[1:]:
        path = re.match(r"a/(\S+) b/", part)
        assert path is not None, f"{name}: a part without a path"
        files[path[1]] = "\nnew file mode" not in part
    return Change(dict(line.split(": ", 1) for line in head.splitlines()), files)


def table() -> str:
    """The table of the page."""
    lines = ["| change | files | limit | new files | trial | checked by |", "|---|---|---|---|---|---|"]
    for change in map(read, ORDER):
        counted, head = change.counted, change.head
        new = sum(change.files.get(path) is False for path in counted)
        lines.append(
            f"| {head['Title']} | {len(counted)} | {head['Most']} | {new} | {head['Change']} | {head['Shown']} |"
        )
    return "\n".join(lines) + "\n"


def misfits() -> list[str]:
    """The patches that do not apply to this tree."""
    found = []
    for name in ORDER:
        command = ["git", "apply", "--check", str(FOLDER / f"{name}.patch")]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        found += [f"{name}.patch does not apply: {done.stderr.strip()}"] if done.returncode else []
    return found


def main() -> int:
    page = PAGE.read_text(encoding="utf-8")
    written = BLOCK.sub(lambda found: found[1] + table() + found[3], page)
    problems = misfits()
    for change in map(read, ORDER):
        if len(change.counted) > int(change.head["Most"]):
            problems.append(f"{change.head['Title']} touches {len(change.counted)} files: {', '.join(change.counted)}")
    if "--check" in sys.argv and written != page:
        problems.append(f"{PAGE.relative_to(ROOT)} has another table: run tools/change_sizes.py")
    if "--check" not in sys.argv:
        PAGE.write_text(written, encoding="utf-8")
    for problem in problems:
        print(problem)
    print(f"changes: {len(problems)} problems in {len(ORDER)} trial changes")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
