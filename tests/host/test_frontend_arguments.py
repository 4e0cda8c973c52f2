"""Launch arguments that are no arrays, or have no memory: each is refused with a reason, in every mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import tilewright
import tilewright.language as tl
from tests.host.odd_tensors import WITHOUT_MEMORY
from tilewright.errors import LaunchError, TilewrightError
from tilewright.settings import settings

MODES = [False, True, "eager"]


@tilewright.jit
def copy(x, out, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, mask=i < n), mask=i < n)


class Liar:
    """Something with an address and a dtype."""

    def __init__(self, address: Any, dtype: Any = np.float32) -> None:
        self.address, self.dtype = address, dtype

    def data_ptr(self) -> Any:
        if isinstance(self.address, type):
            raise self.address("no")
        return self.address


class Failing:
    @property
    def __array_interface__(self) -> Any:
        raise ZeroDivisionError("no")


def interface(**facts: Any) -> Any:
    described = {"shape": (4,), "typestr": "<f4", "data": (0, False), "version": 3, **facts}
    return type("Described", (), {"__array_interface__": described})()


ARGUMENTS: dict[str, Callable[[], Any]] = {
    **{
        name: make
        for name, make in WITHOUT_MEMORY.items()
        # Kernels get addresses alone: how much memory there is, and what it holds, is the caller's business.
        if name not in ("shrunk", "shrunk view", "nested", "none")
    },
    "masked": lambda: np.ma.masked_array(np.ones(4, np.float32), [True, False, False, False]),
    "object dtype": lambda: np.array([None]),
    "structured": lambda: np.zeros(4, [("a", "<f4")]),
    "swapped": lambda: np.zeros(4, ">f4"),
    "text": lambda: np.array(["a"]),
    "complex numbers": lambda: np.zeros(4, np.complex64),
    "complex number": lambda: np.complex64(1),
    "NumPy text": lambda: np.str_("a"),
    "no address": lambda: Liar(None),
    "text for an address": lambda: Liar("x"),
    "a fraction for an address": lambda: Liar(1.5),
    "raising address": lambda: Liar(OSError),
    "no dtype": lambda: Liar(64, None),
    "failing property": Failing,
    "interface of the wrong kind": lambda: interface(typestr="nonsense"),
    "interface without data": lambda: interface(data=None),
    "interface of nothing": lambda: interface(shape=None),
    "list": lambda: [1, 2],
    "dictionary": lambda: {"a": 1},
    "set": lambda: {1},
    "iterator": lambda: iter(()),
    "text argument": lambda: "x",
    "bytes": lambda: b"x",
    "complex": lambda: 1j,
    "large": lambda: 2**64,
    "object": object,
    "type": lambda: int,
}


@pytest.mark.parametrize("interpret", MODES)
@pytest.mark.parametrize("name", ARGUMENTS)
@pytest.mark.filterwarnings("ignore")
def test_odd_arguments(name: str, interpret: Any) -> None:
    out = np.full(4, 7, np.float32)
    with settings.scope(interpret=interpret):
        for _ in range(3):  # the first launch, the second, those of the generated function
            value = ARGUMENTS[name]()
            with pytest.raises(LaunchError, match="kernel 'copy', argument 'x': "):
                copy[(1,)](value, out, 4, BLOCK=4)
            with pytest.raises(TilewrightError):
                copy[(1,)]((value,), out, 4, BLOCK=4)
            with pytest.raises(TilewrightError):
                copy[(1,)](out, value, 4, BLOCK=4)
            with settings.scope(interpret=False):
                copy[(1,)](out, out, 4, BLOCK=4)
    assert out.tolist() == [7] * 4


@pytest.mark.parametrize(
    "grid", [None, "1", 1.5, (1.5,), (), (1, 1, 1, 1), (-1,), (None,), [], {}, object(), (2**31,), (True,)]
)
def test_odd_grids(grid: Any) -> None:
    out = np.full(4, 7, np.float32)
    for given in (grid, lambda meta: grid):
        with pytest.raises(LaunchError, match="grid"):
            copy[given](np.zeros(4, np.float32), out, 4, BLOCK=4)
    assert out.tolist() == [7] * 4


def test_arrays_are_not_written_out_in_messages() -> None:
    x, out = torch.arange(10000.0), np.zeros(4, np.float32)
    for call in (
        lambda: copy[x](out, out, 4, BLOCK=4),
        lambda: copy[(x,)](out, out, 4, BLOCK=4),
        lambda: copy[(1,)](out, out, 4, BLOCK=x),
        lambda: copy[(1,)](out, out, 4, BLOCK=(x, x)),
        lambda: copy[(1,)](out, out, 4, BLOCK=x.numpy()),
        lambda: copy[(1,)](out, out, 4, BLOCK=np.float32(0.5)),
    ):
        with pytest.raises(TilewrightError) as caught:
            call()
        assert len(str(caught.value)) < 1200 and "0000e" not in str(caught.value), str(caught.value)
