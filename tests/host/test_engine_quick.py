"""Effort 0 on CPUs: machine code that is made in less time gives the same results."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import tilewright
from tilewright.dtypes import float32
from tilewright.engine.engine import Engine
from tilewright.graph.build import GraphBuilder
from tilewright.graph.passes.fuse import fuse
from tilewright.insight.layers import with_layers
from tilewright.library.select import candidates
from tilewright.settings import settings
from tilewright.targets.cpu.target import CPUTarget
from tilewright.targets.registry import get_target

EPSILON = float(np.finfo(np.float32).eps)


class Attention(nn.Module):
    """One layer of attention with a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(32), nn.Linear(32, 96), nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm(x)).view(batch, length, 3, 4, 8).permute(2, 0, 3, 1, 4).unbind(0)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v)
        return x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(37, 70), nn.GELU(), nn.Linear(70, 50), nn.Softmax(-1))


def convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 20, 3, 2, 1), nn.BatchNorm2d(20), nn.ReLU(), nn.Conv2d(20, 20, 3, 1, 1, groups=20),
        nn.Hardswish(), nn.Conv2d(20, 40, 1), nn.MaxPool2d(2), nn.Conv2d(40, 33, 3, 1, 1), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(33, 10),
    )  # fmt: skip


def engines(module: nn.Module, example: torch.Tensor, shapes: dict | None) -> tuple[Engine, Engine, nn.Module]:
    module = module.eval().requires_grad_(False)
    quick, full = (tilewright.compile(module, (example,), shapes, effort=effort) for effort in (0, 1))
    return quick, full, module


def check(quick: Engine, full: Engine, module: nn.Module, x: torch.Tensor, depth: int) -> None:
    """Both agree with float64: each product of the network adds the rounding of its `depth` sums."""
    exact = module.double()(x.double())
    module.float()
    for engine in (quick, full):
        found = torch.as_tensor(engine(x)).double()
        assert (found - exact).abs().max() <= 8 * depth * EPSILON * max(1.0, float(exact.abs().max())), engine


@pytest.mark.parametrize("size", [*range(1, 19), 31, 32, 33, 64])
def test_any_number_of_rows(size, perceptrons) -> None:
    check(*perceptrons, torch.randn(size, 37), 37 + 70)


@pytest.fixture(scope="module")
def perceptrons() -> tuple[Engine, Engine, nn.Module]:
    batch = torch.export.Dim("batch", min=1, max=64)
    return engines(perceptron(), torch.randn(4, 37), {"input": {0: batch}})


@pytest.mark.parametrize("rows", [1, 3, 8, 23])
def test_known_numbers_of_rows(rows) -> None:
    x = torch.randn(rows, 37)
    check(*engines(perceptron(), x, None), x, 37 + 70)


@pytest.mark.slow
def test_convolutions_of_any_size() -> None:
    height, width = (4 * torch.export.Dim(name, min=2, max=16) for name in ("height_4", "width_4"))  # PyTorch 2.11 asks
    dims = {0: torch.export.Dim("batch", max=16), 2: height, 3: width}
    built = engines(convolutions(), torch.randn(2, 3, 24, 32), {"input": dims})
    for shape in ((1, 3, 8, 8), (2, 3, 16, 32), (5, 3, 40, 12), (16, 3, 64, 64)):
        check(*built, torch.randn(shape), 27 + 9 + 20 + 360 + 33)


def test_attention_of_any_length() -> None:
    dims = {0: torch.export.Dim("batch", max=8), 1: torch.export.Dim("length", max=96)}
    built = engines(Attention(), torch.randn(2, 16, 32), {"x": dims})
    for shape in ((1, 1, 32), (3, 5, 32), (2, 16, 32), (8, 96, 32)):
        check(*built, torch.randn(shape), 32 + 8 + 96 + 32)


def test_fewer_kernels_and_no_alternatives(perceptrons) -> None:
    quick, full, _ = perceptrons

    def kernels(engine: Engine) -> set[str]:
        return {choice.kernel for step in engine.plan.steps for choice in step.choices}

    assert all(len(step.choices) == 1 for step in quick.plan.steps)
    assert len(kernels(quick)) < len(kernels(full)) and not kernels(quick) & kernels(full)


def test_convolutions_take_kernels_that_compile_soon() -> None:
    """No Winograd and no taps written out, which the full build chooses from."""
    target = get_target("cpu:x86-64-v3")
    assert isinstance(target, CPUTarget)
    found = {}
    for channels in (32, 64):
        b = GraphBuilder("convolution")
        x, w = b.input("x", float32, (1, 32, 32, channels)), b.constant(np.zeros((64, channels, 3, 3), np.float32))
        spread = {"strides": (1, 1), "padding": ((1, 1), (1, 1)), "dilation": (1, 1)}
        b.output(b.op("conv", [x, w], **spread, layout="NHWC", groups=1), "y")
        graph = b.finish()
        (group,) = fuse(graph).groups
        for each in (target, target.quick_variant()):
            found[channels, each.quick] = [candidate.name for candidate in candidates(group, graph, each)]
    assert found[32, True] == found[64, True] == ["implicit matmul"]
    assert "Winograd F(2x2, 3x3)" in found[64, False] and "direct convolution" in found[32, False]


def test_files_and_layers_tell(perceptrons, tmp_path: Path) -> None:
    quick, full, _ = perceptrons
    quick.save(tmp_path / "quick.engine")
    assert Engine.load(tmp_path / "quick.engine").is_quick
    assert not full.is_quick
    assert with_layers(quick).is_quick and not with_layers(full).is_quick


def test_only_effort_0_is_quick() -> None:
    """`TILEWRIGHT_TUNE=0` is about times on a GPU."""
    module, x = nn.Linear(4, 4).eval(), torch.randn(2, 4)
    with settings.scope(tune=False):
        assert not tilewright.compile(module, (x,)).is_quick
    assert tilewright.compile(module, (x,), effort=0).is_quick


@pytest.mark.parametrize("name", ["x86-64", "x86-64-v3", "sapphirerapids", "aarch64"])
def test_every_cpu(name) -> None:
    """Compiled for other CPUs, among them one whose register tiles have no power of two of rows."""
    x = torch.randn(21, 64, dtype=torch.bfloat16 if name == "sapphirerapids" else torch.float32)
    module = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32)).eval().to(x.dtype)
    engine = tilewright.compile(module, (x,), target=f"cpu:{name}", effort=0)
    assert engine.is_quick and engine.plan.steps


def test_register_tiles_of_a_power_of_two() -> None:
    import dataclasses

    for name in ("x86-64", "x86-64-v3", "x86-64-v4", "aarch64"):
        target = get_target(f"cpu:{name}")
        assert isinstance(target, CPUTarget)
        quick = dataclasses.replace(target, quick=True)
        rows, columns = quick.microtile(float32)
        assert rows & (rows - 1) == 0 and rows <= target.microtile(float32)[0]
        assert columns == target.microtile(float32)[1]  # packed weights serve both
        assert quick.key != target.key
