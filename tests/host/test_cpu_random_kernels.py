"""The CPU target gives, bit for bit, what the interpreter says, on random kernels over the op table."""

from __future__ import annotations

import random

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.host.kernel_support import check, run_compiled
from tests.host.random_kernels import GRID, arguments_of, outputs_of, random_kernel, run_kernel


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**64), st.integers(1, 12), st.booleans())
@example(518, 12, True)  # a scan of floats of many sizes that it has stored
def test_compiled_and_interpreted_random_kernels_agree(seed: int, length: int, rewrites: bool):
    function = random_kernel(random.Random(seed), length, exact=True, rewrites=rewrites)
    expected, arguments = run_kernel(function), arguments_of()
    run_compiled(function, arguments, GRID)
    found = outputs_of(arguments)
    for name in expected:
        assert expected[name].tobytes() == found[name].tobytes(), name


def test_two_kept_axes_of_a_reduction_are_not_both_vectorised():
    source = """
    kernel k(%out: *i64) {
      %zero = constant 1 : <2x2x2xi64>
      %one = constant 2 : <2x2x2xi64>
      %r, %s = reduce %zero, %one {axis = 0} : <2x2xi64>, <2x2xi64> {(%a: i64, %b: i64, %c: i64, %d: i64)
        %e = add %a, %c : i64
        %f = multiply %b, %d : i64
        yield %e, %f
      }
      %i = arange {start = 0, end = 4} : <4xi32>
      %j = reshape %i {shape = [2, 2]} : <2x2xi32>
      %base = splat %out {shape = [2, 2]} : <2x2x*i64>
      %p = offset %base, %j : <2x2x*i64>
      %sum = add %r, %s : <2x2xi64>
      store %p, %sum
      return
    }
    """
    (found,) = check(source, [np.zeros(4, np.int64)])
    assert found.tolist() == [6, 6, 6, 6]
