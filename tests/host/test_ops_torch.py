"""The custom operators on fake tensors, under torch.compile's front end and torch.export; no GPU is needed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import tilewright.ops.torch_library  # noqa: F401  (registers the operators)
from tilewright.errors import LaunchError
from tilewright.settings import settings

op = torch.ops.tilewright


def test_shapes_and_types_of_fake_tensors() -> None:
    with FakeTensorMode():
        x = torch.empty(2, 30, 64, device="cuda", dtype=torch.bfloat16)
        weight = torch.empty(64, 48, device="cuda", dtype=torch.bfloat16)
        y = op.matmul(x, weight, None, "gelu")
        assert y.shape == (2, 30, 48) and y.dtype == torch.bfloat16 and y.device.type == "cuda"
        assert op.matmul(x, weight, out_dtype="float32").dtype == torch.float32
        assert op.gated_matmul(x, weight).shape == (2, 30, 24)
        integers = torch.empty(8, 64, device="cuda", dtype=torch.int8)
        unsigned = torch.empty(8, 64, device="cuda", dtype=torch.uint8)
        assert op.matmul(integers, integers.t()).dtype == op.matmul(unsigned, integers.t()).dtype == torch.int32
        image = torch.empty(1, 8, 4, 16, device="cuda", dtype=torch.uint8)
        taps = torch.empty(8, 16, 1, 1, device="cuda", dtype=torch.int8)
        assert op.conv2d(image, taps).dtype == torch.int32
        assert op.conv2d(image, taps, activation="relu").dtype == torch.float32
        small = torch.empty(8, 64, device="cuda", dtype=torch.float8_e4m3fn)
        assert op.matmul(small, small.t()).dtype == torch.bfloat16
        q = torch.empty(2, 8, 100, 64, device="cuda", dtype=torch.float16)
        out, sums = op.attention_lse(q, q, q, True)
        assert out.shape == q.shape and sums.shape == (2, 8, 100) and sums.dtype == torch.float32
        assert op.attention(*(torch.empty_like(q).transpose(1, 2),) * 3).is_contiguous()
        assert op.softmax(x).shape == op.layer_norm(x).shape == op.rms_norm(x).shape == x.shape
        assert [t.shape for t in op.add_rms_norm(x, x)] == [x.shape, x.shape]
        assert [t.shape for t in op.add_layer_norm(x, x)] == [x.shape, x.shape]
        assert [tuple(op.reduce(x, "max", axis).shape) for axis in (-1, 0, 1)] == [(2, 30), (30, 64), (2, 64)]
        with pytest.raises(RuntimeError, match="axis 3 of a tensor with 3 axes"):
            op.reduce(x, "sum", 3)
        with pytest.raises(RuntimeError, match="do not fit"):
            op.matmul(x, torch.empty(7, 48, device="cuda"))


F32, BF16, I8 = torch.float32, torch.bfloat16, torch.int8


def made(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.ones(shape, dtype=dtype)


REFUSED: list[tuple[str, Callable[[], tuple[torch.Tensor, ...]], dict[str, object]]] = [
    ("matmul", lambda: (made(8, 32), made(3, 32, 16)), {}),
    ("matmul", lambda: (made(1, 8, 32), made(3, 32, 16)), {}),
    ("matmul", lambda: (made(2, 3, 8, 32), made(3, 32, 16)), {}),
    ("matmul", lambda: (made(32), made(32, 16)), {}),
    ("matmul", lambda: (made(8, 32), made(32)), {}),
    ("matmul", lambda: (made(8, 32), made(32, 16, dtype=F32)), {}),
    ("matmul", lambda: (made(8, 32, dtype=torch.int32), made(32, 16, dtype=torch.int32)), {}),
    ("matmul", lambda: (made(8, 32), made(32, 16), made(15)), {}),
    ("matmul", lambda: (made(8, 32), made(32, 16)), {"activation": "swish"}),
    ("matmul", lambda: (made(8, 32), made(32, 16)), {"out_dtype": "float64"}),
    ("matmul", lambda: (made(8, 32, dtype=I8), made(32, 16)), {}),
    ("conv2d", lambda: (made(1, 5, 5, 16, dtype=I8), made(8, 16, 1, 1, dtype=torch.uint8)), {}),
    ("matmul", lambda: (made(8, 32), made(32, 16)), {"residual": made(1, 16)}),
    ("matmul", lambda: (made(8, 32), made(32, 16)), {"scale_a": made(1)}),
    ("matmul", lambda: (made(8, 32), made(32, 16), made(16).to("meta")), {}),
    ("gated_matmul", lambda: (made(8, 32), made(32, 24)), {}),
    ("gated_matmul", lambda: (made(8, 32), made(32, 32)), {"gate": "step"}),
    ("attention", lambda: (made(1, 2, 8, 64), made(1, 2, 8, 64), made(1, 2, 8, 32)), {}),
    ("attention", lambda: (made(1, 3, 8, 64), made(1, 2, 8, 64), made(1, 2, 8, 64)), {}),
    ("attention", lambda: (made(2, 8, 64),) * 3, {}),
    ("attention", lambda: (made(1, 2, 8, 64, dtype=F32),) * 3, {}),
    ("attention", lambda: (made(1, 2, 8, 64), made(1, 2, 0, 64), made(1, 2, 0, 64)), {}),
    ("attention", lambda: (made(1, 2, 8, 64),) * 3, {"window": 4}),
    ("attention_lse", lambda: (made(1, 2, 8, 64),) * 3, {"window": -4, "causal": True}),
    ("attention", lambda: (made(1, 2, 8, 64),) * 3, {"lengths": torch.ones(1, dtype=torch.int32)}),
    ("softmax", lambda: (made(8, 4, dtype=torch.float64),), {}),
    ("softmax", lambda: (made(),), {}),
    ("layer_norm", lambda: (made(8, 4), made(5)), {}),
    ("rms_norm", lambda: (made(8, 4), made(1, 4)), {}),
    ("add_rms_norm", lambda: (made(8, 4), made(1, 4)), {}),
    ("add_layer_norm", lambda: (made(8, 4), made(8, 4), made(4), made(3)), {}),
    ("reduce", lambda: (made(8, 4, dtype=I8),), {}),
    ("reduce", lambda: (made(8, 4),), {"kind": "prod"}),
    ("reduce", lambda: (made(8, 0),), {}),
]


@pytest.mark.parametrize("case", range(len(REFUSED)))
def test_fake_tensors_are_refused_as_real_ones_are(case: int) -> None:
    name, make, options = REFUSED[case]
    operator, tensors = getattr(op, name), make()
    with settings.scope(interpret=True), pytest.raises((LaunchError, RuntimeError)):
        operator(*tensors, **options)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode, pytest.raises((LaunchError, RuntimeError)):
        operator(*(mode.from_tensor(tensor) for tensor in tensors), **options)


def test_operators_take_tensors_of_any_strides(rng: np.random.Generator) -> None:
    draw = torch.Generator().manual_seed(int(rng.integers(1 << 31)))
    wide = torch.randn(40, 3, generator=draw)
    image = torch.randn(2, 3, 4, 5, generator=draw)
    scattered, one = torch.randn(80, generator=draw)[::2], torch.randn(5, 3, 40, generator=draw)[:, :1]
    left, right = torch.randn(8, 32, generator=draw), torch.randn(32, 40, generator=draw)
    residual = torch.randn(40, 8, generator=draw).t()
    with settings.scope(interpret=True):
        for x in (wide.t(), image.transpose(1, 2), scattered, one, wide[:, 1:]):
            torch.testing.assert_close(op.softmax(x), torch.softmax(x, -1))
            assert op.softmax(x).is_contiguous()
        weighted = torch.nn.functional.layer_norm(wide.t(), (40,), scattered, scattered)
        torch.testing.assert_close(op.layer_norm(wide.t(), scattered, scattered), weighted)
        both, total = op.add_rms_norm(wide.t(), wide.t().contiguous(), scattered)
        torch.testing.assert_close(total, 2 * wide.t())
        torch.testing.assert_close(both, torch.nn.functional.rms_norm(2 * wide.t(), (40,), scattered, 1e-6))
        torch.testing.assert_close(op.reduce(wide.t(), "max"), wide.t().amax(-1))
        product = op.matmul(left, right, scattered, None, residual)
        torch.testing.assert_close(product, left @ right + scattered + residual, atol=2e-2, rtol=2e-2)
        batches = torch.randn(3, 2, 8, 16, generator=draw).transpose(0, 1)
        weights = torch.randn(3, 2, 16, 16, generator=draw).transpose(0, 1)
        torch.testing.assert_close(op.matmul(batches, weights), batches @ weights, atol=2e-2, rtol=2e-2)
        heads = torch.randn(1, 2, 32, 20, generator=draw).bfloat16().mT
        attended = torch.nn.functional.scaled_dot_product_attention(heads, heads, heads)
        torch.testing.assert_close(op.attention(heads, heads, heads), attended, atol=2e-2, rtol=2e-2)
        column = op.matmul(left, right[:, :1], scattered[:1], None, residual[:, 3:4])
        torch.testing.assert_close(column, product[:, :1] - residual[:, :1] + residual[:, 3:4], atol=2e-2, rtol=2e-2)


def test_scales_of_rows_may_be_columns_where_depth_is_one_block(rng: np.random.Generator) -> None:
    draw = torch.Generator().manual_seed(int(rng.integers(1 << 31)))
    left, right = torch.randn(8, 32, generator=draw), torch.randn(32, 40, generator=draw)
    rows, columns = torch.rand(8, 1, generator=draw) + 0.5, torch.rand(1, 40, generator=draw) + 0.5
    one = torch.full((1, 1), 2.0)
    with settings.scope(interpret=True):
        scaled = op.matmul(left, right, scale_a=rows, scale_b=columns)
        torch.testing.assert_close(scaled, rows * (left @ right) * columns, atol=5e-2, rtol=2e-2)
        scaled = op.matmul(left, right, scale_a=one, scale_b=one)
        torch.testing.assert_close(scaled, 4 * (left @ right), atol=0.1, rtol=2e-2)


def test_tensors_on_the_cpu() -> None:
    x, weight = torch.randn(8, 16), torch.randn(16, 8)
    for call in (lambda: op.matmul(x, weight), lambda: op.softmax(x), lambda: op.rms_norm(x)):
        with settings.scope(interpret=False), pytest.raises(LaunchError, match="on a GPU: move them there, or set"):
            call()
    with settings.scope(interpret=True):
        torch.testing.assert_close(op.softmax(x), torch.softmax(x, -1))


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(48, 64), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return op.rms_norm(op.matmul(x, self.weight.t(), None, "silu")) * 2


def test_export_keeps_the_operators() -> None:
    program = torch.export.export(
        Block(), (torch.randn(8, 64),), dynamic_shapes={"x": {0: torch.export.Dim("rows", min=2)}}
    )
    called = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    assert "tilewright.matmul.default" in called and "tilewright.rms_norm.default" in called


def test_there_are_no_gradients_and_it_says_so() -> None:
    x = torch.empty(8, 64, device="meta", requires_grad=True)
    with pytest.raises(NotImplementedError, match="tilewright::softmax has no gradient"):
        op.softmax(x).sum().backward()
