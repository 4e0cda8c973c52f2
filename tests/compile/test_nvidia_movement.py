"""Kernels that move data read and write whole sectors of memory, whatever order it has."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest

from tests.host.tactics_support import parameter_types
from tilewright.dtypes import DType, float16, int8
from tilewright.graph.build import GraphBuilder
from tilewright.graph.core import Graph
from tilewright.graph.passes.fuse import fuse
from tilewright.ir.core import Parameter
from tilewright.library.select import candidates, choose
from tilewright.targets.nvidia.assemble import Assembly, AssemblyOptions, assemble
from tilewright.targets.nvidia.options import NvidiaOptions
from tilewright.targets.nvidia.pipeline import lower
from tilewright.targets.nvidia.target import NvidiaTarget

TARGET = NvidiaTarget.named("sm_90a")


def assembled(graph: Graph) -> Assembly:
    """The machine code of a graph of one kernel."""
    (group,) = (group for group in fuse(graph, TARGET.kernels).groups if group.kind != "view")
    ((call,),) = (stage.calls for stage in choose(candidates(group, graph, TARGET)).stages)
    types = parameter_types(call)
    parameters = {name: Parameter(name, 256, True) for name, text in types.items() if text.startswith("*")}
    function = call.kernel.trace(types, call.constants, parameters)
    lowered = lower(function, TARGET, NvidiaOptions.of_launch(call.options_for(TARGET)))
    return assemble(lowered.text, lowered.symbol, TARGET, AssemblyOptions())


def permuted(shape: Sequence[int], order: Sequence[int], dtype: DType) -> Graph:
    b = GraphBuilder("permuted")
    b.output(b.op("permute", [b.input("x", dtype, tuple(shape))], order=tuple(order)), "y")
    return b.finish()


def image_of_taps(count: int, padded: bool) -> Graph:
    """The depths that a window sees as channels of an image, the fastest of its dimensions."""
    b = GraphBuilder("taps")
    batch, channels, depth, pixels = 2, 32, 16, 4096
    x = b.op("permute", [b.input("x", float16, (batch, channels, depth, pixels))], order=(0, 2, 1, 3))
    if padded:
        x = b.op("pad", [x], pads=((0, 0), (1, 1), (0, 0), (0, 0)), value=0.0)
    seen = x.shape[1] - count + 1
    slices = [b.op("slice", [x], axis=1, start=tap, stop=tap + seen) for tap in range(count)]
    slices = [b.op("reshape", [each], shape=(batch, seen, channels, 1, pixels)) for each in slices]
    joined = b.op("reshape", [b.op("concat", slices, axis=3)], shape=(batch, seen, channels * count, pixels))
    b.output(b.op("permute", [joined], order=(0, 1, 3, 2)), "y")
    return b.finish()


@pytest.mark.parametrize(
    "graph",
    [
        permuted((8, 16, 4096, 4), (0, 2, 1, 3), float16),
        permuted((8, 16, 4096, 8), (0, 2, 1, 3), int8),
        permuted((64, 512, 64), (0, 2, 1), float16),
        image_of_taps(3, padded=True),
        image_of_taps(2, padded=False),
    ],
    ids=["runs of 4", "runs of 8", "matrices", "3 taps, padded", "2 taps"],
)
def test_both_ends_are_vectors(graph: Graph) -> None:
    assembly = assembled(graph)
    accesses = re.findall(r"\b(?:ld|st)\.global\S*", assembly.ptx)
    assert accesses and all(".v4.b32" in access for access in accesses), accesses
    assert assembly.resources.spill_stores == 0


@pytest.mark.parametrize(("shape", "width"), [((16, 66564, 8), 4), ((32, 53816, 16), 8), ((8, 28744, 48), 8)])
def test_lines_that_begin_within_sectors_are_written_in_vectors(shape: tuple[int, int, int], width: int) -> None:
    """As wide as their beginnings allow, after an exchange: elements of one or few sectors each would be written to
    sectors in parts."""
    stores = re.findall(r"\bst\.global\S*", assembled(permuted(shape, (0, 2, 1), float16)).ptx)
    assert stores and all(f".v{width // 2}.b32" in store for store in stores), stores
