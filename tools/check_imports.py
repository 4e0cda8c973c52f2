"""Imports go round in small circles only, and stand at the top of their files.

    python tools/check_imports.py

Circles: of at most three files of one package, and none from package to package.  Imports inside functions and by
`importlib.import_module` count, those for type checkers alone do not.  A package is a folder or a file of `tilewright`.

An import inside a function is for what may be absent: a package that the base install does not bring, or a module of
ours that imports one.  `LATE` has all others: which modules import which so, and why.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1] / "tilewright"
MOST_FILES = 3  # of one circle
# What modules (or packages of them) import late though it is always there, and why.  An entry without need fails.
LATE: dict[str, tuple[str, tuple[str, ...]]] = {
    "tilewright.cli": (
        "a command starts without what it does not run, and the help page without any of it: 0.03 to 0.9 s each",
        (
            "tilewright.build", "tilewright.engine.engine", "tilewright.graph", "tilewright.importers",
            "tilewright.insight", "tilewright.language", "tilewright.launch", "tilewright.llm", "tilewright.loading",
            "tilewright.quant", "tilewright.runtime.cuda", "tilewright.targets",
        ),
    ),
    "tilewright.engine.engine": (
        "engines of one part are loaded without the graph, and without records of times",
        ("tilewright.engine.graph_json", "tilewright.engine.staged", "tilewright.measure.record"),
    ),
    "tilewright.engine.cuda_program": (
        "engines for CPUs are loaded without the session of GPUs", ("tilewright.runtime.cuda.session",)
    ),
    "tilewright.targets.cpu.backend": (
        "kernels in the cache are loaded without the compiler",
        ("tilewright.targets.cpu.c_function", "tilewright.targets.cpu.compile", "tilewright.targets.cpu.failed",
         "tilewright.targets.cpu.graph_passes", "tilewright.targets.cpu.pipeline"),
    ),
    "tilewright.targets.nvidia.backend": (
        "kernels in the cache are loaded without the compiler",
        ("tilewright.targets.nvidia.compile", "tilewright.targets.nvidia.graph_passes"),
    ),
    "tilewright.targets.nvidia.compile": (
        "kernels in the cache are loaded without the compiler", ("tilewright.targets.nvidia.pipeline",)
    ),
    "tilewright.loading": ("engines that load need no compiler", ("tilewright.build.rebuild",)),
    "tilewright.launch.jit": ("kernels are launched without the interpreter", ("tilewright.launch.eager",)),
    "tilewright.launch.launching": ("kernels are launched without the interpreter", ("tilewright.ir.interpreter",)),
}  # fmt: skip

# Modules that import others of ours by names that are data or that lead back, and why these imports do not count.
BY_NAME = {
    "tilewright.targets.families": "one table says what a family of targets consists of, in later stages too",
    "tilewright": "names of the package are loaded when they are first used",
    "tilewright.ops": "names of the package are loaded when they are first used",
    "tilewright.shim": "names of Triton are loaded when they are first used",
    "tilewright.launch.kernel_info": "constants of a kernel on record are functions of the user's modules",
    "tilewright.runtime.cuda.extern": "a library is loaded by the first step that calls it",
}

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
    graph = {}
    for name, path in files.items():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        graph[name] = set(_imported(tree, files))
        if name not in BY_NAME:
            graph[name] |= {other for pattern in named(tree) for other in files if re.fullmatch(pattern or "", other)}
    return graph


def named(tree: ast.AST) -> Iterator[str | None]:
    """What `import_module` is called with: patterns of names of modules, None for an expression that may be any."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "importlib.import_module":
            yield _pattern(node.args[0])


def _pattern(name: ast.expr) -> str | None:
    if isinstance(name, ast.JoinedStr):
        parts = [_pattern(part) if isinstance(part, ast.Constant) else r"[^.]+" for part in name.values]
        return "".join(part or "" for part in parts)
    return re.escape(str(name.value)) if isinstance(name, ast.Constant) else None


def unknown_names(files: Mapping[str, Path]) -> Iterator[str]:
    """What is wrong with imports by name: a module may be any, or its entry in `BY_NAME` is not needed."""
    found = {name: list(named(ast.parse(path.read_text(encoding="utf-8")))) for name, path in files.items()}
    anything = {name for name, patterns in found.items() if None in patterns}
    yield from (f"{name}: imports a module that no table names: add it to BY_NAME" for name in anything - {*BY_NAME})
    unused = [entry for entry in BY_NAME if not found.get(entry)]
    yield from (f"{entry}: the entry in BY_NAME is no longer needed" for entry in unused)


