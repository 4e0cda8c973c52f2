"""Kernels whose threads load from shared memory what others then write again, in many forms drawn from a seed.

`drawn(random)` gives a `Form`; `traced(form)` its kernel; `broken(function, random)` kernels in which a wait for loads
is missing, too early, too late or for other loads; `launch(function, form, order)` what it stores, and `expected(form)`
what it should.
"""

# mypy: ignore-errors
# Kernels are tile language, which has types of its own.

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

import tilewright
import tilewright.language as tl
import tilewright.language.explicit as tx
from tilewright.ir.core import Function, Operation, Region
from tilewright.ir.interpreter import run
from tilewright.ir.parser import parse_function
from tilewright.ir.printer import print_function

ROWS, COLUMNS = 8, 16  # of what one load reads


class Form(NamedTuple):
    """How a kernel is made: see `drawn`."""

    KERNEL: str  # "ring", "group" (no roles) or "pair" (two CTAs)
    STAGES: int = 2
    CONSUMERS: int = 1
    WARPS: int = 4  # of a consumer
    LOADS: int = 1  # of a stage
    NEST: str = ""  # the loads stand in a "for" or an "if"
    RELEASE: str = "each"  # stage; "late", of the one before; "relay", one consumer for all; "named": hardware barrier
    FILL: str = "copy"  # or "store": the stages are filled by ordinary stores
    ROUNDS: int = 6

    @property
    def rows(self) -> int:
        """Rows of a stage."""
        return ROWS * self.LOADS

    @property
    def threads(self) -> int:
        """Those that meet at a hardware barrier: of all consumers, with the loading warp where that waits too."""
        return 32 * (self.CONSUMERS * self.WARPS + (self.RELEASE == "named"))

    @property
    def ends_later(self) -> bool:
        """Whether others write a stage only after what follows its loads in the next round, before which they end."""
        return self.KERNEL == "group" and self.STAGES > 1 or self.KERNEL == "ring" and self.RELEASE == "late"


def drawn(draw: random.Random) -> Form:
    """A right form."""
    kernel = draw.choice(("ring", "ring", "ring", "group", "pair"))
    fill = draw.choice(("copy", "copy", "store"))
    release = draw.choice(("each", "late", "relay", "named"))
    stages = draw.randint(2 if release == "late" else 1, 4)
    if kernel != "ring" or release == "named":  # a store needs no wait there: ordinary accesses come in order
        fill = "copy"
    consumers = draw.randint(2 if release == "relay" else 1, 3)
    return Form(kernel, stages, consumers, draw.choice((1, 2, 4)), draw.randint(1, 3), draw.choice(("", "for", "if")),
                release, fill, stages + draw.randint(2, 4))  # fmt: skip


@tilewright.jit
def sums_of(tile, number, FORM: tl.constexpr):
    """The sum of what the loads of a stage read."""
    total = tl.zeros((ROWS_, COLUMNS_), tl.float32)
    if FORM.NEST == "for":
        for part in range(FORM.LOADS):
            total += tile.slice(part * ROWS_, ROWS_).load()
    elif FORM.NEST == "if":
        if number % 2 == 0:
            for part in tl.static_range(FORM.LOADS):
                total += tile.slice(part * ROWS_, ROWS_).load()
        else:
            for part in tl.static_range(FORM.LOADS):
                total += tile.slice((FORM.LOADS - 1 - part) * ROWS_, ROWS_).load()
    else:
        for part in tl.static_range(FORM.LOADS):
            total += tile.slice(part * ROWS_, ROWS_).load()
    return total


ROWS_, COLUMNS_ = tl.constexpr(ROWS), tl.constexpr(COLUMNS)


@tilewright.jit
def fill(copy, a, tiles, ring, FORM: tl.constexpr):
    """The loading role: one thread, or a warp where it stores or meets the others at a hardware barrier."""
    position = tx.producer_start(FORM.STAGES)
    for number in range(FORM.ROUNDS):
        if FORM.RELEASE == "named":
            if number >= FORM.STAGES:
                tx.named_sync(position.stage + 1, FORM.threads)
        else:
            ring.wait_empty(position)
        full = ring.full[position.stage]
        if FORM.FILL == "copy":
            full.expect(tiles[0].bytes)
            tx.tma_load(a, (number * FORM.rows, 0), tiles[position.stage], full)
        else:
            tiles[position.stage].store(tl.full((FORM.rows, COLUMNS_), 1.0, tl.float32) * number)
            full.arrive()
        position = position.next()


@tilewright.jit
def release(copy, position, number, ring, FORM: tl.constexpr):
    if FORM.RELEASE == "relay":
        tx.named_sync(1, FORM.threads)
        if copy == 0:
            ring.release(position)
    elif FORM.RELEASE == "named":
        if number < FORM.ROUNDS - FORM.STAGES:
            tx.named_arrive(position.stage + 1, FORM.threads)
    else:
        ring.release(position)


@tilewright.jit
def consume(copy, x, tiles, ring, FORM: tl.constexpr):
    position = tx.consumer_start(FORM.STAGES)
    before = position
    total = tl.zeros((ROWS_, COLUMNS_), tl.float32)
    for number in range(FORM.ROUNDS):
        ring.wait_full(position)
        total += sums_of(tiles[position.stage], number, FORM)
        if FORM.RELEASE != "late":
            release(copy, position, number, ring, FORM)
        elif number > 0:
            ring.release(before)
        before = position
        position = position.next()
    place = tl.arange(0, ROWS_)[:, None] * COLUMNS_ + tl.arange(0, COLUMNS_)[None, :]
    tl.store(x + copy * ROWS_ * COLUMNS_ + place, total)


