"""Functions for AMD GPUs: the clock and the compute unit; and `libdevice`. Other targets reject them."""

# Their bodies are tile language, which Python's type rules do not describe.
# mypy: disallow-untyped-defs=False, check-untyped-defs=False, disable-error-code="assignment,attr-defined,operator"
from __future__ import annotations

from tilewright.language import core
from tilewright.language.extra import libdevice
from tilewright.language.function import language_function
from tilewright.language.types import int32, int64


@language_function
def memrealtime():
    """The GPU's clock of constant rate, as int64."""
    return core.inline_asm_elementwise("s_memrealtime $0\ns_waitcnt lgkmcnt(0)", "=s", [], int64, False, 1)


@language_function
def smid():
    """The number of the compute unit that runs this instance, as int32."""
    return core.inline_asm_elementwise("s_getreg_b32 $0, hwreg(HW_REG_HW_ID, 8, 4)", "=s", [], int32, True, 1)


__all__ = ["libdevice", "memrealtime", "smid"]
