"""Runs a graph group by group through the tactics, in the interpreter or as machine code.

What the engine does with a plan, done plainly: every value is an array of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tilewright.dtypes import DType
from tilewright.graph.core import Graph, Value
from tilewright.graph.fusion import Group
from tilewright.graph.passes.fuse import fuse
from tilewright.graph.reference import bind_symbols
from tilewright.graph.reference import run as reference
from tilewright.graph.updates import replaces_input
from tilewright.ir.interpreter import run as interpret
from tilewright.launch.arguments import classify
from tilewright.library import packing
from tilewright.library.candidate import Candidate, KernelCall, PackedConstant, TensorPart
from tilewright.library.select import candidates, choose
from tilewright.symbolic import evaluate
from tilewright.targets.cpu.target import CPUTarget

TARGET = CPUTarget.named("x86-64-v4")


class Memory:
    """The arrays of all values of one run."""

    def __init__(self, graph: Graph, inputs: Mapping[str, np.ndarray]) -> None:
        self.graph = graph
        self.symbols = bind_symbols(graph, inputs)
        self.arrays: dict[Value, np.ndarray] = dict(graph.constants)
        for value in graph.inputs:
            self.arrays[value] = np.ascontiguousarray(inputs[value.name]).copy()

    def array(self, value: Value) -> np.ndarray:
        """A value's array; made, full of rubbish, when it is first written."""
        if value not in self.arrays:
            shape = tuple(evaluate(extent, self.symbols) for extent in value.shape)
            fill: Any = np.nan if value.dtype.is_float else 77
            self.arrays[value] = np.full(shape, fill).astype(value.dtype.numpy)
        return self.arrays[value]

    def operand(self, operand: Any) -> Any:
        if isinstance(operand, Value):
            return self.array(operand)
        if isinstance(operand, TensorPart):
            return self.array(operand.value).reshape(-1)[operand.offset :]
        if isinstance(operand, PackedConstant):
            packed = packing.apply(operand.recipe, self.graph.constants[operand.value])
            return packed.reshape(-1)[operand.offset :] if operand.offset else packed
        return operand if isinstance(operand, float) else evaluate(operand, self.symbols)


def parameter_types(call: KernelCall) -> dict[str, Any]:
    """The types of a call's run-time parameters, by parameter name."""
    types: dict[str, Any] = {}
    more = next((parameter.name for parameter in call.kernel.parameters if parameter.kind == "variadic"), "")
    extra: dict[int, str] = {}
    for name, operand in call.operands.items():
        dtype: DType | None = None
        if isinstance(operand, Value):
            dtype = operand.dtype
        elif isinstance(operand, (PackedConstant, TensorPart)):
            dtype = operand.value.dtype
        text = f"*{dtype}" if dtype is not None else call.types[name]
        if more and name.startswith(f"{more}_"):
            extra[int(name.removeprefix(f"{more}_"))] = text
        else:
            types[name] = text
    if more:
        types[more] = tuple(extra[position] for position in range(len(extra)))
    return types


def run_call(call: KernelCall, memory: Memory, compiled: bool) -> None:
    """One launch."""
    grid = tuple(evaluate(extent, memory.symbols) for extent in call.grid)
    types = parameter_types(call)
    if compiled:
        kernel = call.kernel.compile(types, call.constants, target="auto")
        arguments = [memory.operand(call.operands[name]) for name in _order(call, types)]
        kernel.run(grid, [classify(argument)[1] for argument in arguments])
        return
    function = call.kernel.trace(types, call.constants)
    names = [parameter.name for parameter in function.parameters]
    interpret(function, [memory.operand(call.operands[name]) for name in names], grid, check=True)


def _order(call: KernelCall, types: Mapping[str, Any]) -> list[str]:
    names: list[str] = []
    for parameter in call.kernel.parameters:
        if parameter.kind == "variadic":
            names += [f"{parameter.name}_{position}" for position in range(len(types[parameter.name]))]
        elif parameter.name in types:
            names.append(parameter.name)
    return names


Choice = Callable[[Sequence[Candidate]], Candidate]


def run_group(
    group: Group, memory: Memory, compiled: bool, target: CPUTarget, choice: Choice = choose
) -> Candidate | None:
    """Compute one group's outputs; returns what was chosen (None for a view)."""
    graph = memory.graph
    if group.kind == "view":
        for node in group.nodes:
            assert node.inputs[0] is not None
            shape = tuple(evaluate(extent, memory.symbols) for extent in node.output.shape)
            memory.arrays[node.output] = memory.array(node.inputs[0]).reshape(shape)
        return None
    for node in group.nodes:
        if node.op == "scatter_update" and replaces_input(node, graph):
            assert node.inputs[0] is not None
            memory.arrays[node.output] = memory.array(node.inputs[0])
    candidate = choice(candidates(group, graph, target))
    for stage in candidate.stages:
        for call in stage.calls:
            if call.condition is None or evaluate(call.condition[0], memory.symbols) <= call.condition[1]:
                run_call(call, memory, compiled)
                break
    return candidate


def run_graph(
    graph: Graph,
    inputs: Mapping[str, np.ndarray],
    compiled: bool = False,
    target: CPUTarget = TARGET,
    choice: Choice = choose,
    row_programs: bool = False,
) -> tuple[dict[str, np.ndarray], list[Candidate]]:
    """The outputs of a graph, and the candidates that computed them: those of `target`, compiled for this machine."""
    memory = Memory(graph, inputs)
    chosen = [
        run_group(group, memory, compiled, target, choice)
        for group in fuse(graph, replace(target.kernels, row_programs=row_programs)).groups
    ]
    outputs = {name: memory.array(value) for name, value in zip(graph.output_names, graph.outputs, strict=True)}
    return outputs, [candidate for candidate in chosen if candidate is not None]


def check(
    graph: Graph, inputs: Mapping[str, np.ndarray], compiled: bool = False, tolerance: float = 1e-5,
    target: CPUTarget = TARGET, choice: Choice = choose, row_programs: bool = False,
) -> list[Candidate]:  # fmt: skip
    """Run a graph and compare every output with the float64 reference."""
    outputs, chosen = run_graph(graph, inputs, compiled, target, choice, row_programs)
    expected = reference(graph, inputs)
    for name, actual in outputs.items():
        wanted = expected[name]
        assert actual.shape == wanted.shape, name
        if actual.dtype.kind in "biu":
            np.testing.assert_array_equal(actual, wanted, err_msg=name)
        else:
            scale = max(1.0, float(np.nanmax(np.abs(wanted), initial=0.0)))
            np.testing.assert_allclose(actual, wanted, rtol=tolerance, atol=tolerance * scale, err_msg=name)
    return chosen


class Draw:
    """Random arrays."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng

    def __call__(self, *shape: int) -> np.ndarray:
        return self.rng.standard_normal(shape).astype(np.float32)

    def integers(self, low: int, high: int, shape: tuple[int, ...]) -> np.ndarray:
        return self.rng.integers(low, high, shape)
