"""Small arithmetic for grids and block sizes, on the host, and in kernels on constants."""

from __future__ import annotations

from tilewright.language.types import constexpr_function


@constexpr_function
def cdiv(x: int, y: int) -> int:
    """The least integer not below ``x / y``, for positive `y`: how many blocks of `y` cover `x`."""
    return -(-x // y)


@constexpr_function
def next_power_of_2(n: int) -> int:
    """The least power of two that is not below `n` (1 for `n` up to 1)."""
    return 1 << max(0, int(n) - 1).bit_length()
