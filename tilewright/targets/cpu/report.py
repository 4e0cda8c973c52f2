"""The decisions of the lowering about a kernel, by source line: `kernel.explain()`.

The parts of the lowering record their decisions here where they take them: loop nests and their vectors (`nests`),
how memory is accessed (`evaluate`, `memory`), blocks that live in scratch memory (`placement`, `schedule`), products
(`dot_operands`), and what goes element by element (`lowering`).  Nothing is worked out afterwards but the sums of
bytes and operations, which are the Tile IR's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tilewright.dtypes import DType
from tilewright.ir.core import Function, Location, Operation, Region, SSAValue
from tilewright.ir.diagnostics import source_line
from tilewright.ir.ops import BROADCASTING, ELEMENTWISE
from tilewright.ir.types import PointerType
from tilewright.targets.base import Remark
from tilewright.targets.cpu.access import operand_axes
from tilewright.targets.cpu.affine import AffineAnalysis
from tilewright.targets.cpu.aliasing import Hazard
from tilewright.targets.cpu.storage import Storage

if TYPE_CHECKING:
    from tilewright.targets.cpu.schedule import Cluster, Root

_LIBRARY = str(Path(__file__).parents[2] / "language")
_RESULTS = {
    "reduce": "results of a reduction",
    "scan": "results of a scan",
    "dot": "the product's accumulator",
    "for": "carried by the loop",
    "while": "carried by the loop",
    "if": "results of a branch",
    "atomic_rmw": "results of atomics",
    "atomic_cas": "results of atomics",
}


@dataclass
class _NestLoop:
    """One axis of a nest, as a root runs through it."""

    axis: int
    text: str


@dataclass
class _CodeTraffic:
    """Bytes and float operations of some code, each loop with a run-time count apart."""

    read: int = 0
    written: int = 0
    operations: int = 0
    loops: list[tuple[Operation, _CodeTraffic]] = field(default_factory=list)

    def add(self, other: _CodeTraffic, times: int = 1) -> None:
        self.read += other.read * times
        self.written += other.written * times
        self.operations += other.operations * times
        self.loops += other.loops

    def __str__(self) -> str:
        return f"reads {self.read} bytes, writes {self.written} bytes, {self.operations} float operations"


class KernelReport:
    """The decisions about one function."""

    def __init__(self, function: Function, analysis: AffineAnalysis) -> None:
        self.function = function
        self.analysis = analysis
        self.notes: list[tuple[Location | None, str]] = []
        self._loops: dict[Root, list[_NestLoop]] = {}
        self._companions: dict[Root, str] = {}
        self._pairs: list[tuple[str, str]] = []  # of parameters that a launch looks at

    def note(self, operation: Operation, text: str) -> None:
        """Something about the line that an operation comes from."""
        self._add(operation.location, text)

    def _add(self, location: Location | None, text: str) -> None:
        entry = user_location(location), text
        if entry not in self.notes:
            self.notes.append(entry)

    # Nests

    def cluster(self, cluster: Cluster) -> None:
        """Roots that run together; the innermost of nested clusters says it."""
        if len(cluster.roots) > 1:
            how = {"flat": "in one loop nest", "rows": "row by row", "columns": "by columns"}[cluster.mode]
            for root in cluster.roots:
                others = [other for other in cluster.roots if other is not root]
                known = self._companions.get(root)
                text = f"{how} with {_enumerated(map(_root_name, others))}"
                self._companions[root] = text if known is None else f"{known}; {text}"
        for inner in cluster.inner:
            self.cluster(inner)

    def loop(
        self, roots: Iterable[Root], axes: Mapping[Root, int], extent: int, lanes: int, unroll: int,
        masks: Iterable[SSAValue], past_masks: bool,
    ) -> None:  # fmt: skip
        """A loop over an axis of roots: `lanes` at once, `unroll` registers in the main loop.

        `masks` are the comparisons that end it; with `past_masks` the elements after them are computed too.
        """
        lines = sorted({_line(mask.definition) for mask in masks if mask.definition is not None})
        if lanes > 1:
            several = f", {unroll} at once" if unroll > 1 else ""
            text = f"{extent} in vectors of {lanes}{several}"
        else:
            text = f"{extent} one by one" if extent > 1 else "1"
        if lines:
            text += f", up to the mask of line {_enumerated(map(str, lines))}"
            if lanes > 1:
                text += ", whose rest is one masked vector"
            if past_masks:
                text += "; then the elements after it"
        elif lanes > 1 and extent % lanes:
            text += f", the last {extent % lanes} masked"
        for root in roots:
            loops = self._loops.setdefault(root, [])
            if not any(entry.axis == axes[root] for entry in loops):
                loops.append(_NestLoop(axes[root], text))

    def transposed(self, root: Root, read_axis: int, written_axis: int, side: int) -> None:
        """A root that is reversed in registers."""
        text = (
            f"read along axis {read_axis} and written along axis {written_axis}: tiles of {side} x {side} are "
            "transposed in registers"
        )
        self._loops.setdefault(root, []).append(_NestLoop(-1, text))

    def interleaved(self, root: Root, read_axis: int, written_axis: int, count: int) -> None:
        """A store whose vectors are interleaved."""
        text = (
            f"read along axis {read_axis} and written along axis {written_axis}: {count} vectors are interleaved in "
            "registers"
        )
        self._loops.setdefault(root, []).append(_NestLoop(-1, text))

    # Accesses

    def access(self, operation: Operation, how: str, place: int | None, lanes: int, masked: bool) -> None:
        """How a load or store reaches memory: ``contiguous``, ``reversed``, ``single``, ``gather``, ``scatter`` or
        ``by lane``.

        `place` is the vectorised axis (None: outside of vectors), `masked` whether a mask is left to each lane.
        """
        mask = ", each lane by its mask" if masked else ""
        pointer = operation.operands[0] if operation.operands else None
        source = f" of {self._array(pointer)}" if pointer is not None and pointer.type.is_pointer else ""
        opcode = operation.opcode
        if how in ("contiguous", "reversed"):
            turned = ", reversed in registers" if how == "reversed" else ""
            self.note(operation, f"{opcode}{source}: vectors of consecutive elements{turned}{mask}")
        elif how == "single":
            where = "one element for all lanes" if place is not None else "one element at a time, outside of vectors"
            self.note(operation, f"{opcode}{source}: {where}{mask}")
        elif how in ("gather", "scatter"):
            assert pointer is not None and place is not None
            why = self._irregularity(pointer, place, lanes)
            self.note(operation, f"{opcode}{source}: a {how}, an address for each lane{mask}: {why}")
        else:
            self.note(operation, f"{opcode}: put together lane by lane, because its elements do not stay side by side")

    def by_lane(self, operation: Operation, reason: str) -> None:
        """An elementwise operation inside vectors that has no vector instructions."""
        self.note(operation, f"lane by lane: {reason}")

    def pairs(self, operation: Operation) -> None:
        """A multiply-add that one instruction computes together with the one in front of it."""
        self.note(operation, "pairs of products are added, subnormal numbers count as zeros")

    def operand(self, product: Operation, side: str, load: Operation | None) -> None:
        """Where a product reads an operand: at a load's addresses, or (None) in a buffer."""
        if load is None:
            self.note(product, f"its {side} operand is read from scratch memory")
            return
        mask = "; its mask ends the product's loops" if len(load.operands) > 1 else ""
        source = self._array(load.operands[0])
        self.note(load, f"load of {source}: the product of line {_line(product)} reads it in place{mask}")

    def _array(self, pointer: SSAValue) -> str:
        value = pointer
        while value.definition is not None and value.definition.operands:
            value = value.definition.operands[0]
        return f"'{value.name}'" if value in self.function.region.arguments else "memory"

    def _irregularity(self, pointer: SSAValue, axis: int, lanes: int) -> str:
        """Why elements along an axis are not consecutive, and which fact would help."""
        fact = self.analysis.along(pointer, axis)
        contiguous_axes = [
            f"axis {other} is the contiguous one"
            for other in range(pointer.type.rank)
            if other != axis and self.analysis.along(pointer, other).step == 1
        ]
        if fact.step is not None and fact.step not in (0, 1, -1):
            also = f"; {contiguous_axes[0]}" if contiguous_axes else ""
            return f"elements along axis {axis} are {fact.step} apart{also}"
        if fact.step is not None:
            kind = "consecutive" if fact.step else "equal"
            return (
                f"along axis {axis} only {fact.run} elements in a row are known to be {kind}; {lanes} would be with a "
                f"size that is divisible by {lanes}, as tl.constexpr or through tl.multiple_of"
            )
        operation = self._cause(pointer, axis)
        if fact.uniform:
            name = self._run_time_factor(operation, axis)
            return (
                f"elements along axis {axis} are a distance apart that is known at run time only{name}; pass it as "
                "tl.constexpr, or leave it out where it is 1"
            )
        if operation is None:
            return f"nothing is known of the addresses along axis {axis}: a loop or branch carries them"
        if operation.opcode == "load":
            return f"the offsets along axis {axis} are loaded from memory at line {_line(operation)}"
        if operation.opcode in ("divide", "remainder"):
            return (
                f"the {operation.opcode} at line {_line(operation)} breaks the run along axis {axis}; a constant "
                "divisor that divides the block's extent and start would keep it"
            )
        return f"the {operation.opcode} at line {_line(operation)} gives offsets along axis {axis} without a known step"

    def _cause(self, value: SSAValue, axis: int) -> Operation | None:
        """The operation at which the regular step along an axis is lost; None for a value from control flow."""
        while value.definition is not None:
            operation = value.definition
            following: tuple[SSAValue, int] | None = None
            if operation.opcode != "load":
                for operand, axes in operand_axes(operation, value, tuple(range(value.type.rank))):
                    if axis in axes and self.analysis.along(operand, axes.index(axis)).step is None:
                        following = operand, axes.index(axis)
            if following is None:
                return operation
            value, axis = following
        return None

    def _run_time_factor(self, operation: Operation | None, axis: int) -> str:
        if operation is None or operation.opcode != "multiply":
            return ""
        for operand in operation.operands:
            source = operand
            while source.definition is not None and source.definition.opcode in (*BROADCASTING, "cast", "hint"):
                source = source.definition.operands[0]
            if source in self.function.region.arguments:
                return f", '{source.name}'"
        return ""

    # Blocks in memory

    def buffers(self, storage: Mapping[SSAValue, Storage], remarks: Iterable[Remark]) -> None:
        """Blocks that live in scratch memory; why, `remarks` say of those that need not."""
        for remark in remarks:
            location = Location(remark.file, remark.line) if remark.file else None
            self._add(location, remark.message)
        for value, place in storage.items():
            if value.definition is None or not value.type.rank:
                continue
            operation = value.definition
            shape = " x ".join(map(str, value.type.shape))
            why = _RESULTS.get(operation.opcode, f"of {operation.opcode}")
            self.note(operation, f"{why}: a block of {shape} in scratch memory, {place.bytes} bytes")

    def hazards(self, hazards: Iterable[Hazard]) -> None:
        """Pairs of parameters whose memory a launch looks at."""
        self._pairs = list(dict.fromkeys((hazard.read.name, hazard.written.name) for hazard in hazards))

    # The text

    def text(self, title: str, scratch_bytes: int) -> str:
        """Everything, under the source lines in their order."""
        lines = [title]
        by_line: dict[tuple[str, int], list[str]] = {}
        for location, note in [*self.notes, *map(self._root_note, dict.fromkeys([*self._loops, *self._companions]))]:
            key = (location.file, location.line) if location is not None else ("", 0)
            by_line.setdefault(key, []).append(note)
        file = ""
        for (name, number), notes in sorted(by_line.items()):
            if name != file:
                lines.append(f"{name}")
                file = name
            source = source_line(Location(name, number)).strip() if name else "(no source line)"
            lines.append(f"  {number} | {source}")
            lines += [f"  {' ' * len(str(number))} - {note}" for note in notes]
        total = self._traffic(self.function.region)
        lines.append(f"one program instance, masked lanes counted: {total}; {scratch_bytes} bytes of scratch memory")
        lines += [f"  and each pass of the loop at line {_line(loop)}: {inner}" for loop, inner in _nested(total)]
        lines += [
            f"where {read!r} and {written!r} overlap, other than element on element, a version runs that first copies "
            "what it loads, or keeps the loops apart"
            for read, written in self._pairs
        ]
        return "\n".join(lines)

    def _root_note(self, root: Root) -> tuple[Location | None, str]:
        """Everything about the loops of a root."""
        parts = [
            f"axis {loop.axis}: {loop.text}" if loop.axis >= 0 else loop.text for loop in self._loops.get(root, [])
        ]
        together = [self._companions[root]] if root in self._companions else []
        return user_location(root.operation.location), f"{_root_kind(root)}: {'; '.join([*parts, *together])}"

    def _traffic(self, region: Region) -> _CodeTraffic:
        total = _CodeTraffic()
        for operation in region.operations:
            opcode = operation.opcode
            if opcode == "for":
                inner, count = self._traffic(operation.regions[0]), self._passes(operation)
                total.add(inner, count) if count is not None else total.loops.append((operation, inner))
            elif opcode == "while":
                inner = self._traffic(operation.regions[0])
                inner.add(self._traffic(operation.regions[1]))
                total.loops.append((operation, inner))
            elif opcode == "if":
                for branch in operation.regions:
                    total.add(self._traffic(branch))
            else:
                total.add(_own_traffic(operation))
        return total

    @staticmethod
    def _passes(loop: Operation) -> int | None:
        bounds = [operand.definition for operand in loop.operands[:3]]
        numbers = [bound.attributes["value"] for bound in bounds if bound is not None and bound.opcode == "constant"]
        if len(numbers) < 3:
            return None
        lower, upper, step = (int(value) for value in numbers if isinstance(value, int))
        return len(range(lower, upper, step))


