"""`torch.compile(model, backend="tilewright")`.

Dynamo hands over one graph at a time (graph breaks stay with PyTorch).  Each inference graph goes
through AOT functionalisation to ATen and becomes an engine: parameters and buffers are its constants
(buffers that change are inputs), dynamic sizes its symbols.  What cannot be compiled runs in PyTorch,
with a report on the logger "tilewright" that says which graph, which operations and why.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import fx
from torch._decomp import core_aten_decompositions
from torch._functorch.aot_autograd import aot_module_simplified
from torch._guards import TracingContext
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily

from tilewright.engine.tuning import Tuning
from tilewright.errors import MissingDependencyError, TilewrightError, a_kind
from tilewright.graph.build import GraphBuilder
from tilewright.graph.core import Graph
from tilewright.importers.report import Report, Unsupported
from tilewright.importers.torch_export import KEPT, declare_output
from tilewright.importers.torch_fx import Walker, dtype_of
from tilewright.importers.torch_ops import FOREIGN, RULES
from tilewright.importers.torch_symbols import SymbolTable, squeezed_symbols
from tilewright.targets.registry import get_target

logger = logging.getLogger("tilewright")

SAMPLES = 32  # words of each parameter that are compared at each call
MOST_ENGINES = 4  # engines of one graph for changed parameters; more of them run in PyTorch


class _Declined(Exception):
    """The graph stays with PyTorch; the message says why."""


def backend(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """Compile one Dynamo graph; `options` may hold ``target``, ``effort`` and ``vendor`` (as in `tilewright.compile`).

    The mode ``max-autotune`` stands for an effort of 2 with products and convolutions of PyTorch (and of cuBLASLt and
    cuDNN, where their bindings are installed) as candidates.
    Never raises for a model that it cannot compile: the graph's own `forward` is returned and the
    reason is logged.  An unknown option raises `TilewrightError`, and so does an effort or target that does not exist.
    """
    settings = dict(options or {})
    target = settings.pop("target", "auto")
    thorough = str(mode).startswith("max-autotune")
    effort, vendor = settings.pop("effort", 2 if thorough else None), bool(settings.pop("vendor", thorough))
    if settings:
        known = "target, effort, vendor"
        raise TilewrightError(f"unknown options {sorted(settings)} for the tilewright backend; known: {known}")
    tuning = Tuning(effort, libraries=vendor)
    if target != "auto":
        get_target(target)
    try:
        device = _check_inference(gm, example_inputs)
        static = _static_positions(gm, example_inputs)
        compiler: Any = _Compiler(static, device, _target_on(device) if target == "auto" else str(target), tuning)
        return aot_module_simplified(gm, example_inputs, fw_compiler=compiler, decompositions=decompositions())
    except (_Declined, TilewrightError) as reason:
        if isinstance(reason, MissingDependencyError):
            raise
        logger.warning("torch.compile: a graph of %d operations stays with PyTorch: %s", _operations(gm), reason)
        return gm.forward


def decompositions() -> dict[Any, Any]:
    """Core ATen without the composites that the graph has ops for."""
    table = dict(core_aten_decompositions())
    for name in KEPT:
        packet = getattr(torch.ops.aten, name)
        for overload in packet.overloads():
            table.pop(getattr(packet, overload), None)
    return table


def _operations(gm: fx.GraphModule) -> int:
    return sum(node.op.startswith("call_") for node in gm.graph.nodes)


def _check_inference(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> str:
    """The kind of device that the graph's tensors are on, ``cpu`` or ``cuda``; raises `_Declined`."""
    tensors = [item for item in (*example_inputs, *gm.parameters(), *gm.buffers()) if isinstance(item, torch.Tensor)]
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        raise _Declined("it is a training graph (gradients are enabled); call the model under torch.no_grad()")
    odd = {type(tensor) for tensor in tensors if not isinstance(tensor, torch.nn.Parameter)}
    odd -= {torch.Tensor, FakeTensor}
    if odd:
        raise _Declined(f"it has tensors of the class {min(kind.__name__ for kind in odd)}; call it with plain tensors")
    devices = sorted({str(tensor.device) for tensor in tensors if tensor.ndim or tensor.device.type != "cpu"})
    kinds = {name.partition(":")[0] for name in devices}
    if len(devices) > 1:
        raise _Declined(f"it has tensors on {', '.join(devices)}; this backend compiles graphs for one device")
    if kinds - {"cpu", "cuda"}:
        raise _Declined(f"it has tensors on {devices[0]}; this backend compiles for CPUs and NVIDIA GPUs")
    return kinds.pop() if kinds else "cpu"


