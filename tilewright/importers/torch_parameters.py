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

WHOLE = 1 << 15  # bytes of the smallest parameters of an engine that are compared at each call
SAMPLES = 32  # words of each of the others that are,
STRETCH = 1 << 12  # and bytes of all of them


class Contents:
    """The bytes of an engine's constants when it was built: finds writes that PyTorch did not count.

    The smallest parameters, up to `WHOLE` bytes, are compared at each call.  Of each of the others every call compares
    a sample (`SAMPLES` words spread over it), which sees what writes to most of a parameter, as a step of an optimiser
    or a loaded checkpoint does; and of all of them one stretch, and the next call one far from it, so that a write to a
    tenth of them is found soon.
    """

    def __init__(self, constants: Mapping[int, torch.Tensor]) -> None:
        found = {tensor.untyped_storage().data_ptr(): (at, _bytes_of(tensor)) for at, tensor in constants.items()}
        filled = [entry for entry in found.values() if entry[1].size]
        self.whole: list[tuple[int, Any, bytearray]] = []
        self.samples: list[tuple[int, Any, bytes]] = []
        self.large: list[tuple[int, Any]] = []
        self.begins = [0]  # of each large parameter's stretches, among all, and their number
        self.checksums = array("I")
        total = 0
        for position, data in sorted(filled, key=lambda entry: entry[1].size):
            total += data.size
            if total <= WHOLE:
                self.whole.append((position, data, bytearray(data)))
            else:
                sample = _sample(data)
                self.samples.append((position, sample, sample.tobytes()))
                self.large.append((position, data))
                self.checksums.extend(zlib.crc32(data[at : at + STRETCH]) for at in range(0, data.size, STRETCH))
                self.begins.append(len(self.checksums))
        self.step = _step(len(self.checksums))
        self.next = 0

    def changed(self) -> set[int]:
        """The positions of parameters that are found to have changed."""
        found = {position for position, data, before in self.whole if before != data}  # compares memory, without a copy
        found.update(position for position, sample, before in self.samples if sample.tobytes() != before)
        if self.checksums and not found:
            stretch, self.next = self.next, (self.next + self.step) % len(self.checksums)
            number = bisect_right(self.begins, stretch) - 1
            position, data = self.large[number]
            at = (stretch - self.begins[number]) * STRETCH
            if zlib.crc32(data[at : at + STRETCH]) != self.checksums[stretch]:
                found.add(position)
        return found


def state_of(tensor: torch.Tensor) -> tuple[int, int]:
    """What identifies a parameter's state at a call: its address, and how often PyTorch has written to it."""
    return tensor.data_ptr(), 0 if tensor.is_inference() else tensor._version


def _sample(data: Any) -> Any:
    words = data[: data.size // 4 * 4].reshape(-1, 4)
    return words[:: max(1, len(words) // SAMPLES)] if len(words) else data


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
