"""The custom operators on fake tensors, under torch.compile's front end and torch.export; no GPU is needed."""

from __future__ import annotations

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
        assert op.matmul(integers, integers.t()).dtype == torch.int32
        small = torch.empty(8, 64, device="cuda", dtype=torch.float8_e4m3fn)
        assert op.matmul(small, small.t()).dtype == torch.bfloat16
        q = torch.empty(2, 8, 100, 64, device="cuda", dtype=torch.float16)
        out, sums = op.attention_lse(q, q, q, True)
        assert out.shape == q.shape and sums.shape == (2, 8, 100) and sums.dtype == torch.float32
        assert op.attention(q.transpose(1, 2), q, q).is_contiguous()
        assert op.softmax(x).shape == op.layer_norm(x).shape == op.rms_norm(x).shape == x.shape
        assert [t.shape for t in op.add_rms_norm(x, x)] == [x.shape, x.shape]
        assert [t.shape for t in op.add_layer_norm(x, x)] == [x.shape, x.shape]
        assert [tuple(op.reduce(x, "max", axis).shape) for axis in (-1, 0, 1)] == [(2, 30), (30, 64), (2, 64)]
        with pytest.raises(RuntimeError, match="axis 3 of a tensor with 3 axes"):
            op.reduce(x, "sum", 3)
        with pytest.raises(RuntimeError, match="do not fit"):
            op.matmul(x, torch.empty(7, 48, device="cuda"))


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
