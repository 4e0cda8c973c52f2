"""`triton._utils`: dtype names as in signatures, and small checks."""

from __future__ import annotations

from typing import Any

from tilewright.language import TRITON_MAX_TENSOR_NUMEL as TRITON_MAX_TENSOR_NUMEL
from tilewright.language.types import NAMES
from tilewright.launch.arguments import element_of
from tilewright.launch.kernel_info import short_name

# Every name of a dtype -> the one that signatures use.
type_canonicalisation_dict: dict[str, str] = {
    **{name: short_name(kind) for name, kind in NAMES.items()},
    "half": "fp16", "float": "fp32", "double": "fp64", "int": "i32", "uint1": "u1", "void": "void",
    "float8_e4m3fn": "fp8e4nv", "float8_e5m2": "fp8e5", "float8_e4m3fnuz": "fp8e4b8", "float8_e5m2fnuz": "fp8e5b16",
}  # fmt: skip
BITWIDTH_DICT: dict[str, int] = {
    **{short_name(kind): kind.primitive_bitwidth for kind in NAMES.values()}, "void": 0,
}  # fmt: skip


def canonicalize_dtype(dtype: Any) -> str:
    """A dtype of the language, of NumPy or of PyTorch as signatures write it: ``fp32``, ``i64``, ``u1``."""
    text = str(dtype).split(".")[-1]
    if text in type_canonicalisation_dict:
        return type_canonicalisation_dict[text]
    return short_name(NAMES[element_of(dtype).name])


def canonicalize_ptr_dtype(dtype: Any, is_const: bool) -> str:
    """A pointer to it: ``*fp32``, or ``*kfp32`` for one that is only read."""
    return f"*{'k' if is_const else ''}{canonicalize_dtype(dtype)}"


def get_primitive_bitwidth(dtype: str) -> int:
    """Bits of an element of a dtype that is written as in signatures."""
    return BITWIDTH_DICT[dtype]


def is_power_of_two(x: int) -> bool:
    """Whether a number is 1, 2, 4, …"""
    return x > 0 and x & (x - 1) == 0


def validate_block_shape(shape: list[int]) -> int:
    """The number of elements of a block; raises `TypeError` or `ValueError` for a shape that no block has."""
    count = 1
    for axis, extent in enumerate(shape):
        if not isinstance(extent, int) or isinstance(extent, bool):
            raise TypeError(f"extent {axis} of a block is a compile-time int, got {extent!r}")
        if extent < 1:
            raise ValueError(f"extent {axis} of a block is at least 1, got {extent}")
        count *= extent
    return count
