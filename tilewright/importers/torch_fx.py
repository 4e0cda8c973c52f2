"""Walks an FX graph of ATen calls and applies the rule table `torch_ops.RULES` to each.

A rule is a function with the ATen op's own signature after a first `TorchCall` argument: tensors arrive as
graph values, symbolic ints as sizes, and the rule returns a value, a tuple of values (None for a
result that cannot be given), or a size.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext, suppress
from typing import Any

import ml_dtypes
import numpy as np
import sympy
import torch
from torch import fx
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.utils import _pytree as pytree

from tilewright import dtypes
from tilewright.dtypes import DType
from tilewright.errors import ShapeError
from tilewright.graph.build import GraphBuilder
from tilewright.graph.core import Value
from tilewright.importers.assumptions import SizeIsFixed
from tilewright.importers.emitter import Emitter, Number, Scalar
from tilewright.importers.equal_sizes import agreed
from tilewright.importers.report import NO_RULE_ADVICE, ImportProblem, ImportReport, Unsupported
from tilewright.importers.torch_complex import REAL_TYPES, Complex, divided, is_complex
from tilewright.importers.torch_data_conditions import is_assumed_too, text_of
from tilewright.importers.torch_numbers import Numeric, computed, is_read, read, require, truth
from tilewright.importers.torch_refused import without_rule
from tilewright.importers.torch_source_lines import is_written_by_user
from tilewright.importers.torch_symbols import SymbolTable
from tilewright.symbolic import Size, simplify

TORCH_DTYPES: dict[torch.dtype, DType] = {
    torch.bool: dtypes.int1,
    torch.int8: dtypes.int8,
    torch.int16: dtypes.int16,
    torch.int32: dtypes.int32,
    torch.int64: dtypes.int64,
    torch.uint8: dtypes.uint8,
    torch.uint16: dtypes.uint16,
    torch.uint32: dtypes.uint32,
    torch.uint64: dtypes.uint64,
    torch.float8_e5m2: dtypes.float8e5,
    torch.float8_e4m3fn: dtypes.float8e4nv,
    torch.float8_e5m2fnuz: dtypes.float8e5b16,
    torch.float8_e4m3fnuz: dtypes.float8e4b8,
    torch.float16: dtypes.float16,
    torch.bfloat16: dtypes.bfloat16,
    torch.float32: dtypes.float32,
    torch.float64: dtypes.float64,
}
_CARRIERS = {
    torch.bfloat16: torch.int16,
    **{dtype: torch.uint8 for dtype, other in TORCH_DTYPES.items() if other.is_float and other.bits == 8},
}


def dtype_of(dtype: torch.dtype) -> DType:
    """The element type; raises `Unsupported` for complex, quantized and other types."""
    if dtype not in TORCH_DTYPES:
        raise Unsupported(f"the element type {dtype}", "use a real floating-point or integer type")
    return TORCH_DTYPES[dtype]


def to_numpy(tensor: torch.Tensor) -> np.ndarray:
    """The tensor's own memory as an array (a copy only where it is not contiguous, not on the CPU, or negated)."""
    tensor = tensor.detach().cpu().resolve_neg().contiguous()
    carrier = _CARRIERS.get(tensor.dtype)
    if carrier is None:
        return tensor.numpy()
    return tensor.view(carrier).numpy().view(dtype_of(tensor.dtype).numpy)


_MOST_FIXED = 1 << 20  # elements of what PyTorch computes when a model is imported


