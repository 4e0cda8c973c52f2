"""Row programs as code for sm_90a: in every form nothing spills, and neighbouring elements are loaded together."""

from __future__ import annotations

import re

import pytest

from tests.host.tactics_support import parameter_types
from tests.host.test_row_programs import moments
from tilewright.dtypes import float16
from tilewright.graph.build import GraphBuilder
from tilewright.graph.core import Graph
from tilewright.graph.kernel_facts import KernelFacts
from tilewright.graph.passes.fuse import fuse
from tilewright.ir.core import Parameter
from tilewright.library.select import candidates
from tilewright.targets.nvidia.target import NvidiaTarget

GPU = NvidiaTarget.named("sm_90a")


def standardized(shape: tuple[int, ...], axes: tuple[int, ...]) -> Graph:
    b = GraphBuilder("standardized")
    x = b.input("x", float16, shape)
    mean, variance = moments(b, x, axes)
    root = b.op("rsqrt", [b.op("add", [variance, 1e-5])])
    b.output(b.op("multiply", [b.op("subtract", [x, mean]), root]))
    return b.finish()


@pytest.mark.parametrize(
    ("form", "shape", "axes"),
    [
        ("rows at once", (4096, 8192), (1,)),
        ("rows at once", (64, 128, 4096), (1,)),
        ("rows in chunks", (4096, 65536), (1,)),
        ("rows in parts", (16, 64, 128, 128), (0, 2, 3)),
    ],
)
def test_forms_move_whole_vectors(form: str, shape: tuple[int, ...], axes: tuple[int, ...]) -> None:
    graph = standardized(shape, axes)
    (group,) = fuse(graph, KernelFacts(row_programs=True)).groups
    chosen = next(candidate for candidate in candidates(group, graph, GPU) if candidate.name == form)
    for stage in chosen.stages:
        (call,) = stage.calls
        types = parameter_types(call)
        facts = {name: Parameter(name, 16, alias_free=True) for name, text in types.items() if text.startswith("*")}
        kernel = call.kernel.compile(types, call.constants, facts, target="cuda:sm_90a", options=call.options)
        assert not kernel.binary.resources.spill_stores
        assert re.search(r"ld\.global\S*\.v4\.b32", kernel.asm["ptx"])
