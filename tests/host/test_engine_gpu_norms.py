"""Norms of few rows that products compute: what becomes of graphs, and engines for GPUs without a kernel of a norm."""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from tests.host.cuda_stand_in import Driver
from tests.normed_products import block
from tilewright.build.builder import build
from tilewright.build.kernels import KernelSet
from tilewright.build.tuning import Tuning
from tilewright.dtypes import DType, bfloat16, float16, float32, int64
from tilewright.engine.engine import Engine
from tilewright.graph.build import GraphBuilder
from tilewright.graph.core import Graph, Value
from tilewright.graph.passes.fuse import fuse
from tilewright.graph.passes.fuse_norms import prepare_norms
from tilewright.graph.pipeline import optimize
from tilewright.graph.reference import run
from tilewright.library.select import candidates
from tilewright.runtime.plan import BufferReference
from tilewright.targets.registry import get_target

KERNELS = get_target("cuda:sm_90a").kernels
NORMED_ROWS = KERNELS.normed_rows


def normed(graph: Graph) -> list[bool]:
    """For each product whether it computes a norm."""
    fused = fuse(prepare_norms(optimize(graph), KERNELS), KERNELS)
    return [group.nodes[0].op == "rms_norm" for group in fused.groups if group.kind == "contraction"]


def kernels(engine: Engine) -> list[str]:
    return [engine.kernel_name(step.choices[-1].kernel) for step in engine.plan.steps]


@pytest.mark.parametrize("rows", [1, 3, NORMED_ROWS])
def test_few_rows(rows: int, rng: np.random.Generator) -> None:
    assert normed(block(rows, rng)) == [True, False, True, False, True]


@pytest.mark.parametrize(
    ("rows", "dtype", "op"),
    [(NORMED_ROWS + 1, bfloat16, "rms_norm"), (1, float16, "rms_norm"), (1, bfloat16, "layer_norm")],
)
def test_other_norms_stay(rows: int, dtype: DType, op: str, rng: np.random.Generator) -> None:
    """With more rows, in float16, which would overflow, and with a mean."""
    graph = optimize(block(rows, rng, dtype, op))
    assert prepare_norms(graph, KERNELS) is graph
    without = replace(KERNELS, normed_rows=0)
    with_norms = [group.nodes[0].op for group in fuse(graph, KERNELS).groups]
    assert with_norms == [group.nodes[0].op for group in fuse(graph, without).groups] and op in str(with_norms)


def test_weights_take_the_scale_once(rng: np.random.Generator) -> None:
    """In float32, rounded once; the weights as they were are gone."""
    graph = optimize(block(1, rng))
    scaled = prepare_norms(graph, KERNELS)
    exact = {"x": rng.standard_normal((1, 1, 512)).astype(ml_dtypes.bfloat16)}
    before, after = (run(each, exact)["y"] for each in (graph, scaled))
    np.testing.assert_allclose(after, before, rtol=0, atol=2**-8 * np.abs(before).max())
    largest = [sorted(data.nbytes for data in each.constants.values())[-5:] for each in (graph, scaled)]
    assert largest[0] == largest[1] and sum("in the weights of" in remark for remark in scaled.remarks) == 3
    products = [node for node in graph.nodes if node.op == "matmul"]
    norm = next(node for node in graph.nodes if node.op == "rms_norm")
    weights, scale = (graph.constants[value].astype(np.float64) for value in (products[0].inputs[1], norm.inputs[1]))
    found = next(node for node in scaled.nodes if node.op == "matmul").inputs[1]
    assert np.array_equal(scaled.constants[found], (weights * scale[:, None]).astype(ml_dtypes.bfloat16))