class TorchCall(Emitter):
    """The call that a rule is to express: an `Emitter`, and what PyTorch says of the result."""

    def __init__(self, builder: GraphBuilder, symbols: SymbolTable, node: fx.Node) -> None:
        super().__init__(builder)
        self.symbols = symbols
        self.node = node
        self.source = source_of(node)

    def op(self, name: str, *inputs: Value | Number | None, **attributes: Any) -> Value:
        """One node; sizes that PyTorch takes to be equal, without a proof, are checked by the engine."""
        try:
            return super().op(name, *inputs, **attributes)
        except ShapeError as error:
            try:
                found = agreed(self, name, inputs, attributes)
            except SizeIsFixed:  # PyTorch would have said so
                found = None
            if found is None:
                raise error
        return super().op(name, *found, **attributes)

    @property
    def ordered(self) -> bool:
        """As `torch.use_deterministic_algorithms` asks."""
        return torch.are_deterministic_algorithms_enabled()

    @property
    def results(self) -> list[torch.Tensor | None]:
        """The fake result tensors."""
        value = self.node.meta.get("val")
        return list(value) if isinstance(value, (tuple, list)) else [value]

    @property
    def dtype(self) -> DType:
        """Element type of the first result."""
        (first, *_) = self.results
        assert first is not None
        return dtype_of(first.dtype)

    @property
    def shape(self) -> tuple[Size, ...]:
        """Shape of the first result."""
        (first, *_) = self.results
        assert first is not None
        return self.symbols.shape(first.shape)

    def is_read(self, result: int) -> bool:
        """Whether anything takes one of the results of the call."""
        return any(user.op != "call_function" or user.args[1] == result for user in self.node.users)

    def promoted(self, *positions: int) -> DType:
        """PyTorch's common element type of the tensor and number arguments at `positions`."""
        fakes = [_fake(self.node.args[position]) for position in positions]
        result = fakes[0]
        if len(fakes) == 1:
            return dtype_of(result.dtype)
        return dtype_of(torch.result_type(fakes[0], fakes[1]))

    def value(self, scalar: Scalar, dtype: DType) -> Value:
        """As `Emitter.value`; a number that an integer type does not hold wraps, as PyTorch's numbers do."""
        if isinstance(scalar, (int, float)) and dtype.is_integer and not dtype.is_bool:
            scalar = wrapped(scalar, dtype)
        return super().value(scalar, dtype)

    def cast(self, value: Value, dtype: DType) -> Value:
        """As `Emitter.cast`; to 8-bit floats with numbers out of range as this version of PyTorch takes them."""
        if dtype.is_float and dtype.bits == 8 and value.dtype != dtype and _saturates(dtype):
            largest = float(ml_dtypes.finfo(dtype.numpy).max)
            wide = value if value.dtype.is_float else super().cast(value, dtypes.float32)
            value = self.op("clip", wide, low=-largest, high=largest)
        return super().cast(value, dtype)

    def pair(self, left: Scalar, right: Scalar, dtype: DType | None = None) -> tuple[Value, Value]:
        """Both operands as values of `dtype` (default: the common type of arguments 0 and 1)."""
        dtype = dtype or self.promoted(0, 1)
        return self.value(left, dtype), self.value(right, dtype)

    def factors(self, left: Scalar, right: Scalar, dtype: DType | None = None) -> tuple[Value, Value]:
        """As `pair`; PyTorch multiplies 16-bit floats by numbers, and by tensors without dimensions, in float32."""
        dtype = dtype or self.promoted(0, 1)
        return self._factor(left, dtype), self._factor(right, dtype)

    def _factor(self, item: Scalar, dtype: DType) -> Value:
        if isinstance(item, (int, float)) and dtype.is_float:
            return self.builder.factor(item, dtype)
        number = isinstance(item, Value) and item.rank == 0 and item.dtype in (dtypes.float32, dtypes.float64)
        in_float32 = number and dtype.is_float and dtype.bits == 16 and self.shape != ()
        return self.value(item, dtypes.float32 if in_float32 else dtype)

    def added(self, number: Scalar, dtype: DType) -> Value:
        """A number that stands in a sum of 16-bit floats, or multiplies one of its terms: PyTorch rounds it to their
        type on CPUs, and nowhere else."""
        (first, *_) = self.results
        assert first is not None
        return self.value(number, dtype) if first.device.type == "cpu" else self._factor(number, dtype)


def wrapped(number: float, dtype: DType) -> int:
    """A number as one of an integer type, modulo 2^bits."""
    low = int(np.iinfo(dtype.numpy).min)
    return (int(number) - low) % (1 << dtype.bits) + low


