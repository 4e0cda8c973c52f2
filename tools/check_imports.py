"""Imports go round in small circles only: at most three files of one package, and none from package to package.

    python tools/check_imports.py

Imports inside functions count, those for type checkers alone do not.  A package is a folder or a file of `tilewright`.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1] / "tilewright"
MOST_FILES = 3  # of one circle

Graph = dict[str, set[str]]


def modules(root: Path = ROOT) -> dict[str, Path]:
    """The files of a package by the names of their modules."""
    found = {}
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def import_graph(files: Mapping[str, Path]) -> Graph:
    """Which modules each one imports, of those in `files`."""
    return {name: set(_imported(ast.parse(path.read_text(encoding="utf-8")), files)) for name, path in files.items()}


def _imported(node: ast.AST, files: Mapping[str, Path]) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if alias.name in files)
    elif isinstance(node, ast.ImportFrom) and node.module is not None:
        for alias in node.names:
            inner = f"{node.module}.{alias.name}"
            yield from (name for name in (inner if inner in files else node.module,) if name in files)
    elif isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
        for other in node.orelse:
            yield from _imported(other, files)
    else:
        for child in ast.iter_child_nodes(node):
            yield from _imported(child, files)


def circles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Groups of modules that all import each other, directly or not, the largest first.

    Tarjan, "Depth-first search and linear graph algorithms", 1972, without recursion.
    """
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    open_: list[str] = []
    found: list[list[str]] = []
    for start in sorted(graph):
        work = [(start, iter(sorted(graph[start])))] if start not in number else []
        while work:
            name, rest = work[-1]
            if name not in number:
                number[name] = lowest[name] = len(number)
                open_.append(name)
            following = next(rest, None)
            if following is not None:
                if following not in number:
                    work.append((following, iter(sorted(graph.get(following, ())))))
                elif following in open_:
                    lowest[name] = min(lowest[name], number[following])
                continue
            work.pop()
            if work:
                lowest[work[-1][0]] = min(lowest[work[-1][0]], lowest[name])
            if lowest[name] == number[name]:
                place = open_.index(name)
                group, open_[place:] = open_[place:], []
                if len(group) > 1:
                    found.append(sorted(group))
    return sorted(found, key=len, reverse=True)


def package_of(module: str) -> str:
    """The folder or file of `tilewright` that a module is in."""
    return ".".join(module.split(".")[:2])


def packages(graph: Mapping[str, set[str]]) -> Graph:
    """Which packages import which."""
    found: Graph = {package_of(name): set() for name in graph}
    for name, others in graph.items():
        found[package_of(name)] |= {package_of(other) for other in others} - {package_of(name)}
    return found


def problems(graph: Mapping[str, set[str]]) -> Iterator[str]:
    """What is wrong, with the imports that make each circle."""
    for group in circles(packages(graph)):
        inside = {name for name in graph if package_of(name) in group}
        crossing = [
            f"{name} imports {other}"
            for name in sorted(inside)
            for other in sorted(graph[name] & inside)
            if package_of(name) != package_of(other)
        ]
        yield f"packages import each other: {', '.join(group)}\n    " + "\n    ".join(crossing[:20])
    for group in circles(graph):
        if len(group) > MOST_FILES:
            lines = [f"{name} imports {', '.join(sorted(graph[name] & {*group}))}" for name in group]
            yield f"{len(group)} files import each other, {MOST_FILES} at most may:\n    " + "\n    ".join(lines)


def main() -> int:
    graph = import_graph(modules())
    found = list(problems(graph))
    for problem in found:
        print(problem)
    print(f"imports: {len(found)} problems, {len(circles(graph))} circles of up to {MOST_FILES} files")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
