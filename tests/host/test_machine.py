"""Machines: where their figures come from, and that what is chosen fits the machine that it is chosen for."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tilewright import dtypes
from tilewright.graph.build import GraphBuilder
from tilewright.graph.core import Graph
from tilewright.graph.passes.fuse import fuse
from tilewright.graph.pipeline import optimize
from tilewright.library.attention.problem import AttentionProblem
from tilewright.library.candidate import Candidate
from tilewright.library.convolution.hopper.choice import ranked_configs as ranked_convolutions
from tilewright.library.convolution.problem import ConvolutionProblem
from tilewright.library.matmul.hopper.choice import close_configs, ranked_configs, seconds_of
from tilewright.library.matmul.problem import MatmulProblem
from tilewright.library.matmul.simt_tiles import ranked_tiles
from tilewright.library.reduce.simt_config import sum_config
from tilewright.library.select import candidates
from tilewright.ops import arrays, attentions, products
from tilewright.runtime.cuda.device import Device
from tilewright.settings import settings
from tilewright.targets.cpu.target import CPUTarget
from tilewright.targets.nvidia.machine import CARDS, card_of
from tilewright.targets.nvidia.target import ARCHITECTURES, NvidiaTarget
from tilewright.targets.registry import graph_passes

HOPPER = {132: "NVIDIA H200", 114: "NVIDIA H100 PCIe", 78: "NVIDIA H20"}


def gpu(processors: int, capability: tuple[int, int] = (9, 0)) -> Device:
    return Device(0, HOPPER[processors], capability, processors, 50 << 20, 1 << 37, 227 << 10, True)


def target(processors: int) -> NvidiaTarget:
    found = gpu(processors)
    return NvidiaTarget.for_capability(found.capability, found.multiprocessors, found.l2_bytes, found.name)


def test_figures_come_from_the_target_and_the_card() -> None:
    h200 = NvidiaTarget.named("sm_90a").machine()
    assert (h200.processors, h200.memory, h200.slots(2), h200.slots(4), h200.slots(8)) == (132, 4.4e12, 132, 120, 120)
    assert target(132).machine() == h200
    for processors in (114, 78):
        machine = target(processors).machine()
        assert machine.processors == machine.slots(1) == processors and machine.memory < h200.memory
        assert all(processors * 0.8 < machine.slots(size) <= processors for size in (2, 4, 8))
    unknown = NvidiaTarget.for_capability((9, 0), 100, 60 << 20, "a new card").machine()
    assert (unknown.processors, unknown.l2_bytes, unknown.peak) == (100, 60 << 20, h200.peak)


def test_every_architecture_has_a_card() -> None:
    for name in ARCHITECTURES:
        machine = NvidiaTarget.named(name).machine()
        assert machine.peak.memory > machine.memory > 0 and machine.mma > 0 and machine.launches.kernel > 0
    assert len({card.name for card in CARDS}) == len(CARDS)
    assert card_of(103).sm == 100 and card_of(90, "NVIDIA H100 PCIe").peak.memory == 2e12


def test_a_cpu_has_the_caches_of_its_target_and_the_threads_of_the_settings() -> None:
    cpu = CPUTarget.named("x86-64-v4")
    with settings.scope(threads=3):
        few = cpu.machine()
    with settings.scope(threads=6):
        many = cpu.machine()
    assert (few.processors, many.processors, few.l1_bytes, few.l2_bytes) == (3, 6, 32 << 10, 1 << 20)
    assert many.flops == few.flops and many.peak.float32 == 2 * few.peak.float32
    assert few.flops == 2 * CPUTarget.named("x86-64-v3").machine().flops


@pytest.mark.parametrize("processors", HOPPER)
def test_products_fill_the_machine(processors: int) -> None:
    """The first config is quicker there than those that other machines take, and no cluster waits for another."""
    machine = target(processors).machine()
    others = [target(other).machine() for other in HOPPER if other != processors]
    found = set()
    for sizes in ((512, 14336, 4096), (1280, 2304, 4160), (512, 2048, 2048), (128, 2048, 8192), (64, 4096, 14336)):
        problem = MatmulProblem(*sizes)
        config, seconds = ranked_configs(problem, machine)[0]
        for other in others:
            theirs, _ = ranked_configs(problem, other)[0]
            assert seconds <= seconds_of(theirs, problem, machine) + 1e-9  # of equals the simpler comes first
            found.add(config == theirs)
        for each, _ in close_configs(problem, machine):
            ctas = each.grid(*sizes[:2], 1, processors)[0]
            assert ctas <= machine.slots(each.cluster) or (each.SINGLE and each.SPLIT == 1)
    assert False in found


@pytest.mark.parametrize("processors", HOPPER)
def test_convolutions_fill_the_machine(processors: int) -> None:
    machine = target(processors).machine()
    for problem in (ConvolutionProblem(1, 7, 7, 512, 512, kernel=(3, 3), pad=(1, 1)),
                    ConvolutionProblem(32, 14, 14, 256, 1024)):  # fmt: skip
        config, _ = ranked_convolutions(problem, machine)[0]
        tiles = config.tiles(problem.images, problem.height, problem.width, problem.columns)
        assert config.SPLIT == 1 or tiles * config.SPLIT <= machine.slots(config.SPLIT)
        assert config.grid(tiles, processors)[0] <= machine.processors * config.resident


def test_tiles_and_rows_follow_the_number_of_processors() -> None:
    """Fewer processors take longer, and have their fill of fewer rows."""
    machines = [target(processors).machine() for processors in HOPPER]
    product = (MatmulProblem(4096, 4096, 4096, 1, dtypes.float16, exact=True),)
    seconds = [ranked_tiles(product, machine)[0][1] for machine in machines]
    assert seconds == sorted(seconds) and seconds[0] < seconds[1] < seconds[2]
    rows = [sum_config(1024, 1024, machine.processors).rows for machine in machines]
    assert rows == sorted(rows) and rows[0] < rows[-1]


@pytest.mark.parametrize("processors", [114, 78])
def test_operations_ask_their_gpu_for_clusters_too(monkeypatch: pytest.MonkeyPatch, processors: int) -> None:
    """Each GPU's products were ranked, and launched, with the clusters that an H200 has at once."""
    monkeypatch.setattr(arrays, "target_of", lambda ordinal: target(processors))
    plan = products.MatmulPlan(MatmulProblem(64, 4096, 14336, 1, dtypes.bfloat16, dtypes.bfloat16), 0, 0)
    assert plan.ranked and plan.machine == target(processors).machine()
    assert all(plan._grid(each.config)[0] <= processors for each in plan.ranked)
    large = products.MatmulPlan(MatmulProblem(4096, 4096, 4096, 1, dtypes.bfloat16, dtypes.bfloat16), 0, 0)
    assert all(plan._grid(each.config)[0] <= processors for each in large.ranked)
    assert [each.config for each in large.ranked] != [
        each.config for each in products.MatmulPlan(large.problem, None, 0).ranked
    ]


