"""The check of imports, which `make check` runs on the package, sees circles that are too large."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tools.check_imports import circles, import_graph, modules, problems, unknown_names


def test_late_imports_count_and_those_for_types_do_not(tmp_path: Path) -> None:
    root = tmp_path / "part"
    root.mkdir()
    for name, text in {
        "__init__": "",
        "a": "from part import b\n",
        "b": "def late():\n    import part.c\n",
        "c": "from part.d import thing\n",
        "d": "if TYPE_CHECKING:\n    from part import a\nelse:\n    from part import e\n",
        "e": "",
    }.items():
        (root / f"{name}.py").write_text(text)
    graph = import_graph(modules(root))
    assert graph["part.d"] == {"part.e"} and not circles(graph)
    (root / "e.py").write_text("def late():\n    from part.a import thing\n")
    assert circles(import_graph(modules(root))) == [[f"part.{name}" for name in "abcde"]]
    (root / "e.py").write_text('import importlib\nwhole = importlib.import_module(f"part.{name}")\n')
    assert "part.a" in import_graph(modules(root))["part.e"]
    (root / "e.py").write_text("if not TYPE_CHECKING:\n    import part.a\n")
    assert import_graph(modules(root))["part.e"] == {"part.a"}
    (root / "e.py").write_text("import importlib\nwhole = importlib.import_module(name)\n")
    assert "part.e: imports a module that no table names: add it to BY_NAME" in unknown_names(modules(root))


def test_packages_that_import_each_other_are_reported_with_the_imports() -> None:
    graph = {"top.a.x": {"top.b.y"}, "top.b.y": set(), "top.b.z": {"top.a.x"}}
    (found,) = problems(graph)
    assert "top.a.x imports top.b.y" in found and "top.b.z imports top.a.x" in found


def test_circles_are_those_that_paths_show(rng: np.random.Generator) -> None:
    """Of drawn graphs, against powers of their matrices."""
    for _ in range(50):
        size = int(rng.integers(2, 12))
        edges = rng.random((size, size)) < rng.uniform(0.05, 0.4)
        reached = edges.copy()
        for _ in range(size):
            reached |= (reached.astype(int) @ edges.astype(int)) > 0
        graph = {str(place): {str(other) for other in np.flatnonzero(row)} for place, row in enumerate(edges)}
        together = {
            frozenset([str(place), *map(str, np.flatnonzero(reached[place] & reached[:, place]))])
            for place in range(size)
        }
        assert {frozenset(group) for group in circles(graph)} == {group for group in together if len(group) > 1}
