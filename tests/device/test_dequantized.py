"""Products by weights of 4 and 8 bits on Hopper: every config worth timing, and engines."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import tilewright  # noqa: E402
from tests.host.test_dequantized_hopper import Case, close, drawn, weights_of  # noqa: E402
from tilewright import ops  # noqa: E402
from tilewright.dtypes import bfloat16, from_numpy  # noqa: E402
from tilewright.library.matmul.hopper.dequantized import close_configs  # noqa: E402
from tilewright.library.matmul.problem import DequantizedProblem  # noqa: E402
from tilewright.ops import arrays, dequantized  # noqa: E402

pytestmark = pytest.mark.hopper


def numbers_of(case: Case, codes: np.ndarray, scales: np.ndarray, zeros: np.ndarray | None) -> np.ndarray:
    """What the weights stand for, in float64."""
    steps = case.depth // scales.shape[1]
    whole = codes.astype(np.float64) - (0 if zeros is None else np.repeat(zeros, steps, 1))
    return np.asarray(whole * np.repeat(scales.astype(np.float64), steps, 1))


@pytest.mark.parametrize("seed", range(6))
def test_every_config(seed: int) -> None:
    """Of few and many columns, so that CTAs share the depth and do not; ragged in every direction."""
    draw = np.random.default_rng(seed)
    case = drawn(seed)
    case = replace(
        case, depth=case.depth * 5, columns=int(draw.integers(1, 5000)), rows=int(draw.choice([1, 7, 16, 30, 64, 200]))
    )
    codes, scales, zeros = weights_of(case, draw)
    x = draw.standard_normal((case.rows, case.depth)).astype(np.float32).astype(case.given.numpy)
    exact = numbers_of(case, codes, scales, zeros)
    kind = torch.bfloat16 if case.given == bfloat16 else torch.float16
    given = torch.from_numpy(x.astype(np.float32)).to(kind).cuda()
    stored = torch.from_numpy(codes.view(np.uint8)).cuda()
    if case.dtype.is_integer:
        stored = stored.view(torch.int8) if case.dtype.is_signed else stored
    else:
        stored = stored.view(torch.float8_e4m3fn if case.dtype.name == "float8e4nv" else torch.float8_e5m2)
    factors = torch.from_numpy(scales.astype(np.float32)).to(getattr(torch, case.scale.name)).cuda()
    points = None if zeros is None else torch.from_numpy(zeros).cuda()
    packed = ops.pack_weights(stored, factors, points, bits=case.dtype.bits)
    problem = DequantizedProblem(
        case.rows, case.columns, case.depth, input=case.given, output=case.given, group=packed.group,
        weights=packed.dtype, scale=from_numpy(packed.scales.dtype), zeros=packed.zeros is not None,
    )  # fmt: skip
    first, ordinal = arrays.view(given, "x"), given.device.index
    for config, _ in close_configs(problem, arrays.target_at(ordinal).machine()):
        for ready in (False, True, True):
            out = torch.full((case.rows, case.columns), float("nan"), dtype=kind, device="cuda")
            target = arrays.view(out, "out")
            call = dequantized._DequantizedCall(problem, packed, first, target, (), (first, target), ordinal)
            call.bound(config._replace(DEPENDENT=ready))()
            close(out.float().cpu().numpy(), x, exact, case)
    close(ops.dequantized_matmul(given, packed).float().cpu().numpy(), x, exact, case)


@pytest.mark.parametrize("scheme", ["int4-weights", "int8-weights"])
def test_a_network(scheme: str, rng: np.random.Generator) -> None:
    """Weights alone in few bits, with bias, activations and a residual, over a run-time number of rows."""
    torch.manual_seed(4)

    class Network(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = torch.nn.Linear(512, 1280), torch.nn.Linear(1280, 512)
            self.last = torch.nn.Linear(512, 200)

        def forward(self, x):
            x = x + self.down(torch.nn.functional.silu(self.up(x)))
            return self.last(x)

    module = Network().bfloat16().eval()
    given = (torch.randn(3, 512).bfloat16(),)
    rows = {"x": {0: torch.export.Dim("rows", min=1, max=300)}}
    found = tilewright.quantize(module, scheme=scheme, target="cuda", example_inputs=given, dynamic_shapes=rows)
    names = [step.evidence.get("chosen", "") for step in found.engine.plan.steps]
    assert sum("quantized weights" in name for name in names) == 3, names
    wide = module.float()
    for count in (1, 9, 40, 64, 257):
        x = torch.from_numpy(rng.standard_normal((count, 512)).astype(np.float32)).bfloat16()
        exact = wide(x.float()).detach().numpy()
        result = found.engine(x.cuda()).float().cpu().numpy()
        error = np.linalg.norm(result - exact) / np.linalg.norm(exact)
        assert error < (0.12 if scheme == "int4-weights" else 0.02), (count, error)
