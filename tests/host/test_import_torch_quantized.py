"""Operations that `convert_pt2e` writes, and products of 8-bit integers, against PyTorch's own."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import tilewright  # noqa: E402

importlib.import_module("torch.ao.quantization.fx._decomposed")  # defines the operations
OPS: Any = torch.ops.quantized_decomposed
BYTE, UNSIGNED = (-128, 127, torch.int8), (0, 255, torch.uint8)
SCALES, ZEROS = torch.tensor([0.02, 0.5, 0.013]), torch.tensor([3, -2, 0])
SCALE, ZERO = torch.tensor([0.037], dtype=torch.float64), torch.tensor([7])


def tokens(x: Any) -> Any:
    scale, zero = OPS.choose_qparams_per_token_asymmetric(x, torch.int8)
    whole = OPS.quantize_per_token(x, scale, zero, *BYTE)
    return whole, OPS.dequantize_per_token(whole, scale, zero, *BYTE, torch.float32)


def rows(x: Any) -> Any:
    scale, zero = OPS.choose_qparams_per_token(x, torch.int8)
    return scale.float(), zero.float()


def groups(x: Any) -> Any:
    scale, zero = torch.tensor([[0.02, 0.1]] * 4), torch.tensor([[1, -3]] * 4)
    whole = OPS.quantize_per_channel_group(x, scale, zero, *BYTE, 3)
    return whole, OPS.dequantize_per_channel_group(whole, scale, zero, *BYTE, 3, torch.float32)


def limits(x: Any) -> Any:
    low, high = torch.tensor(-5), torch.tensor(9)
    whole = OPS.quantize_per_tensor.tensor2(x, SCALE, ZERO, low, high, torch.int8)
    return whole, OPS.dequantize_per_tensor.tensor2(whole, SCALE, ZERO, low, high, torch.int8)


def channels(x: Any) -> Any:
    whole = OPS.quantize_per_channel(x.t()[:3], SCALES, ZEROS, 0, *BYTE)
    return whole, OPS.dequantize_per_channel(whole, SCALES, ZEROS, 0, *BYTE)


CASES: dict[str, Callable[[Any], Any]] = {
    "number": lambda x: OPS.quantize_per_tensor(x, 0.037, 128, *UNSIGNED),
    "number_of_half": lambda x: OPS.quantize_per_tensor(x.half(), 0.037, 128, *UNSIGNED),
    "tensor": lambda x: OPS.quantize_per_tensor.tensor(x, SCALE, ZERO, *BYTE),
    "limits": limits,
    "back": lambda x: OPS.dequantize_per_tensor((x * 50).to(torch.int8), 0.037, -3, *BYTE),
    "back_to_half": lambda x: OPS.dequantize_per_tensor(
        (x * 50).to(torch.int8), 0.037, -3, *BYTE, out_dtype=torch.half
    ),
    "back_by_tensor": lambda x: OPS.dequantize_per_tensor.tensor((x * 50).to(torch.int8), SCALE, ZERO, *BYTE),
    "channels": channels,
    "last_axis": lambda x: OPS.quantize_per_channel(x[:, :3], SCALES, ZEROS, 1, *BYTE),
    "channels_without_zeros": lambda x: OPS.dequantize_per_channel((x[:, 3:] * 9).char(), SCALES, None, 1, *BYTE),
    "fake_channels": lambda x: OPS.fake_quant_per_channel(x[:, 3:], SCALES, ZEROS, 1, -128, 127),
    "chosen": lambda x: OPS.choose_qparams.tensor(x, 0, 255, 1e-6, torch.uint8),
    "chosen_of_positive": lambda x: OPS.choose_qparams.tensor(x.abs() + 1, -128, 127, 1e-6, torch.int8),
    "chosen_symmetric": lambda x: OPS.choose_qparams_symmetric.tensor(x, -127, 127, 1e-6, torch.int8),
    "chosen_of_nothing": lambda x: OPS.choose_qparams.tensor(x * 0, -128, 127, 1e-6, torch.int8),
    "tokens": tokens,
    "rows": rows,
    "groups": groups,
    "no_fuse": lambda x: OPS.convert_element_type.no_fuse(x, torch.float16),
    "integer_product": lambda x: torch._int_mm((x * 50).char(), (x.t() * 50).char().contiguous()),
}


class Applied(torch.nn.Module):
    def __init__(self, function: Callable[[Any], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Any) -> Any:
        return self.function(x)


@pytest.mark.parametrize("name", CASES)
def test_rules(name: str) -> None:
    torch.manual_seed(1)
    module, x = Applied(CASES[name]).eval(), torch.randn(4, 6) * 3
    engine = tilewright.compile(module, (x,), target="cpu", effort=0)
    for given in (x, -x.flip(0) * 0.7):
        found, wanted = engine(given), module(given)
        for mine, theirs in zip(*([item] if torch.is_tensor(item) else item for item in (found, wanted)), strict=True):
            assert mine.dtype == theirs.dtype
            torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=0)


def test_a_quantized_layer_with_a_dynamic_batch() -> None:
    torch.manual_seed(2)
    weight, scales = torch.randint(-127, 128, (5, 6), dtype=torch.int8), torch.rand(5) * 0.01

    def layer(x: Any) -> Any:
        scale, zero = OPS.choose_qparams.tensor(x, 0, 255, 1e-6, torch.uint8)
        near = OPS.dequantize_per_tensor.tensor(
            OPS.quantize_per_tensor.tensor(x, scale, zero, *UNSIGNED), scale, zero, *UNSIGNED
        )
        table = OPS.dequantize_per_channel(weight, scales, torch.zeros(5, dtype=torch.int64), 0, *BYTE)
        return torch.nn.functional.linear(near, table)

    module = Applied(layer).eval()
    axes = {"x": {0: ("batch", 1, 8)}}
    engine = tilewright.compile(module, (torch.randn(3, 6),), target="cpu", effort=0, dynamic_shapes=axes)
    for batch in (1, 3, 8):
        x = torch.randn(batch, 6)
        torch.testing.assert_close(engine(x), module(x))
