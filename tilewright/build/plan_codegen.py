"""Compiles a plan to one native function that runs all of its steps.

    void plan(ptr team, ptr context)

For each step it evaluates the sizes that it needs, fills the kernel's argument slots, picks the first
choice that applies, and hands the grid to `parallel_for` or `parallel_planes` (or runs it in place when it is too
small to share).  `context` is laid out by `runtime.plan.ContextLayout`.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

import ml_dtypes
import numpy as np

from tilewright.runtime.plan import (
    Argument,
    BufferReference,
    ContextLayout,
    LaunchChoice,
    Plan,
    PlanStep,
    TableReference,
    TiledReference,
    estimate_nanoseconds,
)
from tilewright.symbolic import Atom, Expression, FunctionCall, Size, Symbol, lower_bound
from tilewright.targets.llvm.builder import LLVMBuilder, LLVMValue, Module

MOST_FUNCTION_STEPS = 256  # of one function: LLVM's time grows with the square of a function's length
# A step shorter than this on one core is run by one: waking the others would take about as long.
_SHARE_FROM_NANOSECONDS = 3000

_FLOAT_FORMATS = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32, "f64": np.float64}


def generate(plan: Plan, symbol: str, kernels: Mapping[str, str], weights: Mapping[str, int]) -> str:
    """The LLVM text of `plan` as a function named `symbol`.

    `kernels` maps a binary's key to its native symbol, `weights` a weight's name to its byte offset.
    """
    module = Module()
    if len(plan.steps) <= MOST_FUNCTION_STEPS:
        _PlanWriter(plan, symbol, kernels, weights, module).write(0, len(plan.steps))
        return module.text
    whole = LLVMBuilder(module, symbol, "void", _PARAMETERS)
    for start in range(0, len(plan.steps), MOST_FUNCTION_STEPS):
        part = f"{symbol}.from.{start}"
        writer = _PlanWriter(plan, part, kernels, weights, module, linkage="internal", attributes="noinline nounwind")
        writer.write(start, min(start + MOST_FUNCTION_STEPS, len(plan.steps)))
        whole.line(f"call void @{part}({', '.join(map(str, whole.arguments))})")
    whole.ret()
    whole.finish()
    return module.text


_PARAMETERS = (("ptr", "team", ""), ("ptr", "context", ""))


class _PlanWriter:
    """Writes one function that runs steps of a plan; a long plan has several of them."""

    def __init__(
        self,
        plan: Plan,
        symbol: str,
        kernels: Mapping[str, str],
        weights: Mapping[str, int],
        module: Module,
        **form: str,
    ) -> None:
        self.plan = plan
        self.kernels = kernels
        self.weights = weights
        self.layout = ContextLayout.of(plan)
        self.module = module
        self.builder = LLVMBuilder(module, symbol, "void", _PARAMETERS, **form)
        self.team, self.context = self.builder.arguments
        self.pointers: dict[tuple[str, str], LLVMValue] = {}
        self.sizes: dict[Size | Atom, LLVMValue] = {}

    def write(self, start: int, end: int) -> None:
        """Add the function for steps `start` up to `end` (not included) to the module."""
        builder, steps = self.builder, self.plan.steps[start:end]
        most = max((len(choice.arguments) for step in steps for choice in step.choices), default=0)
        self.slots = builder.alloca("i64", most + 3, align=64)
        self.profile = self._load_word("ptr", self.layout.profile)
        first = builder.new_block("steps")
        builder.branch(first)  # what the entry block holds dominates all steps
        builder.start(first)
        if start == 0:
            self._mark(0)
        for number, step in enumerate(steps, start=start):
            self._step(step)
            self._mark(number + 1)
        builder.ret()
        builder.finish()

    def _mark(self, number: int) -> None:
        """Store the time in the profile, when there is one."""
        builder = self.builder
        with builder.when(builder.compare("ne", self.profile, builder.zero("ptr")), weights=(1, 1000), hint="mark"):
            now = builder.call("tilewright_clock", "i64", [])
            builder.store(now, builder.gep(self.profile, number, "i64"), align=8)

    def _step(self, step: PlanStep) -> None:
        builder = self.builder
        nanoseconds = estimate_nanoseconds(step.bytes, step.flops)
        end = builder.new_block("step.end")
        for choice in step.choices:
            if choice.at_most is None:
                self._launch(choice, nanoseconds)
                builder.branch(end)
                break
            applies, other = builder.new_block("choice"), builder.new_block("otherwise")
            builder.branch_if(builder.compare("sle", self.size(choice.size), choice.at_most), applies, other)
            builder.start(applies)
            self._launch(choice, nanoseconds)
            builder.branch(end)
            builder.start(other)
        else:
            raise ValueError(f"step {step.name}: the last choice must apply always")
        builder.start(end)

    def _launch(self, choice: LaunchChoice, nanoseconds: Size) -> None:
        builder = self.builder
        values = [self._argument(argument) for argument in choice.arguments]
        grid = [self.size(extent) for extent in choice.grid]
        for number, value in enumerate([*values, *grid]):
            builder.store(value, builder.gep(self.slots, number, "i64"), align=8)
        plane = builder.multiply(grid[0], grid[1])
        symbol = self.kernels[choice.kernel]
        self.module.declare(symbol, "void", ["ptr", "ptr", "i64", "i64"])
        if choice.planes:
            self.module.declare("parallel_planes", "void", ["ptr", "ptr", "ptr", "i64", "i64"])
            operands = f"{self.team}, ptr @{symbol}, {self.slots}, {plane}, {grid[2]}"
            builder.line(f"call void @parallel_planes({operands})")
            return
        total = builder.multiply(plane, grid[2])
        runner = self._runner(nanoseconds)
        builder.line(f"call void {runner.text}({self.team}, ptr @{symbol}, {self.slots}, {total})")

    def _runner(self, nanoseconds: Size) -> LLVMValue:
        """The function that runs the grid: shared by all workers, or by this one alone."""
        builder = self.builder
        shared, alone = LLVMValue("ptr", "@parallel_for"), LLVMValue("ptr", "@run_here")
        for function in (shared, alone):
            self.module.declare(function.text[1:], "void", ["ptr", "ptr", "ptr", "i64"])
        if nanoseconds == 0:  # unknown
            return shared
        if isinstance(nanoseconds, int):
            return alone if nanoseconds < _SHARE_FROM_NANOSECONDS else shared
        return builder.select(builder.compare("slt", self.size(nanoseconds), _SHARE_FROM_NANOSECONDS), alone, shared)

    # -- Values ---------------------------------------------------------------------------------

    def _argument(self, argument: Argument) -> LLVMValue:
        """The 8 bytes of a kernel argument."""
        value = argument.value
        if isinstance(value, BufferReference):
            return self._pointer(value)
        if isinstance(value, float):
            return self.builder.integer(_float_bits(argument.type, value))
        assert not isinstance(value, (TiledReference, TableReference)), "tensors in tiles and tables are for GPUs"
        if argument.type in _FLOAT_FORMATS:
            if not isinstance(value, int):
                raise ValueError(f"a symbolic size cannot be passed as {argument.type}")
            return self.builder.integer(_float_bits(argument.type, float(value)))
        return self.size(value)

    def _pointer(self, reference: BufferReference) -> LLVMValue:
        kind, name, offset = reference.kind, reference.name, reference.offset
        if kind == "weight":
            base, offset = self._base("weight", ""), self.weights[name] + offset
        else:
            base = self._base(kind, "" if kind == "arena" else name)
        return self.builder.gep(base, self.size(offset), "i8")

    def _base(self, kind: str, name: str) -> LLVMValue:
        key = (kind, name)
        if key not in self.pointers:
            self.pointers[key] = self._load_word("ptr", self.layout.word(kind, name))
        return self.pointers[key]

    def _load_word(self, type_text: str, word: int) -> LLVMValue:
        """A word of the context, loaded in the entry block."""
        with self.builder.at(self.builder.entry):
            return self.builder.load(type_text, self.builder.gep(self.context, word, "i64"), align=8)

    def size(self, value: Size) -> LLVMValue:
        """A size as i64, computed once, in the entry block."""
        if isinstance(value, int):
            return self.builder.integer(value)
        if value not in self.sizes:
            with self.builder.at(self.builder.entry):
                self.sizes[value] = self._polynomial(value)
        return self.sizes[value]

    def _polynomial(self, value: Expression) -> LLVMValue:
        builder = self.builder
        total = builder.integer(0)
        for monomial, factor in value.terms:
            term = builder.integer(factor)
            for atom, power in monomial:
                for _ in range(power):
                    term = builder.multiply(term, self._atom(atom))
            total = builder.add(total, term)
        return total

    def _atom(self, atom: Atom) -> LLVMValue:
        if atom not in self.sizes:
            if isinstance(atom, Symbol):
                self.sizes[atom] = self._load_word("i64", self.layout.word("symbol", atom.name))
            else:
                self.sizes[atom] = self._call(atom)
        return self.sizes[atom]

    def _call(self, call: FunctionCall) -> LLVMValue:
        builder = self.builder
        left, right = (self.size(_simplified(argument)) for argument in call.arguments)
        if call.function == "max":
            return builder.maximum(left, right)
        if call.function == "min":
            return builder.minimum(left, right)
        return self._quotient(call, left, self._divisor(call, right))

    def _divisor(self, call: FunctionCall, value: LLVMValue) -> LLVMValue:
        """One that is not 0: the step that needs the result is never reached then."""
        least = lower_bound(call.arguments[1])
        if least > 0:
            return value
        zero = self.builder.compare("eq", value, 0)
        return self.builder.select(zero, self.builder.integer(1), value)

    def _quotient(self, call: FunctionCall, left: LLVMValue, right: LLVMValue) -> LLVMValue:
        """Rounded down, as in Python, or what remains then, which has the sign of the divisor."""
        builder, least = self.builder, lower_bound(call.arguments[1])
        operator = "sdiv" if call.function == "//" else "srem"
        result = builder.binary(operator, left, right)
        if lower_bound(call.arguments[0]) >= 0 and least >= 0:
            return result
        remainder = result if operator == "srem" else builder.binary("srem", left, right)
        below = builder.compare("slt", remainder, 0)
        if least < 0:
            other = builder.compare("slt", builder.binary("xor", remainder, right), 0)
            below = builder.binary("and", other, builder.compare("ne", remainder, 0))
        if operator == "sdiv":
            return builder.subtract(result, builder.cast("zext", below, "i64"))
        return builder.select(below, builder.add(remainder, right), remainder)


def _simplified(value: Expression) -> Size:
    if not value.terms:
        return 0
    (monomial, factor), *rest = value.terms
    return factor if not rest and monomial == () else value


def _float_bits(type_text: str, value: float) -> int:
    """The value in its own format, in the low bytes of a slot, as a signed integer."""
    if type_text not in _FLOAT_FORMATS:
        raise ValueError(f"the number {value} cannot be passed as {type_text}")
    data = np.array(value, _FLOAT_FORMATS[type_text]).tobytes().ljust(8, b"\0")
    return int(struct.unpack("<q", data)[0])
