"""Whole models build for GPU architectures on any machine, and their plans are what the tactics promise."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from typer.testing import CliRunner  # noqa: E402

import tilewright  # noqa: E402
from tests.host.model_support import torch_graph  # noqa: E402
from tests.host.test_recurrent import layer  # noqa: E402
from tests.models import blocks  # noqa: E402
from tilewright import Engine  # noqa: E402
from tilewright.build.builder import build  # noqa: E402
from tilewright.cli.main import application  # noqa: E402
from tilewright.errors import TargetError  # noqa: E402
from tilewright.graph.core import Graph  # noqa: E402
from tilewright.importers import import_model  # noqa: E402
from tilewright.symbolic import evaluate  # noqa: E402
from tilewright.targets.registry import get_target  # noqa: E402


def kernels(engine: Engine) -> list[str]:
    return [engine.kernel_name(step.choices[-1].kernel) for step in engine.plan.steps]


def chosen(engine: Engine) -> list[str]:
    return [step.evidence["chosen"] for step in engine.plan.steps]


@pytest.mark.slow(but_every=3)
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("name", ["bert", "resnet", "prefill", "decode"])
def test_small_models(name: str, architecture: str) -> None:
    engine = build(torch_graph(name), f"cuda:{architecture}")
    assert engine.target == f"cuda:{architecture}" and not engine.remarks
    assert all(step.evidence["candidates"] for step in engine.plan.steps if "candidates" in step.evidence)
    resources = [kernel["resources"] for kernel in engine._program["kernels"].values()]
    assert all(taken["spill_stores"] == taken["spill_loads"] == 0 for taken in resources)


def test_products_of_16_bits_take_the_hopper_kernel() -> None:
    dtype = torch.bfloat16
    module, x = blocks.Mlp(256).to(dtype).eval(), torch.zeros(2, 130, 256, dtype=dtype)
    engine = tilewright.compile(module, (x,), target="cuda:sm_90a")
    assert chosen(engine) == ["hopper matmul", "hopper matmul", "row kernel"]
    portable = tilewright.compile(module, (x,), target="cuda:sm_80")
    assert chosen(portable) == ["tiled matmul", "tiled matmul", "row kernel"]


def test_products_with_scales_of_blocks_take_the_hopper_kernel() -> None:
    """It assembles without spills: sums of a block, and those that they are added to, are registers."""

    class Product(torch.nn.Module):
        def forward(self, x, w, x_scales, w_scales):
            y = torch._scaled_mm(x, w.t(), x_scales, w_scales.t(), out_dtype=torch.bfloat16)
            return torch.nn.functional.silu(y)

    x, w = (torch.zeros(shape, dtype=torch.float8_e4m3fn) for shape in ((300, 512), (640, 512)))
    engine = tilewright.compile(Product(), (x, w, torch.ones(300, 4), torch.ones(5, 4)), target="cuda:sm_90a", effort=0)
    assert chosen(engine) == ["hopper matmul"]
    (kernel,) = engine._program["kernels"].values()
    assert kernel["resources"]["spill_stores"] == 0


@functools.cache
def transformer_layer(target: str) -> Engine:
    module, x = blocks.Block(256, 4).half().eval(), torch.zeros(2, 40, 256, dtype=torch.float16)
    return tilewright.compile(module, (x,), {"x": {1: ("length", 2, 128)}}, target=target)


def test_a_transformer_layer_with_a_run_time_length() -> None:
    engine = transformer_layer("cuda:sm_90a")
    assert "attention" in kernels(engine) and "hopper matmul" in chosen(engine)
    for step in engine.plan.steps:
        if step.evidence["chosen"] == "hopper matmul":
            ends = [choice.at_most for choice in step.choices]
            assert len(ends) > 1 and ends == [*sorted(end for end in ends if end is not None), None]
            for length in (2, 128):
                grids = [evaluate(choice.grid[0], {"length": length}) for choice in step.choices]
                assert all(0 < extent <= 4 * 132 for extent in grids)


def test_kernels_of_a_plan_start_early() -> None:
    for target, early in (("cuda:sm_90a", True), ("cuda:sm_80", False)):
        kernels = transformer_layer(target)._package.manifest["programs"][0]["kernels"].values()
        assert {kernel["launch"]["dependent_launch"] for kernel in kernels} == {early}


def test_single_precision_stays_single() -> None:
    engine = tilewright.compile(blocks.Mlp(64).eval(), (torch.zeros(8, 64),), target="cuda:sm_90a")
    assert set(chosen(engine)) == {"tiled matmul", "row kernel"}


def image_layer() -> tuple[torch.nn.Module, torch.Tensor]:
    image = torch.zeros(2, 8, 12, 12)
    return torch.nn.Sequential(torch.nn.Conv2d(8, 16, 3), torch.nn.Flatten(2), torch.nn.Linear(100, 64)).eval(), image


@functools.cache
def image_graph(dtype: torch.dtype) -> Graph:
    layer, image = image_layer()
    return import_model(layer.to(dtype), (image.to(dtype),))


@pytest.mark.slow(but_every=2)
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90a"])
def test_tf32_is_a_precision(architecture: str) -> None:
    """Products and convolutions of float32 models are other kernels, and the record says so; halves are the same."""
    for dtype, differs in ((torch.float32, True), (torch.float16, False)):
        plain, fast = (
            build(image_graph(dtype), f"cuda:{architecture}", precision=precision) for precision in ("ieee", "tf32")
        )
        assert (set(plain._package.objects.values()) != set(fast._package.objects.values())) is differs
        assert (plain.precision, fast.precision) == ("ieee", "tf32") and plain.target == fast.target
        steps = [step for step in fast.plan.steps if "matmul" in step.evidence["chosen"]]
        named = [step.evidence["reasons"].get("precision") for step in steps]
        assert named == ["tf32"] * 2 if differs else "tf32" not in named


def test_precisions_that_there_are_not() -> None:
    layer, image = image_layer()
    with pytest.raises(TargetError, match="for GPUs, CPUs multiply"):
        tilewright.compile(layer, (image,), target="cpu", precision="tf32")
    with pytest.raises(TargetError, match="unknown precision 'tf16': choose ieee or tf32"):
        tilewright.compile(layer, (image,), target="cuda:sm_90a", precision="tf16")


def test_the_old_spelling_of_tf32_holds_and_tells_of_the_new_one() -> None:
    with pytest.warns(FutureWarning, match=r"target='cuda:sm_90a', precision='tf32' \(--precision tf32\)"):
        assert get_target("cuda:sm_90a+tf32") == get_target("cuda:sm_90a", "tf32") != get_target("cuda:sm_90a")
    with pytest.warns(FutureWarning), pytest.raises(TargetError, match="for GPUs, CPUs multiply"):
        get_target("cpu+tf32")
    with pytest.raises(TargetError, match="unknown precision 'tf16'"):
        get_target("cuda:sm_90a+tf16")


def test_the_command_line_builds_one_file_for_several_targets(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    helper = onnx.helper
    weight = onnx.numpy_helper.from_array(np.ones((16, 8), np.float32), "w")
    declared = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, ["rows", c]) for n, c in (("x", 16), ("y", 8))]
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    graph = helper.make_graph([node], "product", declared[:1], declared[1:], [weight])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.save(model, tmp_path / "m.onnx")
    arguments = ["build", str(tmp_path / "m.onnx"), "--target", "cuda:sm_90a,cpu", "-o", str(tmp_path / "m.engine")]
    finished = CliRunner().invoke(application(), arguments)
    assert finished.exit_code == 0, finished.output
    assert "kernels for cuda:sm_90a: 1 " in finished.output
    assert Engine.load(tmp_path / "m.engine").targets == ("cuda:sm_90a", "cpu")
    shown = CliRunner().invoke(application(), ["inspect", str(tmp_path / "m.engine"), "--target", "cuda"])
    assert "target cuda:sm_90a" in shown.output and "also for cpu" in shown.output


@pytest.mark.parametrize("cell", ["lstm", "gru_first"])
def test_recurrent_layers(cell: str, rng: np.random.Generator) -> None:
    """One launch walks the steps; its threads wait for each other after every step."""
    engine = build(layer(rng, cell, 32, (False, True), lengths=True), "cuda:sm_90a")
    assert [step.evidence["group"] for step in engine.plan.steps] == ["recurrent"]
