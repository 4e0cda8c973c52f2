"""Matrix products by the Hopper kernel of tensor copies and wgmma: configs for each range of rows, batches, gates,
norms of the rows that are read, early starts.

A number of rows that is known only at run time is divided into ranges, each with the config that suits it; the plan's
step then has one choice for each.  Weights that are constants are read before the kernels ahead have ended.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache, partial
from operator import itemgetter
from typing import Any

import tilewright.language as tl
from tilewright.dtypes import bfloat16, float8e4nv, float8e5, float16, float32, int8, int32, uint8
from tilewright.graph.core import Graph, Node, Value
from tilewright.graph.fusion import Group
from tilewright.launch.jit import JITFunction
from tilewright.library.binding import bind_extra, divides
from tilewright.library.candidate import Candidate, KernelCall, Operand, PackedConstant, Stage, TiledOperand
from tilewright.library.cost import Cost, expected, spans
from tilewright.library.epilogue import Epilogue
from tilewright.library.generated.elementwise import chain_operations, total_bytes
from tilewright.library.matmul.hopper import kernel as hopper
from tilewright.library.matmul.hopper.choice import ONE_WAVE_ROWS, close_configs, dependent, finished
from tilewright.library.matmul.hopper.config import MATMUL_PARAMETERS, MatmulConfig
from tilewright.library.matmul.problem import GraphProduct, MatmulProblem
from tilewright.library.packing import halves_recipe, order_recipe
from tilewright.library.slots import Slots
from tilewright.symbolic import Size, ceil_divide, lift, minimum, product, simplify, upper_bound
from tilewright.targets.base import Target
from tilewright.targets.machine import Machine

HOPPER_CONFIGS = 10  # configs that are candidates, besides those with ping-pong
ROW_RANGES = (8, 16, 64, 128, 256, 512, 1024, 4096)  # ends of the ranges of a run-time number of rows
_USUAL_ROWS = 1024  # at most, for which candidates of several ranges are compared with others
_TILED_BYTES = 16  # what strides and addresses of tensor copies are multiples of
_GATE_WIDTH = 8  # columns of either half that lie beside each other
_WIDE = (float16, bfloat16, float32, int32)  # what is stored
_NARROW = (int8, uint8, float8e4nv, float8e5)  # what is stored, and multiplied


@dataclass(frozen=True)
class _Product:
    """A product that the kernel can compute, with what surrounds it.  Its columns are those of the sums, twice those of
    a gated result."""

    problem: GraphProduct
    ready: bool  # b is a constant
    slots: Slots
    norm: JITFunction | None = None  # sums of squares of A's rows -> factors of these

    @property
    def columns(self) -> int:
        assert isinstance(self.problem.columns, int)
        return self.problem.columns

    @property
    def depth(self) -> int:
        assert isinstance(self.problem.depth, int)
        return self.problem.depth


def hopper_products(
    problem: GraphProduct, slots: Slots, group: Group, target: Target, graph: Graph | None = None,
    norm: Node | None = None,
) -> list[Candidate]:  # fmt: skip
    """The Hopper product in several configs; none where tensor copies cannot read the operands or it would change the
    precision. `graph` tells which operands are constants, `norm` how the few rows of A are normalised first."""
    b = problem.b
    if not isinstance(b, (Value, PackedConstant)):
        return []
    ready = isinstance(b, PackedConstant) or (graph is not None and b in graph.constants)
    if ready and isinstance(b, Value) and b.dtype == float32 and problem.b_column == 1 and b.rank == 2:
        # tf32 is multiplied along the depth only: constants are stored so.
        b = PackedConstant(b, order_recipe((1, 0)))
        problem = replace(problem, b=b, b_depth=1, b_column=problem.depth)
    return _candidates(_described(problem, ready, slots, target, norm), group, target)


def gated_products(
    problem: GraphProduct, slots: Slots, group: Group, target: Target, norm: Node | None = None
) -> list[Candidate]:
    """The same of a gated product with constant weights, whose halves are interleaved in memory."""
    if not isinstance(problem.b, Value):
        return []
    transposed = problem.b_depth == 1  # in the graph's words: [columns, depth]
    weights = PackedConstant(problem.b, halves_recipe(_GATE_WIDTH, transposed))
    return _candidates(_described(replace(problem, b=weights), True, slots, target, norm), group, target)


def _described(problem: GraphProduct, ready: bool, slots: Slots, target: Target, norm: Node | None) -> _Product | None:
    """The product, if the kernel can compute it."""
    columns, depth = problem.columns, problem.depth
    sums = 1 if slots.gate is None else 2  # that go into one result
    if not isinstance(columns, int) or not isinstance(depth, int):
        return None
    if problem.batches != 1 and (problem.inner_batches != problem.batches or problem.b_batch[1] == 0 or sums > 1):
        return None  # a map has one axis of batches, and no two of them at one place; A may have none
    stored = min(2, slots.stored.dtype.itemsize) * (columns // sums)
    line = problem.rows if problem.left_transposed else depth  # of A, as it lies
    aligned = stored % _TILED_BYTES == 0 and divides(_TILED_BYTES // problem.a.dtype.itemsize, line)
    if (
        not aligned
        or (problem.left_transposed and norm is not None)
        or not _multiplies(problem, target.tf32)
        or slots.stored.dtype not in (*_WIDE, *_NARROW)
    ):
        return None
    slots = slots.rounded(columns // sums)
    factors = rms_factors(depth, norm.attributes["epsilon"]) if norm is not None else None
    return _Product(problem, ready, slots, norm=factors)


def _multiplies(problem: GraphProduct, tf32: bool) -> bool:
    """Whether the kernel multiplies operands of these types, in this order: those of 8 bits, and float32 where it may
    be `tf32`, along the depth."""
    a_type, b_type = problem.a.dtype, problem.b_type
    if a_type in (float16, bfloat16):
        return b_type == a_type
    alike = a_type == b_type == float32 and tf32
    alike |= a_type in _NARROW and b_type in _NARROW and a_type.is_float == b_type.is_float
    return alike and problem.a_depth == 1 and problem.b_depth == 1


@lru_cache(maxsize=1024)
def rms_factors(depth: int, epsilon: float) -> JITFunction:
    """`factors(squares)`: what an RMS norm multiplies rows of `depth` elements by. Always the same for the same."""
    source = f"def rms_factors(squares):\n    return tl.rsqrt(squares * {1 / depth!r} + {epsilon!r})\n"
    return JITFunction.from_source(source, "rms_factors", {"tl": tl})


def _candidates(found: _Product | None, group: Group, target: Target) -> list[Candidate]:
    if found is None or not target.wgmma:
        return []
    if len(group.outputs) > 1 and upper_bound(product((found.problem.batches, found.problem.rows))) > ONE_WAVE_ROWS:
        return []  # others than the last are stored by threads, element by element
    ranges, epilogue = spans(found.problem.rows, ROW_RANGES), found.slots.epilogue
    ranked = [_configs(found, example, at_most, target.machine()) for example, at_most in ranges]
    candidates = []
    expected_seconds = [seconds for _, seconds in ranked[-1]]
    if len(ranges) > 1:
        # The first candidate has the first config of each range: one range's estimate does not choose for all.
        ranked = [(configs[0], *sorted(configs[1:], key=itemgetter(1))) for configs in ranked]
        usual = max((n for n, (example, _) in enumerate(ranges) if example <= _USUAL_ROWS), default=0)
        expected_seconds = sorted(seconds for _, seconds in ranked[usual])
    for number in range(max(map(len, ranked))):
        # Ranges with few configs have them again: the others are not to go without theirs.
        configs = [each[number % len(each)] for each in ranked]
        calls = []
        reasons: dict[str, Any] = {"epilogue": epilogue.function.__name__}
        if found.problem.a.dtype == float32:
            reasons["precision"] = "tf32"
        if epilogue.gate is not None:
            reasons["gate"] = epilogue.gate.__name__
        if found.norm is not None:
            reasons["norm"] = "of the rows that are read: their sums are scaled"
        for (_, at_most), (config, _) in zip(ranges, configs, strict=True):
            last = at_most is None or at_most >= upper_bound(found.problem.rows)
            condition = None if at_most is None or last else (found.problem.rows, at_most)
            calls.append(_call(found, config, condition, target))
            tile = "tile" if isinstance(found.problem.rows, int) else "rows" if last else f"rows <= {at_most}"
            reasons[tile] = config.described
        cost = _cost(found, group, expected_seconds[min(number, len(expected_seconds) - 1)])
        kind = "" if epilogue.gate is None else "gated "
        name = f"hopper {kind}matmul" if found.problem.batches == 1 else "hopper batched matmul"
        candidates.append(Candidate(name, (Stage(tuple(calls)),), cost, (), reasons))
    return candidates


def _cost(found: _Product, group: Group, seconds: float) -> Cost:
    elements = product([found.problem.batches, found.problem.rows, found.columns])
    flops = simplify(lift(elements) * found.depth * 2 + chain_operations(group.epilogue))
    return Cost(total_bytes(group.inputs, group.outputs), flops, seconds)


def _call(found: _Product, config: MatmulConfig, condition: tuple[Size, int] | None, target: Target) -> KernelCall:
    """The launch of a config."""
    rows, columns, depth, slots = found.problem.rows, found.columns, found.depth, found.slots
    config = config._replace(**slots.epilogue.fields)
    config = dependent(config, target.machine()) if found.ready else config
    matrices = _matrices(found)
    operands: dict[str, Operand] = {
        name: matrices[name].tiled(found.problem.batches, MATMUL_PARAMETERS.block(config, name))
        for name in MATMUL_PARAMETERS.tiled
    }
    operands |= {"M": rows, "N": columns, "K": depth, "batches": found.problem.batches}
    types = MATMUL_PARAMETERS.numbers
    bind_extra(slots.extra, operands, types)
    grid = (_grid(config, rows, columns, found.problem.batches, target.machine().slots(config.cluster)), 1, 1)
    return KernelCall(hopper.matmul, operands, types, {"CONFIG": config}, grid, condition)


@dataclass(frozen=True)
class _Matrix:
    """A matrix, or one for each batch, `step` elements apart; `rounded` to tf32 on its way."""

    value: Value | PackedConstant
    extents: tuple[Size, Size]
    step: Size
    rounded: bool = False

    def tiled(self, batches: Size, block: tuple[int, ...]) -> TiledOperand:
        """The operand of a kernel that moves tiles of `block`."""
        shape, strides = self.extents, (self.extents[1], 1)
        if batches == 1 or self.step == 0:
            return TiledOperand(self.value, shape, strides, block, rounded=self.rounded)
        return TiledOperand(self.value, (batches, *shape), (self.step, *strides), block, rounded=self.rounded)


def _matrices(found: _Product) -> dict[str, _Matrix]:
    """What the kernel multiplies and stores, by the names of its parameters."""
    problem, rows, columns, depth = found.problem, found.problem.rows, found.columns, found.depth
    assert isinstance(problem.b, (Value, PackedConstant))
    rounded = problem.a.dtype == float32
    left = (depth, rows) if problem.left_transposed else (rows, depth)
    right = (depth, columns) if problem.right_transposed else (columns, depth)
    stored = columns // 2 if found.slots.gate is not None else columns
    out = _Matrix(found.slots.stored, (rows, stored), simplify(lift(rows) * stored))
    return {
        "a": _Matrix(problem.a, left, problem.a_batch[1], rounded),
        "b": _Matrix(problem.b, right, problem.b_batch[1], rounded), "c": out, "c_tail": out,
    }  # fmt: skip


def _grid(config: MatmulConfig, rows: Size, columns: int, batches: Size, slots: int) -> Size:
    """CTAs of a launch, as `MatmulConfig.grid`, for rows and batches that may be known only at run time."""
    if isinstance(rows, int) and isinstance(batches, int):
        return config.grid(rows, columns, batches, slots)[0]
    tiles = lift(ceil_divide(rows, config.BM * config.SHARE_B)) * -(-columns // (config.BN * config.SHARE_A)) * batches
    if config.single:
        return simplify(tiles * config.cluster)
    return simplify(lift(minimum(simplify(tiles), slots // config.cluster)) * config.cluster)


def _configs(
    found: _Product, example: int, at_most: int | None, machine: Machine
) -> tuple[tuple[MatmulConfig, float], ...]:
    most = example if isinstance(found.problem.rows, int) else at_most or upper_bound(found.problem.rows)
    # One batch has a config without the axis of batches.
    batches = 1 if found.problem.batches == 1 else max(2, expected(found.problem.batches))
    slots, a_type, b_type = found.slots, found.problem.a.dtype, found.problem.b_type
    priced = Epilogue(cost=slots.cost)  # configs are ranked by it; its functions come later
    problem = found.problem.at(example, batches=batches, output=slots.stored.dtype, at_most=most, epilogue=priced)
    return _usable_configs(problem, machine, found.norm, None if b_type == a_type else tl.dtype(b_type))


@lru_cache(maxsize=1024)
def _usable_configs(
    problem: MatmulProblem, machine: Machine, norm: JITFunction | None, right: tl.dtype | None
) -> tuple[tuple[MatmulConfig, float], ...]:
    """The configs worth timing, the one to take untimed first; `right` is B's element type where it is not A's."""
    # A gate comes later; that there is one decides how results are stored, in memory that stages then lack.
    gate = problem.cost.gated or None
    finish = partial(finished, problem=problem, NORM=norm, RIGHT=right, GATE=gate)
    return tuple(close_configs(problem, machine, finish, HOPPER_CONFIGS))
