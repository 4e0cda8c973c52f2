"""Matrix products: described, planned, launched.

out = ops.matmul(x, weight.T, bias=bias, activation="gelu")
plan = ops.plan_matmul(x, weight.T)          # the same, prepared: plan(x, weight.T), print(plan.explain())
run = plan.bind(x, weight.T, out=out)        # a call on these arrays, for graphs and loops: run()
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from tilewright import dtypes
from tilewright.dtypes import DType
from tilewright.errors import LaunchError, brief
from tilewright.graph.quantization import SCALE_BLOCK
from tilewright.ir.core import Parameter
from tilewright.launch.sizes import cdiv
from tilewright.library.epilogue import Epilogue
from tilewright.library.epilogue_parts import EpilogueParts
from tilewright.library.matmul.hopper.choice import unsupported
from tilewright.library.matmul.hopper.config import MATMUL_PARAMETERS, MatmulConfig
from tilewright.library.matmul.hopper.kernel import matmul as hopper_matmul
from tilewright.library.matmul.hopper.ranked import RankedConfig, close
from tilewright.library.matmul.problem import MatmulProblem
from tilewright.measure import timers
from tilewright.measure.choosing import Choice
from tilewright.ops import arrays, calls
from tilewright.ops.arrays import ArrayView
from tilewright.ops.choosing import Alternatives, TrialCalls, described
from tilewright.ops.launches import Argument, bound_launch, launch_on_any_stream, pointer_types, tiled_views
from tilewright.ops.product_graphs import prepare_strided
from tilewright.settings import settings
from tilewright.targets.base import Remark

_INPUTS = (*arrays.FLOATS, *arrays.NARROW_TYPES)
_OUTPUTS = (*arrays.FLOATS, dtypes.int32, *arrays.NARROW_TYPES)
_MEMORY_BOUND_ROWS = 256  # up to which products are bound by the memory that weights come from


@dataclass(frozen=True)
class Operands:
    """The arrays of one call: a [(batches,) rows, depth], b [(batches,) depth, columns], out, and the epilogue's."""

    a: ArrayView
    b: ArrayView
    out: ArrayView
    extra: tuple[Any, ...]  # views and numbers, in the order of the epilogue's operands
    parts: EpilogueParts

    @property
    def views(self) -> list[ArrayView]:
        """All arrays."""
        return [self.a, self.b, self.out, *(entry for entry in self.extra if isinstance(entry, ArrayView))]


