"""What a process says when a kernel's machine code crashes, and that other crashes stay as they were."""

from __future__ import annotations

import os
import platform
import re
import signal
import subprocess
import sys
from collections.abc import Callable

import pytest

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() != "x86_64", reason="faults are told of only on Linux for x86-64"
)

PROGRAM = """
import ctypes, faulthandler, mmap, os, signal, sys
import numpy as np
import tilewright
import tilewright.language as tl

@tilewright.jit
def no_mask(x, out, n, scale, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i) * scale)

@tilewright.jit
def fill(out, BLOCK: tl.constexpr):
    tl.store(out + tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK), 0.0)

pages = mmap.mmap(-1, 2 * mmap.PAGESIZE)
start = ctypes.addressof(ctypes.c_char.from_buffer(pages))
protect = ctypes.CDLL(None).mprotect
protect(ctypes.c_void_p(start + mmap.PAGESIZE), ctypes.c_size_t(mmap.PAGESIZE), 0)
out = np.frombuffer(pages, np.float32)[: mmap.PAGESIZE // 4][-64:]
x = np.ones(1 << 14, np.float32)

def crash():
    no_mask[(64,)](x, out, -64, 1.5, BLOCK=32)
"""


@pytest.fixture
def run(tmp_path) -> Callable[..., tuple[int, str]]:
    """Runs a text after `PROGRAM` in a process: its exit status and what it wrote to standard error."""

    def run(program: str, threads: int = 1) -> tuple[int, str]:
        environment = {**os.environ, "TILEWRIGHT_THREADS": str(threads)}
        environment.pop("PYTHONFAULTHANDLER", None)
        file = tmp_path / "program.py"
        file.write_text(PROGRAM + program)
        command = [sys.executable, str(file)]
        done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
        return done.returncode, done.stderr

    return run


def reported_lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("tilewright:")]


@pytest.mark.parametrize("threads", [1, 2])
def test_kernel_launch_and_advice(run, threads):
    status, text = run("crash()", threads)
    assert status == -signal.SIGSEGV
    (line,) = reported_lines(text)
    assert "segmentation fault (SIGSEGV) at address 0x" in line and "in kernel no_mask, program instance (" in line
    assert line.endswith("of grid (64, 1, 1)")
    assert "\n  out = 0x" in text and "\n  n = -64\n" in text and "scale" not in text
    assert "TILEWRIGHT_CHECK_BOUNDS=1" in text and "TILEWRIGHT_INTERPRET=check" in text


def test_instance_and_distance_of_a_run_in_order(run):
    _, text = run("crash()")
    assert "program instance (2, 0, 0)" in text
    (distance,) = re.findall(r"which is (\d+) bytes before the address", text)
    assert 256 <= int(distance) < 384  # somewhere in the third block of 32 numbers: by vectors of any width


def test_array_may_lie_after_the_address(run):
    _, text = run(
        """
@tilewright.jit
def far(out, offset):
    tl.store(out + offset, 1.0)

far[(1,)](out, -(1 << 35))
"""
    )
    assert f"which is {1 << 37} bytes after the address" in text and "bytes before" not in text


def test_fault_in_a_function_of_the_c_library(run):
    status, text = run("fill[(4,)](out, BLOCK=1024)")  # becomes a call of memset
    assert status == -signal.SIGSEGV and len(reported_lines(text)) == 1 and "in kernel fill" in text


@pytest.mark.parametrize("order", ["before", "after"])
def test_faulthandler_writes_its_traceback_too(run, order):
    enable = "faulthandler.enable()\n"
    warm = "no_mask[(2,)](x, out, 64, 1.5, BLOCK=32)\n"
    status, text = run((enable + warm if order == "before" else warm + enable) + "crash()")
    assert status == -signal.SIGSEGV
    assert len(reported_lines(text)) == 1 and "Fatal Python error: Segmentation fault" in text and "in crash" in text


@pytest.mark.parametrize(
    "fault",
    ["ctypes.string_at(8)", "signal.raise_signal(signal.SIGSEGV)", "os.kill(os.getpid(), signal.SIGSEGV)"],
)
@pytest.mark.parametrize("handler", ["", "faulthandler.enable()\n"])
def test_faults_of_others_go_where_they_went(run, fault, handler):
    status, text = run(f"no_mask[(2,)](x, out, 64, 1.5, BLOCK=32)\n{handler}{fault}")
    assert status == -signal.SIGSEGV and not reported_lines(text)
    assert ("Fatal Python error" in text) == bool(handler)


def test_handler_of_another_library_may_mend_the_fault(run):
    """One that makes the page accessible: the kernel goes on."""
    program = """
MEND = ctypes.CFUNCTYPE(None, ctypes.c_int)
mend = MEND(lambda number: protect(ctypes.c_void_p(start + mmap.PAGESIZE), ctypes.c_size_t(mmap.PAGESIZE), 3) and None)
ctypes.CDLL(None).signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
ctypes.CDLL(None).signal(11, ctypes.cast(mend, ctypes.c_void_p))
no_mask[(4,)](x, out, -64, 1.5, BLOCK=32)
assert np.frombuffer(pages, np.float32)[mmap.PAGESIZE // 4 + 63] == 1.5
"""
    status, text = run(program)
    assert status == 0, text
    assert len(reported_lines(text)) == 1


def test_child_of_a_fork_is_reported_as_well(run):
    status, text = run(
        "no_mask[(2,)](x, out, 64, 1.5, BLOCK=32)\n"
        "child = os.fork()\nif child == 0: crash()\nassert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -11",
        threads=2,
    )
    assert status == 0, text
    assert len(reported_lines(text)) == 1


def test_stack_overflow_is_nobodys_kernel(run):
    status, text = run(
        "no_mask[(2,)](x, out, 64, 1.5, BLOCK=32)\nfaulthandler.enable()\nfaulthandler._stack_overflow()"
    )
    assert status == -signal.SIGSEGV and not reported_lines(text) and "Fatal Python error" in text


def test_file_that_was_cut_short_while_mapped(run, tmp_path):
    path = tmp_path / "data"
    status, text = run(
        f"open({str(path)!r}, 'wb').write(bytes(1 << 16))\n"
        f"mapped = np.memmap({str(path)!r}, np.float32, 'r+')\n"
        f"os.truncate({str(path)!r}, 0)\n"
        "no_mask[(2,)](mapped, out, 64, 1.5, BLOCK=32)"
    )
    assert status == -signal.SIGBUS and "bus error (SIGBUS)" in text and "in kernel no_mask" in text
    assert "help: a file that an argument is mapped from (np.memmap) was cut short" in text


def test_engine_names_the_kernel_of_its_step(run):
    program = """
from tilewright.dtypes import float32
from tilewright.build.builder import build
from tilewright.graph.build import GraphBuilder
b = GraphBuilder("model")
b.output(b.op("softmax", [b.op("multiply", [b.input("x", float32, (8, 128)), 2.0])], axis=1), "y")
engine = build(b.finish(), "cpu")
engine.run({"x": np.ones((8, 128), np.float32)})
protect(ctypes.c_void_p(start), ctypes.c_size_t(mmap.PAGESIZE), 0)
engine.run({"x": np.frombuffer(pages, np.float32)[:1024].reshape(8, 128)})
"""
    status, text = run(program)
    assert status == -signal.SIGSEGV, text
    (line,) = reported_lines(text)
    assert "in kernel " in line
    assert "help: shapes and strides fit" in text and "CHECK_BOUNDS" not in text  # which changes nothing in engines
