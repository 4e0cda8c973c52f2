"""Names that are Triton's own and that programs use all the same, and small rules of its decorators."""

# mypy: ignore-errors

from __future__ import annotations

import ast
import io
from contextlib import redirect_stdout

import numpy as np
import pytest

import tilewright
import tilewright.language as tl
from tests.host.language_support import launch
from tilewright.errors import CompilationError
from tilewright.language.core import _aggregate as aggregate
from tilewright.language.core import _tensor_member_fn, _unwrap_if_constexpr, base_type, base_value
from tilewright.shim import sources

FACTOR = tl.constexpr(3)


@_tensor_member_fn
@tilewright.jit
def tripled(x):
    return x * FACTOR


@aggregate
class Pair:
    first: tl.tensor
    second: tl.tensor


@tilewright.jit
def internals(x, out, N: tl.constexpr, KIND: tl.constexpr):
    kind = tl.core._unwrap_if_constexpr(KIND)
    value = tl.load(x + tl.arange(0, N)).to(kind).tripled()
    tl.static_assert(isinstance(value, base_value) and isinstance(N, base_value))
    pair = Pair(value, value + 1)
    best, place = tl.reduce((pair.first, tl.arange(0, N)), 0, tie_left)
    tl.store(out + tl.arange(0, N), pair.second + best + place)


@tilewright.jit
def tie_left(a, i, b, j):
    return tl.standard._argmax_combine(a, i, b, j, True)


def test_kernels_use_them() -> None:
    x, out = np.array([1, 5, 5, 2], np.float32), np.zeros(4, np.float32)
    launch(internals, (1,), x, out, N=4, KIND=tl.float32)
    np.testing.assert_array_equal(out, 3 * x + 1 + 15 + 1)


def test_on_the_host() -> None:
    assert _unwrap_if_constexpr([tl.constexpr(2), (tl.constexpr(3), "x")]) == [2, (3, "x")]
    assert tl.core._constexpr_to_value(tl.constexpr(None)) is None and tl.random.N_ROUNDS_DEFAULT == 10
    assert tl.core.CONSTEXPR_0 == 0
    assert isinstance(tl.constexpr(1), base_value) and not isinstance(1, base_value)
    assert isinstance(tl.float32, base_type) and isinstance(tl.pointer_type(tl.int8), base_type)
    for base in (base_value, base_type):
        with pytest.raises(TypeError, match=r"made with @triton\.aggregate|come with @triton\.aggregate"):
            type("Own", (base,), {})


def test_types_from_the_texts_of_signatures() -> None:
    assert tl.str_to_ty("fp32", None) == tl.float32 and tl.str_to_ty("u1", None) == tl.int1
    pointer = tl.str_to_ty("*kbf16", None)
    assert pointer.const and pointer.element_ty == tl.bfloat16 and not tl.str_to_ty("*i8", None).const
    assert tl.str_to_ty(("i32", "*fp16"), None) == tl.tuple_type([tl.int32, tl.pointer_type(tl.float16)])
    assert tl.str_to_ty("constexpr", 3) == tl.core.constexpr_type(3)
    with pytest.raises(CompilationError, match="no dtype named 'fp31'"):
        tl.str_to_ty("fp31", None)


def test_dependencies_of_a_function() -> None:
    def found(source: str, factor: int) -> sources.DependenciesFinder:
        space = {"FACTOR": tl.constexpr(factor), "tripled": tripled, "tl": tl}
        finder = sources.DependenciesFinder(name="f", globals=space, nonlocals={}, src=source)
        finder.visit(ast.parse(source))
        return finder

    text = "def f(x):\n    return tripled(tl.exp(x)) * FACTOR\n"
    digests = [found(*given).ret for given in ((text, 3), (text, 3), (text, 4), (text.replace("exp", "log"), 3))]
    assert digests[0] == digests[1] and len(set(digests)) == 3
    assert [name for name, _ in found(text, 3).used_global_vals] == ["FACTOR"]


def test_attributes_that_programs_read() -> None:
    assert tripled.__globals__ is globals() and tripled.do_not_specialize == []
    assert both_ways.do_not_specialize == ["N"] and both_ways.do_not_specialize_on_alignment == []


def test_where_a_function_is() -> None:
    file, line = sources.get_jit_fn_file_line(tripled)
    assert file == __file__ and open(file).read().splitlines()[line - 1] == "def tripled(x):"
    assert sources.convert_to_tuple_if_list([1, [2, [3]]]) == (1, (2, (3,)))


@tilewright.jit(do_not_specialize=["N"])
def both_ways(out, N: tl.constexpr):
    tl.store(out, N)


def test_a_constant_that_is_not_specialized_on() -> None:
    message = "N marked as constexpr and listed in do_not_specialize"
    with pytest.raises(CompilationError, match=message):
        both_ways[(1,)](np.zeros(1, np.int32), 4)
    with pytest.raises(CompilationError, match=message):
        both_ways.compile({"out": "*i32"}, {"N": 4})


@tilewright.jit
def truths(out, a: tl.uint1, b: "u1", c: "uint1", d: tl.int1):  # noqa: F821, UP037
    tl.static_assert(a.dtype == tl.int1 and b.dtype == tl.int1 and c.dtype == tl.uint1 and d.dtype == tl.int1)
    tl.store(out + tl.arange(0, 1), tl.where(a & b, 1, 2))
    tl.store(out + 1 + tl.arange(0, 1), tl.where(c | d, 1, 2))


def test_truth_values() -> None:
    out = np.zeros(2, np.int32)
    launch(truths, (1,), out, 1, True, 0, False)
    assert out.tolist() == [1, 2]


@tilewright.jit(noinline=True)
def apart(x):
    return x + 1


@tilewright.jit
def calls(x):
    tl.store(x, apart(tl.load(x)))


def test_noinline_is_reported() -> None:
    kernel = calls.compile({"x": "*f32"}, {})
    assert any("'apart' is inlined here" in remark.message for remark in kernel.remarks)
    with redirect_stdout(io.StringIO()) as text:
        kernel.explain()
    assert "'apart' is inlined here, as every function is: noinline has no effect" in text.getvalue()