def test_sums_go_on_in_float32(rng: np.random.Generator) -> None:
    """The product in front of a norm stores its sum twice, for the norm rounded; the last one only so."""
    graph = prepare_norms(optimize(block(2, rng)), KERNELS)
    groups = fuse(graph, KERNELS).groups
    stored = [[value.dtype for value in group.outputs] for group in groups]
    assert stored == [[bfloat16], [float32, bfloat16], [bfloat16], [bfloat16], [bfloat16]]
    assert groups[1].outputs[0] in groups[3].inputs and groups[1].outputs[1] in groups[2].inputs
    assert prepare_norms(graph, KERNELS) is graph


@pytest.mark.parametrize("ones", [False, True])
def test_weights_with_other_readers_are_not_stored_twice(ones: bool, rng: np.random.Generator) -> None:
    """An embedding that is the language model's head: a norm in front of it stays, unless its scale is 1."""
    b = GraphBuilder("tied")
    words = b.constant(rng.standard_normal((48, 64)).astype(ml_dtypes.bfloat16), "words")
    scale = np.ones(64) if ones else rng.uniform(1, 2, 64)
    x = b.op("gather", [words, b.input("ids", int64, (1,))], axis=0)
    x = b.op("rms_norm", [x, b.constant(scale.astype(ml_dtypes.bfloat16))], axis=-1, epsilon=1e-5)
    b.output(b.op("matmul", [x, words], transpose_b=True), "y")
    assert normed(b.finish()) == [ones]


def test_a_norm_with_two_readers_stays(rng: np.random.Generator) -> None:
    b = GraphBuilder("two")
    x = b.input("x", bfloat16, (1, 64))
    x = b.op("rms_norm", [x], axis=-1, epsilon=1e-5)
    b.output(b.op("matmul", [x, b.constant(rng.standard_normal((64, 48)).astype(ml_dtypes.bfloat16))]), "y")
    b.output(x, "normal")
    assert normed(b.finish()) == [False]


@pytest.mark.slow(but_every=3)
@pytest.mark.parametrize("rows", [1, 4, NORMED_ROWS])
def test_engines(rows: int, assembler: None, rng: np.random.Generator) -> None:
    """No step is a norm's, nothing spills, and reasons say so; other targets keep their norms, and are as exact."""
    graph = block(rows, rng)
    engine = build(graph, ["cpu", "cuda:sm_90a"])
    inputs = {"x": rng.standard_normal((1, rows, 512)).astype(ml_dtypes.bfloat16)}
    exact, rounded = run(graph, inputs)["y"], run(graph, inputs, dtype=None)["y"].astype(np.float64)
    error = np.linalg.norm(engine.run(inputs)["y"].astype(np.float64) - exact)
    assert error <= 1.5 * np.linalg.norm(rounded - exact) and kernels(engine).count("normalize") == 3
    gpu = build(graph, "cuda:sm_90a", tuning=Tuning(libraries=True))
    assert "normalize" not in kernels(gpu)
    reasons = [step.evidence["reasons"].get("norm") for step in gpu.plan.steps]
    assert [reason is not None for reason in reasons] == [True, False, True, False, True]
    resources = [kernel["resources"] for kernel in gpu._program["kernels"].values()]
    assert all(taken["spill_stores"] == taken["spill_loads"] == 0 for taken in resources)


@pytest.mark.slow
@pytest.mark.parametrize("rows", [1, 5])
def test_all_candidates_compile(rows: int, assembler: None, rng: np.random.Generator) -> None:
    target, graph = get_target("cuda:sm_90a"), prepare_norms(optimize(block(rows, rng)), KERNELS)
    kernels = KernelSet(target, lambda stage, item, seconds: None)
    for group in fuse(graph, KERNELS).groups:
        for candidate in candidates(group, graph, target):
            for call in (call for stage in candidate.stages for call in stage.calls):
                kernels.choice(call, lambda operand: BufferReference("arena", "anywhere", 0))


