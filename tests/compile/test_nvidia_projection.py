"""Products whose columns are heads compile for sm_90a: without spills, stores as threads have the sums."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tests.host.hopper_support import traced_projection
from tests.projections import projection_graph
from tilewright.build.kernels import KernelSet
from tilewright.dtypes import DType, bfloat16, float16
from tilewright.graph.passes.fuse import fuse
from tilewright.graph.pipeline import optimize
from tilewright.library.candidate import KernelCall, Operand, PackedConstant
from tilewright.library.hopper import SHARED_BYTES
from tilewright.library.matmul.hopper.projection_config import ProjectionHeads
from tilewright.library.select import candidates
from tilewright.runtime.plan import BufferReference
from tilewright.targets.gpu.binary import GpuBinary
from tilewright.targets.nvidia.assemble import AssemblyOptions
from tilewright.targets.nvidia.compile import assemble_kernel
from tilewright.targets.nvidia.options import NvidiaOptions
from tilewright.targets.nvidia.pipeline import lower
from tilewright.targets.nvidia.target import NvidiaTarget
from tilewright.targets.registry import get_target, graph_passes

# Heads and depths of Llama 8B, Qwen2 0.5B (with a bias), Phi-4 mini, Gemma 2 9B, and of heads of 80 columns.
SHAPES = [
    (ProjectionHeads(32, 8, 128, 128), 4096, bfloat16), (ProjectionHeads(14, 2, 64, 64), 896, bfloat16),
    (ProjectionHeads(24, 8, 128, 96), 3072, bfloat16), (ProjectionHeads(16, 8, 256, 256), 3584, bfloat16),
    (ProjectionHeads(32, 32, 80, 80), 2560, float16),
]  # fmt: skip


def calls_of(heads: ProjectionHeads, depth: int, dtype: DType) -> list[KernelCall]:
    """The launches for few rows."""
    target = get_target("cuda:sm_90a")
    made = projection_graph(heads, None, depth, dtype, depth == 896, np.random.default_rng(0))
    graph = optimize(made, graph_passes([target]))
    (group,) = [group for group in fuse(graph, target.kernels).groups if group.kind == "projection"]
    calls = candidates(group, graph, target)[-1].stages[0].calls
    return [call for call in calls if call.kernel.__name__ == "project_heads"]


def apart(operand: Operand) -> BufferReference:
    """Each tensor in memory of its own."""
    value = operand.value if isinstance(operand, PackedConstant) else operand
    return BufferReference("input", value.name, 0)  # type: ignore[union-attr]


@pytest.mark.slow(but_every=3)
@pytest.mark.parametrize(("heads", "depth", "dtype"), SHAPES, ids=[f"{heads.columns}" for heads, _, _ in SHAPES])
def test_it_assembles_without_spills(heads: ProjectionHeads, depth: int, dtype: DType) -> None:
    calls = calls_of(heads, depth, dtype)
    assert [call.condition[1] for call in calls if call.condition is not None] == [8, 16, 64]
    kernels = KernelSet(get_target("cuda:sm_90a"), lambda *_: None)
    for call in calls:
        binary = kernels.entries[kernels.choice(call, apart).kernel].binary
        assert isinstance(binary, GpuBinary)
        print(call.constants["CONFIG"].described, binary.resources, binary.shared_bytes)
        assert binary.resources.spill_stores == binary.resources.spill_loads == binary.resources.stack == 0
        assert binary.shared_bytes <= SHARED_BYTES and binary.dependent_launch


@pytest.mark.parametrize("turned", [128, 0])
def test_threads_store_their_sums(turned: int) -> None:
    """No thread needs another's, and angles are asked for before the sums are there."""
    heads = ProjectionHeads(8, 2, 128, turned)
    config = calls_of(heads._replace(TURNED=128), 512, bfloat16)[0].constants["CONFIG"]
    target = NvidiaTarget.named("sm_90a")
    lowered = lower(traced_projection(config, heads), target, NvidiaOptions())
    assembly = assemble_kernel(lowered, target, AssemblyOptions(strict=True))
    assert not assembly.remarks and not re.findall(r"\b(?:ld|st)\.shared", assembly.ptx)
    assert lowered.shared_bytes <= config.shared_bytes
    product = assembly.ptx.index("wgmma.mma_async")
    early = len(re.findall(r"ld\.global\S*\.b16", assembly.ptx[:product]))
    assert early == len(re.findall(r"ld\.global\S*\.b16", assembly.ptx)) and (early > 0) == (turned > 0)
    assert assembly.ptx.index("griddepcontrol.wait") < assembly.ptx.index("ld.global")
