"""Compile errors: golden texts of what users see, and the promise that nothing else is ever raised."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tilewright
import tilewright.language as tl
from tests.host.language_support import compile_error
from tilewright.errors import CompilationError, DeviceError, LaunchError
from tilewright.launch.jit import JITFunction
from tilewright.runtime.cuda.driver import is_available

TYPES = {"x": "*f32", "out": "*f32", "n": "i32"}
ARRAY = np.zeros(3)


def plain_python(x):
    return x


@tilewright.jit
def inner(a, b):
    return a + tl.load(b, mask=a, other=0, evict="x")


@tilewright.jit
def outer(a, b):
    return inner(a, b)


@tilewright.jit
def returns_sometimes(n):
    for i in range(n):
        if i == 3:
            return
    return n


# One kernel a mistake; the golden text of each is the whole message.


def shapes_differ(x, out, n):
    a = tl.arange(0, 16)
    b = tl.arange(0, 32)
    tl.store(out + a, a + b)


def undefined_name(x, out, n):
    tl.store(out, valeu)  # noqa: F821


def misspelt_function(x, out, n):
    tl.store(out, tl.lod(x))


def unknown_keyword(x, out, n):
    tl.store(out, outer(n, x))


def python_function(x, out, n):
    tl.store(out, plain_python(n))


def branch_types(x, out, n):
    if n > 3:
        value = tl.load(x)
    else:
        value = n
    tl.store(out, value)


def one_branch(x, out, n):
    if n > 3:
        value = n
    tl.store(out, value)


def loop_types(x, out, n):
    acc = 0
    for _ in range(n):
        acc += tl.load(x)
    tl.store(out, acc)


def after_the_loop(x, out, n):
    for i in range(n):
        last = i
    tl.store(out, last)


def block_condition(x, out, n):
    if tl.arange(0, 8) < n:
        tl.store(out, 1)


def mixed_returns(x, out, n):
    tl.store(out, returns_sometimes(n))


def run_time_shape(x, out, n):
    tl.store(out, tl.sum(tl.zeros((n,), tl.float32)))


def pointer_arithmetic(x, out, n):
    tl.store(out, tl.load(x + 1.5))


def store_widens(x, out, n):
    tl.store(out, tl.arange(0, 8))


def other_without_mask(x, out, n):
    tl.store(out, tl.load(x, other=1.0))


def two_targets(x, out, n):
    a = b = n
    tl.store(out, a + b)


def item_assignment(x, out, n):
    block = tl.arange(0, 8)
    block[0] = 1


def wrong_index(x, out, n):
    tl.store(out, tl.arange(0, 8)[8])


def run_time_slice(x, out, n):
    tl.store(out, tl.sum(tl.arange(0, 8)[0:n]))


def lambda_expression(x, out, n):
    tl.store(out, (lambda a: a)(n))


def captured_array(x, out, n):
    tl.store(out, ARRAY)


def inner_extents(x, out, n):
    a = tl.zeros((16, 32), tl.float32)
    tl.store(out, tl.sum(tl.dot(a, a)))


def static_assertion(x, out, n):
    tl.static_assert(4 < 3, "the block is too small")


def returned_value(x, out, n):
    return n


def too_large(x, out, n):
    tl.store(out, tl.sum(tl.zeros((2048, 1024), tl.float32)))


def float_floor_division(x, out, n):
    tl.store(out, tl.load(x) // 2)


def endless_loop(x, out, n):
    while True:
        n += 1


def unpacking(x, out, n):
    a, b = 1, 2, 3
    tl.store(out, a + b)


def tensor_power(x, out, n):
    tl.store(out, n**2)


def dictionary(x, out, n):
    table = {"a": n}
    tl.store(out, table["a"])


def try_statement(x, out, n):
    try:
        tl.store(out, n)
    except ValueError:
        pass


MISTAKES: list[Callable[..., None]] = [
    value
    for name, value in list(globals().items())
    if inspect.isfunction(value) and list(inspect.signature(value).parameters) == ["x", "out", "n"]
]


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda entry: entry.__name__)
def test_message(mistake: Callable[..., None], golden: Callable[..., None]) -> None:
    source = textwrap.dedent(inspect.getsource(mistake))
    kernel = JITFunction.from_source(source, mistake.__name__, mistake.__globals__)
    text = compile_error(kernel, TYPES).replace(__file__, "TEST")
    assert "help:" in text
    golden(_without_numbers(text) + "\n")


def _without_numbers(text: str) -> str:
    """Line numbers of this file change when it is edited; those of generated sources do not."""
    text = re.sub(r"TEST:[0-9:]+", "TEST", text)
    return re.sub(r"^  [0-9]{2,}( \|.*\n) +( \|)", r"  #\1   \2", text, flags=re.MULTILINE)


def test_errors_carry_their_parts() -> None:
    with pytest.raises(CompilationError) as caught:
        JITFunction(shapes_differ).trace(TYPES, {})
    error = caught.value
    assert error.location.line == inspect.getsourcelines(shapes_differ)[1] + 3
    assert "cannot be broadcast" in error.message and "x[:, None]" in error.advice
    assert all("tilewright/frontend/t" not in str(entry.path) or entry.name == "_trace" for entry in caught.traceback)


def test_missing_and_unknown_parameters() -> None:
    kernel = JITFunction(shapes_differ)
    with pytest.raises(CompilationError, match="no type and no constant for parameter 'n'"):
        kernel.trace({"x": "*f32", "out": "*f32"}, {})
    with pytest.raises(CompilationError, match="no parameter named 'm'"):
        kernel.trace(TYPES, {"m": 3})


def test_functions_of_the_language_need_a_kernel() -> None:
    with pytest.raises(CompilationError, match="only inside a kernel\n  help: call them in a function decorated"):
        tl.arange(0, 8)


def test_kernels_without_source_say_so() -> None:
    names: dict[str, object] = {}
    exec("def kernel(x):\n    pass\n", names)
    with pytest.raises(CompilationError, match="source of kernel 'kernel' is not available"):
        tilewright.jit(names["kernel"]).trace({"x": "*f32"}, {})


@tilewright.jit
def add_pair(pair, *rest):
    total = pair[0] + pair[1]
    for value in rest:
        total += value
    return total, len(rest)


GOOD = [
    """
