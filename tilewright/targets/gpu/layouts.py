"""Layout assignment: which registers of which threads hold each block, and where blocks are converted.

    assignment = assign(function, target, warps=4)
    assignment.layouts[value]           a `LinearLayout` for every block
    assignment.function                 the kernel with its conversions written out

Blocks fall into three kinds.

    anchored    loads, results of products and reductions, and what is computed from them: their layout is decided
                where they are defined, by what the access wants or by the operand that is dearest to convert
    flexible    ranges, splats, broadcasts and cheap arithmetic on those (addresses, masks): computed again in every
                layout that some user wants, because that is cheaper than moving them
    open        carried by a loop or a branch, or dear to compute again, and not tied to an anchored block yet: the
                first user that wants a layout decides

Decisions are made in program order (`Assigner`), then wishes are collected backwards (`_Wishes`), then the kernel is
written again with a copy of every flexible block for each layout that is wanted of it, and with a conversion, a
`permute` that changes no order but has the attribute `gpu.conversion`, for every other block that is wanted
elsewhere (`_LayoutWriter`).  The layouts are also written on the operations (`gpu.layout`), so that the printed kernel
shows them and runs in the interpreter like any other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tilewright.ir.core import Attribute, Function, Operation, Region, SSAValue
from tilewright.ir.rewrite import Rebuilder
from tilewright.layout import LinearLayout
from tilewright.passes.axis_info import AxisInfo, analyze_axes
from tilewright.targets.gpu.accesses import (
    chained_products,
    combined_axes,
    only_moves,
    plan_accesses,
    products_with_lasting_operands,
    scanned_axes,
)
from tilewright.targets.gpu.assigner import Assigner, Rule, stored_reductions
from tilewright.targets.gpu.layout_rules import LAYOUT_RULES
from tilewright.targets.gpu.target import SimtTarget
from tilewright.targets.gpu.tiles import is_tile
from tilewright.targets.gpu.transfer import conversion_plan, element_bits, operand_layout

LAYOUT_ATTRIBUTE = "gpu.layout"
CONVERSION_ATTRIBUTE = "gpu.conversion"
_COPIED = "copied ahead for multiply-adds"  # conversions that are reads of what a loop has copied, and nothing else

SCALAR_REGIONS = ("reduce", "scan", "map")  # whose regions are of scalars, run for many elements


@dataclass(frozen=True)
class Assignment:
    """The kernel with its conversions, the layout of every block of it, and what is known of its numbers."""

    function: Function
    layouts: Mapping[SSAValue, LinearLayout]
    facts: Mapping[SSAValue, AxisInfo]
    working: Mapping[Operation, LinearLayout]  # of operations that have a layout of their own: accesses, scans …
    target: SimtTarget


def assign(
    function: Function,
    target: SimtTarget,
    warps: int,
    rules: Mapping[str, Rule] = LAYOUT_RULES,
    copied: bool = False,
) -> Assignment:
    """Layouts for a kernel run by `warps` warps (roles of explicit kernels: as many as the role has).

    `rules` are those of the target's operations.  With `copied`, products by multiply-add are laid out for operands
    that their loops copy ahead.  Raises `CompilationError` at the user's line for an operation that no rule knows.
    """
    facts = analyze_axes(function)
    assigner = Assigner(target.warp_threads, warps, facts, plan_accesses(function, facts), rules)
    assigner.chained = chained_products(function)
    assigner.lasting = products_with_lasting_operands(function)
    assigner.combined = combined_axes(function)
    assigner.scanned = scanned_axes(function)
    assigner.stored = stored_reductions(function)
    assigner.only_moves = only_moves(function)
    assigner.copied = copied
    assigner.region(function.region)
    assigner.finish()
    wishes = _Wishes(assigner)
    wishes.region(function.region)
    writer = _LayoutWriter(assigner, wishes.wanted)
    written = writer.run(function)
    return Assignment(written, writer.layouts, analyze_axes(written), writer.working, target)


def is_copied(operation: Operation) -> bool:
    """Whether an operation is a conversion that a loop has to copy ahead for, since nothing else does it."""
    return operation.attributes.get(CONVERSION_ATTRIBUTE) == _COPIED


# Wishes ------------------------------------------------------------------------------------------


class _Wishes:
    """Walks backwards: `wanted` gets, for every block, the layouts that its users need it in."""

    def __init__(self, assigner: Assigner) -> None:
        self.assigner = assigner
        self.wanted: dict[SSAValue, dict[LinearLayout, None]] = {}

    def region(self, region: Region) -> None:
        for operation in reversed(region.operations):
            self.operation(operation)

    def operation(self, operation: Operation) -> None:
        if operation.opcode not in SCALAR_REGIONS:
            for region in reversed(operation.regions):
                self.region(region)
        if any(result in self.assigner.flexible for result in operation.results):
            for layout in self.wanted.get(operation.result, ()):
                for number, operand in enumerate(operation.operands):
                    self.wish(operand, operand_layout(operation, number, layout))
            return
        for operand, need in zip(operation.operands, needs_of(self.assigner, operation), strict=True):
            self.wish(operand, need)

    def wish(self, value: SSAValue, layout: LinearLayout | None) -> None:
        if layout is not None and value.type.rank:
            self.wanted.setdefault(value, {})[layout] = None


def needs_of(assigner: Assigner, operation: Operation) -> list[LinearLayout | None]:
    """The layouts in which an operation that is not flexible needs its operands."""
    if operation in assigner.flow:
        return [assigner.home.get(value) if value is not None else None for value in assigner.flow[operation]]
    return assigner.required.get(operation, [None] * len(operation.operands))


# Writing -----------------------------------------------------------------------------------------


class _LayoutWriter(Rebuilder):
    """Writes the kernel again, every block in each layout that is wanted of it."""

    def __init__(self, assigner: Assigner, wanted: Mapping[SSAValue, Mapping[LinearLayout, None]]) -> None:
        super().__init__()
        self.assigner = assigner
        self.wanted = wanted
        self.layouts: dict[SSAValue, LinearLayout] = {}
        self.working: dict[Operation, LinearLayout] = {}
        self.written: dict[tuple[SSAValue, LinearLayout], SSAValue] = {}

    def run(self, function: Function) -> Function:
        region = self.copy_region(function.region)
        return Function(function.name, region, list(function.parameters), dict(function.attributes))

    def copy_region(self, region: Region) -> Region:
        copy = self.region([value.type for value in region.arguments], [value.name for value in region.arguments])
        with self.at(copy):
            for old, new in zip(region.arguments, copy.arguments, strict=True):
                self.defined(old, new, self.assigner.home.get(old), None)
            for operation in region.operations:
                self.copy(operation)
        return copy

    def copy(self, operation: Operation) -> None:
        self.location = operation.location
        if any(result in self.assigner.flexible for result in operation.results):
            for layout in self.wanted.get(operation.result, ()):
                needs: list[LinearLayout | None] = [
                    operand_layout(operation, number, layout) for number in range(len(operation.operands))
                ]
                (result,) = self.append(operation, needs, [layout]).results
                self.written[operation.result, layout] = result
                self.layouts[result] = layout
            return
        homes: list[LinearLayout | None] = [self.assigner.home.get(result) for result in operation.results]
        copy = self.append(operation, needs_of(self.assigner, operation), homes)
        if operation in self.assigner.working:
            self.working[copy] = self.assigner.working[operation]
        for old, new, home in zip(operation.results, copy.results, homes, strict=True):
            self.defined(old, new, home, operation)

    def append(
        self, operation: Operation, needs: Sequence[LinearLayout | None], homes: Sequence[LinearLayout | None]
    ) -> Operation:
        """A copy of an operation on operands in the layouts that it needs."""
        operands = [self.operand(value, layout) for value, layout in zip(operation.operands, needs, strict=True)]
        regions = [self.copy_region(region) for region in operation.regions]
        attributes: dict[str, Attribute] = dict(operation.attributes)
        texts = tuple(str(home) if home is not None else "" for home in homes)
        if any(texts):
            attributes[LAYOUT_ATTRIBUTE] = texts[0] if len(texts) == 1 else texts
        copy = Operation(
            operation.opcode, operands, list(operation.result_types), attributes, regions, operation.location
        )
        for old, new in zip(operation.results, copy.results, strict=True):
            new.name = old.name
        self.current.operations.append(copy)
        return copy

    def operand(self, value: SSAValue, layout: LinearLayout | None) -> SSAValue:
        if layout is None:
            return self.mapping.get(value, value)
        return self.written[value, layout]

    def defined(self, old: SSAValue, new: SSAValue, home: LinearLayout | None, operation: Operation | None) -> None:
        """A value that stands where it stands; conversions follow for the other layouts that are wanted of it."""
        self.mapping[old] = new
        if home is None:
            return
        self.layouts[new] = home
        self.written[old, home] = new
        for layout in self.wanted.get(old, ()):
            if layout != home:
                self.written[old, layout] = self.convert(new, home, layout)

    def convert(self, value: SSAValue, home: LinearLayout, layout: LinearLayout) -> SSAValue:
        if layout in self.assigner.operands:
            plan = _COPIED
        elif is_tile(layout):
            plan = "a tile in shared memory"
        else:
            plan = str(conversion_plan(home, layout, element_bits(value)))
        attributes: dict[str, Attribute] = {"order": tuple(range(value.type.rank))}
        attributes |= {LAYOUT_ATTRIBUTE: str(layout), CONVERSION_ATTRIBUTE: plan}
        converted = self.create("permute", [value], attributes).result
        self.layouts[converted] = layout
        return converted
