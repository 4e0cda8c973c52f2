"""In-flight products by warpgroups, while a kernel is written: issued, but not waited for yet.

Groups of wgmma finish in the order in which they were issued.  A wait leaves the newest ones under way.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tilewright.ir.core import SSAValue


@dataclass
class InFlightGroup:
    """One group: its accumulators by the values that they will be.

    `in_registers` says that it reads its operand A there; `carried` ones were issued by the iteration before.
    """

    values: dict[SSAValue, SSAValue]
    in_registers: bool = False
    carried: bool = False


class Flight:
    """The queue of one kernel, the oldest group first."""

    def __init__(self) -> None:
        self.groups: list[InFlightGroup] = []

    def start(self, value: SSAValue, accumulator: SSAValue, in_registers: bool) -> None:
        """A result that is under way from now on."""
        self.groups.append(InFlightGroup({value: accumulator}, in_registers))

    def carry(self, values: Mapping[SSAValue, SSAValue]) -> None:
        """Results that a loop has carried here, of any number of groups older than all that follow."""
        if values:
            self.groups.append(InFlightGroup(dict(values), carried=True))

    def lasting(self) -> int:
        """How many of the newest groups may go on into the next iteration: those that read shared memory only."""
        count = 0
        for group in reversed(self.groups):
            if group.carried or group.in_registers:
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

    def retire(self, keep: int) -> list[InFlightGroup]:
        """The groups that are done when at most the `keep` newest are under way."""
        count = max(0, len(self.groups) - keep)
        retired, self.groups = self.groups[:count], self.groups[count:]
        return retired
