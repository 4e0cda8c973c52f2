"""Kernels run by Python: the same results as Tile IR, and debuggers and print that see the kernel's own lines."""

from __future__ import annotations

import bdb
import os
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

import tilewright
import tilewright.language as tl
import tilewright.language.explicit as tx
from tests.host import test_frontend_errors as errors
from tests.host import test_language_kernels as families
from tilewright.errors import CompilationError, ExecutionError, TilewrightError
from tilewright.ir import interpreter
from tilewright.launch.eager import EagerFunction, EagerLaunch, runs_eagerly
from tilewright.launch.jit import JITFunction
from tilewright.library.matmul.hopper import kernel as hopper
from tilewright.settings import settings

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).parent / "debug_scripts" / "stop_in_kernel.py"


def both_ways(kernel: JITFunction, grid: tuple[int, ...], *arguments: object, **constants: object) -> list[object]:
    """Run as Tile IR and as Python; every byte must be equal. Gives the arguments afterwards."""
    copies = [value.copy() if isinstance(value, np.ndarray) else value for value in arguments]
    with settings.scope(interpret=True):
        kernel[grid](*copies, **constants)
    with settings.scope(interpret="eager"):
        kernel[grid](*arguments, **constants)
    for expected, found in zip(copies, arguments, strict=True):
        if isinstance(found, np.ndarray):
            assert found.tobytes() == np.asarray(expected).tobytes()
    return list(arguments)


@pytest.mark.slow(but_every=3)
@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.stem)
@pytest.mark.parametrize("mode", ["eager", "check"])
def test_examples_run_as_python_and_with_all_checks(path: Path, mode: str) -> None:
    with settings.scope(interpret=mode):
        runpy.run_path(str(path), run_name="__main__")


@pytest.mark.parametrize("causal", [False, True])
def test_attention_with_inlined_functions(causal: bool, rng: np.random.Generator) -> None:
    queries, keys, head = 40, 56, 16
    q, k, v = (rng.normal(size=(2, rows, head)).astype(np.float32) for rows in (queries, keys, keys))
    out = np.zeros((2, queries, head), np.float32)
    constants = {"CAUSAL": causal, "HEAD": head, "BLOCK_M": 32, "BLOCK_N": 16}
    both_ways(families.attention, (2, 2), q, k, v, out, queries, keys, 0.25, **constants)
    assert np.any(out)


@tilewright.jit
def pair(value, factor):
    return value * factor, value + factor


@tilewright.jit
def everything(x, half, out, n, BLOCK: tl.constexpr):
    """Every rule by which a kernel differs from the Python that it is written in."""
    pid = tl.program_id(0)
    place = pid * BLOCK + tl.arange(0, BLOCK)
    scale = 0.5  # a variable is a tensor: fp16 times it is fp32
    product, total = pair(tl.load(half + place), scale)
    value = tl.load(x + place, mask=(place < n) & (n > 3), other=-1.0)
    value += product if pid > 0 else value  # decided at run time
    for i in range(n - 1, 0, -2):
        if i == 5 or (i == 3 and pid == 1):
            continue
        if i > 7:
            break
        value += i // -2 + i % 3
    k = 0
    while k < 3 and not pid > 5:
        value = -value + tl.sum(total, 0)
        k += 1
    parts = [part * 2 for part in (value, total) if BLOCK > 2]
    first, (second, _) = parts[0], (parts[1], BLOCK)
    width: tl.constexpr = BLOCK // 2
    rows = tl.reshape(first, (2, width))
    largest, position = tl.max(rows, 1, return_indices=True)
    column = tl.arange(0, 2)
    tl.store(out + pid * 64 + place, tl.where(~(place < 2), second, first))
    tl.store(out + pid * 64 + 128 + column, largest + position, mask=column >= 0 if BLOCK > 4 else None)
    if n > 100:
        return
    tl.atomic_add(out + 200, 1.0)


def test_every_kind_of_expression_and_statement(rng: np.random.Generator) -> None:
    x, half = rng.normal(size=16).astype(np.float32), rng.normal(size=16).astype(np.float16)
    out = np.zeros(256, np.float32)
    both_ways(everything, (2,), x, half, out, 11, BLOCK=8)
    assert out[200] == 2


@tilewright.jit
def talkative(x, n):
    value = tl.load(x + tl.arange(0, 2))
    print(f"{n:>3}|{value}|{tl.sum(value, 0):.2f}", x + 1, sep=" ")


