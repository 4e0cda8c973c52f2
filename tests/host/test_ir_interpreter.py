"""The interpreter: memory, masks, atomics, reductions, control flow, and what it refuses."""

from __future__ import annotations

import sys

import ml_dtypes
import numpy as np
import pytest

import tilewright
import tilewright.language as tl
from tilewright.errors import ExecutionError, LaunchError
from tilewright.ir.interpreter import run
from tilewright.ir.memory import ArrayPointer
from tilewright.ir.parser import parse_function
from tilewright.ir.verifier import verify
from tilewright.settings import settings


def kernel(parameters: str, body: str):
    function = parse_function(f"kernel k({parameters}) {{\n{body}\nreturn\n}}")
    verify(function)
    return function


COPY = """
%i = arange {start = 0, end = 4} : <4xi32>
%s = splat %x {shape = [4]} : <4x*f32>
%p = offset %s, %i : <4x*f32>
%t = splat %y {shape = [4]} : <4x*f32>
%q = offset %t, %i : <4x*f32>
%v = load %p : <4xf32>
store %q, %v
"""

MASKED = """
%i = arange {start = 0, end = 4} : <4xi32>
%s = splat %x {shape = [4]} : <4x*f32>
%p = offset %s, %i : <4x*f32>
%t = splat %y {shape = [4]} : <4x*f32>
%q = offset %t, %i : <4x*f32>
%n = splat %count {shape = [4]} : <4xi32>
%m = compare %i, %n {predicate = "lt"} : <4xi1>
%zero = load %p, %m : <4xf32>
%o = constant 7.0 : <4xf32>
%seven = load %p, %m, %o : <4xf32>
%v = add %zero, %seven : <4xf32>
store %q, %v
"""


def test_masked_lanes_touch_no_memory_and_are_other_or_zero():
    x, y = np.asarray([1, 2], np.float32), np.zeros(4, np.float32)
    run(kernel("%x: *f32, %y: *f32, %count: i32", MASKED), [x, y, 2])
    assert y.tolist() == [2, 4, 7, 7]


def test_strided_reversed_and_offset_arrays():
    base = np.arange(12, dtype=np.float32)
    function = kernel("%x: *f32, %y: *f32", COPY)
    for source, expected in (
        (base[2:8], [2, 3, 4, 5]),
        (base[4:10:2], [4, 5, 6, 7]),
        (np.flip(base)[3:], None),
        (ArrayPointer(base, 5), [5, 6, 7, 8]),
        (np.flip(base)[8:], None),
    ):
        y = np.zeros(4, np.float32)
        if expected is None:  # a reversed array points at its first element, the highest in memory
            with pytest.raises(ExecutionError, match="out of bounds"):
                run(function, [source, y])
        else:
            run(function, [source, y])
            assert y.tolist() == expected


def test_views_share_memory():
    base = np.arange(8, dtype=np.float32)
    run(kernel("%x: *f32, %y: *f32", COPY), [base[:4], base[4:]])
    assert base.tolist() == [0, 1, 2, 3, 0, 1, 2, 3]


def test_out_of_bounds_names_operation_location_and_instance():
    body = COPY.replace("%v = load %p : <4xf32>", '%v = load %p : <4xf32> loc("k.py":5:8)')
    with pytest.raises(ExecutionError) as caught:
        run(kernel("%x: *f32, %y: *f32", body), [np.zeros(3, np.float32), np.zeros(4, np.float32)], (1,))
    text = str(caught.value)
    assert text.startswith("k.py:5:8: load in program instance (0, 0, 0): access out of bounds: element 3 of x")
    with pytest.raises(ExecutionError, match="element -1 of x"):
        run(kernel("%x: *f32, %y: *f32", COPY), [ArrayPointer(np.zeros(8, np.float32), -1), np.zeros(4, np.float32)])
    with pytest.raises(ExecutionError, match="null pointer"):
        run(kernel("%x: *f32, %y: *f32", COPY), [None, np.zeros(4, np.float32)])
    fixed = np.zeros(4, np.float32)
    fixed.flags.writeable = False
    with pytest.raises(ExecutionError, match="read-only"):
        run(kernel("%x: *f32, %y: *f32", COPY), [fixed, fixed])


