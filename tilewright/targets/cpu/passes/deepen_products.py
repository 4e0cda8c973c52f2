"""Loops that add products to blocks take several iterations at once, as one product that is as much deeper.

    for k in range(0, cdiv(K, 32)):               for k in range(0, cdiv(K, 32), 8):
        x = load(a + …, mask=lane < K - k * 32)       x = load(a + …, mask=(lane < K - k * 32) & (lane < rest))
        y = load(b + …)                               y = load(b + …, mask=lane < rest)
        total = dot(x, y, total)          ->          total = dot(x, y, total)

with `lane` from 0 to 256 and `rest`, what the loop has left of the depth.  A product reads and writes its sums once,
calls its micro-kernels once for each register tile, and begins anew with every panel: shallow blocks, which suit the
memory of a GPU, spend their time on that.  Masks become limits of the product, so what is masked off costs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tilewright.ir.core import Function, Operation, Region, SSAValue
from tilewright.ir.ops import ELEMENTWISE, READ, effects_of
from tilewright.ir.rewrite import Rebuilder, constant_of
from tilewright.ir.types import TensorType
from tilewright.passes.dead_code import remove_dead_code
from tilewright.targets.cpu.access import conjuncts, prefix_of
from tilewright.targets.cpu.affine import AffineAnalysis
from tilewright.targets.cpu.passes.depth_forms import DepthForms, Polynomial, polynomial, source_axis

_SHALLOW_BYTES = 256  # of a row of the left operand: deeper blocks gain less than 5 % and compile a tenth longer
_DEPTH_BYTES = 1024  # of a row of the left operand: its rows stay in level 2, a panel of the right in level 1


@dataclass(frozen=True)
class _Deepened:
    """A loop of products: their depth, how many iterations are taken at once, and whether any number may be left."""

    depth: int
    times: int
    partial: bool
    advanced: Mapping[int, SSAValue]  # what is added to carried numbers, by their place


def deepen_products(function: Function) -> Function:
    """`function` with such loops rewritten; the same object when there are none."""
    if not any(operation.opcode == "for" and _multiplies(operation) for operation in function.walk()):
        return function
    original, function = function, remove_dead_code(function)  # uses that nobody needs would count
    loops = [operation for operation in function.walk() if operation.opcode == "for" and _multiplies(operation)]
    users: dict[SSAValue, list[Operation]] = {}
    for operation in function.walk():
        for value in operation.operands:
            users.setdefault(value, []).append(operation)
    found = {loop: deepened for loop in loops if (deepened := _deepened(loop, users)) is not None}
    if found:
        analysis = AffineAnalysis(function)
        found = {loop: deepened for loop, deepened in found.items() if _is_regular(loop, analysis)}
    return _Deepening(found).run(function) if found else original


def _multiplies(loop: Operation) -> bool:
    """Whether a loop has products, and has no effects but to read."""
    body = loop.regions[0].operations[:-1]
    quiet = not any(operation.regions or effects_of(operation) - READ for operation in body)
    return quiet and any(operation.opcode == "dot" for operation in body)


def _deepened(loop: Operation, users: Mapping[SSAValue, list[Operation]]) -> _Deepened | None:
    """How a loop is deepened, if it can be."""
    body, step = loop.regions[0], constant_of(loop.operands[2])
    dots = [operation for operation in body.operations if operation.opcode == "dot"]
    depths = {dot.operands[0].type.shape[-1] for dot in dots}
    if not isinstance(step, int) or step < 1 or len(depths) != 1 or not _sums_only(loop, dots, users):
        return None
    (depth,) = depths
    advanced = _advanced(loop, users)
    growth: dict[SSAValue, Polynomial | None] = dict.fromkeys(body.arguments)
    growth[body.arguments[0]] = {(): step}
    growth |= {body.arguments[1 + place]: polynomial(number) for place, number in advanced.items()}
    forms = DepthForms(set(body.operations), growth, depth)
    for dot in dots:
        left, right = dot.operands[:2]
        if not forms.follows(left, left.type.rank - 1) or not forms.follows(right, right.type.rank - 2):
            return None
    count = _iterations(loop, step)
    row_bytes = depth * max(dot.operands[0].type.dtype.itemsize for dot in dots)
    times = 1
    while row_bytes < _SHALLOW_BYTES and times * row_bytes < _DEPTH_BYTES and (count is None or times < count):
        times *= 2
    return _Deepened(depth, times, count is None or count % times > 0, advanced) if times > 1 else None


def _iterations(loop: Operation, step: int) -> int | None:
    """How many iterations a loop has, if that is known."""
    lower, upper = (constant_of(bound) for bound in loop.operands[:2])
    if not isinstance(lower, int) or not isinstance(upper, int):
        return None
    return max(0, -(-(upper - lower) // step))


def _sums_only(loop: Operation, dots: list[Operation], users: Mapping[SSAValue, list[Operation]]) -> bool:
    """Whether products are all that a loop gives, each the sum that the loop carries."""
    body = loop.regions[0]
    carried = dict(zip(body.arguments[1:], body.terminator.operands, strict=True))
    for dot in dots:
        total = dot.operands[2]
        if carried.get(total) is not dot.result or users[total] != [dot] or users[dot.result] != [body.terminator]:
            return False
    totals = {dot.operands[2] for dot in dots}
    return all(
        argument in totals or argument.type.is_scalar and result not in users
        for argument, result in zip(body.arguments[1:], loop.results, strict=True)
    )


def _advanced(loop: Operation, users: Mapping[SSAValue, list[Operation]]) -> dict[int, SSAValue]:
    """The carried integers to which each iteration adds one and the same number, by their place."""
    body, found = loop.regions[0], {}
    for place, (argument, value) in enumerate(zip(body.arguments[1:], body.terminator.operands, strict=True)):
        addition = value.definition
        if (
            addition is None
            or addition.opcode != "add"
            or not argument.type.is_scalar
            or addition not in body.operations
        ):
            continue
        others = [operand for operand in addition.operands if operand is not argument]
        if len(others) == 1 and _stays(others[0], body) and users[value] == [body.terminator]:
            found[place] = others[0]
    return found


def _stays(value: SSAValue, body: Region) -> bool:
    """Whether a number is the same in all iterations."""
    operation = value.definition
    if operation is None or operation not in body.operations:
        return value not in body.arguments
    return operation.opcode in (*ELEMENTWISE, "constant") and all(
        _stays(operand, body) for operand in operation.operands
    )


def _is_regular(loop: Operation, analysis: AffineAnalysis) -> bool:
    """Whether products read their operands where they lie; copies of deep blocks would be filled up with zeros."""
    for load in loop.regions[0].operations:
        if load.opcode != "load":
            continue
        facts = analysis.all_axes(load.operands[0])[-2:]
        if not all(fact.uniform and fact.run == 0 for fact in facts) or not any(fact.step == 1 for fact in facts):
            return False
        masks = conjuncts(load.operands[1]) if len(load.operands) > 1 else []
        if any(prefix_of(compare, analysis) is None for compare, _ in masks):
            return False
    return True


class _Deepening(Rebuilder):
    def __init__(self, found: Mapping[Operation, _Deepened]) -> None:
        super().__init__()
        self._found = found

    def copy(self, operation: Operation) -> None:
        """Append a rewritten copy of an operation."""
        if operation in self._found:
            self._loop(operation, self._found[operation])
        else:
            super().copy(operation)

    def _loop(self, loop: Operation, deepened: _Deepened) -> None:
        self.changed = True
        self.location = loop.location
        body = loop.regions[0]
        operands = [self.mapping.get(value, value) for value in loop.operands]
        step = constant_of(loop.operands[2])
        assert isinstance(step, int)
        operands[2] = self.constant(step * deepened.times, operands[0].type.dtype)
        region = self.region([value.type for value in body.arguments], [value.name for value in body.arguments])
        self.mapping.update(zip(body.arguments, region.arguments, strict=True))
        with self.at(region):
            rest = self._rest(operands[1], region.arguments[0], step, deepened.depth) if deepened.partial else None
            blocks = _DeeperBlocks(self, set(body.operations), deepened, rest)
            following = [
                self._following(place, value, blocks, deepened) for place, value in enumerate(body.terminator.operands)
            ]
            self.create("yield", following)
        results = self.create("for", operands, loop.attributes, [region]).results
        self.mapping.update(zip(loop.results, results, strict=True))

    def _rest(self, upper: SSAValue, index: SSAValue, step: int, depth: int) -> SSAValue:
        """What the loop has left of the depth."""
        left = self.emit("subtract", upper, index)
        dtype = left.type.dtype
        if step > 1:
            left = self.emit("add", left, self.constant(step - 1, dtype))
            left = self.emit("divide", left, self.constant(step, dtype))
        return self.emit("multiply", left, self.constant(depth, dtype))

    def _following(self, place: int, value: SSAValue, blocks: _DeeperBlocks, deepened: _Deepened) -> SSAValue:
        """What the loop carries on: sums, and numbers that grow in proportion."""
        operation = value.definition
        if place in deepened.advanced:
            assert operation is not None
            number = blocks.same(deepened.advanced[place])
            larger = self.emit("multiply", number, self.constant(deepened.times, number.type.dtype))
            operands = [
                larger if operand is deepened.advanced[place] else self.mapping.get(operand, operand)
                for operand in operation.operands
            ]
            return self.create("add", operands).result
        if operation is None or operation.opcode != "dot":
            return blocks.same(value)
        self.location = operation.location
        left, right, total = operation.operands
        wide = [blocks.deeper(left, left.type.rank - 1), blocks.deeper(right, right.type.rank - 2)]
        return self.create("dot", [*wide, self.mapping[total]], operation.attributes).result


class _DeeperBlocks:
    """Copies of a loop's values whose depth is that of several iterations."""

    def __init__(self, build: _Deepening, inside: set[Operation], deepened: _Deepened, rest: SSAValue | None) -> None:
        self._build = build
        self._inside = inside
        self._extent = deepened.depth * deepened.times
        self._rest = rest
        self._made: dict[tuple[SSAValue, int | None], SSAValue] = {}

    def same(self, value: SSAValue) -> SSAValue:
        """A value without a depth."""
        if value.definition not in self._inside:
            return self._build.mapping.get(value, value)
        return self.deeper(value, None)

    def deeper(self, value: SSAValue, axis: int | None) -> SSAValue:
        """The value whose depth is along `axis` (None: it has none)."""
        if axis is not None and value.type.shape[axis] == 1:
            axis = None
        operation = value.definition
        if operation is None or axis is None and operation not in self._inside:
            return self._build.mapping.get(value, value)
        if (value, axis) not in self._made:
            self._made[value, axis] = self._copy(operation, axis)
        return self._made[value, axis]

    def _copy(self, operation: Operation, axis: int | None) -> SSAValue:
        build = self._build
        if operation.opcode == "hint" and axis is not None:
            return self.deeper(operation.operands[0], axis)
        operands = [
            self.deeper(operand, source_axis(operation, axis) if operand.type.rank else None)
            for operand in operation.operands
        ]
        attributes = dict(operation.attributes)
        if axis is not None and operation.opcode == "arange":
            attributes["end"] = attributes["start"] + self._extent  # type: ignore[operator]
        elif axis is not None and "shape" in attributes:
            shape = list(operation.result.type.shape)
            shape[axis] = self._extent
            attributes["shape"] = tuple(shape)
        if operation.opcode == "load" and axis is not None and self._rest is not None:
            operands[1:2] = [self._mask(operands[0].type, operands[1:2], axis)]
        build.location = operation.location
        return build.create(operation.opcode, operands, attributes).result

    def _mask(self, kind: TensorType, masks: list[SSAValue], axis: int) -> SSAValue:
        """The mask of a load, false beyond what the loop has left."""
        build, rest = self._build, self._rest
        assert rest is not None
        lanes = build.emit("arange", start=0, end=self._extent)
        if rest.type.dtype != lanes.type.dtype:
            lanes = build.emit("cast", lanes, dtype=rest.type.dtype)
        mask = build.emit("compare", lanes, build.emit("splat", rest, shape=(self._extent,)), predicate="lt")
        for place in range(len(kind.shape)):
            if place != axis:
                mask = build.emit("expand_dims", mask, axis=place)
        mask = build.emit("broadcast", mask, shape=kind.shape)
        return build.emit("and", masks[0], mask) if masks else mask