@functools.cache
def _saturates(dtype: DType) -> bool:
    """Whether PyTorch's casts to an 8-bit float give its greatest number for larger ones; versions differ."""
    target = next(key for key, value in TORCH_DTYPES.items() if value == dtype)
    return bool(torch.tensor([1e9]).to(target).float().isfinite())


def _fake(argument: Any) -> Any:
    if isinstance(argument, fx.Node):
        argument = argument.meta["val"]
    if isinstance(argument, torch.SymInt):
        return 1
    return 1.0 if isinstance(argument, torch.SymFloat) else argument


Rule = Callable[..., Any]
_UNKNOWN_SIZE = 1024  # stands for a size that depends on data where sizes are compared
_MAY_BE_NEGATIVE = (
    "a number read out of a tensor, which may be negative, stands where this operation needs a size",
    "say that it is not: torch._check(number >= 0)",
)
_FLOAT = (
    "a float that the run computes stands where this operation needs one that is known before",
    "give it a number of the code",
)
COMPLEX = "complex "  # before the names of operations in the rules for complex tensors


def is_condition(node: fx.Node) -> bool:
    """Whether a node is an assertion on a number, or a part of the condition of such assertions alone."""
    if target_name(node.target).startswith("aten._assert_scalar"):
        return True
    part = isinstance(node.meta.get("val"), (torch.SymBool, torch.SymFloat))
    return part and bool(node.users) and all(map(is_condition, node.users))


def nothing(call: TorchCall, *_: Any, **__: Any) -> None:
    """The rule of assertions on shapes and types: the engine checks its inputs itself."""


