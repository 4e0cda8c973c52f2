"""How integer and pointer blocks change along each of their axes, without looking at run-time values.

For a value x and an axis, `Along(step, run, multiple)` says: the axis falls into aligned runs of `run`
elements (0: the whole axis is one run); inside a run x grows by `step` from element to element; at
the first element of each run x is divisible by `multiple` (0: x is zero there).  Examples, for
i = arange(0, 128):

    i                  step 1, run 0                    i // 32      step 0, run 32
    base + i * 4       step 4, run 0                    i % 32       step 1, run 32
    row * stride + i   along rows: an unknown but uniform step; along columns: step 1
    (64 * n + i) % d   step 1, run 16 where 16 divides d: no run passes a multiple of d

Loads and stores become contiguous vector accesses, scalar accesses or gathers by the step of their
pointers (in elements).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import gcd

from tilewright.ir.core import Function, Operation, SSAValue
from tilewright.ir.ops import REARRANGING
from tilewright.ir.types import PointerType, TensorType
from tilewright.targets.cpu.attributes import integer, integers, number


@dataclass(frozen=True)
class Along:
    """See the module. `step` is None when unknown; `uniform`: even then all steps in a run are equal."""

    step: int | None
    run: int = 0
    multiple: int = 1
    uniform: bool = True

    def restricted(self, run: int) -> Along:
        """The same fact for shorter runs, whose length divides this one's."""
        if run == self.run:
            return self
        multiple = gcd(self.multiple, self.step * run) if self.step is not None else 1
        return Along(self.step, run, multiple, self.uniform)

    @property
    def divisor(self) -> int:
        """A number that divides every element."""
        return gcd(self.multiple, self.step) if self.step is not None else 1

    def covers(self, lanes: int) -> bool:
        """Whether aligned groups of `lanes` elements lie in one run."""
        return self.run % lanes == 0


@dataclass(frozen=True)
class Drift:
    """x = step i + still numbers times quotients + a still number, for i along an axis.

    A quotient (of what grows steadily by one number) never falls, or never rises.  So if all quotients are one and the
    same, and the first and the last of some elements are as far apart as `step` alone makes them, all of them are.
    """

    step: int
    quotients: frozenset[tuple[SSAValue, ...]] = frozenset()


_STILL = Drift(0)
UNKNOWN_STRIDE = Along(None, 1, 1, False)
_KEEPS_STEP = {"add", "subtract", "offset"}


