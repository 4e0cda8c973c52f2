"""Simplification keeps the meaning, byte for byte, and does what its rules say."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from tests.host.random_kernels import random_kernel, run_kernel
from tilewright.ir.core import Function, Operation, SSAValue
from tilewright.ir.parser import parse_function
from tilewright.ir.printer import print_function
from tilewright.ir.rewrite import RewriteTable, RuleRewriter, rewrite
from tilewright.ir.verifier import verify
from tilewright.passes.canonicalize import canonicalize
from tilewright.passes.common_subexpressions import merge_common_subexpressions
from tilewright.passes.dead_code import remove_dead_code
from tilewright.passes.loop_invariants import hoist_loop_invariants
from tilewright.passes.pipeline import simplify
from tilewright.settings import settings

PASSES = [canonicalize, merge_common_subexpressions, remove_dead_code, hoist_loop_invariants, simplify]


@pytest.mark.slow(but_every=2)
@pytest.mark.parametrize("step", PASSES, ids=lambda step: step.__name__)
@hypothesis_settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**64))
def test_passes_keep_what_random_kernels_write(step, seed: int):
    function = random_kernel(random.Random(seed))
    before = print_function(function, locations=True)
    with settings.scope(verify=True):
        result = step(function)
    verify(result)
    assert print_function(function, locations=True) == before, "the original was changed"
    expected, got = run_kernel(function), run_kernel(result)
    for name in expected:
        assert expected[name].tobytes() == got[name].tobytes(), name
    if step is not simplify:
        assert step(result) is result, "a pass with nothing left to do returns its argument"


def simplified(parameters: str, body: str, step=simplify) -> list[str]:
    """The lines of the body after a pass."""
    function = parse_function(f"kernel k({parameters}) {{\n{body}\nreturn\n}}")
    verify(function)
    result = step(function)
    verify(result)
    return [line.strip() for line in print_function(result).splitlines()[1:-2]]


# Each: operations from %x to %r, and what %r becomes: an operation on %x, or %x itself.
IDENTITIES = [
    ("i32", "%z = constant 0 : i32\n%r = add %x, %z : i32", "%x"),
    ("i32", "%z = constant 0 : i32\n%r = add %z, %x : i32", "%x"),
    ("f32", "%z = constant -0.0 : f32\n%r = add %x, %z : f32", "%x"),
    ("f32", "%z = constant 0.0 : f32\n%r = add %x, %z : f32", "add"),
    ("f32", "%z = constant 0.0 : f32\n%r = subtract %x, %z : f32", "%x"),
    ("f32", "%z = constant -0.0 : f32\n%r = subtract %x, %z : f32", "subtract"),
    ("f32", "%r = subtract %x, %x : f32", "subtract"),
    ("i32", "%r = subtract %x, %x : i32", "constant 0"),
    ("f32", "%z = constant 0.0 : f32\n%r = multiply %x, %z : f32", "multiply"),
    ("i32", "%z = constant 0 : i32\n%r = multiply %x, %z : i32", "constant 0"),
    ("f32", "%o = constant 1.0 : f32\n%r = multiply %o, %x : f32", "%x"),
    ("f32", "%o = constant 8.0 : f32\n%r = divide %x, %o : f32", "multiply"),
    ("f32", "%o = constant 3.0 : f32\n%r = divide %x, %o : f32", "divide"),
    ("f16", "%o = constant 32768.0 : f16\n%r = divide %x, %o : f16", "divide"),
    ("i32", "%o = constant 1 : i32\n%r = remainder %x, %o : i32", "constant 0"),
    ("i32", "%a = constant -1 : i32\n%r = and %x, %a : i32", "%x"),
    ("u8", "%a = constant 255 : u8\n%r = or %x, %a : u8", "constant 255"),
    ("i1", "%a = constant true : i1\n%r = and %x, %a : i1", "%x"),
    ("i32", "%r = xor %x, %x : i32", "constant 0"),
    ("i32", "%z = constant 0 : i32\n%r = shift_left %x, %z : i32", "%x"),
    ("f32", "%n = negate %x : f32\n%r = negate %n : f32", "%x"),
    ("f32", "%n = negate %x : f32\n%r = absolute %n : f32", "absolute"),
    ("f32", "%t = constant 2.0 : f32\n%r = power %x, %t : f32", "multiply"),
    ("f32", "%r = maximum %x, %x : f32", "%x"),
    ("f16", "%w = cast %x {dtype = f32} : f32\n%r = cast %w {dtype = f16} : f16", "%x"),
    ("f32", '%w = cast %x {dtype = f16} : f16\n%r = cast %w {dtype = f32} : f32', "cast"),
    ("i64", "%w = cast %x {dtype = i32} : i32\n%r = cast %w {dtype = i64} : i64", "cast"),
    ("i8", "%w = cast %x {dtype = i32} : i32\n%v = cast %w {dtype = i64} : i64\n%r = cast %v {dtype = i8} : i8", "%x"),
    ("i32", "%w = cast %x {dtype = f32} : f32\n%r = cast %w {dtype = i32} : i32", "cast"),
    ("f32", "%n = round %x : f32\n%w = cast %n {dtype = u8} : u8\n%r = cast %w {dtype = f32} : f32", "add"),
    ("f32", "%w = cast %x {dtype = u8} : u8\n%r = cast %w {dtype = f32} : f32", "cast"),
    ("f32", "%n = round %x : f32\n%z = constant 3.0 : f32\n%m = add %n, %z : f32\n%w = cast %m {dtype = u8} : u8\n"
     "%v = cast %w {dtype = f32} : f32\n%r = subtract %v, %z : f32", "add"),
    ("f32", "%n = round %x : f32\n%z = constant 0.25 : f32\n%o = constant 0.0 : f32\n%h = constant 9.0 : f32\n"
     "%m = add %n, %z : f32\n%l = maximum %m, %o : f32\n%u = minimum %l, %h : f32\n%v = add %u, %o : f32\n"
     "%r = subtract %v, %z : f32", "subtract"),
    ("f32", "%w = bitcast %x {element = i32} : i32\n%r = bitcast %w {element = f32} : f32", "%x"),
    ("i1", "%n = not %x : i1\n%m = not %n : i1\n%r = not %m : i1", "not"),
    ("i32", '%c = compare %x, %x {predicate = "le"} : i1\n%z = constant 3 : i32\n%r = select %c, %x, %z : i32', "%x"),
    ("f32", '%c = compare %x, %x {predicate = "le"} : i1\n%z = constant 3.0 : f32\n%r = select %c, %x, %z : f32',
     "select"),
    ("i1", "%t = constant true : i1\n%f = constant false : i1\n%r = select %x, %t, %f : i1", "%x"),
    ("i32", "%z = constant 5 : i32\n%y = constant 6 : i32\n%a = subtract %x, %z : i32\n%b = add %a, %y : i32\n"
     "%o = constant 1 : i32\n%r = subtract %b, %o : i32", "%x"),
    ("<4xi32>", "%a = reshape %x {shape = [2, 2]} : <2x2xi32>\n%r = reshape %a {shape = [4]} : <4xi32>", "%x"),
    ("<2x4xi32>", "%a = permute %x {order = [1, 0]} : <4x2xi32>\n%r = permute %a {order = [1, 0]} : <2x4xi32>", "%x"),
    ("<4xi32>", "%r = broadcast %x {shape = [4]} : <4xi32>", "%x"),
    ("<4xi32>", "%a = join %x, %x : <4x2xi32>\n%r, %b = split %a : <4xi32>, <4xi32>", "%x"),
    ("<4xi32>", "%r = reshape %x {shape = [1, 4]} : <1x4xi32>", "expand_dims"),
    ("<4x1xi32>", "%r = reduce %x {axis = 1} : <4xi32> {(%a: i32, %b: i32)\n%c = add %a, %b : i32\nyield %c\n}",
     "reshape"),
    ("i32", "%a = arange {start = 0, end = 1} : <1xi32>\n%b = splat %x {shape = [1]} : <1xi32>\n"
     "%c = add %b, %a : <1xi32>\n%r = reshape %c {shape = []} : i32", "%x"),
    ("i32", "%r = hint %x : i32", "%x"),
    ("i32", "%r = hint %x {divisibility = [8]} : i32", "hint"),
]  # fmt: skip


@pytest.mark.parametrize(("type_", "body", "result"), IDENTITIES)
def test_identities(type_: str, body: str, result: str):
    """%x is made opaque (a load), %r is kept (a store); one line is what became of %r."""
    from tilewright.ir.parser import parse_type

    x = parse_type(type_)
    source = f"%i = arange {{start = 0, end = {x.size}}} : <{x.size}xi32>\n"
    if x.shape:
        block = "<" + "x".join(map(str, x.shape))
        source += f"%j = reshape %i {{shape = {list(x.shape)}}} : {block}xi32>\n"
        source += f"%s = splat %in {{shape = {list(x.shape)}}} : {block}x*{x.element}>\n"
        source += f"%p = offset %s, %j : {block}x*{x.element}>\n%x = load %p : {x}\n"
    else:
        source += f"%x = load %in : {x}\n"
    function = parse_function(f"kernel k(%in: *{x.element}) {{\n{source}{body}\nprint %r\nreturn\n}}")
    verify(function)
    after = simplify(function)
    verify(after)
    printed = next(operation for operation in after.walk() if operation.opcode == "print")
    definition = printed.operands[0].definition
    assert definition is not None
    if result == "%x":
        assert definition.opcode == "load"
    else:
        opcode, _, number = result.partition(" ")
        assert definition.opcode == opcode
        assert not number or definition.attributes["value"] == int(number)


def test_operations_on_splats_become_scalar():
    body = """
    %a = splat %x {shape = [8]} : <8xf32>
    %two = constant 2.0 : <8xf32>
    %b = multiply %two, %a : <8xf32>
    %c = exp %b : <8xf32>
    print %c
    """
    assert simplified("%x: f32", body) == [
        "%0 = constant 2.0 : f32",
        "%1 = multiply %x, %0 : f32",
        "%2 = exp %1 : f32",
        "%c = splat %2 {shape = [8]} : <8xf32>",
        "print %c",
    ]


def test_masks_that_are_known():
    body = """
    %i = arange {start = 0, end = 4} : <4xi32>
    %s = splat %x {shape = [4]} : <4x*f32>
    %p = offset %s, %i : <4x*f32>
    %all = constant true : <4xi1>
    %none = constant false : <4xi1>
    %v = load %p, %all : <4xf32>
    %w = load %p, %none : <4xf32>
    store %p, %v, %all
    store %p, %v, %none
    print %w
    """
    assert simplified("%x: *f32", body)[3:] == [
        "%v = load %p : <4xf32>",
        "%w = constant 0.0 : <4xf32>",
        "store %p, %v",
        "print %w",
    ]


def test_branches_and_short_loops_disappear():
    body = """
    %yes = constant true : i1
    %zero = constant 0 : i32
    %one = constant 1 : i32
    %a = if %yes : i32 {
      %s = add %n, %one : i32
      yield %s
    } {
      yield %zero
    }
    %b = for %zero, %one, %one, %a : i32 {(%i: i32, %c: i32)
      %d = multiply %c, %n : i32
      yield %d
    }
    %e = for %one, %zero, %one, %b : i32 {(%i1: i32, %c1: i32)
      yield %i1
    }
    %f = while %e : i32 {(%g: i32)
      %no = compare %g, %g {predicate = "ne"} : i1
      condition %no, %g
    } {(%h: i32)
      yield %h
    }
    print %f
    """
    assert simplified("%n: i32", body) == [
        "%one = constant 1 : i32",
        "%s = add %n, %one : i32",
        "%d = multiply %s, %n : i32",
        "print %d",
    ]


def test_dead_carried_values_disappear():
    """%waste feeds only itself; %same is never changed; the loop's other value lives."""
    body = """
    %zero = constant 0 : i32
    %one = constant 1 : i32
    %r, %w, %k = for %zero, %n, %one, %zero, %zero, %n : i32, i32, i32 {(%i: i32, %sum: i32, %waste: i32, %same: i32)
      %s = add %sum, %same : i32
      %x = multiply %waste, %i : i32
      %y = add %x, %one : i32
      yield %s, %y, %same
    }
    print %r
    """
    assert simplified("%n: i32", body) == [
        "%zero = constant 0 : i32",
        "%one = constant 1 : i32",
        "%r = for %zero, %n, %one, %zero : i32 {(%i: i32, %sum: i32)",
        "%s = add %sum, %n : i32",
        "yield %s",
        "}",
        "print %r",
    ]