@tilewright.jit
def ring(a: tx.tensor_map, x, FORM: tl.constexpr):
    """A ring of stages, which a role fills and others load from."""
    tiles = tx.shared((FORM.STAGES, FORM.rows, COLUMNS_), tl.float32)
    SHARING: tl.constexpr = 1 if FORM.RELEASE == "relay" else FORM.CONSUMERS
    barriers = tx.make_ring(FORM.STAGES, FORM.WARPS * SHARING)
    ALONE: tl.constexpr = FORM.FILL == "copy" and FORM.RELEASE != "named"
    tx.warp_roles(
        tx.role(fill, (a, tiles, barriers, FORM), warps=1, elected=ALONE),
        tx.role(consume, (x, tiles, barriers, FORM), warps=FORM.WARPS, copies=FORM.CONSUMERS),
    )


@tilewright.jit
def group(a: tx.tensor_map, x, FORM: tl.constexpr):
    """All threads load from a tile, and one of them has it filled again."""
    tiles = tx.shared((FORM.STAGES, FORM.rows, COLUMNS_), tl.float32)
    full = tx.barriers(FORM.STAGES, 1)
    total = tl.zeros((ROWS_, COLUMNS_), tl.float32)
    position = tx.consumer_start(FORM.STAGES)
    for number in range(FORM.ROUNDS):
        full[position.stage].expect(tiles[0].bytes)
        tx.tma_load(a, (number * FORM.rows, 0), tiles[position.stage], full[position.stage])
        full[position.stage].wait(position.parity)
        total += sums_of(tiles[position.stage], number, FORM)
        tx.group_sync()
        position = position.next()
    place = tl.arange(0, ROWS_)[:, None] * COLUMNS_ + tl.arange(0, COLUMNS_)[None, :]
    tl.store(x + place, total)


@tilewright.jit
def pair(x, FORM: tl.constexpr):
    """Each CTA of a pair stores its number and reads the other's, again and again."""
    tx.cluster((2,))
    tile = tx.shared((FORM.rows, COLUMNS_), tl.float32)
    rank = tx.cluster_rank()
    total = tl.zeros((ROWS_, COLUMNS_), tl.float32)
    for number in range(FORM.ROUNDS):
        tile.store(tl.full((FORM.rows, COLUMNS_), 1.0, tl.float32) * (number * (rank + 1)))
        tx.cluster_arrive()
        tx.cluster_wait()
        total += sums_of(tile.remote(1 - rank), number, FORM)
        tx.cluster_arrive()
        tx.cluster_wait()
    place = tl.arange(0, ROWS_)[:, None] * COLUMNS_ + tl.arange(0, COLUMNS_)[None, :]
    tl.store(x + rank * ROWS_ * COLUMNS_ + place, total)


def traced(form: Form) -> Function:
    """The kernel's Tile IR."""
    types = {"a": f"tensormap<{form.rows}x{COLUMNS}xf32>", "x": "*f32"}
    if form.KERNEL == "pair":
        types.pop("a")
    return {"ring": ring, "group": group, "pair": pair}[form.KERNEL].trace(types, {"FORM": form})


def launch(function: Function, form: Form, order: int) -> np.ndarray:
    """What the kernel stores: sums [outputs, ROWS, COLUMNS]."""
    numbers = np.repeat(np.arange(form.ROUNDS, dtype=np.float32), form.rows * COLUMNS)
    out = np.zeros((2 if form.KERNEL == "pair" else form.CONSUMERS, ROWS, COLUMNS), np.float32)
    arguments = [out] if form.KERNEL == "pair" else [numbers.reshape(-1, COLUMNS), out]
    run(function, arguments, (2 if form.KERNEL == "pair" else 1,), order=order)
    return out


def expected(form: Form) -> np.ndarray:
    """The sum of the numbers of all rounds, once for each load."""
    total = np.full((2 if form.KERNEL == "pair" else form.CONSUMERS, ROWS, COLUMNS), float(sum(range(form.ROUNDS))))
    if form.KERNEL == "pair":
        total[0] *= 2
    if form.KERNEL == "group":
        total[1:] = 0
    return total * form.LOADS


# Mistakes


def broken(function: Function, form: Form, draw: random.Random) -> Iterator[tuple[str, Function]]:
    """Copies of a kernel with one mistake: the wait for some loads is missing, before them, too late or for others."""
    text = print_function(function)
    assert "shared_wait" in text, "there is nothing to leave out"
    for kind in ("missing", "early", "late", "others"):
        if kind == "late" and form.ends_later:
            continue
        copy = parse_function(text)
        waits = [(region, operation) for region in regions(copy) for operation in region.operations
                 if operation.opcode == "shared_wait"]  # fmt: skip
        region, wait = draw.choice(waits)
        if _spoil(kind, region, wait):
            yield kind, copy


def regions(function: Function) -> Iterator[Region]:
    """All regions of a kernel, its own first."""
    yield function.region
    for operation in function.walk():
        yield from operation.regions


def _spoil(kind: str, region: Region, wait: Operation) -> bool:
    """Make a mistake of a wait; whether there is a place for it."""
    operations, place = region.operations, region.operations.index(wait)
    if kind == "others":
        wait.attributes["remote"] = not wait.attributes["remote"]
        return True
    first = next(n for n, operation in enumerate(operations) if operation.opcode == "shared_load")
    if kind == "late" and operations[place + 1] is region.terminator:
        return False
    operations.remove(wait)
    if kind == "early":
        operations.insert(first, wait)
    elif kind == "late":
        operations.insert(place + 1, wait)
    return True
