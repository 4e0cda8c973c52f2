"""One part of a `torch.compile` graph: its engines, and the parameters that are their constants."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import fx
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from tilewright.build.builder import build
from tilewright.build.quick_start import build_quickly_first
from tilewright.build.tuning import Tuning
from tilewright.engine.engine import Engine
from tilewright.errors import TilewrightError, UnsupportedOperationError
from tilewright.graph.build import GraphBuilder
from tilewright.graph.core import Graph, Value
from tilewright.importers.emitter import Emitter
from tilewright.importers.report import ImportReport, Unsupported
from tilewright.importers.torch_complex import REAL_TYPES, Complex, divided, is_complex
from tilewright.importers.torch_control import import_control_whole
from tilewright.importers.torch_export import declare_input, declare_output
from tilewright.importers.torch_fx import Walker, dtype_of
from tilewright.importers.torch_nodes import (
    first_of,
    inverse_of,
    is_token,
    linear_sizes,
    memory_order,
    ranges,
    repeated_axes,
    stride_order,
)
from tilewright.importers.torch_parameters import Contents, state_of
from tilewright.importers.torch_strides import Strides, spread, strides_of
from tilewright.importers.torch_survey import IMPORT_RULES
from tilewright.importers.torch_symbols import SymbolTable, linear_in, squeezed_symbols
from tilewright.runtime.cuda.device import on_gpu_of
from tilewright.symbolic import Size

logger = logging.getLogger("tilewright")


_State = tuple[int, int, int]  # of a parameter


class NotImported(UnsupportedOperationError):
    """A part has operations that cannot be imported: `problems`."""

    def __init__(self, report: ImportReport) -> None:
        super().__init__(report.text())
        self.problems = report.problems


@dataclass(frozen=True)
class PartSettings:
    """How the parts of a graph are built; `strict` raises where PyTorch would take over, `quick_start` is as in
    `tilewright.compile`."""

    target: str
    precision: str
    tuning: Tuning
    strict: bool = False
    quick_start: bool = False


class _Input(NamedTuple):
    """An argument that is an input of an engine: along which dimensions it is `repeated`, which are given once, and in
    which order its dimensions are given (None: their own)."""

    position: int
    name: str
    repeated: list[int]
    order: list[int] | None


@dataclass(frozen=True)
class _Imported:
    """A part as a graph, and the positions of the arguments that are its inputs, its sizes and other numbers, with
    their names; a size is given as the length of a tensor, which may be more by one, for sizes of 0."""

    graph: Graph
    inputs: list[_Input]
    sizes: list[tuple[int, str, int]]
    numbers: list[tuple[int, str]]
    strides: list[Strides | None]


@dataclass(frozen=True)
class _Built:
    engine: Engine
    contents: Contents
    inputs: list[_Input]
    sizes: list[tuple[int, str, int]]
    numbers: list[tuple[int, str]]
    strides: list[Strides | None]


class EnginePart:
    """Runs one part by engines, one for each state of the parameters (`torch_parameters`).

    The first engine has the parameters as constants, and so has the one that replaces it when they were changed in
    place once.  Parameters that change again, or other parameters, are inputs of one more engine, which serves them
    all.  Buffers that change while the parameters stay as they were are inputs from then on.
    """

    def __init__(
        self,
        gm: fx.GraphModule,
        constants: Sequence[int],
        settings: PartSettings,
        divide: Callable[[EnginePart, str], Callable[..., Any] | None],
    ) -> None:
        """`constants` are the positions of parameters and buffers; `divide` is asked for what runs a part for which no
        engine can be built, None where PyTorch is to run it.  Raises `NotImported`.
        """
        self.gm = gm
        self.constants = tuple(constants)
        self.settings = settings
        self.divide = divide
        self.engines: dict[Any, _Built] = {}
        self.general: _Built | None = None  # has the parameters as inputs
        self.replacement: Callable[..., Any] | None = None  # what runs the part since no engine was built
        self.writes: dict[int, int] = {}  # how often a parameter had changed that looked as before
        self.storages: list[Any] = []  # parameters of all engines: their addresses must not be used again
        self.rebuilt = False
        self.reported = False  # that an engine did not run
        (output,) = gm.graph.find_nodes(op="output")
        self.orders = [stride_order(node.meta["val"]) for node in output.args[0]]
        self.complex = [is_complex(node.meta["val"]) for node in output.args[0]]
        self.on_host = [node.meta["val"].device.type == "cpu" for node in output.args[0]]
        self.unknown_sizes = _unknown_sizes(gm)
        with unset_fake_temporarily():  # what is missing is known now: shapes of the parameters are enough
            self._import(dict.fromkeys(self.constants))

    def __call__(self, *arguments: Any) -> Any:
        if self.replacement is not None or (self.unknown_sizes and self._is_empty(arguments)):
            return (self.replacement or self.gm)(*arguments)
        key = self._key(arguments)
        built = self.engines.get(key)
        changed = built.contents.changed() if built is not None else ()
        if changed:
            self.writes |= {position: self.writes.get(position, 0) + 1 for position in changed}
            key, built = self._key(arguments), None
        built = built or self.general or self._build(key, arguments)
        if built is None:
            return (self.replacement or self.gm)(*arguments)
        named = {each.name: _given(arguments[each.position], each) for each in built.inputs}
        for position, name, more in built.sizes:
            named[name] = torch.empty(arguments[position] + more, dtype=torch.int8, device=self._device(arguments))
        for position, name in built.numbers:
            dtype = torch.float64 if isinstance(arguments[position], float) else torch.int64
            named[name] = torch.tensor(arguments[position], dtype=dtype, device=self._device(arguments))
        try:
            values = built.engine.run(named).values()
        except TilewrightError as reason:
            self._tell(reason)
            return self.gm(*arguments)
        facts = zip(values, self.orders, self.on_host, self.complex, strict=True)
        results = [_ordered(value, order, on_host, pairs) for value, order, on_host, pairs in facts]
        for index, strides in enumerate(built.strides):
            if strides is not None:
                results[index] = spread(results[index], strides.of(arguments))
        return results

    def _tell(self, reason: TilewrightError) -> None:
        """Say once that PyTorch computes what the engine did not."""
        if self.settings.strict:
            raise reason
        if not self.reported:
            logger.warning("torch.compile: an engine did not run, PyTorch computes its part of this call: %s", reason)
        self.reported = True

    def _is_empty(self, arguments: Sequence[Any]) -> bool:
        """Whether a size that depends on data is 0."""
        return any(
            0 in (getattr(arguments[position], "shape", (arguments[position],))) for position in self.unknown_sizes
        )

    def _device(self, arguments: Sequence[Any]) -> torch.device:
        devices = [argument.device for argument in arguments if isinstance(argument, torch.Tensor)]
        return next((device for device in devices if device.type != "cpu"), torch.device("cpu"))

    def _key(self, arguments: Sequence[Any]) -> tuple[_State, ...]:
        writes = self.writes
        return tuple([(*state_of(arguments[place]), writes.get(place, 0)) for place in self.constants])

    # -- Building -------------------------------------------------------------------------------

    def _build(self, key: Any, arguments: Sequence[Any]) -> _Built | None:
        """The engine for parameters that none was built for yet; None where PyTorch or other parts take over."""
        constants = self.constants
        if self.engines and self._release_buffers(key, arguments):
            logger.warning("torch.compile: buffers changed; they become inputs of the engine, which is built again")
            constants = self.constants
            key = self._key(arguments)
        elif self.engines and not self.rebuilt and self._is_in_place(key):
            logger.warning("torch.compile: parameters changed; building the engine again")
            self.rebuilt = True
            self._forget()
        elif self.engines:
            text = "torch.compile: %s; from now on they are inputs of one engine for all"
            logger.warning(
                text, "parameters changed again" if self._is_in_place(key) else "the graph has other parameters"
            )
            constants = ()
        try:
            built = self._engine({position: arguments[position] for position in constants}, arguments)
        except Exception as error:  # torch.compile promises an answer: other parts or PyTorch give it
            self._give_up(error)
            return None
        self.storages += [arguments[position].untyped_storage() for position in constants]
        if constants or not self.constants:
            self.engines[key] = built
        else:
            self.general = built
        return built

    def _engine(self, constants: Mapping[int, torch.Tensor], arguments: Sequence[Any]) -> _Built:
        contents = Contents(constants)
        imported = self._import(constants)  # again: a rule may need the values of what was a constant so far
        with on_gpu_of(arguments):  # whose kernels are timed there
            how = build_quickly_first if self.settings.quick_start else build
            tuning, precision = self.settings.tuning, self.settings.precision
            engine = how(imported.graph, self.settings.target, tuning=tuning, precision=precision)
        return _Built(engine, contents, imported.inputs, imported.sizes, imported.numbers, imported.strides)

    def _give_up(self, error: Exception) -> None:
        reason = str(error) if isinstance(error, TilewrightError) else repr(error)
        if self.settings.strict:
            raise UnsupportedOperationError(f"an engine of this graph was not built: {reason}") from error
        self.replacement = self.divide(self, reason) or self.gm
        self._forget()

    def _forget(self) -> None:
        self.engines.clear()
        self.storages.clear()

    def _is_in_place(self, key: Any) -> bool:
        """Whether the parameters are those of the last engine."""
        last = list(self.engines)[-1]
        return all(old[0] == new[0] for old, new in zip(last, key, strict=True))

    def _release_buffers(self, key: Any, arguments: Sequence[Any]) -> bool:
        """Make inputs of the buffers that changed since the last engine was built, where no parameter did."""
        last = list(self.engines)[-1]
        changed = {position for position, old, new in zip(self.constants, last, key, strict=True) if old != new}
        if any(isinstance(arguments[position], torch.nn.Parameter) for position in changed):
            return False
        self.constants = tuple(position for position in self.constants if position not in changed)
        self._forget()
        return True

    # -- Importing ------------------------------------------------------------------------------

    def _import(self, constants: Mapping[int, torch.Tensor | None]) -> _Imported:
        """The part as a graph; a constant of None stands for any tensor of its shape.  Raises `NotImported`."""
        placeholders = self.gm.graph.find_nodes(op="placeholder")
        builder = GraphBuilder("compiled")
        symbols = SymbolTable(builder, ranges(list(self.gm.graph.nodes)), squeezed_symbols(self.gm.graph))
        walker = Walker(builder, symbols, ImportReport("compiled"), IMPORT_RULES, import_control_whole)
        names = [(position, node) for position, node in enumerate(placeholders) if position not in constants]
        _name_symbols(symbols, [node for _, node in names])
        sizes = []
        given = [(position, node) for position, node in names if isinstance(node.meta["val"], torch.SymInt)]
        for position, node in sorted(given, key=lambda item: not item[1].meta["val"].node.expr.is_Symbol):
            symbol = _named(node.meta["val"], symbols, node.name)
            if symbol is not None:
                builder.input(node.name, dtype_of(torch.int8), (symbol,))
                sizes.append((position, node.name, int(symbol != symbols.size(node.meta["val"]))))
        numbers = []
        for position, node in enumerate(placeholders):
            value = _placeholder(builder, symbols, walker, node, position in constants, constants.get(position))
            if value is None and isinstance(node.meta["val"], (torch.SymInt, torch.SymFloat)):
                value = symbols.given_number(node.meta["val"], node.name)
                numbers.append((position, node.name))
            if value is not None:
                walker.values[node] = value
        for node in self.gm.graph.find_nodes(op="get_attr"):
            data = getattr(self.gm, str(node.target))
            if isinstance(data, torch.Tensor):  # others are graphs of control flow
                walker.values[node] = walker.constant(data, str(node.target))
        walker.run(self.gm.graph.nodes)
        if walker.report.problems:
            raise NotImported(walker.report)
        (output,) = self.gm.graph.find_nodes(op="output")
        for index, node in enumerate(output.args[0]):
            declare_output(builder, _stored(builder, walker.values[node], self.orders[index]), f"output_{index}")
        inputs = [
            _input_of(position, node)
            for position, node in names
            if isinstance(node.meta["val"], torch.Tensor) and isinstance(walker.values.get(node), (Value, Complex))
        ]
        strides = strides_of([node.meta["val"] for node in output.args[0]], symbols, placeholders)
        return _Imported(builder.finish(), inputs, sizes, numbers, strides)


def _named(size: torch.SymInt, symbols: SymbolTable, name: str) -> Size | None:
    """The symbol for a number, or for one more, that may be the size of something and follows from no others."""
    expression = size.node.expr
    if not expression.is_Symbol:
        return symbols.name_number(size, name)
    if not symbols.is_size(expression) or str(expression) in symbols.sizes:
        return None
    symbols.name(expression, None, name)
    return symbols.size(size)


def _placeholder(
    builder: GraphBuilder,
    symbols: SymbolTable,
    walker: Walker,
    node: fx.Node,
    constant: bool,
    data: torch.Tensor | None,
) -> Any:
    """The value of an argument; None for a number that follows from no size, and for a token, which holds nothing."""
    fake = node.meta["val"]
    if is_token(node):
        return None
    if not isinstance(fake, torch.Tensor):
        try:
            return symbols.number(fake) if isinstance(fake, torch.SymFloat) else symbols.size(fake)
        except Unsupported:
            return None
    if data is not None:
        return walker.constant(data, node.name)
    if constant and is_complex(fake):
        parts = dtype_of(REAL_TYPES[fake.dtype])
        return divided(Emitter(builder), builder.constant(np.zeros((*fake.shape, 2), parts.numpy), node.name))
    if constant:
        zero = np.zeros((), dtype_of(fake.dtype).numpy)
        return builder.constant(np.broadcast_to(zero, tuple(fake.shape)), node.name)
    given = _input_of(0, node)
    order, once = given.order, first_of(fake, given.repeated)
    if order is None:
        value = declare_input(builder, symbols, once, node.name)
    else:
        shape = symbols.shape([once.shape[axis] for axis in order])
        value = Emitter(builder).permute(builder.input(node.name, dtype_of(fake.dtype), shape), inverse_of(order))
    return Emitter(builder).broadcast(value, symbols.shape(fake.shape)) if given.repeated else value


def _input_of(position: int, node: fx.Node) -> _Input:
    repeated = repeated_axes(node.meta["val"])
    return _Input(position, node.name, repeated, memory_order(first_of(node.meta["val"], repeated)))


def _stored(builder: GraphBuilder, value: Any, order: list[int] | None) -> Any:
    """A result with its dimensions in their order in PyTorch's memory; complex numbers are moved at the end."""
    return value if order is None or not isinstance(value, Value) else Emitter(builder).permute(value, order)


