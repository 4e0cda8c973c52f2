"""The layout rules of NVIDIA's operations: products by tensor cores, and the explicit operations."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from tilewright.ir.core import Operation
from tilewright.targets.gpu.accesses import load_of, loaded
from tilewright.targets.gpu.assigner import Assigner, Rule
from tilewright.targets.gpu.dot_scalar_layout import multiply_add
from tilewright.targets.gpu.layout_rules import LAYOUT_RULES
from tilewright.targets.nvidia import dot_layout, warpgroup_layout
from tilewright.targets.nvidia.dot_layout import instruction_of
from tilewright.targets.nvidia.explicit import layout_rules as explicit_rules
from tilewright.targets.nvidia.target import NvidiaTarget


def layout_rules(target: NvidiaTarget, warpgroups: bool = True) -> Mapping[str, Rule]:
    """The rules of a target; without `warpgroups` products are done warp by warp, also where it could do otherwise."""
    dot = partial(_dot, target, warpgroups and target.wgmma)
    return {**LAYOUT_RULES, **explicit_rules.RULES, "dot": dot}


def _dot(target: NvidiaTarget, warpgroups: bool, assigner: Assigner, operation: Operation) -> None:
    """As the instruction wants it; of several widths the one that is cheapest for what the operands come from."""
    if warpgroups and _warpgroup_dot(target, assigner, operation):
        return
    instruction = instruction_of(operation, target)
    accumulator = operation.operands[2]
    if instruction is None:
        multiply_add(assigner, operation)
        return
    rows, columns = accumulator.type.shape
    grid = dot_layout.warp_grid(rows, columns, assigner.warps, operation in assigner.chained)
    streamed = all(map(loaded, operation.operands[:2]))
    choices = [
        dot_layout.product_layouts(operation, instruction, grid, width)
        for width in dot_layout.widths(operation, instruction, streamed=streamed)
    ]

    def cost(layouts: dot_layout.ProductLayouts) -> float:
        pairs = zip(operation.operands, (layouts.a, layouts.b), strict=False)
        return sum(assigner.moved([value], layout) for value, layout in pairs)

    chosen = min(choices, key=cost)
    assigner.require(operation, [chosen.a, chosen.b, chosen.accumulator])
    assigner.anchor(operation.result, chosen.accumulator)


def _warpgroup_dot(target: NvidiaTarget, assigner: Assigner, operation: Operation) -> bool:
    """Lay a product out for wgmma, if it is one; operands in shared memory are wanted in the layout of a tile."""
    chained, lasting = operation in assigner.chained, operation in assigner.lasting
    product = warpgroup_layout.warpgroup_product(operation, target, assigner.warps, chained, lasting)
    operands = operation.operands[:2]
    if product is None or any(value in assigner.flexible for value in operands):
        return False
    for load in map(load_of, operands):
        if load and load.result in assigner.open:  # tiles are copied as memory has them, small ones too
            assigner.demand(load.result, assigner.coalesced(load))
    homes = [assigner.settle(value) for value in operands]
    layouts = warpgroup_layout.operand_layouts(operation, product, homes, loaded(operands[0]))
    if layouts is not None:
        assigner.require(operation, [*layouts, product.accumulator()])
        assigner.anchor(operation.result, product.accumulator())
    return layouts is not None