def _imported(node: ast.AST, files: Mapping[str, Path]) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if alias.name in files)
    elif isinstance(node, ast.ImportFrom) and node.module is not None:
        for alias in node.names:
            inner = f"{node.module}.{alias.name}"
            yield from (name for name in (inner if inner in files else node.module,) if name in files)
    elif isinstance(node, ast.If) and (checking := type_checking(node.test)) is not None:
        for other in node.orelse if checking else node.body:
            yield from _imported(other, files)
    else:
        for child in ast.iter_child_nodes(node):
            yield from _imported(child, files)


def type_checking(test: ast.expr) -> bool | None:
    """Whether a condition holds for type checkers alone (True) or everywhere else (False); None for others."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = type_checking(test.operand)
        return None if inner is None else not inner
    return True if re.fullmatch(r"(typing\.)?_?TYPE_CHECKING", ast.unparse(test)) else None


def external(node: ast.AST, name: str) -> set[str]:
    """The packages of others that a statement imports, by their first names; `name` is the module's of ours."""
    if isinstance(node, ast.Import):
        found = {alias.name.partition(".")[0] for alias in node.names}
    elif isinstance(node, ast.ImportFrom) and node.module is not None:
        found = {node.module.partition(".")[0]}
    else:
        return set()
    return found - {name.partition(".")[0], "__future__"}


def base_install() -> set[str]:
    """What can be imported wherever `tilewright` is: Python's own modules, and the dependencies without an extra."""
    project = tomllib.loads((ROOT.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = {re.split(r"[^\w-]", entry)[0].replace("-", "_").lower() for entry in project["dependencies"]}
    return named | set(sys.stdlib_module_names)


def statements(node: ast.AST, late: bool = False, guarded: bool = False) -> Iterator[tuple[ast.stmt, bool, bool]]:
    """The imports below a node: each with whether it is inside a function, and whether its failure is handled."""
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        yield node, late, guarded
    if isinstance(node, ast.If) and (checking := type_checking(node.test)) is not None:
        for child in node.orelse if checking else node.body:
            yield from statements(child, late, guarded)
        return
    late = late or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    handlers = getattr(node, "handlers", ())
    handled = any("ImportError" in ast.unparse(entry.type or entry) for entry in handlers)
    for part in ("body", "handlers", "orelse", "finalbody", "cases"):  # expressions have no imports
        children = getattr(node, part, ())
        for child in children if isinstance(children, list) else ():
            yield from statements(child, late, guarded or handled)


def late_imports(files: Mapping[str, Path]) -> Iterator[str]:
    """What is wrong with imports inside functions."""
    found = {name: list(statements(ast.parse(path.read_text(encoding="utf-8")))) for name, path in files.items()}
    early: Graph = {name: set() for name in files}
    others: Graph = {name: set() for name in files}
    for name, entries in found.items():
        for node, late, _ in entries:
            if not late:
                early[name] |= set(_imported(node, files))
                others[name] |= external(node, name)
    base = base_install()
    unused = {(entry, module) for entry, (_, modules) in LATE.items() for module in modules}
    plain = [(name, node) for name, entries in found.items() for node, late, guarded in entries if late and not guarded]
    for name, node in plain:
        imported = set(_imported(node, files))
        needed = {package for module in reached(early, imported) for package in others[module]}
        if (needed | external(node, name)) - base - others[name]:
            continue
        known = {
            (entry, module)
            for entry, (_, modules) in LATE.items()
            for module in modules
            if f"{name}.".startswith(f"{entry}.") and any(f"{each}.".startswith(f"{module}.") for each in imported)
        }
        unused -= known
        if not known:
            yield f"{name}: line {node.lineno}: `{ast.unparse(node)}` belongs to the top of its file"
    for entry, module in sorted(unused):
        yield f"{entry}: it imports {module} at the top, or not at all: LATE has it without need"


def reached(graph: Mapping[str, set[str]], start: Iterable[str]) -> set[str]:
    """The modules of a graph that some of them lead to, with these."""
    found, following = set(), list(start)
    while following:
        name = following.pop()
        if name not in found:
            found.add(name)
            following += graph[name]
    return found


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
    files = modules()
    graph = import_graph(files)
    found = [*problems(graph), *late_imports(files), *unknown_names(files)]
    for problem in found:
        print(problem)
    print(f"imports: {len(found)} problems, {len(circles(graph))} circles of up to {MOST_FILES} files")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
