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
from tilewright.library.epilogue import identity
from tilewright.library.generated.elementwise import chain_operations, total_bytes
from tilewright.library.hopper import REGISTERS, RESERVED_BYTES, SHARED_BYTES, THREADS, is_possible
from tilewright.library.matmul.gate import gate_slots
from tilewright.library.matmul.hopper.dequantized_config import (
    COLUMNS,
    DEQUANTIZED_PARAMETERS,
    GATE_COLUMNS,
    PACKED_LINE,
    DequantizedConfig,
)
from tilewright.library.matmul.hopper.dequantized_kernel import dequantized_matmul
from tilewright.library.matmul.problem import DequantizedProblem
from tilewright.library.packing import fragments_recipe, panels_recipe
from tilewright.library.slots import Slots, epilogue_slots
from tilewright.symbolic import Size, ceil_divide, lift, simplify
from tilewright.symbolic import product as size_of
from tilewright.targets.base import Target
from tilewright.targets.library_facts import WEIGHT_STAGE, unsupported_weights
from tilewright.targets.machine import Machine

MOST_CANDIDATES = 6  # that are candidates
CTA_ROWS = (8, 16, 32, 64, 128, 256)  # rows of a CTA, and ends of the ranges of a run-time number of rows
_WARP_ROWS = 16  # of a CTA at most, whose products warps do
_WARPGROUP_ROWS = 64  # of a CTA at most, whose products several kinds of warpgroups do
_SPLITS = (1, 2, 3, 4, 6, 8)
_ONE_WAVE_ROWS = CTA_ROWS[-1]  # rows at most of a product whose depth CTAs share


class _Consumers(NamedTuple):
    """How the consumers of a CTA share its work: fields of a config."""

    columns: int  # in units of 64
    slices: int = 1
    warps: int = 4
    ahead: bool = False


_WARPGROUPS = (_Consumers(1), _Consumers(1, 2), _Consumers(2), _Consumers(4))
_AHEAD = (_Consumers(1, ahead=True), _Consumers(1, 2, ahead=True), _Consumers(2, ahead=True))
_WARPS = (_Consumers(2, 2, 1), _Consumers(1, 4, 1), _Consumers(2, 4, 1))


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