def _name_symbols(symbols: SymbolTable, nodes: Sequence[fx.Node]) -> None:
    """Name the symbols by the sizes of the inputs: plain ones before those that follow from a size, then formulas of
    numbers that may be negative."""
    sizes = [(node, axis, expression) for node in nodes for axis, expression in linear_sizes(node)]
    for node, axis, expression in sorted(sizes, key=lambda entry: not entry[2].is_Symbol):
        linear = linear_in(expression)
        if linear is not None and symbols.is_size(linear[0]):
            symbols.name(expression, None, f"{node.name}_{axis}")
    for node in nodes:
        fake = node.meta["val"]
        for axis, size in enumerate(fake.shape if isinstance(fake, torch.Tensor) else ()):
            if isinstance(size, torch.SymInt):
                symbols.name_number(size, f"{node.name}_{axis}", may_be_zero=False)


def _unknown_sizes(gm: fx.GraphModule) -> list[int]:
    """Positions of the arguments with a size that depends on data or is a formula, which may be 0."""
    placeholders = enumerate(gm.graph.find_nodes(op="placeholder"))
    return [position for position, node in placeholders if _has_unknown_size(node.meta["val"])]


def _has_unknown_size(fake: Any) -> bool:
    sizes = fake.shape if isinstance(fake, torch.Tensor) else ()
    formulas = [size for size in sizes if isinstance(size, torch.SymInt) and not size.node.expr.is_Symbol]
    return bool(free_unbacked_symbols(fake) or formulas)


def _given(argument: Any, how: _Input) -> Any:
    """An argument as an engine takes it: row-major in memory, complex numbers as pairs."""
    if not isinstance(argument, torch.Tensor):
        return argument
    if argument.is_complex():
        return torch.view_as_real(argument.resolve_conj())
    argument = first_of(argument, how.repeated)
    return argument if how.order is None else argument.permute(how.order)


def _ordered(value: Any, order: list[int] | None, on_host: bool, pairs: bool) -> torch.Tensor:
    """A result of an engine with PyTorch's order of dimensions in memory, on PyTorch's device."""
    result = value if isinstance(value, torch.Tensor) else torch.as_tensor(value)
    if pairs:
        result = torch.view_as_complex(result)
    if on_host and result.is_cuda:
        result = result.cpu()
    if order is None:
        return result
    if pairs:
        result = result.permute(order).contiguous()
    return result.permute(inverse_of(order))
