"""Products of 8-bit floats with a scale for each block of both operands: recognised, imported, and run on CPUs and GPUs
(a stand-in for one)."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import tilewright
from tests.host import cuda_stand_in
from tilewright.build.builder import build
from tilewright.dtypes import DType, bfloat16, float8e4nv, float8e5, float32
from tilewright.errors import UnsupportedOperationError
from tilewright.graph.build import GraphBuilder
from tilewright.graph.core import Graph
from tilewright.graph.passes.block_products import block_products, without_block_products
from tilewright.graph.reference import run
from tilewright.graph.verifier import verify

BLOCK = 128


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> cuda_stand_in.Driver:
    return cuda_stand_in.install(monkeypatch)


class Layer:
    """Numbers and scales of rows x [rows, depth] and weights w [columns, depth], and their product in float64."""

    def __init__(self, rng: np.random.Generator, rows: int, columns: int, depth: int, kind: DType = float8e4nv) -> None:
        groups = depth // BLOCK
        self.x = rng.standard_normal((rows, depth)).astype(kind.numpy)
        self.w = rng.standard_normal((columns, depth)).astype(kind.numpy)
        self.x_scales = rng.uniform(0.5, 2, (rows, groups)).astype(np.float32)
        self.w_scales = rng.uniform(0.5, 2, (-(-columns // BLOCK), groups)).astype(np.float32)
        left = self.x.astype(np.float64) * np.repeat(self.x_scales, BLOCK, axis=1)
        self.by_column = np.repeat(self.w_scales, BLOCK, axis=0)[:columns]
        right = self.w.astype(np.float64) * np.repeat(self.by_column, BLOCK, axis=1)
        self.product = left @ right.T


def graph_of(layer: Layer, form: str, cast: DType = float32, dynamic: bool = False) -> Graph:
    """The product as models write it, then a bias and an activation: weights that are known, by columns or by blocks,
    or given, by blocks."""
    (rows, depth), columns, groups = layer.x.shape, len(layer.w), layer.x_scales.shape[1]
    b = GraphBuilder("blocks")
    count = b.symbol("rows", 1, 400) if dynamic else rows
    x, x_scales = b.input("x", float8e4nv, (count, depth)), b.input("x_scales", float32, (count, groups))
    numbers = b.op("reshape", [x], shape=(count, groups, BLOCK))
    left = b.op("dequantize", [numbers, b.op("reshape", [x_scales], shape=(count, groups, 1))])
    if form == "by column":
        shape, scales = (columns, groups, BLOCK), layer.by_column[..., None]
    else:
        blocks = columns // BLOCK
        shape, scales = (blocks, BLOCK, groups, BLOCK), layer.w_scales.reshape(blocks, 1, groups, 1)
    if form == "given":
        w = b.op("reshape", [b.input("w", float8e4nv, (columns, depth))], shape=shape)
        scale = b.op("reshape", [b.input("w_scales", float32, layer.w_scales.shape)], shape=scales.shape)
    else:
        w, scale = b.constant(layer.w.reshape(shape)), b.constant(scales)
    right = b.op("reshape", [b.op("dequantize", [w, scale])], shape=(columns, depth))
    operands = [b.op("reshape", [left], shape=(count, depth)), right]
    if cast != float32:
        operands = [b.op("cast", [item], dtype=cast) for item in operands]
    y = b.op("matmul", operands, transpose_b=True)
    y = b.op("add", [y, b.constant(np.linspace(-9, 9, columns).astype(cast.numpy))])
    b.output(b.op("gelu", [y], approximate="tanh"), "y")
    return b.finish()


def expected(layer: Layer) -> np.ndarray:
    y = layer.product + np.linspace(-9, 9, len(layer.w))
    return 0.5 * y * (1 + np.tanh(np.sqrt(2 / np.pi) * (y + 0.044715 * y**3)))


def given(layer: Layer, form: str) -> dict[str, np.ndarray]:
    inputs = {"x": layer.x, "x_scales": layer.x_scales}
    return {**inputs, "w": layer.w, "w_scales": layer.w_scales} if form == "given" else inputs


def close(found: Any, wanted: np.ndarray, tolerance: float) -> bool:
    return float(np.linalg.norm(np.asarray(found).astype(np.float64) - wanted)) <= tolerance * np.linalg.norm(wanted)


FORMS = [("by column", 144), ("by block", 256), ("given", 256)]


@pytest.mark.parametrize(("form", "columns"), FORMS)
@pytest.mark.parametrize("cast", [float32, bfloat16], ids=str)
def test_products_are_recognised(form: str, columns: int, cast: DType, rng: np.random.Generator) -> None:
    layer = Layer(rng, 5, columns, 384)
    graph = graph_of(layer, form, cast)
    found = block_products(graph)
    verify(found)
    (product,) = (node for node in found.nodes if node.op == "block_scaled_matmul")
    assert not any(node.op == "matmul" for node in found.nodes)
    assert product.inputs[3] is not None and product.inputs[3].shape == layer.w_scales.shape
    tolerance = 1e-6 if cast == float32 else 2.0**-7
    for each in (found, without_block_products(found)):
        assert close(run(each, given(layer, form))["y"], expected(layer), tolerance)


def test_scales_of_other_blocks_stay(rng: np.random.Generator) -> None:
    """Scales of 64 steps, of each column, and columns that tensor copies do not store."""
    layer = Layer(rng, 5, 144, 384)
    layer.by_column[3] *= 2
    assert not any(node.op == "block_scaled_matmul" for node in block_products(graph_of(layer, "by column")).nodes)
    narrow = graph_of(Layer(rng, 5, 140, 384), "by column")
    assert block_products(narrow).nodes == narrow.nodes


@pytest.mark.parametrize(("form", "columns"), FORMS)
@pytest.mark.parametrize("cast", [float32, bfloat16], ids=str)
def test_engines_on_a_gpu(form: str, columns: int, cast: DType, driver, rng: np.random.Generator) -> None:
    """One launch of the Hopper product for any number of rows, with what follows it."""
    layer = Layer(rng, 70, columns, 384)
    engine = build(graph_of(layer, form, cast, dynamic=True), "cuda:sm_90a")
    (step,) = engine.plan.steps
    assert step.evidence["chosen"] == "hopper matmul", step.evidence
    assert close(engine.run(given(layer, form))["y"], expected(layer), 1e-5 if cast == float32 else 2.0**-7)


def test_other_targets_multiply_floats(rng: np.random.Generator) -> None:
    layer = Layer(rng, 9, 144, 256)
    b = GraphBuilder("blocks")
    arrays = {"x": layer.x, "w": layer.w, "x_scales": layer.x_scales, "w_scales": layer.w_scales}
    kinds = {"x": float8e4nv, "w": float8e4nv}
    values = [b.input(name, kinds.get(name, float32), array.shape) for name, array in arrays.items()]
    b.output(b.op("block_scaled_matmul", values), "y")
    graph = b.finish()
    assert close(build(graph, "cpu").run(arrays)["y"], layer.product, 1e-5)
    chosen = [step.evidence.get("chosen", "") for step in build(graph, "cuda:sm_80").plan.steps]
    assert any("matmul" in name for name in chosen) and not any("hopper" in name for name in chosen), chosen


@pytest.mark.parametrize(
    ("change", "reason"),
    [({"x": (9, 200)}, "no multiple of 128|are no"), ({"w_scales": (1, 2)}, "are no scales for blocks"),
     ({"x_scales": (9, 3)}, "are no scales for blocks")],
)  # fmt: skip
def test_operands_that_do_not_fit_are_refused(change: dict[str, tuple[int, ...]], reason: str) -> None:
    shapes = {"x": (9, 256), "w": (144, 256), "x_scales": (9, 2), "w_scales": (2, 2), **change}
    b = GraphBuilder("blocks")
    kinds = {"x": float8e4nv, "w": float8e5}
    values = [b.input(name, kinds.get(name, float32), shape) for name, shape in shapes.items()]
    with pytest.raises(tilewright.errors.ShapeError, match=reason):
        b.op("block_scaled_matmul", values)


# PyTorch's products of scaled operands


def tensor(array: np.ndarray) -> torch.Tensor:
    if array.dtype == ml_dtypes.float8_e4m3fn:
        return torch.from_numpy(array.view(np.uint8)).view(torch.float8_e4m3fn)
    return torch.from_numpy(array)


class Scaled(torch.nn.Module):
    """`torch._scaled_mm`, or `scaled_mm` with the kinds of its scales, of weights that are kept."""

    def __init__(self, layer: Layer, kinds: tuple[str, str], named: bool) -> None:
        super().__init__()
        self.kinds, self.named = kinds, named
        scales = tensor(layer.w_scales)
        if kinds[1] == "BlockWise128x128":
            padding = -scales.shape[1] % 4 if named else 0  # that PyTorch wants
            scales = torch.nn.functional.pad(scales, (0, padding))
        elif kinds[1] == "RowWise":
            scales = tensor(np.ascontiguousarray(layer.by_column[:, :1]))
        else:
            scales = scales[:1, :1]
        self.register_buffer("w", tensor(layer.w))
        self.register_buffer("scales", scales)

    def forward(self, x, x_scales):
        if not self.named:
            return torch._scaled_mm(x, self.w.t(), x_scales, self.scales.t(), out_dtype=torch.bfloat16)
        left, right = (getattr(torch.nn.functional.ScalingType, kind) for kind in self.kinds)
        return torch.nn.functional.scaled_mm(x, self.w.t(), x_scales, left, self.scales.t(), right)


KINDS = [("BlockWise1x128", "BlockWise128x128"), ("RowWise", "RowWise"), ("TensorWise", "TensorWise")]


@pytest.mark.parametrize("kinds", KINDS, ids=lambda kinds: kinds[0])
@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("target", ["cpu", "cuda:sm_90a"])
def test_scaled_products_of_pytorch(
    kinds: tuple[str, str], named: bool, target: str, driver, rng: np.random.Generator
) -> None:
    layer = Layer(rng, 32, 256, 256)
    x_scales = tensor(layer.x_scales.T.copy()).t()
    wanted = layer.product
    if kinds[0] != "BlockWise1x128":
        single = kinds[0] == "TensorWise"
        x_scales = tensor(np.ascontiguousarray(layer.x_scales[: 1 if single else None, :1]))
        wanted = layer.x.astype(np.float64) @ layer.w.astype(np.float64).T
        wanted *= np.asarray(x_scales) * (layer.by_column[0, 0] if single else layer.by_column[:, 0])
    engine = tilewright.compile(Scaled(layer, kinds, named), (tensor(layer.x), x_scales), target=target, effort=0)
    given = (layer.x, np.ascontiguousarray(x_scales))
    inputs = dict(zip([each.name for each in engine.plan.inputs], given, strict=True))
    assert close(next(iter(engine.run(inputs).values())), wanted, 2.0**-8)
    if target != "cpu":
        assert len(engine.plan.steps) == 1 and engine.plan.steps[0].evidence["chosen"] == "hopper matmul"


def test_a_scale_of_the_result_is_refused(rng: np.random.Generator) -> None:
    layer = Layer(rng, 32, 256, 256)

    class Rescaled(torch.nn.Module):
        def forward(self, x, w, scale):
            return torch._scaled_mm(x, w.t(), scale, scale, scale_result=scale, out_dtype=torch.bfloat16)

    inputs = (tensor(layer.x), tensor(layer.w), torch.ones(()))
    with pytest.raises(UnsupportedOperationError, match="a scale of the result"):
        tilewright.compile(Rescaled(), inputs, target="cpu")
