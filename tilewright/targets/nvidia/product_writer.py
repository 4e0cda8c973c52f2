"""Writes products by warpgroups as operations: the tiles of their operands, wgmma, and the waits for it.

A product is left under way; the first operation that needs its result has a wait in front of it, and so has every
branch and loop, and the end of a loop's body.  Accumulators that a loop only carries are still under way when the next
iteration begins (`Pipeline.flying`).
"""

from __future__ import annotations

from collections import Counter

from tilewright import dtypes
from tilewright.dtypes import DType
from tilewright.ir.core import Attribute, Operation, Region, SSAValue
from tilewright.ir.rewrite import constant_of
from tilewright.ir.types import PendingType
from tilewright.layout import LinearLayout
from tilewright.targets.gpu.layouts import CONVERSION_ATTRIBUTE, LAYOUT_ATTRIBUTE, SCALAR_REGIONS, Assignment
from tilewright.targets.gpu.memory_plan import SharedMemory
from tilewright.targets.gpu.pipelined_loop import LoopWriter
from tilewright.targets.gpu.pipelining import Pipeline
from tilewright.targets.gpu.shared_memory import Allocation
from tilewright.targets.gpu.tiles import is_tile
from tilewright.targets.nvidia.in_flight import Flight
from tilewright.targets.nvidia.warpgroup_layout import product_of, tile_swizzle


