"""Which axis of a launch is which axis of a kernel's grid, where a device allows fewer programs along some axes."""

from __future__ import annotations

from tilewright.ir.core import Function, Operation
from tilewright.ir.rewrite import Rebuilder, Replacement

Axes = tuple[int, int, int]
SAME_AXES: Axes = (0, 1, 2)


def rename_axes(function: Function, axes: Axes) -> Function:
    """`function` for a launch whose axis ``axes[n]`` is axis n of its grid; the same object where that changes nothing.

    Programs along axis n then are those along axis ``axes[n]`` of the launch.
    """
    return function if axes == SAME_AXES else _Renaming(axes).run(function)


class _Renaming(Rebuilder):
    def __init__(self, axes: Axes) -> None:
        super().__init__()
        self.axes = axes

    def visit(self, operation: Operation) -> Replacement:
        if operation.opcode in ("program_id", "num_programs"):
            axis = operation.attributes["axis"]
            assert isinstance(axis, int)
            operation.attributes["axis"] = self.axes[axis]
            self.changed = True
        return None
