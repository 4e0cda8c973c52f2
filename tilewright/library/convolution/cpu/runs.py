"""Convolutions on CPUs whose kernels keep the sums of a run of neighbouring pixels in registers."""

from __future__ import annotations

from math import ceil
from typing import Any

from tilewright.graph.core import Value
from tilewright.graph.fusion import Group
from tilewright.launch.jit import JITFunction
from tilewright.library.binding import bind_extra, bind_sizes, divides
from tilewright.library.candidate import Candidate, KernelCall, Operand, Stage
from tilewright.library.convolution.cpu.depthwise_kernel import depthwise_runs
from tilewright.library.convolution.cpu.direct_kernel import direct_convolution
from tilewright.library.convolution.problem import convolution_of
from tilewright.library.cost import estimate
from tilewright.library.cpu_work import rows_per_program
from tilewright.library.generated.elementwise import chain_operations, total_bytes
from tilewright.library.generated.expressions import language_type
from tilewright.library.generated.generate import next_power_of_2
from tilewright.library.slots import Slots
from tilewright.library.windows import window_constants, window_sizes
from tilewright.symbolic import Size, ceil_divide, lift, product, round_up, simplify
from tilewright.targets.base import Target

LEAST_RUN = 4
LONGEST_DEPTHWISE_RUN = 7  # sums beside the weights and the pixels of a line of taps, which are used more than once
MOST_DIRECT_SUMS = 14  # vectors: enough to hide how long one sum takes; more take longer to compile
FEWEST_DIRECT_SUMS = 8  # vectors: two in a cycle, four cycles each
PANEL_SHARE = 0.8  # of level 1
RUN_START = 2  # multiply-adds of a vector that the start of a run takes the time of, for each step of the depth


def lanes_of(target: Target) -> int:
    """Elements of float32 in a vector of a CPU; 0 for GPUs."""
    return target.vector_bits // 32


def depthwise_runs_candidate(group: Group, slots: Slots, weights: Operand, target: Target) -> Candidate:
    """Each channel by itself; `weights` are [rows][columns][channels]."""
    lanes = lanes_of(target)
    assert group.anchor is not None
    run = run_pixels(group.anchor.output.shape[-2], LONGEST_DEPTHWISE_RUN)
    return _candidate("depthwise", depthwise_runs, run, group, slots, weights, lanes, target, 0.5)


def direct_candidate(group: Group, slots: Slots, weights: Operand, width: int, target: Target) -> Candidate:
    """Groups of few channels; `weights` are in panels of `width` columns (`direct_columns`)."""
    assert group.anchor is not None
    run = direct_pixels(group.anchor.output.shape[-2], width, target)
    return _candidate("direct convolution", direct_convolution, run, group, slots, weights, width, target, 0.92)


