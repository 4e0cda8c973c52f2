"""How the operands of a product in a loop depend on the element of the depth and on the iteration.

    number = start + lane * (a polynomial in run-time scalars) + iteration * (another)

Where the second polynomial is `depth` times the first, the blocks of successive iterations follow one another: element
`lane` of iteration i + j is element `lane + j * depth` of a deeper block at iteration i.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tilewright.ir.core import Operation, SSAValue
from tilewright.ir.ops import ELEMENTWISE
from tilewright.ir.rewrite import constant_of
from tilewright.targets.cpu.attributes import integer, integers
from tilewright.targets.cpu.distinct import plain

Polynomial = Mapping[tuple[SSAValue, ...], int]  # products of values, each with its factor
_ZERO: Polynomial = {}


@dataclass(frozen=True)
class Form:
    """The change from one element of the depth to the next, and from one iteration to the next."""

    lane: Polynomial = field(default_factory=dict)
    iteration: Polynomial = field(default_factory=dict)


_STILL = Form()


def sum_of(left: Polynomial, right: Polynomial, factor: int = 1) -> Polynomial:
    """left + factor * right"""
    total = dict(left)
    for product, number in right.items():
        total[product] = total.get(product, 0) + factor * number
    return {product: number for product, number in total.items() if number}


def product_of(left: Polynomial, right: Polynomial) -> Polynomial:
    total: dict[tuple[SSAValue, ...], int] = {}
    for one, number in left.items():
        for other, factor in right.items():
            key = tuple(sorted((*one, *other), key=id))
            total[key] = total.get(key, 0) + number * factor
    return {product: number for product, number in total.items() if number}


def polynomial(value: SSAValue) -> Polynomial:
    """A number as a polynomial in those that are no sum or product; `value` may be a block of equal numbers."""
    value = plain(value)
    known = constant_of(value)
    if isinstance(known, int):
        return {(): known} if known else {}
    operation = value.definition
    if operation is not None and value.type.is_scalar and operation.opcode in ("add", "subtract", "multiply"):
        left, right = (polynomial(operand) for operand in operation.operands)
        if operation.opcode == "multiply":
            return product_of(left, right)
        return sum_of(left, right, -1 if operation.opcode == "subtract" else 1)
    return {(value,): 1}


def source_axis(operation: Operation, axis: int | None) -> int | None:
    """The axis of an operand of an elementwise operation, or one that rearranges, that `axis` of its result is;
    None for none."""
    if axis is None or operation.opcode == "splat":
        return None
    if operation.opcode == "expand_dims":
        added = integer(operation, "axis")
        return None if added == axis else axis - (axis > added)
    if operation.opcode == "permute":
        return integers(operation, "order")[axis]
    if operation.opcode == "broadcast" and operation.operands[0].type.shape[axis] == 1:
        return None
    return axis


class DepthForms:
    """Answers `follows(value, axis)` for values of one loop, whose own numbers change by `growth` in each iteration
    (None: otherwise than by a number that stays the same)."""

    def __init__(self, inside: set[Operation], growth: Mapping[SSAValue, Polynomial | None], depth: int) -> None:
        self._inside = inside
        self._growth = growth
        self._depth = depth
        self._known: dict[tuple[SSAValue, int | None], Form | None] = {}

    def form(self, value: SSAValue, axis: int | None) -> Form | None:
        """The form of a number whose depth is along `axis` (None: it has none); None if it is not linear."""
        if axis is not None and value.type.shape[axis] == 1:
            axis = None
        if (value, axis) not in self._known:
            self._known[value, axis] = self._form(value, axis)
        return self._known[value, axis]

    def _form(self, value: SSAValue, axis: int | None) -> Form | None:
        operation = value.definition
        if value in self._growth:
            growth = self._growth[value]
            return None if growth is None or axis is not None else Form(_ZERO, growth)
        if operation is None or operation not in self._inside and axis is None:
            return _STILL if axis is None else None
        opcode, operands = operation.opcode, operation.operands
        if opcode == "arange":
            return Form({(): 1}) if axis is not None else _STILL
        if opcode == "constant":
            return _STILL
        if opcode in ("splat", "expand_dims", "broadcast", "permute", "hint"):
            return self.form(operands[0], source_axis(operation, axis))
        if opcode == "cast":
            integers_only = operands[0].type.dtype.is_integer and value.type.dtype.is_integer
            return self.form(operands[0], axis) if integers_only else None
        if opcode not in ELEMENTWISE:
            return None
        return self._arithmetic(operation, [self.form(operand, axis) for operand in operands])

    def _arithmetic(self, operation: Operation, forms: list[Form | None]) -> Form | None:
        known = [form for form in forms if form is not None]
        if len(known) < len(forms):
            return None
        if all(form == _STILL for form in known):
            return _STILL
        if operation.opcode in ("add", "subtract", "offset"):
            sign = -1 if operation.opcode == "subtract" else 1
            left, right = known
            return Form(sum_of(left.lane, right.lane, sign), sum_of(left.iteration, right.iteration, sign))
        if operation.opcode == "multiply" and _STILL in known:
            still = known.index(_STILL)
            moving, factor = known[1 - still], polynomial(operation.operands[still])
            return Form(product_of(moving.lane, factor), product_of(moving.iteration, factor))
        return None

    def follows(self, value: SSAValue, axis: int | None) -> bool:
        """Whether blocks of successive iterations follow one another: pointers, masks, and numbers loaded by them."""
        operation = value.definition
        if value.type.is_pointer:
            form = self.form(value, axis)
            return form is not None and self._steady(form)
        if operation is None:
            return False
        if operation.opcode == "compare":
            left, right = (self.form(operand, axis) for operand in operation.operands)
            if left is None or right is None:
                return False
            return self._steady(Form(sum_of(left.lane, right.lane, -1), sum_of(left.iteration, right.iteration, -1)))
        if operation.opcode in ("splat", "expand_dims", "broadcast", "permute", "hint"):
            return self.follows(operation.operands[0], source_axis(operation, axis))
        if operation.opcode == "and" and value.type.dtype.is_bool:
            return all(self.follows(operand, axis) for operand in operation.operands)
        if operation.opcode == "cast":
            return self.follows(operation.operands[0], axis)
        return operation.opcode == "load" and self._load_follows(operation, axis)

    def _steady(self, form: Form) -> bool:
        return sum_of(form.iteration, form.lane, -self._depth) == {}

    def _load_follows(self, load: Operation, axis: int | None) -> bool:
        """Whether a load's pointers and mask follow, and what is masked off is zero."""
        if load.attributes["volatile"] or axis is None or load not in self._inside:
            return False
        zero = len(load.operands) < 3 or constant_of(load.operands[2]) == 0
        return zero and all(self.follows(operand, axis) for operand in load.operands[:2])
