"""Kernels made at random out of everything that a kernel may and may not hold.

Whatever they say, compiling one either works or raises a `CompilationError` with file, line, caret, call chain and
advice: never a traceback of ours, never an internal check.
"""

from __future__ import annotations

import inspect
import random
import re

import numpy as np
import pytest

import tilewright
import tilewright.language as tl
from tilewright.errors import CompilationError
from tilewright.ir.verifier import verify
from tilewright.language.extra import libdevice
from tilewright.launch.jit import JITFunction
from tilewright.targets.cpu.options import CPUOptions
from tilewright.targets.registry import backend_of, get_target

KERNELS = 400  # of each test; each is traced in about a millisecond
COMPILED = 6  # of those that can be, as machine code; each takes some tens of milliseconds
TYPES = {"x": "*f32", "y": "*k i32", "n": "i32", "s": "f32", "h": "*bf16"}
NAMES = ["x", "y", "n", "s", "h", "a", "b", "c", "i", "N", "helper", "pair", "tl", "undefined", "float", "NUMBER"]
GOOD_NAMES = ["x", "y", "n", "s", "a", "b", "N"]
GOOD_LITERALS = ["0", "1", "2", "-1", "16", "1.5", "True", "tl.float32"]
LITERALS = ["0", "1", "-1", "2", "16", "1.5", "-0.0", "True", "None", "'text'", "()", "(1, 2)", "[4, 4]", "2**40",
            "b'x'", "1j", "...", "1e400", "3.7e-50", "-(2**63)", "10**30", "'rtz'", "tl.float16", "tl.int8",
            "tl.constexpr(3)", "f'{N}'", "f'{n}'"]  # fmt: skip
BINARY = ["+", "-", "*", "/", "//", "%", "&", "|", "^", "<<", ">>", "**", "@"]
COMPARE = ["<", "<=", ">", ">=", "==", "!=", "is", "is not", "in", "not in"]
BUILTINS = ["min", "max", "len", "abs", "range", "print", "isinstance", "hasattr", "getattr", "int", "float", "bool",
            "str", "tuple", "list", "sorted", "zip", "open", "eval", "type", "sum", "super", "slice"]  # fmt: skip
INTERNAL = re.compile(
    r"\b(AttributeError|KeyError|AssertionError|IndexError|NotImplementedError|TypeError|ValueError|ZeroDivisionError"
    r"|OverflowError|RecursionError|UnboundLocalError|NameError|StopIteration)\b"
)
LANGUAGE = sorted(
    name for name in dir(tl)
    if not name.startswith("_") and not inspect.ismodule(getattr(tl, name))
    and name not in ("static_print", "explicit")
)  # fmt: skip
LIBRARY = sorted(libdevice.__all__)
NUMBER = 3


@tilewright.jit
def helper(value, other=2, *rest):
    total = value + other
    for entry in rest:
        total += entry
    return total, rest


@tilewright.aggregate
class Pair:
    first: tl.tensor
    second: tl.constexpr = 1

    @tilewright.jit
    def total(self, more):
        return self.first + self.second + more


METHODS = ["to", "sum", "max", "reshape", "T", "shape", "dtype", "type", "trans", "split", "sort", "value", "load",
           "numel", "element_ty", "first", "total", "store", "append", "__class__", "_handle", "exp", "item",
           "nothing"]  # fmt: skip


