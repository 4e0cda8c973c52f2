"""Products ask for a part of the weights that the plan reads next."""

from __future__ import annotations

import numpy as np

from tilewright.dtypes import float16
from tilewright.engine.ahead import KEPT, LINE, WANTED, Scheduled, fetch_ahead
from tilewright.graph.build import GraphBuilder
from tilewright.graph.core import Graph, Value
from tilewright.graph.passes.fuse import fuse
from tilewright.graph.pipeline import optimize
from tilewright.tactics.core import AHEAD, KernelCall, PackedConstant
from tilewright.tactics.select import candidates
from tilewright.targets.nvidia.target import NvidiaTarget

TARGET = NvidiaTarget.named("sm_90a")


def planned(graph: Graph) -> Scheduled:
    """The candidate of every group with the least estimate, told what to ask for."""
    graph = optimize(graph)
    groups = [group for group in fuse(graph).groups if group.kind != "view"]
    chosen = [min(candidates(group, graph, TARGET), key=lambda found: found.cost.seconds) for group in groups]
    return fetch_ahead(list(zip(groups, chosen, strict=True)))


def products(scheduled: Scheduled) -> list[KernelCall]:
    calls = [call for _, candidate in scheduled if candidate for stage in candidate.stages for call in stage.calls]
    return [call for call in calls if AHEAD in call.operands]


def weight(builder: GraphBuilder, rng: np.random.Generator, rows: int, columns: int) -> Value:
    return builder.constant(rng.standard_normal((rows, columns)).astype(np.float16))


def chain(rng: np.random.Generator, columns: list[int], rows: int = 4) -> Graph:
    """Products with a norm before each."""
    builder = GraphBuilder("chain")
    x = builder.input("x", float16, (rows, columns[0]))
    for depth, width in zip(columns, columns[1:], strict=False):
        x = builder.op("rms_norm", [x, builder.constant(np.ones(depth, np.float16))], axis=1, epsilon=1e-5)
        x = builder.op("matmul", [x, weight(builder, rng, depth, width)], transpose_b=False)
    builder.output(x, "y")
    return builder.finish()


def asked(call: KernelCall) -> tuple[Value, int]:
    """What a call asks for, and how many bytes."""
    found, wanted = call.operands[AHEAD], call.operands["ahead_wanted"]
    assert isinstance(wanted, int)
    if isinstance(found, PackedConstant):
        return found.value, wanted * LINE
    assert isinstance(found, Value)
    return found, wanted * LINE


def test_each_product_asks_for_the_weights_of_the_next(rng: np.random.Generator) -> None:
    first, second, last = products(planned(chain(rng, [256, 512, 4096, 64])))
    for call, following, size in ((first, second, 512 * 4096 * 2), (second, last, 4096 * 64 * 2)):
        weights = following.operands["b"]
        value, wanted = asked(call)
        assert following.weights == "b" and value is weights.value  # type: ignore[union-attr]
        assert wanted == min(size, WANTED) and call.operands["ahead_lines"] == size // LINE
    assert asked(last)[1] == 0  # whether the engine is called again is not known


def test_no_more_than_the_cache_keeps_is_asked_for(rng: np.random.Generator) -> None:
    first, _ = products(planned(chain(rng, [128, 2048, WANTED // 1024])))
    assert asked(first)[1] == WANTED


def test_nothing_is_asked_for_across_kernels_that_move_much(rng: np.random.Generator) -> None:
    rows = KEPT // (2 * 2048)
    first, _ = products(planned(chain(rng, [64, 2048, 64], rows)))
    assert asked(first)[1] == 0