def test_a_neighbouring_buffer_is_not_reached():
    """Past the end of one array is an error even if another array lies there."""
    base = np.zeros(8, np.float32)
    with pytest.raises(ExecutionError, match="out of bounds"):
        run(kernel("%x: *f32, %y: *f32", COPY), [base[:2], base[4:]])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([1.0], "takes 2 arguments, not 1"),
        ([np.zeros(1, np.float64), 1], "cannot be seen as"),
        ([3, 1], "expected an array"),
        ([np.zeros(1, np.float32), 2**40], "does not fit i32"),
        ([np.zeros(1, np.float32), "x"], "expected a number"),
        ([np.zeros(1, np.float32), 6], "6 is not divisible by 4"),
        ([ArrayPointer(np.zeros(9, np.float32), 1), 4], "its address is not divisible by 16"),
    ],
)
def test_refuses_arguments_that_do_not_fit(arguments, message: str):
    with pytest.raises(LaunchError) as caught:
        run(kernel("%x: *f32 {divisibility = 16}, %n: i32 {divisibility = 4}", ""), arguments)
    assert message in str(caught.value)


@pytest.mark.parametrize("dtype", [np.bool_, np.int8, np.uint16, np.int64, np.float16, ml_dtypes.bfloat16, np.float64])
def test_all_element_types_load_and_store(dtype, rng: np.random.Generator):
    from tilewright.dtypes import from_numpy

    text = from_numpy(dtype).text
    x, y = rng.integers(0, 2, 4).astype(dtype), np.zeros(4, dtype)
    run(kernel(f"%x: *{text}, %y: *{text}", COPY.replace("f32", text)), [x, y])
    assert x.tobytes() == y.tobytes()


def test_grid_order_and_program_ids():
    body = """
    %x = program_id {axis = 0} : i32
    %y = program_id {axis = 1} : i32
    %z = program_id {axis = 2} : i32
    %nx = num_programs {axis = 0} : i32
    %ny = num_programs {axis = 1} : i32
    %zy = multiply %z, %ny : i32
    %r = add %zy, %y : i32
    %s = multiply %r, %nx : i32
    %linear = add %s, %x : i32
    %one = constant 1 : i32
    %order = atomic_rmw %counter, %one {kind = "add"} : i32
    %p = offset %out, %linear : *i32
    store %p, %order
    """
    out, counter = np.zeros(24, np.int32), np.zeros(1, np.int32)
    run(kernel("%out: *i32, %counter: *i32", body), [out, counter], (2, 3, 4))
    assert out.tolist() == list(range(24))


