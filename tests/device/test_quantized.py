"""Quantized products and convolutions in engines on a GPU: exact sums, scales, requantization."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import tilewright  # noqa: E402
from tests.quantized_layers import Case, check, drawn, expected, layer_of  # noqa: E402
from tilewright.build.builder import build  # noqa: E402
from tilewright.build.tuning import Tuning  # noqa: E402

_FP8_SUMS = 2.0**-12  # of the magnitudes: Hopper cuts each product to about 14 bits of the largest of its instruction


def _larger(case: Case, rng: np.random.Generator) -> Case:
    """A case with tiles beyond one CTA and stages beyond a ring."""
    return replace(case, rows=int(rng.integers(1, 400)), depth=case.depth * 9, columns=case.columns * 5, dynamic=False)


@pytest.mark.parametrize("seed", range(6))
def test_drawn_layers(seed: int, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator) -> None:
    """The Hopper kernel where tensor copies can read, untimed, and the plain one."""
    for case in drawn(seed, 3):
        case = _larger(case, rng)
        layer = layer_of(case, rng)
        engine = build(layer.graph, "cuda", tuning=Tuning(0))
        x = rng.standard_normal((case.rows, case.depth)).astype(case.given.numpy)
        check(case, engine.run({"x": x})["y"], *expected(case, layer, x, _FP8_SUMS), layer.out_scale)


@pytest.mark.hopper
@pytest.mark.parametrize("scheme", ["int8", "fp8"])
def test_a_network(scheme: str, rng: np.random.Generator) -> None:
    """Convolutions with padding, strides and a residual, and products: as far off as the quantized graph is."""
    torch.manual_seed(3)

    class Network(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convolutions = torch.nn.ModuleList(
                [torch.nn.Conv2d(3, 64, 3, padding=1), torch.nn.Conv2d(64, 64, 3, padding=1),
                 torch.nn.Conv2d(64, 128, 3, 2, padding=1), torch.nn.Conv2d(128, 128, 1)]
            )  # fmt: skip
            self.layers = torch.nn.Sequential(torch.nn.Linear(128, 256), torch.nn.GELU(), torch.nn.Linear(256, 48))

        def forward(self, x):
            x = torch.relu(self.convolutions[0](x))
            x = torch.relu(self.convolutions[1](x) + x)
            x = torch.relu(self.convolutions[3](torch.relu(self.convolutions[2](x))))
            return self.layers(x.mean((2, 3)))

    module = Network().half().eval()
    data = [rng.standard_normal((4, 3, 30, 26)).astype(np.float16) for _ in range(2)]
    given = (torch.from_numpy(data[0]),)
    found = tilewright.quantize(module, data, scheme, target="cuda", example_inputs=given)
    (y,) = found.engine.run({found.engine.plan.inputs[0].name: data[0]}).values()
    plain = module.float()(given[0].float()).detach().numpy()
    difference = np.linalg.norm(np.asarray(y, np.float64) - plain) / np.linalg.norm(plain)
    (expected_difference,) = found.errors.values()
    assert expected_difference / 2 < difference < 2 * expected_difference < 0.2


@pytest.mark.hopper
@pytest.mark.parametrize("shape", [(200, 512, 384), (1024, 4096, 1024), (17, 64, 48)])
def test_int_mm_of_two_computed_operands(shape: tuple[int, int, int], rng: np.random.Generator) -> None:
    """torch._int_mm in an engine: the Hopper product, exact."""

    class Product(torch.nn.Module):
        def forward(self, a, b):
            return torch._int_mm(a, b.t())

    rows, depth, columns = shape
    a, b = (torch.from_numpy(rng.integers(-128, 128, s, np.int8)) for s in ((rows, depth), (columns, depth)))
    engine = tilewright.compile(Product(), (a, b), target="cuda", effort=0)
    assert engine.plan.steps[0].evidence["chosen"].startswith("hopper")
    exact = a.double() @ b.double().t()
    assert torch.equal(torch.as_tensor(engine(a.cuda(), b.cuda())).cpu().double(), exact)


@pytest.mark.hopper
@pytest.mark.parametrize("shape", [(200, 512, 384), (1024, 4096, 1024), (17, 256, 640)])
def test_scaled_mm_by_blocks(shape: tuple[int, int, int], rng: np.random.Generator) -> None:
    """torch._scaled_mm with scales of 1 x 128 and 128 x 128 in an engine: the Hopper product that promotes its sums."""

    class Product(torch.nn.Module):
        def forward(self, x, w, x_scales, w_scales):
            y = torch._scaled_mm(x, w.t(), x_scales, w_scales.t(), out_dtype=torch.bfloat16)
            return torch.nn.functional.silu(y)

    rows, depth, columns = shape
    x, w = (torch.from_numpy(rng.standard_normal((count, depth))).to(torch.float8_e4m3fn) for count in (rows, columns))
    x_scales, w_scales = (torch.from_numpy(rng.uniform(0.01, 0.1, (count, depth // 128)).astype(np.float32))
                          for count in (rows, columns // 128))  # fmt: skip
    engine = tilewright.compile(Product(), (x, w, x_scales, w_scales), target="cuda")
    assert engine.plan.steps[0].evidence["chosen"] == "hopper matmul"
    left = x.double() * x_scales.double().repeat_interleave(128, 1)
    right = w.double() * w_scales.double().repeat_interleave(128, 0).repeat_interleave(128, 1)
    exact = torch.nn.functional.silu(left @ right.t())
    found = torch.as_tensor(engine(*(item.cuda() for item in (x, w, x_scales, w_scales)))).cpu().double()
    assert torch.linalg.norm(found - exact) < 2.0**-7 * torch.linalg.norm(exact)