class Author:
    """Writes random kernels; most operands are of the right kind, so that mistakes lie deep inside."""

    def __init__(self, source: random.Random) -> None:
        self.random = source

    def pick(self, choices: list[str]) -> str:
        return self.random.choice(choices)

    def expression(self, depth: int = 0) -> str:
        roll = self.random.random()
        if depth > 3 or roll < 0.2:
            if self.random.random() < 0.7:
                return self.pick(GOOD_NAMES if self.random.random() < 0.9 else NAMES)
            return self.pick(GOOD_LITERALS if self.random.random() < 0.8 else LITERALS)
        inner = [self.expression(depth + 1) for _ in range(4)]
        if roll < 0.3:
            return self.pick(["tl.arange(0, 16)", "tl.load(x + tl.arange(0, 16))", "tl.zeros((16, 16), tl.float32)",
                              "tl.program_id(0)", "tl.full((4, 4), 1, tl.float16)", "tl.load(y + n)",
                              "tl.make_tensor_descriptor(x, [n, 16], [16, 1], [4, 4])", "Pair(n)",
                              "tl.arange(0, 16)[:, None]", "(a, b)", "tl.zeros((2, 4, 4), tl.int8)"])  # fmt: skip
        if roll < 0.45:
            return f"({inner[0]} {self.pick(BINARY)} {inner[1]})"
        if roll < 0.5:
            return f"({inner[0]} {self.pick(COMPARE)} {inner[1]} {self.pick(COMPARE)} {inner[2]})"
        if roll < 0.54:
            return f"({self.pick(['-', '+', '~', 'not '])}{inner[0]})"
        if roll < 0.58:
            return f"({inner[0]} {self.pick(['and', 'or'])} {inner[1]})"
        if roll < 0.62:
            return f"({inner[0]} if {inner[1]} else {inner[2]})"
        if roll < 0.68:
            index = self.pick([inner[1], ":, None", "None, :", "0", "-1", "1:3", "n:", "...", "::2", f"{inner[1]}, 0"])
            return f"({inner[0]})[{index}]"
        if roll < 0.76:
            call = self.pick(["", f"({inner[1]})", f"({inner[1]}, {inner[2]})", "()"])
            return f"({inner[0]}).{self.pick(METHODS)}{call}"
        if roll < 0.95:
            return self.call(inner)
        return self.pick([
            f"(lambda v: v)({inner[0]})", f"[{inner[0]} for v in {inner[1]}]", f"{{'k': {inner[0]}}}",
            f"{{{inner[0]}}}",
            f"[v for v in ({inner[0]}, {inner[1]}) if v]", f"(v for v in {inner[0]})", f"(w := {inner[0]})",
            f"({inner[0]}, *{inner[1]})", f"(yield {inner[0]})", f"{inner[0]}()", f"f'{{{inner[0]}!r:>4}}'",
            f"[v + w for v in {inner[0]} for w in {inner[1]}]",
        ])  # fmt: skip

    def call(self, inner: list[str]) -> str:
        function = self.pick([
            *[f"tl.{name}" for name in self.random.sample(LANGUAGE, 6)], f"libdevice.{self.pick(LIBRARY)}",
            f"tl.math.{self.pick(['exp', 'tanh', 'nothing', 'fma'])}", self.pick(BUILTINS), "helper", "Pair", "tl.nope",
            "tl.target_info.is_cuda", "NUMBER", "numpy_array",
        ])  # fmt: skip
        count = self.random.choice([0, 1, 1, 2, 2, 3, 4])
        arguments = inner[:count]
        if self.random.random() < 0.2:
            name = self.pick(
                ["axis", "mask", "dtype", "other", "keep_dims", "nothing", "shape", "dim", "combine_fn", "sem"]
            )
            arguments.append(f"{name}={inner[0]}")
        if self.random.random() < 0.03:
            arguments.append(self.pick([f"*{inner[1]}", f"**{inner[1]}"]))
        if "=" in "".join(arguments[:-1]) and arguments[-1].startswith("*"):
            arguments.pop()
        return f"{function}({', '.join(arguments)})"

    def target(self) -> str:
        return self.pick(["a", "b", "c", "i", "a", "b", "a, b", "(a, (b, c))", "a[0]", "a.first", "x", "n", "*a, b"])

    def block(self, depth: int, indent: str) -> list[str]:
        lines: list[str] = []
        for _ in range(self.random.randint(1, 3)):
            lines += self.statement(depth, indent)
        return lines

    def statement(self, depth: int, indent: str) -> list[str]:
        value = self.expression()
        roll = self.random.random()
        if roll < 0.4 or depth > 2:
            return [f"{indent}{self.target()} = {value}"]
        if roll < 0.47:
            return [f"{indent}{self.pick(['a', 'b', 'n', 'x', 'a[0]'])} {self.pick(BINARY)}= {value}"]
        if roll < 0.5:
            return [f"{indent}{self.pick(['a', 'b', 'k'])}: {self.pick(['tl.constexpr', 'int'])} = {value}"]
        if roll < 0.6:
            return [f"{indent}tl.store(x + tl.arange(0, 16), {value})"]
        deeper = indent + "    "
        if roll < 0.7:
            lines = [f"{indent}if {value}:", *self.block(depth + 1, deeper)]
            return lines + ([f"{indent}else:", *self.block(depth + 1, deeper)] if self.random.random() < 0.5 else [])
        if roll < 0.82:
            over = self.pick([
                value, "range(n)", f"range({value})", "tl.static_range(3)", f"tl.range({value}, n)", "(a, b)",
                f"tl.static_range({value})", "range(0, n, 2)", "range(n, 0, -1)",
            ])  # fmt: skip
            return [f"{indent}for {self.pick(['i', 'a', 'i, j'])} in {over}:", *self.block(depth + 1, deeper)]
        if roll < 0.87:
            return [f"{indent}while {self.pick([value, 'n > 0', 'True'])}:", *self.block(depth + 1, deeper)]
        if roll < 0.92:
            return [indent + self.pick(["break", "continue", "return", "pass", f"return {value}"])]
        return [indent + self.pick([
            f"assert {value}", f"assert {value}, {self.expression(3)}", f"del {self.pick(['a', 'x'])}", "global a",
            "import os", f"raise {value}", value, f"a = b = {value}", f"with {value}: pass",
            "try: pass\n" + indent + "finally: pass", "def g(): pass", "class C: pass",
            f"match {value}:\n{indent}    case _: pass",
            f"print('a', {value})", "async def g(): pass", "nonlocal n",
        ])]  # fmt: skip

    def kernel(self) -> str:
        lines = [
            "def kernel(x, y, n, s, h, N: tl.constexpr):",
            "    a, b = n, tl.arange(0, 16)",
            "    c, i, k = s, 1, b",
        ]
        for _ in range(self.random.randint(1, 5)):
            lines += self.statement(0, "    ")
        return "\n".join(lines) + "\n"


