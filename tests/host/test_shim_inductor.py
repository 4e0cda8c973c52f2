"""What TorchInductor asks of Triton: the launcher of a compiled kernel, pickling, and whole programs."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright
import tilewright.language as tl
from tests.host.test_frontend_shim import SCRIPTS, run
from tilewright.errors import ExecutionError, LaunchError
from tilewright.launch import hooks
from tilewright.launch.cpu import CPUKernel
from tilewright.launch.driver import GPUTarget
from tilewright.launch.jit import JITFunction
from tilewright.shim import compiler
from tilewright.shim.compiled import CompiledSource

TEXT = """
def scale(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, mask=i < n) * 3, mask=i < n)
"""
SIGNATURE = {"x": "*fp32", "out": "*fp32", "n": "i32", "BLOCK": "constexpr"}
ALIGNED = {(0,): [["tt.divisibility", 16]], (1,): [["tt.divisibility", 16]], (2,): [["tt.divisibility", 16]]}


@tilewright.jit
def module_scale(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, mask=i < n) * 3, mask=i < n)


def compiled_scale() -> CompiledSource:
    source = compiler.ASTSource(JITFunction.from_source(TEXT, "scale", {"tl": tl}), SIGNATURE, {"BLOCK": 64}, ALIGNED)
    return compiler.compile(source, GPUTarget("cpu", "", 1), {"num_warps": 4})


def start(kernel: Any, x: np.ndarray, out: np.ndarray, n: int, facts: Any = None) -> None:
    hook = (hooks.launch_enter, hooks.launch_exit)
    kernel.run(1, 1, 1, 0, kernel.function, kernel.packed_metadata, facts, *hook, x, out, n, 64)


def check(kernel: Any) -> None:
    x = np.arange(65, dtype=np.float32)
    for offset in (0, 1):  # the second is not aligned
        out = np.zeros(65, np.float32)
        start(kernel, x[offset:], out[offset:], 64)
        np.testing.assert_array_equal(out[offset : offset + 64], 3 * x[offset : offset + 64])


def test_the_launcher() -> None:
    kernel = compiled_scale()
    assert kernel.src.fn.arg_names == ["x", "out", "n", "BLOCK"] and kernel.src.signature == SIGNATURE
    check(kernel)
    kernel._init_handles()
    assert kernel.function and kernel.module is not None
    assert isinstance(kernel.kernel, CompiledSource) and isinstance(kernel, CompiledSource)
    x = np.zeros(64, np.float32)
    with pytest.raises(LaunchError, match="'n': it was compiled for multiples of 16"):
        start(kernel, x[1:], x[1:], 63)
    kernel.run(0, 1, 1, 0, kernel.function, kernel.packed_metadata, None, None, None, x, x, 64, 64)
    with pytest.raises(LaunchError, match="takes 3 run-time arguments, got 2"):
        kernel.run(1, 1, 1, 0, kernel.function, kernel.packed_metadata, None, None, None, x, x)


def test_overflow_wraps_where_it_is_not_checked() -> None:
    function = JITFunction.from_source(TEXT, "scale", {"tl": tl})
    source = compiler.ASTSource(function, {**SIGNATURE, "x": "*u8", "out": "*u8"}, {"BLOCK": 64})
    x, out = np.full(64, 100, np.uint8), np.zeros(64, np.uint8)
    options = {"debug": True, "sanitize_overflow": False}
    compiler.compile(source, GPUTarget("cpu", "", 1), options)[(1,)](x, out, 64)
    np.testing.assert_array_equal(out, 300 % 256)
    checked = compiler.compile(source, GPUTarget("cpu", "", 1), {"debug": True})
    with pytest.raises(ExecutionError, match="uint8 overflow"):
        checked[(1,)](x, out, 64)


def test_hooks_get_the_facts() -> None:
    kernel, x, seen = compiled_scale(), np.zeros(64, np.float32), []
    assert kernel.launch_metadata((1, 1, 1), 0, x, x, 64, 64) is None

    def hook(facts: Any) -> None:
        seen.append(facts.get()["name"])

    hooks.launch_enter.add(hook)
    try:
        start(kernel, x, x, 64, kernel.launch_metadata((1, 1, 1), 0, x, x, 64, 64))
    finally:
        hooks.launch_enter.remove(hook)
    assert seen == ["scale"]


def test_state_for_another_process() -> None:
    """As TorchInductor does it: the function is taken away, and a kernel made of the pickled attributes."""
    compiled_scale()  # so that the next one comes from the cache, and its Tile IR is not at hand
    kernel = compiled_scale()
    function, names = kernel.src.fn, kernel.src.fn.arg_names
    python, function.fn = function.fn, None
    function.repr, function.__globals__, function.used_global_vals = None, None, None
    state = pickle.loads(pickle.dumps({**vars(kernel), "module": None, "function": None, "run": None}))
    assert (function.arg_names, function.constexprs) == (names, [3])
    function.fn = python
    again = CompiledSource.__new__(CompiledSource)
    vars(again).update(state)
    assert again.src.fn.fn is None and again.src.fn.arg_names == names
    assert [entry.num for entry in again.src.fn.params if entry.is_constexpr] == again.src.fn.constexprs == [3]
    again._init_handles()
    check(again)
    assert again.hash == kernel.hash and again.asm["ttir"] == kernel.asm["ttir"]


def test_kernels_are_pickled_by_name() -> None:
    assert pickle.loads(pickle.dumps(module_scale)) is module_scale
    native = module_scale.compile({"x": "*f32", "out": "*f32", "n": "i32"}, {"BLOCK": 64})
    again = pickle.loads(pickle.dumps(native))
    assert type(again) is CPUKernel and again.hash == native.hash and again.dump() == native.dump()
    x, out = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)
    again[(1,)](x, out, 64)
    np.testing.assert_array_equal(out, 3 * x)


@pytest.mark.parametrize("arguments", [[], pytest.param(["workers"], marks=pytest.mark.slow)], ids=["", "workers"])
def test_programs(arguments: list[str], tmp_path: Path) -> None:
    """Without GPUs, whatever the machine has: PyTorch's workers would start a context on each."""
    pytest.importorskip("torch")
    done = run(str(SCRIPTS / "inductor.py"), *arguments, TORCHINDUCTOR_CACHE_DIR=str(tmp_path), CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 0, done.stderr
    assert "inductor agrees" in done.stdout
