"""The record of a conformance run becomes counts, reasons and Markdown."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

TOOLS = Path(__file__).resolve().parents[2] / "tools"


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(TOOLS))
    import conformance_table

    yield conformance_table
    sys.modules.pop("conformance_table", None)


def test_counts_and_reasons(table: Any) -> None:
    listed = [{"case": f"test/unit/a.py::test[{number}]"} for number in range(5)]
    outcomes = {
        "test/unit/a.py::test[0]": {"outcome": "passed"},
        "test/unit/a.py::test[1]": {"outcome": "skipped", "message": "needs a GPU"},
        "test/unit/a.py::test[2]": {"outcome": "failed", "type": "Failed", "message": "DID NOT RAISE Error"},
        "test/unit/a.py::test[3]": {"outcome": "timeout", "message": "timeout (exit -9)"},
    }
    found = table.file_results("a.py", listed, outcomes)
    assert (found["cases"], found["passed"], found["skipped"], found["failed"]) == (5, 1, 1, 2)
    assert found["reasons"] == {
        "accepted here, refused there": 1,
        "takes longer than the limit on two cores": 1,
    }
    assert found["skips"] == {"needs a GPU": 1}
    data = {
        "reference": "a checkout",
        "environment": {"processor": "a CPU", "threads": 2, "date": "today"},
        "files": [{"marked": True, **found}],
        "tutorials": [{"name": "01", "outcome": "passed", "seconds": 1.2}],
    }
    text = table.markdown(data)
    assert "| a.py | 5 | 1 | 1 | 3 | 1 | 2 | 33.33% |" in text and "| 01 | passed | 1 |" in text


def test_an_error_that_nothing_explains(table: Any) -> None:
    assert table.reason("test[0]", {"outcome": "failed", "type": "AssertionError", "message": "1 == 2"}) == table.OTHER