def test_dead_values_of_while_and_if_disappear():
    body = """
    %zero = constant 0 : i32
    %one = constant 1 : i32
    %a, %b = while %zero, %one : i32, i32 {(%c: i32, %d: i32)
      %go = compare %c, %n {predicate = "lt"} : i1
      condition %go, %c, %d
    } {(%e: i32, %f: i32)
      %g = add %e, %one : i32
      %h = multiply %f, %g : i32
      yield %g, %h
    }
    %odd = compare %a, %one {predicate = "eq"} : i1
    %k, %l = if %odd : i32, i32 {
      %m = negate %a : i32
      print %a
      yield %m, %a
    } {
      yield %a, %a
    }
    print %l
    """
    lines = simplified("%n: i32", body, remove_dead_code)
    assert "%a = while %zero : i32 {(%c: i32)" in lines
    assert "%l = if %odd : i32 {" in lines
    assert not any("negate" in line or "multiply" in line for line in lines)


def test_volatile_loads_and_effects_stay():
    body = """
    %v = load %x {volatile = true} : f32
    %w = load %x : f32
    %o = constant 1.0 : f32
    %old = atomic_rmw %x, %o {kind = "add"} : f32
    """
    lines = simplified("%x: *f32", body)
    assert lines == [
        "%v = load %x {volatile = true} : f32",
        "%o = constant 1.0 : f32",
        '%old = atomic_rmw %x, %o {kind = "add"} : f32',
    ]


