"""Sorting on CPUs: how rows are shared out, the cost."""

from __future__ import annotations

from typing import Any

import tilewright.language as tl
from tilewright.dtypes import int32, int64
from tilewright.graph.core import Graph, Value
from tilewright.graph.fusion import Group
from tilewright.library.binding import bind_sizes
from tilewright.library.candidate import Candidate, KernelCall, Operand, Stage
from tilewright.library.cost import estimate, expected
from tilewright.library.generated.elementwise import total_bytes
from tilewright.library.sort.kernel import DIGITS, argsort
from tilewright.library.sort.problem import KEY_TYPES
from tilewright.symbolic import Size, ceil_divide, lift, product, simplify, upper_bound
from tilewright.targets.base import Target

_KEY_BLOCK = 256  # elements that become keys together
_PROGRAMS_OF_THREAD = 4  # for each thread, so that all have about the same work
SORT_EFFICIENCY = 0.05  # a pass moves one element at a time


def sort_candidates(group: Group, graph: Graph, target: Target) -> list[Candidate]:
    """The launch of `library.sort.kernel`."""
    anchor = group.anchor
    assert anchor is not None
    x = anchor.inputs[0]
    assert x is not None
    rows, columns, machine = product(x.shape[:-1]), x.shape[-1], target.machine()
    key, sign = KEY_TYPES[x.dtype.itemsize], 1 << (8 * x.dtype.itemsize - 1)
    programs = _PROGRAMS_OF_THREAD * machine.processors
    blocks = simplify(ceil_divide(rows, programs))
    if isinstance(rows, int):
        programs = expected(ceil_divide(rows, blocks))
    place = int32 if upper_bound(columns) < 2**31 else int64
    space, counted = simplify(2 * lift(columns)), key.itemsize * int(DIGITS)
    scratch = {
        "keys": Value(f"{anchor.output.name}.keys", key, (programs, space)),
        "positions": Value(f"{anchor.output.name}.positions", place, (programs, space)),
        "counts": Value(f"{anchor.output.name}.counts", place, (programs, counted)),
    }
    constants: dict[str, Any] = {
        "KEY": getattr(tl, key.name), "PASSES": key.itemsize, "FLOAT": x.dtype.is_float, "BLOCK": _KEY_BLOCK,
        "SIGN": sign if x.dtype.is_float or x.dtype.is_signed else 0, "DESCENDING": anchor.attributes["descending"],
    }  # fmt: skip
    operands: dict[str, Operand] = {"x": x, "out": anchor.output, **scratch}
    types: dict[str, str] = {}
    sizes: dict[str, Size] = {"rows": rows, "columns": columns, "limit": anchor.output.shape[-1], "blocks": blocks}
    bind_sizes(sizes, operands, types, constants)
    call = KernelCall(argsort, operands, types, constants, (programs, 1, 1))
    steps = simplify(lift(product(x.shape)) * (2 * key.itemsize + 1))
    cost = estimate(machine, total_bytes(group.inputs, group.outputs), steps, programs, key, SORT_EFFICIENCY)
    return [Candidate("radix sort", (Stage((call,)),), cost, tuple(scratch.values()), {"passes": key.itemsize})]
