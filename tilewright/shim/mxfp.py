"""`triton.tools.mxfp`: 4-bit floats and their scales, of the OCP microscaling formats, as PyTorch tensors.

E2M1: one sign, two exponent and one mantissa bit; the magnitudes are 0, 0.5, 1, 1.5, 2, 3, 4, 6.
E8M0: a scale 2 ** (code - 127); the code 255 is NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # by code


class _Codes:
    """Codes of a byte each in `data`, of floats or yet to be drawn."""

    def __init__(self, data: Any = None, size: Sequence[int] | None = None, device: Any = None) -> None:
        self.device = data.device if data is not None else device
        if data is not None:
            self.data = self._from_float(data)
        elif size is not None:
            self.size = tuple(size) if not isinstance(size, int) else (size,)
        else:
            raise ValueError(f"{type(self).__name__} needs data, or a size")

    def _from_float(self, values: Any) -> Any:
        raise NotImplementedError


class MXFP4Tensor(_Codes):
    """Floats of 4 bits, one in each byte of `data`.

    `data`: floats, which are rounded to the nearest (ties to even codes, beyond 6 to 6), or nothing, when `size` and
    `device` are for `random`.
    """

    def random(self) -> MXFP4Tensor:
        """Fill with random codes of every value but minus zero."""
        codes = torch.randint(0, 16, self.size, dtype=torch.uint8, device=self.device)
        self.data = torch.where(codes == 8, torch.zeros_like(codes), codes)
        return self

    def to(self, dtype: Any) -> Any:
        """The values as float32; raises `TypeError` for another dtype."""
        if dtype != torch.float32:
            raise TypeError(f"4-bit floats become torch.float32 only, got {dtype}")
        magnitudes = torch.tensor(MAGNITUDES, dtype=torch.float32, device=self.data.device)
        values = magnitudes[(self.data & 7).long()]
        return torch.where(self.data & 8 != 0, -values, values)

    def _from_float(self, values: Any) -> Any:
        wide = values.to(torch.float32)
        magnitude = wide.abs().clamp(max=MAGNITUDES[-1])
        # the middles between neighbours; a tie goes to the even code
        middles = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0], dtype=torch.float32, device=wide.device)
        below = torch.bucketize(magnitude, middles, right=False)  # a tie goes down
        above = torch.bucketize(magnitude, middles, right=True)  # a tie goes up
        code = torch.where(below % 2 == 0, below, above)
        code = torch.where(torch.isfinite(wide), code, torch.full_like(code, 7))
        code = code.to(torch.uint8)
        return torch.where(torch.signbit(wide) & (code != 0), code | 8, code)

    def to_packed_tensor(self, dim: int) -> Any:
        """Two codes a byte along an axis, the first in the low half; an odd extent is padded with zeros."""
        extent = self.data.shape[dim]
        data = self.data
        if extent % 2:
            padding = list(data.shape)
            padding[dim] = 1
            data = torch.cat([data, torch.zeros(padding, dtype=torch.uint8, device=data.device)], dim)
        pairs = data.unflatten(dim, (-1, 2))
        axis = dim if dim >= 0 else data.dim() + dim
        return pairs.select(axis + 1, 0) | pairs.select(axis + 1, 1) << 4

    def unpack_packed_tensor(self, packed_tensor: Any, dim: int, original_shape: Sequence[int]) -> Any:
        """The codes, one a byte, of what `to_packed_tensor` gives."""
        axis = dim if dim >= 0 else packed_tensor.dim() + dim
        codes = torch.stack([packed_tensor & 15, packed_tensor >> 4], axis + 1).flatten(axis, axis + 1)
        return codes.narrow(axis, 0, original_shape[axis])


def fp8e8m0_to_float32(scale: Any) -> Any:
    """Scales of codes: 2 ** (code - 127) as float32, NaN for 255."""
    bits = scale.view(torch.uint8).to(torch.int32) << 23
    values = torch.where(bits == 0, torch.full_like(bits, 1 << 22), bits).view(torch.float32)  # 2 ** -127 is subnormal
    return torch.where(scale.view(torch.uint8) == 255, torch.full_like(values, float("nan")), values)


class MXScaleTensor(_Codes):
    """Scales of 8 bits, in `data`.

    `data`: positive floats, which are rounded to the nearest power of two, or nothing, when `size` and `device` are
    for `random`.
    """

    def random(self, low: float | None = None, high: float | None = None) -> MXScaleTensor:
        """Fill with random scales, between `low` and `high` where they are given."""
        least = 0 if low is None else max(0, int(torch.log2(torch.tensor(low))) + 127)
        most = 254 if high is None else min(254, int(torch.log2(torch.tensor(high))) + 127)
        self.data = torch.randint(least, most + 1, self.size, dtype=torch.uint8, device=self.device)
        return self

    def to(self, dtype: Any) -> Any:
        """The scales as float32; raises `TypeError` for another dtype."""
        if dtype != torch.float32:
            raise TypeError(f"scales become torch.float32 only, got {dtype}")
        return fp8e8m0_to_float32(self.data)

    def _from_float(self, values: Any) -> Any:
        wide = values.to(torch.float32)
        codes = torch.round(torch.log2(wide)) + 127
        invalid = ~torch.isfinite(wide) | (wide <= 0)
        return torch.where(invalid, torch.full_like(codes, 255), codes.clamp(0, 254)).to(torch.uint8)