class AffineAnalysis:
    """Answers `along(value, axis)` and `multiple(scalar)`, with memory; `assumed` are multiples of scalars."""

    def __init__(self, function: Function, assumed: Mapping[SSAValue, int] | None = None) -> None:
        self._known: dict[SSAValue, tuple[Along, ...]] = {}
        self._multiples: dict[SSAValue, int] = {}
        self._nonnegative: dict[SSAValue, bool] = {}
        for argument, parameter in zip(function.region.arguments, function.parameters, strict=True):
            if not argument.type.is_pointer:
                self._multiples[argument] = parameter.divisibility
        self._multiples |= assumed or {}
        for operation in function.walk():  # in program order: operands are known, so nothing recurses deeply
            if operation.opcode == "for":
                self._enter(operation)
            for result in operation.results:
                self.is_nonnegative(result)
                self.multiple(result)
                self.all_axes(result)

    def _enter(self, loop: Operation) -> None:
        """What is known of a loop's index, and of numbers that each pass adds a constant to."""
        lower, _, step = loop.operands[:3]
        index, *carried = loop.regions[0].arguments
        growing = [(index, lower, step)]
        following = loop.regions[0].terminator.operands
        for argument, start, value in zip(carried, loop.operands[3:], following, strict=True):
            added = value.definition
            if added is not None and added.opcode == "add" and argument in added.operands:
                (other,) = [operand for operand in added.operands if operand is not argument] or [argument]
                if constant_of(other) is not None:
                    growing.append((argument, start, other))
        for argument, start, increment in growing:
            if argument.type.rank == 0 and _is_index(argument.type) and not argument.type.is_pointer:
                self._multiples[argument] = gcd(self.multiple(start), self.multiple(increment))
                self._nonnegative[argument] = self.is_nonnegative(start) and self.is_nonnegative(increment)

    def along(self, value: SSAValue, axis: int) -> Along:
        """How `value` changes along one of its axes."""
        return self.all_axes(value)[axis]

    def all_axes(self, value: SSAValue) -> tuple[Along, ...]:
        if value not in self._known:
            self._known[value] = self._compute(value)
        return self._known[value]

    def multiple(self, value: SSAValue) -> int:
        """A number that divides all elements of an integer value (0: all are zero)."""
        if value.type.rank:
            return self.along(value, 0).divisor
        if value not in self._multiples:
            self._multiples[value] = self._scalar_multiple(value)
        return self._multiples[value]

    def is_nonnegative(self, value: SSAValue) -> bool:
        """Whether an integer value is proved to be at least zero in every element."""
        if value not in self._nonnegative:
            self._nonnegative[value] = _nonnegative(self, value)
        return self._nonnegative[value]

    def drift(self, value: SSAValue, axis: int) -> Drift | None:
        """How a value changes along an axis but for quotients; None if it changes in other ways."""
        operation, fact = value.definition, self.along(value, axis)
        if fact.step is not None and fact.run == 0:
            return Drift(fact.step)
        if operation is None or not operation.operands:
            return None
        opcode, operands = operation.opcode, operation.operands
        if opcode in ("cast", "hint", "broadcast"):
            source = operands[0].type
            same_axis = source.shape[axis] == value.type.shape[axis] and _is_index(source)
            return self.drift(operands[0], axis) if same_axis and _bits(source) <= _bits(value.type) else None
        if opcode == "expand_dims":
            return self.drift(operands[0], axis - (axis > integer(operation, "axis")))
        if len(operands) != 2 or opcode not in ("add", "subtract", "offset", "multiply", "divide", "remainder"):
            return None
        left, right = (self.drift(operand, axis) for operand in operands)
        if left is None or right is None:
            return None
        if opcode in ("divide", "remainder"):
            if right != _STILL or left.quotients:
                return None
            return Drift(left.step if opcode == "remainder" else 0, frozenset([tuple(operands)]))
        if opcode == "multiply":
            left, right = (left, right) if right == _STILL else (right, left)
            return Drift(0, left.quotients) if right == _STILL and left.step == 0 else None
        return Drift(
            left.step + (-right.step if opcode == "subtract" else right.step), left.quotients | right.quotients
        )

    # -- Blocks -----------------------------------------------------------------------------------

    def _compute(self, value: SSAValue) -> tuple[Along, ...]:
        operation, rank = value.definition, value.type.rank
        if operation is None or not _is_index(value.type):
            return self._invariant(value)
        rule = getattr(self, f"_rule_{operation.opcode}", None)
        if rule is not None:
            return rule(operation)
        if operation.opcode in _KEEPS_STEP:
            left, right = operation.operands
            sign = -1 if operation.opcode == "subtract" else 1
            return tuple(_sum(self.along(left, axis), self.along(right, axis), sign) for axis in range(rank))
        return self._invariant(value)

    def _invariant(self, value: SSAValue) -> tuple[Along, ...]:
        """Elementwise operations do not change along an axis along which no operand does."""
        operation, rank = value.definition, value.type.rank
        if operation is None or operation.regions or operation.opcode in ("atomic_rmw", "atomic_cas", "dot"):
            return (UNKNOWN_STRIDE,) * rank
        if operation.opcode in _SHAPE_RULES and hasattr(self, f"_rule_{operation.opcode}"):
            return getattr(self, f"_rule_{operation.opcode}")(operation)
        if any(operand.type.shape != value.type.shape for operand in operation.operands) or not operation.operands:
            return (UNKNOWN_STRIDE,) * rank
        axes = []
        for axis in range(rank):
            inputs = [self.along(operand, axis) for operand in operation.operands]
            still = all(fact.step == 0 for fact in inputs)
            axes.append(Along(0, gcd(*(fact.run for fact in inputs)), 1) if still else UNKNOWN_STRIDE)
        return tuple(axes)

    def _rule_constant(self, operation: Operation) -> tuple[Along, ...]:
        value = number(operation)
        multiple = abs(int(value)) if _is_index(operation.result.type) else 1
        return (Along(0, 0, multiple),) * operation.result.type.rank

    def _rule_arange(self, operation: Operation) -> tuple[Along, ...]:
        return (Along(1, 0, abs(integer(operation, "start"))),)

    def _rule_splat(self, operation: Operation) -> tuple[Along, ...]:
        multiple = self.multiple(operation.operands[0]) if _is_index(operation.result.type) else 1
        return (Along(0, 0, multiple),) * operation.result.type.rank

    def _rule_multiply(self, operation: Operation) -> tuple[Along, ...]:
        left, right = operation.operands
        if constant_of(left) is not None:
            left, right = right, left
        factor = constant_of(right)
        return tuple(
            _product(self.along(left, axis), self.along(right, axis), factor) for axis in range(left.type.rank)
        )

    def _rule_negate(self, operation: Operation) -> tuple[Along, ...]:
        if not _is_index(operation.result.type):
            return self._invariant(operation.result)
        facts = self.all_axes(operation.operands[0])
        return tuple(fact if fact.step is None else replace(fact, step=-fact.step) for fact in facts)

    def _rule_divide(self, operation: Operation) -> tuple[Along, ...]:
        return self._quotient(operation, _quotient)

    def _rule_remainder(self, operation: Operation) -> tuple[Along, ...]:
        return self._quotient(operation, _remainder)

    def _quotient(self, operation: Operation, rule: Callable[[Along, int, bool], Along]) -> tuple[Along, ...]:
        left, right = operation.operands
        divisor = constant_of(right)
        known = divisor is not None
        if divisor is None:  # one number that is not known, but what divides it
            still = all(fact.step == 0 and fact.run == 0 for fact in self.all_axes(right))
            divisor = self.multiple(right) if still else 0
        if divisor <= 0 or not self.is_nonnegative(left):
            return self._invariant(operation.result)
        return tuple(rule(self.along(left, axis), divisor, known) for axis in range(left.type.rank))

    def _rule_cast(self, operation: Operation) -> tuple[Along, ...]:
        source = operation.operands[0]
        if _is_index(source.type) and operation.result.type.element.bits >= source.type.element.bits:
            return self.all_axes(source)
        return self._invariant(operation.result)

    def _rule_bitcast(self, operation: Operation) -> tuple[Along, ...]:
        source, result = operation.operands[0], operation.result
        old, new = source.type.element, result.type.element
        if isinstance(old, PointerType) and isinstance(new, PointerType):
            if old.element.itemsize == new.element.itemsize:
                return self.all_axes(source)
        return self._invariant(result)

    def _rule_hint(self, operation: Operation) -> tuple[Along, ...]:
        source = operation.operands[0]
        axes = list(self.all_axes(source))
        facts = {name: integers(operation, name) for name in ("divisibility", "contiguity", "constancy")}
        for axis, known in enumerate(axes):
            multiple = facts["divisibility"][axis] if facts["divisibility"] else 1
            if known.step is None and facts["contiguity"] and facts["contiguity"][axis] > 1:
                axes[axis] = Along(1, facts["contiguity"][axis], multiple)
            elif known.step is None and facts["constancy"] and facts["constancy"][axis] > 1:
                axes[axis] = Along(0, facts["constancy"][axis], multiple)
            elif multiple > 1 and not source.type.is_pointer:
                axes[axis] = Along(known.step, known.run, _lcm(known.multiple, multiple), known.uniform)
        return tuple(axes)

    # -- Shapes -----------------------------------------------------------------------------------

    def _rule_expand_dims(self, operation: Operation) -> tuple[Along, ...]:
        source, axis = operation.operands[0], integer(operation, "axis")
        axes = list(self.all_axes(source))
        axes.insert(axis, self._still(source))
        return tuple(axes)

    def _rule_broadcast(self, operation: Operation) -> tuple[Along, ...]:
        source = operation.operands[0]
        pairs = zip(self.all_axes(source), source.type.shape, operation.result.type.shape, strict=True)
        return tuple(fact if old == new else self._still(source) for fact, old, new in pairs)

    def _still(self, source: SSAValue) -> Along:
        return Along(0, 0, self.multiple(source) if _is_index(source.type) else 1)

    def _rule_permute(self, operation: Operation) -> tuple[Along, ...]:
        axes = self.all_axes(operation.operands[0])
        return tuple(axes[axis] for axis in integers(operation, "order"))

    def _rule_reshape(self, operation: Operation) -> tuple[Along, ...]:
        source = operation.operands[0]
        axes = self.all_axes(source)
        result: list[Along] = []
        for old, new in reshape_groups(source.type.shape, operation.result.type.shape):
            result += self._regrouped(source.type.shape, axes, old, operation.result.type.shape, new)
        return tuple(result)

    def _regrouped(
        self, old_shape: tuple[int, ...], axes: tuple[Along, ...], old: range, new_shape: tuple[int, ...], new: range
    ) -> list[Along]:
        """Facts of the new axes of one group of axes that hold the same elements."""
        solid = [axis for axis in old if old_shape[axis] > 1]
        facts: list[Along] = []
        inner = 1
        for axis in reversed(new):
            extent = new_shape[axis]
            if extent == 1:
                facts.append(Along(0, 0, 1))
            elif not solid:
                facts.append(UNKNOWN_STRIDE)
            elif len(solid) == 1 and axes[solid[0]].run == 0 and axes[solid[0]].step is not None:
                step = axes[solid[0]].step
                assert step is not None
                facts.append(Along(step * inner, 0, gcd(axes[solid[0]].multiple, step * inner * extent)))
            elif inner == 1:
                last = axes[solid[-1]]
                run = gcd(last.run, old_shape[solid[-1]], extent)
                facts.append(last.restricted(run))
            else:
                facts.append(UNKNOWN_STRIDE)
            inner *= extent
        return facts[::-1]

    # -- Scalars ----------------------------------------------------------------------------------

    def _scalar_multiple(self, value: SSAValue) -> int:
        operation = value.definition
        if operation is None or not _is_index(value.type):
            return 1
        operands = operation.operands
        if operation.opcode == "constant":
            return abs(integer(operation, "value"))
        if operation.opcode in ("add", "subtract", "minimum", "maximum"):
            return gcd(self.multiple(operands[0]), self.multiple(operands[1]))
        if operation.opcode == "multiply":
            return self.multiple(operands[0]) * self.multiple(operands[1])
        if operation.opcode == "cast" and _is_index(operands[0].type):
            return self.multiple(operands[0])
        if operation.opcode == "divide" and (divisor := constant_of(operands[1])):
            multiple = self.multiple(operands[0])
            return multiple // abs(divisor) if multiple % divisor == 0 else 1
        if operation.opcode == "hint" and operation.attributes["divisibility"]:
            return _lcm(self.multiple(operands[0]), integers(operation, "divisibility")[0])
        return 1


