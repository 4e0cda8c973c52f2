"""The plan's native code: sizes, arguments and choices are what the plan says, for all values of the symbols."""

import ctypes
import struct

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.host.handmade import compile_text
from tilewright import symbolic
from tilewright.build import plan_codegen
from tilewright.runtime.glue import glue
from tilewright.runtime.library import load_objects
from tilewright.runtime.parallel import run_parallel
from tilewright.runtime.plan import Argument, BufferReference, ContextLayout, LaunchChoice, Plan, PlanStep, TensorSpec
from tilewright.symbolic import Size, Symbol, evaluate, symbol

SYMBOLS = {name: Symbol(name, low, high) for name, low, high in (("a", 0, 50), ("b", 1, 9), ("c", 7, 1000))}
A, B, C = (symbol(entry.name, entry.low, entry.high) for entry in SYMBOLS.values())

# Copies the slots after the first to the memory that the first one points to.
DUMP = """
define void @{name}(ptr %arguments, ptr %scratch, i64 %begin, i64 %end) {{
  %to = load ptr, ptr %arguments
  %from = getelementptr i64, ptr %arguments, i64 1
  call void @llvm.memcpy.p0.p0.i64(ptr %to, ptr %from, i64 {bytes}, i1 false)
  store i64 {mark}, ptr %to
  ret void
}}
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
"""


def divided(left: Size, right: Size) -> Size:
    return symbolic.floor_divide(left, symbolic.maximum(right, 1))


def remainder(left: Size, right: Size) -> Size:
    return symbolic.modulo(left, symbolic.maximum(right, 1))


SIZES = st.recursive(
    st.sampled_from([A, B, C, 1, 2, 3, 64]),
    lambda children: st.builds(
        lambda operation, left, right: operation(symbolic.lift(left), right),
        st.sampled_from(
            [
                lambda left, right: left + right,
                lambda left, right: left - symbolic.lift(right),
                lambda left, right: left * right,
                divided,
                remainder,
                symbolic.maximum,
                symbolic.minimum,
            ]
        ),
        children,
        children,
    ),
    max_leaves=6,
)


def run_plan(plan: Plan, kernels: dict[str, str], symbols: dict[str, int], result: np.ndarray) -> None:
    """Compile and run a plan whose only output is `result`."""
    text = plan_codegen.generate(plan, "plan", {name: name for name in kernels}, {"w": 640})
    images = [compile_text(source) for source in (text, *kernels.values())]
    library = load_objects(images, ["plan"], glue().imports)
    layout = ContextLayout.of(plan)
    words = [0] * layout.size
    words[layout.weights] = 1000
    words[layout.arena] = 5000
    for name, value in symbols.items():
        words[layout.word("symbol", name)] = value
    words[layout.word("output", "y")] = result.ctypes.data
    context = (ctypes.c_int64 * layout.size)(*words)
    run_parallel(library.address("plan"), ctypes.addressof(context), 0, 2)


def make_plan(steps: list[PlanStep], count: int) -> Plan:
    return Plan(SYMBOLS, [], [TensorSpec("y", "int64", (count,))], steps, 0, 0)


def dump(name: str, count: int, mark: int = 1) -> str:
    return DUMP.format(name=name, bytes=8 * count, mark=mark)


@given(st.lists(SIZES, min_size=1, max_size=5), st.integers(0, 50), st.integers(1, 9), st.integers(7, 1000))
@settings(max_examples=60, deadline=None)
def test_sizes_are_evaluated_as_python_does(sizes, a, b, c):
    values = {"a": a, "b": b, "c": c}
    expected = [evaluate(size, values) for size in sizes]
    if any(abs(value) >= 2**60 for value in expected):
        return
    arguments = (
        Argument("*i64", BufferReference("output", "y")),
        Argument("i64", 0),
        *(Argument("i64", size) for size in sizes),
    )
    step = PlanStep("dump", (LaunchChoice("dump", arguments, (1, 1, 1)),), ())
    count = len(sizes) + 4  # the mark's slot, the sizes, the grid
    result = np.zeros(count, np.int64)
    run_plan(make_plan([step], count), {"dump": dump("dump", count)}, values, result)
    assert result.tolist() == [1, *expected, 1, 1, 1]