def direct_columns(w: Value, groups: int, target: Target) -> int:
    """The columns of a panel of a direct convolution: each pixel is read once for all vectors of a panel.

    Level 1 holds the panel.
    """
    lanes, columns, depth = lanes_of(target), simplify(lift(w.shape[0]) // groups), product(w.shape[1:])
    assert isinstance(columns, int) and isinstance(depth, int)
    vectors = ceil(columns / lanes)
    if vectors == 1:
        return min(lanes, next_power_of_2(columns))
    most = int(PANEL_SHARE * target.machine().l1_bytes) // (4 * lanes * depth)
    return lanes * next(count for count in (2, 3, 1) if count <= max(most, 1) and vectors % count == 0)


def direct_pixels(across: Size, width: int, target: Target) -> int:
    """How many neighbouring pixels of a line a direct convolution computes at once: what takes the least time."""
    vectors, registers = ceil(width / lanes_of(target)), target.vector_registers
    most = min(MOST_DIRECT_SUMS, registers - vectors - 1) // vectors  # beside weights and a pixel
    if not isinstance(across, int):
        return most

    def cost(pixels: int) -> int:
        return -(-across // pixels) * (max(FEWEST_DIRECT_SUMS, vectors * pixels) + RUN_START)

    return min(range(most, 0, -1), key=cost)


def _candidate(
    name: str, kernel: JITFunction, run: int, group: Group, slots: Slots, weights: Operand, block: int, target: Target,
    efficiency: float,
) -> Candidate:  # fmt: skip
    """The launch of a kernel that takes runs of `run` pixels and `block` columns at once."""
    anchor, x, w = convolution_of(group)
    groups, depth = anchor.attributes["groups"], product(w.shape[1:])
    direct = kernel is direct_convolution
    columns = simplify(lift(w.shape[0]) // groups) if direct else w.shape[0]
    sizes = {**window_sizes(x, anchor.output), "columns": columns}
    windows = window_constants(w.shape[2:], anchor.attributes)
    across = sizes["out_width"]
    del sizes["pixels"]
    sizes["runs"] = runs = simplify(lift(product(anchor.output.shape[:-2])) * ceil_divide(across, run))
    work = simplify(lift(depth) * run if direct else lift(columns) * run)
    rows = rows_per_program(runs, work)
    constants: dict[str, Any] = {
        **windows, "PIXELS": run, "RAGGED": not divides(run, across),
        "EDGES": run_edges(x.shape[-2], across, run, windows), "ROWS": rows, "BLOCK": block,
        "MASK": not divides(block, columns), "TYPE": language_type(x.dtype), "EPILOGUE": slots.function,
    }  # fmt: skip
    grid: tuple[Size, Size, Size] = (ceil_divide(runs, rows), 1, 1)
    if direct:
        constants |= {"CHANNELS": w.shape[1], "GROUPS": groups}
        grid = (simplify(ceil_divide(columns, block) * lift(groups)), grid[0], 1)
    operands: dict[str, Operand] = {"x": x, "w": weights, "out": slots.stored}
    types: dict[str, str] = {}
    bind_sizes(sizes, operands, types, constants)
    bind_extra(slots.extra, operands, types)
    call = KernelCall(kernel, operands, types, constants, grid)
    efficiency *= min(1, block / lanes_of(target))
    efficiency /= 1.5 if constants["EDGES"] == "any" else 1  # where windows leave a line only the run knows
    sums = product([*anchor.output.shape[:-2], round_up(across, run), round_up(columns, block)])
    flops = simplify(lift(sums) * depth * 2 * (groups if direct else 1) + chain_operations(group.epilogue))
    moved = total_bytes(group.inputs, group.outputs)
    cost = estimate(target.machine(), moved, flops, product(grid), x.dtype, efficiency)
    reasons = {"block": f"{rows} runs of {run} pixels, {block} channels at once"}
    return Candidate(name, (Stage((call,)),), cost, (), reasons)


def run_pixels(across: Size, longest: int) -> int:
    """How many neighbouring pixels of a line are computed at once: the end of a line should leave few unused."""
    if not isinstance(across, int):
        return LEAST_RUN
    return min(range(longest, LEAST_RUN - 1, -1), key=lambda count: -(-across // count) * count)


def run_edges(width: Size, across: Size, run: int, windows: dict[str, Any]) -> str:
    """Which runs have windows that leave their line: "none"; "ends", at most the first and the last; or "any"."""
    if not isinstance(width, int) or not isinstance(across, int):
        return "any"
    reach = (run - 1) * windows["STRIDE_X"] + (windows["KERNEL_X"] - 1) * windows["DILATION_X"]
    starts = range(-windows["PAD_X"], across * windows["STRIDE_X"] - windows["PAD_X"], run * windows["STRIDE_X"])

    def outside(left: int) -> bool:
        return left < 0 or left + reach >= width

    if not starts or not (outside(starts[0]) or outside(starts[-1])):  # the others lie between these two
        return "none"
    inner = starts[1:-1]
    return "any" if inner and (outside(inner[0]) or outside(inner[-1])) else "ends"
