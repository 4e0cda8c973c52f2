"""The check of names finds a class that two files have."""

from pathlib import Path

from tools.check_names import problems


def test_a_class_in_two_files_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("class One:\n    class Inner: ...\n")
    (tmp_path / "b.py").write_text("def make():\n    class Inner: ...\n    return Inner\n")
    [found] = problems(tmp_path.glob("*.py"))
    assert "class Inner" in found and "a.py:2" in found and "b.py:2" in found
