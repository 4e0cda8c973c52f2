"""Linear interpolation as one operation where AOT traces: what PyTorch takes it apart into there differs from what it
runs, where a scale leaves the size of an image as it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
from torch._C import DispatchKey
from torch._decomp.decompositions import upsample_compute_output_size

_KEYS = (DispatchKey.CompositeImplicitAutograd, DispatchKey.Autograd)  # of the functions that take it apart


def _of_sizes(operation: Any) -> Callable[..., Any]:
    """The overload that takes scales in a list by the one that takes sizes."""

    def upsample(x: Any, size: Any, align_corners: bool, scales: Any) -> Any:
        sizes = upsample_compute_output_size(x.shape, size, scales)
        return operation(x, sizes, align_corners, *(scales or [None] * len(sizes)))

    return upsample


@contextmanager
def whole_upsampling() -> Iterator[None]:
    """For the time of a trace."""
    aten = torch.ops.aten
    packets = aten.upsample_linear1d, aten.upsample_bilinear2d, aten.upsample_trilinear3d
    overloads = [overload for packet in packets for overload in (packet.vec, packet.default)]
    with ExitStack() as stack:
        for packet in packets:
            stack.enter_context(mock.patch.dict(packet.vec.py_kernels, dict.fromkeys(_KEYS, _of_sizes(packet.default))))
            stack.enter_context(mock.patch.dict(packet.default.py_kernels))
            for key in _KEYS:
                packet.default.py_kernels.pop(key, None)
        for overload in overloads:  # which function an operation has is looked up once
            overload._dispatch_cache.clear()
        try:
            yield
        finally:
            for overload in overloads:
                overload._dispatch_cache.clear()