def test_arguments_of_every_kind():
    arguments = (
        Argument("*i64", BufferReference("output", "y")),
        Argument("i64", 0),
        Argument("*f32", BufferReference("weight", "w", 8)),
        Argument("*f32", BufferReference("arena", "t", B * 64)),
        Argument("f32", 1.5),
        Argument("f64", -2.5),
        Argument("f16", 0.1),
        Argument("bf16", 3),
        Argument("f32", float("-inf")),
        Argument("i32", -3),
    )
    step = PlanStep("dump", (LaunchChoice("dump", arguments, (B, 2, 1)),), ())
    result = np.zeros(12, np.int64)
    run_plan(make_plan([step], 12), {"dump": dump("dump", 12)}, {"a": 0, "b": 3, "c": 7}, result)
    assert result.tolist() == [
        1,
        1000 + 640 + 8,
        5000 + 192,
        struct.unpack("<I", struct.pack("<f", 1.5))[0],
        struct.unpack("<q", struct.pack("<d", -2.5))[0],
        int(np.float16(0.1).view(np.uint16)),
        int(np.array(3, ml_dtypes.bfloat16).view(np.uint16)),
        0xFF800000,
        -3,
        3,
        2,
        1,
    ]


@pytest.mark.parametrize("a, kernel", [(0, 11), (5, 11), (6, 12), (20, 12), (21, 13), (50, 13)])
@pytest.mark.parametrize("nanoseconds", [0, 1, 10**6, A * 8000])
def test_the_first_choice_that_applies_is_taken(a, kernel, nanoseconds):
    arguments = (Argument("*i64", BufferReference("output", "y")), Argument("i64", 0))
    limits = {"few": (A, 5), "some": (A * 2, 40), "many": None}
    choices = tuple(
        LaunchChoice(name, arguments, (B, 1, 1)) if limit is None else LaunchChoice(name, arguments, (B, 1, 1), *limit)
        for name, limit in limits.items()
    )
    kernels = {name: dump(name, 1, mark) for name, mark in zip(limits, (11, 12, 13), strict=True)}
    result = np.zeros(1, np.int64)
    step = PlanStep("choose", choices, (), bytes=symbolic.lift(nanoseconds) * 8)
    run_plan(make_plan([step], 1), kernels, {"a": a, "b": 1, "c": 7}, result)
    assert result[0] == kernel


def test_a_grid_without_instances_is_skipped():
    arguments = (Argument("*i64", BufferReference("output", "y")), Argument("i64", 0))
    result = np.zeros(1, np.int64)
    step = PlanStep("nothing", (LaunchChoice("dump", arguments, (B, A, 1)),), ())
    run_plan(make_plan([step], 1), {"dump": dump("dump", 1)}, {"a": 0, "b": 1, "c": 7}, result)
    assert result[0] == 0


def test_plans_that_cannot_be_are_refused():
    conditional = LaunchChoice("dump", (), (1, 1, 1), A, 5)
    with pytest.raises(ValueError, match="last choice must apply always"):
        plan_codegen.generate(make_plan([PlanStep("s", (conditional,), ())], 1), "plan", {"dump": "dump"}, {})
    symbolic_float = LaunchChoice("dump", (Argument("f32", A),), (1, 1, 1))
    with pytest.raises(ValueError, match="cannot be passed as f32"):
        plan_codegen.generate(make_plan([PlanStep("s", (symbolic_float,), ())], 1), "plan", {"dump": "dump"}, {})


def test_a_plan_of_many_steps_is_several_functions() -> None:
    """Every step runs once, in order, with the sizes of its own function."""
    count, size = plan_codegen.MOST_FUNCTION_STEPS + 3, symbolic.simplify(A + 1)
    steps = []
    for number in range(count):
        arguments = (Argument("*i64", BufferReference("output", "y", 40 * number)), Argument("i64", 0))
        steps.append(
            PlanStep(f"dump.{number}", (LaunchChoice("dump", (*arguments, Argument("i64", size)), (1, 1, 1)),), ())
        )
    result = np.zeros(5 * (count + 1), np.int64)
    run_plan(make_plan(steps, len(result)), {"dump": dump("dump", 5)}, {"a": 7, "b": 1, "c": 1}, result)
    assert result[: 5 * count].tolist() == [1, 8, 1, 1, 1] * count
