"""How many files a change of each kind touches, counted from trial changes that were made and run.

    python tools/change_sizes.py            # write the table of docs/internals/changes.md
    python tools/change_sizes.py --check    # exit status 1 if the page has another table

Each patch is applied to a copy of this tree, and its script runs there.  A patch that does not apply, touches
too many files, or whose script fails is an exit status of 1, too: make the change again.

A trial change is a patch in `tools/changes`, with a head of lines: `Title`, `Most` (files that it may touch), `Change`
(what it adds), `Own` (a folder whose files do not count), and `Named` (files of the library that have this word count
too: the type was there before).  Tests and documentation are not part of the patches.  The docstring of the script of
the same name says what it checks.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER, PAGE = ROOT / "tools" / "changes", ROOT / "docs" / "internals" / "changes.md"
BLOCK = re.compile(r"(<!-- changes -->\n)(.*?)(<!-- end -->)", re.DOTALL)
ORDER = ("graph-op", "tile-op", "model-family", "epilogue", "implementation", "gpu-target", "four-bit-type")


@dataclass(frozen=True)
class Change:
    """A trial change: the lines of its head, and what its patch does to files (path -> whether it is there before)."""

    name: str
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

    @property
    def checked(self) -> str:
        """What its script checks."""
        source = (FOLDER / f"{self.name}.py").read_text(encoding="utf-8")
        text = ast.get_docstring(ast.parse(source)) or ""
        return text[:1].lower() + text[1:].rstrip(".")

    def problem(self) -> str | None:
        """What is wrong with it: the patch does not apply to a copy of this tree, or its script fails there."""
        with tempfile.TemporaryDirectory() as folder:
            copied_tree(Path(folder), self.files)
            commands = {
                "does not apply": ["git", "apply", str(FOLDER / f"{self.name}.patch")],
                "fails its script": [sys.executable, str(FOLDER / f"{self.name}.py")],
            }
            variables = {"PYTHONPATH": folder, "TILEWRIGHT_CACHE_DIRECTORY": str(Path(folder, "cache"))}
            for failure, command in commands.items():
                done = subprocess.run(
                    command, cwd=folder, env={**os.environ, **variables}, capture_output=True, text=True
                )
                if done.returncode:
                    return f"{self.name}.patch {failure}: {done.stderr.strip()}"
        return None


def copied_tree(folder: Path, files: Iterable[str]) -> None:
    """Copy the library and other files that are here, with their times, so that compiled modules stay valid."""
    shutil.copytree(ROOT / "tilewright", folder / "tilewright")
    for path in files:
        if (ROOT / path).exists():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / path, folder / path)


def read(name: str) -> Change:
    """The trial change of a name."""
    head, _, patch = (FOLDER / f"{name}.patch").read_text(encoding="utf-8").partition("\n\n")
    files = {}
    for part in patch.split("diff --git ")[1:]:
        path = re.match(r"a/(\S+) b/", part)
        assert path is not None, f"{name}: a part without a path"
        files[path[1]] = "\nnew file mode" not in part
    return Change(name, dict(line.split(": ", 1) for line in head.splitlines()), files)


def table() -> str:
    """The table of the page."""
    lines = ["| change | files | limit | new files | trial | checked by |", "|---|---|---|---|---|---|"]
    for change in map(read, ORDER):
        counted, head = change.counted, change.head
        new = sum(change.files.get(path) is False for path in counted)
        lines.append(
            f"| {head['Title']} | {len(counted)} | {head['Most']} | {new} | {head['Change']} | {change.checked} |"
        )
    return "\n".join(lines) + "\n"


def misfits() -> list[str]:
    """What is wrong with the trial changes, two of which are tried at a time."""
    with ThreadPoolExecutor(2) as threads:
        return [problem for problem in threads.map(Change.problem, map(read, ORDER)) if problem]


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