def interleave_gate(gate: Any, up: Any) -> Any:
    """Weights for `matmul(gate=…)`: [columns, depth] each, joined in groups of 8 rows: 8 of `gate`, then 8 of `up`.

    The result is [2 columns, depth]; the product takes it transposed.  Columns are a multiple of 8.
    """
    columns, depth = gate.shape
    if tuple(up.shape) != (columns, depth) or columns % 8:
        raise LaunchError(f"weights of a gate have equal shapes of a multiple of 8 rows, got {gate.shape}, {up.shape}")
    pairs = [part.reshape(columns // 8, 1, 8, depth) for part in (gate, up)]
    module = sys.modules[type(gate).__module__.partition(".")[0]]  # numpy, torch, cupy
    return module.concatenate(pairs, 1).reshape(2 * columns, depth)


# Describing


def _matrices(found: ArrayView, name: str) -> ArrayView:
    """An array with three axes: leading ones joined to one of batches; raises where they have no one stride."""
    if len(found.shape) < 2:
        raise LaunchError(f"{name} must have two axes or more, got the shape {list(found.shape)}")
    if len(found.shape) == 2:
        return found.changed((1, *found.shape), (0, *found.strides))
    lead, strides = found.shape[:-2], found.strides[:-2]
    for axis in range(len(lead) - 1):
        if lead[axis] != 1 and strides[axis] != strides[axis + 1] * lead[axis + 1]:
            raise LaunchError(f"the leading axes of {name}, {list(lead)}, have no common stride: make it contiguous")
    count = 1
    for extent in lead:
        count *= extent
    return found.changed((count, *found.shape[-2:]), (strides[-1], *found.strides[-2:]))


def _folded(left: ArrayView) -> ArrayView:
    """A [batches, rows, depth] array as [1, batches * rows, depth], where its strides allow that."""
    batches, rows, depth = left.shape
    if batches == 1 or left.strides[0] == rows * left.strides[1]:
        return left.changed((1, batches * rows, depth), (0, *left.strides[1:]))
    return left


def _tidy(found: ArrayView, size: int) -> tuple[ArrayView, str]:
    """The array with sound strides on axes of one element, and why hardware cannot move its tiles, or nothing."""
    strides = list(found.strides)
    transposed = strides[2] != 1 and found.shape[2] != 1
    inner, outer = (1, 2) if transposed else (2, 1)
    if found.shape[inner] == 1:
        strides[inner] = 1
    step = 16 // size
    packed = -(-found.shape[inner] // step) * step
    if found.shape[outer] == 1:
        strides[outer] = packed
    if found.shape[0] == 1:
        strides[0] = strides[outer] * found.shape[outer]
    tidy = found.changed(found.shape, strides)
    if strides[inner] != 1:
        return tidy, "neither of its last two axes is contiguous"
    rows = [strides[outer]] + ([strides[0]] if found.shape[0] > 1 else [])
    if any(stride * size % 16 for stride in rows):
        return tidy, "its rows are not multiples of 16 bytes apart"
    if any(stride <= 0 for stride in rows):
        return tidy, "its rows or batches lie over each other"
    if found.address % 16:
        return tidy, "it does not begin at a multiple of 16 bytes"
    return tidy, ""


def _scale(value: Any, name: str, length: int, blocks: tuple[int, ...]) -> tuple[str, ArrayView]:
    """The kind of a scale by its shape, and its view."""
    found = arrays.view(value, name)
    if found.element != dtypes.float32:
        raise LaunchError(f"{name} must be float32, got {found.element.name}")
    count = 1
    for extent in found.shape:
        count *= extent
    if tuple(found.shape) == blocks and _has_rows_apart(found):
        return "block", found  # where depth is one block these may be the scales of rows, too: `_epilogue` knows
    if count == 1:
        return "tensor", found
    if count == length and found.contiguous:
        return ("row" if name == "scale_a" else "column"), found
    numbers = f"one number, {length}, or blocks {list(blocks)}" if blocks else f"one number or {length}"
    raise LaunchError(f"{name} has {numbers}, contiguous; got {found.described}")


def _has_rows_apart(found: ArrayView) -> bool:
    """Whether the rows of a matrix are contiguous, and one after the other at any distance, or all the same."""
    (rows, columns), (distance, step) = found.shape, found.strides
    return (step == 1 or columns == 1) and (rows == 1 or distance == 0 or distance >= columns)


def epilogue_of(
    arguments: Mapping[str, Any], rows: int, columns: int, depth: int, output: DType, integers: bool = False
) -> tuple[EpilogueParts, tuple[Any, ...]]:
    """The epilogue that the arguments ask for, and its operands; `rows` are those of all batches, sums may be of
    `integers`."""
    given: dict[str, Any] = {}
    kinds: dict[str, Any] = {}
    for name, length in (("scale_a", rows), ("scale_b", columns)):
        if arguments.get(name) is not None:
            across = rows if name == "scale_a" else cdiv(columns, SCALE_BLOCK)
            kinds[name], given[name] = _scale(arguments[name], name, length, (across, cdiv(depth, SCALE_BLOCK)))
    if (kinds.get("scale_a") == "block") != (kinds.get("scale_b") == "block") and depth <= SCALE_BLOCK:
        for name, length in (("scale_a", rows), ("scale_b", columns)):
            if kinds.get(name) == "block":
                kinds[name], given[name] = _scale(arguments[name], name, length, ())
    if (kinds.get("scale_a") == "block") != (kinds.get("scale_b") == "block"):
        raise LaunchError("scales of blocks go with each other: scale_a and scale_b must both be of blocks")
    for name in ("activation", "gate"):
        calls.checked_activation(arguments.get(name), name)
    if arguments.get("gate") and (columns % 16 or any(arguments.get(name) is not None for name in _BESIDES_GATE)):
        raise LaunchError("gate= takes columns in multiples of 16, and nothing else with it but out")
    if arguments.get("bias") is not None:
        given["bias"] = arrays.float_view(arguments["bias"], "bias")
        if given["bias"].shape != (columns,) or not given["bias"].contiguous:
            raise LaunchError(f"bias must be contiguous of shape [{columns}], got {given['bias'].described}")
    if arguments.get("residual") is not None:
        found = arrays.float_view(arguments["residual"], "residual")
        if found.shape != tuple(arguments["shape"]):
            raise LaunchError(
                f"residual must have the result's shape {list(arguments['shape'])}, got {found.described}"
            )
        found = _matrices(found, "residual")
        batches, count, _ = found.shape
        stride = found.strides[1] if count > 1 else found.strides[0] if batches > 1 else columns
        if (found.strides[2] != 1 and columns > 1) or (batches > 1 and found.strides[0] != stride * count):
            raise LaunchError("residual must have contiguous rows, evenly apart over all batches: make it contiguous")
        given["residual"], given["residual_stride"] = found, stride
    inverse = calls.scale_of_results(output, output.bits > 8, arguments.get("out_scale"))
    given["rows"], given["columns"], given["inverse_scale"] = rows, columns, inverse[0] if inverse else 1.0
    if kinds.get("scale_a") == "block":
        given["scale_a_stride"], given["scale_b_stride"] = given["scale_a"].strides[0], given["scale_b"].strides[0]
    bias, residual = given.get("bias"), given.get("residual")
    in_blocks = kinds.get("scale_a") == "block"
    parts = EpilogueParts(
        kinds.get("scale_a", ""), kinds.get("scale_b", ""), bias.element if bias else None,
        arguments.get("activation") or "", residual.element if residual else None, arguments.get("gate") or "",
        exact=(output.bits > 8 and output != dtypes.bfloat16) or bool(settings.interpret), output=output,
        sums=dtypes.int32 if integers and not in_blocks else dtypes.float32,
    )  # fmt: skip
    return parts, tuple(given[name] for name in parts.epilogue.operands)


_BESIDES_GATE = ("scale_a", "scale_b", "bias", "activation", "residual")


def _check_inputs(left: ArrayView, right: ArrayView, output: DType) -> None:
    if left.element not in _INPUTS:
        raise LaunchError(f"{left.element.name} is not multiplied: there are {', '.join(e.name for e in _INPUTS)}")
    if left.element != right.element:
        kinds = (left.element, right.element)
        if not all(each in arrays.NARROW_TYPES for each in kinds) or kinds[0].is_float != kinds[1].is_float:
            raise LaunchError(f"a and b must have one element type, got {kinds[0].name} and {kinds[1].name}")
    if output not in _OUTPUTS or (output == dtypes.int32 and not left.element.is_integer):
        raise LaunchError(f"products of {left.element.name} are not stored as {output.name}")


def describe(a: Any, b: Any, out: Any, out_dtype: Any, arguments: Mapping[str, Any]) -> tuple[MatmulProblem, Operands]:
    """The problem that arguments of `matmul` pose, and its arrays; `out` is allocated where it is None."""
    first, second = arrays.view(a, "a"), arrays.view(b, "b")
    left, right = _matrices(first, "a"), _matrices(second, "b")
    target = arrays.view(out, "out") if out is not None else None
    small = dtypes.int32 if left.element.is_integer else dtypes.bfloat16
    output = arrays.result_type(left.element if left.element.itemsize > 1 else small, target, out_dtype)
    _check_inputs(left, right, output)
    columns = right.shape[2] // (2 if arguments.get("gate") else 1)
    shape = (*first.shape[:-1], columns)
    if left.shape[2] != right.shape[1] or right.shape[0] not in (1, left.shape[0]):
        raise LaunchError(f"a {list(first.shape)} and b {list(second.shape)} do not fit each other")
    if target is None:
        target = arrays.view(arrays.empty(first, shape, output), "out")
    if target.shape != shape:
        raise LaunchError(f"out must have the shape {list(shape)}, got {list(target.shape)}")
    result = _matrices(target, "out")
    if right.shape[0] == 1:
        left, result = _folded(left), _folded(result)
        if left.shape[0] != result.shape[0]:  # one of them could not be folded
            left, result = _matrices(first, "a"), _matrices(target, "out")
    batches, rows, depth = left.shape
    if right.shape[0] == 1 and batches > 1:
        right = right.changed((batches, *right.shape[1:]), (0, *right.strides[1:]))
    arguments = {**arguments, "shape": shape}
    parts, extra = epilogue_of(arguments, batches * rows, right.shape[2], depth, output, left.element.is_integer)
    if parts.in_blocks and batches > 1:
        raise LaunchError(
            f"scales of blocks are for one matrix each, got {batches} batches: multiply each batch alone, "
            "or give one matrix b and a contiguous a"
        )
    epilogue = parts.epilogue
    size = left.element.itemsize
    left, left_obstacle = _tidy(left, size)
    right, right_obstacle = _tidy(right, size)
    result, out_obstacle = _tidy(result, output.itemsize)
    if result.strides[2] != 1:
        raise LaunchError("out must have contiguous rows")
    left_transposed, right_transposed = left.strides[2] != 1, right.strides[2] == 1 and right.strides[1] != 1
    found = {"a": left_obstacle, "b": right_obstacle, "out": out_obstacle}
    obstacle = "; ".join(f"{name}: {reason}" for name, reason in found.items() if reason)
    if size != 2 and (left_transposed or right_transposed):
        obstacle = obstacle or f"operands of {8 * size} bits must be contiguous along the depth"
    if depth == 0:
        obstacle = "the depth is 0"
    problem = MatmulProblem(
        rows, right.shape[2], depth, batches, left.element, output, left_transposed, right_transposed, epilogue,
        pointer_types(extra), bool(arguments.get("weights_ready")),
        left.element == dtypes.float32 and arguments.get("precision") == "ieee", obstacle, _aligned(epilogue, extra),
        right=None if right.element == left.element else right.element,
    )  # fmt: skip
    return problem, Operands(left, right, result, extra, parts)


def _aligned(epilogue: Epilogue, extra: tuple[Any, ...]) -> bool:
    """Whether the arrays of an epilogue begin at multiples of 16 bytes, and the rows of a residual."""
    given = dict(zip(epilogue.operands, extra, strict=True))
    begin = all(entry.address % 16 == 0 for entry in extra if isinstance(entry, ArrayView))
    return begin and (
        "residual" not in given or given["residual_stride"] * given["residual"].element.itemsize % 16 == 0
    )


# Planning


class MatmulPlan:
    """A prepared product: `config` on Hopper (None: a kernel of engines), `choice` how it was found, `remarks` what to
    know.  ``plan(a, b, …)`` takes the arguments of `matmul`, which must pose the same problem."""

    def __init__(self, problem: MatmulProblem, ordinal: int | None, effort: int) -> None:
        self.problem = problem
        self.ordinal = ordinal
        self.effort = effort
        self.remarks: list[Remark] = []
        self.ranked: list[RankedConfig] = []
        self._kernels: dict[MatmulConfig, Any] = {}
        self._strided: dict[tuple[Any, ...], calls.Prepared] = {}  # by what they depend on besides the problem
        self.target = arrays.target_at(ordinal)
        self.machine = self.target.machine()
        reason = unsupported(problem, self.target)
        if not reason:
            self.ranked = list(close(problem.shape_class, self.machine))
            reason = "" if self.ranked else "no config takes it"
        if reason:
            self.remarks.append(Remark("matmul", f"takes a kernel of engines: {reason}"))
        numbers, labels = range(len(self.ranked)), list(map(str, self.ranked))
        self.alternatives = Alternatives("matmul", problem.shape_class.key, ordinal, labels, numbers, numbers)

    @property
    def choice(self) -> Choice | None:
        """How the config was found; None until it is."""
        return self.alternatives.choice

    @property
    def config(self) -> MatmulConfig | None:
        """The config that was chosen, or will be when nothing is timed."""
        return self.ranked[self.alternatives.index].config if self.ranked else None

    def explain(self) -> str:
        """The problem, what was chosen, why, and what else there was."""
        lines = [self.problem.key]
        lines += [f"  {remark.message}" for remark in self.remarks]
        lines += [f"  {line}" for prepared in self._strided.values() for line in prepared.explain()]
        if self.ranked:
            lines.append(f"  {len(self.ranked)} candidates of the model; {described(self.alternatives)}:")
        choice = self.choice or Choice(0, "estimate")
        for index, candidate in enumerate(self.ranked):
            measured = f", {choice.microseconds[index]:.1f} us measured" if index in choice.microseconds else ""
            lines.append(f"  {'->' if index == choice.index else '  '} {candidate}{measured}")
        lines += [f"     failed: {self.ranked[index]}: {reason}" for index, reason in choice.failures.items()]
        return "\n".join(lines)

    def __call__(self, a: Any, b: Any, *, out: Any = None, out_dtype: Any = None, **arguments: Any) -> Any:
        problem, operands = describe(a, b, out, out_dtype, arguments)
        if problem != self.problem:
            raise LaunchError(f"the plan is for {self.problem.key}, the arguments need {problem.key}")
        self.launch(operands)
        return operands.out.base

    def bind(self, a: Any, b: Any, *, out: Any, **arguments: Any) -> Callable[[], Any]:
        """A prepared call on these arrays, which must stay alive; it runs on the stream that is current at the call."""
        problem, operands = describe(a, b, out, None, arguments)
        if problem != self.problem:
            raise LaunchError(f"the plan is for {self.problem.key}, the arguments need {problem.key}")
        return self.runner(operands)

    def launch(self, operands: Operands) -> None:
        """Run on the arrays of one call."""
        self.runner(operands)()

    def runner(self, operands: Operands) -> Callable[[], Any]:
        """A call on these arrays."""
        problem = self.problem
        if problem.rows * problem.columns * problem.batches == 0:
            return lambda: None
        if not self.ranked:
            return partial(self._run_portable, operands)
        if self.alternatives.choice is None:
            self.alternatives.choose(operands.views, partial(self._trials, operands) if self.effort else None)
        return self._runner(self.ranked[self.alternatives.index].config, operands)

    def _trials(self, operands: Operands) -> TrialCalls:
        own = replace(operands, out=arrays.empty_like(operands.out))

        def call(number: int) -> Callable[[], Any]:
            return self._runner(self.ranked[number].config, own)

        if self.problem.rows > _MEMORY_BOUND_ROWS:
            return TrialCalls(call)
        assert self.ordinal is not None
        # Few rows: what counts is how fast weights come from memory.
        cold = [replace(own, b=each) for each in arrays.cold(own.b, self.ordinal, self.target.l2_bytes)]

        def launches(number: int) -> list[timers.Launch]:
            return [self._launch_of(self.ranked[number].config, each) for each in cold]

        return TrialCalls(call, launches, min(candidate.seconds for candidate in self.ranked))

    # Launching

    def compiled(self, config: MatmulConfig) -> Any:
        """The kernel of a config, for the GPU of the plan."""
        if config not in self._kernels:
            types = MATMUL_PARAMETERS.types(config, self.problem.operands)
            facts = kernel_facts(self.problem)
            self._kernels[config] = hopper_matmul.compile(types, {"CONFIG": config}, facts, target=self.target)
        return self._kernels[config]

    def _grid(self, config: MatmulConfig) -> tuple[int, int, int]:
        problem, slots = self.problem, self.machine.slots(config.cluster)
        return config.grid(problem.rows, problem.columns, problem.batches, slots)

    def _arguments(self, config: MatmulConfig, operands: Operands) -> list[Argument]:
        """What a launch is given."""
        problem = self.problem
        left, right, out = _map_views(config, operands)
        rounded = problem.input == dtypes.float32
        tiled = tiled_views(MATMUL_PARAMETERS, left, right, out, out, rounded=("a", "b") if rounded else ())
        return [*tiled, problem.rows, problem.columns, problem.depth, problem.batches, *operands.extra]

    def _start(self, config: MatmulConfig) -> Any:
        return self.compiled(config).start(self.ordinal)

    def _runner(self, config: MatmulConfig, operands: Operands) -> Callable[[], Any]:
        return bound_launch(
            hopper_matmul, config, partial(self._start, config), self._grid(config), self._arguments(config, operands),
            operands.views, [operands.out],
        )  # fmt: skip

    def _launch_of(self, config: MatmulConfig, operands: Operands) -> timers.Launch:
        """A launch on these arrays, on any stream."""
        arguments = self._arguments(config, operands)
        return launch_on_any_stream(self._start(config), self._grid(config), arguments, operands)

    def _run_portable(self, operands: Operands) -> None:
        """The kernels of engines that read any strides."""
        extra = dict(zip(operands.parts.epilogue.operands, operands.extra, strict=True))
        given = {"a": operands.a, "b": operands.b}
        given |= {name: found for name, found in extra.items() if isinstance(found, ArrayView)}
        numbers = (extra.get("residual_stride", 0), extra.get("inverse_scale", 1.0))
        unaligned = any(found.address % 16 for found in operands.views)
        scales = (extra.get("scale_a_stride", 0), extra.get("scale_b_stride", 0))
        key = (operands.a.strides, operands.b.strides, *numbers, *scales, unaligned)
        if key not in self._strided:
            place, timed = arrays.common_place(operands.views, "matmul"), bool(self.effort)
            self._strided[key] = prepare_strided(
                self.problem, operands.parts, given, *numbers, operands.views, place, timed
            )
        self._strided[key].run(given, operands.out)


def kernel_facts(problem: MatmulProblem) -> dict[str, Parameter]:
    """What is known of the kernel's arguments, so that neighbours are loaded together: what divides them."""
    columns = min(16, problem.columns & -problem.columns)
    divisors = {"N": columns}
    for number, (name, kind) in enumerate(zip(problem.epilogue.operands, problem.operands, strict=True)):
        if name == "columns":
            divisors[f"extra_{number}"] = columns
        elif problem.aligned and (kind.startswith("*") or name == "residual_stride"):
            divisors[f"extra_{number}"] = 16 if kind.startswith("*") else 4  # elements of 16 bytes, or more
    return {name: Parameter(name, divisor) for name, divisor in divisors.items() if divisor > 1}


def _map_views(config: MatmulConfig, operands: Operands) -> tuple[ArrayView, ArrayView, ArrayView]:
    """The arrays as the kernel's maps want them: a [M, K] or [K, M], b [N, K] or [K, N], out [M, N]."""
    left = operands.a if not config.A_TRANSPOSED else _swapped(operands.a)
    right = operands.b if config.B_TRANSPOSED else _swapped(operands.b)
    views = (left, right, operands.out)
    if config.BATCHED:
        return views
    flat = [found.changed(found.shape[1:], found.strides[1:]) for found in views]
    return flat[0], flat[1], flat[2]


def _swapped(found: ArrayView) -> ArrayView:
    shape, strides = found.shape, found.strides
    return found.changed((shape[0], shape[2], shape[1]), (strides[0], strides[2], strides[1]))


_PLANS: dict[tuple[Any, ...], MatmulPlan] = {}
_MOST_PRODUCT_PLANS = 4096


def _plan(problem: MatmulProblem, operands: Operands, effort: int | None) -> MatmulPlan:
    place = arrays.common_place(operands.views, "matmul")
    level = (1 if settings.tune else 0) if effort is None else effort
    key = (problem, place.ordinal if place else None, level)
    found = _PLANS.get(key)
    if found is None:
        if len(_PLANS) >= _MOST_PRODUCT_PLANS:
            _PLANS.clear()
        found = _PLANS[key] = MatmulPlan(problem, place.ordinal if place else None, level)
    return found


def plan_matmul(
    a: Any, b: Any, *, out: Any = None, out_dtype: Any = None, effort: int | None = None, **arguments: Any
) -> MatmulPlan:
    """A prepared product for arrays like these: chooses its config.  The arguments are those of `matmul`."""
    problem, operands = describe(a, b, out, out_dtype, arguments)
    plan = _plan(problem, operands, effort)
    if not settings.interpret:
        plan.runner(operands)
    return plan


def explain_matmul(
    a: Any, b: Any, *, out: Any = None, out_dtype: Any = None, effort: int | None = None, **arguments: Any
) -> str:
    """What `matmul` with these arguments runs, and why; see `MatmulPlan.explain`."""
    return plan_matmul(a, b, out=out, out_dtype=out_dtype, effort=effort, **arguments).explain()


def matmul(
    a: Any,
    b: Any,
    *,
    out: Any = None,
    out_dtype: Any = None,
    bias: Any = None,
    activation: str | None = None,
    residual: Any = None,
    scale_a: Any = None,
    scale_b: Any = None,
    gate: str | None = None,
    precision: str = "tf32",
    weights_ready: bool = False,
    effort: int | None = None,
    out_scale: float | None = None,
) -> Any:
    """activation((a @ b) * scale_a * scale_b + bias) + residual.

    `a` is [..., M, K], `b` [K, N] or [..., K, N]; any strides (weights given as ``w.T`` of [N, K] are fastest).
    Element types: bfloat16, float16, float32 (as tf32, or exactly: ``precision="ieee"``), float8 (e4m3fn, e5m2), int8,
    uint8; the two of 8-bit floats, and of integers, may differ.  Sums are float32, of integers int32.  `out` [..., M,
    N] has contiguous rows of `out_dtype`: float32, float16, bfloat16, of integers also int32 (scaled results without
    their fraction), and int8, uint8, float8 of results divided by `out_scale`, rounded to the nearest and saturated.
    The default is int32 for integers, bfloat16 for float8, else the type of `a`.

    `bias` is [N], `residual` like out, `activation` one of relu, gelu, gelu_tanh, silu, sigmoid.  Activations of
    bfloat16 results are accurate to 4e-4 of their argument.  Scales are float32 arrays: `scale_a` of one number, of M,
    or [M, K / 128]; `scale_b` of one number, of N, or [N / 128, K / 128].  The two block forms go together, for one
    matrix without batches; their rows may be any distance apart, and their sums over 128 of depth are promoted to
    float32.  `gate` (an activation): gate(left columns) * right columns, [..., M, N / 2], with `b` from
    `interleave_gate`.  `weights_ready` promises that no running kernel writes `b`, so that the product may prefetch it
    before those kernels have ended.

    `effort` 0 uses the config with the least estimate; otherwise (`settings.tune`) close ones are timed once per shape
    class and recorded on disk.  Arrays that tensor copies cannot move go to the kernels that engines have for other
    GPUs; `explain_matmul` says
    why.  Raises `LaunchError` for unsupported arguments.
    """
    arguments = {
        "bias": bias, "activation": activation, "residual": residual, "scale_a": scale_a, "scale_b": scale_b,
        "gate": gate, "precision": precision, "weights_ready": weights_ready, "out_scale": out_scale,
    }  # fmt: skip
    if precision not in ("tf32", "ieee"):
        raise LaunchError(f"precision={brief(precision)}: expected tf32 or ieee")
    problem, operands = describe(a, b, out, out_dtype, arguments)
    plan = _plan(problem, operands, effort)
    plan.launch(operands)
    return operands.out.base
