"""Launching: binding, specialization, arguments, options, caches."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import tilewright
import tilewright.language as tl
from tilewright.errors import CompilationError, LaunchError
from tilewright.launch import binaries, jit
from tilewright.launch.arguments import classify
from tilewright.launch.binding import generate
from tilewright.settings import settings
from tilewright.targets.cpu.options import CPUOptions

torch = pytest.importorskip("torch")


@tilewright.jit
def scale(x, out, n, factor, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, mask=i < n) * factor, mask=i < n)


CLASSES = [
    (1, None, 1, 1),
    (0, "i32", 16, None),
    (2, "i32", 2, None),
    (-24, "i32", 8, None),
    (72, "i32", 8, None),
    (2**31, "i64", 16, None),
    (2**63, "u64", 16, None),
    (True, "i1", 1, None),
    (2.5, "f32", 1, None),
    (None, None, 1, None),
    (np.float64(2.5), "f64", 1, None),
    (np.int8(3), "i8", 1, None),
    (np.zeros(4, np.float16), "*f16", 16, None),
    (np.zeros(8, np.float32)[1:], "*f32", 4, None),
    (np.zeros(4, ml_dtypes.bfloat16), "*bf16", 16, None),
    (torch.zeros(4, dtype=torch.bfloat16), "*bf16", 16, None),
    (torch.zeros(4, dtype=torch.bool), "*i1", 16, None),
]


@pytest.mark.parametrize(("value", "kind", "divisibility", "constant"), CLASSES, ids=lambda entry: str(entry)[:20])
def test_specialization(value: object, kind: str | None, divisibility: int, constant: object) -> None:
    found, _ = classify(value)
    assert (None if found.type is None else str(found.type)) == kind
    assert found.divisibility == divisibility and found.constant == constant


@pytest.mark.parametrize(
    "grid", [(2,), [2, 1], (2, 1, 1), 2, lambda args: (tilewright.cdiv(args["n"], args["BLOCK"]),)]
)
def test_grids_and_argument_forms(grid: object) -> None:
    x = np.arange(10, dtype=np.float32)
    for arguments, keywords in [
        ((10, 2.0), {"BLOCK": 8}),
        ((10,), {"factor": 2.0, "BLOCK": 8, "num_warps": 4, "num_stages": 3}),
        ((10, 2.0, 8), {}),
    ]:
        out = np.zeros_like(x)
        scale[grid](x, out, *arguments, **keywords)
        assert out.tolist() == (2 * x).tolist()


def test_torch_tensors_and_dlpack() -> None:
    class Foreign:
        """An array of another library: nothing but DLPack."""

        def __init__(self, array: np.ndarray) -> None:
            self.array = array

        def __dlpack__(self, **keywords: object) -> object:
            return self.array.__dlpack__(**keywords)

        def __dlpack_device__(self) -> tuple[int, int]:
            return self.array.__dlpack_device__()

    x = torch.arange(10, dtype=torch.bfloat16)
    for interpret in (False, True):
        out = torch.zeros(10, dtype=torch.bfloat16)
        with settings.scope(interpret=interpret):
            scale[(2,)](x, out, 10, 3.0, BLOCK=8)
        assert torch.equal(out, x * 3)
    numbers, out = np.arange(10, dtype=np.float32), np.zeros(10, np.float32)
    scale[(2,)](Foreign(numbers), out, 10, 3.0, BLOCK=8)
    assert out.tolist() == (numbers * 3).tolist()


def test_launch_options_without_effect_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    out = np.zeros(4, np.float32)
    caplog.set_level("INFO", "tilewright.jit")
    kernel = scale[(1,)](out, out, 4, 2.0, BLOCK=8, debug=True, enable_fp_fusion=True, num_ctas=1)
    assert not kernel.ignored_options and "launch options" not in kernel.explanation
    for _ in range(2):
        kernel = scale[(1,)](out, out, 4, 2.0, BLOCK=8, debug=True, num_warps=4, maxnreg=64, num_stages=None)
    assert kernel.ignored_options == ("maxnreg", "num_warps")
    text = "launch options that change nothing on cpu: maxnreg, num_warps"
    assert caplog.text.count(text) == 1 and kernel.explanation.endswith(f"{text}\n")


@pytest.mark.parametrize("interpret", [True, False])
@pytest.mark.parametrize("grid", [(2**31,), (1, 2**40), (1, 1, 2**31)])
def test_grids_whose_program_ids_would_wrap_are_refused(grid: tuple[int, ...], interpret: bool) -> None:
    x = np.zeros(8, np.float32)
    with settings.scope(interpret=interpret):
        scale[(0,)](x, x, 0, 2.0, BLOCK=8)  # the second launch takes the quick way
        with pytest.raises(LaunchError, match="at most 2147483647"):
            scale[grid](x, x, 0, 2.0, BLOCK=8)


def test_an_empty_grid_does_nothing() -> None:
    out = np.zeros(4, np.float32)
    scale[(0,)](out, out, 4, 2.0, BLOCK=8)
    assert not out.any()


X = np.zeros(8, np.float32)
READ_ONLY = np.zeros(8, np.float32)
READ_ONLY.flags.writeable = False
MISTAKES = [
    (lambda: scale[(1,)](X, X, 8, 2.0), "needs a value for 'BLOCK'"),
    (lambda: scale[(1,)](X, X, 8, 2.0, 8, 9), "1 more positional"),
    (
        lambda: scale[(1,)](X, X, 8, 2.0, BLOCK=8, num_wraps=4),
        "does not take 'num_wraps'; did you mean 'num_warps'\\?$",
    ),
    (lambda: scale[(1,)](X, X, 8, 2.0, BLOKC=8), "does not take 'BLOKC'; did you mean 'BLOCK'"),
    (lambda: scale[(1,)](X, X, 8, 2.0, BLOCK=8, speed=1), "'speed'; its parameters are x.*launch options.*num_warps"),
    (lambda: scale[(1, 1, 1, 1)](X, X, 8, 2.0, BLOCK=8), "one to three extents"),
    (lambda: scale[(-1,)](X, X, 8, 2.0, BLOCK=8), "at least 0"),
    (lambda: scale[(1.5,)](X, X, 8, 2.0, BLOCK=8), "whole numbers"),
    (lambda: scale[(1,)](X, READ_ONLY, 8, 2.0, BLOCK=8), "writes to argument 'out', a read-only array"),
    (lambda: scale[(1,)]([1, 2], X, 8, 2.0, BLOCK=8), "argument 'x': a list cannot be passed"),
    (lambda: scale[(1,)](X.astype(complex), X, 8, 2.0, BLOCK=8), "dtype complex128 cannot be passed"),
    (lambda: scale[(1,)](X, X, 2**70, 2.0, BLOCK=8), "does not fit in 64 bits"),
    (lambda: scale[(1,)](X, X, 8, 2.0, BLOCK=X), "cannot be a tl.constexpr argument"),
    (lambda: scale[(1,)](torch.zeros(8, device="meta"), X, 8, 2.0, BLOCK=8), "tensor on meta"),
    (lambda: scale[(1,)](torch.eye(3).to_sparse(), X, 8, 2.0, BLOCK=8), "no plain memory: pass tensor.to_dense"),
    (lambda: scale[(1,)](X.astype("U1"), X, 8, 2.0, BLOCK=8), "cannot be passed to a kernel"),
]


@pytest.mark.parametrize(("call", "message"), MISTAKES)
def test_wrong_arguments(call, message: str) -> None:
    with pytest.raises(LaunchError, match=message):
        call()


def test_two_values_for_one_parameter() -> None:
    with pytest.raises(TypeError, match=r"scale\(\) got multiple values for argument 'n'"):
        scale[(1,)](X, X, 8, 2.0, 8, n=3)


def test_a_read_only_array_may_be_read() -> None:
    out = np.ones(8, np.float32)
    scale[(1,)](READ_ONLY, out, 8, 2.0, BLOCK=8)
    assert not out.any()


def test_launches_from_several_threads() -> None:
    kernel = tilewright.JITFunction(scale.function)

    def work(factor: float) -> bool:
        x, out = np.arange(16, dtype=np.float32), np.zeros(16, np.float32)
        for _ in range(20):
            kernel[(2,)](x, out, 16, factor, BLOCK=8)
        return out.tolist() == (factor * x).tolist()

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, [1.5, 2.0, 3.0, 4.0]))


def test_kept_launchers_share_one_launch_function(monkeypatch: pytest.MonkeyPatch) -> None:
    @tilewright.jit
    def fill(out, BLOCK: tl.constexpr):
        tl.store(out + tl.arange(0, BLOCK), 1.0)

    made = []
    monkeypatch.setattr(jit, "generate", lambda *arguments: made.append(1) or generate(*arguments))
    out = np.zeros(8, np.float32)
    first = fill[(1,)]
    first(out, BLOCK=8)
    second = fill[(1,)]
    for launcher in (second, first, second, fill[(1,)], first):
        out[:] = 0
        launcher(out, BLOCK=8)
        assert out.all()
    assert len(made) == 1


def test_one_signature_is_compiled_once() -> None:
    kernel = tilewright.JITFunction(scale.function)
    x, out = np.arange(16, dtype=np.float32), np.zeros(16, np.float32)
    first = kernel[(2,)](x, out, 16, 2.0, BLOCK=8)
    assert kernel[(2,)](x, out, 32, 3.0, BLOCK=8) is first
    assert kernel[(2,)](x, out, 17, 3.0, BLOCK=8) is not first
    assert kernel.warmup(x, out, 16, 2.0, BLOCK=8) is first


@tilewright.jit(do_not_specialize=["n"], do_not_specialize_on_alignment=["m"])
def unspecialized(out, n, m, wide: tl.int64, flag: tl.constexpr):
    tl.store(out, n + m + wide)


def test_policies_of_single_arguments() -> None:
    out = np.zeros(1, np.int64)
    first = unspecialized[(1,)](out, 1, 16, 1, True)
    assert out[0] == 18
    assert unspecialized[(1,)](out, 16, 3, 5, True) is first
    assert unspecialized[(1,)](out, 16, 3, 5, 1) is not first  # True and 1 are different constants
    assert first.binary.parameters == ("*i64", "i32", "i32", "i64")


@tilewright.jit
def total(out, pair, *rest):
    value = pair[0] + pair[1]
    for entry in rest:
        value += entry
    tl.store(out, value)


def test_tuples_are_flattened() -> None:
    for interpret in (True, False):
        out = np.zeros(1, np.float32)
        with settings.scope(interpret=interpret):
            total[(1,)](out, (2, 3.0), 4, 1)
        assert out[0] == 10


@tilewright.jit
def fill(*arrays):
    for array in arrays:
        tl.store(array, 1.0)


def test_read_only_entries_of_tuples_are_refused() -> None:
    with pytest.raises(LaunchError, match="writes to argument 'arrays', a read-only array"):
        fill[(1,)](X.copy(), READ_ONLY)


def test_functions_as_arguments_are_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    out = np.zeros(1, np.int32)
    for function, expected in ((by_global_slot, 12), (helper, 17)):
        by_slot[(1,)](out, function)
        assert out[0] == expected
    monkeypatch.setitem(globals(), "OFFSET", tl.constexpr(20))
    by_slot[(1,)](out, helper)
    assert out[0] == 27
    monkeypatch.setitem(globals(), "FACTOR", 3)
    by_slot[(1,)](out, by_global_slot)
    assert out[0] == 13


@tilewright.jit
def by_slot(out, FUNCTION: tl.constexpr):
    tl.store(out, FUNCTION(7))


@tilewright.jit
def by_global_slot(x):
    return 10 + FACTOR


def test_compiling_needs_no_arguments() -> None:
    kernel = scale.compile({"x": "*f32", "out": "*f32", "n": "i32", "factor": tl.float32}, {"BLOCK": 8})
    assert kernel.binary.parameters == ("*f32", "*f32", "i32", "f32")
    x, out = np.arange(8, dtype=np.float32), np.zeros(8, np.float32)
    kernel[(1,)](x, out, 8, 2.0)
    assert out.tolist() == (2 * x).tolist()
    assert "arange" in kernel.dump("ir") and "define" in kernel.dump("llvm") and kernel.dump("asm")
    with pytest.raises(ValueError, match="unknown stage 'ptx'"):
        kernel.dump("ptx")
    with pytest.raises(LaunchError, match="takes 4 run-time arguments"):
        kernel[(1,)](x, out)


FACTOR = 2


@tilewright.jit
def by_global(out):
    tl.store(out, helper(FACTOR))


@tilewright.jit
def helper(x):
    return x + OFFSET


OFFSET = tl.constexpr(10)


def test_a_changed_global_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    out = np.zeros(1, np.int32)
    by_global[(1,)](out)
    assert out[0] == 12
    monkeypatch.setitem(globals(), "FACTOR", 5)
    by_global[(1,)](out)
    assert out[0] == 15
    monkeypatch.setitem(globals(), "OFFSET", tl.constexpr(100))
    by_global[(1,)](out)
    assert out[0] == 105


def test_the_key_covers_everything_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    def key(**changes: object) -> str:
        request = {
            "types": {"out": "*i32"},
            "constants": {},
            "parameters": {},
            "options": CPUOptions(),
            "launch_options": {},
            "debug": False,
            **changes,
        }
        return binaries.Request(by_global, **request).key(tilewright.targets.registry.get_target("cpu"))

    keys = [key(), key(types={"out": "*i64"}), key(debug=True), key(options=CPUOptions(fuse=False)),
            key(constants={"N": 1}),
            key(constants={"N": True}), key(constants={"N": helper}), key(constants={"N": by_global})]  # fmt: skip
    monkeypatch.setitem(globals(), "OFFSET", tl.constexpr(11))
    keys.append(key())
    monkeypatch.setitem(
        globals(), "helper", tilewright.JITFunction.from_source("def helper(x):\n    return x", "helper", {})
    )
    keys.append(key())
    assert len(set(keys)) == len(keys)


def test_a_warm_start_does_not_trace(tmp_path: Path) -> None:
    script = tmp_path / "kernel.py"
    script.write_text(
        "import numpy as np, tilewright, tilewright.language as tl\n"
        "@tilewright.constexpr_function\n"
        "def note(x):\n    print('traced')\n    return x\n"
        "@tilewright.jit\n"
        "def kernel(out, N: tl.constexpr):\n    tl.store(out, note(N))\n"
        "out = np.zeros(1, np.int32)\nkernel[(1,)](out, N=7)\nprint(out[0])\n"
    )
    environment = {**os.environ, "TILEWRIGHT_CACHE_DIRECTORY": str(tmp_path / "cache")}
    environment["PYTHONPATH"] = str(Path(__file__).parents[2])
    command = [sys.executable, str(script)]
    runs = [subprocess.run(command, env=environment, capture_output=True, text=True) for _ in range(2)]
    assert [run.stdout for run in runs] == ["traced\n7\n", "7\n"], [run.stderr for run in runs]


@tilewright.jit
def checked(x, out):
    tl.device_assert(tl.load(x) > 0, "x must be positive")
    assert tl.load(x) > 0
    tl.store(out, tl.load(x))


def test_assertions_are_kept_in_debug_launches_only() -> None:
    x, out = np.array([-1.0], np.float32), np.zeros(1, np.float32)
    checked[(1,)](x, out)
    assert out[0] == -1
    with settings.scope(interpret=True), pytest.raises(tilewright.errors.ExecutionError, match="x must be positive"):
        checked[(1,)](x, out, debug=True)


def test_remarks_name_the_line() -> None:
    @tilewright.jit
    def half(x, out):
        tl.store(out, tl.exp(tl.load(x)))

    kernel = half.compile({"x": "*f16", "out": "*f16"}, {})
    (remark,) = [entry for entry in kernel.remarks if "computed in fp32" in entry.message]
    assert remark.file == __file__ and "tl.exp" in Path(__file__).read_text().splitlines()[remark.line - 1]


def test_remarks_from_the_cache_name_the_line_after_a_move(tmp_path: Path) -> None:
    text = "def moved(x, out):\n    value = tl.load(x)\n    tl.store(out, tl.exp(value))\n"
    types = {"x": "*f16", "out": "*f16"}
    with settings.scope(cache_directory=tmp_path / "cache"):
        for lines in (0, 7):
            path = tmp_path / f"{lines}" / "kernel.py"
            path.parent.mkdir()
            path.write_text("\n" * lines + text)
            names = {"tl": tl, "__name__": "moving"}
            exec(compile(path.read_text(), str(path), "exec"), names)
            kernel = tilewright.JITFunction(names["moved"]).compile(types, {})
            (remark,) = [entry for entry in kernel.remarks if "computed in fp32" in entry.message]
            assert remark.line == lines + 3


def test_kernels_cannot_be_called_without_a_grid() -> None:
    with pytest.raises(TypeError, match="call it inside a kernel|needs a grid"):
        scale(1, 2)


@pytest.mark.parametrize(("x", "y", "expected"), [(7, 3, 3), (6, 3, 2), (0, 3, 0)])
def test_cdiv(x: int, y: int, expected: int) -> None:
    assert tilewright.cdiv(x, y) == expected


def test_next_power_of_2() -> None:
    assert [tilewright.next_power_of_2(n) for n in (0, 1, 2, 3, 5, 1024, 1025)] == [1, 1, 2, 4, 8, 1024, 2048]


def test_compiled_kernels_take_all_arguments_or_the_run_time_ones() -> None:
    x, out = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)
    compiled = scale.warmup(x, out, 64, 2.0, BLOCK=64, grid=(1,))
    assert compiled is not None
    compiled._init_handles()
    for arguments in ((x, out, 64, 2.0), (x, out, 64, 2.0, 64)):
        out[:] = 0
        compiled[(1,)](*arguments)
        np.testing.assert_array_equal(out, 2 * x)
    assert compiled.metadata.name == "scale" and compiled.metadata.hash == compiled.hash == compiled.binary.key
    assert compiled.metadata.shared >= 1 and compiled.n_regs >= 16
    with pytest.raises(LaunchError, match="takes 4 run-time arguments, got 3"):
        compiled[(1,)](x, out, 64)


def test_compiled_kernels_take_arguments_that_are_constants_in_their_code() -> None:
    """Host code that keeps compiled kernels passes what is no constexpr: sizes of 1 too."""
    x, out = np.arange(1, 65, dtype=np.float32), np.zeros(64, np.float32)
    compiled = scale.warmup(x, out, 1, 2.0, BLOCK=64, grid=(1,))
    assert compiled is not None and len(compiled.binary.parameters) == 3
    for arguments in ((x, out, 2.0), (x, out, 1, 2.0), (x, out, 1, 2.0, 64)):
        out[:] = 0
        compiled[(1,)](*arguments)
        np.testing.assert_array_equal(out, np.where(np.arange(64) < 1, 2 * x, 0))


def test_types_of_parameters_have_the_names_of_the_language_too() -> None:
    same = [
        scale.trace({"x": f"*{x}", "out": "*f32", "n": "i32", "factor": "f32"}, {"BLOCK": 64}) for x in ("f16", "fp16")
    ]
    assert str(same[0].region.arguments[0].type) == str(same[1].region.arguments[0].type) == "*f16"
    for wrong, advice in (("*f8e4m3", "f8e4nv"), ("*texture", "write one of i1, i8"), ("f32*", "f32")):
        with pytest.raises(CompilationError, match=f"cannot have the type .*{advice}"):
            scale.trace({"x": wrong, "out": "*f32", "n": "i32", "factor": "f32"}, {"BLOCK": 64})


def test_a_kernel_takes_another_text() -> None:
    scale = tl.constexpr(3)

    @tilewright.jit
    def template(out, N: tl.constexpr):
        tl.store(out + tl.arange(0, N), EXPRESSION * scale)  # noqa: F821

    kernel = tilewright.jit(template.fn)
    kernel._unsafe_update_src(kernel.src.replace("EXPRESSION", "tl.arange(0, N)"))
    out = np.zeros(8, np.int32)
    kernel[(1,)](out, N=8)
    np.testing.assert_array_equal(out, 3 * np.arange(8))
    kernel._unsafe_update_src(template.src.replace("EXPRESSION", "1"))
    kernel[(1,)](out, N=8)
    assert (out == 3).all()
    kernel._unsafe_update_src(template.src.replace("EXPRESSION", "missing"))
    with pytest.raises(CompilationError, match="the name 'missing' is not defined"):
        kernel[(1,)](out, N=8)


def test_compiled_code_refuses_what_it_was_not_compiled_for() -> None:
    @tilewright.jit
    def copy(x, out, n, BLOCK: tl.constexpr):
        index = tl.arange(0, BLOCK)
        tl.store(out + index, tl.load(x + index, mask=index < n), mask=index < n)

    memory = np.zeros(68, np.float32)
    first = -(memory.ctypes.data // 4) % 4  # where an aligned address is
    x = memory[first : first + 32]
    compiled = copy.warmup(x, x, 32, BLOCK=32, grid=(1,))
    assert compiled is not None
    compiled[(1,)](x, x, 16)
    with pytest.raises(LaunchError, match=r"argument 'out'.*multiples of 16.*address"):
        compiled[(1,)](x, memory[first + 1 :], 32)
    with pytest.raises(LaunchError, match=r"argument 'n'.*multiples of 16.*value 31"):
        compiled[(1,)](x, x, 31)
