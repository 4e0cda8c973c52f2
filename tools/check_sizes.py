"""Hold files and functions to the project's size limits; exceptions are named here.

python tools/check_sizes.py
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

FILE_LINES = 800
FUNCTION_LINES = 60
USUAL_LINES = 19  # of nine in ten functions of the library
ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("tilewright", "tests", "benchmarks", "demo", "examples", "tools")
# path or path:function -> why it may be longer. An entry that is no longer needed fails the check.
EXCEPTIONS: dict[str, str] = {}


def measured() -> tuple[dict[str, int], int]:
    """Every file and function above its limit, with its length; and the length of nine in ten functions of ours."""
    found: dict[str, int] = {}
    lengths: list[int] = []
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            name = path.relative_to(ROOT).as_posix()
            if text.count("\n") > FILE_LINES:
                found[name] = text.count("\n")
            if folder == "tests":
                continue
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                    length = (node.end_lineno or node.lineno) - node.lineno + 1
                    if folder == "tilewright":
                        lengths.append(length)
                    if length > FUNCTION_LINES:
                        found[f"{name}:{node.name}"] = length
    return found, sorted(lengths)[len(lengths) * 9 // 10]


def main() -> int:
    found, usual = measured()
    problems = [f"{name}: {length} lines" for name, length in found.items() if name not in EXCEPTIONS]
    problems += [f"{name}: the exception is no longer needed" for name in EXCEPTIONS if name not in found]
    if usual > USUAL_LINES:
        problems.append(f"one in ten functions has {usual} lines or more, {USUAL_LINES} are the usual: split some")
    for problem in problems:
        print(problem)
    print(f"size limits: {len(problems)} problems, {len(EXCEPTIONS)} exceptions")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