@pytest.mark.parametrize("kind", ["add", "max", "min", "and", "or", "xor", "exchange"])
def test_atomics_with_lanes_of_one_address(kind: str):
    """Each lane happens on its own; all old values together with the last are a chain."""
    body = f"""
    %i = arange {{start = 0, end = 8}} : <8xi32>
    %two = constant 2 : <8xi32>
    %half = divide %i, %two : <8xi32>
    %s = splat %x {{shape = [8]}} : <8x*i32>
    %p = offset %s, %half : <8x*i32>
    %old = atomic_rmw %p, %i {{kind = "{kind}"}} : <8xi32>
    %t = splat %y {{shape = [8]}} : <8x*i32>
    %q = offset %t, %i : <8x*i32>
    store %q, %old
    """
    start = np.asarray([5, 1, 12, 3], np.int32)
    x, y = start.copy(), np.zeros(8, np.int32)
    run(kernel("%x: *i32, %y: *i32", body), [x, y])
    step = {
        "add": lambda a, b: a + b, "max": max, "min": min, "and": lambda a, b: a & b,
        "or": lambda a, b: a | b, "xor": lambda a, b: a ^ b, "exchange": lambda a, b: b,
    }[kind]  # fmt: skip
    memory = start.tolist()
    for lane in range(8):
        assert y[lane] == memory[lane // 2]
        memory[lane // 2] = step(memory[lane // 2], lane)
    assert x.tolist() == memory


def test_compare_and_swap_compares_bits():
    body = """
    %nan = constant nan : f32
    %one = constant 1.0 : f32
    %old = atomic_cas %x, %nan, %one : f32
    """
    x = np.full(1, np.nan, np.float32)
    run(kernel("%x: *f32", body), [x])
    assert x[0] == 1.0


def reduction(opcode: str, regions: str, result: str, axis: int) -> str:
    return f"""
    %i = arange {{start = 0, end = 24}} : <24xi32>
    %f = reshape %i {{shape = [4, 6]}} : <4x6xi32>
    %s = splat %x {{shape = [4, 6]}} : <4x6x*f64>
    %p = offset %s, %f : <4x6x*f64>
    %v = load %p : <4x6xf64>
    %r = {opcode} %v {{axis = {axis}}} : {result} {{(%a: f64, %b: f64)
      {regions}
    }}
    """


STORE_ROW = """
    %j = arange {start = 0, end = N} : <Nxi32>
    %k = reshape %j {shape = SHAPE} : TYPExi32>
    %t = splat %y {shape = SHAPE} : TYPEx*f64>
    %q = offset %t, %k : TYPEx*f64>
    store %q, %r
"""


def stored(shape: tuple[int, ...]) -> str:
    size = int(np.prod(shape))
    type_ = "<" + "x".join(map(str, shape))
    return STORE_ROW.replace("TYPE", type_).replace("SHAPE", str(list(shape))).replace("N", str(size))


ADD = "%c = add %a, %b : f64\n yield %c"
# Control flow in the region makes it run element by element.
ADD_WITH_BRANCH = """
%yes = compare %a, %b {predicate = "eq"} : i1
%c = if %yes : f64 {
  %d = add %a, %a : f64
  yield %d
} {
  %e = add %a, %b : f64
  yield %e
}
yield %c
"""


@pytest.mark.parametrize("region", [ADD, ADD_WITH_BRANCH], ids=["vector", "branch"])
@pytest.mark.parametrize("axis", [0, 1])
def test_reduce_and_scan(region: str, axis: int, rng: np.random.Generator):
    x = rng.integers(-9, 9, (4, 6)).astype(np.float64)
    shape = (6,) if axis == 0 else (4,)
    body = reduction("reduce", region, f"<{shape[0]}xf64>", axis) + stored(shape)
    y = np.zeros(shape)
    run(kernel("%x: *f64, %y: *f64", body), [x, y])
    assert y.tolist() == x.sum(axis).tolist()
    for reverse in (False, True):
        body = reduction("scan", region, "<4x6xf64>", axis) + stored((4, 6))
        if reverse:
            body = body.replace(f"{{axis = {axis}}}", f"{{axis = {axis}, reverse = true}}")
        y = np.zeros((4, 6))
        run(kernel("%x: *f64, %y: *f64", body), [x, y])
        expected = np.flip(np.cumsum(np.flip(x, axis), axis), axis) if reverse else np.cumsum(x, axis)
        assert y.tolist() == expected.tolist()


def test_scan_needs_associativity_only():
    """The last of two numbers that is not zero: associative, not commutative."""
    region = """
    %z = constant 0.0 : f64
    %m = compare %b, %z {predicate = "ne"} : i1
    %c = select %m, %b, %a : f64
    yield %c
    """
    x = np.asarray([1, 0, 0, 2, 0, 3] * 4, np.float64).reshape(4, 6)
    y = np.zeros((4, 6))
    run(kernel("%x: *f64, %y: *f64", reduction("scan", region, "<4x6xf64>", 1) + stored((4, 6))), [x, y])
    assert y[0].tolist() == [1, 1, 1, 2, 2, 3]
    row = np.zeros(4)
    run(kernel("%x: *f64, %y: *f64", reduction("reduce", region, "<4xf64>", 1) + stored((4,))), [x, row])
    assert row.tolist() == [3, 3, 3, 3]


@pytest.mark.parametrize(("dtype", "accumulator"), [("f16", "f32"), ("bf16", "f32"), ("f32", "f32"), ("i8", "i32")])
def test_dot(dtype: str, accumulator: str, rng: np.random.Generator):
    from tilewright.dtypes import BY_TEXT

    def block(name: str, shape: list[int], element: str) -> str:
        size, type_ = shape[0] * shape[1], f"<{shape[0]}x{shape[1]}"
        return f"""
        %{name}i = arange {{start = 0, end = {size}}} : <{size}xi32>
        %{name}r = reshape %{name}i {{shape = {shape}}} : {type_}xi32>
        %{name}s = splat %{name} {{shape = {shape}}} : {type_}x*{element}>
        %{name}p = offset %{name}s, %{name}r : {type_}x*{element}>
        %{name}v = load %{name}p : {type_}x{element}>
        """

    body = block("a", [3, 5], dtype) + block("b", [5, 2], dtype) + block("c", [3, 2], accumulator)
    body += f"%d = dot %av, %bv, %cv : <3x2x{accumulator}>\nstore %cp, %d\n"
    a, b = (rng.integers(-8, 8, shape).astype(BY_TEXT[dtype].numpy) for shape in ((3, 5), (5, 2)))
    c = rng.integers(-8, 8, (3, 2)).astype(BY_TEXT[accumulator].numpy)
    expected = a.astype(np.float64) @ b.astype(np.float64) + c
    run(kernel(f"%a: *{dtype}, %b: *{dtype}, %c: *{accumulator}", body), [a, b, c])
    assert c.tolist() == expected.tolist()


def test_loops_and_branches():
    """Collatz steps of every number below n: a while and an if inside a for."""
    body = """
    %zero = constant 0 : i32
    %one = constant 1 : i32
    %two = constant 2 : i32
    %three = constant 3 : i32
    for %one, %n, %one {(%i: i32)
      %steps, %last = while %zero, %i : i32, i32 {(%c: i32, %v: i32)
        %go = compare %v, %one {predicate = "gt"} : i1
        condition %go, %c, %v
      } {(%c1: i32, %v1: i32)
        %r = remainder %v1, %two : i32
        %odd = compare %r, %one {predicate = "eq"} : i1
        %next = if %odd : i32 {
          %t = multiply %v1, %three : i32
          %u = add %t, %one : i32
          yield %u
        } {
          %h = divide %v1, %two : i32
          yield %h
        }
        %c2 = add %c1, %one : i32
        yield %c2, %next
      }
      %p = offset %out, %i : *i32
      store %p, %steps
      yield
    }
    """

    def collatz(number: int) -> int:
        steps = 0
        while number > 1:
            number, steps = (3 * number + 1 if number % 2 else number // 2), steps + 1
        return steps

    out = np.zeros(30, np.int32)
    run(kernel("%out: *i32, %n: i32", body), [out, 30])
    assert out.tolist() == [0, *map(collatz, range(1, 30))]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ('%f = constant false : i1\nassert %f {message = "n is small"}', "assertion failed: n is small"),
        ("%f = constant false : <4xi1>\nassume %f", "the assumption does not hold"),
        ("%z = constant 0 : i32\nfor %z, %n, %z {(%i: i32)\nyield\n}", "the step 0 is not positive"),
        (
            "%b = constant 1.0 : <4xf32>\n%i = constant 4 : <4xi32>\n%g = gather %b, %i {axis = 0} : <4xf32>",
            "the index 4 is outside of the 4 elements along axis 0 that are gathered from\n  element [0] of the block",
        ),
    ],
)
def test_stops_with_the_reason(body: str, message: str):
    with pytest.raises(ExecutionError) as caught:
        run(kernel("%n: i32", body), [3], (1, 2))
    assert message in str(caught.value)
    assert "program instance (0, 0, 0)" in str(caught.value)


def test_print_shows_instance_prefix_and_values(capsys: pytest.CaptureFixture[str]):
    run(kernel("%n: i32", 'print %n {prefix = "n is"}'), [3], (2,))
    assert capsys.readouterr().out == "pid (0, 0, 0) idx () n is: 3\npid (1, 0, 0) idx () n is: 3\n"


def test_real_addresses_in_memory_are_followed():
    body = """
    %a = load %table : i64
    %p = bitcast %a {element = *f32} : *f32
    %v = load %p : f32
    store %y, %v
    """
    x, y = np.asarray([42], np.float32), np.zeros(1, np.float32)
    function = kernel("%table: *i64, %x: *f32, %y: *f32", body)
    run(function, [np.asarray([x.ctypes.data]), x, y])
    assert y[0] == 42
    elsewhere = np.asarray([43], np.float32)
    if sys.platform == "linux":  # which tells what is mapped
        for check in (False, True):
            y[:] = 0
            run(function, [np.asarray([elsewhere.ctypes.data]), x, y], check=check)
            assert y[0] == 43
    for address, message in ((8, "address 0x8, which is in no argument"), (elsewhere.ctypes.data + 1, "not aligned")):
        with pytest.raises(ExecutionError, match=message if address == 8 or sys.platform == "linux" else "in no arg"):
            run(function, [np.asarray([address]), x, y])


def waits(turn, out):
    me = tl.program_id(0)
    while tl.atomic_add(turn, 0) != 1 - me:
        pass
    tl.store(out + me, 1)
    tl.atomic_xchg(turn, 1)


def waits_in_order(turn, out):
    me = tl.program_id(0)
    while tl.atomic_cas(turn, me, me) != me:
        pass
    tl.store(out + me, 1)
    tl.atomic_add(turn, 1)


def counts_down(turn, out):
    left = tl.load(turn) + 3
    while left > 0:
        left -= 1
    tl.store(out + tl.program_id(0), left + 1)


@pytest.mark.parametrize("mode", [True, "check", "eager"])
def test_an_instance_that_waits_for_a_later_one_is_reported(mode):
    out = np.zeros(2, np.int32)
    with settings.scope(interpret=mode):
        with pytest.raises(ExecutionError, match="the loop never ends") as caught:
            tilewright.jit(waits)[(2,)](np.zeros(1, np.int32), out)
        assert caught.value.program_id == (0, 0, 0) and "while tl.atomic_add" in str(caught.value)
        for kernel in (waits_in_order, counts_down):
            out[:] = 0
            tilewright.jit(kernel)[(2,)](np.zeros(1, np.int32), out)
            assert out.all()