def test_what_wgmma_is_needed_for_goes_by_the_target(monkeypatch: pytest.MonkeyPatch) -> None:
    without = replace(NvidiaTarget.named("sm_89"), card="NVIDIA L4")
    monkeypatch.setattr(arrays, "target_of", lambda ordinal: without)
    posed = MatmulProblem(64, 64, 64, 1, dtypes.bfloat16, dtypes.bfloat16)
    assert "NVIDIA L4 has no wgmma" in products.MatmulPlan(posed, 0, 0).explain()
    asked = AttentionProblem(1, 2, 2, 64, 64, 64, dtypes.bfloat16, False, 0, False, False, "")
    assert "NVIDIA L4 has no wgmma" in attentions.AttentionPlan(asked, 0).explain()


def product_graph() -> Graph:
    b = GraphBuilder("product")
    x, w = b.input("x", dtypes.float16, (512, 2048)), b.constant(np.ones((2048, 2048), np.float16))
    b.output(b.op("matmul", [x, w]))
    return b.finish()


def convolution_graph() -> Graph:
    b = GraphBuilder("convolution")
    x, w = b.input("x", dtypes.float16, (32, 1024, 14, 14)), b.constant(np.ones((256, 1024, 1, 1), np.float16))
    b.output(b.op("conv", [x, w], strides=(1, 1), padding=((0, 0), (0, 0)), dilation=(1, 1), groups=1))
    return b.finish()


def experts_graph() -> Graph:
    b = GraphBuilder("experts")
    x, w = b.input("x", dtypes.float16, (512, 512)), b.constant(np.ones((4, 512, 1024), np.float16))
    ends = b.input("ends", dtypes.int32, (4,))
    b.output(b.op("grouped_matmul", [x, w, ends], transpose_b=False))
    return b.finish()


def tilings(graph: Graph, processors: int) -> list[tuple[Candidate, str]]:
    """The Hopper candidates of a graph of one group."""
    machine = target(processors)
    ready = optimize(graph, graph_passes([machine]))
    found = [each for group in fuse(ready, machine.kernels).groups if group.kind != "view"
             for each in candidates(group, ready, machine) if "hopper" in each.name]  # fmt: skip
    return [(each, str(each.reasons)) for each in found]


@pytest.mark.parametrize("graph", [product_graph, convolution_graph, experts_graph])
def test_engines_rank_hopper_kernels_for_their_target(graph) -> None:
    """They were ranked for an H200, whatever the target."""
    ranked = {processors: tilings(graph(), processors) for processors in HOPPER}
    assert all(ranked.values())
    expected = {processors: found[0][0].cost.seconds for processors, found in ranked.items()}
    assert expected[132] < expected[114] < expected[78]
