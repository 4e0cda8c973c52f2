"""The launch of `projection_kernel` for few rows: its config, by the estimate of products, and its operands."""

from __future__ import annotations

from functools import lru_cache, partial

from tilewright.errors import LaunchError
from tilewright.graph.core import Value
from tilewright.graph.projections import Projection
from tilewright.library.binding import bind_extra
from tilewright.library.candidate import KernelCall, Operand, TiledOperand
from tilewright.library.epilogue import Epilogue
from tilewright.library.matmul.hopper.choice import close_configs, dependent, finished
from tilewright.library.matmul.hopper.config import MatmulConfig
from tilewright.library.matmul.hopper.projection_config import MOST_ROWS, ProjectionHeads, suits
from tilewright.library.matmul.hopper.projection_kernel import project_heads
from tilewright.library.matmul.problem import GraphProduct, MatmulProblem
from tilewright.library.slots import Slots
from tilewright.symbolic import Size
from tilewright.targets.base import Target
from tilewright.targets.machine import Machine

PROJECTED_ROWS = (8, 16, MOST_ROWS)  # ends of the ranges of a run-time number of rows
_TYPES = {**dict.fromkeys(("M", "N", "K"), "i32"), "entries": "i64"}
_ROW_UNIT = 8  # elements of 16 bits, at whose multiples rows of tensor maps begin


def heads_of(projection: Projection, target: Target) -> ProjectionHeads:
    """The heads of a projection; raises `NotImplementedError` with the reason where the kernel cannot store them."""
    queries, keys, turn = projection.queries, projection.keys, projection.turn
    depth = projection.anchor.inputs[0].shape[-1]  # type: ignore[union-attr]
    heads = ProjectionHeads(queries.heads, keys.heads, queries.width, 0 if turn is None else turn.turned)
    if target.without_wgmma:
        raise NotImplementedError(target.without_wgmma)
    if not isinstance(depth, int) or depth % _ROW_UNIT or not projection.anchor.attributes["transpose_b"]:
        raise NotImplementedError("weights are [columns, depth], with rows of multiples of 16 bytes")
    if projection.anchor.attributes["transpose_a"]:
        raise NotImplementedError("rows lie along the depth")
    try:
        return heads.check()
    except LaunchError as error:
        raise NotImplementedError(str(error)) from error


def ranked_configs(
    problem: GraphProduct, rows: int, at_most: int, slots: Slots, machine: Machine
) -> tuple[tuple[MatmulConfig, float], ...]:
    """The configs for a number of rows, the likeliest first, each with the seconds of its product by the estimate."""
    priced = Epilogue(cost=slots.cost)
    return _usable(problem.at(rows, output=slots.stored.dtype, at_most=at_most, epilogue=priced), machine)


@lru_cache(maxsize=256)
def _usable(problem: MatmulProblem, machine: Machine) -> tuple[tuple[MatmulConfig, float], ...]:
    return tuple(close_configs(problem, machine, partial(_finished, problem=problem, machine=machine)))


def _finished(config: MatmulConfig, problem: MatmulProblem, machine: Machine) -> MatmulConfig | None:
    """A config of products as the kernel has it; None where it takes no such config."""
    whole = finished(config, problem)
    whole = None if whole is None else dependent(whole, machine)
    return whole if whole is not None and suits(whole) else None


def projection_call(
    projection: Projection, problem: GraphProduct, slots: Slots, heads: ProjectionHeads, config: MatmulConfig,
    condition: tuple[Size, int] | None,
) -> KernelCall:  # fmt: skip
    """The launch of a config."""
    config, turn = config._replace(EPILOGUE=slots.function), projection.turn
    weights, depth, keys = problem.b, problem.depth, projection.keys.stored
    assert isinstance(weights, Value) and isinstance(depth, int)
    half = heads.TURNED // 2
    pairs, steps = (2, heads.columns - half, depth), (half * depth, depth, 1)
    angles = (projection.slots, projection.slots) if turn is None else (turn.cosine, turn.sine)
    operands: dict[str, Operand] = {
        "a": TiledOperand(problem.a, (problem.rows, depth), (depth, 1), config.left_block),
        "pairs": TiledOperand(weights, pairs, steps, heads.pairs_block),
        "columns": TiledOperand(weights, (heads.columns, depth), (depth, 1), heads.columns_block),
        "cosine": angles[0], "sine": angles[1], "slots": projection.slots, "queries": projection.queries.stored,
        "keys": keys, "values": projection.values.stored, "M": problem.rows, "N": heads.columns, "K": depth,
        "entries": keys.shape[0],
    }  # fmt: skip
    types = dict(_TYPES)
    bind_extra(slots.extra, operands, types)
    grid = (-(-heads.columns // config.BN), 1, 1)
    return KernelCall(project_heads, operands, types, {"CONFIG": config, "HEADS": heads}, grid, condition)
