"""float32 products on the tensor cores of Hopper, as accurate as by multiply-adds: each number as three of bfloat16.

Constants are split when the engine is built, other operands by a launch ahead. Kernel, accuracy and numbers that are
not finite: `bf16x6_kernel`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import tilewright.language as tl
from tilewright.dtypes import bfloat16, float32
from tilewright.graph.core import Graph, Value
from tilewright.library.binding import bind_extra, launch
from tilewright.library.candidate import Candidate, KernelCall, Operand, PackedConstant, Stage, TiledOperand
from tilewright.library.cost import Cost, expected
from tilewright.library.generated.generate import next_power_of_2
from tilewright.library.hopper import SHARED_BYTES, is_possible
from tilewright.library.matmul.blocks import RowRange, row_ranges
from tilewright.library.matmul.hopper.bf16x6_kernel import bf16x6_matmul, split_float32
from tilewright.library.matmul.hopper.choice import dependent
from tilewright.library.matmul.hopper.config import MatmulConfig
from tilewright.library.matmul.problem import GraphProduct, MatmulProblem
from tilewright.library.matmul.simt_parts import sum_of_parts
from tilewright.library.packing import parts_recipe
from tilewright.library.slots import Slots
from tilewright.symbolic import Size, ceil_divide, lift, minimum, product, simplify
from tilewright.targets.base import Target
from tilewright.targets.machine import Machine

PlainCall = tuple[KernelCall, float]  # with its estimated seconds

PARTS = 3
CONFIGS = 6  # that are candidates
LINE = 64  # elements of bfloat16 that rows of planes are multiples of: tiles begin at lines of the L2 cache
_SPLIT_BLOCK = 4096  # elements of a CTA that splits
_SPLIT_COLUMNS = 1024
_TILES = ((128, 128), (128, 112), (128, 96), (128, 64), (64, 128), (64, 64), (64, 32))  # rows, columns
REASON = "three bfloat16 numbers each, on tensor cores, as accurate as multiply-adds of float32"
_PARTS_FILL = 1800.0  # clocks from the first copy to the first product
ADDING = 380.0  # clocks of a stage without products: waits, and sums added outside (7 tiles; H200, 2026-11-30)
_FEWEST_STAGES = 4  # of a slice of the depth
_SLICED = 3  # candidates whose depth is in slices
_WORTHWHILE = 0.95  # of the time of a product whose depth is not
OTHER_LAG = 1.02  # of the time, where consumers begin together and should not, or the other way round


@dataclass(frozen=True)
class Planes:
    """An operand in parts: its planes [batches, 3, rows, line], and what must run first to have them.  One matrix may
    stand for all batches."""

    operand: Value | PackedConstant
    batches: Size
    line: Size
    stages: tuple[Stage, ...] = ()
    temporaries: tuple[Value, ...] = ()


def bf16x6_products(
    problem: GraphProduct, slots: Slots, target: Target, graph: Graph | None, plain: Sequence[PlainCall], cost: Cost
) -> list[Candidate]:
    """The candidates of a float32 product in parts; none where it may be tf32, or the kernel does not take it.

    `graph` tells which operands are constants. `plain` has a launch by multiply-adds for each of `row_ranges` but the
    last, with its seconds: the ranges that are faster so are computed so. `cost` is without the seconds of the product.
    """
    if not _is_possible(problem, slots, target):
        return []
    left, right = _left(problem, graph), _right(problem, graph)
    machine = target.machine()
    splitting = sum(split_seconds(value, machine) for value in (*left.temporaries, *right.temporaries))
    spans = row_ranges(problem.rows)
    ranked = [ranked_configs(_in_numbers(problem, span, slots), machine)[:CONFIGS] for span in spans]
    found = []
    for configs in zip(*ranked, strict=False):
        calls: list[KernelCall] = []
        reasons: dict[str, Any] = {"epilogue": slots.function.__name__, "float32": REASON}
        for number, (span, (config, seconds)) in enumerate(zip(spans, configs, strict=True)):
            tile = config.described
            if span.at_most is not None and plain[number][1] < seconds:
                calls.append(plain[number][0])
                tile = "multiply-adds of float32"
            else:
                condition = None if span.at_most is None else (problem.rows, span.at_most)
                calls.append(_call(problem, slots, (left, right), config, condition, target))
            reasons["tile" if span.at_most is None else f"rows <= {span.at_most}"] = tile
        whole = replace(cost, seconds=cost.seconds + splitting + configs[-1][1])
        stages = (*left.stages, *right.stages, Stage(tuple(calls)))
        temporaries = (*left.temporaries, *right.temporaries)
        found.append(Candidate("hopper matmul bf16x6", stages, whole, temporaries, reasons))
    return [*found, *_in_slices(problem, slots, target, (left, right), replace(cost, seconds=cost.seconds + splitting))]


def _in_slices(
    problem: GraphProduct, slots: Slots, target: Target, planes: tuple[Planes, Planes], cost: Cost
) -> list[Candidate]:
    """The candidates whose tiles share their depth with others, for products of known sizes with few tiles."""
    rows, columns = problem.rows, problem.columns
    if problem.batches != 1 or not isinstance(rows, int) or not isinstance(columns, int):
        return []
    numbers = problem.at(rows, batches=1, output=float32)
    limit = _WORTHWHILE * ranked_configs(numbers, target.machine())[0][1]
    return [
        _sliced(problem, slots, target, planes, config, replace(cost, seconds=cost.seconds + seconds))
        for config, seconds in ranked_slices(numbers, target.machine())[:_SLICED]
        if seconds <= limit
    ]


def _sliced(
    problem: GraphProduct, slots: Slots, target: Target, planes: tuple[Planes, Planes], config: MatmulConfig,
    cost: Cost,
) -> Candidate:  # fmt: skip
    """The candidate of a config with slices: their sums, and what adds them."""
    left, right = planes
    sums = Value(f"{slots.stored.name}.slices", float32, (config.SLICES, problem.rows, problem.columns))
    launches = _call(problem, Slots(sums), planes, config, None, target), sum_of_parts(sums, slots, target)
    stages = (*left.stages, *right.stages, *(Stage((call,)) for call in launches))
    reasons = {"epilogue": slots.function.__name__, "float32": REASON, "tile": config.described}
    temporaries = (*left.temporaries, *right.temporaries, sums)
    return Candidate("hopper matmul bf16x6 in slices", stages, cost, temporaries, reasons)


def _in_numbers(problem: GraphProduct, span: RowRange, slots: Slots) -> MatmulProblem:
    """The product for the most rows of a range that are an example."""
    batches = 1 if problem.batches == 1 else max(2, expected(problem.batches))
    return problem.at(span.examples[0], batches=batches, output=slots.stored.dtype)


def _is_possible(problem: GraphProduct, slots: Slots, target: Target) -> bool:
    if not target.wgmma or target.tf32 or problem.a.dtype != float32 or problem.b_type != float32:
        return False
    if not isinstance(problem.b, Value) or slots.stored.dtype.bits < 16 or slots.stored.dtype.bits > 32:
        return False
    if not isinstance(problem.columns, int) or not isinstance(problem.depth, int):
        return False
    return problem.batches == 1 or problem.inner_batches == problem.batches


# Operands ------------------------------------------------------------------------------------------------------------


def _left(problem: GraphProduct, graph: Graph | None) -> Planes:
    """The left operand in parts, [rows, depth] or as it lies."""
    if problem.left_transposed:
        extents, strides = (problem.depth, problem.rows), (problem.a_depth, problem.a_row)
    else:
        extents, strides = (problem.rows, problem.depth), (problem.a_row, problem.a_depth)
    return planes_of(problem.a, extents, strides, problem.batches, problem.a_batch[1], graph)


def _right(problem: GraphProduct, graph: Graph | None) -> Planes:
    """The right operand in parts, [columns, depth] or as it lies."""
    if problem.right_transposed:
        extents, strides = (problem.depth, problem.columns), (problem.b_depth, problem.b_column)
    else:
        extents, strides = (problem.columns, problem.depth), (problem.b_column, problem.b_depth)
    assert isinstance(problem.b, Value)
    return planes_of(problem.b, extents, strides, problem.batches, problem.b_batch[1], graph)


def planes_of(
    value: Value, extents: tuple[Size, Size], strides: tuple[Size, Size], batches: Size, batch: Size,
    graph: Graph | None,
) -> Planes:  # fmt: skip
    """Matrices of so many rows and columns in parts, `batch` elements apart."""
    rows, columns = extents
    batches = 1 if batch == 0 else batches
    line = simplify(lift(ceil_divide(columns, LINE)) * LINE)
    if graph is not None and value in graph.constants:
        assert isinstance(rows, int) and isinstance(columns, int) and isinstance(line, int)
        return Planes(PackedConstant(value, parts_recipe(rows, columns, line)), batches, line)
    planes = Value(f"{value.name}.parts", bfloat16, (batches, PARTS, rows, line))
    width = min(_SPLIT_COLUMNS, next_power_of_2(expected(columns)))
    height = max(1, _SPLIT_BLOCK // width)
    sizes = {"rows": rows, "columns": columns, "x_batch": batch, "x_row": strides[0], "x_column": strides[1]}
    grid = (product((ceil_divide(columns, width), ceil_divide(rows, height), batches)), 1, 1)  # any number along x
    constants = {"BLOCK_R": height, "BLOCK_C": width}
    call = launch(split_float32, {"x": value, "planes": planes}, {**sizes, "line": line}, constants, grid)
    return Planes(planes, batches, line, (Stage((call,)),), (planes,))


def split_seconds(planes: Value, machine: Machine) -> float:
    """The time of a launch that splits: 4 bytes of a number are read, 6 written."""
    bytes_moved = expected(product(planes.shape)) * (float32.itemsize / PARTS + bfloat16.itemsize)
    return machine.launches.kernel + bytes_moved / machine.memory


def _call(
    problem: GraphProduct, slots: Slots, planes: tuple[Planes, Planes], config: MatmulConfig,
    condition: tuple[Size, int] | None, target: Target,
) -> KernelCall:  # fmt: skip
    """The launch of a config."""
    left, right = planes
    rows, columns, depth = problem.rows, problem.columns, problem.depth
    batches = problem.batches if config.SLICES == 1 else config.SLICES
    assert isinstance(columns, int)
    config = config._replace(
        EPILOGUE=slots.function, MULTIPLE=min(8, columns & -columns),
        ONE_A=batches != 1 and left.batches == 1, ONE_B=batches != 1 and right.batches == 1,
    )  # fmt: skip
    if isinstance(right.operand, PackedConstant):
        config = dependent(config, target.machine())

    def tiled(planes: Planes, extents: tuple[Size, Size], block: tuple[int, ...]) -> TiledOperand:
        shape = (simplify(lift(planes.batches) * PARTS), *extents)
        strides = (simplify(lift(extents[0]) * planes.line), planes.line, 1)
        return TiledOperand(planes.operand, shape, strides, block)

    operands: dict[str, Operand] = {
        "a": tiled(left, (depth, rows) if config.A_TRANSPOSED else (rows, depth), config.left_block),
        "b": tiled(right, (depth, columns) if config.B_TRANSPOSED else (columns, depth), config.right_block),
        "a_planes": left.operand, "b_planes": right.operand, "c": slots.stored,
        "M": rows, "N": columns, "K": depth, "a_line": left.line, "b_line": right.line, "batches": batches,
    }  # fmt: skip
    types = dict.fromkeys(("M", "N", "K", "a_line", "b_line", "batches"), "i32")
    bind_extra(slots.extra, operands, types)
    tiles = simplify(lift(ceil_divide(rows, config.BM)) * -(-columns // config.BN) * batches)
    grid = (minimum(tiles, target.machine().processors), 1, 1)
    return KernelCall(bf16x6_matmul, operands, types, {"CONFIG": config}, grid, condition)


# Configs -------------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1024)
def ranked_configs(problem: MatmulProblem, machine: Machine) -> tuple[tuple[MatmulConfig, float], ...]:
    """Configs that can be built with their estimated seconds, the quickest first."""
    estimates = [(config, seconds_of(config, problem, machine)) for config in _configs(problem)]
    return tuple(sorted(estimates, key=lambda entry: round(entry[1] * 1e9)))


@lru_cache(maxsize=1024)
def ranked_slices(problem: MatmulProblem, machine: Machine) -> tuple[tuple[MatmulConfig, float], ...]:
    """The same with the depth in slices, as many as fill all processors once or twice; with what adding them takes."""
    estimates = []
    for config in _configs(problem):
        tiles = -(-problem.rows // config.BM) * -(-problem.columns // config.BN)
        stages = -(-problem.depth // config.BK)
        for count in {waves * machine.processors // tiles for waves in (1, 2)}:
            slices = min(count, stages // _FEWEST_STAGES)
            if slices > 1:
                part = replace(problem, depth=-(-stages // slices) * config.BK, batches=slices)
                bytes_added = (slices + 1) * problem.rows * problem.columns * float32.itemsize
                adding = machine.launches.kernel + bytes_added / machine.memory
                sliced = config._replace(SLICES=slices, BATCHED=True)
                estimates.append((sliced, seconds_of(config, part, machine) + adding))
    return tuple(sorted(estimates, key=lambda entry: round(entry[1] * 1e9)))


def _configs(problem: MatmulProblem) -> Iterator[MatmulConfig]:
    for rows, columns in _TILES:
        config = MatmulConfig(
            BM=rows, BN=columns, CONSUMERS=rows // 64, PARTS=PARTS, OUTPUT=tl.dtype(problem.output),
            A_TRANSPOSED=problem.left_transposed, B_TRANSPOSED=problem.right_transposed, BATCHED=problem.batches > 1,
        )  # fmt: skip
        config = config._replace(STAGES=SHARED_BYTES // (config.stage_bytes + 16))
        apart = (config._replace(LAG=lag) for lag in range(config.CONSUMERS))
        yield from (each for each in apart if is_possible(each))


def seconds_of(config: MatmulConfig, problem: MatmulProblem, machine: Machine) -> float:
    """The estimated time of a product of planes."""
    stages = -(-problem.depth // config.BK)
    tiles = -(-problem.rows // config.BM) * -(-problem.columns // config.BN) * problem.batches
    waves = -(-tiles // machine.processors)
    operations = 2.0 * len(config.terms) * config.BM * config.BN * config.BK
    epilogue = 700 + config.BM * config.BN / 20
    clocks = _PARTS_FILL + waves * (stages * (operations / machine.wgmma + ADDING) + epilogue)
    # Of many waves the sooner start counts more, of one that the warpgroups add at different times.
    clocks *= 1 if (config.LAG > 0) == (waves == 1) or config.CONSUMERS == 1 else OTHER_LAG
    moved = (problem.rows + problem.columns) * problem.depth * PARTS * bfloat16.itemsize
    moved += problem.rows * problem.columns * problem.output.itemsize
    memory = moved * problem.batches / machine.memory
    return machine.launches.hopper_product + max(clocks / machine.wgmma_clock, memory)