class Walker:
    """Imports the nodes of one FX graph; problems go to the report, their results become unknown."""

    def __init__(
        self,
        builder: GraphBuilder,
        symbols: SymbolTable,
        report: ImportReport,
        rules: dict[str, Rule],
        control: Callable[[Walker, fx.Node], bool] | None = None,
    ) -> None:
        """`control` imports nodes with graphs inside, and tells whether a node is one."""
        self.builder = builder
        self.symbols = symbols
        self.report = report
        self.rules = rules
        self.control = control
        self.values: dict[fx.Node, Any] = {}  # Value, Size, or a tuple of them; missing: not imported
        self.constants: dict[Any, Value] = {}  # by memory

    def constant(self, tensor: torch.Tensor, name: str) -> Any:
        """A parameter, buffer or constant; tensors that share memory share the value. A `Complex` for complex ones."""
        if is_complex(tensor):
            return divided(
                Emitter(self.builder), self.constant(torch.view_as_real(tensor.detach().resolve_conj()), name)
            )
        key = (tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride())
        if tensor.numel() == 0 or key not in self.constants:
            self.constants[key] = self.builder.constant(to_numpy(tensor), name)
        return self.constants[key]

    def run(self, nodes: Iterable[fx.Node]) -> None:
        """Import every call; placeholders and attributes must be in `values` already."""
        for node in nodes:
            if node.op == "call_function" and node not in self.values:
                self._call(node)

    def _call(self, node: fx.Node) -> None:
        known = node.meta.get("val")
        if isinstance(known, (int, float, bool)):
            self.values[node] = known
            return
        name = target_name(node.target)
        rule = self._rule(node, name)
        try:
            computes = self.symbols.run_time or any(
                isinstance(self.values.get(item), Value) and isinstance(item.meta.get("val"), Numeric)
                for item in node.all_input_nodes
            )
            if isinstance(known, torch.SymInt) and not computes:
                self._size(node, known)
            elif isinstance(known, Numeric) and computes:
                self._number(node, name, known)
            elif rule is nothing:
                self._condition(node, name)
            elif name == "with_effects":
                self._effect(node)
            elif self.control is not None and self.control(self, node):
                return
            elif isinstance(known, (torch.SymBool, torch.SymFloat)):
                if isinstance(known, torch.SymFloat) and not is_condition(node):
                    with suppress(Unsupported):  # a use as a value is reported there
                        self.values[node] = self.symbols.number(known)
            elif name == "getitem":
                self._getitem(node)
            elif rule is None and callable(node.target) and _is_fixed(node):
                with unset_fake_temporarily():  # Dynamo imports graphs inside its fake mode
                    self.values[node] = self.constant(node.target(*node.args, **node.kwargs), name)
            elif rule is None:
                raise without_rule(name, name in self.rules)
            elif all(argument in self.values for argument in node.all_input_nodes):
                self._apply(rule, node)
            else:
                self._missing_scalar(node)
        except Unsupported as problem:
            self._report(node, problem.reason, problem.advice)
        except Exception as error:  # a rule met something unforeseen: name the node instead of crashing
            if self._has(torch.SymFloat, node):
                self._report(node, *_FLOAT)
                return
            if isinstance(error, ShapeError):
                self._report(node, str(error), "this use of the operation is outside what the graph can express")
                return
            if self._has(torch.SymInt, node):
                self._report(node, *_MAY_BE_NEGATIVE)
                return
            reason = f"the import rule failed: {type(error).__name__}: {error}"
            self._report(node, reason, "please report this with the model's code for this operation")

    def _rule(self, node: fx.Node, name: str) -> Rule | None:
        """The rule of an operation; where tensors are complex the one for these."""
        fakes = [node.meta.get("val"), *(argument.meta.get("val") for argument in node.all_input_nodes)]
        if name != "getitem" and any(is_complex(fake) for fake in pytree.tree_leaves(fakes)):
            found = self.rules.get(COMPLEX + name)
            if found is not None or name.startswith("aten."):
                return found
        return self.rules.get(name)

    def _size(self, node: fx.Node, known: torch.SymInt) -> None:
        """A number that is a size, or nothing; of floats of sizes it follows from PyTorch's formula for it."""
        has_operands = all(argument in self.values for argument in node.all_input_nodes)
        with nullcontext() if has_operands else suppress(Unsupported):
            if has_operands or not self.symbols.is_unbacked(known.node.expr):
                self.values[node] = self.symbols.size(known)

    def _number(self, node: fx.Node, name: str, known: Any) -> None:
        """A symbolic number: a size, or a tensor without dimensions."""
        used = not all(is_condition(user) for user in node.users)
        if not all(argument in self.values for argument in node.all_input_nodes):
            self._number_without_operands(node, known, used)
            return
        call = TorchCall(self.builder, self.symbols, node)
        operands: list[Any] = [self.values[item] if isinstance(item, fx.Node) else item for item in node.args]
        if is_read(name):
            self.values[node] = read(call, self.symbols, known, operands[0])
            return
        found: Value | Size | None = None
        if name == "getitem":  # of what a graph inside gives
            found = operands[0][operands[1]]
            self.values[node] = read(call, self.symbols, known, found) if isinstance(found, Value) else found
            return
        if isinstance(known, torch.SymInt) and not self.symbols.is_of_numbers(known):
            try:
                found = self.symbols.size(known)
            except Unsupported:
                found = computed(call, known, name, operands)
        elif used:
            found = computed(call, known, name, operands)
        if found is not None:
            self.values[node] = found
        elif isinstance(known, torch.SymInt) and used:
            raise Unsupported(f"a number that is {known}", "use whole-number arithmetic on sizes")

    def _number_without_operands(self, node: fx.Node, known: Any, used: bool) -> None:
        """A number whose operands have no values: reported already, floats without a rule, or used by assertions only.
        A size follows from PyTorch's formula for it."""
        if not isinstance(known, torch.SymInt):
            return
        if not self.symbols.is_unbacked(known.node.expr):
            with suppress(Unsupported):
                self.values[node] = self.symbols.size(known)
                return
        if used:
            self._missing_scalar(node)

    def _condition(self, node: fx.Node, name: str) -> None:
        """An assertion on what was read from tensors."""
        condition = node.args[0] if node.args else None
        assumed = text_of(node) if node.args else None
        if isinstance(condition, fx.Node) and assumed is not None:
            call = TorchCall(self.builder, self.symbols, node)
            call.op("condition", truth(call, self.values, condition), what=assumed)
            return
        known = condition.meta.get("val") if isinstance(condition, fx.Node) else None
        if name.startswith("aten._assert_scalar") and self.symbols.run_time and isinstance(known, torch.SymBool):
            if self.symbols.is_unbacked(known.node.expr) and not is_assumed_too(node):
                require(TorchCall(self.builder, self.symbols, node), self.symbols, known.node.expr)

    def _effect(self, node: fx.Node) -> None:
        """An operation that PyTorch keeps in order by tokens: assertions say nothing here."""
        operation = target_name(node.args[1])
        if self.rules.get(operation) is not nothing:
            raise without_rule(operation)
        self.values[node] = ((),)

    def _has(self, kind: type, node: fx.Node) -> bool:
        """Whether an argument is a number that the run computes, of a kind: a SymInt that is no size, or a SymFloat."""
        given = [argument for argument in node.all_input_nodes if isinstance(argument.meta.get("val"), kind)]
        return any(isinstance(self.values.get(argument), Value) for argument in given)

    def _missing_scalar(self, node: fx.Node) -> None:
        """Report arguments that are symbolic floats or booleans; other missing ones are reported already."""
        for argument in node.all_input_nodes:
            if argument not in self.values and isinstance(argument.meta.get("val"), (torch.SymFloat, torch.SymBool)):
                if target_name(argument.target).startswith("aten._local_scalar_dense"):
                    raise Unsupported("a number read out of a tensor by .item()", "keep it a tensor of no dimensions")
                raise Unsupported(f"the argument {argument.name!r} is computed from sizes as a float or boolean")

    def _getitem(self, node: fx.Node) -> None:
        source, index = node.args
        assert isinstance(source, fx.Node)
        if source not in self.values:
            return
        value = self.values[source][index]
        if value is None:
            raise Unsupported(f"result {index} of {target_name(source.target)} is not available")
        self.values[node] = value

    def _apply(self, rule: Rule, node: fx.Node) -> None:
        call = TorchCall(self.builder, self.symbols, node)
        args = tuple(self._argument(item) for item in node.args)
        kwargs = {key: self._argument(item) for key, item in node.kwargs.items() if key not in _LAYOUT}
        result = rule(call, *args, **kwargs)
        expected = call.results
        if isinstance(result, tuple):
            self.values[node] = tuple(
                self._agree(call, value, fake) if value is not None else None
                for value, fake in zip(result, expected, strict=True)
            )
        elif result is not None:
            self.values[node] = self._agree(call, result, expected[0])

    def _argument(self, item: Any) -> Any:
        """What a rule gets for an argument; a list of numbers has sizes where they are never negative."""
        if isinstance(item, (list, tuple)):
            return type(item)(self._as_size(each) for each in item)
        return fx.map_arg(item, lambda argument: self.values[argument])

    def _as_size(self, item: Any) -> Any:
        known = item.meta.get("val") if isinstance(item, fx.Node) else None
        if isinstance(known, torch.SymInt) and isinstance(self.values[item], Value):
            with suppress(Unsupported):
                return self.symbols.size(known)
        return fx.map_arg(item, lambda argument: self.values[argument])

    def _agree(self, call: TorchCall, value: Any, fake: torch.Tensor | None) -> Any:
        """Check a rule's result against PyTorch's; its symbolic shape replaces an equal one."""
        if fake is None:
            return value
        if isinstance(value, Complex):
            parts = fake.new_empty(fake.shape, dtype=REAL_TYPES[fake.dtype])
            return Complex(*(self._agree(call, part, parts) for part in (value.real, value.imaginary)))
        dtype, shape = dtype_of(fake.dtype), self.symbols.shape(fake.shape)
        clash = any(
            isinstance(a, int) and isinstance(b, int) and a != b for a, b in zip(value.shape, shape, strict=False)
        )
        if value.dtype != dtype or value.rank != len(shape) or clash:
            raise AssertionError(f"the rule gives {value!r}, PyTorch {dtype}[{', '.join(map(str, shape))}]")
        return call.reshape(value, shape)

    def _report(self, node: fx.Node, reason: str, advice: str = NO_RULE_ADVICE) -> None:
        self.report.add(problem_of(node, reason, advice))