def test_equal_operations_merge_within_reach():
    body = """
    %a = add %n, %m : i32
    %b = add %m, %n : i32
    %c = multiply %a, %b : i32
    %d = compare %c, %n {predicate = "lt"} : i1
    if %d {
      %e = add %n, %m : i32
      %f = negate %n : i32
      print %e, %f
      yield
    } {
      %g = negate %n : i32
      print %g
      yield
    }
    """
    lines = simplified("%n: i32, %m: i32", body, merge_common_subexpressions)
    assert lines.count("%a = add %n, %m : i32") == 1 and not any(" = add %m" in line for line in lines)
    assert "%c = multiply %a, %a : i32" in lines
    assert "print %a, %f" in lines
    assert sum("negate" in line for line in lines) == 2, "the branches are not in reach of each other"


def test_loads_are_not_merged():
    body = "%a = load %x : f32\nstore %x, %b\n%c = load %x : f32\nprint %a, %c"
    lines = simplified("%x: *f32, %b: f32", body)
    assert sum("load" in line for line in lines) == 2


def test_invariants_leave_all_loops_they_can():
    body = """
    %zero = constant 0 : i32
    %one = constant 1 : i32
    for %zero, %n, %one {(%i: i32)
      for %zero, %n, %one {(%j: i32)
        %a = multiply %n, %n : i32
        %b = add %a, %i : i32
        %c = add %b, %j : i32
        %v = load %x : i32
        print %c, %v
        yield
      }
      yield
    }
    """
    lines = simplified("%x: *i32, %n: i32", body, hoist_loop_invariants)
    assert lines == [
        "%zero = constant 0 : i32",
        "%one = constant 1 : i32",
        "%a = multiply %n, %n : i32",
        "for %zero, %n, %one {(%i: i32)",
        "%b = add %a, %i : i32",
        "for %zero, %n, %one {(%j: i32)",
        "%c = add %b, %j : i32",
        "%v = load %x : i32",
        "print %c, %v",
        "yield",
        "}",
        "yield",
        "}",
    ]


