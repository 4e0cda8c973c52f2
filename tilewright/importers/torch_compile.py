"""`torch.compile(model, backend="tilewright")`.

Dynamo hands over one graph at a time (graph breaks stay with PyTorch).  Each goes through AOT functionalisation to
ATen, is surveyed (`torch_survey`) and divided (`torch_partition`), and its parts become engines (`torch_part`):
parameters and buffers are their constants (buffers that change are inputs), dynamic sizes their symbols.  What cannot
be compiled runs in PyTorch, with a report on the logger "tilewright" that names operations, lines and reasons.
"""

from __future__ import annotations

import functools
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from functorch.compile import make_boxed_func
from torch import fx
from torch._decomp import core_aten_decompositions
from torch._dynamo.exc import TorchDynamoException
from torch._dynamo.resume_execution import TORCH_DYNAMO_RESUME_IN_PREFIX
from torch._dynamo.symbolic_convert import InstructionTranslator
from torch._functorch.aot_autograd import aot_module_simplified
from torch._guards import TracingContext
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from tilewright.build.quick_start import check_quick_start
from tilewright.build.tuning import Tuning
from tilewright.errors import MissingDependencyError, TilewrightError, UnsupportedOperationError
from tilewright.importers.report import ImportProblem
from tilewright.importers.torch_export import WHOLE_OPERATORS
from tilewright.importers.torch_flex import flex_attention_in_operators
from tilewright.importers.torch_fx import source_of, target_name
from tilewright.importers.torch_lists import each_of_lists
from tilewright.importers.torch_nodes import is_getitem
from tilewright.importers.torch_part import EnginePart, NotImported, PartSettings
from tilewright.importers.torch_partition import Partition
from tilewright.importers.torch_survey import Survey
from tilewright.importers.torch_upsampling import whole_upsampling
from tilewright.precision import IEEE, TF32
from tilewright.targets.registry import get_target

logger = logging.getLogger("tilewright")

MOST_DIVISIONS = 12  # of one graph, in the search for the operations without which its engines can be built
_LISTED = 12  # operations that a report lists
# Kept whole: the numbers of random operations are PyTorch's only where its own kernels draw them, and what PyTorch
# decomposes attention on CPUs to does not give the sums that its backward operation reads.
_WHOLE_NAMES = (
    "_scaled_dot_product_flash_attention_for_cpu", "bernoulli", "native_dropout", "normal", "rand_like", "randint",
    "randint_like", "randn_like", "uniform",
)  # fmt: skip


class _Declined(Exception):
    """The graph stays with PyTorch; the message says why."""


