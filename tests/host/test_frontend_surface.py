"""What programs read of kernels and are told of them: attributes, hooks, signatures as text, stand-ins for arrays."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright
import tilewright.language as tl
from tilewright.errors import CompilationError, DeviceError, ExecutionError, LaunchError
from tilewright.launch import hooks
from tilewright.launch.compile_only import AbsentDriver, CompileOnlyKernel
from tilewright.launch.compiled import Interface
from tilewright.launch.wrappers import MockTensor, pointer, reinterpret
from tilewright.settings import settings


def metadata_of(grid: tuple[int, ...], metadata: Any, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"bytes": 8 * arguments["n"], "block": arguments["BLOCK"], "grid": grid, "name": "double " + metadata.name}


def name_of(specialization: Any) -> str:
    return f"double_{specialization.constants['BLOCK']}"


@tilewright.jit(repr=name_of, launch_metadata=metadata_of, do_not_specialize=["n"], version=3)
def double(x, out, n, BLOCK: tl.constexpr, scale: tl.float32 = 2.0):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, mask=i < n) * scale, mask=i < n)


@pytest.fixture
def fresh() -> tilewright.JITFunction:
    return tilewright.JITFunction(double.function, do_not_specialize=["n"], repr=name_of, launch_metadata=metadata_of)


@pytest.fixture(autouse=True)
def no_hooks() -> Iterator[None]:
    yield
    for chain in (hooks.launch_enter, hooks.launch_exit, hooks.load_start, hooks.load_end):
        chain.replace(None)
    hooks.compilation.before = hooks.compilation.after = None


def arrays(n: int = 100) -> tuple[np.ndarray, np.ndarray]:
    return np.arange(n, dtype=np.float32), np.zeros(n, np.float32)


def test_kernels_tell_of_themselves(fresh: tilewright.JITFunction) -> None:
    assert fresh.fn is double.function and fresh.__wrapped__ is fresh.fn
    assert fresh.src.startswith("def double(x, out") and "@tilewright" in fresh.raw_src[0]
    assert fresh.arg_names == ["x", "out", "n", "BLOCK", "scale"] and fresh.constexprs == [3]
    assert [(entry.name, entry.is_constexpr, entry.annotation_type) for entry in fresh.params][2:] == [
        ("n", False, ""), ("BLOCK", True, ""), ("scale", False, "fp32")
    ]  # fmt: skip
    assert fresh.params[2].do_not_specialize and fresh.params[4].default == 2.0
    assert fresh.cache_key == double.cache_key and fresh.module == __name__
    assert not fresh.device_caches and not fresh.cache[0]
    x, out = arrays()
    kernel = fresh[(2,)](x, out, 100, BLOCK=64)
    fresh[(2,)](x, out, 100, BLOCK=64, num_warps=8)  # the same code
    assert list(fresh.device_caches[0][0].values()) == [kernel] and len(fresh.cache[0]) == 1
    fresh.device_caches.clear()
    assert not fresh.device_caches


def test_compiled_kernels_tell_of_themselves() -> None:
    x, out = arrays()
    kernel = double[(2,)](x, out, 100, BLOCK=64)
    assert kernel.name == kernel.metadata.name == "double_64" and kernel.src.fn is double.fn
    assert set(kernel.asm) >= {"source", "ttir", "llir", "cpu_asm", "obj"}
    assert kernel.asm["obj"] == kernel.binary.image and "arange" in kernel.asm["ttir"]
    assert "define" in kernel.asm["llir"] and kernel.asm["source"] == double.src
    with pytest.raises(KeyError, match="ptx"):
        kernel.asm["ptx"]
    assert kernel.n_spills == 0 and kernel.n_regs >= 16 and kernel.n_max_threads >= 1
    assert kernel.packed_metadata == (1, 1, kernel.metadata.shared) and "hash" in kernel.metadata._asdict()
    with pytest.raises(AttributeError, match="has no 'warps'"):
        _ = kernel.metadata.warps


def test_kernels_without_a_driver_show_their_code_and_are_not_launched(fresh: tilewright.JITFunction) -> None:
    x, out = arrays()
    kernel = fresh[(2,)](x, out, 100, BLOCK=64)
    interface = Interface(kernel.written, kernel.traced_remarks)
    shown = CompileOnlyKernel(
        kernel.name, kernel.target, kernel.binary, kernel.options, interface, lambda: kernel.function
    )
    assert shown.dump("llvm") == kernel.dump("llvm") and shown.metadata.shared == kernel.metadata.shared
    uses: list[Callable[[], Any]] = [
        lambda: shown.address, lambda: shown.n_regs, lambda: shown.n_spills, lambda: shown.n_max_threads,
        lambda: shown[(1,)](x, out, 100), shown._init_handles, lambda: shown.run((1, 1, 1), [0, 0, 100]),
        lambda: shown.run_given((1, 1, 1), [0, 0, 100], [x, out, 100], 0, 0),
    ]  # fmt: skip
    for use in uses:
        with pytest.raises(DeviceError, match="'double_64' is for .*, which has no driver here"):
            use()
    assert shown.module is None and not AbsentDriver.is_active()


@pytest.mark.parametrize("array", ["numpy", "torch"])
def test_dtypes_stand_for_arrays(array: str, fresh: tilewright.JITFunction) -> None:
    dtype: Any = np.dtype(np.float32) if array == "numpy" else pytest.importorskip("torch").float32
    compiled = fresh.warmup(dtype, MockTensor(dtype), 100, BLOCK=64, grid=(1,))
    x, out = arrays(128)
    assert fresh[(2,)](x, out, 100, BLOCK=64) is compiled


def test_memory_by_address_and_under_another_dtype() -> None:
    x, out = arrays(64)
    expected = 2 * x

    class Described:
        def __init__(self, array: np.ndarray) -> None:
            self.array = array
            self.__array_interface__ = array.__array_interface__

    class WithAddress:
        dtype = tl.float32

        def data_ptr(self) -> int:
            return x.ctypes.data

    given: list[Any] = [
        Described(x),
        WithAddress(),
        pointer(x.ctypes.data, "fp32"),
        reinterpret(x.view(np.int32), "fp32"),
    ]
    for value in given:
        out[:] = 0
        double[(1,)](value, out, 64, BLOCK=64)
        np.testing.assert_array_equal(out, expected)
    read_only = x.copy()
    read_only.flags.writeable = False
    with pytest.raises(LaunchError, match="read-only array"):
        double[(1,)](x, Described(read_only), 64, BLOCK=64)
    assert reinterpret(reinterpret(x, "i32"), x.dtype) is x
    with settings.scope(interpret=True):
        double[(1,)](reinterpret(x.view(np.int32), tl.float32), Described(out), 64, BLOCK=64)
        for value in given if sys.platform == "linux" else ():
            out[:] = 0
            double[(1,)](value, out, 64, BLOCK=64)
            np.testing.assert_array_equal(out, expected)
        with pytest.raises(ExecutionError, match="in no argument of the kernel"):
            double[(1,)](pointer(16, tl.float32), out, 64, BLOCK=64)
    for make, error in (
        (lambda: pointer(-1, tl.float32), LaunchError),
        (lambda: reinterpret(3, tl.float32), TypeError),
        (lambda: double[(1,)](pointer(2, tl.float32), out, 64, BLOCK=64), LaunchError),
        (lambda: double[(1,)](pointer(64, "text"), out, 64, BLOCK=64), LaunchError),
    ):
        with pytest.raises(error):
            make()


@tilewright.jit
def by_address(x: "*kfp32", out: tl.pointer_type(tl.float32), n):  # noqa: F722
    i = tl.arange(0, 16)
    tl.store(out + i, tl.load(x + i, mask=i < n) + 1)


def test_numbers_are_addresses_where_the_annotation_says_so() -> None:
    x, out = np.arange(16, dtype=np.float32), np.zeros(16, np.float32)
    for _ in range(3):
        out[:] = 0
        by_address[(1,)](x.ctypes.data, out.ctypes.data, 16)
        np.testing.assert_array_equal(out, x + 1)
        by_address[(1,)](x, out, 16)
        with pytest.raises(LaunchError, match="argument 'out': 0x3 is no address"):
            by_address[(1,)](x, 3, 16)


def test_launch_hooks_see_the_metadata(fresh: tilewright.JITFunction) -> None:
    events: list[Any] = []
    x, out = arrays()
    fresh[(2,)](x, out, 100, BLOCK=64)
    hooks.launch_enter.add(lambda facts: events.append(("enter", facts.get())))
    hooks.launch_exit.add(lambda facts: events.append(("second exit", None)))
    hooks.launch_exit.add(lambda facts: events.append(("exit", facts.get()["name"])))
    for _ in range(2):
        fresh[(2,)](x, out, 100, BLOCK=64)
    assert [name for name, _ in events] == ["enter", "exit", "second exit"] * 2
    facts = events[0][1]
    assert facts["bytes"] == 800 and facts["block"] == 64 and facts["grid"] == (2, 1, 1)
    assert facts["name"] == "double double_64" and facts["function"] and facts["stream"] == 0
    hooks.launch_enter.replace(None)
    hooks.launch_exit.replace(None)
    fresh[(2,)](x, out, 100, BLOCK=64)
    assert len(events) == 6


def test_hooks_around_compiling_and_loading(fresh: tilewright.JITFunction) -> None:
    told: list[Any] = []
    hooks.compilation.before = lambda **facts: told.append(facts) or len(told) == 1  # the first is left uncompiled
    hooks.compilation.after = lambda **facts: told.append("compiled")
    hooks.load_end.add(lambda library, function, name, group, key: told.append(name))
    x, out = arrays()
    assert fresh[(2,)](x, out, 100, BLOCK=64) is None and not out.any()
    assert fresh.warmup(x, out, 100, BLOCK=64) is not None
    fresh[(2,)](x, out, 100, BLOCK=64)
    first, again, compiled, loaded = told
    assert compiled == "compiled" and loaded == "double_64"
    assert first["fn"].jit_function is fresh and first["fn"].name == "double" and not first["is_manual_warmup"]
    assert again["is_manual_warmup"] and again["compile"]["is_warmup"] and first["key"] == again["key"]
    assert first["compile"]["signature"] == {
        "x": "*f32", "out": "*f32", "n": "i32", "BLOCK": "constexpr", "scale": "f32"
    }  # fmt: skip
    assert first["compile"]["constants"] == {(3,): 64} and first["repr"].startswith("double(x: *f32")


def test_a_signature_goes_from_one_process_to_another(fresh: tilewright.JITFunction) -> None:
    texts: list[str] = []
    hooks.compilation.before = lambda **facts: texts.append(facts["compile"]["specialization_data"])
    x, out = arrays()
    fresh[(2,)](x, out, 100, BLOCK=64)
    hooks.compilation.before = None
    other = tilewright.JITFunction(double.function, do_not_specialize=["n"])
    compiled = other.preload(texts[0])
    assert compiled is not None and other[(2,)](x, out, 100, BLOCK=64) is compiled
    for text, why in (
        ("{}", "no text of a signature"),
        (texts[0].replace("double", "triple"), "not of"),
        (json.dumps({**json.loads(texts[0]), "parameters": {"x": {}}}), "are not those of"),
    ):
        with pytest.raises(LaunchError, match=why):
            other.preload(text)


def test_ir_in_place_of_the_source(fresh: tilewright.JITFunction, tmp_path: Path) -> None:
    x, out = arrays()
    text = fresh[(2,)](x, out, 100, BLOCK=64).asm["ttir"]
    changed = tmp_path / "double.tile"
    changed.write_text(re.sub(r"multiply (.*: <64xf32>)", r"add \1", text))
    assert changed.read_text() != text
    fresh[(2,)](x, out, 100, BLOCK=64, ir_override=str(changed))
    np.testing.assert_array_equal(out, x + 2)
    fresh[(2,)](x, out, 100, BLOCK=64)
    np.testing.assert_array_equal(out, 2 * x)
    changed.write_text("nothing")
    with pytest.raises(CompilationError, match="holds no Tile IR"):
        fresh[(2,)](x, out, 99, BLOCK=32, ir_override=str(changed))
    with pytest.raises(CompilationError, match="cannot read"):
        fresh[(2,)](x, out, 99, BLOCK=32, ir_override=str(tmp_path / "absent.tile"))


def test_debug_belongs_to_the_kernel_or_the_launch() -> None:
    def checked(x):
        tl.device_assert(tl.load(x) > 0, "x must be positive")

    x = np.array([-1.0], np.float32)
    with settings.scope(interpret=True):
        tilewright.JITFunction(checked)[(1,)](x)
        for _ in range(3):
            with pytest.raises(tilewright.errors.ExecutionError, match="x must be positive"):
                tilewright.jit(debug=True)(checked)[(1,)](x)
            with pytest.raises(tilewright.errors.ExecutionError, match="x must be positive"):
                tilewright.JITFunction(checked)[(1,)](x, debug=True)
