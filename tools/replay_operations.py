"""What `tools/replay.py` calls of `tilewright.ops`: on a GPU that is none, which launches what it is given nowhere."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np

import tilewright
from tilewright import ops
from tilewright.dtypes import DType, bfloat16, float8e4nv, float16, float32, int4, int8, int32, uint4, uint8
from tilewright.launch.cuda import CudaKernel
from tilewright.library import packing
from tilewright.library.matmul.hopper.dequantized_config import COLUMNS
from tilewright.ops.dequantized import PackedWeights
from tilewright.runtime.cuda import driver, memory
from tilewright.runtime.cuda.memory import DeviceArray

Launch = tuple[str, str, tuple[int, int, int]]  # a kernel's name and key, and its grid
Call = Callable[[], object]

_ATTRIBUTES = {
    "COMPUTE_CAPABILITY_MAJOR": 9, "COMPUTE_CAPABILITY_MINOR": 0, "MULTIPROCESSOR_COUNT": 132,
    "L2_CACHE_SIZE": 50 << 20, "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": 227 << 10, "COOPERATIVE_LAUNCH": 1,
    "PCI_DOMAIN_ID": 0, "PCI_BUS_ID": 0, "PCI_DEVICE_ID": 0,
}  # fmt: skip


class _Driver:
    """The calls of ``cuda.bindings.driver`` that make arrays on an H200; there is no memory where they are."""

    CUdevice_attribute = SimpleNamespace(**{f"CU_DEVICE_ATTRIBUTE_{name}": name for name in _ATTRIBUTES})

    def __init__(self) -> None:
        self._addresses = itertools.count(1 << 40, 1 << 36)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("CU"):
            return mock.MagicMock()
        return lambda *_: (0, 0)

    def cuDeviceGetCount(self) -> tuple[int, int]:
        return 0, 1

    def cuDeviceGetName(self, *_: Any) -> tuple[int, bytes]:
        return 0, b"NVIDIA H200\0"

    def cuDeviceGetAttribute(self, name: str, _: Any) -> tuple[int, int]:
        return 0, _ATTRIBUTES[name]

    def cuMemAlloc(self, _: int) -> tuple[int, int]:
        return 0, next(self._addresses)


@contextmanager
def launches() -> Iterator[list[Launch]]:
    """All launches of the operations that are called in this context, in order."""
    found: list[Launch] = []

    def start(kernel: CudaKernel, ordinal: int) -> Callable[..., None]:
        return lambda x, y, z, *_: found.append((kernel.name, kernel.binary.key, (x, y, z)))

    cuda = _Driver()
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(driver, "_started", lambda: (os.getpid(), cuda)))
        stack.enter_context(mock.patch.object(memory, "_free", lambda *_: None))  # arrays may outlive this
        stack.enter_context(mock.patch.object(CudaKernel, "start", start))
        yield found


def _array(dtype: DType, *shape: int) -> DeviceArray:
    return DeviceArray(shape, dtype.numpy, 0)


def _weights(dtype: DType, columns: int, depth: int, group: int, zeros: bool) -> PackedWeights:
    """Weights as `ops.pack_weights` makes them, of no numbers."""
    panels = packing.panels_recipe(COLUMNS, True)
    codes, scales = (columns, depth), (columns, depth // group)
    placed = [(packing.fragments_recipe(dtype), codes, dtype), (panels, scales, bfloat16)]
    placed += [(panels, scales, uint8)] if zeros else []
    packed = [DeviceArray(*_packed(recipe, shape, kind), 0) for recipe, shape, kind in placed]
    return PackedWeights(columns, depth, group, dtype, packed[0], packed[1], packed[2] if zeros else None)


def _packed(recipe: Any, shape: Sequence[int], dtype: DType) -> tuple[tuple[int, ...], Any]:
    found = packing.apply(recipe, np.zeros(shape, dtype.numpy))
    return found.shape, found.dtype


def _row_calls() -> Iterator[tuple[str, Call]]:
    """Softmax and norms: rows in registers, several of a CTA, and rows that are read twice."""
    for dtype, (rows, columns) in itertools.product(
        (float32, bfloat16), ((4096, 60), (1, 1024), (5000, 1000), (300, 20000), (8, 100000))
    ):
        x, gain = _array(dtype, rows, columns), _array(dtype, columns)
        label = f"{dtype} {rows}x{columns}"
        for log in (False, True):
            yield f"softmax {label} {log}", lambda x=x, log=log: ops.softmax(x, log=log)
        yield f"layer_norm {label}", lambda x=x, gain=gain: ops.layer_norm(x, gain, gain)
        yield f"rms_norm {label}", lambda x=x: ops.rms_norm(x)
        yield f"rms_norm sum {label}", lambda x=x, gain=gain: ops.rms_norm(x, gain, residual=x, return_sum=True)


def _reduce_calls() -> Iterator[tuple[str, Call]]:
    """Along the last axis and others, in one launch and in two."""
    shapes = ((4096, 1000), (2, 1 << 20), (64, 60), (3, 100000, 7), (2, 512, 4096))
    for dtype, shape in itertools.product((float32, float16), shapes):
        x = _array(dtype, *shape)
        for kind, axis in itertools.product(("sum", "mean", "max"), (len(shape) - 1, len(shape) - 2)):
            label = f"reduce {kind} {dtype} {'x'.join(map(str, shape))} {axis}"
            yield label, lambda x=x, kind=kind, axis=axis: ops.reduce(x, kind, axis=axis)


def _dequantized_calls() -> Iterator[tuple[str, Call]]:
    """Each type of weights, groups of one length and of all, few rows and many."""
    forms = ((int4, 128, False), (uint4, 32, True), (int8, 4096, False), (uint8, 64, True), (float8e4nv, 4096, False))
    for dtype, group, zeros in forms:
        weights = _weights(dtype, 4096, 4096, group, zeros)
        for rows in (1, 60, 256):
            x, bias = _array(bfloat16, rows, 4096), _array(bfloat16, 4096)
            label = f"dequantized_matmul {dtype} by {group} {rows}"
            yield label, lambda x=x, weights=weights: ops.dequantized_matmul(x, weights)
            yield (
                f"{label} silu",
                lambda x=x, weights=weights, bias=bias: ops.dequantized_matmul(
                    x, weights, bias=bias, activation="silu", weights_ready=True
                ),
            )


@tilewright.jit
def _double(x):  # type: ignore[no-untyped-def]
    return x + x


def _other_calls() -> Iterator[tuple[str, Call]]:
    """Operations through small graphs, by groups, and of any function."""
    q, pool = _array(bfloat16, 8, 16, 128), _array(bfloat16, 8, 4, 2048, 128)
    yield "decode_attention", lambda: ops.decode_attention(q, pool, pool)
    tokens, pages = _array(bfloat16, 200, 16, 128), _array(bfloat16, 4096, 4, 128)
    tables, starts, lengths = _array(int32, 8, 64), _array(int32, 9), _array(int32, 8)
    yield (
        "paged_attention",
        lambda: ops.paged_attention(tokens, pages, pages, tables, starts, lengths, page=16),
    )
    image, filters = _array(float16, 4, 56, 56, 64), _array(float16, 128, 64, 3, 3)
    yield "conv2d", lambda: ops.conv2d(image, filters, padding=1)
    a, b, ends = _array(bfloat16, 1000, 512), _array(bfloat16, 8, 512, 256), _array(int32, 8)
    yield "grouped_matmul", lambda: ops.grouped_matmul(a, b, ends, activation="silu")
    few, matrix = _array(bfloat16, 4, 512), _array(bfloat16, 512, 1024)
    yield "rms_norm_matmul few", lambda: ops.rms_norm_matmul(few, matrix)
    yield "rms_norm_matmul", lambda: ops.rms_norm_matmul(a, matrix)
    for dtype in (float32, float16):
        left, right = _array(dtype, 100, 250), _array(dtype, 250, 90)  # rows that tensor copies do not move
        yield f"matmul {dtype}", lambda left=left, right=right: ops.matmul(left, right)
    x = _array(float32, 1000, 50)
    yield "elementwise", lambda: ops.elementwise(_double, x)


CALLS: dict[str, Callable[[], Iterator[tuple[str, Call]]]] = {
    "rows": _row_calls, "reduce": _reduce_calls, "dequantized": _dequantized_calls, "other": _other_calls,
}  # fmt: skip
