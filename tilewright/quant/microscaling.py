"""Block-scaled formats as arrays: the MX formats and NVFP4, encoded and decoded.

    MXFP8, MXFP6, MXFP4   blocks of 32 elements of 8, 6 or 4 bits under a power of two (e8m0), with which the largest
                          magnitude has the largest exponent of the element type (OCP Microscaling Formats v1.0, 6.3)
    NVFP4                 blocks of 16 e2m1 elements under an e4m3 scale, all of them under one float32

Elements are rounded to nearest, ties to even, and kept within their type's range.  A block with a NaN or an infinity
has the scale NaN in MX formats.
"""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np

from tilewright.errors import InputError

BLOCK, NVFP4_BLOCK = 32, 16
ELEMENT_TYPES: dict[str, np.dtype] = {
    "mxfp8_e4m3": np.dtype(ml_dtypes.float8_e4m3fn), "mxfp8_e5m2": np.dtype(ml_dtypes.float8_e5m2),
    "mxfp6_e2m3": np.dtype(ml_dtypes.float6_e2m3fn), "mxfp6_e3m2": np.dtype(ml_dtypes.float6_e3m2fn),
    "mxfp4": np.dtype(ml_dtypes.float4_e2m1fn),
}  # fmt: skip
_SCALE = np.dtype(ml_dtypes.float8_e8m0fnu)
_BIAS, _NAN = 127, 255  # of e8m0
_E4M3, _E2M1 = np.dtype(ml_dtypes.float8_e4m3fn), ELEMENT_TYPES["mxfp4"]


@dataclass(frozen=True)
class ScaledBlocks:
    """Elements of x's shape, scales [.., blocks] of the last dimension, and for NVFP4 a float32 over all of them."""

    elements: np.ndarray
    scales: np.ndarray
    whole: np.float32 = np.float32(1)


def encode_mx(x: np.ndarray, name: str) -> ScaledBlocks:
    """x [.., n] in an MX format, one of `ELEMENT_TYPES`; n is a multiple of 32.  Raises `InputError` for others."""
    if name not in ELEMENT_TYPES:
        raise InputError(f"unknown format {name!r}: choose one of {', '.join(ELEMENT_TYPES)}")
    dtype = ELEMENT_TYPES[name]
    blocks = _in_blocks(x, BLOCK)
    largest = np.abs(blocks).max(axis=-1)
    most = int(np.frexp(float(ml_dtypes.finfo(dtype).max))[1]) - 1
    exponents = np.frexp(np.where(np.isfinite(largest), largest, 1))[1] - 1 - most
    codes = np.where(largest > 0, np.clip(exponents + _BIAS, 0, _NAN - 1), 0)
    codes = np.where(np.isfinite(largest), codes, _NAN).astype(np.uint8)
    factors = np.ldexp(1.0, np.where(codes == _NAN, 0, codes.astype(np.int32) - _BIAS))
    elements = _rounded(np.where(np.isfinite(blocks), blocks, 0) / factors[..., None], dtype)
    return ScaledBlocks(elements.reshape(x.shape), codes.view(_SCALE))


def decode_mx(blocks: ScaledBlocks) -> np.ndarray:
    """float32 of x's shape; NaN where a block's scale is."""
    scales = blocks.scales.astype(np.float32).astype(np.float64)
    parts = _in_blocks(blocks.elements.astype(np.float32), BLOCK)
    with np.errstate(over="ignore"):
        return np.asarray((parts * scales[..., None]).astype(np.float32)).reshape(blocks.elements.shape)


def encode_nvfp4(x: np.ndarray) -> ScaledBlocks:
    """x [.., n] in NVFP4; n is a multiple of 16.  The float32 maps the largest magnitude to the largest scale times the
    largest element.  Raises `InputError` for other sizes and for numbers that are not finite."""
    blocks = _in_blocks(x, NVFP4_BLOCK)
    if not np.isfinite(blocks).all():
        raise InputError("NVFP4 has no infinity and no NaN")
    most, most_scale = (float(ml_dtypes.finfo(dtype).max) for dtype in (_E2M1, _E4M3))
    largest = np.abs(blocks).max(axis=-1)
    whole = np.float32(largest.max(initial=0) / (most * most_scale)) or np.float32(1)
    scales = _rounded(largest / most / float(whole), _E4M3)
    factors = scales.astype(np.float64) * float(whole)
    numbers = np.divide(blocks, factors[..., None], out=np.zeros_like(blocks), where=factors[..., None] > 0)
    return ScaledBlocks(_rounded(numbers, _E2M1).reshape(x.shape), scales, whole)


def decode_nvfp4(blocks: ScaledBlocks) -> np.ndarray:
    """float32 of x's shape."""
    scales = blocks.scales.astype(np.float64) * float(blocks.whole)
    parts = _in_blocks(blocks.elements.astype(np.float32), NVFP4_BLOCK)
    return np.asarray((parts * scales[..., None]).astype(np.float32)).reshape(blocks.elements.shape)


def _in_blocks(x: np.ndarray, size: int) -> np.ndarray:
    """float64 [.., blocks, size]."""
    if not x.ndim or x.shape[-1] % size:
        raise InputError(f"the last dimension of {list(x.shape)} is no multiple of {size}")
    return x.astype(np.float64).reshape(*x.shape[:-1], x.shape[-1] // size, size)


def _rounded(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Nearest numbers of a type, within its range: float64 is rounded once."""
    most = float(ml_dtypes.finfo(dtype).max)
    return np.clip(x, -most, most).astype(dtype)
