"""The check of names finds a class and a constant that two files have."""

from pathlib import Path

from tools.check_names import problems


def test_a_class_in_two_files_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("class One:\n    class Inner: ...\n")
    (tmp_path / "b.py").write_text("def make():\n    class Inner: ...\n    return Inner\n")
    [found] = problems(tmp_path.glob("*.py"))
    assert found.startswith("Inner: ") and "a.py:2" in found and "b.py:2" in found


def test_a_constant_in_two_files_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("FEW = 8\n_OWN = 1\nTABLE = make()\nT = TypeVar('T')\n")
    (tmp_path / "b.py").write_text("FEW: int = 1 << 7\n_OWN = 2\nTABLE = {}\nT = TypeVar('T')\n")
    [found] = problems(tmp_path.glob("*.py"))
    assert found.startswith("FEW: ") and "a.py:1" in found and "b.py:1" in found
