"""float32 attention by multiply-adds assembles without spills, in blocks that leave room for all warps."""

from __future__ import annotations

import pytest

from tests.compile.test_nvidia_projection import apart
from tilewright.build.kernels import KernelSet
from tilewright.dtypes import float32
from tilewright.graph.build import GraphBuilder
from tilewright.graph.passes.fuse import fuse
from tilewright.graph.pipeline import optimize
from tilewright.library.select import candidates
from tilewright.targets.gpu.binary import GpuBinary
from tilewright.targets.registry import get_target, graph_passes


@pytest.mark.slow(but_every=5)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("size", [32, 64, 96, 128])
@pytest.mark.parametrize("architecture", ["sm_80", "sm_86", "sm_90a", "sm_120"])
def test_larger_blocks(architecture: str, size: int, causal: bool) -> None:
    target = get_target(f"cuda:{architecture}")
    b = GraphBuilder("attention")
    q, k, v = (b.input(name, float32, (8, heads, 512, size)) for name, heads in (("q", 8), ("k", 4), ("v", 4)))
    b.output(b.op("attention", [q, k, v], scale=0.1, causal=causal), "y")
    graph = optimize(b.finish(), graph_passes([target]))
    (group,) = fuse(graph, target.kernels).groups
    (larger,) = [each for each in candidates(group, graph, target) if "blocks" in each.reasons]
    kernels = KernelSet(target, lambda *_: None)
    (call,) = larger.stages[0].calls
    binary = kernels.entries[kernels.choice(call, apart).kernel].binary
    assert isinstance(binary, GpuBinary)
    assert binary.resources.spill_stores == binary.resources.spill_loads == 0
    assert binary.shared_bytes <= 80 << 10
