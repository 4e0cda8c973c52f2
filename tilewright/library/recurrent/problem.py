"""What recurrent layers are of: cells, constants, operands and sizes that all kernels have, and what they cost."""

from __future__ import annotations

from typing import Any

from tilewright.graph.core import Node
from tilewright.graph.fusion import Group
from tilewright.graph.recurrent import GATES, SLOTS
from tilewright.library.candidate import Operand
from tilewright.library.cost import Cost, balance, estimate, expected
from tilewright.library.generated.elementwise import total_bytes
from tilewright.symbolic import Size, lift, product, simplify
from tilewright.targets.base import Target


def common_parts(anchor: Node) -> tuple[dict[str, Any], dict[str, Operand], dict[str, Size]]:
    """The constants, operands and sizes that all kernels have."""
    x, weight, initial, bias, lengths = [*anchor.inputs, None, None][:5]
    assert x is not None and weight is not None and initial is not None
    cell, functions = anchor.attributes["cell"], (*anchor.attributes["functions"], "tanh", "tanh")
    steps, directions, batch, _ = x.shape
    constants: dict[str, Any] = {
        "GATES": GATES[cell], "SLOTS": SLOTS[cell],
        "REVERSE": sum(1 << number for number, flag in enumerate(anchor.attributes["reverse"]) if flag),
        "F": functions[0], "G": functions[1], "H": functions[2],
        "BIAS": bias is not None, "LENGTHS": lengths is not None,
    }  # fmt: skip
    operands: dict[str, Operand] = {
        "x": x, "weight": weight, "initial": initial, "bias": x if bias is None else bias,
        "lengths": x if lengths is None else lengths, "out": anchor.output,
    }  # fmt: skip
    return constants, operands, {"steps": steps, "directions": directions, "batch": batch, "hidden": weight.shape[1]}


def flops_of(anchor: Node) -> Size:
    """Of the products of the state."""
    x, weight = anchor.inputs[0], anchor.inputs[1]
    assert x is not None and weight is not None
    return simplify(lift(product(x.shape[:3])) * product(weight.shape[1:]) * 2)


def cost_of(
    group: Group,
    target: Target,
    flops: Size,
    passes: Size,
    programs: Size,
    efficiency: float,
    streaming: float,
    sharers: int = 1,
) -> Cost:
    """Of a launch that reads the weights of a direction `passes` times, from beyond level 2 with a part `streaming` of
    the bandwidth there is; `sharers` threads keep a part of them each."""
    anchor, machine = group.anchor, target.machine()
    assert anchor is not None and anchor.inputs[1] is not None
    weight = anchor.inputs[1]
    size = product(weight.shape[1:])
    weight_bytes = expected(size) * weight.dtype.itemsize
    near = weight_bytes <= max(1, sharers) * machine.l2_bytes
    bandwidth = machine.l2_bandwidth if near else streaming * machine.memory
    moved = simplify(lift(total_bytes(group.inputs, group.outputs)) + lift(passes) * size * weight.dtype.itemsize)
    cost = estimate(machine, 0, flops, programs, weight.dtype, efficiency)
    used = balance(max(1, expected(programs)), machine.processors)
    return Cost(
        moved, flops, max(cost.seconds, expected(passes) * weight_bytes / bandwidth / machine.processors / used)
    )
