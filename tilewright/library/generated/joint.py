"""Several generated kernels as one launch: each program belongs to one of them.

    program = tl.program_id(0)
    if program < 96:
        part_0(program, 0, 0, a0, a1)
    else:
        part_1(program - 96, 0, 0, a0, a2)

For kernels that do not wait for each other: copies of the parts of a concat, results of different shapes that read
the same tensors (rotary positions of queries and keys, both with their places in a cache).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import tilewright.language as tl
from tilewright.launch.jit import JITFunction
from tilewright.library.candidate import KernelCall
from tilewright.library.cost import expected
from tilewright.library.generated.generate import function_from_source, loops_of
from tilewright.symbolic import Size, lift, product, simplify
from tilewright.targets.base import Target

_PROGRAM_NAMES = ("program_0", "program_1", "program_2")
_JOINT: dict[tuple[str, tuple[JITFunction, ...]], JITFunction] = {}


_MOST = 8  # kernels of one launch


def together(calls: Sequence[KernelCall], target: Target) -> list[KernelCall]:
    """Launches of generated kernels that do not wait for each other, as fewer where the target gains by that."""
    if len(calls) == 1 or not loops_of(target).together:
        return list(calls)
    return [joint_call(calls[start : start + _MOST]) for start in range(0, len(calls), _MOST)]


def joint_call(calls: Sequence[KernelCall]) -> KernelCall:
    """One launch for several of generated kernels, which must not wait for each other."""
    parameters = _Parameters()
    lines = ["program = tl.program_id(0)"]
    start: Size = 0
    for number, call in enumerate(calls):
        programs = product(call.grid)
        arguments = [*_programs(call.grid, start, parameters), *map(parameters.of(call), call.operands)]
        arguments += [repr(value) for value in call.constants.values()]
        start = simplify(lift(start) + programs)
        condition = f"if program < {parameters.size(start)}:"
        if number + 1 == len(calls):
            condition = "else:"
        elif number:
            condition = f"el{condition}"
        lines += [condition, f"    part_{number}({', '.join(arguments)})"]
    parts = tuple(map(_part, calls))
    name = "joint_" + "_and_".join(dict.fromkeys(call.kernel.__name__ for call in calls))
    body = "\n".join(f"    {line}" for line in lines)
    source = f"def {name}({', '.join(parameters.operands)}):\n{body}\n"
    if (source, parts) not in _JOINT:
        namespace = {"tl": tl, **{f"part_{number}": part for number, part in enumerate(parts)}}
        _JOINT[source, parts] = JITFunction.from_source(source, name, namespace)
    threads = max(call.threads for call in calls)
    joint = KernelCall(_JOINT[source, parts], parameters.operands, parameters.types, {}, (start, 1, 1), threads=threads)
    return replace(joint, sectors=mean_sectors(calls))


def mean_sectors(calls: Sequence[KernelCall]) -> float:
    """The bytes of sectors for each byte that calls need, by their programs."""
    weights = [max(1, expected(product(call.grid))) for call in calls]
    return sum(call.sectors * weight for call, weight in zip(calls, weights, strict=True)) / sum(weights)


class _Parameters:
    """The parameters of a joint kernel: one for each tensor and size, whichever parts have it."""

    def __init__(self) -> None:
        self.operands: dict[str, Any] = {}
        self.types: dict[str, str] = {}
        self._names: dict[Any, str] = {}

    def of(self, call: KernelCall) -> Any:
        """The text of an operand of a part, by its name there."""
        return lambda name: self._name(call.operands[name], call.types.get(name))

    def size(self, size: Size) -> str:
        """The text of a size."""
        return str(size) if isinstance(size, int) else self._name(size, "i64")

    def _name(self, operand: Any, kind: str | None) -> str:
        if operand not in self._names:
            name = f"a{len(self._names)}"
            self._names[operand] = name
            self.operands[name] = operand
            if kind is not None:
                self.types[name] = kind
        return self._names[operand]


def _programs(grid: Sequence[Size], start: Size, parameters: _Parameters) -> list[str]:
    """The part's own three program ids."""
    own = "program" if start == 0 else f"program - {parameters.size(start)}"
    if grid[1] == grid[2] == 1:
        return [own, "0", "0"]
    first, second = map(parameters.size, grid[:2])
    rest = f"({own}) // {first}"
    third = "0" if grid[2] == 1 else f"{rest} // {second}"
    return [f"({own}) % {first}", rest if grid[2] == 1 else f"{rest} % {second}", third]


def _part(call: KernelCall) -> JITFunction:
    """A generated kernel as a function of its program ids."""
    kernel = call.kernel
    assert isinstance(kernel, JITFunction)
    source = kernel.source.replace(f"def {kernel.__name__}(", f"def {kernel.__name__}({', '.join(_PROGRAM_NAMES)}, ", 1)
    for axis, name in enumerate(_PROGRAM_NAMES):
        source = source.replace(f"tl.program_id({axis})", name)
    return function_from_source(kernel.__name__, source)