_SHAPE_RULES = REARRANGING | {"constant"}


def constant_of(value: SSAValue) -> int | None:
    """The number an integer value is known to be in every element, through splats and casts."""
    operation = value.definition
    if operation is None or not _is_index(value.type):
        return None
    if operation.opcode == "constant":
        return integer(operation, "value")
    if operation.opcode in REARRANGING or operation.opcode in ("cast", "hint"):
        return constant_of(operation.operands[0])
    return None


def reshape_groups(old: tuple[int, ...], new: tuple[int, ...]) -> list[tuple[range, range]]:
    """The finest split of two shapes of equal size into groups of axes that hold the same elements.

    (4, 32, 8) -> (128, 8) gives [(axes 0-1, axis 0), (axis 2, axis 1)].
    """
    groups: list[tuple[range, range]] = []
    i = j = 0
    while i < len(old) or j < len(new):
        start_i, start_j = i, j
        left, right = 1, 1
        if i < len(old):
            left, i = old[i], i + 1
        if j < len(new):
            right, j = new[j], j + 1
        while left != right:
            if left < right:
                left, i = left * old[i], i + 1
            else:
                right, j = right * new[j], j + 1
        groups.append((range(start_i, i), range(start_j, j)))
    return groups


def _is_index(type_: TensorType) -> bool:
    return type_.is_pointer or (type_.dtype.is_integer and not type_.dtype.is_bool)