# Fitted on an H200 to 522 times of 25 problems of 1 to 64 rows, most in int4 (2026-12-01; near the best they differ by
# 9 percent; the best of six configs is within 7 percent of the best of all, 1.3 percent in the mean).
_OF_WARPGROUPS = _Clocks(376.0, 2.39, 127.0, 0.50, 158.0, 2.76, 1.13, 1503.0, 676.0)
_OF_AHEAD = _Clocks(345.0, 1.66, 71.0, 1.02, 188.0, 1.97, 1.19, 1509.0, 1014.0)
_OF_WARPS = _Clocks(650.0, 30.8, 21.0, 6.18, 139.0, 5.22, 1.44, 1403.0, 308.0)
_CLUSTER, _EXCHANGE = 178.0, 7.24  # for the sums of others: of a cluster; for each row of 64 columns of each other CTA
# Of a thread at most, by the rows of a CTA: ptxas 13.5 for 303 configs.
_REGISTERS = {8: 80, 16: 80, 32: 96, 64: 144, 128: 168, 256: 168}
_REGISTERS_BARE = 128  # of 4 bits in groups of a stage or more, without zero points, gate and epilogue
_REGISTERS_AHEAD = {8: 152, 16: 160, 32: 192, 64: 240}
_REGISTERS_OF_WARPS = {8: 120, 16: 160}


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
    slots, stored = _slots(group, graph, columns)
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
        if slots.epilogue.gate is not None:
            reasons["gate"] = slots.epilogue.gate.__name__
        calls = []
        for (_, at_most), (config, _) in zip(ranges, configs, strict=True):
            config = config._replace(DEPENDENT=True)
            operands = _operands(config, x, w, scale, zero, rows, depth)
            operands |= {"out": slots.stored, "M": rows, "N": stored, "K": depth}
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
    depth: int,
) -> dict[str, Operand]:
    """What a config reads."""
    columns, groups = w.shape[0], scale.shape[1]
    assert isinstance(columns, int) and isinstance(groups, int)
    blocks, lines = -(-columns // COLUMNS), -(-depth // config.unit) * config.unit_lines
    halves = 0 if config.GATE is None else GATE_COLUMNS
    panels = panels_recipe(COLUMNS, True, halves=halves)

    in_panels = ((blocks, groups, COLUMNS), (groups * COLUMNS, COLUMNS, 1))
    tiled: dict[str, tuple[Any, tuple[Size, ...], tuple[Size, ...]]] = {
        "x": (x, (rows, depth), (depth, 1)),
        "w": (PackedConstant(w, fragments_recipe(w.dtype, halves)), (blocks, lines, PACKED_LINE),
              (lines * PACKED_LINE, PACKED_LINE, 1)),
        "scales": (PackedConstant(scale, panels), *in_panels),
        "zeros": (PackedConstant(scale if zero is None else zero, panels), *in_panels),
    }  # fmt: skip
    return {name: TiledOperand(*each, DEQUANTIZED_PARAMETERS.block(config, name)) for name, each in tiled.items()}


def _slots(group: Group, graph: Graph, columns: int) -> tuple[Slots, int]:
    """The epilogue, and how many columns it stores: half as many with a gate.

    Raises `NotImplementedError` for gates whose halves are no whole blocks of the weights.
    """
    slots = gate_slots(group, graph)
    if slots is None:
        return epilogue_slots(group, graph).rounded(columns), columns
    if columns % (2 * GATE_COLUMNS):
        raise NotImplementedError(f"{group.name}: gates take halves in multiples of {GATE_COLUMNS} columns")
    return slots.rounded(columns // 2), columns // 2


# Configs -------------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1024)
def close_configs(problem: DequantizedProblem, machine: Machine) -> tuple[tuple[DequantizedConfig, float], ...]:
    """The configs worth timing with their estimated seconds, the one to take untimed first."""
    estimates = [(config, seconds_of(config, problem, machine)) for config in _configs(problem, machine)]
    return tuple(sorted(estimates, key=lambda entry: round(entry[1] * 1e9))[:MOST_CANDIDATES])


def _configs(problem: DequantizedProblem, machine: Machine) -> list[DequantizedConfig]:
    """Configs that can be built: with the rows of the problem, or the most rows that shared memory has room for."""
    fewer = [rows for rows in CTA_ROWS[:-1] if rows < problem.rows]
    batches = (*fewer, CTA_ROWS[len(fewer)])
    for batch in reversed(batches):
        found = [each for each in _configs_of(problem, batch) if _in_one_wave(each, problem, machine)]
        if found:
            return list(dict.fromkeys(found))
    return []


def _forms(batch: int, group: int) -> tuple[_Consumers, ...]:
    """The forms for so many rows of a CTA, and steps that share a scale."""
    if batch > _WARPGROUP_ROWS:
        return (_Consumers(2),)
    ahead = _AHEAD if group == 0 or group >= WEIGHT_STAGE else ()
    return _WARPGROUPS + ahead + (_WARPS if batch <= _WARP_ROWS else ())


def _configs_of(problem: DequantizedProblem, batch: int) -> Iterator[DequantizedConfig]:
    """Configs with so many rows, with as many stages as there is room for so many CTAs of a multiprocessor."""
    group = problem.stage_group
    integer = problem.weights.is_integer
    low = 1 << (problem.weights.bits - 1) if integer and problem.weights.is_signed else 0
    stages = -(-problem.depth // WEIGHT_STAGE)
    stored = problem.columns // (2 if problem.cost.gated else 1)
    splits = _SPLITS if problem.rows <= _ONE_WAVE_ROWS else (1,)
    for form, split, together in product(_forms(batch, group), splits, (1, 2)):
        config = DequantizedConfig(
            BATCH=batch, CONSUMERS=form.columns, DEPTH=WEIGHT_STAGE, STAGES=2, SPLIT=split, SLICES=form.slices,
            WARPS=form.warps, AHEAD=form.ahead, GROUP=group,
            CODES=tl.int32 if integer else tl.dtype(problem.weights), BITS=problem.weights.bits, LOW=low,
            ZEROS=problem.zeros, TYPE=tl.dtype(problem.input), SCALE=tl.dtype(problem.scale),
            OUTPUT=tl.dtype(problem.output),
            MULTIPLE=min(8, stored & -stored) if problem.aligned else 1,
            EPILOGUE=problem.epilogue.function, GATE=problem.epilogue.gate,
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


def _in_one_wave(config: DequantizedConfig, problem: DequantizedProblem, machine: Machine) -> bool:
    """Whether all clusters of a config run at once; others take longer."""
    across, down, _ = config.grid(problem.rows, problem.columns)
    return config.SPLIT == 1 or across * down <= machine.slots(config.SPLIT) * _resident(config)


def _registers(config: DequantizedConfig) -> int:
    """Registers of a thread."""
    if max(config.registers):
        return REGISTERS // config.threads  # budgets of roles are of those that threads begin with
    if config.WARPS == 1:
        return _REGISTERS_OF_WARPS[config.BATCH]
    if config.AHEAD:
        return _REGISTERS_AHEAD[config.BATCH]
    stored = config.EPILOGUE is identity and config.GATE is None
    bare = stored and config.BITS == 4 and not config.ZEROS and config.groups == 1
    return min(_REGISTERS[config.BATCH], _REGISTERS_BARE if bare else REGISTERS)


def _resident(config: DequantizedConfig) -> int:
    """CTAs of a multiprocessor."""
    registers = min(_registers(config), REGISTERS // config.threads) * config.threads
    shared = SHARED_BYTES // (config.shared_bytes + RESERVED_BYTES)
    return max(1, min(REGISTERS // registers, shared, THREADS // config.threads))


def seconds_of(config: DequantizedConfig, problem: DequantizedProblem, machine: Machine) -> float:
    """The estimated time of a problem with a config: the slowest of memory, the L2 cache, and the multiprocessors."""
    across, down, _ = config.grid(problem.rows, problem.columns)
    resident, slots = _resident(config), machine.slots(config.SPLIT)
    ctas = across * down
    waves, together = -(-ctas // (slots * resident)), min(resident, -(-ctas // slots))
    stages = -(-problem.depth // (config.DEPTH * config.SPLIT))
    # Kernels start before those in front have ended, and multiprocessors that are free first take more CTAs.
    uneven = together + (resident > together and stages > config.STAGES)
    clocks = waves * _wave(config, uneven, stages)
    weights = problem.weight_bytes
    rows = min(config.BATCH, problem.rows) * problem.depth * problem.input.itemsize
    read = rows * across / config.SPLIT * down
    busy = min(1.0, ctas / machine.processors)
    flight = min(1.0, together * min(config.STAGES, stages) * config.weight_bytes / machine.in_flight)
    results = problem.rows * problem.columns // (2 if problem.cost.gated else 1) * problem.output.itemsize
    memory = (weights + results) / (machine.memory * busy * flight)
    cache = (weights * down + read + results) / machine.l2_together
    return machine.launches.hopper_product + max(clocks / machine.wgmma_clock, memory, cache)


def _wave(config: DequantizedConfig, together: int, stages: int) -> float:
    """Clocks of a multiprocessor for so many CTAs at once."""
    cost = _OF_WARPS if config.WARPS == 1 else _OF_AHEAD if config.AHEAD else _OF_WARPGROUPS
    rows = config.BATCH
    shared = cost.shared + cost.shared_row * rows + config.copies * together * (cost.each + cost.each_row * rows)
    stage = max(cost.alone + cost.alone_row * rows, shared) * (cost.of_bytes if config.BITS == 8 else 1.0)
    exchange = _CLUSTER + _EXCHANGE * rows * config.CONSUMERS * (config.SPLIT - 1) if config.SPLIT > 1 else 0.0
    exchange += cost.slice * config.SLICES if config.SLICES > 1 else 0.0
    return cost.fill + exchange + -(-stages // config.SLICES) * stage
