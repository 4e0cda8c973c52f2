"""The tool that proves that moving code changes nothing: what it records, and what it sees."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tilewright.dtypes import float16
from tilewright.graph.build import GraphBuilder
from tilewright.graph.core import Graph
from tools import replay


def graph(op: str) -> Graph:
    b = GraphBuilder("graph")
    x = b.input("x", float16, (b.symbol("rows", 1, 64), 128))
    b.output(b.op("softmax", [b.op(op, [x])], axis=1))
    return b.finish()


@pytest.mark.parametrize("target", ["x86-64-v4", "cuda:sm_90a"])
@pytest.mark.parametrize("kind", [replay.library, replay.model])
def test_the_same_code_has_the_same_texts(kind, target: str, tmp_path: Path) -> None:
    """A change is told with its lines, in kernels and in choices."""
    texts = kind(partial(graph, "exp"), target)
    assert any("define" in text for text in texts.values())
    replay.record(tmp_path / "before.json", texts, tmp_path / "texts")
    again = kind(partial(graph, "exp"), target)
    assert not list(replay.differences(tmp_path / "before.json", again, None))
    changed = {name: text.replace("define", "declare") for name, text in texts.items()}
    found = list(replay.differences(tmp_path / "before.json", changed, tmp_path / "texts"))
    assert len(found) == sum("define" in text for text in texts.values())
    assert all("-define" in line and "+declare" in line for line in found)
    other = kind(partial(graph, "tanh"), target)
    assert list(replay.differences(tmp_path / "before.json", other, None))


def test_where_a_source_lies_is_left_out() -> None:
    symbols = [f"@tw_softmax_{digit * 16}(ptr %x)  ; {place}" for digit, place in
               (("0", "/a/kernels/rows.py:12:3"), ("f", "/b/library/rows/cpu.py:70"))]  # fmt: skip
    assert len({replay.plain(symbol) for symbol in symbols}) == 1


def test_names_of_jobs_are_unique_and_all_targets_are_there() -> None:
    names = [name for name, _ in replay.jobs()]
    assert len(names) == len(set(names))
    assert {name.rsplit("/", 1)[1] for name in names} == {*replay.CPUS, replay.HOPPER}