_LAYOUT = ("device", "layout", "pin_memory", "memory_format", "non_blocking")  # without meaning for values


def target_name(target: Any) -> str:
    """``aten.add.Tensor``, ``getitem``, or the function's name."""
    if isinstance(target, torch._ops.OpOverload):
        return str(target)
    return getattr(target, "__name__", str(target))


def is_contiguous(fake: torch.Tensor, order: Sequence[int] | None = None, symbols: SymbolTable | None = None) -> bool:
    """Whether a fake tensor, its dimensions in another order, is known to be row-major (asking the tensor itself
    could add a guard), to PyTorch or by what is known of `symbols`."""
    expected: Any = 1
    for axis in reversed(range(fake.ndim) if order is None else order):
        size, stride = fake.shape[axis], fake.stride(axis)
        if not (isinstance(size, int) and size == 1) and not statically_known_true(stride == expected):
            if symbols is None or simplify(symbols.size(stride - expected)) != 0:
                return False
        expected = expected * size
    return True


def hint_of(size: Any) -> int:
    """A size or stride as a number for comparisons."""
    if isinstance(size, int):
        return size
    value = size.node.expr.subs(dict.fromkeys(size.node.expr.free_symbols, sympy.Integer(_UNKNOWN_SIZE)))
    return int(size.node.hint) if size.node.has_hint() else int(value)


