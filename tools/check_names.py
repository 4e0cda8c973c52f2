"""A name says what it holds, and means one thing.

    python tools/check_names.py

- No two files of the library have a class, or a public constant, of the same name.  Aliases (``Number = Union[…]``) are
  not classes.  Constants are names in capitals.  One of a number, a text or a tuple of such that begins with an
  underscore is its file's own: several files of a package may have it, with one value.  Names that
  others lay down are in `EXCEPTIONS`, with the reason.
- No function, class, parameter, variable or attribute is called by a word of `VAGUE` alone, with or without underscores
  and in capitals or not.  Such a word may be a part of a name (``kept_axis``), but those of `VAGUE_PARTS` are no parts
  of names of functions and classes either.  This goes for examples, benchmarks, tools and the demo, too, and the last
  part for tests.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1] / "tilewright"
OTHERS = ("benchmarks", "demo", "examples", "tools")  # folders whose names say what they hold, too
# name -> why several files may have it. An entry that is no longer needed fails the check.
EXCEPTIONS = {
    "COLUMNS": "a number of the library, and the same for kernels",
    "IN_PROMPT": "a number of the library, and the same for kernels",
    "LOG2_E": "a number of the library, and the same for kernels",
    "METHODS": "the functions of a file that tensors have as methods",
    "OPS": "the table of the operations of an IR",
    "OPTION_NAMES": "the options of a target",
    "PACKED_LINE": "a number of the library, and the same for kernels",
    "REQUIRED": "an attribute without a default in the table of an IR",
    "RULES": "the rules of a part, by operation",
    "SECTIONS": "the files of rules of an importer",
    "TABLE": "the rules of a file of an importer",
}
# Words that do not say what they name: half of a sentence that only its author has in mind.
VAGUE = frozenset(
    "asked behind beside both dealt held kept meant posed rooms shown spelled taken told turns what".split()
)

VAGUE_PARTS = frozenset("asked behind beside dealt posed told".split())


def classes(paths: Iterable[Path]) -> dict[str, list[str]]:
    """Where each class is defined, inside functions and classes too: "file:line" by its name."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted(paths):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                found[node.name].append(f"{path}:{node.lineno}")
    return found


def defined_name(node: ast.AST) -> str | None:
    """The name that a node defines, if it defines one."""
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name) | ast.arg(arg=name):
            return name
        case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
            return name
    return None


def vague_names(paths: Iterable[Path], words: frozenset[str] = VAGUE) -> Iterator[str]:
    """Definitions called by one of the `words`, functions and classes with one of `VAGUE_PARTS`: "file:line: name"."""
    for path in sorted(paths):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            name = defined_name(node)
            if name is None:
                continue
            parts = name.lower().split("_") if isinstance(node, (ast.FunctionDef, ast.ClassDef)) else ()
            if name.strip("_").lower() in words or not VAGUE_PARTS.isdisjoint(parts):
                yield f"{path}:{node.lineno}: {name}"  # type: ignore[attr-defined]


def constants(paths: Iterable[Path]) -> dict[str, list[str]]:
    """Where each public constant is defined: "file:line" by its name."""
    found: dict[str, list[str]] = defaultdict(list)
    for name, _, place in _constants(paths, literals=False):
        path = place.rpartition(":")[0]
        if not name.startswith("_") and len(name) > 1 and all(path not in other for other in found[name]):
            found[name].append(place)
    return found


def several_values(paths: Iterable[Path]) -> dict[str, list[str]]:
    """Where each private constant is defined that has several values in these files, those of a package."""
    found: dict[str, list[str]] = defaultdict(list)
    values: dict[str, set[str]] = defaultdict(set)
    for name, value, place in _constants(paths):
        if name.startswith("_"):
            found[name].append(place)
            values[name].add(value)
    return {name: places for name, places in found.items() if len(values[name]) > 1}


def _packages(paths: Iterable[Path], root: Path) -> list[list[Path]]:
    """The files of each folder in the root, with those of its folders."""
    found: dict[str, list[Path]] = defaultdict(list)
    for path in sorted(paths):
        found[path.relative_to(root).parts[0]].append(path)
    return list(found.values())


def _constants(paths: Iterable[Path], literals: bool = True) -> Iterator[tuple[str, str, str]]:
    """Each constant of some files, or those of `literals`: its name, the text of its value, "file:line"."""
    for path in sorted(paths):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            for name, value in _assigned(node):
                if name.isupper() and value is not None and (_is_literal(value) or not literals):
                    yield name, ast.unparse(value), f"{path}:{node.lineno}"


def _assigned(node: ast.stmt) -> Iterator[tuple[str, ast.expr | None]]:
    """The names that a statement of a module gives values, and these: also of ``A, B = 1, 2``."""
    value = getattr(node, "value", None)
    for target in node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]:
        if isinstance(target, ast.Name):
            yield target.id, value
        elif isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            for name, part in zip(target.elts, value.elts, strict=False):
                if isinstance(name, ast.Name):
                    yield name.id, part


def _is_literal(value: ast.expr | None) -> bool:
    """Whether an expression is of numbers and texts alone: 1 << 20, (32, 64), "ptr", float("inf")."""
    if isinstance(value, ast.Call):
        return ast.unparse(value.func) == "float"
    parts = list(ast.walk(value)) if value is not None else []
    return bool(parts) and not any(isinstance(part, (ast.Name, ast.Call, ast.Dict, ast.Lambda)) for part in parts)


def problems(paths: Iterable[Path], root: Path = ROOT) -> Iterator[str]:
    """What is wrong with the names of some files below a root, whose folders are packages."""
    paths, exceptions = list(paths), EXCEPTIONS if root == ROOT else {}
    found = [*classes(paths).items(), *constants(paths).items()]
    repeated = {name: places for name, places in found if len(places) > 1}
    for name, places in sorted(repeated.items()):
        if name not in exceptions:
            yield f"{name}: {', '.join(places)}: qualify the names, or merge what is the same"
    for package in _packages(paths, root):
        for name, places in several_values(package).items():
            yield f"{name}: {', '.join(places)}: a name has one value in a package; say what each of them is"
    for place in vague_names(paths):
        yield f"{place}: name what it holds; this word says only half (see VAGUE in tools/check_names.py)"
    yield from (f"{name}: the exception is no longer needed" for name in exceptions if name not in repeated)


def main() -> int:
    found = list(problems(ROOT.rglob("*.py")))
    for folder in OTHERS:
        found += [f"{place}: name what it holds" for place in vague_names((ROOT.parent / folder).rglob("*.py"))]
    tests = vague_names((ROOT.parent / "tests").rglob("*.py"), words=frozenset())
    found += [f"{place}: name what it holds" for place in tests]
    for problem in found:
        print(problem)
    print(f"names: {len(found)} problems, {len(EXCEPTIONS)} exceptions")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