def test_print_is_pythons_own(capsys: pytest.CaptureFixture[str]) -> None:
    with settings.scope(interpret="eager"):
        talkative[(1,)](np.asarray([1, 2.5], np.float32), 7)
    assert capsys.readouterr().out == "  7|[1.  2.5]|3.50 x[1]\n"


@tilewright.jit
def wrong_shapes(x):
    first = tl.arange(0, 4)
    if tl.program_id(0) == 1:
        first = first + tl.arange(0, 8)


@tilewright.jit
def never_bound(x, n):
    if n > 100:
        found = n
    tl.store(x, found)


@tilewright.jit
def outside(x, n):
    tl.store(x + tl.arange(0, 4) * n, 1.0)


@tilewright.jit
def calls_outside(x, n):
    outside(x, n)


@pytest.mark.parametrize(
    ("kernel", "error", "texts"),
    [
        (wrong_shapes, CompilationError, ["shapes [4] and [8]", "first = first + tl.arange(0, 8)", "^^^^^"]),
        (never_bound, CompilationError, ["may have no value here", "tl.store(x, found)", "^^^^^", "help: assign it"]),
        (outside, ExecutionError, ["element 14 of x", "tl.store(x + tl.arange(0, 4) * n, 1.0)", "element [2] of the"]),
        (calls_outside, ExecutionError, ["in 'outside', called from 'calls_outside'", "outside(x, n)"]),
    ],
)
def test_errors_show_the_line(kernel: JITFunction, error: type[Exception], texts: list[str]) -> None:
    x = np.zeros(8, np.float32)
    arguments = (x, 7)[: len(kernel.argument_names)]
    with settings.scope(interpret="eager"), pytest.raises(error) as caught:
        kernel[(2,)](*arguments)
    for text in texts:
        assert text in str(caught.value)
    assert str(caught.value).startswith(f"{__file__}:")


def test_a_step_that_is_not_positive_stops_at_the_loop() -> None:
    @tilewright.jit
    def steps(n):
        for _ in range(0, 4, n):
            pass

    with settings.scope(interpret="eager"), pytest.raises(ExecutionError, match="step -1 is not positive") as caught:
        steps[(1,)](-1)
    assert caught.value.program_id == (0, 0, 0) and "for _ in range(0, 4, n):" in str(caught.value)


def pdb_session(*commands: str, arguments: tuple[str, ...] = (), **environment: str) -> str:
    """What the debugger and the script print when these lines are typed."""
    process = subprocess.run(
        [sys.executable, *arguments, str(SCRIPT)],
        input="\n".join([*commands, ""]),
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TILEWRIGHT_INTERPRET": "1", **environment},
    )
    assert process.returncode == 0, process.stderr
    return process.stdout


def test_breakpoint_stops_in_the_kernel() -> None:
    text = pdb_session("p value", "next", "p np.max(doubled), place", "value * 10", "continue", "p place", "continue")
    assert "-> doubled = scaled(value, 2)" in text
    assert "tensor(<[4], fp32>, [0. 1. 2. 3.])" in text
    assert "-> tl.store(out + place, doubled, mask=inside)" in text
    assert "6.0" in text and "tensor(<[4], int32>, [0 1 2 3])" in text
    assert "tensor(<[4], fp32>, [ 0. 10. 20. 30.])" in text
    assert "tensor(<[4], int32>, [4 5 6 7])" in text  # the second instance
    assert "result [ 0.  2.  4.  6.  8. 10.]" in text


def test_step_goes_through_functions_of_the_kernel_only() -> None:
    text = pdb_session("step", "step", "p factor", "step", "where", "step", "continue", "continue")
    lines = [line for line in text.splitlines() if "->" in line]
    assert lines[0].endswith("doubled = scaled(value, 2)")
    assert "def scaled(value, factor):" in lines[1] and lines[2].endswith("return value * factor")
    returned = text[text.index("--Return--") :]
    assert "stop_in_kernel.py(20)kernel()" in returned  # the caller, by `where`
    assert "tilewright/frontend" not in returned and "tilewright/launch" not in returned
    assert "(21)kernel()\n-> tl.store(out + place, doubled, mask=inside)" in returned


