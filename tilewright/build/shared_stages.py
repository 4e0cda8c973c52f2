"""Launches that several groups of a graph would repeat: what the first one writes serves all.

Two products that read the same tensor in three bfloat16 parts split it alike, as do convolutions that copy one image to
the same form. The candidate of each brings the launch along; when all are chosen, equal ones become one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tilewright.graph.core import Graph, Value
from tilewright.graph.fusion import Group
from tilewright.library.candidate import Candidate, KernelCall, Operand, Stage, TensorPart, TiledOperand

Scheduled = tuple[Group, Candidate | None]


@dataclass(frozen=True)
class _Made:
    """What a launch writes, and all that tells the launch from others."""

    value: Value
    description: tuple[Any, ...]


def with_shared_stages(graph: Graph, scheduled: Sequence[Scheduled]) -> list[Scheduled]:
    """The groups, of which later ones read what an earlier one has made of the same tensors in the same way."""
    roots: dict[Value, Value] = {}
    known: list[_Made] = []
    found: list[Scheduled] = []
    for group, candidate in scheduled:
        if candidate is None:
            (source,) = group.inputs
            roots |= dict.fromkeys(group.outputs, roots.get(source, source))
        else:
            group, candidate = _with_known(group, candidate, known, roots, graph)
        found.append((group, candidate))
    return found


def _with_known(
    group: Group, candidate: Candidate, known: list[_Made], roots: Mapping[Value, Value], graph: Graph
) -> tuple[Group, Candidate]:
    """A group that reads what is `known` to be there; what it makes itself is known from then on."""
    stages, borrowed = list[Stage](), dict[Value, Value]()
    for position, stage in enumerate(candidate.stages):
        made = _made(group, candidate, position, roots, graph)
        same = None if made is None else next((other for other in known if _is_same(made, other)), None)
        if made is not None and same is not None:
            borrowed[made.value] = same.value
            continue
        if made is not None:
            known.append(made)
        stages.append(Stage(tuple(_reading(call, borrowed) for call in stage.calls)) if borrowed else stage)
    if not borrowed:
        return group, candidate
    temporaries = tuple(value for value in candidate.temporaries if value not in borrowed)
    group = replace(group, inputs=[*group.inputs, *dict.fromkeys(borrowed.values())])
    return group, replace(candidate, stages=tuple(stages), temporaries=temporaries)


def _is_same(made: _Made, other: _Made) -> bool:
    alike = made.value.shape == other.value.shape and made.value.dtype == other.value.dtype
    return alike and made.description == other.description


def _made(
    group: Group, candidate: Candidate, position: int, roots: Mapping[Value, Value], graph: Graph
) -> _Made | None:
    """What a stage makes of the group's inputs alone; None where it does anything else, or inputs change."""
    first, *others = candidate.stages[position].calls
    values = {name: operand for name, operand in first.operands.items() if isinstance(operand, Value)}
    written = [value for value in values.values() if value in candidate.temporaries]
    before = {value for stage in candidate.stages[:position] for call in stage.calls for value in _values(call)}
    if others or position == len(candidate.stages) - 1 or len(written) != 1 or written[0] in before:
        return None
    read = [value for value in values.values() if value is not written[0]]
    if any(value not in group.inputs or roots.get(value, value) in graph.mutations for value in read):
        return None
    return _Made(written[0], _description(first, values, written[0], roots)) if _is_plain(first, values) else None


def _is_plain(call: KernelCall, values: Mapping[str, Value]) -> bool:
    """Whether operands are whole tensors and sizes alone."""
    return all(name in values or name in call.types for name in call.operands)


def _description(
    call: KernelCall, values: Mapping[str, Value], written: Value, roots: Mapping[Value, Value]
) -> tuple[Any, ...]:
    """All of a launch but what it writes. Sizes are compared as text: equal ones are written alike."""
    sizes = {name: str(operand) for name, operand in call.operands.items() if name not in values}
    tensors = {name: id(roots.get(value, value)) for name, value in values.items() if value is not written}
    options = (sorted(call.options.items()), call.threads, call.evenly, call.planes)
    return (call.kernel, sizes, tensors, call.types, call.constants, str(call.grid), options)


def _values(call: KernelCall) -> list[Value]:
    """The tensors that a launch reads or writes."""
    found = [operand if isinstance(operand, Value) else getattr(operand, "value", None)
             for operand in call.operands.values()]  # fmt: skip
    return [value for value in found if isinstance(value, Value)]


def _reading(call: KernelCall, borrowed: dict[Value, Value]) -> KernelCall:
    """A launch that reads other tensors in place of those it would have made."""

    def instead(operand: Operand) -> Operand:
        if isinstance(operand, Value):
            return borrowed.get(operand, operand)
        if isinstance(operand, (TiledOperand, TensorPart)) and isinstance(operand.value, Value):
            return replace(operand, value=borrowed.get(operand.value, operand.value))
        return operand

    return replace(call, operands={name: instead(operand) for name, operand in call.operands.items()})
