"""Grids whose planes follow from each other: every plane reads what the one before it has written."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from tests.host.handmade import compile_text
from tests.host.test_runtime_parallel import providers
from tilewright.runtime.glue import glue
from tilewright.runtime.library import load_objects
from tilewright.runtime.parallel import run_parallel
from tilewright.settings import settings

# Instance i + n * plane writes x[plane + 1][i] = x[plane][i] + x[plane][(i + 1) % n], and adds 1 to the count of runs.
STEP = """
define void @step(ptr %arguments, ptr %scratch, i64 %begin, i64 %end) {
entry:
  %x = load ptr, ptr %arguments
  %n.p = getelementptr i64, ptr %arguments, i64 1
  %n = load i64, ptr %n.p
  %runs.p = getelementptr ptr, ptr %arguments, i64 2
  %runs = load ptr, ptr %runs.p
  br label %loop
loop:
  %i = phi i64 [ %begin, %entry ], [ %next, %loop ]
  %column = urem i64 %i, %n
  %after = add i64 %column, 1
  %right = urem i64 %after, %n
  %first = sub i64 %i, %column
  %neighbour = add i64 %first, %right
  %below = add i64 %i, %n
  %a.p = getelementptr i64, ptr %x, i64 %i
  %b.p = getelementptr i64, ptr %x, i64 %neighbour
  %c.p = getelementptr i64, ptr %x, i64 %below
  %a = load i64, ptr %a.p
  %b = load i64, ptr %b.p
  %sum = add i64 %a, %b
  store i64 %sum, ptr %c.p
  %old = atomicrmw add ptr %runs, i64 1 monotonic
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %end
  br i1 %more, label %loop, label %out
out:
  ret void
}
"""
# The context: the address of the function, instances in a plane, planes, then the arguments.
BODY = """
declare void @parallel_planes(ptr, ptr, ptr, i64, i64)
define void @body(ptr %team, ptr %context) {
  %function = load ptr, ptr %context
  %plane.p = getelementptr i64, ptr %context, i64 1
  %plane = load i64, ptr %plane.p
  %planes.p = getelementptr i64, ptr %context, i64 2
  %planes = load i64, ptr %planes.p
  %arguments = getelementptr i64, ptr %context, i64 3
  call void @parallel_planes(ptr %team, ptr %function, ptr %arguments, i64 %plane, i64 %planes)
  ret void
}
"""


@pytest.fixture(scope="module")
def functions():
    library = load_objects([compile_text(STEP), compile_text(BODY)], ["step", "body"], glue().imports)
    yield library.address("step"), library.address("body")


@pytest.mark.parametrize("name", providers())
@pytest.mark.parametrize("threads", [1, 2, 5, 40])
def test_planes_follow_each_other(functions, name, threads):
    step, body = functions
    with settings.scope(parallel=name):
        for plane, planes in ((1, 30), (2, 300), (7, 60), (90, 50), (5, 0)):
            x = np.zeros((planes + 1, plane), np.uint64)
            x[0] = np.arange(plane) + 1
            wanted = x.copy()
            for number in range(planes):
                wanted[number + 1] = wanted[number] + np.roll(wanted[number], -1)
            runs = np.zeros(1, np.int64)
            arguments = struct.pack("<6q", step, plane, planes, x.ctypes.data, plane, runs.ctypes.data)
            run_parallel(body, arguments, 64, threads)
            np.testing.assert_array_equal(x, wanted)
            assert runs[0] == plane * planes