def test_what_may_fail_or_not_end_stays_in_its_loop():
    body = """
    %zero = constant 0 : i32
    %one = constant 1 : i32
    %table = arange {start = 0, end = 4} : <4xi32>
    %index = splat %n {shape = [4]} : <4xi32>
    for %zero, %n, %one {(%i: i32)
      %g = gather %table, %index {axis = 0} : <4xi32>
      %w = while %n : i32 {(%a: i32)
        %go = compare %a, %one {predicate = "ne"} : i1
        condition %go, %a
      } {(%b: i32)
        yield %b
      }
      print %g, %w
      yield
    }
    """
    lines = simplified("%n: i32", body, hoist_loop_invariants)
    loop = next(number for number, line in enumerate(lines) if line.startswith("for"))
    assert all(number > loop for number, line in enumerate(lines) if " = gather" in line or " = while" in line)


def test_locations_stay_with_rewritten_operations():
    text = 'kernel k(%x: f32) {\n%o = constant 8.0 : f32\n%r = divide %x, %o : f32 loc("k.py":4:2)\nprint %r\nreturn\n}'
    after = simplify(parse_function(text))
    multiply = next(operation for operation in after.walk() if operation.opcode == "multiply")
    assert str(multiply.location) == "k.py:4:2"


# The engine --------------------------------------------------------------------------------------


