"""The check of names finds a class and a constant that two files have, and names that do not say what they hold."""

from pathlib import Path

from tools.check_names import problems, vague_names


def test_a_class_in_two_files_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("class One:\n    class Inner: ...\n")
    (tmp_path / "b.py").write_text("def make():\n    class Inner: ...\n    return Inner\n")
    [found] = problems(tmp_path.glob("*.py"), tmp_path)
    assert found.startswith("Inner: ") and "a.py:2" in found and "b.py:2" in found


def test_a_constant_in_two_files_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("FEW = 8\n_OWN = 1\nTABLE = make()\nT = TypeVar('T')\n")
    (tmp_path / "b.py").write_text("FEW: int = 1 << 7\n_OWN = 2\nTABLE = {}\nT = TypeVar('T')\n")
    [found, table] = problems(tmp_path.glob("*.py"), tmp_path)
    assert found.startswith("FEW: ") and "a.py:1" in found and "b.py:1" in found
    assert table.startswith("TABLE: ") and "a.py:3" in table


def test_constants_of_one_assignment_are_found(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("FEW, MANY = 8, 9\n")
    (tmp_path / "b.py").write_text("FEW, OTHER = 16, 3\n")
    [found] = problems(tmp_path.glob("*.py"), tmp_path)
    assert found.startswith("FEW: ")


def test_a_private_constant_with_two_values_in_a_package_is_found(tmp_path: Path) -> None:
    for folder, value in (("library", 8), ("library/matmul", 16), ("frontend", 32)):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / "a.py").write_text(f"_FEW, _LINE = {value}, 64\n")
    [found] = problems(tmp_path.rglob("*.py"), tmp_path)
    assert found.startswith("_FEW: ") and found.count("a.py") == 2 and "frontend" not in found


def test_vague_names_are_found(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(
        "_KEPT = 3\ndef _both(what=1, *, kept_rows=2):\n    self.taken = [turns for turns in what]\n    return turns\n"
    )
    found = [line.partition(": ")[2].partition(": ")[0] for line in problems(tmp_path.glob("*.py"), tmp_path)]
    assert sorted(found) == ["_KEPT", "_both", "taken", "turns", "what"]


def test_only_names_of_functions_count_in_tests(tmp_path: Path) -> None:
    (tmp_path / "test_a.py").write_text("def test_faults_are_told(kept):\n    both = kept\n\ndef told(): ...\n")
    found = [line.rpartition(": ")[2] for line in vague_names(tmp_path.glob("*.py"), words=frozenset())]
    assert found == ["test_faults_are_told", "told"]
