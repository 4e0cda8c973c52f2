"""Products of batches of matrices as whole models: both operands come with the call, in any order in memory."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from benchmarks.models.timed import Model


class Products(nn.Module):
    """gelu(a b) batch by batch, of `a` as it comes or transposed."""

    def __init__(self, transposed: bool) -> None:
        super().__init__()
        self.transposed = transposed

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return nn.functional.gelu((a.mT if self.transposed else a) @ b)


def _products(batches: int, rows: int, columns: int, depth: int, transposed: bool = False) -> Model:
    left = (batches, depth, rows) if transposed else (batches, rows, depth)
    a, b = (torch.randn(shape, device="cuda").bfloat16() for shape in (left, (batches, depth, columns)))
    return Model(Products(transposed).eval(), (a, b), torch.bfloat16)


CASES: dict[str, Callable[[], Model]] = {
    "products bf16 64 of 1024x1024x1024": lambda: _products(64, 1024, 1024, 1024),
    "products bf16 256 of 512x512x64": lambda: _products(256, 512, 512, 64),
    "products bf16 64 of 1024x1024x1024, left transposed": lambda: _products(64, 1024, 1024, 1024, True),
}
