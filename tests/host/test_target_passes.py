"""Passes of some targets: what a graph of several takes of them, and products of transposed left operands."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from tests.host.cuda_stand_in import Driver
from tests.host.test_weight_products import product_of, random_matrix
from tests.normed_products import block
from tilewright.build.builder import build
from tilewright.dtypes import DType, bfloat16, float16, float32, int4, int16, uint8
from tilewright.graph import reference
from tilewright.graph.build import GraphBuilder
from tilewright.graph.core import Graph
from tilewright.graph.kernel_facts import KernelFacts, common_facts
from tilewright.graph.passes.dead_code import eliminate_dead_code
from tilewright.graph.passes.fuse import fuse
from tilewright.graph.passes.fuse_norms import prepare_norms
from tilewright.graph.passes.merge_matmuls import merge_matmuls
from tilewright.graph.passes.transposed_products import transposed_products
from tilewright.graph.pipeline import optimize
from tilewright.graph.target_passes import TargetPass, TargetPasses
from tilewright.targets.registry import get_target, get_targets, graph_passes


@pytest.mark.parametrize(
    ("targets", "stored"),
    [
        (["cpu"], True), (["cuda:sm_80"], False), (["cuda:sm_90a"], True), (["cpu", "cuda:sm_90a"], True),
        (["cuda:sm_90a", "cpu"], True), (["cpu", "cuda:sm_80"], False), (["cuda:sm_80", "cuda:sm_90a"], False),
        (["cuda:sm_80", "cuda:sm_89"], False), (["cuda:sm_90a", "cuda:sm_100"], False),
    ],
)  # fmt: skip
def test_quantized_weights_of_several_targets(targets: list[str], stored: bool, rng: np.random.Generator) -> None:
    """They are read as they are stored where all have kernels, and only those that all of these take."""
    passes = graph_passes(get_targets(targets))
    for group, taken in ((64, stored), (96, stored and targets == ["cpu"])):
        graph = product_of(random_matrix(rng, int4, 256, 192, group), bfloat16)
        assert any(node.op == "dequantized_matmul" for node in optimize(graph, passes).nodes) == taken


def test_a_pass_is_once_in_a_list() -> None:
    with pytest.raises(ValueError, match="twice in one list: merge_matmuls"):
        TargetPasses(after=[TargetPass(merge_matmuls), TargetPass(merge_matmuls)])


def test_backends_are_known_without_passes() -> None:
    code = "import sys, tilewright.language, tilewright.engine, tilewright.targets.registry\n"
    code += "sys.exit(', '.join(name for name in sys.modules if name.startswith('tilewright.graph.')))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stderr.strip() == "tilewright.graph.kernel_facts, tilewright.graph.target_passes"


def transposed(dtype: DType, products: int = 1) -> Graph:
    b = GraphBuilder("transposed")
    x = b.input("x", dtype, (24, 16))
    for number in range(products):
        weights = np.arange(24 * 8).reshape(24, 8) % 7 - 3 + number
        w = b.constant(weights.astype(dtype.numpy), f"w{number}")
        y = b.op("matmul", [x, w], transpose_a=True)
        b.output(y if products == 1 else b.op("reshape", [y], shape=(2, 64)), f"y{number}")  # views may be merged
    return b.finish()


@pytest.mark.parametrize(("dtype", "products"), [(float32, 1), (float32, 2), (int16, 1)])
def test_cpus_multiply_transposed_left_operands(dtype: DType, products: int, rng: np.random.Generator) -> None:
    graph = transposed(dtype, products)
    x = rng.integers(-9, 10, (24, 16)).astype(dtype.numpy)
    found, expected = build(graph, "cpu").run({"x": x}), reference.run(graph, {"x": x})
    for name, result in expected.items():
        np.testing.assert_array_equal(found[name], result)


def test_transposed_products_are_not_merged() -> None:
    graph = eliminate_dead_code(transposed(float32, 2))
    assert sum(node.op == "matmul" for node in merge_matmuls(graph).nodes) == 2


@pytest.mark.parametrize(("dtype", "taken"), [(float16, True), (float32, True), (int16, False)])
def test_left_operands_that_are_read_as_they_lie(dtype: DType, taken: bool) -> None:
    graph = transposed_products(optimize(transposed(dtype)), get_target("cuda:sm_90a").kernels)
    assert any(node.op == "matmul" and node.attributes["transpose_a"] for node in graph.nodes) == taken


@pytest.mark.parametrize("columns", [64, 8])
def test_norms_in_front_of_transposed_products(driver: Driver, columns: int, rng: np.random.Generator) -> None:
    """bfloat16 [8, 64], normalised along its rows, times [8, columns] on the left."""
    b = GraphBuilder("turned")
    x = b.input("x", bfloat16, (8, 64))
    scale = b.constant(np.linspace(0.5, 2, 64).astype(bfloat16.numpy), "scale")
    turned = b.op("permute", [b.op("rms_norm", [x, scale], axis=1, epsilon=1e-5)], order=(1, 0))
    weights = rng.standard_normal((8, columns)).astype(bfloat16.numpy)
    b.output(b.op("matmul", [turned, b.constant(weights, "w")]), "y")
    graph = b.finish()
    data = rng.standard_normal((8, 64)).astype(bfloat16.numpy)
    found = build(graph, "cuda:sm_90a").run({"x": data})["y"].astype(np.float64)
    wide = data.astype(np.float64)
    normed = wide / np.sqrt((wide * wide).mean(1, keepdims=True) + 1e-5) * np.linspace(0.5, 2, 64)
    np.testing.assert_allclose(found, normed.T @ weights.astype(np.float64), 3e-2, 8e-2)


def test_what_kernels_of_several_targets_have_in_common() -> None:
    """Of each number the strictest, of each kind what all have, of limits those of any."""
    records = [target.kernels for target in get_targets(["cpu", "cuda:sm_80", "cuda:sm_90a"])]
    common = common_facts(records)
    assert common.channels == 16 and common.widest_head == 0 and common.selected == 1 and common.zeros_around
    assert common.row_bytes == 16 and common.padded_side == 256  # from which on there is something for some
    assert common.narrow_types <= {uint8} and len(common.weight_limits) == 1
    assert common.row_programs and not common.normed_rows and not common.attention_quantizes
    assert common_facts(records[2:]) == records[2] and records[2].normed_rows


@pytest.mark.parametrize("most", [0, 1, 3, 8])
def test_passes_go_by_what_kernels_take(most: int, rng: np.random.Generator) -> None:
    """A graph has no sizes of kernels of its own: another target may have others."""
    for rows in (1, 2, 3, 4, 9):
        kernels = KernelFacts(normed_rows=most)
        graph = prepare_norms(optimize(block(rows, rng), TargetPasses(kernels=kernels)), kernels)
        joined = any(
            {"rms_norm", "matmul"} <= {node.op for node in group.nodes} for group in fuse(graph, kernels).groups
        )
        assert joined == (rows <= most)