def kernel(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + i, mask=i < n, other=0.0)
    acc = tl.zeros((BLOCK,), tl.float32)
    for k in range(0, n, 2):
        acc += value * k
        if k > 3:
            acc = acc - 1
        else:
            acc = tl.where(value > 0, acc, -acc)
    total = tl.sum(acc, axis=0)
    while total > 1.0:
        total = total / 2
    tl.store(out + i, tl.exp(acc) + total, mask=i < n)
""",
    """
def kernel(x, out, n, BLOCK: tl.constexpr):
    rows, columns = tl.arange(0, BLOCK), tl.arange(0, 4)
    half: tl.constexpr = BLOCK // 2
    if n > half and n < 100:
        return
    value = tl.load(x + rows[:, None] * 4 + columns[None, :])
    acc = tl.zeros((BLOCK, 4), tl.float32)
    for k in tl.static_range(half):
        acc += tl.dot(value, tl.trans(value)[0:BLOCK, :] if k > 9 else tl.full((4, 4), k, tl.float32))
    total, count = outer((acc, value), 1.5, n)
    best, place = tl.max(total, 1, return_indices=True)
    tl.static_assert(count == 2, f"{count}")
    sizes = [extent * 2 for extent in acc.shape if extent > 1]
    tl.store(out + rows, best + place.to(tl.float32) + sizes[0] - n.to(tl.float32))
