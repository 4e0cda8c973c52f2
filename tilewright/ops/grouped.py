"""Grouped products (experts), on arrays of a GPU."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import tilewright.language as tl
from tilewright import dtypes
from tilewright.errors import LaunchError, brief
from tilewright.launch.sizes import cdiv
from tilewright.library.activations import ACTIVATIONS
from tilewright.library.epilogue_parts import EpilogueParts
from tilewright.library.grouped.hopper import grouped_configs
from tilewright.library.grouped.hopper_launch import prepare_grouped, tiles_shape
from tilewright.library.grouped.kernel import grouped_matmul as plain_kernel
from tilewright.library.grouped.portable import tile_of
from tilewright.library.matmul.hopper.choice import unsupported
from tilewright.library.matmul.hopper.config import MatmulConfig
from tilewright.library.matmul.problem import MatmulProblem
from tilewright.measure.choosing import closest, ranked
from tilewright.ops import arrays
from tilewright.ops.arrays import ArrayView
from tilewright.ops.choosing import Alternatives, TrialCalls
from tilewright.settings import settings
from tilewright.targets.base import Target
from tilewright.targets.machine import Machine

logger = logging.getLogger("tilewright.ops")
_MOST_PLANS = 4096
_PLANS: dict[tuple[MatmulProblem, int, int | None, bool], _Plan] = {}  # by problem, groups, GPU, timing


def _check(a: ArrayView, b: ArrayView, ends: ArrayView, out: ArrayView) -> None:
    shapes = f"a {list(a.shape)}, b {list(b.shape)}, ends {list(ends.shape)}"
    if len(a.shape) != 2 or len(b.shape) != 3 or len(ends.shape) != 1:
        raise LaunchError(
            f"grouped_matmul takes a [rows, depth], b [groups, depth, columns], ends [groups]; got {shapes}"
        )
    if a.shape[1] != b.shape[1] or b.shape[0] != ends.shape[0] or not b.shape[0]:
        raise LaunchError(f"{shapes} do not fit each other: there is a group at least")
    if a.element not in arrays.FLOATS or b.element != a.element:
        raise LaunchError(
            f"a and b must both be float32, float16 or bfloat16, got {a.element.name} and {b.element.name}"
        )
    if ends.element not in (dtypes.int32, dtypes.int64):
        raise LaunchError(f"ends must be int32 or int64, got {ends.element.name}")
    if out.shape != (a.shape[0], b.shape[2]) or out.element not in arrays.FLOATS:
        raise LaunchError(f"out must be a float array of shape {[a.shape[0], b.shape[2]]}, got {list(out.shape)}")
    for name, found in (("a", a), ("ends", ends), ("out", out)):
        if not found.contiguous:
            raise LaunchError(f"{name} must be contiguous, got {found.described}")


def describe(a: ArrayView, b: ArrayView, out: ArrayView, activation: str) -> MatmulProblem:
    """The product of all rows, as if with one matrix; `right_transposed` where rows of the matrices lie together."""
    (rows, depth), (groups, _, columns) = a.shape, b.shape
    swapped = b.changed((groups, columns, depth), (b.strides[0], b.strides[2], b.strides[1]))
    obstacle = "" if swapped.contiguous or b.contiguous else "b: neither order of its last two axes is contiguous"
    if a.element.itemsize != 2:
        obstacle = obstacle or "operands have 16 bits there"
    if columns % 8 or depth % 8 or any(found.address % 16 for found in (a, b, out)):
        obstacle = obstacle or "rows are no multiples of 16 bytes, or arrays begin elsewhere"
    exact = out.element != dtypes.bfloat16 or bool(settings.interpret)
    return MatmulProblem(
        rows, columns, depth, 1, a.element, out.element, right_transposed=not swapped.contiguous,
        epilogue=EpilogueParts(activation=activation, exact=exact).epilogue, obstacle=obstacle,
    )  # fmt: skip


def hopper_configs(problem: MatmulProblem, groups: int, target: Target) -> list[tuple[MatmulConfig, float]]:
    """The Hopper configs with their expected seconds, the quickest first; none for the plain kernel."""
    reason = unsupported(problem, target)
    if reason:
        logger.info("grouped_matmul takes the plain kernel: %s", reason)
        return []
    found = grouped_configs(problem, groups, target.machine())
    return [(config._replace(**problem.epilogue.fields), seconds) for config, seconds in found]


@dataclass(eq=False)
class _Plan:
    """The Hopper configs for a problem, and which of them is taken; none for the plain kernel."""

    configs: list[MatmulConfig]
    alternatives: Alternatives


def _plan(problem: MatmulProblem, groups: int, ordinal: int | None, target: Target) -> _Plan:
    key = (problem, groups, ordinal, settings.tune)
    if key not in _PLANS:
        if len(_PLANS) >= _MOST_PLANS:
            _PLANS.clear()
        found = hopper_configs(problem, groups, target)
        configs, seconds = [config for config, _ in found], [expected for _, expected in found]
        text = f"{problem.shape_class.key} in {groups} groups"
        close = closest(seconds, effort=1) if seconds else []
        described = [config.described for config in configs]
        _PLANS[key] = _Plan(configs, Alternatives("grouped", text, ordinal, described, ranked(seconds), close))
    return _PLANS[key]


def _config(plan: _Plan, operands: Sequence[ArrayView], machine: Machine) -> MatmulConfig | None:
    """The config that a plan takes for a, b, ends and out."""

    def trials() -> TrialCalls:
        own = [*operands[:-1], arrays.empty_like(operands[-1])]
        return TrialCalls(lambda number: _prepared(plan.configs[number], own, machine))

    if not plan.configs:
        return None
    return plan.configs[plan.alternatives.choose(operands, trials if settings.tune else None)]


def _prepared(config: MatmulConfig, operands: Sequence[ArrayView], machine: Machine) -> Callable[[], Any]:
    """A call by a config on a, b, ends and out."""
    a, b, ends, out = operands
    tiles = arrays.empty(a, tiles_shape(config, a.shape[0], b.shape[0]), dtypes.int32)
    return prepare_grouped(config, a.base, b.base, ends.base, tiles, out.base, processors=machine.processors)


def grouped_matmul(a: Any, b: Any, ends: Any, *, activation: str | None = None, out: Any = None) -> Any:
    """activation(a[rows of group g] @ b[g]) for every group: the experts of a layer.

    `a` is [rows, depth], `b` [groups, depth, columns] (weights given as ``w.mT`` of [groups, columns, depth] are
    fastest), all bfloat16, float16 or float32; `ends` [groups] int32 or int64, on the GPU: group g has the rows from
    the end of the one before it, or from 0, to ``ends[g]``.  Ends that are below one before them count as that, those
    beyond the rows as their number; rows after the last end are as if the product were zero.  Sums are float32 and in
    one order.  `out` is [rows, columns], contiguous; activations are those of `matmul`.

    16-bit operands go to the Hopper kernel where it is and tensor copies can move them, in a config that is chosen as
    that of `matmul` is; everything else to a plain kernel, with its reason in the log ``tilewright.ops``.  Raises
    `LaunchError`.
    """
    if activation and activation not in ACTIVATIONS:
        raise LaunchError(f"activation={brief(activation)}: there are {', '.join(ACTIVATIONS)}")
    left, right, limits = arrays.view(a, "a"), arrays.view(b, "b"), arrays.view(ends, "ends")
    shape = (left.shape[0] if left.shape else 0, right.shape[-1] if right.shape else 0)
    target = arrays.view(arrays.empty(left, shape, left.element) if out is None else out, "out")
    _check(left, right, limits, target)
    place = arrays.common_place([left, right, limits, target], "grouped_matmul")
    if 0 in target.shape:
        return target.base
    problem = describe(left, right, target, activation or "")
    gpu = arrays.target_at(place.ordinal if place else None)
    operands = (left, right, limits, target)
    plan = _plan(problem, right.shape[0], place.ordinal if place else None, gpu)
    config = _config(plan, operands, gpu.machine())
    if config is not None:
        _prepared(config, operands, gpu.machine())()
    else:
        exact = EpilogueParts(activation=activation or "", exact=True).epilogue
        _run_plain(replace(problem, epilogue=exact), *operands, gpu.machine())
    return target.base


def _run_plain(
    problem: MatmulProblem, a: ArrayView, b: ArrayView, ends: ArrayView, out: ArrayView, machine: Machine
) -> None:
    """The launch of the plain kernel."""
    groups = b.shape[0]
    rows, columns, depth, threads = tile_of(problem.rows / groups, a.element)
    grid = (cdiv(problem.rows, rows) + groups, cdiv(problem.columns, columns), 1)
    plain_kernel[grid](
        a.base, b.base, ends.base, out.base, problem.rows, problem.columns, problem.depth, groups, *b.strides,
        BLOCK_M=rows, BLOCK_N=columns, BLOCK_K=depth, TYPE=tl.float32, EPILOGUE=problem.epilogue.function,
        num_warps=machine.warps(threads),
    )  # fmt: skip
