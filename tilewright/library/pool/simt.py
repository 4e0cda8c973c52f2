"""Pool groups on GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tilewright.graph.core import Graph
from tilewright.graph.fusion import Group
from tilewright.library.binding import launch
from tilewright.library.candidate import Candidate, Stage
from tilewright.library.generated.generate import next_power_of_2
from tilewright.library.pool import simt_kernel
from tilewright.library.pool.portable import portable_pool
from tilewright.library.pool.problem import PoolProblem, pool_problem
from tilewright.library.pool.simt_kernel import UNROLLED
from tilewright.library.pool.volume_kernel import pool_of_volumes
from tilewright.library.windows import window_cost
from tilewright.symbolic import Size, ceil_divide, lift, product, simplify, upper_bound
from tilewright.targets.base import Target

_CTA_ELEMENTS = 1024  # eight for each of 128 threads
_CHANNELS = 128  # at most, of a block
_VOLUME_PIXELS = 512  # four for each of 128 threads
_LARGE = 25  # taps of a window whose lines are better added up as they lie
_LINE = 2048  # elements of a line that a CTA has
_MOST_LINE_TAPS = 64  # of a line of such a window
_MOST_GATHERED = 4096  # elements that windows of a block see, together
_ELEMENTS_AT_ONCE = 4  # elements that a thread reads at once


def channel_block(channels: Size) -> int:
    """The channels of a block: the power of two up to 128 that leaves the fewest over; the largest of equals."""
    if not isinstance(channels, int):
        return _CHANNELS
    blocks = [1 << power for power in range(_CHANNELS.bit_length())]
    return min(blocks, key=lambda block: (-(-channels // block) * block, -block))


def gpu_pool(group: Group, graph: Graph, target: Target) -> list[Candidate]:
    """The candidates of a pooling group. Raises `NotImplementedError` for channels-first images."""
    problem = pool_problem(group, graph)
    x, out = problem.image, problem.result
    if upper_bound(product(x.shape[1:])) >= 2**31:
        return [portable_pool(problem, target)]
    problem = replace(problem, slots=problem.slots.rounded())
    if x.rank == 5:
        return [_of_volumes(problem, target)]
    block = channel_block(problem.channels)
    rows = max(1, _CTA_ELEMENTS // block)
    kernel = simt_kernel.max_pool if problem.is_max else simt_kernel.average_pool
    constants = {**problem.constants, "ROWS": rows, "BLOCK": block, "EPILOGUE": problem.slots.function}
    constants |= _same_windows(problem.constants, x.shape[1:-1], out.shape[1:-1])
    grid = (ceil_divide(product(out.shape[:-1]), rows), ceil_divide(problem.channels, block), 1)
    call = launch(
        kernel, problem.tensors, problem.sizes, constants, grid, problem.slots.extra, max(32, rows * block // 8)
    )
    reasons = {"block": f"{rows} pixels x {block} channels"}
    found = Candidate("windows", (Stage((call,)),), window_cost(group, problem.flops, target), (), reasons)
    return [*_of_lines(problem, target), found]


def _same_windows(constants: Mapping[str, Any], extents: tuple[Size, ...], results: tuple[Size, ...]) -> dict[str, Any]:
    """Constants of pools whose windows all lie inside the image, or all have the same divisor."""
    whole, same, taps = True, "COUNT_Y" in constants, 1
    for letter, extent, result in zip("ZYX"[-len(extents) :], extents, results, strict=True):
        kernel, stride, pad, step = (constants[f"{name}_{letter}"] for name in ("KERNEL", "STRIDE", "PAD", "DILATION"))
        beyond = upper_bound(simplify((lift(result) - 1) * stride + ((kernel - 1) * step + 1 - pad) - extent))
        whole = whole and pad <= 0 and beyond <= 0
        same = same and pad <= constants[f"COUNT_{letter}"] and beyond <= constants[f"COUNT_END_{letter}"]
        taps *= kernel
    found: dict[str, Any] = {"WHOLE": True} if whole and taps <= _MOST_LINE_TAPS else {}
    return {**found, "COUNT": taps} if same else found


def _of_volumes(problem: PoolProblem, target: Target) -> Candidate:
    """Windows of volumes with one channel each, by one kernel."""
    x, out, extra = problem.image, problem.result, problem.slots.extra
    constants = {**problem.constants, "IS_MAX": problem.is_max, "ROWS": _VOLUME_PIXELS,
                 **_same_windows(problem.constants, x.shape[1:-1], out.shape[1:-1]),
                 "EPILOGUE": problem.slots.function}  # fmt: skip
    names = ("depth", "height", "width")
    sizes = {**dict(zip(names, x.shape[1:-1], strict=True)), "pixels": product(out.shape)}
    sizes |= {f"out_{name}": extent for name, extent in zip(names, out.shape[1:-1], strict=True)}
    grid = (ceil_divide(product(out.shape), _VOLUME_PIXELS), 1, 1)
    call = launch(pool_of_volumes, problem.tensors, sizes, constants, grid, extra, _VOLUME_PIXELS // 4)
    cost = window_cost(problem.group, problem.flops, target)
    return Candidate("volumes", (Stage((call,)),), cost, (), {"block": f"{_VOLUME_PIXELS} pixels"})


def _of_lines(problem: PoolProblem, target: Target) -> list[Candidate]:
    """Means of large windows of images with one channel, by a kernel that reads whole lines of them."""
    x, out, constants = problem.image, problem.result, dict(problem.constants)
    down, kernel, width, out_width = constants["KERNEL_Y"], constants["KERNEL_X"], x.shape[-2], out.shape[-2]
    if problem.is_max or x.shape[-1] != 1 or not isinstance(width, int) or not isinstance(out_width, int):
        return []
    if down * kernel < _LARGE or down > UNROLLED.value or kernel > _MOST_LINE_TAPS:
        return []
    stride, span = constants["STRIDE_X"], constants["DILATION_X"] * (kernel - 1) + 1
    taps, edge = next_power_of_2(kernel), _ELEMENTS_AT_ONCE - 1 if width > _LINE else 0
    count = out_width if width <= _LINE else (_LINE - span - edge) // stride + 1
    if count < 1:
        return []
    while next_power_of_2(count) * taps > _MOST_GATHERED:
        count = max(1, next_power_of_2(count) // 2)
    before = -(-constants["PAD_X"] // _ELEMENTS_AT_ONCE) * _ELEMENTS_AT_ONCE
    block = next_power_of_2(min(width + before, (count - 1) * stride + span + _ELEMENTS_AT_ONCE - 1))
    rows = max(1, _LINE // max(block, next_power_of_2(count) * taps))
    lines = product(out.shape[:-2])
    constants |= {"ROWS": rows, "BLOCK": block, "WINDOWS": count, "LANES": next_power_of_2(count), "TAPS": taps,
                  "ALIGNED": _ELEMENTS_AT_ONCE, "EPILOGUE": problem.slots.function}  # fmt: skip
    sizes = {name: size for name, size in problem.sizes.items() if name not in ("pixels", "channels")} | {
        "lines": lines
    }
    grid = (ceil_divide(lines, rows), ceil_divide(out_width, count), 1)
    threads, extra = 256 if rows * block >= _LINE else 128, problem.slots.extra
    call = launch(simt_kernel.average_of_lines, problem.tensors, sizes, constants, grid, extra, threads)
    cost = window_cost(problem.group, 0, target)
    reasons = {"block": f"{rows} lines x {count} windows"}
    return [Candidate("lines", (Stage((call,)),), cost, (), reasons)]