def _own_traffic(operation: Operation) -> _CodeTraffic:
    size = operation.operands[0].type.size if operation.operands else 0
    if operation.opcode in ("load", "store", "atomic_rmw", "atomic_cas"):
        element = operation.operands[0].type.element
        assert isinstance(element, PointerType)
        moved = size * element.element.itemsize
        return _CodeTraffic(moved if operation.opcode != "store" else 0, moved if operation.opcode != "load" else 0)
    if operation.opcode == "dot":
        return _CodeTraffic(operations=2 * operation.result.type.size * operation.operands[0].type.shape[-1])
    results = [result.type.element for result in operation.results]
    if not any(isinstance(element, DType) and element.is_float for element in results):
        return _CodeTraffic()
    if operation.opcode in ("reduce", "scan"):
        return _CodeTraffic(operations=size)
    if operation.opcode in ELEMENTWISE and operation.opcode not in ("select", "bitcast", "cast", "hint"):
        return _CodeTraffic(operations=operation.result.type.size * (2 if operation.opcode == "fma" else 1))
    return _CodeTraffic()


def _nested(traffic: _CodeTraffic) -> list[tuple[Operation, _CodeTraffic]]:
    return [entry for loop, inner in traffic.loops for entry in [(loop, inner), *_nested(inner)]]


