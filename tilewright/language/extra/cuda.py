"""Functions for NVIDIA GPUs: clocks, SM numbers, dependent launch; and `libdevice`.

Clocks and places are instructions of these GPUs: other targets refuse them.
"""

# Their bodies are tile language, which Python's type rules do not describe.
# mypy: disallow-untyped-defs=False, check-untyped-defs=False, disable-error-code="assignment,attr-defined,operator"
from __future__ import annotations

from tilewright.language import core
from tilewright.language.extra import libdevice
from tilewright.language.function import language_function
from tilewright.language.target_info import current_target, is_cuda
from tilewright.language.types import constexpr_function, float8e4b15, float16, int32, int64


@language_function
def globaltimer():
    """Nanoseconds of the GPU's clock, as int64."""
    return core.inline_asm_elementwise("mov.u64 $0, %globaltimer;", "=l", [], int64, False, 1)


@language_function
def smid():
    """The number of the multiprocessor that runs this instance, as int32."""
    return core.inline_asm_elementwise("mov.u32 $0, %smid;", "=r", [], int32, True, 1)


@constexpr_function
def num_warps() -> int:
    """Warps of an instance; 1 on a CPU, where an instance is one thread. Other targets choose after this is asked."""
    if current_target().backend != "cpu":
        raise ValueError("the number of warps is chosen after the kernel is read; pass it as a tl.constexpr argument")
    return 1


@constexpr_function
def num_threads() -> int:
    """Threads of an instance; see `num_warps`."""
    return num_warps() * current_target().warp_size


@language_function
def gdc_wait():
    """Wait for the memory of launches that this one was started before the end of; elsewhere launches are in order."""
    if is_cuda():
        core.inline_asm_elementwise("griddepcontrol.wait; mov.u32 $0, 0;", "=r", [], int32, False, 1)


@language_function
def gdc_launch_dependents():
    """Let the next launch start; elsewhere launches are in order."""
    if is_cuda():
        core.inline_asm_elementwise("griddepcontrol.launch_dependents; mov.u32 $0, 0;", "=r", [], int32, False, 1)


@language_function
def prefetch(pointers):
    """Ask for the lines at some addresses, which the L2 cache shall keep until they are read; elsewhere nothing."""
    if is_cuda():
        places = [pointers.to(int64)]
        core.inline_asm_elementwise(
            "prefetch.global.L2::evict_last [$1]; mov.u32 $0, 0;", "=r,l", places, int32, False, 1
        )


@language_function
def convert_fp8e4b15_to_float16(x):
    """float8e4b15 as float16, which holds all of its values."""
    return x.to(float16)


@language_function
def convert_float16_to_fp8e4b15(x):
    """float16 rounded to float8e4b15; what is beyond its range becomes its greatest number."""
    return x.to(float8e4b15)


__all__ = [
    "convert_float16_to_fp8e4b15", "convert_fp8e4b15_to_float16", "gdc_launch_dependents", "gdc_wait", "globaltimer",
    "libdevice", "num_threads", "num_warps", "prefetch", "smid",
]  # fmt: skip
