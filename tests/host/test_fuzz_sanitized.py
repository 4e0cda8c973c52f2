"""Sanitized machine code reports what goes beyond a tensor, and computes what other code does."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tools.fuzz import sanitized
from tools.fuzz.harness import ROOT

PROGRAM = """
import sys
from pathlib import Path
from tools.fuzz import sanitized
sanitized.install(Path(sys.argv[2]))
import numpy as np
import tilewright
import tilewright.language as tl
from tilewright.build import storage
from tilewright.build.builder import build
from tilewright.dtypes import float32
from tilewright.graph.build import GraphBuilder

@tilewright.jit
def copy(x, out, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, mask=i < n), mask=i < n)

@tilewright.jit
def gathered(x, out, first, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + (i * 5 + first) % 300))

def engine():
    b = GraphBuilder("two")
    x = b.input("x", float32, (b.symbol("n", 1, 8), 48))
    w = b.constant(np.eye(48, dtype=np.float32))
    b.output(b.op("softmax", [b.op("matmul", [b.op("softmax", [b.op("matmul", [x, w])], axis=1), w])], axis=1), "y")
    return build(b.finish())

x, out = np.arange(300, dtype=np.float32), np.zeros(300, np.float32)
if sys.argv[1] == "right":
    copy[(1,)](x, out, 300, BLOCK=512)
    assert (out == x).all()
    gathered[(1,)](x, out, 7, BLOCK=256)
    assert (out[:256] == x[(np.arange(256) * 5 + 7) % 300]).all()
    assert abs(engine()(np.ones((3, 48), np.float32)) - 1 / 48).max() < 1e-6
elif sys.argv[1] == "masked":
    copy[(1,)](x, out, 301, BLOCK=512)
elif sys.argv[1] == "gathered":
    gathered[(1,)](x, out, -1300, BLOCK=256)
else:
    place = storage.plan_memory
    def less(intervals):
        found = place(intervals)
        first = found.offsets[intervals[0].name]
        return type(found)({**found.offsets, intervals[0].name: first + 16}, found.total, found.intervals)
    storage.plan_memory = less
    engine()(np.ones((8, 48), np.float32))
print("came to its end")
"""


def run(case: str, folder: Path) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **sanitized.environment()}
    (folder / "program.py").write_text(PROGRAM)  # kernels need their source
    command = [sys.executable, str(folder / "program.py"), case, str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    return done.stdout + done.stderr


def has_asan() -> bool:
    try:
        sanitized.environment()
    except SystemExit:
        return False
    with tempfile.TemporaryDirectory() as folder:
        return "came to its end" in run("right", Path(folder))


@pytest.fixture(scope="module")
def asan() -> None:
    if sys.platform != "linux" or not has_asan():
        pytest.skip("GCC's libasan does not run here")


@pytest.mark.slow(but_every=3)
@pytest.mark.parametrize("case", ["masked", "gathered", "arena"])
def test_accesses_beyond_memory_are_reported(case: str, asan: None, tmp_path: Path) -> None:
    text = run(case, tmp_path)
    kinds = ("use-after-poison", "unknown-crash") if case == "arena" else ("heap-buffer-overflow",)
    assert any(f"AddressSanitizer: {kind} on" in text for kind in kinds)
    assert "came to its end" not in text


@pytest.mark.parametrize(
    "kind, size",
    {
        "i1": 1, "i24": 3, "i64": 8, "ptr": 8, "bfloat": 2, "<8 x float>": 32, "<16 x i1>": 2, "<3 x i4>": 2,
        "[4 x <8 x half>]": 64, "{ i32, [2 x double] }": 20,
    }.items(),
)  # fmt: skip
def test_sizes(kind: str, size: int) -> None:
    assert sanitized.size_of(kind) == size


LINES = {
    "  %a = load <8 x float>, ptr %p.1, align 4": ["load 32"],
    "  %a = load atomic i64, ptr %p acquire, align 8": ["load 8"],
    "  store <4 x i32> splat (i32 7), ptr %p, align 4, !nontemporal !0": ["store 16"],
    "  store ptr %a, ptr %p": ["store 8"],
    "  store volatile { i32, i32 } { i32 1, i32 2 }, ptr @g": ["store 8"],
    "  %o = atomicrmw fadd ptr %p, float %v monotonic, align 4": ["store 4"],
    "  %o = cmpxchg weak ptr %p, i64 %a, i64 %b acq_rel monotonic": ["store 8"],
    "  call void @llvm.memcpy.p0.p0.i64(ptr align 4 %to, ptr %from, i64 %n, i1 false)": ["store %n", "load %n"],
    "  call void @llvm.memset.p0.i64(ptr align 64 %to, i8 0, i64 256, i1 false)": ["store 256"],
    "  %a = call <8 x float> @llvm.masked.load.v8f32.p0(ptr align 4 %p, <8 x i1> %m, <8 x float> zeroinitializer)": [
        "tw.asan.load.8.4"
    ],
    "  call void @llvm.masked.scatter.v4i16.v4p0(<4 x i16> %v, <4 x ptr> align 2 %p, <4 x i1> splat (i1 true))": [
        "tw.asan.scatter.4.2"
    ],
    "  %a = add i64 %load, %store": [],
    "declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)": [],
}


@pytest.mark.parametrize("line", LINES, ids=range(len(LINES)))
def test_every_access_has_its_call(line: str) -> None:
    text = sanitized.instrumented(line)
    calls = [each for each in text.split(line)[0].splitlines() if each.startswith("  call")]
    assert len(calls) == len(LINES[line])
    for call, expected in zip(calls, LINES[line], strict=True):
        kind, _, size = expected.partition(" ")
        assert (f"@{kind}(" if not size else f"@__asan_{kind}N(") in call and call.endswith(
            f"i64 {size})" if size else ")"
        )
    assert not LINES[line] or "declare void @__asan_loadN(i64, i64)" in text