def _target_on(device: str) -> str:
    """The target for a kind of device; PyTorch's choice of tf32 for float32 products holds on GPUs."""
    return "cuda+tf32" if device == "cuda" and torch.get_float32_matmul_precision() != "highest" else device


def _static_positions(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> list[int]:
    """Positions, in AOT's argument order, of parameters and of buffers that Dynamo marks as static."""
    owned = len(list(gm.named_parameters(remove_duplicate=False))) + len(list(gm.named_buffers(remove_duplicate=False)))
    placeholders = [node for node in gm.graph.nodes if node.op == "placeholder"]
    positions = list(range(owned))
    for index, (node, example) in enumerate(zip(placeholders, example_inputs, strict=True)):
        marked = "_dynamo_static_input_type" in (node.meta.get("tensor_dict") or {})
        if isinstance(example, torch.nn.Parameter) or marked:
            positions.append(owned + index)
    return positions


class _Compiler:
    """AOT's inner compiler for one graph."""

    def __init__(self, static: Sequence[int], device: str, target: str, tuning: Tuning) -> None:
        self.static = static
        self.device = device
        self.target = target
        self.tuning = tuning

    def __call__(self, gm: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        placeholders = [node for node in gm.graph.nodes if node.op == "placeholder"]
        if self.static and max(self.static) >= len(placeholders):
            raise _Declined("its arguments were rearranged by AOT")
        self._check_results(gm)
        changed = _changed_by_graph()
        constant = [position for position in self.static if position not in changed]
        return _Runner(gm, constant, self.target, self.tuning)

    def _check_results(self, gm: fx.GraphModule) -> None:
        """Engines give their results where their inputs are, from where they come to the host if the model says so.

        Raises `_Declined` for results on another device.
        """
        given = [node.meta.get("val") for node in gm.graph.find_nodes(op="placeholder")]
        places = {"cpu", *(str(fake.device) for fake in given if isinstance(fake, torch.Tensor))}
        (output,) = [node for node in gm.graph.nodes if node.op == "output"]
        for node in output.args[0]:
            fake = node.meta.get("val") if isinstance(node, fx.Node) else None
            if isinstance(fake, torch.Tensor) and str(fake.device) not in places:
                raise _Declined(
                    f"its result {node.name!r} is on {fake.device}, its inputs on {self.device}; "
                    "this backend compiles graphs for one device"
                )


def _changed_by_graph() -> set[int]:
    """Positions, in AOT's argument order, of what the graph that is being compiled changes in place."""
    context = TracingContext.try_get()
    metadata = context.fw_metadata if context is not None else None
    return set() if metadata is None else {i for i, item in enumerate(metadata.input_info) if item.mutates_data}


class _Runner:
    """Runs the engine of one graph; engines are kept by the state of the parameters (`_Watched`).

    An entry of None stands for parameters whose engine could not be built.  Buffers that change while the
    parameters stay as they were are inputs of the engine from then on.
    """

    def __init__(self, gm: fx.GraphModule, static: Sequence[int], target: str, tuning: Tuning) -> None:
        self.gm = gm
        self.static = tuple(static)
        self.target = target
        self.tuning = tuning
        self.engines: dict[Any, Any] = {}
        self.watched: dict[int, _Watched] = {}
        self.kept: list[Any] = []  # parameters of all engines: their addresses must not be used again
        self.names: list[tuple[int, str]] = []  # argument position and engine input
        self.given_up = False  # the parameters change too often
        (output,) = [node for node in gm.graph.nodes if node.op == "output"]
        self.results = list(output.args[0])
        self.orders = [_stride_order(node) for node in self.results]
        self._check()

    def _check(self) -> None:
        """Import once with the shapes of the parameters alone, so that what is missing is known now."""
        with unset_fake_temporarily():
            self._graph({position: None for position in self.static})

    def __call__(self, *arguments: Any) -> Any:
        key = tuple(self._state(position, arguments[position]) for position in self.static)
        engine = self.engines[key] if key in self.engines else self._build(key, arguments)
        if engine is None:
            return self.gm(*arguments)
        named = {name: arguments[position] for position, name in self.names}
        values = list(engine.run(named).values())
        found = iter(values[len(values) - self.outputs :])
        return tuple(self._finish(node, order, found) for node, order in zip(self.results, self.orders, strict=True))

    def _state(self, position: int, parameter: torch.Tensor) -> tuple[int, int, bytes]:
        watched = self.watched.get(position)
        if watched is None or watched.tensor is not parameter or watched.address != parameter.data_ptr():
            watched = self.watched[position] = _Watched(parameter)
        return watched.state()

    def _finish(self, node: Any, order: list[int] | None, found: Any) -> Any:
        if not isinstance(node, fx.Node):
            return node
        value = next(found)
        if not isinstance(node.meta["val"], torch.Tensor):
            return int(value)
        value = torch.as_tensor(value)
        if value.is_cuda and node.meta["val"].device.type == "cpu":
            value = value.cpu()
        if order is None:
            return value
        inverse = [order.index(axis) for axis in range(len(order))]
        return value.permute(order).contiguous().permute(inverse)

    def _build(self, key: Any, arguments: Sequence[Any]) -> Any:
        from tilewright.engine.builder import build
        from tilewright.runtime.cuda.device import on_gpu_of

        if self.engines and self._release_buffers(key, arguments):
            logger.warning("torch.compile: buffers changed; they become inputs of the engine, which is built again")
            key = tuple(self._state(position, arguments[position]) for position in self.static)
        elif len(self.engines) >= MOST_ENGINES:
            if not self.given_up:
                text = "torch.compile: parameters changed %d times; from now on this graph runs in PyTorch for others"
                logger.warning(text, MOST_ENGINES)
            self.given_up = True
            return None
        elif self.engines:
            logger.warning("torch.compile: parameters changed; building the engine again")
        self.kept += [arguments[position].untyped_storage() for position in self.static]
        try:  # imported again: a rule may need the values of what was a constant so far
            graph = self._graph({position: arguments[position] for position in self.static})
            with on_gpu_of(arguments):  # whose kernels are timed there
                self.engines[key] = build(graph, target=self.target, tuning=self.tuning)
        except Exception as error:  # torch.compile promises an answer: PyTorch gives it, the log says why
            reason = error if isinstance(error, TilewrightError) else repr(error)
            logger.warning("torch.compile: a graph stays with PyTorch: the engine was not built: %s", reason)
            self.engines[key] = None
        return self.engines[key]

    def _release_buffers(self, key: Any, arguments: Sequence[Any]) -> bool:
        """Make inputs of the buffers that changed since the last engine was built, where no parameter did."""
        last = list(self.engines)[-1]
        changed = {position for position, old, new in zip(self.static, last, key, strict=True) if old != new}
        if any(isinstance(arguments[position], torch.nn.Parameter) for position in changed):
            return False
        self.static = tuple(position for position in self.static if position not in changed)
        self.engines.clear()
        self.kept.clear()
        return True

    def _graph(self, static: Mapping[int, torch.Tensor | None]) -> Graph:
        """Import the ATen graph; raises `UnsupportedOperationError` and `_Declined`."""
        placeholders = [node for node in self.gm.graph.nodes if node.op == "placeholder"]
        builder = GraphBuilder("compiled")
        symbols = SymbolTable(builder, _ranges(placeholders), squeezed_symbols(self.gm.graph))
        walker = Walker(builder, symbols, Report("compiled"), RULES | FOREIGN)
        self.names = []
        for position, node in enumerate(placeholders):
            if position not in static:
                _name_symbols(symbols, node)
        for position, node in enumerate(placeholders):
            self._placeholder(builder, symbols, walker, position, node, static)
        for node in self.gm.graph.nodes:
            if node.op == "get_attr":
                walker.values[node] = walker.constant(getattr(self.gm, str(node.target)), str(node.target))
        walker.run(self.gm.graph.nodes)
        walker.report.check()
        count = 0
        for node in self.results:
            if isinstance(node, fx.Node):
                declare_output(builder, walker.values[node], f"output_{count}")
                count += 1
        self.outputs = count
        if not count:
            raise _Declined("it has no outputs")
        return builder.finish()

    def _placeholder(
        self,
        builder: GraphBuilder,
        symbols: SymbolTable,
        walker: Walker,
        position: int,
        node: fx.Node,
        static: Mapping[int, torch.Tensor | None],
    ) -> None:
        fake = node.meta.get("val")
        if position in static:
            data = static[position]
            if data is not None:
                walker.values[node] = walker.constant(data, node.name)
            else:  # the check before the first call: shapes are enough
                assert isinstance(fake, torch.Tensor)
                zero = np.zeros((), dtype_of(fake.dtype).numpy)
                walker.values[node] = builder.constant(np.broadcast_to(zero, tuple(fake.shape)), node.name)
        elif isinstance(fake, torch.Tensor):
            try:
                shape, dtype = symbols.shape(fake.shape), dtype_of(fake.dtype)
            except Unsupported as reason:
                raise _Declined(f"argument {node.name!r}: {reason}") from reason
            walker.values[node] = builder.input(node.name, dtype, shape)
            self.names.append((position, node.name))
        elif isinstance(fake, (int, torch.SymInt)):
            try:
                walker.values[node] = symbols.size(fake)
            except Unsupported as reason:
                raise _Declined(f"the number {node.name!r} is not the size of any input") from reason
        elif node.users:
            raise _Declined(f"argument {node.name!r} is {a_kind(fake)}")


class _Watched:
    """A parameter, and what tells that it was changed: its address, version, and a sample of its bytes.

    The version alone is not enough: writes through `.data`, a NumPy view or in inference mode do not
    raise it.  The sample (`SAMPLES` words spread over the storage) sees them where they touch it, as a
    step of an optimiser or a loaded checkpoint does.  Parameters on a GPU have none.
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor
        self.address = tensor.data_ptr()
        if tensor.device.type != "cpu":
            self.sample = np.empty(0, np.uint8)  # looking at a GPU's memory would wait for the GPU
            return
        data = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage()).numpy()
        words = data[: data.size // 4 * 4].reshape(-1, 4)
        self.sample = words[:: max(1, len(words) // SAMPLES)] if len(words) else data

    def state(self) -> tuple[int, int, bytes]:
        version = 0 if self.tensor.is_inference() else self.tensor._version
        return self.address, version, self.sample.tobytes()


def _ranges(placeholders: Sequence[fx.Node]) -> dict[Any, Any]:
    """The value ranges of all symbols, from the shape environment of any symbolic argument."""
    for node in placeholders:
        value = node.meta.get("val")
        sizes = value.shape if isinstance(value, torch.Tensor) else [value]
        for size in sizes:
            if isinstance(size, torch.SymInt):
                return dict(size.node.shape_env.var_to_range)
    return {}


def _name_symbols(symbols: SymbolTable, node: fx.Node) -> None:
    fake = node.meta.get("val")
    if isinstance(fake, torch.Tensor):
        for axis, extent in enumerate(fake.shape):
            if isinstance(extent, torch.SymInt):
                symbols.name(extent.node.expr, None, f"{node.name}_{axis}")


def _stride_order(node: Any) -> list[int] | None:
    """Dimensions from the outermost in memory where PyTorch's result is not row-major, else None."""
    fake = node.meta.get("val") if isinstance(node, fx.Node) else None
    if not isinstance(fake, torch.Tensor) or fake.is_contiguous():
        return None
    hints = [int(stride.node.hint) if isinstance(stride, torch.SymInt) else int(stride) for stride in fake.stride()]
    return sorted(range(len(hints)), key=lambda axis: -hints[axis])
