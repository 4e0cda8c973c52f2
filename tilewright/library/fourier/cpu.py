"""Fourier transforms on CPUs: the factors of a length, how rows are shared out, the cost."""

from __future__ import annotations

from math import ceil
from typing import Any

from tilewright.graph.core import Graph, Value
from tilewright.graph.fourier import half, prime_factors
from tilewright.graph.fusion import Group
from tilewright.launch.jit import JITFunction
from tilewright.library.binding import bind_extra, bind_sizes
from tilewright.library.candidate import Candidate, KernelCall, Operand, Stage
from tilewright.library.cost import estimate, expected
from tilewright.library.fourier.kernel import fourier, left_part
from tilewright.library.generated.elementwise import chain_operations, total_bytes
from tilewright.library.generated.expressions import language_type
from tilewright.library.generated.generate import next_power_of_2
from tilewright.library.generated.slot_functions import prologue_function
from tilewright.library.generated.source import ExtraReferences
from tilewright.library.matmul.gate import gate_slots
from tilewright.library.slots import epilogue_slots
from tilewright.symbolic import ceil_divide, lift, product, simplify
from tilewright.targets.base import Target

SLOT_CHUNK = 2048  # numbers of a row that slots are given together
# Bytes; rows that are turned are an odd number of them apart, lest they fall into the same sets of the cache.
_CACHE_LINE = 64
_PROGRAMS_OF_THREAD = 4  # for each thread, so that all have about the same work
FOURIER_EFFICIENCY = 0.25


def fourier_candidates(group: Group, graph: Graph, target: Target) -> list[Candidate]:
    """The launch of `library.fourier.kernel`."""
    anchor = group.anchor
    assert anchor is not None
    x, roots, imaginary = [*anchor.inputs, None][:3]
    assert x is not None and roots is not None
    length, form, machine = roots.shape[0], anchor.attributes["form"], target.machine()
    assert isinstance(length, int)
    paired = length % 2 == 0 and (form == "real" or (form == "half" and imaginary is None))
    points = length // 2 if paired else length
    extra = ExtraReferences()
    loads = [_load(value, group, graph, extra) for value in (x, x if imaginary is None else imaginary)]
    gate = gate_slots(group, graph, extra)
    slots = gate or epilogue_slots(group, graph, extra)
    rows = product(x.shape[:-1])
    lanes = target.vector_bits // (8 * x.dtype.itemsize)
    if isinstance(rows, int):
        lanes = min(lanes, next_power_of_2(rows))
    factors = radices(points, target.vector_registers)
    inverse = bool(anchor.attributes["inverse"]) or form == "real"
    blocks = simplify(ceil_divide(ceil_divide(rows, lanes), _PROGRAMS_OF_THREAD * machine.processors))
    programs = _PROGRAMS_OF_THREAD * machine.processors
    if isinstance(blocks, int):
        programs = expected(ceil_divide(ceil_divide(rows, lanes), blocks))
    loaded, given = (half(length) if form == "real" else length), (half(length) if form == "half" else length)
    space, line = lanes * 2 * (points + 1), _CACHE_LINE // x.dtype.itemsize
    pitch = (ceil(max(loaded, given) / line) // 2 * 2 + 1) * line
    sizes = {"first": space, "second": space, "rows_of_lanes": lanes * pitch}
    scratch = {name: Value(f"{anchor.output.name}.{name}", x.dtype, (programs, size)) for name, size in sizes.items()}
    constants: dict[str, Any] = {
        "FORM": form, "COMPLEX": imaginary is not None, "LENGTH": length, "PASSES": _passes(factors, length // points),
        "RE": int(inverse), "LANES": lanes, "LOADED": min(loaded, SLOT_CHUNK), "GIVEN": min(given, SLOT_CHUNK),
        "SPACE": space, "PITCH": pitch, "TYPE": language_type(x.dtype), "GATED": gate is not None, "PROLOGUE": loads[0],
        "SECOND": loads[1], "GATE": slots.epilogue.gate or left_part, "EPILOGUE": slots.function,
    }  # fmt: skip
    operands: dict[str, Operand] = {"roots": roots, "out": slots.stored, **scratch}
    types: dict[str, str] = {}
    bind_sizes({"rows": rows, "blocks": blocks}, operands, types, constants)
    bind_extra(extra, operands, types)
    call = KernelCall(fourier, operands, types, constants, (programs, 1, 1))
    whole = simplify(ceil_divide(rows, lanes) * lift(lanes))
    flops = simplify(lift(whole) * operations(points, factors) + chain_operations(group.nodes))
    cost = estimate(machine, total_bytes(group.inputs, group.outputs), flops, programs, x.dtype, FOURIER_EFFICIENCY)
    reasons = {"radices": factors, "lanes": lanes}
    return [Candidate("Fourier transform", (Stage((call,)),), cost, tuple(scratch.values()), reasons)]


def radices(points: int, registers: int) -> tuple[int, ...]:
    """The factors of the passes: as large ones as the vector registers hold the numbers of."""
    primes = prime_factors(points)
    twos, odd = primes.count(2), [prime for prime in primes if prime > 2]
    if registers < 32:
        return (*odd, *[4] * (twos // 2), *[2] * (twos % 2))
    eights, rest = divmod(twos, 3)
    if rest == 1 and eights:
        return (*odd, *[8] * (eights - 1), 4, 4)
    return (*odd, *[8] * eights, *({0: [], 1: [2], 2: [4]}[rest]))


def operations(points: int, factors: tuple[int, ...]) -> int:
    """Of the transform of one row of complex numbers, with what leads to the first pass and follows the last one."""
    each = {2: 4, 4: 16, 8: 56}
    passes = sum(points // radix * (each.get(radix, 4 * (radix - 1) ** 2) + 6 * (radix - 1)) for radix in factors)
    return passes + 16 * points


def _passes(factors: tuple[int, ...], step: int) -> tuple[tuple[int, int, int, int], ...]:
    """Radix, count, stride and step of each pass (`kernel.one_pass`); the roots of all points are `step`
    apart."""
    passes, stride, count = [], 1, 1
    for radix in factors:
        count *= radix
    for radix in factors:
        count //= radix
        passes.append((radix, count, stride, step))
        stride, step = stride * radix, step * radix
    return tuple(passes)


def _load(value: Value, group: Group, graph: Graph, extra: ExtraReferences) -> JITFunction:
    """The slot that loads the numbers of a row."""
    nodes = [node for node in group.nodes if node is not group.anchor]
    return prologue_function(nodes, value, graph.constants, extra)
