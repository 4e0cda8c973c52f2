"""Notices that parameters, which an engine holds as constants, were changed.

PyTorch's version of a tensor is not enough: writes through `.data`, a NumPy view or in inference mode do not raise it.
So their bytes are looked at too, as far as that takes microseconds.  Those on a GPU are not: it would wait for the GPU.
"""

from __future__ import annotations

import math
import zlib
from array import array
from bisect import bisect_right
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

SAMPLES = 32  # words of each parameter that are compared at each call
WHOLE = 1 << 15  # bytes of the smallest parameters of an engine that are compared at each call
STRETCH = 1 << 12  # bytes of the others that are compared at each call


class Watched:
    """A parameter, and what tells at each call that it was changed: its address, version, and a sample of its bytes.

    The sample (`SAMPLES` words spread over the storage) sees what writes to most of the parameter, as a step of an
    optimiser or a loaded checkpoint does.
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor
        self.address = tensor.data_ptr()
        data = _bytes_of(tensor)
        words = data[: data.size // 4 * 4].reshape(-1, 4)
        self.sample = words[:: max(1, len(words) // SAMPLES)] if len(words) else data

    def state(self) -> tuple[int, int, bytes]:
        version = 0 if self.tensor.is_inference() else self.tensor._version
        return self.address, version, self.sample.tobytes()


class Contents:
    """The bytes of an engine's constants when it was built: finds writes to a part of a parameter.

    The smallest parameters, up to `WHOLE` bytes, are compared at each call.  Of the others every call compares one
    stretch, and the next call one far from it, so that a write to a tenth of them is found soon.
    """

    def __init__(self, constants: Mapping[int, torch.Tensor]) -> None:
        found = {tensor.untyped_storage().data_ptr(): (at, _bytes_of(tensor)) for at, tensor in constants.items()}
        filled = [entry for entry in found.values() if entry[1].size]
        self.whole: list[tuple[int, Any, bytearray]] = []
        self.large: list[tuple[int, Any]] = []
        self.begins = [0]  # of each large parameter's stretches, among all, and their number
        self.checksums = array("I")
        total = 0
        for position, data in sorted(filled, key=lambda entry: entry[1].size):
            total += data.size
            if total <= WHOLE:
                self.whole.append((position, data, bytearray(data)))
            else:
                self.large.append((position, data))
                self.checksums.extend(zlib.crc32(data[at : at + STRETCH]) for at in range(0, data.size, STRETCH))
                self.begins.append(len(self.checksums))
        self.step = _step(len(self.checksums))
        self.next = 0

    def changed(self) -> int | None:
        """The position of a parameter that is found to have changed."""
        for position, data, before in self.whole:
            if before != data:  # compares memory, without a copy
                return position
        if not self.checksums:
            return None
        stretch, self.next = self.next, (self.next + self.step) % len(self.checksums)
        number = bisect_right(self.begins, stretch) - 1
        position, data = self.large[number]
        at = (stretch - self.begins[number]) * STRETCH
        return None if zlib.crc32(data[at : at + STRETCH]) == self.checksums[stretch] else position


def _step(count: int) -> int:
    """A step through so many places around a circle that reaches all, and parts them evenly at any time."""
    step = max(1, round(count * 0.618))
    while math.gcd(step, count) > 1:
        step += 1
    return step


def _bytes_of(tensor: torch.Tensor) -> Any:
    """The bytes of a tensor's storage; none on a GPU."""
    if tensor.device.type != "cpu":
        return np.empty(0, np.uint8)
    return torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage()).numpy()