def _bits(type_: TensorType) -> int:
    return 64 if type_.is_pointer else type_.dtype.bits


def _lcm(a: int, b: int) -> int:
    return a * b // gcd(a, b) if a and b else 0


def _sum(left: Along, right: Along, sign: int) -> Along:
    run = gcd(left.run, right.run)
    left, right = left.restricted(run), right.restricted(run)
    if left.step is None or right.step is None:
        uniform = left.uniform and right.uniform
        return Along(None, run, gcd(left.multiple, right.multiple), True) if uniform else UNKNOWN_STRIDE
    return Along(left.step + sign * right.step, run, gcd(left.multiple, right.multiple))


def _product(left: Along, right: Along, factor: int | None) -> Along:
    run = gcd(left.run, right.run)
    left, right = left.restricted(run), right.restricted(run)
    multiple = left.multiple * right.multiple
    if left.step == 0 and right.step == 0:
        return Along(0, run, multiple)
    if factor is not None and left.step is not None:
        return Along(left.step * factor, run, multiple)
    still = left.step == 0 or right.step == 0
    return Along(None, run, multiple, True) if still and left.uniform and right.uniform else UNKNOWN_STRIDE


def _quotient(fact: Along, divisor: int, known: bool) -> Along:
    """Of a division by `divisor`, or (not `known`) by a multiple of it."""
    exact = known and fact.multiple % divisor == 0
    if fact.step == 0:
        return Along(0, fact.run, fact.multiple // divisor if exact else 1)
    if exact and fact.step is not None and fact.step % divisor == 0:
        return Along(fact.step // divisor, fact.run, fact.multiple // divisor)
    run = _run_between(fact, divisor)
    return Along(0, run, 1) if run != 1 else UNKNOWN_STRIDE


def _remainder(fact: Along, divisor: int, known: bool) -> Along:
    """Of a division by `divisor`, or (not `known`) by a multiple of it."""
    if fact.step == 0:
        return Along(0, fact.run, gcd(fact.multiple, divisor))
    run = _run_between(fact, divisor)
    if fact.step is None or run == 1:
        return UNKNOWN_STRIDE
    return Along(fact.step, run, gcd(fact.multiple, divisor, fact.step * run))


def _run_between(fact: Along, divisor: int) -> int:
    """The length of runs whose numbers pass no multiple of a divisor: they begin at multiples of a part of it."""
    part = gcd(fact.multiple, divisor)
    if fact.step is None or fact.step <= 0 or part % fact.step:
        return 1
    return gcd(fact.run, part // fact.step)


def _nonnegative(analysis: AffineAnalysis, value: SSAValue) -> bool:
    operation = value.definition
    if operation is None or value.type.is_pointer:
        return False
    if value.type.dtype.kind == "uint":
        return True
    opcode, operands = operation.opcode, operation.operands
    if opcode in ("program_id", "num_programs"):
        return True
    if opcode == "constant":
        return number(operation) >= 0
    if opcode == "arange":
        return integer(operation, "start") >= 0
    if opcode in (*REARRANGING, "cast", "hint", "remainder"):
        return bool(operands[0].type.dtype.is_integer) and analysis.is_nonnegative(operands[0])
    if opcode in ("add", "multiply", "divide", "minimum"):
        return all(analysis.is_nonnegative(operand) for operand in operands)
    if opcode == "maximum":
        return any(analysis.is_nonnegative(operand) for operand in operands)
    return False