def user_location(location: Location | None) -> Location | None:
    """The place in the user's source: for code of `tl` itself, where it was called."""
    while location is not None and location.caller is not None and location.file.startswith(_LIBRARY):
        location = location.caller
    return Location(location.file, location.line) if location is not None else None


def _line(operation: Operation | None) -> int:
    location = user_location(operation.location) if operation is not None else None
    return location.line if location is not None else 0


def _root_kind(root: Root) -> str:
    if root.kind == "reduce":
        return f"reduction along axis {root.reduced_axis}"
    if root.kind == "store":
        return "store"
    return f"{_written(root.operation)} into scratch memory"


def _written(operation: Operation) -> str:
    """What a root that writes a buffer computes."""
    if operation.opcode in ("yield", "condition"):
        return "next value"
    return "initial value" if operation.regions or operation.opcode == "dot" else operation.opcode


def _root_name(root: Root) -> str:
    kind = {"reduce": "the reduction", "store": "the store"}.get(root.kind, f"the {_written(root.operation)}")
    return f"{kind} of line {_line(root.operation)}"


def _enumerated(parts: Iterable[str]) -> str:
    listed = list(dict.fromkeys(parts))
    return " and ".join([", ".join(listed[:-1]), listed[-1]] if len(listed) > 1 else listed)