def test_products_that_no_kernel_takes_whole_read_what_a_norm_stored(assembler: None, rng: np.random.Generator) -> None:
    """Rows that tensor copies cannot read, of 24 bytes."""
    b = GraphBuilder("odd")
    x = b.op("rms_norm", [b.input("x", bfloat16, (2, 12))], axis=-1, epsilon=1e-5)
    both = b.op("matmul", [x, b.constant(rng.standard_normal((12, 20)).astype(ml_dtypes.bfloat16))])
    left, right = (b.op("slice", [both], axis=1, start=start, stop=start + 10) for start in (0, 10))
    b.output(b.op("multiply", [left, b.op("silu", [right])]), "y")
    engine = build(b.finish(), "cuda:sm_90a")
    assert kernels(engine)[0] == "normalize"
    assert "a kernel of its own" in engine.plan.steps[0].evidence["reasons"]["norm"]


@pytest.mark.parametrize("biased", [False, True])
def test_gates_between_norms(biased: bool, driver: Driver, rng: np.random.Generator) -> None:
    """A gate that ends in the sum stores it once; what no kernel takes behind a norm (a bias before the halves) is
    computed apart."""
    b = GraphBuilder("gates")

    def drawn(*shape: int) -> Value:
        return b.constant((rng.standard_normal(shape) / 8).astype(ml_dtypes.bfloat16))

    x = b.input("x", bfloat16, (1, 3, 64))
    for _ in range(2):
        both = b.op("matmul", [b.op("rms_norm", [x, drawn(64)], axis=2, epsilon=1e-5), drawn(64, 128)])
        both = b.op("add", [both, drawn(128)]) if biased else both
        left, right = (b.op("slice", [both], axis=2, start=start, stop=start + 64) for start in (0, 64))
        x = b.op("add", [x, b.op("multiply", [b.op("silu", [left]), right])])
    b.output(b.op("matmul", [b.op("rms_norm", [x], axis=2, epsilon=1e-5), drawn(64, 48)]), "y")
    graph = b.finish()
    engine = build(graph, "cuda:sm_90a")
    chosen = [step.evidence["chosen"] for step in engine.plan.steps]
    assert chosen.count("hopper gated matmul") == (0 if biased else 2)
    assert kernels(engine).count("normalize") == (2 if biased else 0)
    inputs = {"x": rng.standard_normal((1, 3, 64)).astype(ml_dtypes.bfloat16)}
    exact, rounded = run(graph, inputs)["y"], run(graph, inputs, dtype=None)["y"].astype(np.float64)
    error = np.linalg.norm(engine.run(inputs)["y"].astype(np.float64) - exact)
    assert error <= 1.5 * np.linalg.norm(rounded - exact)


@pytest.mark.parametrize("rows", [1, 3])
def test_a_sum_of_one_column_is_stored_twice(rows: int, driver: Driver, rng: np.random.Generator) -> None:
    """Places that an epilogue stores to have the extents of its block, though there be one row and column. No number
    is negative: nothing cancels, so that the bound holds for all draws."""
    b = GraphBuilder("narrow")

    def drawn(*shape: int) -> np.ndarray:
        return np.abs(rng.standard_normal(shape)).astype(ml_dtypes.bfloat16)

    def product(x: Value, columns: int) -> Value:
        return b.op("matmul", [x, b.constant(drawn(x.shape[1], columns))])

    x = b.op("add", [b.input("x", bfloat16, (rows, 1)), product(b.input("h", bfloat16, (rows, 64)), 1)])
    branch = product(b.op("relu", [product(b.op("rms_norm", [x], axis=1, epsilon=1.0), 64)]), 1)
    b.output(product(b.op("rms_norm", [b.op("add", [x, branch])], axis=1, epsilon=1.0), 8), "y")
    graph = b.finish()
    inputs = {value.name: drawn(*value.shape) for value in graph.inputs}
    exact = run(graph, inputs)["y"]
    found = build(graph, "cuda:sm_90a").run(inputs)["y"].astype(np.float64)
    assert np.abs(found - exact).max() <= 2.0**-5 * np.abs(exact).max()