def test_a_debugger_from_outside_stops_at_a_line() -> None:
    line = next(number for number, text in enumerate(SCRIPT.read_text().splitlines(), 1) if "doubled = " in text)
    text = pdb_session(f"b {line}, tl.program_id(0) == 1", "c", "c", "p place", "c", "q", arguments=("-m", "pdb"))
    assert "[4 5 6 7]" in text


def test_who_runs_a_kernel() -> None:
    assert not runs_eagerly(outside, {})
    with settings.scope(interpret="eager"):
        assert runs_eagerly(outside, {})
    found = runpy.run_path(str(SCRIPT), run_name="script")
    assert runs_eagerly(found["kernel"], {}) and not runs_eagerly(found["scaled"], {})
    assert not runs_eagerly(hopper.matmul, {})
    debugger, before = bdb.Bdb(), sys.gettrace()
    debugger.reset()
    sys.settrace(debugger.trace_dispatch)
    try:
        attached, explicit = runs_eagerly(outside, {}), runs_eagerly(hopper.matmul, {})
    finally:
        sys.settrace(before)
    assert attached and not explicit


@tilewright.jit
def explicit(x):
    tx.group_sync()


def test_explicit_operations_are_not_python() -> None:
    with settings.scope(interpret="eager"), pytest.raises(ExecutionError, match="interpret the kernel as Tile IR"):
        explicit[(1,)](np.zeros(4, np.float32))


def test_machine_code_refuses_a_breakpoint() -> None:
    found = runpy.run_path(str(SCRIPT), run_name="script")
    with pytest.raises(CompilationError, match="breakpoint.. stops in a kernel that is interpreted"):
        found["kernel"].trace({"x": "*f32", "out": "*f32", "n": "i32"}, {"BLOCK": 4})


def test_read_only_arrays_are_refused() -> None:
    fixed = np.zeros(32, np.float32)
    fixed.flags.writeable = False
    with settings.scope(interpret="eager"), pytest.raises(ExecutionError, match="read-only"):
        outside[(1,)](fixed, 1)
    assert EagerLaunch.kernel is None


@pytest.fixture
def budget(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Operations and conditions left; a run stops with an `ExecutionError` when they are used up."""
    left = [0]

    def counting(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            left[0] -= 1
            if left[0] < 0:
                raise ExecutionError("out of budget")
            return function(*arguments)

        return call

    monkeypatch.setattr(interpreter._Instance, "operation", counting(interpreter._Instance.operation))
    monkeypatch.setattr(EagerFunction, "holds", counting(EagerFunction.holds))
    return left


@pytest.mark.filterwarnings("ignore::SyntaxWarning")
@hypothesis.settings(
    max_examples=25, deadline=None, suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture]
)
@hypothesis.given(st.data())
def test_mutated_kernels_run_alike_or_raise_our_errors(budget: list[int], data: st.DataObject) -> None:
    source = errors._mutate(
        data.draw(st.sampled_from(errors.GOOD)), lambda count: int(data.draw(st.integers(0, count - 1)))
    )
    outcomes: list[Any] = []
    for mode in (True, "eager"):
        kernel = JITFunction.from_source(source, "kernel", {"tl": tl, "outer": errors.add_pair})
        arrays = [np.linspace(-2, 2, 64, dtype=np.float32), np.zeros(64, np.float32)]
        budget[0] = 2000
        try:
            with settings.scope(interpret=mode):
                kernel[(2,)](*arrays, 5, BLOCK=8)
            outcomes.append([array.tobytes() for array in arrays])
        except TilewrightError as error:
            outcomes.append(error)
    compiled, python = outcomes
    if isinstance(compiled, list) and isinstance(python, list):
        assert compiled == python, source
    if isinstance(compiled, list) and isinstance(python, TilewrightError):
        assert "out of budget" in str(python), source


@tilewright.jit
def tries_again(flag, out, n):
    for k in range(n):
        while tl.load(flag) != 0:  # left in its first pass each time, with the variables of the time before
            break
        passes = 0
        while passes < 100:
            passes += 1
        left = n
        while left * 2 > 0:
            left -= 1
        tl.store(out + k, passes + left)


def test_loops_that_end_are_not_taken_for_waiting() -> None:
    out = np.zeros(80, np.int32)
    with settings.scope(interpret="eager"):
        tries_again[(1,)](np.ones(1, np.int32), out, 80)
    assert (out == 100).all()