def test_rules_see_what_other_rules_made():
    table = RewriteTable("doubling")

    @table.on("add")
    def twice(operation: Operation, build: RuleRewriter) -> SSAValue | None:
        left, right = operation.operands
        return build.emit("multiply", left, build.like(left, 2)) if left is right else None

    other = RewriteTable("shifting")

    @other.on("multiply")
    def shift(operation: Operation, build: RuleRewriter) -> SSAValue | None:
        return build.emit("shift_left", operation.operands[0], build.like(operation.operands[0], 1))

    function = parse_function("kernel k(%x: i32) {\n%a = add %x, %x : i32\nprint %a\nreturn\n}")
    assert [operation.opcode for operation in rewrite(function, table + other).walk()][-3] == "shift_left"
    assert rewrite(function, other) is function


def test_rules_that_never_rest_are_stopped():
    table = RewriteTable("circle")

    @table.on("add")
    def turn(operation: Operation, build: RuleRewriter) -> SSAValue | None:
        return build.emit("subtract", *operation.operands)

    @table.on("subtract")
    def back(operation: Operation, build: RuleRewriter) -> SSAValue | None:
        return build.emit("add", *operation.operands)

    function = parse_function("kernel k(%x: i32) {\n%a = add %x, %x : i32\nprint %a\nreturn\n}")
    with pytest.raises(RuntimeError, match="'circle' do not come to rest; the last was"):
        rewrite(function, table)


def test_every_stage_is_dumped(tmp_path):
    function = parse_function(MATMUL)
    with settings.scope(dump_directory=tmp_path):
        result = simplify(function)
    names = sorted(path.name.split(".", 2)[2] for path in tmp_path.iterdir())
    assert names[0] == "00.input.tile" and names[1] == "01.remove_dead_code.tile"
    last = max(tmp_path.iterdir(), key=lambda path: path.name).read_text(encoding="utf-8")
    assert last == print_function(result, locations=True)


MATMUL = """
kernel matmul(%a: *k f16 {divisibility = 16}, %b: *k f16 {divisibility = 16}, %c: *f32 {divisibility = 16}, %k: i32) {
  %sixteen = constant 16 : i32
  %zero = constant 0 : i32
  %rows = arange {start = 0, end = 16} : <16xi32>
  %column = expand_dims %rows {axis = 1} : <16x1xi32>
  %row = expand_dims %rows {axis = 0} : <1x16xi32>
  %start = constant 0.0 : f32
  %init = splat %start {shape = [16, 16]} : <16x16xf32>
  %acc, %unused = for %zero, %k, %sixteen, %init, %zero : <16x16xf32>, i32 {(%step: i32, %sum: <16x16xf32>, %count: i32)
    %ks = splat %k {shape = [16, 1]} : <16x1xi32>
    %ro = multiply %column, %ks : <16x1xi32>
    %rb = broadcast %ro {shape = [16, 16]} : <16x16xi32>
    %cb = broadcast %row {shape = [16, 16]} : <16x16xi32>
    %o = add %rb, %cb : <16x16xi32>
    %ss = splat %step {shape = [16, 16]} : <16x16xi32>
    %o2 = add %o, %ss : <16x16xi32>
    %as = splat %a {shape = [16, 16]} : <16x16x*k f16>
    %ap = offset %as, %o2 : <16x16x*k f16>
    %av = load %ap : <16x16xf16>
    %bs = splat %b {shape = [16, 16]} : <16x16x*k f16>
    %bp = offset %bs, %o2 : <16x16x*k f16>
    %bv = load %bp : <16x16xf16>
    %bt = permute %bv {order = [1, 0]} : <16x16xf16>
    %next = dot %av, %bt, %sum : <16x16xf32>
    %more = add %count, %sixteen : i32
    yield %next, %more
  }
  %cs = splat %c {shape = [16, 16]} : <16x16x*f32>
  %w = constant 16 : <16x1xi32>
  %co = multiply %column, %w : <16x1xi32>
  %crb = broadcast %co {shape = [16, 16]} : <16x16xi32>
  %ccb = broadcast %row {shape = [16, 16]} : <16x16xi32>
  %coo = add %crb, %ccb : <16x16xi32>
  %cp = offset %cs, %coo : <16x16x*f32>
  store %cp, %acc
  return
}
"""


def test_matmul_simplified(golden):
    function: Function = parse_function(MATMUL)
    verify(function)
    golden(print_function(simplify(function)))
