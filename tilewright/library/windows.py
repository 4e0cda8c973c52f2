"""Parameters of kernels over windows of channels-last images: sizes, constants, blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.graph.core import Value
from tilewright.graph.fusion import Group
from tilewright.library.cost import Cost, expected
from tilewright.library.cpu_work import rows_per_program
from tilewright.library.generated.elementwise import total_bytes
from tilewright.library.generated.generate import next_power_of_2
from tilewright.symbolic import Size, product
from tilewright.targets.base import Target

_CHANNEL_BLOCK = 256


def window_sizes(x: Value, out: Value) -> dict[str, Size]:
    """The image sizes that window kernels take; a line of pixels is an image of height 1."""
    height, width = ((1, 1) + x.shape[1:-1])[-2:]
    out_height, out_width = ((1, 1) + out.shape[1:-1])[-2:]
    return {"pixels": product(out.shape[:-1]), "height": height, "width": width, "out_height": out_height,
            "out_width": out_width}  # fmt: skip


def window_constants(kernel: Sequence[Size], attributes: dict[str, Any], axes: str = "YX") -> dict[str, Any]:
    """The compile-time description of windows along `axes`: kernel, strides, leading padding, dilation."""
    neutral: tuple[Any, ...] = (1, 1, (0, 0), 1)
    windows = [neutral] * (len(axes) - len(kernel))
    windows += zip(kernel, attributes["strides"], attributes["padding"], attributes["dilation"], strict=True)
    found: dict[str, Any] = {}
    for letter, (extent, stride, padding, dilation) in zip(axes, windows, strict=True):
        found |= {f"KERNEL_{letter}": extent, f"STRIDE_{letter}": stride, f"PAD_{letter}": padding[0],
                  f"DILATION_{letter}": dilation}  # fmt: skip
    return found


def window_blocks(pixels: Size, channels: Size, target: Target) -> tuple[int, int, int]:
    """Pixels and channels of a program that walks windows, and its threads (0 on a CPU).

    A thread of a GPU takes up to eight neighbouring channels of a pixel.
    """
    if target.warp_threads == 1:
        block = min(channels, _CHANNEL_BLOCK) if isinstance(channels, int) else _CHANNEL_BLOCK
        return max(1, rows_per_program(pixels, block) // 4), block, 0
    block = min(next_power_of_2(channels), _CHANNEL_BLOCK) if isinstance(channels, int) else _CHANNEL_BLOCK
    return 2, block, max(32, block // 4)


def window_cost(group: Group, flops: Size, target: Target) -> Cost:
    """The cost of windows on the ordinary units of a GPU: of memory, or of their arithmetic."""
    machine = target.machine()
    moved = total_bytes(group.inputs, group.outputs)
    work = expected(flops) / (machine.processors * machine.float32 * machine.clock)
    return Cost(moved, flops, machine.launches.kernel + max(expected(moved) / machine.memory, work))
