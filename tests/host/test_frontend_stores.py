"""What kernels store to: PyTorch's autograd is told of it, and read-only arrays are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import tilewright
import tilewright.language as tl
from tilewright import ops
from tilewright.errors import LaunchError
from tilewright.launch.wrappers import reinterpret
from tilewright.settings import settings

MODES = [False, True, "check", "eager"]


class Pair(NamedTuple):
    source: Any
    target: Any


@tilewright.jit
def double(x, out, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, mask=i < n) * 2, mask=i < n)


@tilewright.jit
def double_pair(pair, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(pair.target + i, tl.load(pair.source + i, mask=i < n) * 2, mask=i < n)


@tilewright.jit
def double_tile(tiles, out_tiles, BLOCK: tl.constexpr):
    out_tiles.store([0], tiles.load([0]) * 2)


@tilewright.jit
def add_up(x, total, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.atomic_add(total, tl.sum(tl.load(x + i, mask=i < n, other=0.0), 0))


@tilewright.jit
def through_a_number(x, out, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    address = out.to(tl.int64, bitcast=True) + 0
    tl.store(address.to(tl.pointer_type(tl.float32), bitcast=True) + i, tl.load(x + i, mask=i < n) * 2, mask=i < n)


@tilewright.jit
def choose(x, first, second, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    target = first
    if n > 4:
        target = second
    tl.store(target + i, tl.load(x + i, mask=i < n) * 2, mask=i < n)


def _plain(x: Any, out: Any) -> None:
    double[(1,)](x, out, 8, BLOCK=8)


def _grouped(x: Any, out: Any) -> None:
    double_pair[(1,)](Pair(x, out), 8, BLOCK=8)


def _described(x: Any, out: Any) -> None:
    tiles = [tilewright.TensorDescriptor.from_tensor(value, [8]) for value in (x, out)]
    double_tile[(1,)](*tiles, BLOCK=8)


def _atomic(x: Any, out: Any) -> None:
    add_up[(1,)](x, out, 8, BLOCK=8)


def _by_number(x: Any, out: Any) -> None:
    through_a_number[(1,)](x, out, 8, BLOCK=8)


def _reinterpreted(x: Any, out: Any) -> None:
    double[(1,)](reinterpret(x, torch.float32), reinterpret(out.view(torch.int32), tl.float32), 8, BLOCK=8)


LAUNCHES = [_plain, _grouped, _described, _atomic, _by_number, _reinterpreted]


@pytest.mark.parametrize("interpret", MODES)
@pytest.mark.parametrize("launch", LAUNCHES)
def test_versions_rise_of_what_is_stored_to_alone(launch: Callable[..., None], interpret: bool | str) -> None:
    x, out = torch.ones(8), torch.zeros(8)
    with settings.scope(interpret=interpret):
        for number in range(1, 5):
            launch(x, out)
            assert (x._version, out._version) == (0, number)


@pytest.mark.parametrize("interpret", MODES)
def test_backward_knows_that_a_saved_tensor_was_changed(interpret: bool | str) -> None:
    with settings.scope(interpret=interpret):
        for _ in range(3):
            weight = torch.ones(8, requires_grad=True)
            saved = torch.full((8,), 3.0)
            y = (weight * saved).sum()
            double[(1,)](saved, saved, 8, BLOCK=8)
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                y.backward()


@pytest.mark.parametrize("interpret", MODES)
def test_tensors_that_require_gradients_are_stored_to(interpret: bool | str) -> None:
    """Triton launches so: backward kernels of libraries overwrite what they saved."""
    with settings.scope(interpret=interpret):
        for make in (
            lambda: torch.zeros(8, requires_grad=True),
            lambda: torch.nn.Parameter(torch.zeros(8)),
            lambda: torch.zeros(8, requires_grad=True) * 1,
            lambda: torch.zeros(16, requires_grad=True)[8:],
        ):
            kernel = tilewright.JITFunction(double.function)  # without launches, so that the first ones are seen
            for _ in range(3):
                out = make()
                before = out._version
                kernel[(1,)](torch.ones(8), out, 8, BLOCK=8)
                assert out.tolist() == [2.0] * 8 and out._version == before + 1


def test_views_share_their_versions() -> None:
    base = torch.zeros(32)
    _plain(torch.ones(8), base[8:16])
    assert base._version == 1 and base[8:16].tolist() == [2.0] * 8


def test_inference_tensors_have_no_versions() -> None:
    with torch.inference_mode():
        out = torch.zeros(8)
    for _ in range(3):
        _plain(torch.ones(8), out)
    assert out.tolist() == [2.0] * 8


def test_a_store_to_one_of_several() -> None:
    x, first, second = torch.ones(8), torch.zeros(8), torch.zeros(8)
    choose[(1,)](x, first, second, 8, BLOCK=8)
    assert (x._version, first._version, second._version) == (0, 1, 1)  # which one, only the run tells


def test_compiled_kernels_tell_too() -> None:
    x, out = torch.ones(8), torch.zeros(8)
    compiled = double[(1,)](x, out, 8, BLOCK=8)
    assert compiled is not None
    compiled[(1, 1, 1)](x, out, 8, 8)
    assert (x._version, out._version) == (0, 2)
    frozen = np.zeros(8, np.float32)
    frozen.flags.writeable = False
    with pytest.raises(LaunchError, match="writes to argument 'out', a read-only array"):
        compiled[(1, 1, 1)](x, frozen, 8, 8)


@pytest.mark.parametrize("interpret", [False, True])
def test_read_only_arrays_of_any_kind(interpret: bool) -> None:
    frozen = np.zeros(8, np.float32)
    frozen.flags.writeable = False
    for launch in (_plain, _grouped, _described, _atomic):
        with settings.scope(interpret=interpret):
            for _ in range(3):
                with pytest.raises(LaunchError, match="a read-only array; pass a writable copy"):
                    launch(np.ones(8, np.float32), frozen)
    assert not frozen.any()


def test_operations_tell_of_their_results() -> None:
    a, b, out = torch.ones(16, 16), torch.ones(16, 16), torch.zeros(16, 16)
    with settings.scope(interpret=True):
        ops.matmul(a, b, out=out)
    assert (a._version, b._version) == (0, 0) and out._version > 0
