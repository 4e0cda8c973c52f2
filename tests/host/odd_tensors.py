"""Tensors of PyTorch and others that have no memory, or not that of their elements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses import FakeTensorMode

from tools.fuzz.odd_values import Wrapper

ROWS, COLUMNS = 2, 8


class Raising:
    """DLPack whose `what` raises."""

    def __init__(self, error: type[Exception]) -> None:
        self.error = error

    def __dlpack__(self, **options: Any) -> Any:
        raise self.error("no")

    def __dlpack_device__(self) -> Any:
        raise self.error("no")


def resized(size: int, turned: bool = False) -> torch.Tensor:
    tensor = torch.ones(COLUMNS, ROWS).t() if turned else torch.ones(ROWS, COLUMNS)
    tensor.untyped_storage().resize_(size)
    return tensor


def fake() -> torch.Tensor:
    with FakeTensorMode():
        return torch.ones(ROWS, COLUMNS)


class Refusing(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        raise ValueError("not here")


WITHOUT_MEMORY: dict[str, Callable[[], Any]] = {
    "fake": fake,
    "freed": lambda: resized(0),
    "shrunk": lambda: resized(16),
    "shrunk view": lambda: resized(16, turned=True),
    "functional": lambda: torch._to_functional_tensor(torch.ones(ROWS, COLUMNS)),
    "zero": lambda: torch._efficientzerotensor((ROWS, COLUMNS)),
    "wrapped": lambda: Wrapper(torch.ones(ROWS, COLUMNS)),
    "refusing": lambda: torch.ones(ROWS, COLUMNS).as_subclass(Refusing),
    "uninitialized": torch.nn.UninitializedParameter,
    "sparse": lambda: torch.ones(ROWS, COLUMNS).to_sparse(),
    "compressed": lambda: torch.ones(ROWS, COLUMNS).to_sparse_csr(),
    "mkldnn": lambda: torch.ones(ROWS, COLUMNS).to_mkldnn(),
    "quantized": lambda: torch.quantize_per_tensor(torch.ones(ROWS, COLUMNS), 0.1, 0, torch.quint8),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(COLUMNS), torch.ones(3)]),
    "jagged": lambda: torch.nested.nested_tensor([torch.ones(COLUMNS), torch.ones(3)], layout=torch.jagged),
    "complex": lambda: torch.ones(ROWS, COLUMNS, dtype=torch.complex64).conj(),
    "meta": lambda: torch.ones(ROWS, COLUMNS, device="meta"),
    "null": lambda: type(
        "Null", (), {"__array_interface__": {"shape": (2, 8), "typestr": "<f4", "data": (0, False), "version": 3}}
    )(),
    "raising": lambda: Raising(KeyError),
    "raising nothing": lambda: Raising(AttributeError),
    "none": lambda: None,
}