class ProductWriter(LoopWriter):
    """Writes the loops and the products of a kernel; `flight` are the products under way, by the old values."""

    def __init__(self, assignment: Assignment, memory: SharedMemory, warps: int) -> None:
        super().__init__(assignment, memory, warps)
        self.flight = Flight()
        self.uses = Counter(value for operation in assignment.function.walk() for value in operation.operands)
        self.tiles: SSAValue | None = None  # the memory of tiles that no loop copies ahead

    # Waits ---------------------------------------------------------------------------------------

    def prepare(self, operation: Operation) -> None:
        """Products that an operation needs the result of, or all before control flow, have to be done first."""
        if operation.regions and operation.opcode not in SCALAR_REGIONS:
            self.land()
        for operand in operation.operands[: 2 if self.is_warpgroup(operation) else None]:
            self.land_value(operand)

    def land(self, keep: int = 0) -> None:
        """Wait until the products of all but the `keep` newest groups of wgmma are done."""
        retired = self.flight.retire(keep)
        if not retired:
            return
        values = {value: own for group in retired for value, own in group.values.items()}
        waited = self.create("wgmma_wait", list(values.values()), {"outstanding": keep})
        for (value, own), result in zip(values.items(), waited.results, strict=True):
            self.mapping[value] = result
            self.layouts[result] = self.layouts[own]

    def land_value(self, value: SSAValue) -> None:
        """Wait for the product that a value is the result of, if it is still under way."""
        if self.flight.holds(value):
            self.land(self.flight.newer(value))

    def operations(self, region: Region) -> None:
        under_way = len(self.flight.groups)
        super().operations(region)
        if len(self.flight.groups) > under_way:
            self.land()

    # Loops ---------------------------------------------------------------------------------------

    def pending(self, value: SSAValue) -> SSAValue:
        """The accumulator of a value that may be under way."""
        found = self.mapping[value]
        if isinstance(found.type.handle, PendingType):
            return found
        attributes: dict[str, Attribute] = {"shape": found.type.shape, "dtype": found.type.dtype}
        started = self.create("wgmma_start", [found], attributes).result
        self.layouts[started] = self.assignment.layouts[value]
        return started

    def carried(self, value: SSAValue, plan: Pipeline, place: int) -> SSAValue:
        if plan.late and place in plan.flying:
            return self.pending(value)
        return super().carried(value, plan, place)

    def computed(self, loop: Operation, plan: Pipeline) -> list[SSAValue]:
        """As everywhere, but with accumulators that are still under way from the iteration before and at the end.

        All older products have retired when it ends, so that the stage that they read may be filled.
        """
        if not plan.late:
            return super().computed(loop, plan)
        (body,) = loop.regions
        arguments = [body.arguments[1 + place] for place in plan.flying]
        self.flight.carry({argument: self.mapping[argument] for argument in arguments})
        for operation in body.operations[:-1]:
            self.copy(operation)
        yielded = body.terminator.operands
        for place, value in enumerate(yielded):
            if place not in plan.flying:
                self.land_value(value)
        self.land(keep=self.flight.lasting())
        self.flight.clear()
        return [self.carried(value, plan, place) for place, value in enumerate(yielded)]

    def finish(self, loop: Operation, plan: Pipeline) -> None:
        if plan.late:
            results = [loop.results[place] for place in plan.flying]
            self.flight.carry({result: self.mapping[result] for result in results})
            self.land()

    # Products ------------------------------------------------------------------------------------

    def is_warpgroup(self, operation: Operation) -> bool:
        """Whether an operation is a product whose right operand is a tile."""
        return operation.opcode == "dot" and is_tile(self.assignment.layouts[operation.operands[1]])

    def append(self, operation: Operation) -> None:
        if self.is_warpgroup(operation):
            self.multiply(operation)
        elif CONVERSION_ATTRIBUTE in operation.attributes and is_tile(self.assignment.layouts[operation.result]):
            self.store_tile(operation)
        else:
            super().append(operation)

    def multiply(self, operation: Operation) -> None:
        a, b, accumulator = operation.operands
        layout = self.assignment.layouts[operation.result]
        own = dtypes.int32 if a.type.dtype.is_integer else dtypes.float32
        dtype = operation.result.type.dtype
        if dtype != own or self.uses[accumulator] != 1:
            self.land_value(accumulator)
        operands = self.mapped([a, b])
        if constant_of(accumulator) != 0:
            operands.append(self.converted(self.mapping[accumulator], own, layout))
        self.flight.take(accumulator)
        product = product_of(layout)
        attributes: dict[str, Attribute] = {
            "columns": product.columns if product.grid[1] > 1 else 0,
            LAYOUT_ATTRIBUTE: str(layout),
        }
        result = self.create("wgmma", operands, attributes).result
        self.layouts[result] = layout
        self.stand_for([operation.result], [result])
        self.flight.start(operation.result, result, not operands[0].type.is_handle)
        if dtype != own:
            self.land()
            number = self.converted(self.mapping[operation.result], dtype, layout)
            self.stand_for([operation.result], [number])

    def converted(self, value: SSAValue, dtype: DType, layout: LinearLayout) -> SSAValue:
        """An accumulator as numbers of a type."""
        if isinstance(value.type.handle, PendingType) or value.type.dtype == dtype:
            return value
        result = self.create("cast", [value], {"dtype": dtype, LAYOUT_ATTRIBUTE: str(layout)}).result
        self.layouts[result] = layout
        return result

    # Tiles ---------------------------------------------------------------------------------------

    def swizzle(self, layout: LinearLayout, dtype: DType) -> int:
        return tile_swizzle(layout, dtype.itemsize)

    def allocate(self) -> None:
        super().allocate()
        if self.memory.tiles:
            start, end = min(self.memory.tiles.values()), self.memory.ring
            self.tiles = self.memory_of((end - start,), start)

    def store_tile(self, operation: Operation) -> None:
        """Copy a block to its tile, when all have read what was there before."""
        assert self.tiles is not None
        layout = self.assignment.layouts[operation.result]
        self.land()
        self.synchronize()
        offset = self.memory.tiles[operation] - min(self.memory.tiles.values())
        dtype = operation.result.type.dtype
        tile = self.tile(self.tiles, offset, layout, dtype, self.swizzle(layout, dtype))
        self.create("shared_store", [tile, self.mapping[operation.operands[0]]])
        self.create("fence_async")
        self.synchronize()
        self.mapping[operation.result] = tile


def write_products(assignment: Assignment, memory: SharedMemory, warps: int) -> tuple[Assignment, Allocation]:
    """A kernel with its copies ahead, products by warpgroups, waits and barriers as operations, and what is left to
    allocate; the kernel itself where it has neither."""
    writer = ProductWriter(assignment, memory, warps)
    if not memory.loops and not any(map(writer.is_warpgroup, assignment.function.walk())):
        return assignment, memory.scratch
    return writer.write()
