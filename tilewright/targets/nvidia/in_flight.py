"""In-flight products by warpgroups: issued, but not waited for yet.

Groups of wgmma finish in the order in which they were issued.  A wait leaves the newest ones under way; it ties the
registers of what it retires, and takes those that the retired groups read as operand A.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tilewright.ir.core import SSAValue
from tilewright.targets.llvm.builder import LLVMBuilder, LLVMValue
from tilewright.targets.nvidia.explicit import wgmma


@dataclass
class InFlightGroup:
    """One group: results by value, and the registers that are being read.

    `carried` ones were issued by the iteration before.
    """

    values: dict[SSAValue, list[LLVMValue]]
    pinned: list[LLVMValue]
    carried: bool


class Flight:
    """The queue of one kernel, the oldest group first."""

    def __init__(self, builder: LLVMBuilder) -> None:
        self.builder = builder
        self.groups: list[InFlightGroup] = []

    def start(self, value: SSAValue, registers: Sequence[LLVMValue], pinned: Sequence[LLVMValue]) -> None:
        """A result that is under way from now on."""
        self.groups.append(InFlightGroup({value: list(registers)}, list(pinned), False))

    def carry(self, values: Mapping[SSAValue, Sequence[LLVMValue]]) -> None:
        """Results that a loop has carried here, of any number of groups older than all that follow."""
        if values:
            self.groups.append(InFlightGroup({value: list(own) for value, own in values.items()}, [], True))

    def lasting(self) -> int:
        """How many of the newest groups may go on into the next iteration: those that read shared memory only."""
        count = 0
        for group in reversed(self.groups):
            if group.carried or group.pinned:
                break
            count += 1
        return count

    def clear(self) -> None:
        """Forget the groups, whose results a loop carries on."""
        self.groups.clear()

    def holds(self, value: SSAValue) -> bool:
        return any(value in group.values for group in self.groups)

    def take(self, value: SSAValue) -> None:
        """The next product adds to this one's registers: nobody waits for them as they are."""
        for group in self.groups:
            group.values.pop(value, None)

    def newer(self, value: SSAValue) -> int:
        """How many groups were issued after the one of a value."""
        place = next(number for number, group in enumerate(self.groups) if value in group.values)
        return len(self.groups) - place - 1

    def land(self, keep: int = 0) -> dict[SSAValue, list[LLVMValue]]:
        """Wait until at most the `keep` newest groups are under way; the results of the others, as numbers."""
        count = max(0, len(self.groups) - keep)
        retired, self.groups = self.groups[:count], self.groups[count:]
        if not retired:
            return {}
        values = {value: own for group in retired for value, own in group.values.items()}
        pinned = {word.text: word for group in retired for word in group.pinned}
        flat = [register for own in values.values() for register in own]
        numbers = wgmma.wait(self.builder, keep, flat, list(pinned.values()))
        found = {}
        for value, own in values.items():
            found[value], numbers = numbers[: len(own)], numbers[len(own) :]
        return found