def problem_of(node: fx.Node, reason: str, advice: str) -> ImportProblem:
    """A call that is not imported, for the report."""
    inputs = tuple(describe(argument) for argument in node.all_input_nodes)
    return ImportProblem(target_name(node.target), node.name, inputs, source_of(node), reason, advice)


def describe(node: fx.Node) -> str:
    """``f32[batch, 8]`` of the tensor that a node computes."""
    value = node.meta.get("val")
    if isinstance(value, torch.Tensor):
        text = (
            TORCH_DTYPES[value.dtype].text if value.dtype in TORCH_DTYPES else str(value.dtype).removeprefix("torch.")
        )
        return f"{text}[{', '.join(map(str, value.shape))}]"
    return str(value)


def source_of(node: fx.Node) -> str:
    """Module path, class and source line: ``encoder.0.attention (SelfAttention), bert.py:41``."""
    parts = []
    stack = node.meta.get("nn_module_stack")
    if stack:
        path, kind = list(stack.values())[-1]
        kind = kind if isinstance(kind, str) else kind.__name__
        path = re.sub(r"^L\['self'\]\.?|^L__self___?", "", path)
        parts.append(f"{path or 'model'} ({kind.rsplit('.', 1)[-1]})")
    found = re.findall(r'File "([^"]+)", line (\d+)', node.meta.get("stack_trace") or "")
    places = [(file, line) for file, line in found if not file.startswith("<eval_with_key>")]  # which FX made itself
    if places:
        written = [(file, line) for file, line in places if is_written_by_user(file)]
        file, line = (written or places)[-1]  # the user's own line rather than one of PyTorch's
        name = file.replace("\\", "/").rsplit("/", 1)[-1]
        parts.append(f"{name}:{line}")
    return ", ".join(parts)


def _is_fixed(node: fx.Node) -> bool:
    """Whether an operation of PyTorch gives one small tensor that follows from numbers alone, as a window does."""
    found, target = node.meta.get("val"), node.target
    if node.all_input_nodes or not isinstance(found, torch.Tensor) or not isinstance(target, torch._ops.OpOverload):
        return False
    fixed = not ({torch.Tag.nondeterministic_seeded, torch.Tag.nondeterministic_bitwise} & set(target.tags))
    return fixed and not target._schema.is_mutable and "empty" not in target.__name__ and found.numel() <= _MOST_FIXED