""",
]
SNIPPETS = [
    "n",
    "x",
    "acc",
    "value",
    "i",
    "None",
    "1.5",
    "'text'",
    "(1, 2)",
    "tl.float32",
    "tl",
    "-3",
    "BLOCK",
    "total",
    "out",
]


def _mutate(source: str, choose: Callable[[int], int]) -> str:
    """Replace some expressions of a kernel by others, or drop or duplicate a statement."""
    tree = ast.parse(source)
    nodes = [node for node in ast.walk(tree) if isinstance(node, (ast.Name, ast.Constant, ast.BinOp, ast.Call))]
    for _ in range(1 + choose(3)):
        victim = nodes[choose(len(nodes))]
        replacement = ast.parse(SNIPPETS[choose(len(SNIPPETS))], mode="eval").body
        if isinstance(getattr(victim, "ctx", None), ast.Store):
            continue
        tree = _Replace(victim, replacement).visit(tree)
    body = tree.body[0].body
    action = choose(4)
    if action == 0 and len(body) > 1:
        del body[choose(len(body))]
    elif action == 1:
        body.insert(choose(len(body)), body[choose(len(body))])
    return ast.unparse(ast.fix_missing_locations(tree))


class _Replace(ast.NodeTransformer):
    def __init__(self, victim: ast.AST, replacement: ast.AST) -> None:
        self.victim, self.replacement = victim, replacement

    def visit(self, node: ast.AST) -> ast.AST:
        return self.replacement if node is self.victim else self.generic_visit(node)


@pytest.mark.parametrize("good", GOOD)
def test_the_kernels_to_mutate_compile(good: str) -> None:
    kernel = JITFunction.from_source(good, "kernel", {"tl": tl, "outer": add_pair})
    assert kernel.trace({"x": "*f32", "out": "*f32", "n": "i32"}, {"BLOCK": 8})


@pytest.mark.filterwarnings("ignore::SyntaxWarning")
@settings(max_examples=300, deadline=None)
@given(st.data())
def test_malformed_kernels_raise_only_compilation_errors(data: st.DataObject) -> None:
    good = data.draw(st.sampled_from(GOOD))
    source = _mutate(good, lambda count: data.draw(st.integers(0, count - 1)))
    kernel = JITFunction.from_source(source, "kernel", {"tl": tl, "outer": add_pair})
    try:
        kernel.trace({"x": "*f32", "out": "*f32", "n": "i32"}, {"BLOCK": 8})
    except CompilationError as error:
        internal = ("AttributeError", "KeyError", "AssertionError", "IndexError", "NotImplementedError")
        assert error.location is not None or "generated source" in str(error), str(error)
        assert not any(name in error.message for name in internal), f"{error}\n{source}"


def test_errors_are_there_after_the_import_alone() -> None:
    program = "import tilewright; print(tilewright.errors.CompilationError.__name__)"
    assert subprocess.check_output([sys.executable, "-c", program], text=True) == "CompilationError\n"


@tilewright.jit
def endless_calls(x, n):
    endless_calls(x, n)


@tilewright.jit
def index_after_its_loop(out, n):
    k = 5
    for k in range(n):
        tl.store(out + k, 0.0)
    tl.store(out, k)


def test_what_is_too_deep_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ["import tilewright", "import tilewright.language as tl", "@tilewright.jit", "def chain(out, n):"]
    (tmp_path / "long_chain.py").write_text("\n".join([*lines, f"    tl.store(out, {' + '.join(['n'] * 900)})", ""]))
    monkeypatch.syspath_prepend(tmp_path)
    text = compile_error(importlib.import_module("long_chain").chain, {"out": "*i32", "n": "i32"})
    assert "nested too deeply" in text and "help: split it into several statements" in text
    text = compile_error(endless_calls, {"x": "*f32", "n": "i32"})
    assert "nested more than 60 calls deep" in text and "help: recursion must end" in text


def test_the_index_ends_with_its_loop() -> None:
    text = compile_error(index_after_its_loop, {"out": "*f32", "n": "i32"})
    assert re.search(r"'k' may have no value here: the loop at line \d+ has it as its index, which ends with", text)


@tilewright.jit
def numbers_out_of_reach(out, KIND: tl.constexpr):
    if KIND == "full":
        tl.store(out, tl.full([], 10**400, tl.float32))
    elif KIND == "cast":
        tl.store(out, tl.cast(10**400, tl.float64))
    elif KIND == "int":
        tl.store(out, int(float("inf")))
    elif KIND == "block":
        tl.store(out + tl.arange(0, 4), tl.arange(0, 4)[0:4:0])
    else:
        tl.store(out, (1, 2)[0:2:0][0])


@pytest.mark.parametrize("kind", ["full", "cast", "int", "block", "tuple"])
def test_numbers_that_python_refuses_are_mistakes_of_the_kernel(kind: str) -> None:
    text = compile_error(numbers_out_of_reach, {"out": "*f32"}, KIND=kind)
    assert "please report" not in text and "\n  help: " in text


@tilewright.jit
def integers_wanted(x, out, KIND: tl.constexpr):
    value = tl.load(x + tl.arange(0, 16))
    if KIND == "max":
        tl.store(out, tl.max(value, return_indices=True)[0])
    elif KIND == "histogram":
        tl.store(out + tl.arange(0, 16), tl.histogram(value, 16))
    elif KIND == "atomic_poll":
        tl.store(out, tl.atomic_poll(x, 1.0))
    elif KIND == "xor_sum":
        tl.store(out, tl.xor_sum(value, 0))
    else:
        tl.store(out, tl.reduce_or(value, 0))


@tilewright.jit
def wrong_constants(x, out, DO: tl.constexpr, ZERO: tl.constexpr):
    index = tl.arange(0, 16)
    if DO == "sort":
        tl.store(out + index, tl.sort(tl.load(x + index), dim="x"))
    elif DO == "topk":
        tl.store(out + tl.arange(0, 4), tl.topk(tl.load(x + index), 4, dim=0.5))
    elif DO == "divide":
        tl.store(out + index, index // ZERO)
    elif DO == "remainder":
        tl.store(out + index, index % 0)
    elif DO == "divide by a scalar":
        none = tl.full((), 0, tl.int32)
        tl.store(out + index, index // none)
    else:
        for step in range(1, 2, 3, 4):
            tl.store(out + index, step)


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("sort", "dim must be a compile-time integer, got the constant 'x'"),
        ("topk", "dim must be a compile-time integer, got the constant 0.5"),
        ("divide", "integer division by the constant 0"),
        ("remainder", "integer division by the constant 0"),
        ("divide by a scalar", "integer division by the constant 0"),
        ("range", "range() takes a start, an end and a step, got 4 values"),
    ],
)
def test_wrong_constants_are_reported_at_the_line_of_the_user(what: str, message: str) -> None:
    with pytest.raises(CompilationError) as caught:
        wrong_constants.trace({"x": "*f32", "out": "*f32"}, {"DO": what, "ZERO": 0})
    assert caught.value.message == message and caught.value.advice
    assert caught.value.location is not None and caught.value.location.file == __file__


@pytest.mark.parametrize("kind", ["max", "histogram", "atomic_poll", "xor_sum", "reduce_or"])
def test_functions_of_integers_give_advice(kind: str) -> None:
    assert "\n  help: " in compile_error(integers_wanted, {"x": "*f32", "out": "*f32"}, KIND=kind)


def takes_keywords(x, **options):
    tl.store(x, 1)


async def asynchronous(x):
    tl.store(x, 1)


async def awaiting(x):
    async for part in x:
        yield part


twice = [0, lambda x: tl.store(x, 1)][1]


@pytest.mark.parametrize(
    ("function", "message", "marked"),
    [
        (takes_keywords, "a kernel takes no **options", "options"),
        (asynchronous, "an async function is not part of the tile language", "async"),
        (awaiting, "an async function is not part of the tile language", "async"),
        (twice, "a lambda function is not part of the tile language", "lambda"),
    ],
)
def test_functions_that_are_no_kernels_have_a_place(function, message: str, marked: str) -> None:
    with pytest.raises(CompilationError) as caught:
        tilewright.jit(function)[(1,)](ARRAY)
    error = caught.value
    assert error.message == message and error.advice
    line = inspect.getsourcelines(sys.modules[__name__])[0][error.location.line - 1]
    assert line[error.location.column :].startswith(marked) and error.location.width == len(marked)
    assert str(error).startswith(f"{__file__}:{error.location.line}:{error.location.column}: ") and "^" in str(error)


def test_functions_without_a_file_are_refused_with_advice() -> None:
    space: dict[str, object] = {}
    exec("def made(x):\n    tl.store(x, 1)", space)
    with pytest.raises(CompilationError, match="source of kernel 'made' is not available.*\n.*help: define kernels"):
        tilewright.jit(space["made"])[(1,)](ARRAY)


def index_as_extent(x):
    for step in range(4):
        tl.store(x + tl.arange(0, 2 * step), 1.0)


def index_of_a_tuple(x):
    for row in range(2):
        for column in range(2):
            tl.store(x + column, (1.0, 2.0)[row])


def extent_outside_of_the_loop(x):
    for step in range(4):
        tl.store(x, step)
    tl.store(x + tl.arange(0, tl.load(x).to(tl.int32)), 1.0)


@pytest.mark.parametrize(
    ("function", "advice"),
    [
        (
            index_as_extent,
            "'step' is the index of a run-time loop; in 'for step in tl.static_range(...)' it is a constant",
        ),
        (
            index_of_a_tuple,
            "'row' is the index of a run-time loop; in 'for row in tl.static_range(...)' it is a constant",
        ),
        (extent_outside_of_the_loop, "make it a tl.constexpr parameter, or compute it from constants"),
    ],
)
def test_advice_on_loop_indices(function, advice: str) -> None:
    assert compile_error(tilewright.jit(function), {"x": "*f32"}).endswith(f"\n  help: {advice}")


def pairs(x):
    for place, value in enumerate((1, 2)):
        tl.store(x + place, value)


def total(x):
    tl.store(x, sum((1, 2)))


@pytest.mark.parametrize(("function", "words"), [(pairs, "tl.static_range(len(values))"), (total, "tl.sum")])
def test_advice_on_functions_of_python(function, words: str) -> None:
    error = compile_error(tilewright.jit(function), {"x": "*f32"})
    assert ": Python's '" in error and words in error.splitlines()[-1]


def prints_while_combining(x):
    tl.store(x, tl.reduce(tl.arange(0, 8), 0, printing_sum))


@tilewright.jit
def printing_sum(a, b):
    tl.device_print("sum", a)
    return a + b


def test_what_a_target_cannot_do_is_reported_at_the_line() -> None:
    with pytest.raises(CompilationError, match="the CPU target cannot compile 'print': a combine function") as caught:
        tilewright.jit(prints_while_combining).compile({"x": "*f32"}, {}, target="cpu")
    assert '| tl.device_print("sum", a)' in str(caught.value) and "\n  help: write this with" in str(caught.value)
    assert "in 'printing_sum', called from 'prints_while_combining'" in str(caught.value)


class OnNoGPU:
    """An array in the memory of a GPU that this machine lacks, or what takes itself for one."""

    def __init__(self, **facts: object) -> None:
        self.__cuda_array_interface__ = facts


def test_arrays_that_cannot_be_read_are_named() -> None:
    kernel = tilewright.jit(total_of_x)
    with pytest.raises(LaunchError, match="kernel 'total_of_x', argument 'x': .*cannot be read: its 'data' is missing"):
        kernel[(1,)](OnNoGPU(shape=(4,), typestr="<f4", version=3))
    if not is_available():
        memory = OnNoGPU(shape=(4,), typestr="<f4", data=(4096, False), version=3)
        for launcher in (kernel, kernel.compile({"x": "*f32"}, {}, target="cpu")):
            with pytest.raises(DeviceError, match="kernel 'total_of_x', argument 'x': "):
                launcher[(1,)](memory)


def total_of_x(x):
    tl.store(x, tl.load(x) + tl.load(x + 1))


@tilewright.jit
def takes_anything(out, VALUE: tl.constexpr):
    tl.store(out, 1.0)


class Speechless:
    def __repr__(self) -> str:
        raise RuntimeError("no words")


def test_constants_that_python_cannot_write() -> None:
    """An integer of more digits than Python writes; a value whose own text raises."""
    out = np.zeros(1, np.float32)
    takes_anything[(1,)](out, 10**5000)
    assert out[0] == 1
    with pytest.raises(LaunchError, match="its repr.*no words"):
        takes_anything[(1,)](out, Speechless())
