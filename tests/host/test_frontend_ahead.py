"""Kernels compiled ahead of time: an object file with a C function, its header, and the command."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright
import tilewright.language as tl
from tilewright.errors import LaunchError, TargetError
from tilewright.launch.ahead import build, parse_constant, parse_signature
from tilewright.runtime.library import load_objects, system_address

needs_cc = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler, cc")
needs_posix = pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX threads")


@tilewright.jit
def normalize(x, out, n, scale, flag, BLOCK: tl.constexpr, TYPE: tl.constexpr = tl.float32):
    row = tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
    i = tl.arange(0, BLOCK)
    value = tl.load(x + row * n + i, mask=i < n, other=0.0).to(TYPE)
    value = value / tl.sum(tl.where(i < n, tl.exp(value), 0.0)) * scale
    if flag:
        value = -value
    tl.store(out + row * n + i, value, mask=i < n)


SIGNATURE = "*f32:16, *f32:16, i32, f64, i1"


def expected(x: np.ndarray, scale: float, flag: bool) -> np.ndarray:
    wide = x.astype(np.float64)
    result = wide / np.exp(wide).sum(1, keepdims=True) * scale
    return -result if flag else result


def built(**options: Any) -> Any:
    return build(normalize, parse_signature(normalize, SIGNATURE, {"BLOCK": 64}), **options)


@needs_posix
@pytest.mark.parametrize("threads", [1, 4])
def test_the_function_runs_the_grid(threads: int, rng: np.random.Generator) -> None:
    code = built(name="run_it")
    names = ("malloc", "free", "pthread_create", "pthread_join")
    imports = {name: address for name in names if (address := system_address(name)) is not None}
    library = load_objects([code.image], ["run_it"], imports)
    pointer, wide = ctypes.c_void_p, ctypes.c_int64
    function = ctypes.CFUNCTYPE(
        ctypes.c_int, pointer, pointer, ctypes.c_int32, ctypes.c_double, ctypes.c_uint8, wide, wide, wide, ctypes.c_int
    )(library.address("run_it"))
    x = rng.normal(size=(60, 50)).astype(np.float32)
    for flag in (False, True):
        out = np.zeros_like(x)
        assert function(x.ctypes.data, out.ctypes.data, 50, 2.5, flag, 6, 10, 1, threads) == 0
        np.testing.assert_allclose(out, expected(x, 2.5, flag), rtol=1e-5, atol=1e-6)
    assert function(x.ctypes.data, out.ctypes.data, 50, 2.5, 0, 0, 10, 1, threads) == 0  # an empty grid


PROGRAM = """
#include <stdio.h>
#include "normalize.h"
int main(void) {
    static float x[4 * 64], out[4 * 64];
    for (int i = 0; i < 4 * 64; i++) x[i] = (float)(i % 64) / 64;
    if (normalize(x, out, 64, 2.0, 0, 4, 1, 1, 3)) return 1;
    for (int i = 0; i < 4 * 64; i++) printf("%.9g\\n", out[i]);
    return 0;
}
"""


@needs_cc
@needs_posix
def test_a_c_program_calls_it(tmp_path: Path) -> None:
    object_file, _ = built().write(tmp_path)
    (tmp_path / "main.c").write_text(PROGRAM)
    program = tmp_path / "program"
    subprocess.run(
        ["cc", "-Wall", "-Werror", tmp_path / "main.c", object_file, "-o", program, "-lm", "-lpthread"], check=True
    )
    printed = subprocess.run([program], capture_output=True, text=True, check=True).stdout
    x = (np.arange(4 * 64, dtype=np.float32) % 64 / 64).reshape(4, 64)
    found = np.array([float(line) for line in printed.split()]).reshape(4, 64)
    np.testing.assert_allclose(found, expected(x, 2.0, False), rtol=1e-5, atol=1e-6)


@needs_cc
@needs_posix
def test_a_shared_library_of_it_loads(tmp_path: Path, rng: np.random.Generator) -> None:
    object_file, _ = built(name="shared").write(tmp_path)
    library = tmp_path / "shared.so"
    subprocess.run(["cc", "-shared", object_file, "-o", library, "-lm", "-lpthread"], check=True)
    x = rng.normal(size=(8, 64)).astype(np.float32)
    out = np.zeros_like(x)
    pointers = [ctypes.c_void_p(array.ctypes.data) for array in (x, out)]
    extents = [ctypes.c_int64(extent) for extent in (8, 1, 1)]
    assert ctypes.CDLL(str(library)).shared(*pointers, 64, ctypes.c_double(0.5), 1, *extents, 2) == 0
    np.testing.assert_allclose(out, expected(x, 0.5, True), rtol=1e-5, atol=1e-6)


@tilewright.jit(debug=True)
def checked(x, out, unused, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + i, mask=i < n, other=1)
    tl.device_assert(value > 0, "100% above zero")
    tl.store(out + i, 2 * value, mask=i < n)


@needs_cc
@needs_posix
def test_a_failed_assertion_is_reported(tmp_path: Path) -> None:
    code = build(checked, parse_signature(checked, "*f32, *f32, *f32, i32", {"BLOCK": 64}))
    assert "or 2 when an assertion failed" in code.header
    for fact in ("x: float32, read;", "out: float32, written;", "unused: float32, not accessed;"):
        assert fact in code.header
    object_file, _ = code.write(tmp_path)
    (tmp_path / "main.c").write_text(
        '#include "checked.h"\nfloat x[256], out[256];\nint main(int count, char **given) {\n'
        "    for (int i = 0; i < 256; i++) x[i] = i == 130 && count > 1 ? -1 : 1;\n"
        "    return checked(x, out, 0, 256, 4, 1, 1, 1);\n}\n"
    )
    program = tmp_path / "program"
    subprocess.run(["cc", tmp_path / "main.c", object_file, "-o", program, "-lm", "-lpthread"], check=True)
    assert subprocess.run([program], capture_output=True).returncode == 0
    failed = subprocess.run([program, "fail"], capture_output=True, text=True)
    assert failed.returncode == 2
    assert "assertion failed: 100% above zero, in program instance (2, 0, 0)\n" in failed.stdout
    assert failed.stdout.startswith(checked.file)


@tilewright.jit
def by_steps(out, n, step):
    for i in range(0, n, step):
        tl.store(out + i, i)


def test_the_header_tells_of_steps_that_are_not_positive() -> None:
    code = build(by_steps, parse_signature(by_steps, "*i32, i32, i32", {}))
    assert "or 2 when the step of a loop was not positive, which is printed" in code.header


def test_the_header_says_what_a_caller_must_know() -> None:
    header = built(name="run_it", target="cpu:x86-64-v3").header
    assert (
        "int run_it(const float *x, float *out, int32_t n, double scale, uint8_t flag, int64_t grid_x, int64_t grid_y, "
        "int64_t grid_z, int threads);" in header
    )
    assert "BLOCK = 64" in header and "address is divisible by 16" in header and "avx2" in header


def test_signatures() -> None:
    found = parse_signature(normalize, "*kbf16, *f32:32, i64:8, 1.5, True, 128")
    pointers = {name: kind.element for name, kind in found.types.items() if kind.is_pointer}
    assert [(str(entry.element), entry.const) for entry in pointers.values()] == [("bf16", True), ("f32", False)]
    assert str(found.types["n"]) == "i64" and list(found.types) == ["x", "out", "n"]
    assert found.constants == {"scale": 1.5, "flag": True, "BLOCK": 128, "TYPE": tl.float32}
    assert found.divisors == {"x": 2, "out": 32, "n": 8}
    assert [parse_constant(text) for text in ("3", "2.5", "true", "None", "fp16", "word", "'x'")] == [
        3, 2.5, True, None, tl.float16, "word", "x"
    ]  # fmt: skip


MISTAKES: list[tuple[str, dict[str, Any], str]] = [
    ("*f32", {"BLOCK": 8}, "says nothing of 'out'"),
    ("*f32, *f32, i32, f32, i1, i32", {}, "'BLOCK' is a compile-time parameter"),
    ("*f32, *f32, i32, f32, i1, 8, fp32, 3", {}, "is a compile-time parameter|8 entries"),
    ("*f32, *f32, i32, f32, i1", {"SIZE": 8}, "no parameter 'SIZE'"),
    ("*f32:3, *f32, i32, f32, i1", {"BLOCK": 8}, "a power of two"),
    ("float, *f32, i32, f32, i1", {"BLOCK": 8}, "no type of a parameter"),
]


@pytest.mark.parametrize(("text", "constants", "message"), MISTAKES)
def test_wrong_signatures(text: str, constants: dict[str, Any], message: str) -> None:
    with pytest.raises(LaunchError, match=message):
        parse_signature(normalize, text, constants)


def test_wrong_names_and_targets() -> None:
    with pytest.raises(LaunchError, match="no name of a C function"):
        built(name="two words")
    with pytest.raises(TargetError, match="are for CPUs"):
        built(target="cuda:sm_90a")


def test_the_command(tmp_path: Path) -> None:
    source = tmp_path / "kernel.py"
    source.write_text(
        "import triton\nimport triton.language as tl\n"
        "@triton.autotune([triton.Config({'BLOCK': 8})], key=[])\n@triton.jit\n"
        "def fill(out, n, value, BLOCK: tl.constexpr):\n"
        "    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)\n"
        "    tl.store(out + i, value, mask=i < n)\n"
    )

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "tilewright.cli.main", "compile", str(source), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)

    done = run("--name", "fill", "--signature", "*f32:16, i32, f32", "--constants", "BLOCK=64", "-o", "out")
    assert done.returncode == 0, done.stderr
    assert "int fill(float *out, int32_t n, float value" in done.stdout.replace("\n", " ")
    assert (tmp_path / "out" / "fill.o").stat().st_size and (tmp_path / "out" / "fill.h").read_text()
    assert "has fill" in run("--name", "full", "--signature", "i32").stderr.replace("\n", " ").replace("│", "")
    wrong = run("--name", "fill", "--signature", "*f32, i32", "-c", "BLOCK=64")
    assert wrong.returncode == 1 and "says nothing of 'value'" in wrong.stderr
