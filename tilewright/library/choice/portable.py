"""The launches that choose an element of each row."""

from __future__ import annotations

from typing import Any

from tilewright.dtypes import float32, int32
from tilewright.graph.core import Graph, Value
from tilewright.graph.fusion import Group
from tilewright.launch.jit import JITFunction
from tilewright.library.candidate import Candidate, KernelCall, Operand, Stage
from tilewright.library.choice.kernel import choose_of_rows, largest_of_parts
from tilewright.library.cost import Cost, expected
from tilewright.library.generated.elementwise import total_bytes
from tilewright.library.generated.generate import next_power_of_2
from tilewright.symbolic import Size, ceil_divide, upper_bound
from tilewright.targets.base import Target

_BLOCK = 4096  # elements that a CTA has in registers
_SHARE = 2 * _BLOCK  # of a row, that a CTA looks at
_CHOICE_THREADS = 256
_HISTORY = ("histories", "presences", "frequencies", "repetitions", "seen", "biases")


def choice(group: Group, graph: Graph, target: Target) -> list[Candidate]:
    """The largest of each part of a row, then of each row; raises `NotImplementedError` where the group holds other
    nodes."""
    anchor = group.anchor
    assert anchor is not None
    if group.nodes != [anchor]:
        raise NotImplementedError(f"{group.name}: a choice has no slots")
    names = ("logits", "temperatures", "shares", "floors", "portions", "counts", *_HISTORY)
    operands = {name: value for name, value in zip(names, anchor.inputs, strict=True) if value is not None}
    rows, columns = operands["logits"].shape
    block = min(_BLOCK, max(16, next_power_of_2(upper_bound(columns))))
    share = min(_SHARE, -(-upper_bound(columns) // block) * block)
    parts = ceil_divide(columns, share)
    values = Value(f"{group.name}.values", float32, (rows, parts))
    places = Value(f"{group.name}.places", int32, (rows, parts))
    scores = Value(f"{group.name}.scores", float32, (rows, columns))
    given = {**operands, "scores": scores, "values": values, "places": places, "out": anchor.output}
    width = max(2, next_power_of_2(upper_bound(parts)))
    calls = (
        _call(largest_of_parts, given, parts, {"SHARE": share, "BLOCK": block}, (parts, rows, 1)),
        _call(choose_of_rows, given, parts, {"PARTS": width, "BLOCK": block}, (rows, 1, 1)),
    )
    moved = total_bytes(group.inputs, group.outputs)
    machine = target.machine()
    cost = Cost(moved, 0, 2 * machine.launches.kernel + expected(moved) / machine.memory)
    reasons = {"part": f"{share} elements", "launches": 2}
    return [Candidate("choice", tuple(Stage((call,)) for call in calls), cost, (values, places, scores), reasons)]


def _call(
    kernel: JITFunction, given: dict[str, Value], parts: Size, constants: dict[str, Any], grid: tuple[Size, Size, Size]
) -> KernelCall:
    operands: dict[str, Operand] = {name: value for name, value in given.items() if name in kernel.argument_names}
    operands |= {"columns": given["logits"].shape[1], "parts": parts}
    types = {"columns": "i32", "parts": "i32"}
    return KernelCall(kernel, operands, types, constants, grid, threads=_CHOICE_THREADS)
