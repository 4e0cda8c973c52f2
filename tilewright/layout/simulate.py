"""Runs plans on NumPy arrays: every register of every thread is an array element.

Arrays have the axes (block, warp, lane, register); `registers_of` fills one with the elements a layout says are there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.layout.convert import Plan, RegisterMoves
from tilewright.layout.exchange import SharedExchange
from tilewright.layout.linear import IntArray, LinearLayout
from tilewright.layout.shuffles import Shuffles

Registers = npt.NDArray[Any]


def registers_of(layout: LinearLayout, block: npt.NDArray[Any]) -> Registers:
    """What the registers hold when `block` (of the layout's shape) is distributed."""
    values: Registers = np.asarray(block).reshape(-1)[layout.table()]
    return values


def simulate(plan: Plan, values: Registers) -> Registers:
    """The registers after a conversion.

    Raises `ValueError` when two threads store different values to one place, or a place is loaded that nobody stored.
    """
    if isinstance(plan, RegisterMoves):
        return values[..., list(plan.registers)]
    if isinstance(plan, Shuffles):
        return _shuffles(plan, values)
    return _exchange(plan, values)


def _thread_numbers(bits: Sequence[int], shape: tuple[int, ...]) -> IntArray:
    """The XOR of one number for each thread bit, for all threads: (blocks, warps, lanes)."""
    result: IntArray = np.zeros(1, np.int64)
    for number in bits:
        result = np.concatenate([result, result ^ number])
    return result.reshape(shape[:3])


def _shuffles(plan: Shuffles, values: Registers) -> Registers:
    units = values.reshape(*values.shape[:3], -1, plan.unit)
    blocks, warps, lanes = np.indices(values.shape[:3])
    send, read, place = (_thread_numbers(bits, values.shape) for bits in (plan.send, plan.read, plan.place))
    received = []
    for round_ in plan.rounds:
        sent = units[blocks, warps, lanes, send ^ round_.register]
        received.append(sent[blocks, warps, read ^ round_.lane])
    arrived = np.stack(received, axis=3)
    columns = [arrived[blocks, warps, lanes, place ^ unit, member] for unit, member in plan.registers]
    return np.stack(columns, axis=-1)


def _exchange(plan: SharedExchange, values: Registers) -> Registers:
    loaded: Registers = np.zeros((*values.shape[:3], 1 + max(plan.registers)), values.dtype)
    for step in range(plan.steps):
        memory, stored = _store(plan, values, step)
        blocks = np.indices(values.shape[:3])[0]
        threads = _thread_numbers(plan.load.threads, values.shape)
        for access in plan.load.accesses:
            for member, register in enumerate(access.registers if access.step == step else ()):
                places = (threads ^ access.offset) + member
                if not stored[blocks, places].all():
                    raise ValueError("a thread loads what nobody stored")
                loaded[..., register] = memory[blocks, places]
    return loaded[..., list(plan.registers)]


def _store(plan: SharedExchange, values: Registers, step: int) -> tuple[Registers, npt.NDArray[np.bool_]]:
    """Memory after the stores of a step, for each block, and where something was stored."""
    blocks = np.indices(values.shape[:3])[0]
    memory = np.zeros((values.shape[0], plan.size), values.dtype)
    stored = np.zeros(memory.shape, bool)
    threads = _thread_numbers(plan.store.threads, values.shape)
    written = [
        ((threads ^ access.offset) + member, values[..., register])
        for access in plan.store.accesses
        if access.step == step
        for member, register in enumerate(access.registers)
    ]
    for places, moved in written:
        memory[blocks, places] = moved
        stored[blocks, places] = True
    if any((memory[blocks, places] != moved).any() for places, moved in written):
        raise ValueError("two threads stored different values to one place")
    return memory, stored
