"""Products of float rows by quantized weights on Hopper: which weights the kernel reads, its configs, what they take.

A number of rows that is known only at run time is divided into ranges, each with the config that suits it; the packed
weights are the same for all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import product
from typing import Any, NamedTuple

import tilewright.language as tl
from tilewright.graph.core import Graph, Value
from tilewright.graph.fusion import Group
from tilewright.graph.quantization import group_of
from tilewright.library.binding import bind_extra
from tilewright.library.candidate import Candidate, KernelCall, Operand, PackedConstant, Stage, TiledOperand
from tilewright.library.cost import Cost, spans
from tilewright.library.generated.elementwise import chain_operations, total_bytes
from tilewright.library.hopper import REGISTERS, RESERVED_BYTES, SHARED_BYTES, THREADS, is_possible
from tilewright.library.matmul.hopper.dequantized_config import (
    COLUMNS,
    DEQUANTIZED_PARAMETERS,
    PACKED_LINE,
    DequantizedConfig,
)
from tilewright.library.matmul.hopper.dequantized_kernel import dequantized_matmul
from tilewright.library.matmul.problem import DequantizedProblem
from tilewright.library.packing import fragments_recipe, panels_recipe
from tilewright.library.slots import epilogue_slots
from tilewright.symbolic import Size, ceil_divide, lift, simplify
from tilewright.symbolic import product as size_of
from tilewright.targets.base import Target
from tilewright.targets.kernel_facts import WEIGHT_STAGE, unsupported_weights
from tilewright.targets.machine import Machine

MOST_CANDIDATES = 4  # that are candidates
CTA_ROWS = (8, 16, 32, 64, 128, 256)  # rows of a CTA, and ends of the ranges of a run-time number of rows
_WARPGROUPS = {8: (1, 2, 4), 16: (1, 2, 4), 32: (2, 4), 64: (1, 2, 4), 128: (2,), 256: (2,)}  # by the rows of a CTA
_WARP_ROWS = 16  # of a CTA at most, whose products warps do
_WARPS = ((2, 2), (1, 2), (1, 4), (2, 4), (4, 2))  # columns in units of 64, and warps that take turns at the stages


class _Consumers(NamedTuple):
    """How the consumers of a CTA share its work: fields of a config."""

    columns: int  # in units of 64
    slices: int = 1
    warps: int = 4


class _Clocks(NamedTuple):
    """Clocks of a multiprocessor for a stage of 64 columns: of a consumer alone, at least, and for each row of x; what
    all share, and for each row; what each adds, and for each row; times as much for 8 bits; for the first stage and
    the last results; for the sums of each slice."""

    alone: float
    alone_row: float
    shared: float
    shared_row: float
    each: float
    each_row: float
    of_bytes: float
    fill: float
    slice: float = 0.0


# Fitted on an H200: warpgroups to 180 configs of 44 problems (2026-11-29; they differ by 8 percent), warps to 50 of
# 28672 columns by a depth of 4096 (2026-11-30; by 8 percent).
_OF_WARPGROUPS = _Clocks(418.0, 2.65, 137.0, 1.12, 170.0, 1.71, 1.54, 850.0)
_OF_WARPS = _Clocks(1250.0, 34.0, 19.0, 4.5, 93.0, 3.7, 1.37, 2400.0, 440.0)
_CLUSTER, _EXCHANGE = 1190.0, 5.5  # for the sums of others: of a cluster; for each row of 64 columns of each other CTA
# Of a thread, by the rows of a CTA.
_REGISTERS = {8: 80, 16: 96, 32: 112, 64: 168, 128: 168, 256: 168}
_REGISTERS_OF_WARPS = {8: 96, 16: 128}


def hopper_dequantized(group: Group, graph: Graph, target: Target) -> list[Candidate]:
    """The candidates of a group whose anchor is a `dequantized_matmul` of constants.

    Raises `NotImplementedError` for what the kernel does not read.
    """
    anchor = group.anchor
    assert anchor is not None
    x, w, scale, zero = (*anchor.inputs, None)[:4]
    assert x is not None and w is not None and scale is not None
    if any(item is not None and item not in graph.constants for item in (w, scale, zero)):
        raise NotImplementedError(f"the quantized weights {w!r} are no constants")
    columns, depth = w.shape
    assert isinstance(columns, int) and isinstance(depth, int)
    steps = group_of(w, scale)
    reason = target.without_wgmma or unsupported_weights(x.dtype, w.dtype, scale.dtype, steps, depth)
    if reason:
        raise NotImplementedError(reason)
    slots = epilogue_slots(group, graph).rounded(columns)
    rows = size_of(x.shape[:-1])
    ranges = spans(rows, CTA_ROWS)
    problems = [
        DequantizedProblem(
            example, columns, depth, input=x.dtype, output=slots.stored.dtype, group=steps, weights=w.dtype,
            scale=scale.dtype, zeros=zero is not None, epilogue=slots.epilogue,
        )
        for example, _ in ranges
    ]  # fmt: skip
    machine = target.machine()
    ranked = [close_configs(problem, machine) for problem in problems]
    flops = simplify(lift(size_of([rows, columns])) * depth * 2 + chain_operations(group.epilogue))
    candidates = []
    for number in range(max(map(len, ranked))):
        configs = [each[number % len(each)] for each in ranked]  # ranges with few have them again
        reasons: dict[str, Any] = {
            "weights": f"{w.dtype.name}, a scale for {steps} of the depth", "epilogue": slots.function.__name__
        }  # fmt: skip
        calls = []
        for (_, at_most), (config, _) in zip(ranges, configs, strict=True):
            config = config._replace(DEPENDENT=True)
            operands = _operands(config, x, w, scale, zero, rows, columns, depth)
            operands["out"] = slots.stored
            types = DEQUANTIZED_PARAMETERS.numbers
            bind_extra(slots.extra, operands, types)
            condition = None if at_most is None else (rows, at_most)
            across, _, _ = config.grid(1, columns)
            grid = (across, ceil_divide(rows, config.BATCH), 1)
            calls.append(KernelCall(dequantized_matmul, operands, types, {"CONFIG": config}, grid, condition))
            reasons["tile" if isinstance(rows, int) else "rows" if at_most is None else f"rows <= {at_most}"] = (
                config.described
            )
        cost = Cost(total_bytes(group.inputs, group.outputs), flops, configs[-1][1])
        candidates.append(Candidate("hopper product by quantized weights", (Stage(tuple(calls)),), cost, (), reasons))
    return candidates


def _operands(
    config: DequantizedConfig,
    x: Value,
    w: Value,
    scale: Value,
    zero: Value | None,
    rows: Size,
    columns: int,
    depth: int,
) -> dict[str, Operand]:
    """What a config reads, and sizes."""
    blocks, groups = -(-columns // COLUMNS), scale.shape[1]
    assert isinstance(groups, int)
    lines = -(-depth // config.unit) * config.unit_lines
    panels = panels_recipe(COLUMNS, True)

    in_panels = ((blocks, groups, COLUMNS), (groups * COLUMNS, COLUMNS, 1))
    tiled: dict[str, tuple[Any, tuple[Size, ...], tuple[Size, ...]]] = {
        "x": (x, (rows, depth), (depth, 1)),
        "w": (PackedConstant(w, fragments_recipe(w.dtype)), (blocks, lines, PACKED_LINE),
              (lines * PACKED_LINE, PACKED_LINE, 1)),
        "scales": (PackedConstant(scale, panels), *in_panels),
        "zeros": (PackedConstant(scale if zero is None else zero, panels), *in_panels),
    }  # fmt: skip
    operands: dict[str, Operand] = {
        name: TiledOperand(*each, DEQUANTIZED_PARAMETERS.block(config, name)) for name, each in tiled.items()
    }
    return operands | {"M": rows, "N": columns, "K": depth}


# Configs -------------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1024)
def close_configs(problem: DequantizedProblem, machine: Machine) -> tuple[tuple[DequantizedConfig, float], ...]:
    """The configs worth timing with their estimated seconds, the one to take untimed first."""
    estimates = [(config, seconds_of(config, problem, machine)) for config in dict.fromkeys(_configs(problem))]
    return tuple(sorted(estimates, key=lambda entry: round(entry[1] * 1e9))[:MOST_CANDIDATES])


def _configs(problem: DequantizedProblem) -> list[DequantizedConfig]:
    """Configs that can be built: with the rows of the problem, or the most rows that shared memory has room for."""
    fewer = [rows for rows in CTA_ROWS[:-1] if rows < problem.rows]
    batches = (*fewer, CTA_ROWS[len(fewer)])
    return next((found for batch in reversed(batches) if (found := list(_configs_of(problem, batch)))), [])


def _forms(batch: int) -> list[_Consumers]:
    """The forms for so many rows of a CTA."""
    warpgroups = [_Consumers(consumers) for consumers in _WARPGROUPS[batch]]
    return warpgroups + [_Consumers(*each, warps=1) for each in _WARPS if batch <= _WARP_ROWS]


def _configs_of(problem: DequantizedProblem, batch: int) -> Iterator[DequantizedConfig]:
    """Configs with so many rows, with as many stages as there is room for so many CTAs of a multiprocessor."""
    group = problem.stage_group
    integer = problem.weights.is_integer
    low = 1 << (problem.weights.bits - 1) if integer and problem.weights.is_signed else 0
    stages = -(-problem.depth // WEIGHT_STAGE)
    for form, split, together in product(_forms(batch), (1, 2, 4, 8), (1, 2, 3, 4)):
        config = DequantizedConfig(
            BATCH=batch, CONSUMERS=form.columns, DEPTH=WEIGHT_STAGE, STAGES=2, SPLIT=split, SLICES=form.slices,
            WARPS=form.warps, GROUP=group,
            CODES=tl.int32 if integer else tl.dtype(problem.weights), BITS=problem.weights.bits, LOW=low,
            ZEROS=problem.zeros, TYPE=tl.dtype(problem.input), SCALE=tl.dtype(problem.scale),
            OUTPUT=tl.dtype(problem.output),
            MULTIPLE=min(8, problem.columns & -problem.columns) if problem.aligned else 1,
            EPILOGUE=problem.epilogue.function,
        )  # fmt: skip
        # The registers have no room for a second set of sums.
        many = batch == 256 or (batch * config.CONSUMERS == 256 and problem.weights.bits == 8)
        config = config._replace(SCALED=0 < group < config.least_group or many)
        room = SHARED_BYTES // together - RESERVED_BYTES
        most = (room - config.shared_bytes) // config.stage_bytes + config.STAGES
        useful = min(16, -(-stages // split), most) // config.SLICES * config.SLICES
        config = config._replace(STAGES=max(useful, config.least_stages))
        fits = split * config.SLICES <= stages and config.shared_bytes <= room
        if fits and is_possible(config) and _resident(config) >= together:
            yield config


def _resident(config: DequantizedConfig) -> int:
    """CTAs of a multiprocessor."""
    if config.WARPS == 1:
        registers = _REGISTERS_OF_WARPS[config.BATCH] * config.threads
    else:
        registers = (max(config.registers) or _REGISTERS[config.BATCH]) * 128 * config.copies + 32 * 128
    shared = SHARED_BYTES // (config.shared_bytes + RESERVED_BYTES)
    return max(1, min(REGISTERS // registers, shared, THREADS // config.threads))


def seconds_of(config: DequantizedConfig, problem: DequantizedProblem, machine: Machine) -> float:
    """The estimated time of a problem with a config: the slowest of memory, the L2 cache, and the multiprocessors."""
    across, down, _ = config.grid(problem.rows, problem.columns)
    resident, slots = _resident(config), machine.slots(config.SPLIT)
    ctas = across * down
    waves, together = -(-ctas // (slots * resident)), min(resident, -(-ctas // slots))
    stages = -(-problem.depth // (config.DEPTH * config.SPLIT))
    clocks = waves * _wave(config, together, stages)
    weights = problem.weight_bytes
    rows = min(config.BATCH, problem.rows) * problem.depth * problem.input.itemsize
    read = rows * across / config.SPLIT * down
    busy = min(1.0, ctas / machine.processors)
    flight = min(1.0, together * min(config.STAGES, stages) * config.weight_bytes / machine.in_flight)
    results = problem.rows * problem.columns * problem.output.itemsize
    memory = (weights + results) / (machine.memory * busy * flight)
    cache = (weights * down + read + results) / machine.l2_together
    return machine.launches.hopper_product + max(clocks / machine.wgmma_clock, memory, cache)


def _wave(config: DequantizedConfig, together: int, stages: int) -> float:
    """Clocks of a multiprocessor for so many CTAs at once."""
    cost = _OF_WARPS if config.WARPS == 1 else _OF_WARPGROUPS
    rows = config.BATCH
    shared = cost.shared + cost.shared_row * rows + config.copies * together * (cost.each + cost.each_row * rows)
    stage = max(cost.alone + cost.alone_row * rows, shared) * (cost.of_bytes if config.BITS == 8 else 1.0)
    exchange = _CLUSTER + _EXCHANGE * rows * config.CONSUMERS * (config.SPLIT - 1) if config.SPLIT > 1 else 0.0
    exchange += cost.slice * config.SLICES if config.SLICES > 1 else 0.0
    return cost.fill + exchange + -(-stages // config.SLICES) * stage
