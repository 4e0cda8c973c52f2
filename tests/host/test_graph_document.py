"""The worked example of docs/internals/graph.md is true."""

from __future__ import annotations

import re
from pathlib import Path

from tilewright.graph.parser import parse_graph
from tilewright.graph.passes.fuse import fuse
from tilewright.graph.pipeline import optimize
from tilewright.graph.printer import print_fused, print_graph

DOCUMENT = (Path(__file__).parents[2] / "docs" / "internals" / "graph.md").read_text(encoding="utf-8")


def block(name: str) -> str:
    found = re.search(rf"<!-- {name} -->\n```\w*\n(.*?)```", DOCUMENT, re.DOTALL)
    assert found is not None, name
    return found.group(1)


def test_the_example_goes_through_the_pipeline_as_written():
    graph = parse_graph(block("example"))
    assert print_graph(graph) == block("example")
    optimized = optimize(graph)
    assert print_graph(optimized) == block("optimized")
    assert print_fused(fuse(optimized)) == block("fused")


def test_every_file_that_the_page_names_is_there():
    folder = Path(__file__).parents[2] / "tilewright" / "graph"
    named = re.findall(r"`((?:passes/)?[\w*]+\.py)`", DOCUMENT)
    assert len(named) > 15
    for name in named:
        assert list(folder.glob(name)) or list((folder / "passes").glob(name)), name