def names() -> dict[str, object]:
    return {
        "tl": tl, "libdevice": libdevice, "helper": helper, "Pair": Pair, "NUMBER": NUMBER, "pair": (1, 2.5),
        "numpy_array": np.zeros(3),
    }  # fmt: skip


def check(source: str, error: CompilationError) -> None:
    text = str(error)
    if "generated source" in text or "cannot be parsed" in text:
        return  # not Python at all
    assert error.location is not None and error.location.line >= 1, f"{text}\n{source}"
    assert "^" in text, f"{text}\n{source}"
    assert "help:" in text, f"{text}\n{source}"
    message = error.message or text
    told = ("the compile-time function", "this expression", "the method")  # the user's own code failed
    assert not INTERNAL.search(message) or message.startswith(told), f"{text}\n{source}"


@pytest.mark.filterwarnings("ignore::SyntaxWarning", "ignore::DeprecationWarning")
def test_random_kernels_fail_only_in_the_stated_way(rng: np.random.Generator) -> None:
    author = Author(random.Random(int(rng.integers(1 << 62))))
    compiled = 0
    for _ in range(KERNELS):
        source = author.kernel()
        try:
            function = JITFunction.from_source(source, "kernel", names()).trace(TYPES, {"N": 8})
            verify(function)
            compiled += 1
            if compiled <= COMPILED:
                backend_of(get_target("cpu")).compile(function, CPUOptions())
        except CompilationError as error:
            check(source, error)
        except BaseException:
            print(source)
            raise
    assert compiled  # about one in 25 says something sensible


@tilewright.jit
def innermost(value):
    return tl.dot(value, value)


@tilewright.jit
def middle(value):
    return innermost(value) + 1


@tilewright.jit
def outermost(x):
    tl.store(x, middle(tl.arange(0, 4)))


def test_the_call_chain_is_shown() -> None:
    with pytest.raises(CompilationError) as caught:
        outermost.trace({"x": "*f32"}, {})
    text = str(caught.value)
    assert "in 'innermost', called from 'middle'" in text and "in 'middle', called from 'outermost'" in text
    assert sum("^" in line for line in text.splitlines()) == 3 and text.rstrip().splitlines()[-1].startswith("  help: ")