def backend(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """Compile one Dynamo graph.

    `options` may hold ``target``, ``precision``, ``effort``, ``vendor`` and ``quick_start`` (as in
    `tilewright.compile`; quick starts are those of graphs on CPUs), and ``fallback``: ``"error"`` instead of
    ``"torch"`` raises where an operation would stay with PyTorch.  Without a target and a precision, PyTorch's
    ``set_float32_matmul_precision`` tells the precision on GPUs.

    The mode ``max-autotune`` stands for an effort of 2 with products and convolutions of PyTorch (and of cuBLASLt and
    cuDNN, where their bindings are installed) as candidates.
    Never raises for what it cannot compile: PyTorch runs that, and the reason is logged.  With ``fullgraph=True`` or
    ``{"fallback": "error"}`` the call raises `UnsupportedOperationError` instead, but not for what is always PyTorch's
    (random draws, and sizes and numbers that are read from data).  An unknown option raises
    `TilewrightError`, and so does an effort, target or fallback that does not exist.
    """
    settings = dict(options or {})
    target, precision = settings.pop("target", "auto"), settings.pop("precision", None)
    thorough = str(mode).startswith("max-autotune")
    effort, vendor = settings.pop("effort", 2 if thorough else None), bool(settings.pop("vendor", thorough))
    quick_start = bool(settings.pop("quick_start", False))
    fallback = settings.pop("fallback", "error" if _wants_full_graph() else "torch")
    if settings:
        known = "target, precision, effort, vendor, quick_start, fallback"
        raise TilewrightError(f"unknown options {sorted(settings)} for the tilewright backend; known: {known}")
    if fallback not in ("torch", "error"):
        raise TilewrightError(f"unknown fallback {fallback!r} for the tilewright backend; known: 'torch', 'error'")
    tuning = Tuning(effort, libraries=vendor)
    if target != "auto" or precision is not None:
        get_target("cpu" if target == "auto" else target, precision or IEEE)
    if quick_start:
        check_quick_start(target, tuning)
    strict = fallback == "error"
    try:
        device = _check_tensors(gm, example_inputs)
        kind = device.partition(":")[0]
        place = kind if target == "auto" else str(target)
        precision = precision or (_precision_on(kind) if target == "auto" else IEEE)
        _fix_head_widths(gm)
        chosen = PartSettings(place, precision, tuning, strict, quick_start and get_target(place).compiles_quickly)
        compiler = _Compiler(device, chosen, _overlap(example_inputs), not strict and _is_between_breaks(gm))
        run = _compile(gm, example_inputs, compiler)
        # What stays whole runs as it is: AOT's steps around it take time.
        return gm.forward if compiler.left_whole and not strict else run
    except (MissingDependencyError, TorchDynamoException):  # Dynamo's own tell it to try again, or what to do
        raise
    except Exception as error:  # of AOT too, which cannot trace the gradients of some graphs that run well without them
        reason = error if isinstance(error, (_Declined, TilewrightError)) else f"{type(error).__name__}: {error}"
        message = f"torch.compile: a graph of {_operations(gm)} operations stays with PyTorch: {reason}"
        if strict:
            return functools.partial(_refuse, message)
        logger.warning("%s", message)
        return gm.forward


def _compile(gm: fx.GraphModule, example_inputs: Sequence[Any], compiler: _Compiler) -> Callable[..., Any]:
    """AOT with the compiler for inference graphs; of training graphs the forward half is compiled."""

    def forward(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        _tell_of_gradients()
        return compiler(gm, constants=False)

    def backward(graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        run: Callable[..., Any] = torch._dynamo.disable(make_boxed_func(graph.forward))
        return run

    with flex_attention_in_operators(), whole_upsampling():
        return aot_module_simplified(
            gm,
            example_inputs,
            fw_compiler=forward,
            bw_compiler=torch._dynamo.disable(backward),
            inference_compiler=lambda graph, inputs: compiler(graph, constants=True),
            decompositions=decompositions(),
        )


@functools.cache
def _tell_of_gradients() -> None:
    logger.warning(
        "torch.compile: gradients are enabled and may be asked for: the engines keep what the backward pass needs, "
        "parameters are their inputs, and PyTorch runs the backward pass. For inference call the model under "
        "torch.inference_mode() or torch.no_grad(), or call requires_grad_(False) on it (this is said once)"
    )


def decompositions() -> dict[Any, Any]:
    """Core ATen without the composites that the graph has ops for and those that PyTorch must run as they are."""
    table = dict(core_aten_decompositions())
    for name in (*WHOLE_OPERATORS, *_WHOLE_NAMES):
        packet = getattr(torch.ops.aten, name)
        for overload in packet.overloads():
            table.pop(getattr(packet, overload), None)
    return table | each_of_lists()


def _refuse(message: str, *arguments: Any, **named: Any) -> Any:
    """What runs a graph that was to be compiled as a whole: the call gets the error as it is."""
    raise UnsupportedOperationError(message)


def _wants_full_graph() -> bool:
    """Whether the graph that Dynamo hands over just now is compiled with ``fullgraph=True``."""
    try:
        return bool(InstructionTranslator.current_tx().one_graph)
    except (AttributeError, LookupError):  # called by something else than Dynamo
        return False


def _is_between_breaks(gm: fx.GraphModule) -> bool:
    """Whether Dynamo made a graph of a piece of a function, and PyTorch runs what comes after it, or came before."""
    reason = getattr(gm, "compile_subgraph_reason", None)
    if reason is not None and reason.graph_break:
        return True
    try:
        return InstructionTranslator.current_tx().f_code.co_name.startswith(TORCH_DYNAMO_RESUME_IN_PREFIX)
    except (AttributeError, LookupError):  # called by something else than Dynamo
        return False


def _operations(gm: fx.GraphModule) -> int:
    return sum(node.op.startswith("call_") for node in gm.graph.nodes)


def _check_tensors(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> str:
    """The device that the engines of a graph are for, such as ``cpu`` or ``cuda:0``; raises `_Declined`.

    That is the GPU with most of the graph's tensors where there is one.
    """
    tensors = [item for item in (*example_inputs, *gm.parameters(), *gm.buffers()) if isinstance(item, torch.Tensor)]
    odd = {type(tensor) for tensor in tensors if not isinstance(tensor, torch.nn.Parameter)}
    odd -= {torch.Tensor, FakeTensor}
    if odd:
        raise _Declined(f"it has tensors of the class {min(kind.__name__ for kind in odd)}; call it with plain tensors")
    values = [node.meta.get("example_value") for node in gm.graph.nodes]
    tensors += [value for value in values if isinstance(value, torch.Tensor)]
    devices = Counter(str(tensor.device) for tensor in tensors)
    gpus = {name: count for name, count in devices.items() if name.startswith("cuda")}
    if gpus:
        return max(gpus, key=lambda name: (gpus[name], name))
    if devices and "cpu" not in devices:
        name = min(devices)
        raise _Declined(f"it has tensors on {name}; this backend compiles for CPUs and NVIDIA GPUs")
    return "cpu"


def _fix_head_widths(gm: fx.GraphModule) -> None:
    """Make numbers of the head widths of attention, which kernels are made for: another width is compiled anew."""
    graphs = [module.graph for module in gm.modules() if isinstance(module, fx.GraphModule)]
    for node in (node for graph in graphs for node in graph.nodes):
        if node.target is torch.nn.functional.scaled_dot_product_attention:
            given = [*node.args[:3], *(node.kwargs[name] for name in ("query", "key", "value") if name in node.kwargs)]
            for width in (each.meta["example_value"].shape[-1] for each in given):
                if isinstance(width, torch.SymInt) and not free_unbacked_symbols(width):
                    for symbol in width.node.expr.free_symbols:
                        width.node.shape_env.evaluate_expr(symbol)  # makes a guard


def _precision_on(device: str) -> str:
    """The precision of float32 on a kind of device: PyTorch's choice of tf32 holds on GPUs."""
    return TF32 if device == "cuda" and torch.get_float32_matmul_precision() != "highest" else IEEE


def _overlap(example_inputs: Sequence[Any]) -> bool:
    """Whether two different arguments have elements of the same memory (or lie between each other's)."""
    tensors = [item for item in example_inputs if isinstance(item, torch.Tensor) and item.layout is torch.strided]
    shared = Counter(tensor.untyped_storage()._cdata for tensor in tensors)
    spans: dict[int, list[tuple[Any, Any]]] = {}
    for tensor in tensors:
        key = tensor.untyped_storage()._cdata
        if shared[key] == 1 or tensor.numel() == 0:
            continue
        size, first = tensor.element_size(), tensor.storage_offset() * tensor.element_size()
        reach = sum((extent - 1) * step for extent, step in zip(tensor.shape, tensor.stride(), strict=True))
        span = (first, first + (reach + 1) * size)
        if any(span[0] < end and start < span[1] for start, end in spans.get(key, ())):
            return True
        spans.setdefault(key, []).append(span)
    return False


class _Compiler:
    """AOT's inner compiler for one graph, some of whose arguments may `overlap`.

    `left_whole` says whether it left all of the graph to PyTorch.
    """

    def __init__(self, device: str, settings: PartSettings, overlap: bool, between_breaks: bool) -> None:
        self.device = device
        self.settings = settings
        self.overlap = overlap
        self.between_breaks = between_breaks
        self.left_whole = False
        self.divisions = 0

    def __call__(self, gm: fx.GraphModule, constants: bool) -> Callable[..., Any]:
        """What runs a graph; its parameters are constants, or inputs like all others."""
        placeholders = gm.graph.find_nodes(op="placeholder")
        context = TracingContext.try_get()
        about = context.fw_metadata if context is not None else None
        changed = set() if about is None else {i for i, item in enumerate(about.input_info) if item.mutates_data}
        if changed and self.overlap:  # AOT reads all of them from one tensor, at the offsets of this call
            raise _Declined(
                "arguments share memory that it changes, whose places PyTorch does not check at later calls"
            )
        # AOT knows where parameters and buffers are, which may be several tensors each.
        static = set(about.static_input_indices) - changed if constants and about is not None else set()
        module, survey, problems = self._divide(gm, {placeholders[position] for position in static})
        if survey.refused and self.settings.strict:
            return make_boxed_func(functools.partial(_refuse, problems))
        if problems:
            level = logging.WARNING if survey.stays and not self.settings.strict else logging.INFO
            logger.log(level, "%s", problems)
        return make_boxed_func(module.forward)

    def _divide(self, gm: fx.GraphModule, constants: set[fx.Node]) -> tuple[fx.GraphModule, Survey, str]:
        """The module that runs a graph by engines and PyTorch, and what stays with PyTorch, with the report of it."""
        nodes = {node.name: node for node in gm.graph.nodes}
        known: dict[fx.Node, ImportProblem] = {}
        while True:
            survey = Survey(gm, constants, self.device, known)
            partition = Partition(gm, constants, survey.is_kept, between_breaks=self.between_breaks)
            self.left_whole = not partition.parts
            try:
                module = partition.assemble(self._part)
            except NotImported as refused:  # what a rule knew of a graph as a whole, it may not know of a part
                known |= {nodes[problem.node]: problem for problem in refused.problems}
                continue
            return module, survey, _report(survey, partition)

    def _part(self, gm: fx.GraphModule, constants: list[int]) -> EnginePart:
        return EnginePart(gm, constants, self.settings, self._without)

    def _without(self, part: EnginePart, reason: str) -> Callable[..., Any] | None:
        """What runs a part for which no engine was built: two parts of half its operations; None for PyTorch alone."""
        placeholders = part.gm.graph.find_nodes(op="placeholder")
        constants = {placeholders[position] for position in part.constants}
        work = Partition(part.gm, constants, lambda node: False).work
        if len(work) > 1 and self.divisions < MOST_DIVISIONS:
            self.divisions += 1
            halves = Partition(part.gm, constants, lambda node: False, first=frozenset(work[: len(work) // 2]))
            try:
                run: Callable[..., Any] = halves.assemble(self._part).forward
                return run
            except NotImported as refused:
                reason = refused.problems[0].reason
        names = ", ".join(f"{target_name(node.target)} of {source_of(node) or node.name!r}" for node in work[:3])
        text = "torch.compile: a part of %d operations stays with PyTorch (%s): the engine was not built: %s"
        logger.warning(text, len(work), names, reason)
        return None


def _report(survey: Survey, partition: Partition) -> str:
    """What stays with PyTorch, and why; nothing where all is compiled."""
    if not survey.stays and partition.small:
        operations = _counted(len(partition.small), "operation")
        return f"torch.compile: {operations} between graph breaks stay with PyTorch: too little work for an engine"
    if not survey.stays:
        return ""
    compiled = {node for part in partition.parts for node in part.members if part.results and not is_getitem(node)}
    count, small = len(survey.stays) + len(partition.small), len(partition.small)
    among = f", {small} of them in parts too small for an engine" if small else ""
    lines = [
        f"torch.compile: compiled: {_counted(len(compiled), 'operation')} in "
        f"{_counted(len(partition.parts), 'engine')}; "
        f"what stays with PyTorch: {_counted(count, 'operation')}{among}"
    ]
    problems: Counter[ImportProblem] = Counter(replace(problem, node="") for problem in survey.stays.values())
    names = {replace(problem, node=""): problem for problem in reversed(survey.stays.values())}
    for number, (problem, times) in enumerate(problems.items(), start=1):
        if number > _LISTED:
            lines.append(f"and {len(problems) - _LISTED} more")
            break
        lines.append(f"{number}. " + (f"{times} times, first: " if times > 1 else "") + names[problem].text())
    return "\n\n".join(lines)


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
