"""A name means one thing: no two files of the library have a class, or a public constant, of the same name.

    python tools/check_names.py

Aliases (``Number = Union[…]``) are not classes.  Constants are names in capitals whose values are numbers, texts or
tuples of such; one that begins with an underscore is its file's own.  Names that others lay down are in `EXCEPTIONS`,
with the reason.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1] / "tilewright"
# name -> why several files may have it. An entry that is no longer needed fails the check.
EXCEPTIONS: dict[str, str] = {}


def classes(paths: Iterable[Path]) -> dict[str, list[str]]:
    """Where each class is defined, inside functions and classes too: "file:line" by its name."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted(paths):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                found[node.name].append(f"{path}:{node.lineno}")
    return found


def constants(paths: Iterable[Path]) -> dict[str, list[str]]:
    """Where each public constant is defined: "file:line" by its name."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted(paths):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            named = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            for name in named:
                if isinstance(name, ast.Name) and name.id.isupper() and not name.id.startswith("_"):
                    if _is_literal(getattr(node, "value", None)):
                        found[name.id].append(f"{path}:{node.lineno}")
    return found


def _is_literal(value: ast.expr | None) -> bool:
    """Whether an expression is of numbers and texts alone: 1 << 20, (32, 64), "ptr", float("inf")."""
    if isinstance(value, ast.Call):
        return ast.unparse(value.func) == "float"
    parts = list(ast.walk(value)) if value is not None else []
    return bool(parts) and not any(isinstance(part, (ast.Name, ast.Call, ast.Dict, ast.Lambda)) for part in parts)


def problems(paths: Iterable[Path]) -> Iterator[str]:
    """What is wrong with the names of some files."""
    paths = list(paths)
    found = [*classes(paths).items(), *constants(paths).items()]
    repeated = {name: places for name, places in found if len(places) > 1}
    for name, places in sorted(repeated.items()):
        if name not in EXCEPTIONS:
            yield f"{name}: {', '.join(places)}: qualify the names, or merge what is the same"
    yield from (f"{name}: the exception is no longer needed" for name in EXCEPTIONS if name not in repeated)


def main() -> int:
    found = list(problems(ROOT.rglob("*.py")))
    for problem in found:
        print(problem)
    print(f"names: {len(found)} problems, {len(EXCEPTIONS)} exceptions")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
